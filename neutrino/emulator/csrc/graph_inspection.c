/* Queries of graphs, and changes of their nodes and edges. */
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "event.h"
#include "graph.h"
#include "module.h"

/*
 * Return a list of nodes as the driver does: as many as *count has room for, padded with NULL, and their number in
 * *count. Without an array only their number.
 */
static CUresult give_list(CUgraphNode *ret, size_t *count, const CUgraphNode *nodes, size_t node_count)
{
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	if (ret) {
		for (size_t i = 0; i < *count; i++)
			ret[i] = i < node_count ? nodes[i] : NULL;
		if (*count <= node_count)
			return CUDA_SUCCESS;
	}
	*count = node_count;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the nodes of a graph; without an array only their number. */
API cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	return give_list(nodes, count, graph->nodes, graph->count);
}

/* Emulated CUDA driver call: the nodes of a graph that depend on none; without an array only their number. */
API cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNode *found = calloc(graph->count + 1, sizeof(CUgraphNode));
	size_t found_count = 0;
	if (!found)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < graph->count; i++)
		if (!graph->nodes[i]->dependency_count)
			found[found_count++] = graph->nodes[i];
	CUresult result = give_list(nodes, count, found, found_count);
	free(found);
	return result;
}

/* What cuGraphGetEdges does: as many edges of a graph as *count has room for; without arrays only their number. */
static CUresult get_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
	size_t found = 0;

	if (!count || !ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < graph->count; i++)
		for (size_t j = 0; j < graph->nodes[i]->dependency_count; j++, found++)
			if (from && to && found < *count) {
				from[found] = graph->nodes[i]->dependencies[j];
				to[found] = graph->nodes[i];
				if (data)
					data[found] = (CUgraphEdgeData){0};
			}
	if (!from || !to || found < *count)
		*count = found;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the edges of a graph, from[i] before to[i]; without arrays only their number. */
API cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	ENTER_OR_RETURN();
	return get_edges(graph, from, to, NULL, count);
}

/*
 * Emulated CUDA driver call: the edges of a graph, from[i] before to[i], with data, which are zeros; without arrays
 * only their number.
 */
API cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
	ENTER_OR_RETURN();
	return get_edges(graph, from, to, data, count);
}

/* Emulated CUDA driver call: the type of a node (CUgraphNodeType). */
API cuGraphNodeGetType(CUgraphNode node, int *type)
{
	ENTER_OR_RETURN();
	if (!type || !ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	*type = node->child ? CU_GRAPH_NODE_TYPE_GRAPH : node->operation.type;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the nodes that a node depends on directly; without an array only their number. */
API cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	return give_list(dependencies, count, node->dependencies, node->dependency_count);
}

/*
 * Emulated CUDA driver call: the nodes that a node depends on directly, with data of the edges, which are
 * zeros; without an array only their number.
 */
API cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *dependencies, CUgraphEdgeData *data, size_t *count)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	if (data && dependencies && count)
		memset(data, 0, *count * sizeof(*data));
	return give_list(dependencies, count, node->dependencies, node->dependency_count);
}

/*
 * What cuGraphNodeGetDependentNodes does: the nodes that depend directly on a node; without an array only their number.
 */
static CUresult dependents(CUgraphNode node, CUgraphNode *ret, size_t *count)
{
	if (!ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	CUgraph graph = node->graph;
	CUgraphNode *found = calloc(graph->count + 1, sizeof(CUgraphNode));
	size_t found_count = 0;
	if (!found)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < graph->count; i++)
		for (size_t j = 0; j < graph->nodes[i]->dependency_count; j++)
			if (graph->nodes[i]->dependencies[j] == node)
				found[found_count++] = graph->nodes[i];
	CUresult result = give_list(ret, count, found, found_count);
	free(found);
	return result;
}

/* Emulated CUDA driver call: the nodes that depend directly on a node; without an array only their number. */
API cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
	ENTER_OR_RETURN();
	return dependents(node, nodes, count);
}

/*
 * Emulated CUDA driver call: the nodes that depend directly on a node, with data of the edges, which are zeros; without
 * an array only their number.
 */
API cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
	ENTER_OR_RETURN();
	if (data && nodes && count)
		memset(data, 0, *count * sizeof(*data));
	return dependents(node, nodes, count);
}

/* What cuGraphAddDependencies does: add `count` edges to a graph, from[i] before to[i]. */
static CUresult add_dependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	CUgraphNode unused = NULL;
	CUresult result = ed_graph_check_place(&unused, graph, from, count);

	if (!result)
		result = ed_graph_check_place(&unused, graph, to, count);
	for (size_t i = 0; !result && i < count; i++)
		if (from[i] == to[i] || !ed_node_depend(to[i], from[i]))
			result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

/* Emulated CUDA driver call: add `count` edges to a graph, from[i] before to[i]. */
API cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	ENTER_OR_RETURN();
	return add_dependencies(graph, from, to, count);
}

