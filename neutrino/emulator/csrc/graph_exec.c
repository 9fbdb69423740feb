/* Executable graphs: instantiated, launched. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "conditional.h"
#include "event.h"
#include "graph_exec.h"
#include "graph_memory.h"
#include "settings.h"
#include "stream.h"

#define AUTO_FREE_ON_LAUNCH 1u /* CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH */
#define INSTANTIATE_FLAGS 15u /* CUgraphInstantiate_flags together */

/*
 * Make an executable graph: its plan is a copy of the graph's nodes as steps to run. CUDA_ERROR_INVALID_VALUE for a
 * graph with a cycle. flags: CUgraphInstantiate_flags.
 */
static CUresult instantiate(CUgraphExec *ret, CUgraph graph, uint64_t flags)
{
	GET_CONTEXT_OR_RETURN(context);
	if (!ret || !ed_object_check(graph, ED_GRAPH) || flags > INSTANTIATE_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	if (!ed_condition_are_used(graph))
		return CUDA_ERROR_INVALID_VALUE;
	if (graph->instances && ed_graph_is_single(graph))
		return CUDA_ERROR_NOT_SUPPORTED;
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
	exec->graph = graph;
	exec->graph_id = graph->id;
	graph->instances++;
	*ret = exec;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: make an executable graph. Nothing is written to the log. */
API cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size)
{
	ENTER_OR_RETURN();
	if (node)
		*node = NULL;
	if (log && size)
		*log = 0;
	return instantiate(exec, graph, 0);
}

/* Emulated CUDA driver call: make an executable graph. Nothing is written to the log. */
API cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size)
{
	ENTER_OR_RETURN();
	if (node)
		*node = NULL;
	if (log && size)
		*log = 0;
	return instantiate(exec, graph, 0);
}

/* Emulated CUDA driver call: make an executable graph, with CUgraphInstantiate_flags. */
API cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	ENTER_OR_RETURN();
	return instantiate(exec, graph, flags);
}

/* CUDA_GRAPH_INSTANTIATE_PARAMS */
struct instantiate_parameters {
	uint64_t flags;
	CUstream upload_stream;
	CUgraphNode error_node;
	int result;
};

/*
 * What cuGraphInstantiateWithParams does: make an executable graph. upload_stream is not read, as nothing is uploaded
 * to the device; whether it failed is also put into the parameters.
 */
static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, struct instantiate_parameters *parameters)
{
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = instantiate(exec, graph, parameters->flags);
	parameters->error_node = NULL;
	parameters->result = result ? 1 : 0;
	return result;
}

/* Emulated CUDA driver call: make an executable graph by a structure of parameters, which gets the result, too. */
API cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, struct instantiate_parameters *parameters)
{
	ENTER_OR_RETURN();
	return instantiate_with(exec, graph, parameters);
}

/* Emulated CUDA driver call: make an executable graph by a structure of parameters, which gets the result, too. */
API cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, struct instantiate_parameters *parameters)
{
	ENTER_OR_RETURN();
	return instantiate_with(exec, graph, parameters);
}

/* Emulated CUDA driver call: the flags that an executable graph was made with. */
API cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags)
{
	ENTER_OR_RETURN();
	if (!flags || !ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	*flags = exec->flags;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: destroy an executable graph; launches that have not run yet still run. */
API cuGraphExecDestroy(CUgraphExec exec)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	/* Launches that have not run yet have references to the plan. */
	struct ed_plan *plan = exec->plan;
	if (ed_object_is(exec->graph, ED_GRAPH) && exec->graph->id == exec->graph_id)
		exec->graph->instances--;
	ed_object_give(exec);
	ed_plan_release(plan);
	return CUDA_SUCCESS;
}

/*
 * Collect the moments (when an event's last recording is past) of the events that the nodes of an executable graph's
 * plan wait for, `most` at most. Returns how many there are.
 */
static size_t awaited(const struct ed_plan *plan, struct ed_moment *ret, size_t most)
{
	size_t count = 0;

	for (size_t i = 0; i < plan->count && count < most; i++)
		if (plan->steps[i].operation.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT)
			ret[count++] = ed_event_moment(plan->steps[i].operation.event.event);
	return count;
}

/*
 * Let the events that a plan (executable graph) records be recorded at the end of its launch, that moment (a point in a
 * queue's work).
 */
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

/*
 * What cuGraphLaunch does: put the steps of an executable graph (its plan) on a stream as one operation, after its last
 * launch and the events that it waits for. per_thread: the default stream is the thread's own.
 */
static CUresult launch_exec(CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct ed_queue *queue;
	struct ed_moment after[64], done;

	GET_CONTEXT_OR_RETURN(context);
	if (!ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);
	if (!result && __atomic_load_n(&queue->capture, __ATOMIC_ACQUIRE))
		result = ed_capture_forbids(queue);
	if (!result)
		result = ed_graph_memory_launch(exec->plan, exec->flags & AUTO_FREE_ON_LAUNCH);
	if (result)
		return result;
	struct ed_operation operation = {
		.type = CU_GRAPH_NODE_TYPE_GRAPH,
		.is_whole = true,
		.context = queue->context,
		.plan = exec->plan,
	};
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

/* Emulated CUDA driver call: launch an executable graph in a stream. */
API cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	ENTER_OR_RETURN();
	return launch_exec(exec, stream, false);
}

/* Emulated CUDA driver call: launch an executable graph in a stream; the default one is the thread's own. */
API cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	ENTER_OR_RETURN();
	return launch_exec(exec, stream, true);
}

/* What cuGraphUpload does: only checks its arguments, since plans are not uploaded to the device. */
static CUresult upload(CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct ed_queue *queue;

	GET_CONTEXT_OR_RETURN(context);
	if (!ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);
	return result ? result : ed_capture_forbids(queue);
}

/* Emulated CUDA driver call: upload an executable graph to the device ahead; only checked here. */
API cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	ENTER_OR_RETURN();
	return upload(exec, stream, false);
}

/* Emulated CUDA driver call: upload an executable graph to the device ahead; only checked here. */
API cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	ENTER_OR_RETURN();
	return upload(exec, stream, true);
}
