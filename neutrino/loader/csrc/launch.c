#include "launch.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend.h"
#include "trace.h"

static int ended;

void nt_launch_end(void)
{
	__atomic_store_n(&ended, 1, __ATOMIC_RELEASE);
}

void nt_launch_unknown(void)
{
	static int logged;

	nt_trace_count(0, NEUTRINO_REASON_LAUNCH_FORM);
	if (__atomic_load_n(&logged, __ATOMIC_RELAXED) || !nt_trace_path()[0] ||
	    __atomic_exchange_n(&logged, 1, __ATOMIC_ACQ_REL))
		return;
	struct nt_event event;
	nt_event_begin(&event, "kernel");
	nt_event_number(&event, "id", 0);
	nt_event_number(&event, "image", 0);
	nt_event_string(&event, "name", "(functions that the hook never saw obtained)");
	nt_event_string(&event, "reason", "launch-form");
	nt_event_string(&event, "detail", "");
	nt_event_end(&event);
}

static CUresult run_original(const struct nt_function *function, const struct nt_launch *launch, unsigned reason)
{
	nt_trace_count(function->kernel->id, reason);
	return launch->submit(launch, function->handle.handle, launch->parameters, launch->extra);
}

/* PROBED when the launch may be probed: nothing captures, and the context is well. */
static unsigned verdict_on_stream(const struct nt_launch *launch)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = launch->per_thread && nt_driver.cuStreamIsCapturing_ptsz
				  ? nt_driver.cuStreamIsCapturing_ptsz(launch->stream, &status)
				  : nt_driver.cuStreamIsCapturing(launch->stream, &status);

	/* The legacy stream cannot be asked while another captures. */
	if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || (!result && status != CU_STREAM_CAPTURE_STATUS_NONE))
		return NEUTRINO_REASON_GRAPH;
	return result ? NEUTRINO_REASON_REFUSED : NEUTRINO_REASON_PROBED;
}

/* The context that the launch runs in: the function's own, or that of the stream, or the current one. */
static CUcontext context_of(const struct nt_function *function, const struct nt_launch *launch)
{
	CUcontext context = NULL;

	if (!function->is_kernel)
		return function->context;
	if ((uintptr_t)launch->stream > (uintptr_t)CU_STREAM_PER_THREAD && nt_driver.cuStreamGetCtx &&
	    nt_driver.cuStreamGetCtx(launch->stream, &context) == CUDA_SUCCESS)
		return context;
	nt_driver.cuCtxGetCurrent(&context);
	return context;
}

/*
 * The first launch in a context without a notice: prepare it in another thread, once. Making a pool here could
 * wait for work that waits for the program.
 */
static struct aside {
	CUcontext context;
	int busy;
} asides[64];

static void *prepare(void *argument)
{
	struct aside *aside = argument;
	CUcontext context = __atomic_load_n(&aside->context, __ATOMIC_ACQUIRE), popped;

	if (nt_driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
		nt_registry_prepare_context(context);
		nt_driver.cuCtxPopCurrent_v2(&popped);
	}
	__atomic_store_n(&aside->busy, 0, __ATOMIC_RELEASE);
	return NULL;
}

