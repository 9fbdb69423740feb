#include "launch/launch.h"

#include <string.h>
#include <unistd.h>

#include "base/captures.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/mode.h"
#include "base/quiet.h"
#include "base/thread.h"
#include "drain/benchmark.h"
#include "drain/drain.h"
#include "image/backend.h"
#include "image/choice.h"
#include "image/registry.h"
#include "image/requests.h"
#include "memory/greens.h"
#include "memory/own_memory.h"
#include "trace/counters.h"
#include "trace/trace.h"

NT_HOT static int ended;

/* End the trace for launches: from now on every launch runs the original. */
void nt_launch_end(void)
{
	__atomic_store_n(&ended, 1, __ATOMIC_RELEASE);
}

/* Whether launches are recorded no more, since the trace has ended. */
bool nt_launch_is_ended(void)
{
	return __atomic_load_n(&ended, __ATOMIC_ACQUIRE);
}

/*
 * Count launches of functions that the program has not obtained through us, all as kernel 0. is_chosen: they came while
 * recording was on.
 */
void nt_launch_unknown(uint64_t launches, bool is_chosen)
{
	static int logged;

	/* Kernel 0 stands for all of them. Its event is written once, after the trace has begun. */
	nt_counters_count_many(0, is_chosen ? NEUTRINO_REASON_LAUNCH_FORM : NEUTRINO_REASON_NOT_SELECTED, launches);
	if (__atomic_load_n(&logged, __ATOMIC_RELAXED) || !nt_path_of_trace()[0] ||
	    __atomic_exchange_n(&logged, 1, __ATOMIC_ACQ_REL))
		return;
	struct nt_event event;
	nt_event_begin(&event, "kernel");
	nt_event_number(&event, "id", 0);
	nt_event_number(&event, "image", 0);
	nt_event_string(&event, "name", "(kernels that were loaded before Neutrino)");
	nt_event_string(&event, "reason", "launch-form");
	nt_event_string(&event, "detail", "");
	nt_lines_event(&event);
}

/*
 * Launch the program's own function as the program asked for it, and count it under the reason why not its twin (copy
 * with probes).
 */
static CUresult run_original(const struct nt_function *function, const struct nt_launch *launch,
			     enum neutrino_reason reason)
{
	nt_counters_count(function->kernel->id, reason);
	return launch->submit(launch, function->handle.handle, launch->parameters, launch->extra);
}

/*
 * The program begins to capture a stream: what is launched in it is counted when its graph is launched. Waits shortly
 * for calls of our own that would end the capture.
 */
void nt_launch_capture_begins(void)
{
	/* Before the other: see nt_quiet_record. */
	__atomic_add_fetch(&nt_captures, 1, __ATOMIC_SEQ_CST);
	nt_quiet_capture_begins();
	nt_drain_thread_pass();
}

/* The program has ended a capture of a stream. */
void nt_launch_capture_ends(void)
{
	/* One may have begun before the hook was loaded. */
	if (__atomic_sub_fetch(&nt_captures, 1, __ATOMIC_RELAXED) < 0)
		__atomic_store_n(&nt_captures, 0, __ATOMIC_RELAXED);
}

/*
 * Ask the driver whether a stream is being captured: its answer in *captured, its result as the result. per_thread:
 * stream 0 is the thread's own.
 */
static CUresult ask_captured(CUstream stream, bool per_thread, bool *captured)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = per_thread && nt_driver.cuStreamIsCapturing_ptsz
				  ? nt_driver.cuStreamIsCapturing_ptsz(stream, &status)
				  : nt_driver.cuStreamIsCapturing(stream, &status);

	/* For the legacy stream, this error means that another stream is being captured. */
	*captured = result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || (!result && status != CU_STREAM_CAPTURE_STATUS_NONE);
	return result;
}

/* Whether a launch's stream is being captured. per_thread: stream 0 is the thread's own. */
bool nt_launch_is_captured(CUstream stream, bool per_thread)
{
	bool captured;

	ask_captured(stream, per_thread, &captured);
	return captured;
}

