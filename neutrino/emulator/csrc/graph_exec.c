/* Executable graphs: instantiated, launched, updated. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "event.h"
#include "settings.h"
#include "plan.h"
#include "stream.h"

struct ed_exec {
	struct ed_object object;
	struct ed_context *context;
	struct ed_plan *plan;
	struct ed_moment last; /* launches of one executable graph do not overlap */
	uint64_t flags;
};

#define INSTANTIATE_FLAGS 15u /* CUgraphInstantiate_flags together */

/* Make an executable graph: a plan with copies of the nodes. CUDA_ERROR_INVALID_VALUE for a graph with a cycle. */
static CUresult instantiate(CUgraphExec *ret, CUgraph graph, uint64_t flags)
{
	IN_CONTEXT(context);
	if (!ret || !ed_object_check(graph, ED_GRAPH) || flags > INSTANTIATE_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	struct ed_plan *plan = ed_plan_make(graph, context);
	if (!plan)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct ed_exec *exec = ed_plan_is_acyclic(plan) ? ed_object_take(ED_EXEC, sizeof(*exec)) : NULL;
	if (!exec) {
		ed_plan_release(plan);
		return CUDA_ERROR_INVALID_VALUE;
	}
	exec->context = context;
	exec->plan = plan;
	exec->flags = flags;
	*ret = exec;
	return CUDA_SUCCESS;
}

API cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size)
{
	ENTER();
	if (node)
		*node = NULL;
	if (log && size)
		*log = 0;
	return instantiate(exec, graph, 0);
}

API cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size)
{
	ENTER();
	if (node)
		*node = NULL;
	if (log && size)
		*log = 0;
	return instantiate(exec, graph, 0);
}

API cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	ENTER();
	return instantiate(exec, graph, flags);
}

/* CUDA_GRAPH_INSTANTIATE_PARAMS */
struct instantiate_parameters {
	uint64_t flags;
	CUstream upload_stream;
	CUgraphNode error_node;
	int result;
};

API cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, struct instantiate_parameters *parameters)
{
	ENTER();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = instantiate(exec, graph, parameters->flags);
	parameters->error_node = NULL;
	parameters->result = result ? 1 : 0;
	return result;
}

API cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags)
{
	ENTER();
	if (!flags || !ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	*flags = exec->flags;
	return CUDA_SUCCESS;
}

API cuGraphExecDestroy(CUgraphExec exec)
{
	ENTER();
	if (!ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	/* Launches that have not run yet have references to the plan. */
	struct ed_plan *plan = exec->plan;
	ed_object_give(exec);
	ed_plan_release(plan);
	return CUDA_SUCCESS;
}

/* Collect the moments of the events that the plan's nodes wait for, up to most. Returns how many there are. */
static size_t awaited(const struct ed_plan *plan, struct ed_moment *ret, size_t most)
{
	size_t count = 0;

	for (size_t i = 0; i < plan->count && count < most; i++)
		if (plan->steps[i].operation.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT)
			ret[count++] = ed_event_moment(plan->steps[i].operation.event.event);
	return count;
}

/* Let the events that a plan records be recorded at the end of its launch. */
static void set_events(const struct ed_plan *plan, struct ed_moment moment)
{
	for (size_t i = 0; i < plan->count; i++) {
		if (plan->steps[i].operation.type != CU_GRAPH_NODE_TYPE_EVENT_RECORD)
			continue;
		struct ed_mark *mark = ed_mark_make();
		if (!mark)
			continue;
		mark->moment = moment;
		mark->done_ns = ed_now_ns();
		ed_event_set(plan->steps[i].operation.event.event, mark);
	}
}

/* cuGraphLaunch: submit the plan as one operation, after the exec's last launch and the events that it waits for. */
static CUresult launch(CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct ed_queue *queue;
	struct ed_moment after[64], done;

	IN_CONTEXT(context);
	if (!ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);
	if (!result && __atomic_load_n(&queue->capture, __ATOMIC_ACQUIRE))
		result = ed_capture_forbids(queue);
	if (result)
		return result;
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .context = queue->context, .plan = exec->plan};
	ed_plan_hold(exec->plan);
	after[0] = exec->last;
	size_t count = 1 + awaited(exec->plan, after + 1, 63);
	result = ed_stream_submit_after(queue, &operation, after, count, &done);
	if (!result && done.queue) {
		exec->last = done;
		set_events(exec->plan, done);
	}
	return result;
}

API cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return launch(exec, stream, false);
}

API cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return launch(exec, stream, true);
}

