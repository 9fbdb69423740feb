/*
 * Plans: copies of a graph's operations, as they were when the graph was instantiated, and their order. The operation of
 * a child graph holds a plan of its own.
 */
#ifndef ED_PLAN_H
#define ED_PLAN_H

#include "graph.h"

struct ed_step {
	struct ed_operation operation;
	CUgraphNode node; /* that it was made from; only compared, never followed */
	bool is_disabled;
	size_t *after;
	size_t after_count;
};

struct ed_plan {
	uint32_t holders;
	size_t count;
	struct ed_step steps[];
};

enum { /* CUgraphExecUpdateResult */
	ED_UPDATE_SUCCESS = 0,
	ED_UPDATE_TOPOLOGY_CHANGED = 2,
	ED_UPDATE_NODE_TYPE_CHANGED = 3,
};

/* A plan of the graph's nodes, with one reference; NULL without memory. */
struct ed_plan *ed_plan_make(CUgraph graph, struct ed_context *context);

/* A copy that shares nothing, with one reference; NULL without memory. */
struct ed_plan *ed_plan_copy(const struct ed_plan *plan);

bool ed_plan_is_acyclic(const struct ed_plan *plan);

/* The step that was made from that node, also in plans within the plan; NULL without one. */
struct ed_step *ed_plan_find(struct ed_plan *plan, CUgraphNode node);

/*
 * Whether one plan can take another one's place: the same steps in the same order. error: the step of now that differs,
 * NULL where their numbers do.
 */
int ed_plan_compare(const struct ed_plan *before, const struct ed_plan *now, CUgraphNode *error);

/* Let the steps of a plan have the names and the states of those that they replace: see ed_plan_compare. */
void ed_plan_rename(struct ed_plan *now, const struct ed_plan *before);

#endif