/* The context that a launch runs in: a CUfunction's own, or for a CUkernel that of the stream, or the current one. */
static CUcontext context_of(const struct nt_function *function, const struct nt_launch *launch)
{
	CUcontext context = NULL;

	if (!function->is_kernel)
		return function->context;
	/* The handles up to CU_STREAM_PER_THREAD are default streams, which each context has. */
	if ((uintptr_t)launch->stream > (uintptr_t)CU_STREAM_PER_THREAD && nt_driver.cuStreamGetCtx &&
	    nt_driver.cuStreamGetCtx(launch->stream, &context) == CUDA_SUCCESS)
		return context;
	nt_driver.cuCtxGetCurrent(&context);
	return context;
}

/*
 * Whether a launch runs on a device that --device has not chosen. That of a CUfunction always runs in its own context,
 * which was asked for when it was obtained.
 */
static bool is_elsewhere(const struct nt_function *function, const struct nt_launch *launch)
{
	return function->is_kernel && nt_choice_is_by_device() && !nt_choice_has_context(context_of(function, launch));
}

/*
 * Take the number of a launch that is no node of a graph: NOT_SELECTED if it is not chosen for probing, else reason,
 * the function's. Lock-free.
 */
enum neutrino_reason nt_launch_chosen(const struct nt_function *function, const struct nt_launch *launch,
				      enum neutrino_reason reason)
{
	if (!nt_choice_is_set())
		return reason;
	if (reason == NEUTRINO_REASON_NOT_SELECTED || is_elsewhere(function, launch) ||
	    nt_choice_is_off() || (nt_choice_is_by_launch() && !nt_choice_take(function->kernel)))
		return NEUTRINO_REASON_NOT_SELECTED;
	return reason;
}

/* Whether a launch is not chosen, as far as that is certain even if it is a node of a graph. Takes its number if so. */
static bool is_passed(const struct nt_function *function, const struct nt_launch *launch, enum neutrino_reason reason)
{
	return reason != NEUTRINO_REASON_NOT_SELECTED && !__atomic_load_n(&nt_captures, __ATOMIC_RELAXED) &&
	       (is_elsewhere(function, launch) ||
		nt_choice_passes(function->kernel));
}

/*
 * Whether a launch of a function outside of captures runs the original for certain; *reason gets why. Takes its number
 * if it is not chosen.
 */
static inline bool is_certain(const struct nt_function *function, enum neutrino_reason *reason)
{
	*reason = nt_function_reason(function);
	if (NT_UNLIKELY(*reason == NEUTRINO_REASON_NOT_READY))
		return false;
	if (*reason == NEUTRINO_REASON_NOT_SELECTED || !nt_choice_is_set())
		return *reason != NEUTRINO_REASON_PROBED;
	if (!nt_choice_passes(function->kernel))
		return false;
	*reason = NEUTRINO_REASON_NOT_SELECTED;
	return true;
}

uint32_t nt_launch_passed;

/*
 * Look up the function of a launch. If it is certain by that alone that the launch runs the original, count it: then
 * nt_launch_passes(result), and it only goes to the driver. Else the result has the function, and the reading section
 * that was begun for it; NULL for both if nothing was looked up. Most launches of most programs pass: it takes few
 * instructions and touches little memory.
 */
NT_HOT_PATH struct nt_found nt_launch_find(CUfunction handle)
{
	uint32_t thread = nt_grace_thread_own;
	enum neutrino_reason reason;

	if (NT_UNLIKELY(nt_mode_of_process() < NT_TRACING || nt_quiet_counts || nt_launch_is_ended() ||
			nt_choice_is_by_device() || __atomic_load_n(&nt_captures, __ATOMIC_RELAXED) ||
			!nt_grace_owns_shard(thread)))
		return (struct nt_found){NULL, NULL};
	uint32_t *reading = nt_grace_reading_begin_own(thread);
	struct nt_function *function = nt_function_find(handle);
	if (NT_UNLIKELY(!function || !is_certain(function, &reason)))
		return (struct nt_found){reading, function};
	nt_counters_count_own(function->counters, thread, function->kernel_id, reason, 1);
	nt_grace_reading_end_own(reading);
	return (struct nt_found){&nt_launch_passed, NULL};
}

