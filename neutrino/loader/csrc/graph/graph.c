#include "graph/graph.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/grace.h"
#include "base/memory.h"
#include "base/mode.h"
#include "drain/benchmark.h"
#include "graph/graph_bodies.h"
#include "graph/graph_exec.h"
#include "graph/graph_layout.h"
#include "graph/graph_memory.h"
#include "image/background.h"
#include "image/choice.h"
#include "memory/greens.h"
#include "memory/own_memory.h"
#include "memory/pool.h"
#include "trace/trace.h"

/* A replay's memory is at most this part (1/4) of the pool, so that several can be queued. */
#define REPLAY_PART 4

static uint32_t last_id;

/*
 * Get spare memory, to which twins (copies with probes) in replays (launches of graphs) write that find no room for
 * results, also those that come with a later replay; without it the originals run.
 */
static void get_spare_memory(struct nt_graph_exec *exec)
{
	bool has_twins = exec->layout->probed || nt_graph_layout_records(exec->layout);

	if (!has_twins || nt_graph_memory_spare(exec->memory, exec->layout->size))
		return;
	nt_lines_note("graph %u: no device memory for its maps: its kernels run unprobed", exec->layout->graph);
	nt_graph_exec_put_originals_back(exec);
}

/*
 * After an executable graph has got a layout (what its kernel nodes run): get spare memory for it, and write its event.
 */
static void complete_layout(struct nt_graph_exec *exec)
{
	get_spare_memory(exec);
	nt_graph_exec_log(exec->layout);
}

/*
 * The layout (what its kernel nodes run) of an executable graph, to be changed: a copy of it once a replay (launch of a
 * graph) has used it. NULL without memory.
 */
static struct nt_layout *changeable_layout(struct nt_graph_exec *exec)
{
	struct nt_layout *layout = exec->layout;

	if (!layout->replays && !layout->replays_full && !layout->replays_left_out)
		return layout;
	layout = nt_graph_layout_copy(layout);
	if (layout)
		nt_graph_exec_use(exec, layout);
	return layout;
}

/* --- what the program does with graphs --- */

/*
 * What every change of an executable graph is made in: a reading section, and the capture mode in which calls of our own
 * neither fail because of a capture nor become part of one.
 */
struct change {
	uint32_t *reading;
	int mode;
};

/*
 * Begin to change an executable graph: a reading section (what is found in it is not freed), and the capture mode for
 * calls of our own. Ends with end_change.
 */
static struct change begin_change(void)
{
	struct change change = {nt_grace_reading_begin(), CU_STREAM_CAPTURE_MODE_RELAXED};

	nt_driver.cuThreadExchangeStreamCaptureMode(&change.mode);
	return change;
}

/* End what begin_change has begun, in the same thread. */
static void end_change(struct change change)
{
	nt_driver.cuThreadExchangeStreamCaptureMode(&change.mode);
	nt_grace_reading_end(change.reading);
}

/* Whether the driver has all the functions that twins (copies with probes) in graphs need. */
static bool is_supported(void)
{
	return nt_driver.cuGraphKernelNodeGetParams_v2 && nt_driver.cuGraphExecKernelNodeSetParams_v2 &&
	       (nt_driver.cuStreamWriteValue64_v2 || nt_driver.cuStreamWriteValue64);
}

/*
 * After the program has instantiated a graph: have its kernel nodes run their twins (copies with probes), and remember
 * the executable graph. flags: of the instantiation.
 */
