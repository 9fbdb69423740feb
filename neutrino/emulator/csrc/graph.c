#include "graph.h"

#include <stdlib.h>
#include <string.h>

#include "conditional.h"
#include "copy.h"
#include "event.h"
#include "launch.h"
#include "module.h"
#include "stream.h"

/* --- graphs and nodes --- */

/* Make an empty graph; NULL without memory. */
CUgraph ed_graph_make(void)
{
	static uint64_t last_id;
	CUgraph graph = ed_object_take(ED_GRAPH, sizeof(*graph));

	if (graph)
		graph->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
	return graph;
}

/* Free a node with its operation, its child graph or its bodies. Edges of other nodes to it must have been removed. */
void ed_node_destroy(CUgraphNode node)
{
	for (uint32_t i = 0; node->bodies && i < node->operation.conditional.size; i++)
		ed_graph_destroy(node->bodies[i]);
	free(node->bodies);
	if (node->child)
		ed_graph_destroy(node->child);
	else
		ed_operation_release(&node->operation);
	free(node->dependencies);
	free(node->pointers);
	ed_object_give(node);
}

/* Free a graph with its nodes. Executable graphs that were made of it stay. */
void ed_graph_destroy(CUgraph graph)
{
	for (size_t i = 0; i < graph->count; i++)
		ed_node_destroy(graph->nodes[i]);
	free(graph->nodes);
	ed_condition_forget_graph(graph);
	ed_object_give(graph);
}

/*
 * Whether the graph has nodes that exist once (memory, conditions): it has no clones, and one executable graph at a
 * time.
 */