/* Emulated CUDA driver call: add `count` edges to a graph, from[i] before to[i]; their data are ignored. */
API cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
			      const CUgraphEdgeData *data, size_t count)
{
	ENTER_OR_RETURN();
	(void)data;
	return add_dependencies(graph, from, to, count);
}

/* Remove the edge from a node to one that it depends on, if it is there. */
static void remove_dependency(CUgraphNode node, CUgraphNode dependency)
{
	for (size_t i = 0; i < node->dependency_count; i++)
		if (node->dependencies[i] == dependency)
			node->dependencies[i--] = node->dependencies[--node->dependency_count];
}

/* Emulated CUDA driver call: remove a node from its graph, with its edges. */
API cuGraphDestroyNode(CUgraphNode node)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	CUgraph graph = node->graph;
	size_t at = ed_graph_index(graph, node);
	memmove(&graph->nodes[at], &graph->nodes[at + 1], (--graph->count - at) * sizeof(CUgraphNode));
	for (size_t i = 0; i < graph->count; i++)
		remove_dependency(graph->nodes[i], node);
	ed_node_destroy(node);
	return CUDA_SUCCESS;
}

/*
 * What cuGraphKernelNodeGetParams does: the launch of a kernel node. The pointers to the parameters belong to the node,
 * and are valid until the next call for it.
 */
static CUresult get_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *ret)
{
	CUfunction function;

	if (!ret || !ed_object_check(node, ED_NODE) || node->child || node->operation.type != CU_GRAPH_NODE_TYPE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	const struct ed_kernel_work *work = &node->operation.kernel;
	CUresult result = ed_function_of(node->operation.context, work->function, &function);
	if (result)
		return result;
	const struct ed_description *kernel = function->kernel;
	/*
	 * Pointers to the parameters, or the list of a packed buffer, the size first, as NVIDIA's driver orders it. The
	 * size itself is the sixth element.
	 */
	void **pointers = realloc(node->pointers, (kernel->parameter_count + 6) * sizeof(*pointers));
	if (!pointers)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->pointers = pointers;
	if (work->is_packed) {
		void *list[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &pointers[5], CU_LAUNCH_PARAM_BUFFER_POINTER,
				work->parameters, CU_LAUNCH_PARAM_END, (void *)(uintptr_t)work->packed_size};
		memcpy(pointers, list, sizeof(list));
	} else {
		for (uint32_t i = 0; i < kernel->parameter_count; i++)
			pointers[i] = work->parameters + kernel->parameters[i].offset;
	}
	bool is_kernel = ed_object_is(work->function, ED_KERNEL);
	*ret = (CUDA_KERNEL_NODE_PARAMS){
		.func = function,
		.gridDimX = work->grid[0],
		.gridDimY = work->grid[1],
		.gridDimZ = work->grid[2],
		.blockDimX = work->block[0],
		.blockDimY = work->block[1],
		.blockDimZ = work->block[2],
		.sharedMemBytes = work->shared,
		.kernelParams = kernel->parameter_count && !work->is_packed ? pointers : NULL,
		.extra = work->is_packed ? pointers : NULL,
		.kern = is_kernel ? (CUkernel)(void *)work->function : NULL,
		.ctx = node->operation.context,
	};
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the launch of a kernel node, in the older structure. */
API cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	CUDA_KERNEL_NODE_PARAMS wide;

	ENTER_OR_RETURN();
	CUresult result = parameters ? get_kernel(node, &wide) : CUDA_ERROR_INVALID_VALUE;
	if (!result)
		memcpy(parameters, &wide, sizeof(*parameters));
	return result;
}

/* Emulated CUDA driver call: the launch of a kernel node. */
API cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters)
{
	ENTER_OR_RETURN();
	return get_kernel(node, parameters);
}

/* Replace the launch of a kernel node in a graph (cuGraphKernelNodeSetParams); its attributes stay. */
CUresult ed_node_set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct ed_operation operation;

	if (!ed_object_check(node, ED_NODE) || node->child || node->operation.type != CU_GRAPH_NODE_TYPE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_graph_kernel(parameters, &node->operation.kernel, &operation);
	if (result)
		return result;
	/* The new parameters may have been read from the old ones, so these are freed last. */
	ed_operation_release(&node->operation);
	node->operation = operation;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: replace the launch of a kernel node in a graph. */
API cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	ENTER_OR_RETURN();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS wide = ed_graph_widen(parameters);
	return ed_node_set_kernel(node, &wide);
}

/* Emulated CUDA driver call: replace the launch of a kernel node in a graph. */
API cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	ENTER_OR_RETURN();
	return ed_node_set_kernel(node, parameters);
}

/* Emulated CUDA driver call: the event that a node of a graph records. */
API cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event)
{
	ENTER_OR_RETURN();
	if (!event || !ed_object_check(node, ED_NODE) || node->operation.type != CU_GRAPH_NODE_TYPE_EVENT_RECORD)
		return CUDA_ERROR_INVALID_VALUE;
	*event = node->operation.event.event;
	return CUDA_SUCCESS;
}
