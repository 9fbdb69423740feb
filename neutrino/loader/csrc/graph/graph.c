#include "graph/graph.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/grace.h"
#include "base/handles.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/mode.h"
#include "base/quiet.h"
#include "base/thread.h"
#include "drain/benchmark.h"
#include "graph/graph_choice.h"
#include "graph/graph_layout.h"
#include "graph/graph_memory.h"
#include "image/choice.h"
#include "launch/launch.h"
#include "memory/greens.h"
#include "memory/own_memory.h"
#include "memory/pool.h"
#include "trace/trace.h"

/* A replay's memory is at most this part (1/4) of the pool, so that several can be queued. */
#define REPLAY_PART 4

/* An executable graph of the program. */
struct exec {
	struct nt_handle handle;
	struct nt_retired retired;
	struct nt_graph_memory *memory;
	struct nt_graph_target target;
	struct nt_layout *layout;
	uint64_t last_stream; /* id of the stream of the last replay; 0: not known */
	bool has_run;	      /* there was a replay */
	bool is_recorded;     /* event follows the last one */
	CUevent event;
	struct exec *next;
};

/* Guards the lists, and changes of the table. Never held across a call of the driver. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nt_handles exec_table;
static struct exec *execs;
static struct nt_layout *layouts; /* all that are not freed */
static uint32_t last_id;

/*
 * The record of an executable graph by the driver's handle; NULL if it is not known. In a reading section (what is
 * found in it is not freed).
 */
static struct exec *find_exec(CUgraphExec handle)
{
	return handle ? nt_handles_find(&exec_table, handle) : NULL;
}

/* --- layouts --- */

/* Write the event that says what an executable graph runs. */
static void log_layout(const struct nt_layout *layout)
{
	struct nt_event event;
	uint64_t by_reason[NEUTRINO_REASON_SLOTS] = {0};
	static const char *const words[] = {NEUTRINO_REASON_WORDS};

	for (size_t i = 0; i < layout->count; i++)
		by_reason[layout->nodes[i].reason]++;
	nt_event_begin(&event, "graph");
	nt_event_number(&event, "id", layout->graph);
	nt_event_number(&event, "kernels", layout->count);
	nt_event_number(&event, "bytes", layout->size);
	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (by_reason[i])
			nt_event_number(&event, words[i], by_reason[i]);
	nt_event_end(&event);
}

/*
 * Give an executable graph a new layout (what its kernel nodes run, and where their results go) in place of its present
 * one, which is freed once its replays (launches) are done.
 */
static void use_layout(struct exec *exec, struct nt_layout *layout)
{
	nt_lock_take(&mutex);
	if (exec->layout)
		__atomic_store_n(&exec->layout->is_retired, 1, __ATOMIC_RELEASE);
	layout->next = layouts;
	layouts = layout;
	exec->layout = layout;
	nt_lock_release(&mutex);
}

/*
 * Put the original kernels back into an executable graph for good, because its replays (launches) cannot be recorded.
 */
static void put_originals_back(struct exec *exec)
{
	struct nt_layout *layout = nt_graph_layout_copy(exec->layout);

	if (layout) {
		nt_graph_layout_restore(&exec->target, layout);
		use_layout(exec, layout);
	}
}

/*
 * Get spare memory, to which twins (copies with probes) in replays (launches of graphs) write that find no room for
 * results; without it the originals run.
 */
static void get_spare_memory(struct exec *exec)
{
	if (!nt_graph_layout_records(exec->layout) || nt_graph_memory_spare(exec->memory, exec->layout->size))
		return;
	nt_event_note("graph %u: no device memory for its maps: its kernels run unprobed", exec->layout->graph);
	put_originals_back(exec);
}

/*
 * After an executable graph has got a layout (what its kernel nodes run): get spare memory for it, and write its event.
 */
static void complete_layout(struct exec *exec)
{
	get_spare_memory(exec);
	log_layout(exec->layout);
}