void nt_graph_instantiated(CUgraphExec handle, CUgraph graph, uint64_t flags)
{
	struct nt_graph_exec *exec = is_supported() ? nt_memory_alloc_zeroed(1, sizeof(*exec)) : NULL;
	struct nt_graph_target *target;
	struct nt_pool *pool = NULL;

	if (!exec)
		return;
	struct change change = begin_change();
	exec->handle.handle = handle;
	target = &exec->target;
	target->exec = handle;
	exec->source = graph;
	target->graph = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
	nt_driver.cuCtxGetCurrent(&target->context);
	exec->memory = nt_choice_has_context(target->context) ? nt_graph_memory_of(target->context) : NULL;
	if (flags & CU_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
		target->refusal = NEUTRINO_REASON_GRAPH;
	else if (nt_greens_has(target->context))
		target->refusal = NEUTRINO_REASON_LAUNCH_FORM;
	else if (!exec->memory || !(pool = nt_pool_prepare(target->context)) || !(target->cell = nt_graph_memory_cell(exec->memory)) ||
		 nt_driver.cuEventCreate(&exec->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		target->refusal = NEUTRINO_REASON_CONTEXT;
	target->most = pool ? nt_slabs_most(pool) / REPLAY_PART : 0;
	struct nt_layout *layout = nt_graph_layout_make(target, graph, NULL);
	if (layout) {
		nt_graph_exec_use(exec, layout);
		complete_layout(exec);
		if (nt_graph_exec_add(exec))
			exec = NULL;
	}
	/* Nobody would write its cell. */
	if (exec && exec->layout) {
		nt_graph_layout_restore(target, exec->layout);
		__atomic_store_n(&exec->layout->is_retired, 1, __ATOMIC_RELEASE);
	}
	if (exec && exec->event)
		nt_driver.cuEventDestroy_v2(exec->event);
	nt_memory_free(exec);
	end_change(change);
}

/*
 * After the program has updated an executable graph from another graph, which has put original kernels into it: have
 * them run their twins (copies with probes) again.
 */
void nt_graph_updated(CUgraphExec handle, CUgraph graph)
{
	struct change change = begin_change();
	struct nt_graph_exec *exec = nt_graph_exec_find(handle);
	CUgraph clone = NULL;
	struct nt_layout *layout = NULL;

	if (!exec) {
		end_change(change);
		return;
	}
	/*
	 * The update has put originals into the executable graph. Its nodes are named only by those of the graph that
	 * was instantiated, and only the driver knows how it has paired the two graphs. So it is updated once more, by
	 * a clone of the program's graph with the twins in it. Nodes without a name cannot get originals and twins by
	 * turns, though.
	 */
	struct nt_graph_target target = exec->target;
	bool may_alternate = nt_choice_is_by_number() || nt_benchmark_is_set();
	if (!may_alternate && nt_driver.cuGraphClone && nt_driver.cuGraphClone(&clone, graph) == CUDA_SUCCESS) {
		layout = nt_graph_layout_make(&target, graph, clone);
		uint64_t info[4];
		CUgraphNode node;
		if (layout && layout->probed && !nt_own_memory_is_memusage &&
		    (nt_driver.cuGraphExecUpdate_v2 ? nt_driver.cuGraphExecUpdate_v2(handle, clone, info)
						    : nt_driver.cuGraphExecUpdate(handle, clone, &node, (int *)info)) != CUDA_SUCCESS) {
			/* As the program's own call has left it. */
			if (nt_driver.cuGraphExecUpdate_v2)
				nt_driver.cuGraphExecUpdate_v2(handle, graph, info);
			nt_graph_layout_free(layout);
			layout = NULL;
		}
		nt_driver.cuGraphDestroy(clone);
	}
	if (!layout) {
		target.refusal = NEUTRINO_REASON_GRAPH;
		layout = nt_graph_layout_make(&target, graph, NULL);
	}
	if (layout) {
		/*
		 * The program still names nodes by those of the graph that was instantiated. They are paired in the
		 * order of both graphs.
		 */
		for (size_t i = 0; i < layout->count && layout->count == exec->layout->count; i++) {
			layout->nodes[i].node = exec->layout->nodes[i].node;
			layout->nodes[i].is_disabled = exec->layout->nodes[i].is_disabled;
			layout->nodes[i].is_paired = false;
		}
		nt_graph_exec_use(exec, layout);
		complete_layout(exec);
	}
	end_change(change);
}

/*
 * After the program has set the parameters of a kernel node: have it run its twin (copy with probes) again. parameters:
 * CUDA_KERNEL_NODE_PARAMS, with is_v2 its second version.
 */
void nt_graph_node_set(CUgraphExec handle, CUgraphNode node, const void *parameters, bool is_v2)
{
	struct change change = begin_change();
	struct nt_graph_exec *exec = nt_graph_exec_find(handle);
	struct nt_layout *layout = exec ? changeable_layout(exec) : NULL;
	CUDA_KERNEL_NODE_PARAMS set = {0};

	memcpy(&set, parameters, is_v2 ? sizeof(set) : offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	/* If both are given, the driver takes the function. */
	if (set.func)
		set.kern = NULL;
	if (layout) {
		nt_graph_layout_set(&exec->target, layout, node, &set);
		get_spare_memory(exec);
	}
	end_change(change);
}

/*
 * After the program has set the parameters of a node of any type: if it is a kernel, have it run its twin (copy with
 * probes) again.
 */
void nt_graph_any_node_set(CUgraphExec handle, CUgraphNode node, const CUgraphNodeParams *parameters)
{
	if (parameters->type == CU_GRAPH_NODE_TYPE_KERNEL)
		nt_graph_node_set(handle, node, &parameters->conditional, true);
}

/*
 * After the program has replaced the nodes of a child graph by those of another graph: have their kernels run their
 * twins (copies with probes) again.
 */
void nt_graph_child_set(CUgraphExec handle, CUgraphNode node, CUgraph child)
{
	struct change change = begin_change();
	struct nt_graph_exec *exec = nt_graph_exec_find(handle);
	struct nt_layout *layout = exec ? changeable_layout(exec) : NULL;
	CUgraph own;

	if (layout && nt_driver.cuGraphChildGraphNodeGetGraph(node, &own) == CUDA_SUCCESS) {
		nt_graph_layout_set_child(&exec->target, layout, own, child);
		get_spare_memory(exec);
	}
	end_change(change);
}

/*
 * After the program has enabled or disabled a node of an executable graph: note that, as a disabled kernel is not
 * counted.
 */
void nt_graph_node_enabled(CUgraphExec handle, CUgraphNode node, unsigned enabled)
{
	struct change change = begin_change();
	struct nt_graph_exec *exec = nt_graph_exec_find(handle);
	struct nt_layout *layout = exec ? changeable_layout(exec) : NULL;

	if (layout)
		nt_graph_layout_enable(layout, node, enabled);
	end_change(change);
}

/*
 * After the program has added a node to a graph: of a conditional node, note the graphs in it, which the driver names
 * only now. Before the trace begins, too.
 */
void nt_graph_node_added(CUgraphNode node, CUgraph graph, const CUgraphNodeParams *parameters)
{
	/* Before the trace begins, too: it begins with the first image, which may be loaded for the graph's first kernel. */
	enum nt_mode mode = nt_mode_of_process();

	if ((mode == NT_READY || mode == NT_TRACING) && parameters && parameters->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
		nt_graph_bodies_add(node, graph, parameters);
}

/*
 * Another set of probes is in force: have device memory for what replays (launches of graphs) need that find no room, so
 * that none has to get it. In a thread of the program, not on the launch path.
 */
void nt_graph_expect_set(void)
{
	enum { MOST_CONTEXTS = 16 };
	struct nt_graph_need needs[MOST_CONTEXTS];
	CUcontext popped;

	/* No context ends from here on. */
	if (!nt_background_enter())
		return;
	struct change change = begin_change();
	unsigned count = nt_graph_exec_needs(needs, MOST_CONTEXTS);
	for (unsigned i = 0; i < count; i++) {
		if (nt_driver.cuCtxPushCurrent_v2(needs[i].context) != CUDA_SUCCESS)
			continue;
		struct nt_graph_memory *memory = nt_graph_memory_of(needs[i].context);
		if (memory)
			nt_graph_memory_spare(memory, needs[i].size);
		nt_driver.cuCtxPopCurrent_v2(&popped);
	}
	end_change(change);
	nt_background_leave();
}
