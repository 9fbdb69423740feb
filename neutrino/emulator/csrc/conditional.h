/* Conditional nodes: bodies that run according to a value, which kernels of the graph set. */
#ifndef ED_CONDITIONAL_H
#define ED_CONDITIONAL_H

#include "graph.h"
#include "plan.h"

/*
 * The value of a conditional node: four bytes of device memory, whose address is the program's handle, which kernels
 * write by cudaGraphSetConditional.
 */
struct ed_condition {
	uint32_t holders; /* the graph that it was made for, nodes, plans */
	uint64_t address;
	bool has_default;
	bool is_used; /* by a node */
	uint32_t default_value;
	struct ed_condition *next;	    /* of all */
	struct ed_condition *next_of_graph; /* of those that were made for a graph */
};

void ed_condition_hold(struct ed_condition *condition);
void ed_condition_release(struct ed_condition *condition);

/* Free the conditions that were made for a graph, as far as nothing else holds them. */
void ed_condition_forget_graph(CUgraph graph);

/* Whether a node uses each condition that was made for the graph. */
bool ed_condition_are_used(const struct ed_graph *graph);

/* Give the conditions of a plan their values at launch. */
void ed_condition_begin(const struct ed_plan *plan);

/* Run the bodies of a conditional node, as often as its value says. */
CUresult ed_condition_run(const struct ed_operation *operation);

/* Add a node. parameters: CUDA_CONDITIONAL_NODE_PARAMS, where the bodies' graphs go. */
CUresult ed_graph_add_conditional(const struct ed_place *place, void *parameters);

#endif
