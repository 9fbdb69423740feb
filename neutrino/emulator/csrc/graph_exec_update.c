/*
 * Changes of executable graphs. Their nodes are named by those of the graph that was instantiated, also after an update
 * with another graph, and within it by those of the graphs that cuGraphChildGraphNodeGetGraph returns.
 */
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "graph_exec.h"
#include "graph_node.h"

/*
 * The step of an executable graph that a node names, for a change: launches under way keep the old steps (the plan), so
 * these are copied if there are any. CUDA_ERROR_INVALID_VALUE if the node names none of that type; type: negative for
 * any.
 */
static CUresult find_step(CUgraphExec exec, CUgraphNode node, int type, struct ed_step **ret)
{
	if (!node || !ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	struct ed_step *step = ed_plan_find(exec->plan, node);
	if (!step || (type >= 0 && step->operation.type != type))
		return CUDA_ERROR_INVALID_VALUE;
	if (__atomic_load_n(&exec->plan->holders, __ATOMIC_ACQUIRE) != 1) {
		struct ed_plan *plan = ed_plan_copy(exec->plan);
		if (!plan)
			return CUDA_ERROR_OUT_OF_MEMORY;
		ed_plan_release(exec->plan);
		exec->plan = plan;
		step = ed_plan_find(plan, node);
	}
	*ret = step;
	return CUDA_SUCCESS;
}

/*
 * Give a step another operation of its type, and free the old one. What the new one was read from may lie in the old
 * one.
 */
static void replace_operation(struct ed_step *step, const struct ed_operation *operation)
{
	ed_operation_release(&step->operation);
	step->operation = *operation;
}

/* What cuGraphExecKernelNodeSetParams does: replace the launch of a kernel node in an executable graph. */
static CUresult set_kernel(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct ed_operation operation;
	struct ed_step *step;
	CUresult result = find_step(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, &step);

	if (!result)
		result = ed_graph_kernel(parameters, &step->operation.kernel, &operation);
	if (!result)
		replace_operation(step, &operation);
	return result;
}

/* Emulated CUDA driver call: replace the launch of a kernel node in an executable graph. */
API cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	ENTER_OR_RETURN();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS wide = ed_graph_widen(parameters);
	return set_kernel(exec, node, &wide);
}

/* Emulated CUDA driver call: replace the launch of a kernel node in an executable graph. */
API cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	ENTER_OR_RETURN();
	return set_kernel(exec, node, parameters);
}

/*
 * Replace what a node of an executable graph copies or sets. type: of the node; parameters: as that type has
 * them; handle: the context, NULL for the current one.
 */
static CUresult set_memory(CUgraphExec exec, CUgraphNode node, int type, const void *parameters, CUcontext handle)
{
	struct ed_operation operation = {.type = type};
	struct ed_step *step;
	CUresult result = find_step(exec, node, type, &step);

	if (!result)
		result = ed_context_of(handle, &operation.context);
	if (!result)
		result = type == CU_GRAPH_NODE_TYPE_MEMCPY ? ed_copy_from(parameters, &operation.copy)
							   : ed_fill_from(parameters, &operation.fill);
	if (!result)
		replace_operation(step, &operation);
	return result;
}

/* Emulated CUDA driver call: replace what a node of an executable graph copies. */
API cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *parameters,
				   CUcontext context)
{
	ENTER_OR_RETURN();
	return set_memory(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY, parameters, context);
}

/* Emulated CUDA driver call: replace what memory a node of an executable graph sets. */
API cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *parameters,
				   CUcontext context)
{
	ENTER_OR_RETURN();
	return set_memory(exec, node, CU_GRAPH_NODE_TYPE_MEMSET, parameters, context);
}

/* What cuGraphExecHostNodeSetParams does: replace the function that a host node of an executable graph calls. */
static CUresult set_host(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *parameters)
{
	struct ed_step *step;
	CUresult result = find_step(exec, node, CU_GRAPH_NODE_TYPE_HOST, &step);

	if (!result && (!parameters || !parameters->fn))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		step->operation.host.function = parameters->fn;
		step->operation.host.data = parameters->userData;
	}
	return result;
}