/*
 * The layout (what its kernel nodes run) of an executable graph, to be changed: a copy of it once a replay (launch of a
 * graph) has used it. NULL without memory.
 */
static struct nt_layout *changeable_layout(struct exec *exec)
{
	struct nt_layout *layout = exec->layout;

	if (!layout->replays && !layout->replays_full && !layout->replays_left_out)
		return layout;
	layout = nt_graph_layout_copy(layout);
	if (layout)
		use_layout(exec, layout);
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
	struct exec *exec = is_supported() ? nt_memory_alloc_zeroed(1, sizeof(*exec)) : NULL;
	struct nt_graph_target *target;
	struct nt_pool *pool = NULL;

	if (!exec)
		return;
	struct change change = begin_change();
	exec->handle.handle = handle;
	target = &exec->target;
	target->exec = handle;
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
		use_layout(exec, layout);
		complete_layout(exec);
		nt_lock_take(&mutex);
		if (nt_handles_put(&exec_table, &exec->handle)) {
			exec->next = execs;
			execs = exec;
			exec = NULL;
		}
		nt_lock_release(&mutex);
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
	struct exec *exec = find_exec(handle);
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
		use_layout(exec, layout);
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
	struct exec *exec = find_exec(handle);
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
	struct exec *exec = find_exec(handle);
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
	struct exec *exec = find_exec(handle);
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
		nt_graph_layout_add_bodies(node, graph, parameters);
}

/* Free the record of an executable graph, once no reader can have it any more: nt_grace_retire calls it. */
static void release_exec(struct nt_retired *record)
{
	nt_memory_free((char *)record - offsetof(struct exec, retired));
}

/*
 * Take an executable graph out of the list and the table; it is freed once no thread can be using it. Under the lock.
 */
static void remove_exec(struct exec *exec)
{
	for (struct exec **link = &execs; *link; link = &(*link)->next)
		if (*link == exec) {
			*link = exec->next;
			break;
		}
	nt_handles_remove(&exec_table, &exec->handle);
	__atomic_store_n(&exec->layout->is_retired, 1, __ATOMIC_RELEASE);
	nt_grace_retire(&exec->retired, release_exec);
}

/* Before the program destroys an executable graph: forget it. */
void nt_graph_exec_ends(CUgraphExec handle)
{
	uint32_t *reading = nt_grace_reading_begin();
	struct exec *exec = find_exec(handle);

	if (exec) {
		nt_lock_take(&mutex);
		remove_exec(exec);
		nt_lock_release(&mutex);
		if (exec->event)
			nt_driver.cuEventDestroy_v2(exec->event);
	}
	nt_grace_reading_end(reading);
}

/* A context is destroyed: forget the executable graphs in it, and their device memory. */
void nt_graph_context_ends(CUcontext context)
{
	nt_lock_take(&mutex);
	for (struct exec *exec = execs, *next; exec; exec = next) {
		next = exec->next;
		if (exec->target.context == context)
			remove_exec(exec);
	}
	nt_lock_release(&mutex);
	nt_graph_memory_forget(context);
}

/* --- replays --- */

/* A stream's number, which no other stream ever gets, not even at the same address; 0 if the driver has none. */
static uint64_t stream_id(CUstream stream)
{
	unsigned long long id = 0;

	return nt_driver.cuStreamGetId && nt_driver.cuStreamGetId(stream, &id) == CUDA_SUCCESS ? id : 0;
}

/*
 * Make the stream wait for the last replay (launch) of an executable graph, also in another stream: our write of where
 * results go comes before the driver's own wait. False if it cannot.
 */
static bool follow_last(struct exec *exec, CUstream stream, uint64_t id)
{
	if (!exec->has_run || (id && id == exec->last_stream))
		return true;
	return exec->is_recorded && nt_driver.cuStreamWaitEvent(stream, exec->event, 0) == CUDA_SUCCESS;
}

