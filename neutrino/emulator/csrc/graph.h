/* Graphs: nodes in a partial order, and plans made of them that streams run. */
#ifndef ED_GRAPH_H
#define ED_GRAPH_H

#include "context.h"
#include "operation.h"

struct ed_graph {
	struct ed_object object;
	CUgraphNode *nodes; /* in the order in which they were made */
	size_t count, room;
	bool is_child; /* a child node's own copy: it goes with the node */
};

struct ed_node {
	struct ed_object object;
	CUgraph graph;
	struct ed_operation operation; /* of a child graph: nothing, see child */
	CUgraph child;
	CUgraphNode *dependencies;
	size_t dependency_count;
	CUgraphNode clone_of; /* not followed, only compared */
	void **pointers; /* to a kernel's parameters, for who asks for them */
};

_Static_assert(sizeof(struct ed_node) <= ED_OBJECT_SIZE, "a node fits its place");

CUgraph ed_graph_make(void);
void ed_graph_destroy(CUgraph graph);

/*
 * A node that does the operation, which it owns from then on; NULL without memory, and then the operation is the
 * caller's still.
 */
CUgraphNode ed_graph_add(CUgraph graph, const struct ed_operation *operation, const CUgraphNode *dependencies,
			 size_t count);

/* Whether node, or what it depends on, is what is looked for. */
bool ed_graph_reaches(CUgraphNode node, CUgraphNode looked_for);

void ed_plan_hold(struct ed_plan *plan);
void ed_plan_release(struct ed_plan *plan);

/* Run every node, in one of the orders that the edges allow. */
CUresult ed_plan_run(struct ed_plan *plan);

#endif