/* Emulated CUDA driver call: replace the function that a host node of an executable graph calls. */
API cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *parameters)
{
	ENTER_OR_RETURN();
	return set_host(exec, node, parameters);
}

/*
 * Replace the operations of a child graph's nodes in an executable graph by those of another graph of the same shape.
 */
static CUresult set_child(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	struct ed_step *step;
	CUgraphNode error;

	if (!ed_object_check(child, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = find_step(exec, node, CU_GRAPH_NODE_TYPE_GRAPH, &step);
	if (result)
		return result;
	struct ed_plan *before = step->operation.plan, *now = ed_plan_make(child, step->operation.context);
	if (!now)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (ed_plan_compare(before, now, &error) != ED_UPDATE_SUCCESS) {
		ed_plan_release(now);
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	}
	ed_plan_rename(now, before);
	step->operation.plan = now;
	ed_plan_release(before);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: replace a child graph in an executable graph by another graph of the same shape. */
API cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	ENTER_OR_RETURN();
	return set_child(exec, node, child);
}

/*
 * Emulated CUDA driver call: replace what a node of any type in an executable graph does. parameters: a
 * CUgraphNodeParams.
 */
API cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, const void *parameters)
{
	struct ed_node_parameters any;

	ENTER_OR_RETURN();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	ed_node_parameters_read(parameters, &any);
	switch (any.type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return set_kernel(exec, node, &any.kernel);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return set_memory(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY, &any.copy, any.context);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return set_memory(exec, node, CU_GRAPH_NODE_TYPE_MEMSET, &any.fill, any.context);
	case CU_GRAPH_NODE_TYPE_HOST:
		return set_host(exec, node, &any.host);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return set_child(exec, node, any.child);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

/* Whether nodes of a type can be disabled. */
static bool can_be_disabled(int type)
{
	return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
	       type == CU_GRAPH_NODE_TYPE_MEMSET;
}

/* Emulated CUDA driver call: enable or disable a node of an executable graph; a disabled one does nothing. */
API cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int is_enabled)
{
	struct ed_step *step;

	ENTER_OR_RETURN();
	CUresult result = find_step(exec, node, -1, &step);
	if (!result && !can_be_disabled(step->operation.type))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		step->is_disabled = !is_enabled;
	return result;
}

/* Emulated CUDA driver call: whether a node of an executable graph is enabled. */
API cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *is_enabled)
{
	struct ed_step *step;

	ENTER_OR_RETURN();
	CUresult result = is_enabled ? find_step(exec, node, -1, &step) : CUDA_ERROR_INVALID_VALUE;
	if (!result && !can_be_disabled(step->operation.type))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		*is_enabled = !step->is_disabled;
	return result;
}

/*
 * What the forms of cuGraphExecUpdate do: replace the steps of an executable graph (its plan) by those of another graph
 * with the same nodes and edges. verdict: a CUgraphExecUpdateResult; error_node: the node that differs, or NULL.
 */
static CUresult update_exec(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, int *verdict)
{
	GET_CONTEXT_OR_RETURN(context);
	*error_node = NULL;
	*verdict = 1;
	if (!ed_object_check(exec, ED_EXEC) || !ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	struct ed_plan *plan = ed_plan_make(graph, context);
	if (!plan)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*verdict = ed_plan_compare(exec->plan, plan, error_node);
	if (*verdict != ED_UPDATE_SUCCESS) {
		ed_plan_release(plan);
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	}
	ed_plan_rename(plan, exec->plan);
	ed_plan_release(exec->plan);
	exec->plan = plan;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: update an executable graph from another graph of the same shape. */
API cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, int *verdict)
{
	CUgraphNode node;
	int found;

	ENTER_OR_RETURN();
	CUresult result = update_exec(exec, graph, &node, &found);
	if (error_node)
		*error_node = node;
	if (verdict)
		*verdict = found;
	return result;
}

/*
 * Emulated CUDA driver call: update an executable graph from another graph of the same shape; info says what differs.
 */
API cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	CUgraphNode node;
	int found;

	ENTER_OR_RETURN();
	CUresult result = update_exec(exec, graph, &node, &found);
	if (info)
		*info = (CUgraphExecUpdateResultInfo){found, node, NULL};
	return result;
}
