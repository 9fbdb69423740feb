#include "graph/graph_replay.h"

#include "base/clock.h"
#include "base/grace.h"
#include "base/mode.h"
#include "base/quiet.h"
#include "base/thread.h"
#include "drain/benchmark.h"
#include "graph/graph_choice.h"
#include "graph/graph_exec.h"
#include "image/choice.h"
#include "image/sets.h"
#include "launch/launch.h"
#include "memory/own_memory.h"
#include "memory/pool.h"
#include "trace/trace.h"

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
static bool follow_last(struct nt_graph_exec *exec, CUstream stream, uint64_t id)
{
	if (!exec->has_run || (id && id == exec->last_stream))
		return true;
	return exec->is_recorded && nt_driver.cuStreamWaitEvent(stream, exec->event, 0) == CUDA_SUCCESS;
}

/* Take and fill in the launch record of a replay (launch of a graph); *index gets its number. NULL if there is none. */
static struct neutrino_launch *add_record(const struct nt_graph_exec *exec, const struct nt_pool *pool, CUstream stream,
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
static bool choose_kernels(struct nt_graph_exec *exec, bool is_original)
{
	enum nt_chosen chosen = is_original ? NT_CHOSEN_NONE : nt_graph_choice_ask(exec->layout);
	struct nt_layout *layout = chosen == NT_CHOSEN_OTHERS ? nt_graph_choice_leave_out(exec->layout) : NULL;

	if (layout)
		nt_graph_exec_use(exec, layout);
	else if (chosen == NT_CHOSEN_OTHERS)
		chosen = NT_CHOSEN_NONE; /* without memory */
	if (!nt_graph_choice_swap(&exec->target, exec->layout, chosen != NT_CHOSEN_NONE)) {
		layout = nt_graph_choice_drop(exec->layout);
		if (layout)
			nt_graph_exec_use(exec, layout);
		else
			chosen = NT_CHOSEN_NONE;
	}
	return chosen != NT_CHOSEN_NONE;
}

/*
 * Before a replay (launch of a graph): have the kernels run their twins (copies with probes) of the set of probes in force.
 * Allocates no device memory, since the device may wait for the program.
 */
static void change_set(struct nt_graph_exec *exec)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	struct nt_layout *layout = nt_graph_layout_for_set(&exec->target, exec->layout, nt_sets_number_now());
	/* Without memory it is recorded for the set that it was made for. */
	if (layout)
		nt_graph_exec_use(exec, layout);
	if (layout && (layout->probed || nt_graph_layout_records(layout)) &&
	    !nt_graph_memory_has_spare(exec->memory, layout->size)) {
		nt_lines_note("graph %u: no device memory for its maps with other probes: its kernels run unprobed", layout->graph);
		nt_graph_exec_put_originals_back(exec);
	}
	if (layout)
		nt_graph_exec_log(exec->layout);
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
}

/*
 * Launch an executable graph that has twins (copies with probes) in it, with memory for their results if there is some.
 * real: the driver's function; is_chosen: whether any of its kernels' launches is chosen.
 */
static CUresult launch_with_twins(struct nt_graph_exec *exec, CUstream stream, bool per_thread,
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
		nt_graph_exec_put_originals_back(exec);
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
static bool draw_replay(const struct nt_graph_exec *exec, CUstream stream, bool per_thread, struct nt_timing *timing)
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
static CUresult launch_exec(struct nt_graph_exec *exec, CUstream stream, bool per_thread,
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
static CUresult run_timed(struct nt_graph_exec *exec, CUstream stream, bool per_thread, CUresult (*real)(CUgraphExec, CUstream),
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
CUresult nt_graph_replay_launch(CUgraphExec handle, CUstream stream, bool per_thread)
{
	CUresult (*real)(CUgraphExec, CUstream) = per_thread ? nt_driver.cuGraphLaunch_ptsz : nt_driver.cuGraphLaunch;
	CUresult result;

	if (nt_mode_of_process() < NT_TRACING)
		return real(handle, stream);
	nt_quiet_launch_begins();
	uint32_t *reading = nt_grace_reading_begin();
	struct nt_graph_exec *exec = nt_graph_exec_find(handle);
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
		if (NT_UNLIKELY(exec->layout->set != nt_sets_number_now()) && !nt_choice_is_off())
			change_set(exec);
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
