/* Plans: copies of a graph's operations, as they were when the graph was instantiated, and their order. */
#ifndef ED_PLAN_H
#define ED_PLAN_H

#include "graph.h"

struct ed_step {
	struct ed_operation operation;
	CUgraphNode node; /* that it was made from; only compared, never followed */
	size_t *after;
	size_t after_count;
};

struct ed_plan {
	uint32_t holders;
	size_t count;
	struct ed_step steps[];
};

/* A plan of the graph's nodes, with one reference; NULL without memory. */
struct ed_plan *ed_plan_make(CUgraph graph, struct ed_context *context);

bool ed_plan_is_acyclic(const struct ed_plan *plan);

#endif
