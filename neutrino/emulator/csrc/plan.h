/* What streams run of a graph: its operations as they were when the plan was made, and which comes after which. */
#ifndef ED_PLAN_H
#define ED_PLAN_H

#include "graph.h"

struct ed_step {
	struct ed_operation operation;
	CUgraphNode node; /* what it was made of: only compared */
	size_t *after;
	size_t after_count;
};

struct ed_plan {
	uint32_t holders;
	size_t count;
	struct ed_step steps[];
};

/* A plan of the graph's nodes, held once; NULL without memory. */
struct ed_plan *ed_plan_make(CUgraph graph, struct ed_context *context);

bool ed_plan_is_acyclic(const struct ed_plan *plan);

#endif