bool ed_graph_is_single(const struct ed_graph *graph)
{
	for (size_t i = 0; i < graph->count; i++) {
		CUgraphNode node = graph->nodes[i];
		int type = node->operation.type;
		if (node->child ? ed_graph_is_single(node->child)
				: type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
					  type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
			return true;
	}
	return false;
}

/* Make a node depend on another one, unless it does already. False without memory. */
bool ed_node_depend(CUgraphNode node, CUgraphNode dependency)
{
	for (size_t i = 0; i < node->dependency_count; i++)
		if (node->dependencies[i] == dependency)
			return true;
	CUgraphNode *more = realloc(node->dependencies, (node->dependency_count + 1) * sizeof(*more));
	if (!more)
		return false;
	node->dependencies = more;
	node->dependencies[node->dependency_count++] = dependency;
	return true;
}

/*
 * Add a node to a graph that runs an operation after its `count` dependencies. It then owns the operation; NULL without
 * memory, and the operation stays the caller's.
 */
CUgraphNode ed_graph_add(CUgraph graph, const struct ed_operation *operation, const CUgraphNode *dependencies,
			 size_t count)
{
	if (graph->count == graph->room) {
		size_t room = graph->room ? graph->room * 2 : 16;
		CUgraphNode *nodes = realloc(graph->nodes, room * sizeof(CUgraphNode));
		if (!nodes)
			return NULL;
		graph->nodes = nodes;
		graph->room = room;
	}
	CUgraphNode node = ed_object_take(ED_NODE, sizeof(*node));
	bool complete = node != NULL;
	for (size_t i = 0; complete && i < count; i++)
		complete = ed_node_depend(node, dependencies[i]);
	if (!complete) {
		if (node) {
			free(node->dependencies);
			ed_object_give(node);
		}
		return NULL;
	}
	node->graph = graph;
	node->operation = *operation;
	graph->nodes[graph->count++] = node;
	return node;
}

/* Whether a node is the target, or depends on it directly or not. */
bool ed_graph_reaches(CUgraphNode node, CUgraphNode target)
{
	if (node == target)
		return true;
	for (size_t i = 0; i < node->dependency_count; i++)
		if (ed_graph_reaches(node->dependencies[i], target))
			return true;
	return false;
}

/*
 * Add a copy of a node, with its operation or child graph but without its dependencies, to a graph. NULL without
 * memory.
 */
static CUgraphNode clone_node(CUgraph to, CUgraphNode from)
{
	struct ed_operation operation = from->operation;

	if (!from->child && !ed_operation_copy(&operation, &from->operation))
		return NULL;
	CUgraphNode node = ed_graph_add(to, &operation, NULL, 0);
	if (!node) {
		if (!from->child)
			ed_operation_release(&operation);
		return NULL;
	}
	node->clone_of = from;
	if (from->child) {
		node->child = ed_graph_clone(from->child);
		if (!node->child)
			return NULL;
		node->child->is_child = true;
	}
	return node;
}

/* The index of a node in its graph, graph->count if it is in another one. */
size_t ed_graph_index(const struct ed_graph *graph, CUgraphNode node)
{
	size_t i = 0;

	while (i < graph->count && graph->nodes[i] != node)
		i++;
	return i;
}

/* Copy a graph: its nodes in the same order, then the dependencies between the copies. NULL without memory. */
CUgraph ed_graph_clone(CUgraph graph)
{
	CUgraph copy = ed_graph_make();
	bool complete = copy != NULL;

	for (size_t i = 0; complete && i < graph->count; i++)
		complete = clone_node(copy, graph->nodes[i]) != NULL;
	for (size_t i = 0; complete && i < graph->count; i++)
		for (size_t j = 0; complete && j < graph->nodes[i]->dependency_count; j++) {
			size_t from = ed_graph_index(graph, graph->nodes[i]->dependencies[j]);
			complete = ed_node_depend(copy->nodes[i], copy->nodes[from]);
		}
	if (!complete && copy) {
		ed_graph_destroy(copy);
		copy = NULL;
	}
	return copy;
}

/* --- making graphs --- */

/* Emulated CUDA driver call: make an empty graph. flags: must be 0. */
API cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	ENTER_OR_RETURN();
	if (!graph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = ed_graph_make();
	return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Emulated CUDA driver call: destroy a graph that is no child's. */
API cuGraphDestroy(CUgraph graph)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(graph, ED_GRAPH) || graph->is_child)
		return CUDA_ERROR_INVALID_VALUE;
	ed_graph_destroy(graph);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: copy a graph. Not one whose nodes exist once (memory, conditions). */
API cuGraphClone(CUgraph *ret, CUgraph graph)
{
	ENTER_OR_RETURN();
	if (!ret || !ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	if (ed_graph_is_single(graph))
		return CUDA_ERROR_NOT_SUPPORTED;
	*ret = ed_graph_clone(graph);
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Emulated CUDA driver call: the copy of a node in a graph that was cloned from the node's. */
API cuGraphNodeFindInClone(CUgraphNode *ret, CUgraphNode node, CUgraph graph)
{
	ENTER_OR_RETURN();
	if (!ret || !ed_object_check(node, ED_NODE) || !ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < graph->count; i++)
		if (graph->nodes[i]->clone_of == node) {
			*ret = graph->nodes[i];
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

/*
 * CUDA_ERROR_INVALID_VALUE unless a node can be added to the graph after `count` dependencies, which must be in it.
 * ret: where its handle would go.
 */
CUresult ed_graph_check_place(const CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
	if (!ret || !ed_object_check(graph, ED_GRAPH) || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (!ed_object_check(dependencies[i], ED_NODE) || dependencies[i]->graph != graph)
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* CUDA_ERROR_INVALID_VALUE unless a node can be added to a graph at this place. */
static CUresult check_place(const struct ed_place *place)
{
	return ed_graph_check_place(place->ret, place->graph, place->dependencies, place->count);
}

/* Add a node with an operation at a place, which must have been checked; without memory the operation is released. */
CUresult ed_graph_add_operation(const struct ed_place *place, struct ed_operation *operation)
{
	*place->ret = ed_graph_add(place->graph, operation, place->dependencies, place->count);
	if (*place->ret)
		return CUDA_SUCCESS;
	ed_operation_release(operation);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Make the operation of a kernel node: a launch, with a copy of the kernel's parameters. like: what the node launched
 * before, whose attributes stay; NULL for a new node.
 */
CUresult ed_graph_kernel(const CUDA_KERNEL_NODE_PARAMS *p, const struct ed_kernel_work *like, struct ed_operation *ret)
{
	struct ed_context *context;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_context_of(p->ctx, &context);
	if (result)
		return result;
	CUfunction function = p->func ? p->func : (CUfunction)(void *)p->kern;
	/* A launch also takes a CUkernel as its function; a node takes it in the member kern only. */
	if (p->func && ed_object_is(p->func, ED_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	uint32_t grid[] = {p->gridDimX, p->gridDimY, p->gridDimZ};
	uint32_t block[] = {p->blockDimX, p->blockDimY, p->blockDimZ};
	*ret = (struct ed_operation){.type = CU_GRAPH_NODE_TYPE_KERNEL, .context = context};
	result = ed_launch_prepare(context, function, grid, block, p->sharedMemBytes, like && like->is_cooperative,
				   p->kernelParams, p->extra, &ret->kernel);
	if (!result && like) {
		memcpy(ret->kernel.cluster, like->cluster, sizeof(like->cluster));
		memcpy(ret->kernel.tuning, like->tuning, sizeof(like->tuning));
		ret->kernel.priority = like->priority;
	}
	return result;
}

/* The parameters of a kernel node in the newer structure, which begins with the old one. */
CUDA_KERNEL_NODE_PARAMS ed_graph_widen(const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
	CUDA_KERNEL_NODE_PARAMS wide = {0};

	memcpy(&wide, p, sizeof(*p));
	return wide;
}

/* Add a node that launches a kernel. */
CUresult ed_graph_add_kernel(const struct ed_place *place, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct ed_operation operation;
	CUresult result = check_place(place);

	if (!result)
		result = ed_graph_kernel(parameters, NULL, &operation);
	return result ? result : ed_graph_add_operation(place, &operation);
}

/* Emulated CUDA driver call: add a node to a graph that launches a kernel, after `count` dependencies. */
API cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	ENTER_OR_RETURN();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS wide = ed_graph_widen(parameters);
	return ed_graph_add_kernel(&(struct ed_place){node, graph, dependencies, count}, &wide);
}

/* Emulated CUDA driver call: add a node to a graph that launches a kernel, after `count` dependencies. */
API cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			    const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	ENTER_OR_RETURN();
	return ed_graph_add_kernel(&(struct ed_place){node, graph, dependencies, count}, parameters);
}

/* Add a node that copies memory at a place of a graph. handle: the context, NULL for the current one. */
CUresult ed_graph_add_copy(const struct ed_place *place, const CUDA_MEMCPY3D *parameters, CUcontext handle)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
	CUresult result = check_place(place);

	if (!result)
		result = ed_context_of(handle, &operation.context);
	if (!result)
		result = ed_copy_from(parameters, &operation.copy);
	return result ? result : ed_graph_add_operation(place, &operation);
}

/* Emulated CUDA driver call: add a node to a graph that copies memory, after `count` dependencies. */
API cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 const CUDA_MEMCPY3D *parameters, CUcontext context)
{
	ENTER_OR_RETURN();
	return ed_graph_add_copy(&(struct ed_place){node, graph, dependencies, count}, parameters, context);
}

/* Add a node that sets memory at a place of a graph. handle: the context, NULL for the current one. */
CUresult ed_graph_add_fill(const struct ed_place *place, const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext handle)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
	CUresult result = check_place(place);

	if (!result)
		result = ed_context_of(handle, &operation.context);
	if (!result)
		result = ed_fill_from(parameters, &operation.fill);
	return result ? result : ed_graph_add_operation(place, &operation);
}

/* Emulated CUDA driver call: add a node to a graph that sets memory, after `count` dependencies. */
API cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context)
{
	ENTER_OR_RETURN();
	return ed_graph_add_fill(&(struct ed_place){node, graph, dependencies, count}, parameters, context);
}

/* Add a node that calls a function of the program at a place of a graph. */
CUresult ed_graph_add_host(const struct ed_place *place, const CUDA_HOST_NODE_PARAMS *parameters)
{
	CUresult result = check_place(place);

	if (result || !parameters || !parameters->fn)
		return result ? result : CUDA_ERROR_INVALID_VALUE;
	struct ed_operation operation = {
		.type = CU_GRAPH_NODE_TYPE_HOST,
		.host = {.function = parameters->fn, .data = parameters->userData},
	};
	return ed_graph_add_operation(place, &operation);
}

/* Emulated CUDA driver call: add a node to a graph that calls a function of the program, after `count` dependencies. */
API cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
		       const CUDA_HOST_NODE_PARAMS *parameters)
{
	ENTER_OR_RETURN();
	return ed_graph_add_host(&(struct ed_place){node, graph, dependencies, count}, parameters);
}

/*
 * Add a node that records an event or waits for one at a place of a graph. type: which of the two, a CUgraphNodeType.
 */
CUresult ed_graph_add_event(const struct ed_place *place, int type,
			  CUevent event)
{
	CUresult result = check_place(place);

	if (result || !ed_object_check(event, ED_EVENT))
		return result ? result : CUDA_ERROR_INVALID_HANDLE;
	struct ed_operation operation = {.type = type, .event = {NULL, event}};
	return ed_graph_add_operation(place, &operation);
}

/* Emulated CUDA driver call: add a node to a graph that records an event, after `count` dependencies. */
API cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			      CUevent event)
{
	ENTER_OR_RETURN();
	return ed_graph_add_event(&(struct ed_place){node, graph, dependencies, count}, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

/* Emulated CUDA driver call: add a node to a graph that waits for an event, after `count` dependencies. */
API cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			    CUevent event)
{
	ENTER_OR_RETURN();
	return ed_graph_add_event(&(struct ed_place){node, graph, dependencies, count}, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

/* Add a node that does nothing, only orders others. */
CUresult ed_graph_add_empty(const struct ed_place *place)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
	CUresult result = check_place(place);

	return result ? result : ed_graph_add_operation(place, &operation);
}

/* Emulated CUDA driver call: add a node to a graph that does nothing, after `count` dependencies. */
API cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
	ENTER_OR_RETURN();
	return ed_graph_add_empty(&(struct ed_place){node, graph, dependencies, count});
}

/* Add a node that runs a graph at a place of another graph. The node gets a copy of the child graph, as of now. */
CUresult ed_graph_add_child(const struct ed_place *place, CUgraph child)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
	CUresult result = check_place(place);

	if (result || !ed_object_check(child, ED_GRAPH) || child == place->graph)
		return result ? result : CUDA_ERROR_INVALID_VALUE;
	if (ed_graph_is_single(child))
		return CUDA_ERROR_NOT_SUPPORTED;
	CUgraph copy = ed_graph_clone(child);
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	copy->is_child = true;
	result = ed_graph_add_operation(place, &operation);
	if (result)
		ed_graph_destroy(copy);
	else
		(*place->ret)->child = copy;
	return result;
}

/* Emulated CUDA driver call: add a node to a graph that runs a copy of another graph, after `count` dependencies. */
API cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			     CUgraph child)
{
	ENTER_OR_RETURN();
	return ed_graph_add_child(&(struct ed_place){node, graph, dependencies, count}, child);
}

/* Emulated CUDA driver call: the graph in a child graph node, the node's own copy. */
API cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
	ENTER_OR_RETURN();
	if (!graph || !ed_object_check(node, ED_NODE) || !node->child)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = node->child;
	return CUDA_SUCCESS;
}