/* Take and fill in the launch record of a replay (launch of a graph); *index gets its number. NULL if there is none. */
static struct neutrino_launch *add_record(const struct exec *exec, const struct nt_pool *pool, CUstream stream,
					   uint64_t *index)
{
	struct neutrino_launch *record = nt_records_take(index);

	if (!record)
		return NULL;
	record->kernel = NEUTRINO_NO_KERNEL;
	record->graph = exec->layout->graph;
	record->context = (uint64_t)(uintptr_t)exec->target.context;
	record->stream = (uint64_t)(uintptr_t)stream;
	record->submit_ns = nt_clock_now_ns();
	record->device = (uint32_t)nt_pools_device(pool);
	record->thread = nt_thread_id();
	__atomic_store_n(&record->state, NEUTRINO_LAUNCH_SUBMITTED, __ATOMIC_RELEASE);
	return record;
}

/*
 * Have the kernels whose launches in the next replay (launch of the graph) are chosen run their twins (copies with
 * probes), and the others their originals; with is_original all of them these. Returns whether any is chosen.
 */
static bool choose_kernels(struct exec *exec, bool is_original)
{
	enum nt_chosen chosen = is_original ? NT_CHOSEN_NONE : nt_graph_choice_ask(exec->layout);
	struct nt_layout *layout = chosen == NT_CHOSEN_OTHERS ? nt_graph_choice_leave_out(exec->layout) : NULL;

	if (layout)
		use_layout(exec, layout);
	else if (chosen == NT_CHOSEN_OTHERS)
		chosen = NT_CHOSEN_NONE; /* without memory */
	if (!nt_graph_choice_swap(&exec->target, exec->layout, chosen != NT_CHOSEN_NONE)) {
		layout = nt_graph_choice_drop(exec->layout);
		if (layout)
			use_layout(exec, layout);
		else
			chosen = NT_CHOSEN_NONE;
	}
	return chosen != NT_CHOSEN_NONE;
}

/*
 * Launch an executable graph that has twins (copies with probes) in it, with memory for their results if there is some.
 * real: the driver's function; is_chosen: whether any of its kernels' launches is chosen.
 */
static CUresult launch_with_twins(struct exec *exec, CUstream stream, bool per_thread,
				  CUresult (*real)(CUgraphExec, CUstream), bool is_chosen)
{
	CUresult (*write)(CUstream, CUdeviceptr, uint64_t, unsigned) =
		nt_driver.cuStreamWriteValue64_v2 ? nt_driver.cuStreamWriteValue64_v2 : nt_driver.cuStreamWriteValue64;
	struct nt_layout *layout = exec->layout;
	uint64_t size = layout->size;
	CUstream given = stream;
	struct nt_room room;
	struct neutrino_launch *record = NULL;
	uint64_t index = 0;

	stream = nt_launch_explicit_stream(stream, per_thread);
	struct nt_pool *pool = nt_launch_is_ended() ? NULL : nt_pools_find(exec->target.context);
	bool has_room = pool && is_chosen && layout->probed && nt_room_take(pool, stream, size, &room) == NT_ROOM;
	if (has_room) {
		record = add_record(exec, pool, stream, &index);
		if (!record) {
			nt_room_submitted(&room, NULL, NULL, 0, size, false);
			has_room = false;
		}
	}
	uint64_t base = has_room ? room.address : nt_graph_memory_spare_address(exec->memory);
	/* What cannot be recorded must not run: its twins would write where an earlier replay did. */
	uint64_t id = stream_id(stream);
	bool is_set = nt_own_memory_is_memusage ||
		      (follow_last(exec, stream, id) && write(stream, exec->target.cell, base, 0) == CUDA_SUCCESS);
	if (!is_set)
		put_originals_back(exec);
	if (is_set && has_room)
		__atomic_add_fetch(&layout->in_flight, 1, __ATOMIC_ACQ_REL);
	CUresult result = real(exec->handle.handle, given);
	/* Each time: later this stream may be gone, or be captured, or be another thread's. */
	exec->is_recorded = !nt_own_memory_is_memusage && nt_driver.cuEventRecord(exec->event, stream) == CUDA_SUCCESS;
	exec->last_stream = id;
	exec->has_run = true;
	bool is_launched = is_set && result == CUDA_SUCCESS;
	if (is_launched)
		__atomic_add_fetch(!is_chosen ? &layout->replays_left_out
				   : has_room ? &layout->replays
					      : &layout->replays_full,
				   1, __ATOMIC_RELEASE);
	/* put_originals_back has made another layout, in which the originals run. */
	if (!is_set && result == CUDA_SUCCESS)
		__atomic_add_fetch(is_chosen ? &exec->layout->replays : &exec->layout->replays_left_out, 1, __ATOMIC_RELEASE);
	if (has_room) {
		if (!is_launched)
			__atomic_store_n(&record->state, NEUTRINO_LAUNCH_FALLBACK, __ATOMIC_RELEASE);
		if (is_set && !is_launched)
			__atomic_sub_fetch(&layout->in_flight, 1, __ATOMIC_ACQ_REL);
		nt_room_submitted(&room, NULL, layout, index, size, is_launched);
	}
	return result;
}

