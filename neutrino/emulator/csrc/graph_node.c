/* Nodes of any type, with CUgraphNodeParams. */
#include "graph_node.h"

#include <string.h>

#include "conditional.h"
#include "graph.h"
#include "graph_memory.h"
#include "launch_attributes.h"

#define OF_TYPE 16 /* bytes: where the parameters of the type begin */

/*
 * Read a CUgraphNodeParams: the type, three reserved words, then the parameters of that type. Members of other types
 * are 0.
 */
void ed_node_parameters_read(const void *from, struct ed_node_parameters *ret)
{
	const char *of_type = (const char *)from + OF_TYPE;

	*ret = (struct ed_node_parameters){0};
	memcpy(&ret->type, from, sizeof(ret->type));
	switch (ret->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		memcpy(&ret->kernel, of_type, sizeof(ret->kernel));
		break;
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		/* CUDA_MEMCPY_NODE_PARAMS: flags, a reserved word, the context, the copy. */
		memcpy(&ret->context, of_type + 8, sizeof(ret->context));
		memcpy(&ret->copy, of_type + 16, sizeof(ret->copy));
		break;
	case CU_GRAPH_NODE_TYPE_MEMSET:
		/* CUDA_MEMSET_NODE_PARAMS_v2 ends in the context. */
		memcpy(&ret->fill, of_type, sizeof(ret->fill));
		memcpy(&ret->context, of_type + sizeof(ret->fill), sizeof(ret->context));
		break;
	case CU_GRAPH_NODE_TYPE_HOST:
		memcpy(&ret->host, of_type, sizeof(ret->host));
		break;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		memcpy(&ret->child, of_type, sizeof(ret->child));
		break;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		memcpy(&ret->event, of_type, sizeof(ret->event));
		break;
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		memcpy(&ret->freed, of_type, sizeof(ret->freed));
		break;
	default:
		break;
	}
}

/*
 * What cuGraphAddNode does: add a node of any type at a place of a graph. parameters: a CUgraphNodeParams, which may
 * get results.
 */
static CUresult add_any(const struct ed_place *place, void *parameters)
{
	struct ed_node_parameters any;

	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	ed_node_parameters_read(parameters, &any);
	switch (any.type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return ed_graph_add_kernel(place, &any.kernel);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return ed_graph_add_copy(place, &any.copy, any.context);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return ed_graph_add_fill(place, &any.fill, any.context);
	case CU_GRAPH_NODE_TYPE_HOST:
		return ed_graph_add_host(place, &any.host);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return ed_graph_add_child(place, any.child);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		return ed_graph_add_empty(place);
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return ed_graph_add_event(place, any.type, any.event);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return ed_graph_add_allocation(place, (char *)parameters + OF_TYPE);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return ed_graph_add_free(place, any.freed);
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return ed_graph_add_conditional(place, (char *)parameters + OF_TYPE);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

/*
 * Emulated CUDA driver call: add a node of any type to a graph, after `count` dependencies. parameters: a
 * CUgraphNodeParams.
 */
API cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, void *parameters)
{
	ENTER_OR_RETURN();
	return add_any(&(struct ed_place){node, graph, dependencies, count}, parameters);
}

/*
 * Emulated CUDA driver call: add a node of any type to a graph, after `count` dependencies. parameters: a
 * CUgraphNodeParams; data of edges are ignored.
 */
API cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
		      size_t count, void *parameters)
{
	ENTER_OR_RETURN();
	(void)edges;
	return add_any(&(struct ed_place){node, graph, dependencies, count}, parameters);
}

/* Emulated CUDA driver call: replace what a node of a graph does; only of kernels. parameters: a CUgraphNodeParams. */
API cuGraphNodeSetParams(CUgraphNode node, const void *parameters)
{
	struct ed_node_parameters any;

	ENTER_OR_RETURN();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	ed_node_parameters_read(parameters, &any);
	return any.type == CU_GRAPH_NODE_TYPE_KERNEL ? ed_node_set_kernel(node, &any.kernel) : CUDA_ERROR_NOT_SUPPORTED;
}

/* --- attributes of kernel nodes --- */

/* Whether a handle is that of a node that launches a kernel. */
static bool is_kernel_node(CUgraphNode node)
{
	return ed_object_check(node, ED_NODE) && !node->child && node->operation.type == CU_GRAPH_NODE_TYPE_KERNEL;
}

/* Emulated CUDA driver call: an attribute of a kernel node's launch (CUlaunchAttributeID). */
API cuGraphKernelNodeGetAttribute(CUgraphNode node, int attribute, CUlaunchAttributeValue *value)
{
	ENTER_OR_RETURN();
	if (!value || !is_kernel_node(node))
		return CUDA_ERROR_INVALID_VALUE;
	struct ed_kernel_work *work = &node->operation.kernel;
	const uint32_t *tuning = ed_tuning_find(work, attribute);
	CUlaunchAttributeValue found = {.pad = {0}};
	switch (attribute) {
	case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
		found.cooperative = work->is_cooperative;
		break;
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
		memcpy(&found.clusterDim, work->cluster, sizeof(found.clusterDim));
		break;
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
		found.priority = work->priority;
		break;
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
	case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
		break;
	default:
		if (!tuning)
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(&found, tuning, sizeof(*tuning));
		break;
	}
	*value = found;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: set an attribute of a kernel node's launch (CUlaunchAttributeID). */
API cuGraphKernelNodeSetAttribute(CUgraphNode node, int attribute, const CUlaunchAttributeValue *value)
{
	ENTER_OR_RETURN();
	if (!value || !is_kernel_node(node))
		return CUDA_ERROR_INVALID_VALUE;
	struct ed_kernel_work *work = &node->operation.kernel;
	uint32_t *tuning = ed_tuning_find(work, attribute);
	switch (attribute) {
	case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
		work->is_cooperative = value->cooperative != 0;
		return CUDA_SUCCESS;
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
		memcpy(work->cluster, &value->clusterDim, sizeof(work->cluster));
		return CUDA_SUCCESS;
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
		work->priority = value->priority;
		return CUDA_SUCCESS;
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
		return CUDA_SUCCESS;
	case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
		/* Nothing on the device updates nodes. */
		return value->cooperative ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
	default:
		if (!tuning)
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(tuning, value, sizeof(*tuning));
		return CUDA_SUCCESS;
	}
}

/* Emulated CUDA driver call: give a kernel node's launch the attributes of another one's. */
API cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from)
{
	ENTER_OR_RETURN();
	if (!is_kernel_node(to) || !is_kernel_node(from))
		return CUDA_ERROR_INVALID_VALUE;
	to->operation.kernel.is_cooperative = from->operation.kernel.is_cooperative;
	memcpy(to->operation.kernel.cluster, from->operation.kernel.cluster, sizeof(to->operation.kernel.cluster));
	memcpy(to->operation.kernel.tuning, from->operation.kernel.tuning, sizeof(to->operation.kernel.tuning));
	to->operation.kernel.priority = from->operation.kernel.priority;
	return CUDA_SUCCESS;
}
