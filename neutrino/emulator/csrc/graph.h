/* Graphs: nodes in a partial order, and plans made of them that streams run. */
#ifndef ED_GRAPH_H
#define ED_GRAPH_H

#include "context.h"
#include "operation.h"

struct ed_graph {
	struct ed_object object;
	CUgraphNode *nodes; /* in the order in which they were made */
	size_t count, room;
	bool is_child; /* a child node's own copy, freed with the node */
};

struct ed_node {
	struct ed_object object;
	CUgraph graph;
	struct ed_operation operation; /* unused for a child graph: see child */
	CUgraph child;
	CUgraphNode *dependencies;
	size_t dependency_count;
	CUgraphNode clone_of; /* not followed, only compared */
	void **pointers; /* to a kernel's parameters, for cuGraphKernelNodeGetParams */
};

_Static_assert(sizeof(struct ed_node) <= ED_OBJECT_SIZE, "a node fits its place");

CUgraph ed_graph_make(void);
void ed_graph_destroy(CUgraph graph);

/*
 * Add a node that executes an operation, which it owns from then on. NULL without memory; then the caller still owns
 * the operation.
 */
CUgraphNode ed_graph_add(CUgraph graph, const struct ed_operation *operation, const CUgraphNode *dependencies,
			 size_t count);

/* Whether node is the target, or depends on it directly or not. */
bool ed_graph_reaches(CUgraphNode node, CUgraphNode target);

/* A graph of the same nodes and edges, NULL without memory. */
CUgraph ed_graph_clone(CUgraph graph);

/* A node's index in the order in which the nodes were made. */
size_t ed_graph_index(const struct ed_graph *graph, CUgraphNode node);

/* Add an edge, unless it is there; false without memory. */
bool ed_node_depend(CUgraphNode node, CUgraphNode dependency);

/* Free a node and what it owns. Edges of other nodes to it must have been removed. */
void ed_node_destroy(CUgraphNode node);

/* Whether a node can be added to the graph after these; CUDA_ERROR_INVALID_VALUE if not. */
CUresult ed_graph_check_place(const CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t count);

/* The operation of a kernel node. like: what the node launched before, whose attributes stay; NULL for a new node. */
CUresult ed_graph_kernel(const CUDA_KERNEL_NODE_PARAMS *p, const struct ed_kernel_work *like, struct ed_operation *ret);
CUDA_KERNEL_NODE_PARAMS ed_graph_widen(const CUDA_KERNEL_NODE_PARAMS_v1 *p);

/* Where a new node goes: its handle to ret, after count dependencies. */
struct ed_place {
	CUgraphNode *ret;
	CUgraph graph;
	const CUgraphNode *dependencies;
	size_t count;
};

CUresult ed_graph_add_kernel(const struct ed_place *place, const CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult ed_graph_add_copy(const struct ed_place *place, const CUDA_MEMCPY3D *parameters, CUcontext context);
CUresult ed_graph_add_fill(const struct ed_place *place, const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context);
CUresult ed_graph_add_host(const struct ed_place *place, const CUDA_HOST_NODE_PARAMS *parameters);
CUresult ed_graph_add_event(const struct ed_place *place, int type, CUevent event);
CUresult ed_graph_add_child(const struct ed_place *place, CUgraph child);
CUresult ed_graph_add_empty(const struct ed_place *place);

/* Add a node with an operation, which is released if there is no memory. The place must have been checked. */
CUresult ed_graph_add_operation(const struct ed_place *place, struct ed_operation *operation);

/* Give a kernel node other parameters. */
CUresult ed_node_set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters);

void ed_plan_hold(struct ed_plan *plan);
void ed_plan_release(struct ed_plan *plan);

/* Run every node, in one of the orders that the edges allow. */
CUresult ed_plan_run(struct ed_plan *plan);

#endif