/*
 * With --benchmark: draw whether the next replay (launch) of a graph runs originals or twins (copies with probes).
 * False if it is not timed.
 */
static bool draw_replay(const struct exec *exec, CUstream stream, bool per_thread, struct nt_timing *timing)
{
	timing->pool = nt_launch_is_ended() || nt_choice_is_off() ? NULL : nt_pools_find(exec->target.context);
	if (!timing->pool || !exec->layout->probed)
		return false;
	timing->sample.kernel = NEUTRINO_NO_KERNEL;
	timing->sample.graph = exec->layout->graph;
	timing->sample.stream = (uint64_t)(uintptr_t)nt_launch_explicit_stream(stream, per_thread);
	nt_benchmark_draw(timing);
	return true;
}

/*
 * Launch an executable graph, whose nodes have what is to run, and count that replay. is_chosen: whether any of its
 * kernels' launches is chosen. Returns the driver's result.
 */
static CUresult launch_exec(struct exec *exec, CUstream stream, bool per_thread,
			    CUresult (*real)(CUgraphExec, CUstream), bool is_chosen)
{
	if (nt_graph_layout_records(exec->layout))
		return launch_with_twins(exec, stream, per_thread, real, is_chosen);
	CUresult result = real(exec->handle.handle, stream);
	if (result == CUDA_SUCCESS)
		__atomic_add_fetch(is_chosen ? &exec->layout->replays : &exec->layout->replays_left_out, 1,
				   __ATOMIC_RELEASE);
	return result;
}

/* Launch an executable graph with --benchmark, timed between two events; as run otherwise. */
static CUresult run_timed(struct exec *exec, CUstream stream, bool per_thread, CUresult (*real)(CUgraphExec, CUstream),
			  bool is_chosen, struct nt_timing *timing)
{
	const struct nt_layout *layout = exec->layout;
	uint64_t replays = __atomic_load_n(&layout->replays, __ATOMIC_RELAXED);
	bool is_drawn = timing->is_probed ? is_chosen && layout->twins >= layout->probed : !layout->twins;

	nt_benchmark_begin(timing);
	CUresult result = launch_exec(exec, stream, per_thread, real, is_chosen);
	/* Twins that found no room, or whose originals were put back, were not what was drawn. */
	bool is_recorded = exec->layout == layout && __atomic_load_n(&layout->replays, __ATOMIC_RELAXED) == replays + 1;
	nt_benchmark_end(timing, result == CUDA_SUCCESS && is_drawn && (is_recorded || !timing->is_probed));
	return result;
}