/*
 * Contexts that are, or were, prepared in a thread of their own: those in which a kernel is launched before any other call
 * has shown them. The launch itself must not do it: allocating may wait for work on the device that waits for the program.
 */
enum { PREPARATIONS = 64 };
static struct preparation {
	CUcontext context;
	int is_running;
} preparations[PREPARATIONS];

/*
 * Main function of a thread that prepares one context for probed launches (argument: its struct preparation), then
 * ends.
 */
static void *prepare_context(void *argument)
{
	struct preparation *preparation = argument;
	CUcontext context = __atomic_load_n(&preparation->context, __ATOMIC_ACQUIRE), popped;

	if (nt_driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
		nt_registry_prepare_context(context);
		nt_driver.cuCtxPopCurrent_v2(&popped);
	}
	__atomic_store_n(&preparation->is_running, 0, __ATOMIC_RELEASE);
	return NULL;
}

/*
 * Start a thread that prepares a context for probed launches, unless that was done before. On the launch path, at most
 * once per context.
 */
static void start_preparation(CUcontext context)
{
	struct preparation *preparation = NULL;

	if (!context)
		return;
	/* All rows first: one before the context's own may have become free. */
	for (int i = 0; i < PREPARATIONS; i++)
		if (__atomic_load_n(&preparations[i].context, __ATOMIC_ACQUIRE) == context)
			return;
	/* Take the first free row, unless another thread takes one for this context at the same time. */
	for (int i = 0; i < PREPARATIONS && !preparation; i++) {
		CUcontext row_context = NULL;
		if (__atomic_compare_exchange_n(&preparations[i].context, &row_context, context, false, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			preparation = &preparations[i];
		else if (row_context == context)
			return;
	}
	if (!preparation)
		return; /* more contexts than rows: kernels of this one run unprobed */
	__atomic_store_n(&preparation->is_running, 1, __ATOMIC_RELEASE);
	if (!nt_thread_start(prepare_context, preparation, NULL)) {
		__atomic_store_n(&preparation->is_running, 0, __ATOMIC_RELEASE);
		nt_lines_note("context %p could not be prepared: its kernels run unprobed", context);
	}
}

/*
 * Just before the program destroys a context: forget that it was prepared, as a new one may get its address. Waits for
 * the thread that prepares it, so many milliseconds at most.
 */
void nt_launch_forget_context(CUcontext context, unsigned milliseconds)
{
	uint64_t deadline = nt_clock_now_ns() + (uint64_t)milliseconds * 1000000;

	for (int i = 0; i < PREPARATIONS; i++) {
		if (__atomic_load_n(&preparations[i].context, __ATOMIC_ACQUIRE) != context)
			continue;
		while (__atomic_load_n(&preparations[i].is_running, __ATOMIC_ACQUIRE) && nt_clock_now_ns() < deadline)
			nt_clock_sleep_us(200);
		__atomic_store_n(&preparations[i].context, NULL, __ATOMIC_RELEASE);
	}
}

/* The stream that a call means: for 0 the explicit handle of the default stream, with per_thread the thread's own. */
CUstream nt_launch_explicit_stream(CUstream stream, bool per_thread)
{
	if (stream)
		return stream;
	return per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

/*
 * Whether the launch of a kernel's copy with probes may have failed because of the probe, so that the original must be
 * tried. Any other error is the program's.
 */
static bool may_be_caused_by_probe(CUresult result)
{
	return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES ||
	       result == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

/* Compute a launch's extent (blocks, warps, ...). PROBED, or the reason to run the original. */
enum neutrino_reason nt_launch_extent(const struct nt_launch *launch, const struct nt_kernel *kernel, struct nt_extent *ret)
{
	switch (nt_regions_extent(launch->grid, launch->block, kernel->lanes, ret)) {
	case NT_EXTENT:
		return NEUTRINO_REASON_PROBED;
	case NT_EXTENT_TOO_LARGE:
		return NEUTRINO_REASON_MAP_SIZE;
	case NT_EXTENT_INVALID: /* the driver will refuse it: there is nothing to probe */
		break;
	}
	return NEUTRINO_REASON_REFUSED;
}

/* Take and fill in the launch's record in launches.bin; *index gets its number. NULL if the table is full. */
static struct neutrino_launch *add_record(const struct nt_attempt *attempt, uint64_t *index)
{
	const struct nt_launch *launch = attempt->launch;
	struct neutrino_launch *record = nt_records_take(index);

	if (!record)
		return NULL;
	record->kernel = attempt->function->kernel->id;
	record->context = (uint64_t)(uintptr_t)attempt->context;
	record->stream = (uint64_t)(uintptr_t)launch->stream;
	record->submit_ns = nt_clock_now_ns();
	memcpy(record->grid, launch->grid, sizeof(record->grid));
	memcpy(record->block, launch->block, sizeof(record->block));
	record->shared = launch->shared;
	record->device = (uint32_t)nt_pools_device(attempt->pool);
	record->thread = nt_thread_id();
	record->variant = attempt->variant;
	record->log_units = attempt->extent.log_units;
	record->lanes = attempt->extent.lanes;
	__atomic_store_n(&record->state, NEUTRINO_LAUNCH_SUBMITTED, __ATOMIC_RELEASE);
	return record;
}

/*
 * Launch the twin (copy with probes), and record it; or the original if that is not possible. reason: PROBED, or why the
 * twin cannot run. Sets attempt->is_submitted. The memory pool is found, the code is chosen, and room for the results is
 * taken before.
 */
static CUresult run_twin(struct nt_attempt *attempt, enum neutrino_reason reason)
{
	struct nt_function *function = attempt->function;
	const struct nt_launch *launch = attempt->launch;
	struct nt_kernel *kernel = function->kernel;
	uint64_t index;

	/* Not while its pool is made, or is given up because the context is another one now. */
	if (reason == NEUTRINO_REASON_CONTEXT && (attempt->pool || !nt_pools_has(attempt->context)))
		start_preparation(attempt->context);
	if (reason != NEUTRINO_REASON_PROBED)
		return run_original(function, launch, reason);
	struct neutrino_launch *record = add_record(attempt, &index);
	if (!record) {
		/* The room must be given back, as that of a launch that was not submitted. */
		nt_room_submitted(&attempt->room, kernel, NULL, 0, attempt->size, false);
		return run_original(function, launch, NEUTRINO_REASON_TABLE_FULL);
	}

	CUresult result = nt_own_memory_is_memusage
				  ? launch->submit(launch, function->handle.handle, launch->parameters, launch->extra)
				  : kernel->backend->submit(attempt);
	/* Before nt_room_submitted, after which the drain thread may complete the record. */
	if (result != CUDA_SUCCESS)
		__atomic_store_n(&record->state, NEUTRINO_LAUNCH_FALLBACK, __ATOMIC_RELEASE);
	nt_room_submitted(&attempt->room, kernel, NULL, index, attempt->size, result == CUDA_SUCCESS);
	if (result == CUDA_SUCCESS) {
		attempt->is_submitted = true;
		nt_counters_count(kernel->id, NEUTRINO_REASON_PROBED);
		return result;
	}
	if (may_be_caused_by_probe(result) && !nt_own_memory_is_memusage)
		return run_original(function, launch, NEUTRINO_REASON_REFUSED);
	nt_counters_count(kernel->id, NEUTRINO_REASON_REFUSED);
	return result;
}

/*
 * With --benchmark: draw what a launch runs that can be probed. Returns whether it is the twin (copy with probes). Not
 * inlined: launches that are not timed keep their stack.
 */
static __attribute__((noinline)) bool draw(const struct nt_attempt *attempt, struct nt_timing *timing)
{
	const struct nt_launch *launch = attempt->launch;

	*timing = (struct nt_timing){.pool = attempt->pool};
	timing->sample.kernel = attempt->function->kernel->id;
	timing->sample.stream = (uint64_t)(uintptr_t)attempt->stream;
	timing->sample.shared = launch->shared;
	memcpy(timing->sample.grid, launch->grid, sizeof(timing->sample.grid));
	memcpy(timing->sample.block, launch->block, sizeof(timing->sample.block));
	nt_benchmark_draw(timing);
	timing->sample.variant = timing->is_probed ? attempt->variant : 0;
	return timing->is_probed;
}

/*
 * Launch a function with its probes, or the original if that is not possible, counted with the reason; returns the
 * driver's result for the program. Lock-free, from any thread, in a reading section (what is found in it is not freed).
 * docs/architecture.md describes the steps in "The path of a launch".
 */
CUresult nt_launch(struct nt_function *function, const struct nt_launch *launch)
{
	struct nt_kernel *kernel = function->kernel;
	/* Once: it may change meanwhile. */
	enum neutrino_reason reason = nt_function_reason(function);

	if (nt_launch_is_ended())
		return run_original(function, launch,
				    nt_launch_chosen(function, launch, reason) == NEUTRINO_REASON_NOT_SELECTED
					    ? NEUTRINO_REASON_NOT_SELECTED
					    : NEUTRINO_REASON_ENDING);
	if (reason == NEUTRINO_REASON_NOT_READY && nt_requests_is_due(function) && !is_elsewhere(function, launch))
		nt_requests_add(function, context_of(function, launch));
	if (nt_choice_is_set() && is_passed(function, launch, reason))
		return run_original(function, launch, NEUTRINO_REASON_NOT_SELECTED);
	bool is_probed = reason == NEUTRINO_REASON_PROBED, captured = false;
	CUresult asked = CUDA_SUCCESS;
	if (is_probed || __atomic_load_n(&nt_captures, __ATOMIC_RELAXED))
		asked = ask_captured(launch->stream, launch->per_thread, &captured);
	/* Not a launch, but a node of a graph: graph.c counts it whenever the graph is launched. */
	if (captured)
		return launch->submit(launch, function->handle.handle, launch->parameters, launch->extra);
	reason = nt_launch_chosen(function, launch, reason);
	if (reason != NEUTRINO_REASON_PROBED)
		return run_original(function, launch, reason);
	struct nt_attempt attempt = {
		.function = function,
		.launch = launch,
		.stream = nt_launch_explicit_stream(launch->stream, launch->per_thread),
	};
	reason = asked ? NEUTRINO_REASON_REFUSED : nt_launch_extent(launch, kernel, &attempt.extent);
	if (reason != NEUTRINO_REASON_PROBED)
		return run_original(function, launch, reason);

	attempt.context = context_of(function, launch);
	attempt.pool = nt_pools_find(attempt.context);
	if (!attempt.pool && nt_greens_has(attempt.context))
		return run_original(function, launch, NEUTRINO_REASON_LAUNCH_FORM);
	reason = attempt.pool ? kernel->backend->choose(&attempt) : NEUTRINO_REASON_CONTEXT;
	struct nt_timing timing;
	bool is_timed = nt_benchmark_is_set() && reason == NEUTRINO_REASON_PROBED;
	if (is_timed && !draw(&attempt, &timing)) {
		nt_benchmark_begin(&timing);
		CUresult result = run_original(function, launch, NEUTRINO_REASON_NOT_SELECTED);
		nt_benchmark_end(&timing, result == CUDA_SUCCESS);
		return result;
	}
	if (reason == NEUTRINO_REASON_PROBED)
		reason = nt_backend_take_room(&attempt);
	/* After waits for room, which are not the kernel's time. */
	if (is_timed)
		nt_benchmark_begin(&timing);
	CUresult result = run_twin(&attempt, reason);
	if (is_timed)
		nt_benchmark_end(&timing, attempt.is_submitted);
	return result;
}
