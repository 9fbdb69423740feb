#include "front/lifetimes.h"

#include "base/mode.h"
#include "front/process.h"
#include "graph/graph_exec.h"
#include "image/background.h"
#include "image/choice.h"
#include "image/prepare.h"
#include "image/registry.h"
#include "launch/launch.h"
#include "memory/greens.h"
#include "memory/pool.h"

/*
 * Before the program destroys a stream: close its memory for results, so that these are fetched, and forget the stream.
 * Default streams are ignored, which cannot be destroyed.
 */
void nt_lifetimes_stream_ends(CUstream stream)
{
	CUcontext context = NULL;

	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD)
		return; /* a default stream, which cannot be destroyed */
	if ((nt_driver.cuStreamGetCtx && nt_driver.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS) ||
	    nt_driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS)
		nt_streams_forget(context, stream);
}

/* After a context has become current: prepare it for probed launches if it is new and chosen. */
void nt_lifetimes_context_comes(CUcontext context)
{
	if (context && nt_prepare_any() && !nt_pools_has(context) && !nt_greens_has(context) &&
	    nt_choice_has_context(context))
		nt_registry_prepare_context(context);
}

/* The CUcontext of a green context (one with a part of the multiprocessors). False if the driver has none. */
static bool context_of_green(void *green, CUcontext *ret)
{
	return nt_driver.cuCtxFromGreenCtx && nt_driver.cuCtxFromGreenCtx(ret, green) == CUDA_SUCCESS;
}

/*
 * After the program has made a green context (one with a part of the multiprocessors), or asked for its CUcontext:
 * remember it, since kernels in it run unprobed.
 */
void nt_lifetimes_green_comes(void *green)
{
	CUcontext context;

	if (context_of_green(green, &context) && !nt_greens_has(context))
		nt_greens_add(context);
}

/* Before the program destroys a green context: forget its graphs, modules and functions. */
void nt_lifetimes_green_ends(void *green)
{
	CUcontext context;

	if (!context_of_green(green, &context))
		return;
	if (nt_mode_of_process() == NT_TRACING) {
		nt_graph_exec_context_ends(context);
		nt_registry_forget_context(context);
	}
	nt_greens_remove(context);
}

/*
 * Before the program destroys a context: fetch the results of its launches, DRAIN_LIMIT_MS at most, and forget all that
 * is known of it.
 */
void nt_lifetimes_context_ends(CUcontext context)
{
	if (nt_mode_of_process() != NT_TRACING || !context)
		return;
	nt_background_hold();
	nt_launch_forget_context(context, DRAIN_LIMIT_MS);
	nt_pool_forget_context(context, DRAIN_LIMIT_MS);
	nt_graph_exec_context_ends(context);
	nt_registry_forget_context(context);
	/* Nothing of it is left that the thread in the background could find. */
	nt_background_release();
}

/*
 * Before a call that may destroy a context, or only lower a count: keep our thread that loads twins (copies with
 * probes) out of it, and fetch the results of its launches. nt_lifetimes_context_may_have_ended must follow, in the
 * same thread. NULL is ignored.
 */
void nt_lifetimes_context_may_end(CUcontext context)
{
	if (!context)
		return;
	nt_background_hold();
	nt_pool_flush(context, DRAIN_LIMIT_MS);
}

/*
 * The driver has destroyed a context, as the drain thread (it fetches results) has found: forget its graphs, modules
 * and launches.
 */
void nt_lifetimes_context_gone(CUcontext context)
{
	nt_graph_exec_context_ends(context);
	nt_registry_forget_context(context);
	nt_launch_forget_context(context, 0);
}

/* Forget all that is known of a context that the driver has destroyed. */
static void forget(CUcontext context)
{
	nt_launch_forget_context(context, DRAIN_LIMIT_MS);
	nt_pool_context_gone(context, DRAIN_LIMIT_MS);
	nt_graph_exec_context_ends(context);
	nt_registry_forget_context(context);
}