static void prepare_aside(CUcontext context)
{
	struct aside *aside = NULL;
	sigset_t all, before;
	pthread_attr_t attributes;
	pthread_t thread;

	if (!context)
		return;
	for (int i = 0; i < 64 && !aside; i++) {
		CUcontext none = NULL;
		if (__atomic_compare_exchange_n(&asides[i].context, &none, context, false, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			aside = &asides[i];
		else if (none == context)
			return;
	}
	if (!aside)
		return;
	__atomic_store_n(&aside->busy, 1, __ATOMIC_RELEASE);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attributes, prepare, aside) != 0) {
		__atomic_store_n(&aside->busy, 0, __ATOMIC_RELEASE);
		nt_trace_note("context %p could not be prepared: its kernels run unprobed", context);
	}
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void nt_launch_forget_context(CUcontext context, unsigned milliseconds)
{
	uint64_t until = nt_now_ns() + (uint64_t)milliseconds * 1000000;

	for (int i = 0; i < 64; i++) {
		if (__atomic_load_n(&asides[i].context, __ATOMIC_ACQUIRE) != context)
			continue;
		while (__atomic_load_n(&asides[i].busy, __ATOMIC_ACQUIRE) && nt_now_ns() < until)
			nt_sleep_us(200);
		__atomic_store_n(&asides[i].context, NULL, __ATOMIC_RELEASE);
	}
}

static uint32_t thread_id(void)
{
	static __thread __attribute__((tls_model("initial-exec"))) uint32_t id;

	if (!id)
		id = (uint32_t)syscall(SYS_gettid);
	return id;
}

/* A name for the default stream, which distinguishes its segments from other threads'. */
static CUstream explicit_stream(const struct nt_launch *launch)
{
	if (launch->stream)
		return launch->stream;
	return launch->per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

/* Errors that can come of probing: then the original has its own try. Any other belongs to the program. */
static bool is_of_probing(CUresult result)
{
	return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES ||
	       result == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

static unsigned extent_of(const struct nt_launch *launch, const struct nt_kernel *kernel, struct nt_extent *ret)
{
	switch (nt_extent_of(launch->grid, launch->block, kernel->lanes, ret)) {
	case NT_EXTENT:
		return NEUTRINO_REASON_PROBED;
	case NT_EXTENT_TOO_LARGE:
		return NEUTRINO_REASON_MAP_SIZE;
	case NT_EXTENT_INVALID: /* the driver will refuse it: there is nothing to probe */
		break;
	}
	return NEUTRINO_REASON_REFUSED;
}

/* The launch's record in launches.bin, submitted; NULL when the table is full. */
static struct neutrino_launch *add_record(const struct nt_attempt *attempt, uint64_t *index)
{
	const struct nt_launch *launch = attempt->launch;
	struct neutrino_launch *record = nt_trace_launch(index);

	if (!record)
		return NULL;
	record->kernel = attempt->function->kernel->id;
	record->context = (uint64_t)(uintptr_t)attempt->context;
	record->stream = (uint64_t)(uintptr_t)launch->stream;
	record->submit_ns = nt_now_ns();
	memcpy(record->grid, launch->grid, sizeof(record->grid));
	memcpy(record->block, launch->block, sizeof(record->block));
	record->shared = launch->shared;
	record->device = (uint32_t)nt_pool_device(attempt->pool);
	record->thread = thread_id();
	record->variant = attempt->variant;
	record->dynamic_cap = attempt->extent.dynamic_cap;
	record->lanes = attempt->extent.lanes;
	__atomic_store_n(&record->state, NEUTRINO_LAUNCH_SUBMITTED, __ATOMIC_RELEASE);
	return record;
}

/* The walk of a launch; docs/architecture.md has it in ten lines. */
CUresult nt_launch(struct nt_function *function, const struct nt_launch *launch)
{
	struct nt_kernel *kernel = function->kernel;
	const struct nt_backend *backend = kernel->backend;
	uint64_t index;

	if (__atomic_load_n(&ended, __ATOMIC_ACQUIRE))
		return run_original(function, launch, NEUTRINO_REASON_ENDING);
	if (function->reason != NEUTRINO_REASON_PROBED)
		return run_original(function, launch, function->reason);
	struct nt_attempt attempt = {.function = function, .launch = launch, .stream = explicit_stream(launch)};
	unsigned reason = verdict_on_stream(launch);
	if (reason == NEUTRINO_REASON_PROBED)
		reason = extent_of(launch, kernel, &attempt.extent);
	if (reason != NEUTRINO_REASON_PROBED)
		return run_original(function, launch, reason);

	attempt.context = context_of(function, launch);
	attempt.pool = nt_pool_find(attempt.context);
	reason = attempt.pool ? backend->room(&attempt) : NEUTRINO_REASON_CONTEXT;
	if (reason == NEUTRINO_REASON_CONTEXT)
		prepare_aside(attempt.context);
	if (reason != NEUTRINO_REASON_PROBED)
		return run_original(function, launch, reason);
	struct neutrino_launch *record = add_record(&attempt, &index);
	if (!record) {
		nt_pool_submitted(&attempt.room, kernel, 0, attempt.size, false);
		return run_original(function, launch, NEUTRINO_REASON_TABLE_FULL);
	}

	CUresult result = backend->submit(&attempt);
	if (result != CUDA_SUCCESS)
		__atomic_store_n(&record->state, NEUTRINO_LAUNCH_FALLBACK, __ATOMIC_RELEASE);
	nt_pool_submitted(&attempt.room, kernel, index, attempt.size, result == CUDA_SUCCESS);
	if (result == CUDA_SUCCESS) {
		nt_trace_count(kernel->id, NEUTRINO_REASON_PROBED);
		return result;
	}
	if (is_of_probing(result))
		return run_original(function, launch, NEUTRINO_REASON_REFUSED);
	nt_trace_count(kernel->id, NEUTRINO_REASON_REFUSED);
	return result;
}
