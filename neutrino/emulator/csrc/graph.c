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

CUgraph ed_graph_make(void)
{
	static uint64_t last_id;
	CUgraph graph = ed_object_take(ED_GRAPH, sizeof(*graph));

	if (graph)
		graph->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
	return graph;
}

/* Free a node with its operation, its child graph or its bodies. */
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

void ed_graph_destroy(CUgraph graph)
{
	for (size_t i = 0; i < graph->count; i++)
		ed_node_destroy(graph->nodes[i]);
	free(graph->nodes);
	ed_condition_forget_graph(graph);
	ed_object_give(graph);
}

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

/* Make a node depend on another one, unless it does already. Returns false without memory. */
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

/* Add a node that executes an operation after its dependencies. It then owns the operation. NULL without memory. */
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

/* Add a copy of a node, with its operation or child graph but without its dependencies, to a graph. */
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

/* A copy of a graph: its nodes in the same order, then the dependencies between the copies. NULL without memory. */
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

API cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	ENTER();
	if (!graph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = ed_graph_make();
	return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphDestroy(CUgraph graph)
{
	ENTER();
	if (!ed_object_check(graph, ED_GRAPH) || graph->is_child)
		return CUDA_ERROR_INVALID_VALUE;
	ed_graph_destroy(graph);
	return CUDA_SUCCESS;
}

API cuGraphClone(CUgraph *ret, CUgraph graph)
{
	ENTER();
	if (!ret || !ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	if (ed_graph_is_single(graph))
		return CUDA_ERROR_NOT_SUPPORTED;
	*ret = ed_graph_clone(graph);
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphNodeFindInClone(CUgraphNode *ret, CUgraphNode node, CUgraph graph)
{
	ENTER();
	if (!ret || !ed_object_check(node, ED_NODE) || !ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < graph->count; i++)
		if (graph->nodes[i]->clone_of == node) {
			*ret = graph->nodes[i];
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

/* CUDA_ERROR_INVALID_VALUE unless a node can be added to the graph after these dependencies, which must be in it. */
CUresult ed_graph_check_place(const CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
	if (!ret || !ed_object_check(graph, ED_GRAPH) || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (!ed_object_check(dependencies[i], ED_NODE) || dependencies[i]->graph != graph)
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* The same for the place of a new node. */
static CUresult check(const struct ed_place *place)
{
	return ed_graph_check_place(place->ret, place->graph, place->dependencies, place->count);
}

CUresult ed_graph_add_operation(const struct ed_place *place, struct ed_operation *operation)
{
	*place->ret = ed_graph_add(place->graph, operation, place->dependencies, place->count);
	if (*place->ret)
		return CUDA_SUCCESS;
	ed_operation_release(operation);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Make the operation of a kernel node: the launch, with a copy of the kernel's parameters. */
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
	CUresult result = check(place);

	if (!result)
		result = ed_graph_kernel(parameters, NULL, &operation);
	return result ? result : ed_graph_add_operation(place, &operation);
}

API cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	ENTER();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS wide = ed_graph_widen(parameters);
	return ed_graph_add_kernel(&(struct ed_place){node, graph, dependencies, count}, &wide);
}

API cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			    const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	ENTER();
	return ed_graph_add_kernel(&(struct ed_place){node, graph, dependencies, count}, parameters);
}

/* Add a node that copies memory. handle: the context, NULL for the current one. */
CUresult ed_graph_add_copy(const struct ed_place *place, const CUDA_MEMCPY3D *parameters, CUcontext handle)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
	CUresult result = check(place);

	if (!result)
		result = ed_context_of(handle, &operation.context);
	if (!result)
		result = ed_copy_from(parameters, &operation.copy);
	return result ? result : ed_graph_add_operation(place, &operation);
}

API cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 const CUDA_MEMCPY3D *parameters, CUcontext context)
{
	ENTER();
	return ed_graph_add_copy(&(struct ed_place){node, graph, dependencies, count}, parameters, context);
}

/* Add a node that sets memory. handle: the context, NULL for the current one. */
CUresult ed_graph_add_fill(const struct ed_place *place, const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext handle)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
	CUresult result = check(place);

	if (!result)
		result = ed_context_of(handle, &operation.context);
	if (!result)
		result = ed_fill_from(parameters, &operation.fill);
	return result ? result : ed_graph_add_operation(place, &operation);
}

API cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context)
{
	ENTER();
	return ed_graph_add_fill(&(struct ed_place){node, graph, dependencies, count}, parameters, context);
}

/* Add a node that calls a function of the program. */
CUresult ed_graph_add_host(const struct ed_place *place, const CUDA_HOST_NODE_PARAMS *parameters)
{
	CUresult result = check(place);

	if (result || !parameters || !parameters->fn)
		return result ? result : CUDA_ERROR_INVALID_VALUE;
	struct ed_operation operation = {
		.type = CU_GRAPH_NODE_TYPE_HOST,
		.host = {.function = parameters->fn, .data = parameters->userData},
	};
	return ed_graph_add_operation(place, &operation);
}

API cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
		       const CUDA_HOST_NODE_PARAMS *parameters)
{
	ENTER();
	return ed_graph_add_host(&(struct ed_place){node, graph, dependencies, count}, parameters);
}

/* Add a node that records an event or waits for one. type: which of the two, a CUgraphNodeType. */
CUresult ed_graph_add_event(const struct ed_place *place, int type,
			  CUevent event)
{
	CUresult result = check(place);

	if (result || !ed_object_check(event, ED_EVENT))
		return result ? result : CUDA_ERROR_INVALID_HANDLE;
	struct ed_operation operation = {.type = type, .event = {NULL, event}};
	return ed_graph_add_operation(place, &operation);
}

API cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			      CUevent event)
{
	ENTER();
	return ed_graph_add_event(&(struct ed_place){node, graph, dependencies, count}, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

API cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			    CUevent event)
{
	ENTER();
	return ed_graph_add_event(&(struct ed_place){node, graph, dependencies, count}, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

CUresult ed_graph_add_empty(const struct ed_place *place)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
	CUresult result = check(place);

	return result ? result : ed_graph_add_operation(place, &operation);
}

API cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
	ENTER();
	return ed_graph_add_empty(&(struct ed_place){node, graph, dependencies, count});
}

/* Add a node that runs a graph. The node gets a copy of the child graph, as of now. */
CUresult ed_graph_add_child(const struct ed_place *place, CUgraph child)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
	CUresult result = check(place);

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

API cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			     CUgraph child)
{
	ENTER();
	return ed_graph_add_child(&(struct ed_place){node, graph, dependencies, count}, child);
}

API cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
	ENTER();
	if (!graph || !ed_object_check(node, ED_NODE) || !node->child)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = node->child;
	return CUDA_SUCCESS;
}