/*
 * After a call that may have destroyed a context: if it is gone, as the driver says, forget it; and let our thread that
 * loads twins (copies with probes) go on. Ends what nt_lifetimes_context_may_end has begun.
 */
void nt_lifetimes_context_may_have_ended(CUcontext context)
{
	unsigned long long id;

	if (context && nt_driver.cuCtxGetId && nt_driver.cuCtxGetId(context, &id) != CUDA_SUCCESS)
		forget(context);
	nt_background_release();
}

/*
 * Of each device: its primary context while a call that may end it is under way, and how often the program has retained
 * it, as far as the hook has seen. A hook that came late has not seen all of that, so the count may be too low.
 */
#define DEVICES 64
static CUcontext primary_contexts[DEVICES];
static int primary_counts[DEVICES];

/* Whether primary contexts of a device are watched: its ordinal is in the tables. */
static bool is_device(CUdevice device)
{
	return device >= 0 && device < DEVICES;
}

/*
 * The primary context of a device if it exists, or NULL. By a retain and a release of our own, as nothing else shows
 * it.
 */
static CUcontext primary_of(CUdevice device)
{
	CUcontext context = NULL;
	unsigned flags;
	int active = 0;

	if (!nt_driver.cuDevicePrimaryCtxGetState || !nt_driver.cuDevicePrimaryCtxRetain ||
	    !nt_driver.cuDevicePrimaryCtxRelease_v2 ||
	    nt_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active ||
	    nt_driver.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
		return NULL;
	nt_driver.cuDevicePrimaryCtxRelease_v2(device);
	return context;
}

/* After the program has retained a device's primary context: count it. */
void nt_lifetimes_primary_retained(CUdevice device)
{
	if (is_device(device))
		__atomic_fetch_add(&primary_counts[device], 1, __ATOMIC_ACQ_REL);
}

/*
 * Before a call that may end a device's primary context: fetch the results of its launches, and remember it until the
 * call is over.
 */
void nt_lifetimes_primary_reset_begins(CUdevice device)
{
	if (!is_device(device))
		return;
	CUcontext context = primary_of(device);
	__atomic_store_n(&primary_contexts[device], context, __ATOMIC_RELEASE);
	nt_lifetimes_context_may_end(context);
}

/* After a call that may have ended a device's primary context: forget it if it is gone. */
void nt_lifetimes_primary_was_reset(CUdevice device)
{
	CUcontext context =
		is_device(device) ? __atomic_exchange_n(&primary_contexts[device], NULL, __ATOMIC_ACQ_REL) : NULL;

	/* If the driver does not number contexts, assume that it was reset. */
	if (context && !nt_driver.cuCtxGetId)
		forget(context);
	else
		nt_lifetimes_context_may_have_ended(context);
	nt_background_release();
}

/*
 * Before the program releases a device's primary context once: if it may be the last time, which destroys the context,
 * fetch the results of its launches.
 */
void nt_lifetimes_primary_release_begins(CUdevice device)
{
	/* Only the last release destroys the context. */
	if (nt_mode_of_process() == NT_TRACING && is_device(device) &&
	    __atomic_load_n(&primary_counts[device], __ATOMIC_ACQUIRE) <= 1)
		nt_lifetimes_primary_reset_begins(device);
}

/*
 * After the program has released a device's primary context once: count that, and forget the context if it is gone.
 * result: the driver's.
 */
void nt_lifetimes_primary_released(CUdevice device, CUresult result)
{
	if (!is_device(device))
		return;
	/* The driver refuses a release without a retain, which must not be counted. */
	int count = __atomic_load_n(&primary_counts[device], __ATOMIC_ACQUIRE);
	while (!result && count > 0 && !__atomic_compare_exchange_n(&primary_counts[device], &count, count - 1, false,
								     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
	if (nt_mode_of_process() == NT_TRACING && (nt_driver.cuCtxGetId || (!result && count == 1)))
		nt_lifetimes_primary_was_reset(device);
	nt_background_release();
}
