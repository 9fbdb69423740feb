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

API cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	ENTER();
	if (!ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	return give_list(nodes, count, graph->nodes, graph->count);
}

API cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	ENTER();
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

/* cuGraphGetEdges: as many edges as *count has room for; without arrays only their number. */
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

API cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	ENTER();
	return get_edges(graph, from, to, NULL, count);
}

API cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
	ENTER();
	return get_edges(graph, from, to, data, count);
}

API cuGraphNodeGetType(CUgraphNode node, int *type)
{
	ENTER();
	if (!type || !ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	*type = node->child ? CU_GRAPH_NODE_TYPE_GRAPH : node->operation.type;
	return CUDA_SUCCESS;
}

API cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count)
{
	ENTER();
	if (!ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	return give_list(dependencies, count, node->dependencies, node->dependency_count);
}

API cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *dependencies, CUgraphEdgeData *data, size_t *count)
{
	ENTER();
	if (!ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	if (data && dependencies && count)
		memset(data, 0, *count * sizeof(*data));
	return give_list(dependencies, count, node->dependencies, node->dependency_count);
}

/* cuGraphNodeGetDependentNodes: the nodes that depend directly on a node. */
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

API cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
	ENTER();
	return dependents(node, nodes, count);
}

API cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
	ENTER();
	if (data && nodes && count)
		memset(data, 0, *count * sizeof(*data));
	return dependents(node, nodes, count);
}

/* cuGraphAddDependencies: count edges, from[i] before to[i]. */
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

API cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	ENTER();
	return add_dependencies(graph, from, to, count);
}

API cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
			      const CUgraphEdgeData *data, size_t count)
{
	ENTER();
	(void)data;
	return add_dependencies(graph, from, to, count);
}

/* Remove an edge, if it is there. */
static void remove_dependency(CUgraphNode node, CUgraphNode dependency)
{
	for (size_t i = 0; i < node->dependency_count; i++)
		if (node->dependencies[i] == dependency)
			node->dependencies[i--] = node->dependencies[--node->dependency_count];
}

API cuGraphDestroyNode(CUgraphNode node)
{
	ENTER();
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

/* cuGraphKernelNodeGetParams. The pointers to the parameters belong to the node. */
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

API cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	CUDA_KERNEL_NODE_PARAMS wide;

	ENTER();
	CUresult result = parameters ? get_kernel(node, &wide) : CUDA_ERROR_INVALID_VALUE;
	if (!result)
		memcpy(parameters, &wide, sizeof(*parameters));
	return result;
}

API cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters)
{
	ENTER();
	return get_kernel(node, parameters);
}

/* cuGraphKernelNodeSetParams: replace the launch of a kernel node. */
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

API cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	ENTER();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS wide = ed_graph_widen(parameters);
	return ed_node_set_kernel(node, &wide);
}

API cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	ENTER();
	return ed_node_set_kernel(node, parameters);
}

API cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event)
{
	ENTER();
	if (!event || !ed_object_check(node, ED_NODE) || node->operation.type != CU_GRAPH_NODE_TYPE_EVENT_RECORD)
		return CUDA_ERROR_INVALID_VALUE;
	*event = node->operation.event.event;
	return CUDA_SUCCESS;
}