/*
 * Launch an executable graph with its twins (copies with probes), and record it; returns the driver's result for the
 * program. On the launch path.
 */
CUresult nt_graph_launch(CUgraphExec handle, CUstream stream, bool per_thread)
{
	CUresult (*real)(CUgraphExec, CUstream) = per_thread ? nt_driver.cuGraphLaunch_ptsz : nt_driver.cuGraphLaunch;
	CUresult result;

	if (nt_mode_of_process() < NT_TRACING)
		return real(handle, stream);
	nt_quiet_launch_begins();
	uint32_t *reading = nt_grace_reading_begin();
	struct exec *exec = find_exec(handle);
	if (!exec)
		nt_launch_unknown(1, !nt_choice_is_off()); /* instantiated before the hook was loaded */
	/* In a capture: the driver refuses the launch, but would accept the write to the cell. */
	if (!exec || nt_launch_is_captured(stream, per_thread)) {
		result = real(handle, stream);
	} else {
		bool is_benchmark = nt_benchmark_is_set();
		struct nt_timing timing;
		if (is_benchmark)
			timing = (struct nt_timing){0};
		bool is_timed = is_benchmark && draw_replay(exec, stream, per_thread, &timing);
		bool is_chosen = (!is_benchmark && !nt_choice_is_by_launch()) ||
				 choose_kernels(exec, is_timed && !timing.is_probed);
		result = is_timed ? run_timed(exec, stream, per_thread, real, is_chosen, &timing)
				  : launch_exec(exec, stream, per_thread, real, is_chosen);
	}
	nt_grace_reading_end(reading);
	nt_quiet_launch_ends();
	return result;
}

/*
 * Count the launches of a layout's kernels in those of so many replays of one sort that are not counted yet. reason:
 * PROBED, or why no twin (copy with probes) of the layout ran, or was recorded, in them.
 */
static void count_replays(const struct nt_layout *layout, const uint64_t *replays, uint64_t *counted,
			  enum neutrino_reason reason)
{
	uint64_t now = __atomic_load_n(replays, __ATOMIC_ACQUIRE), added = now - *counted;

	*counted = now;
	if (!added)
		return;
	for (size_t i = 0; i < layout->count; i++) {
		const struct nt_graph_node *node = &layout->nodes[i];
		if (node->is_disabled)
			continue;
		bool is_chosen = !node->is_left_out && reason != NEUTRINO_REASON_NOT_SELECTED;
		if (!node->kernel)
			nt_launch_unknown(added, is_chosen);
		else if (!is_chosen)
			nt_counters_count_many(node->kernel->id, NEUTRINO_REASON_NOT_SELECTED, added);
		else
			nt_counters_count_many(node->kernel->id, node->reason ? node->reason : reason, added);
	}
}

/*
 * Bring the trace's launch counters up to date with the replays (launches) of graphs so far, and free layouts (what
 * graphs' nodes run) that are no longer used. By the drain thread (it fetches results) from time to time, and at the
 * end.
 */
void nt_graph_count_all(void)
{
	nt_lock_take(&mutex);
	for (struct nt_layout **link = &layouts; *link;) {
		struct nt_layout *layout = *link;
		bool is_retired = __atomic_load_n(&layout->is_retired, __ATOMIC_ACQUIRE) &&
				  !__atomic_load_n(&layout->in_flight, __ATOMIC_ACQUIRE);
		count_replays(layout, &layout->replays, &layout->counted, NEUTRINO_REASON_PROBED);
		count_replays(layout, &layout->replays_full, &layout->counted_full, NEUTRINO_REASON_POOL_FULL);
		count_replays(layout, &layout->replays_left_out, &layout->counted_left_out, NEUTRINO_REASON_NOT_SELECTED);
		if (!is_retired) {
			link = &layout->next;
			continue;
		}
		*link = layout->next;
		nt_graph_layout_free(layout);
	}
	nt_lock_release(&mutex);
}