/* cuGraphUpload: only checks its arguments, since plans are not uploaded to the device. */
static CUresult upload(CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct ed_queue *queue;

	IN_CONTEXT(context);
	if (!ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);
	return result ? result : ed_capture_forbids(queue);
}

API cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return upload(exec, stream, false);
}

API cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return upload(exec, stream, true);
}

/*
 * A copy of a plan with the operation of step at replaced. Launches under way keep the old plan. NULL without memory.
 */
static struct ed_plan *replaced(const struct ed_plan *plan, size_t at, struct ed_operation *operation)
{
	struct ed_plan *copy = calloc(1, sizeof(*copy) + plan->count * sizeof(copy->steps[0]));

	if (!copy)
		return NULL;
	copy->holders = 1;
	for (size_t i = 0; i < plan->count; i++) {
		const struct ed_step *from = &plan->steps[i];
		struct ed_step *to = &copy->steps[i];
		to->after = calloc(from->after_count + 1, sizeof(*to->after));
		bool complete = true;
		if (i == at)
			to->operation = *operation;
		else
			complete = ed_operation_copy(&to->operation, &from->operation);
		copy->count = i + complete;
		if (!complete || !to->after) {
			ed_plan_release(copy);
			return NULL;
		}
		memcpy(to->after, from->after, from->after_count * sizeof(*to->after));
		to->after_count = from->after_count;
		to->node = from->node;
	}
	return copy;
}

/* Replace the launch of one kernel node, which is named by the node of the graph that was instantiated. */
static CUresult exec_set_kernel(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct ed_operation operation;

	if (!ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	size_t at = 0;
	while (at < exec->plan->count && exec->plan->steps[at].node != node)
		at++;
	if (at == exec->plan->count || exec->plan->steps[at].operation.type != CU_GRAPH_NODE_TYPE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_graph_kernel(parameters, &operation);
	if (result)
		return result;
	struct ed_plan *plan = replaced(exec->plan, at, &operation);
	if (!plan)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ed_plan_release(exec->plan);
	exec->plan = plan;
	return CUDA_SUCCESS;
}

API cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	ENTER();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS wide = ed_graph_widen(parameters);
	return exec_set_kernel(exec, node, &wide);
}

API cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	ENTER();
	return exec_set_kernel(exec, node, parameters);
}

enum { /* CUgraphExecUpdateResult */
	UPDATE_SUCCESS = 0,
	UPDATE_TOPOLOGY_CHANGED = 2,
	UPDATE_NODE_TYPE_CHANGED = 3,
};

/* Replace the plan by one of another graph of the same shape. verdict: a CUgraphExecUpdateResult. */
static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, int *verdict)
{
	IN_CONTEXT(context);
	*error_node = NULL;
	*verdict = 1;
	if (!ed_object_check(exec, ED_EXEC) || !ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	struct ed_plan *plan = ed_plan_make(graph, context);
	if (!plan)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*verdict = plan->count == exec->plan->count ? UPDATE_SUCCESS : UPDATE_TOPOLOGY_CHANGED;
	for (size_t i = 0; i < plan->count && *verdict == UPDATE_SUCCESS; i++) {
		const struct ed_step *before = &exec->plan->steps[i], *now = &plan->steps[i];
		if (before->operation.type != now->operation.type)
			*verdict = UPDATE_NODE_TYPE_CHANGED;
		else if (before->after_count != now->after_count ||
			 memcmp(before->after, now->after, now->after_count * sizeof(*now->after)) != 0)
			*verdict = UPDATE_TOPOLOGY_CHANGED;
		if (*verdict != UPDATE_SUCCESS)
			*error_node = now->node;
	}
	if (*verdict != UPDATE_SUCCESS) {
		ed_plan_release(plan);
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	}
	/* The program still uses the nodes of the graph that was instantiated to name nodes of the exec. */
	for (size_t i = 0; i < plan->count; i++)
		plan->steps[i].node = exec->plan->steps[i].node;
	ed_plan_release(exec->plan);
	exec->plan = plan;
	return CUDA_SUCCESS;
}

API cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, int *verdict)
{
	CUgraphNode node;
	int found;

	ENTER();
	CUresult result = update(exec, graph, &node, &found);
	if (error_node)
		*error_node = node;
	if (verdict)
		*verdict = found;
	return result;
}

API cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	CUgraphNode node;
	int found;

	ENTER();
	CUresult result = update(exec, graph, &node, &found);
	if (info)
		*info = (CUgraphExecUpdateResultInfo){found, node, NULL};
	return result;
}
