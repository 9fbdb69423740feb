/*
 * The exported functions, which replace the driver's. Each calls the real one, and the additional work that its row in
 * cuda_functions.h states. If anything goes wrong in the hook, the program's own kernel runs.
 */
#include <errno.h>
#include <pthread.h>

#include "base/driver.h"
#include "base/hot.h"
#include "base/mode.h"
#include "base/quiet.h"
#include "front/hook.h"
#include "front/lifetimes.h"
#include "front/linked.h"
#include "front/loaded.h"
#include "front/process.h"
#include "graph/graph.h"
#include "graph/graph_exec.h"
#include "graph/graph_replay.h"
#include "graph/graph_layout.h"
#include "image/attributes.h"
#include "image/registry.h"
#include "launch/launch_forms.h"
#include "memory/pool.h"

/* The stub redirects slots in memory to these functions; it does not interpose them by name. */
#ifdef NEUTRINO_LATE
#define EXPORT
#else
#define EXPORT __attribute__((visibility("default")))
/* The late hook looks for this symbol, to find out whether the process has a hook. */
EXPORT extern const int neutrino_hook;
const int neutrino_hook = 1;
#endif

/* The start of every exported function: return an error if there is no driver, or it lacks the function. */
#define NEED_DRIVER(function)                                                                                          \
	do {                                                                                                           \
		if (!nt_hook_load_driver() || !nt_driver.function)                                                     \
			return CUDA_ERROR_NOT_SUPPORTED;                                                               \
	} while (0)

/*
 * The program finds errno as the driver left it. OURS runs the hook's own code, in which a thread of the program is not
 * cancelled: it may have a lock, and what the driver has just done must be known. KEEPING_ERRNO returns the result of an
 * expression that calls the driver somewhere within and may change errno after that: errno is then as it was before.
 */
#define OURS(...)                                                                                                      \
	do {                                                                                                           \
		int kept_errno = errno, kept_cancelling;                                                               \
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &kept_cancelling);                                      \
		__VA_ARGS__;                                                                                           \
		pthread_setcancelstate(kept_cancelling, NULL);                                                         \
		errno = kept_errno;                                                                                    \
	} while (0)
#define KEEPING_ERRNO(...)                                                                                             \
	do {                                                                                                           \
		int kept_errno = errno;                                                                                \
		CUresult kept_result = __VA_ARGS__;                                                                    \
		errno = kept_errno;                                                                                    \
		return kept_result;                                                                                    \
	} while (0)

/*
 * Replace the address of a driver's function, which the program has just looked up, by our function that wraps it, if
 * there is one. function: where the program gets the address; may be NULL.
 */
static void give_ours(void **function)
{
	if (function)
		*function = nt_hook_wrapper_of(*function);
}

/* Register `count` functions that the program has obtained from a module or library at once. */
static void obtained_all(void *owner, bool is_library, void *const *handles, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		nt_registry_obtained(owner, is_library, handles[i], NULL);
}

/* --- macros for the columns "before" and "after" of NT_DRIVER_WRAPPED --- */

#define NOTHING ((void)0)
#define CALLER __builtin_return_address(0)
#define ON_SUCCESS(...)                                                                                                \
	if (result == CUDA_SUCCESS)                                                                                    \
	__VA_ARGS__
#define ON_FAILURE(...)                                                                                                \
	if (result != CUDA_SUCCESS)                                                                                    \
	__VA_ARGS__
#define IN_TRACE(...)                                                                                                  \
	if (nt_mode_of_process() == NT_TRACING)                                                                        \
	__VA_ARGS__
/* Once more, if the driver had no memory and the hook's pools could give some back. */
#define AGAIN_WITHOUT_POOL(call)                                                                                       \
	if (result == CUDA_ERROR_OUT_OF_MEMORY && nt_mode_of_process() == NT_TRACING && nt_pool_give_back(GIVE_BACK_LIMIT_MS)) \
	result = (call)
/* Repeat a change of a function for its twins. */
#define FOR_TWINS(handle, ...)                                                                                         \
	if (result == CUDA_SUCCESS && nt_mode_of_process() == NT_TRACING)                                              \
	nt_attributes_set(handle, (struct nt_setting){__VA_ARGS__, NULL})

#define NT_WRAP(name, parameters, arguments, before, after)                                                            \
	EXPORT CUresult name parameters                                                                                \
	{                                                                                                              \
		NEED_DRIVER(name);                                                                                     \
		OURS(before);                                                                                          \
		CUresult result = nt_driver.name arguments;                                                            \
		OURS(after);                                                                                           \
		return result;                                                                                         \
	}

NT_DRIVER_WRAPPED(NT_WRAP)

/* --- launches --- */

/*
 * Handle a launch by cuLaunchKernel that does not simply go to the driver: it may run the twin (a copy with probes).
 * found: what nt_launch_find has found. Not inlined: the functions below then need no stack, and jump to the driver
 * with the program's arguments where they are.
 */
static __attribute__((noinline)) CUresult launch_plain(CUfunction function, unsigned grid_x, unsigned grid_y,
						       unsigned grid_z, unsigned block_x, unsigned block_y,
						       unsigned block_z, unsigned shared, CUstream stream,
						       void **parameters, void **extra, struct nt_found found,
						       bool per_thread)
{
	struct nt_launch launch = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, per_thread,
				   parameters,		     extra,			  NULL,	  NULL, false};
	KEEPING_ERRNO(nt_launch_forms_plain(function, &launch, found));
}

/*
 * Wraps the driver's function: a kernel that has a copy with probes runs that, any other launch goes to the driver at
 * once.
 */
EXPORT NT_HOT_PATH CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
			       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream,
			       void **parameters, void **extra)
{
	NEED_DRIVER(cuLaunchKernel);
	struct nt_found found = nt_launch_find(function);
	return nt_launch_passes(found) ? nt_driver.cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
						       stream, parameters, extra)
				       : launch_plain(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
						      stream, parameters, extra, found, false);
}

/*
 * Wraps the driver's function, in which stream 0 is the thread's own: a kernel that has a copy with probes runs that,
 * any other launch goes to the driver at once.
 */
EXPORT NT_HOT_PATH CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
			       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream,
			       void **parameters, void **extra)
{
	NEED_DRIVER(cuLaunchKernel_ptsz);
	struct nt_found found = nt_launch_find(function);
	return nt_launch_passes(found) ? nt_driver.cuLaunchKernel_ptsz(function, grid_x, grid_y, grid_z, block_x, block_y,
							    block_z, shared, stream, parameters, extra)
				       : launch_plain(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
						      stream, parameters, extra, found, true);
}

/*
 * Wraps the driver's function for launches with attributes: a kernel that has a copy with probes runs that, any other
 * launch goes to the driver at once.
 */
EXPORT NT_HOT_PATH CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
	NEED_DRIVER(cuLaunchKernelEx);
	struct nt_found found = config ? nt_launch_find(function) : (struct nt_found){NULL, NULL};
	if (nt_launch_passes(found))
		return nt_driver.cuLaunchKernelEx(config, function, parameters, extra);
	KEEPING_ERRNO(nt_launch_forms_config(config, function, parameters, extra, false, found));
}

/*
 * Wraps the driver's function for launches with attributes, in which stream 0 is the thread's own: a kernel that has a
 * copy with probes runs that, any other launch goes to the driver at once.
 */
EXPORT NT_HOT_PATH CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
				      void **extra)
{
	NEED_DRIVER(cuLaunchKernelEx_ptsz);
	struct nt_found found = config ? nt_launch_find(function) : (struct nt_found){NULL, NULL};
	if (nt_launch_passes(found))
		return nt_driver.cuLaunchKernelEx_ptsz(config, function, parameters, extra);
	KEEPING_ERRNO(nt_launch_forms_config(config, function, parameters, extra, true, found));
}

/*
 * Wraps the driver's function for launches whose blocks all run at the same time: a kernel that has a copy with probes
 * runs that if enough blocks of it fit.
 */
EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
					  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
					  CUstream stream, void **parameters)
{
	NEED_DRIVER(cuLaunchCooperativeKernel);
	struct nt_launch launch = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, false,
				   parameters,		     NULL,			  NULL,	  NULL, false};
	KEEPING_ERRNO(nt_launch_forms_cooperative(function, &launch));
}

/*
 * Wraps the driver's function for launches whose blocks all run at the same time, in which stream 0 is the thread's
 * own: a kernel that has a copy with probes runs that if enough blocks of it fit.
 */
EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
					       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
					       CUstream stream, void **parameters)
{
	NEED_DRIVER(cuLaunchCooperativeKernel_ptsz);
	struct nt_launch launch = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, true,
				   parameters,		     NULL,			  NULL,	  NULL, false};
	KEEPING_ERRNO(nt_launch_forms_cooperative(function, &launch));
}

/*
 * Wraps the driver's function: a launch (replay) of a graph is recorded, and runs with the twins (copies with probes)
 * of its kernels.
 */
EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	NEED_DRIVER(cuGraphLaunch);
	KEEPING_ERRNO(nt_graph_replay_launch(exec, stream, false));
}

/*
 * Wraps the driver's function, in which stream 0 is the thread's own: a launch (replay) of a graph is recorded, and
 * runs with the twins (copies with probes) of its kernels.
 */
EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	NEED_DRIVER(cuGraphLaunch_ptsz);
	KEEPING_ERRNO(nt_graph_replay_launch(exec, stream, true));
}

/* Wraps the driver's function: a graph that the hook still needs lasts until the executable graph that was made of it ends. */
EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
	NEED_DRIVER(cuGraphDestroy);
	CUresult result = CUDA_SUCCESS;
	bool is_kept;
	OURS(is_kept = nt_graph_exec_keeps(graph, &result));
	return is_kept ? result : nt_driver.cuGraphDestroy(graph);
}

/* --- waits --- */

/*
 * Call the real cuStreamSynchronize; if it succeeds, the launches submitted before in that stream are marked as
 * complete. per_thread: stream 0 is the thread's own.
 */
static CUresult synchronize_stream(CUresult (*real)(CUstream), CUstream stream, bool per_thread)
{
	struct nt_watermark mark;
	CUcontext context = NULL;

	if (nt_mode_of_process() != NT_TRACING || nt_driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
		return real(stream);
	OURS(nt_streams_watermark_before(&mark, context,
					 stream ? stream : per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY));
	CUresult result = real(stream);
	OURS(ON_SUCCESS(nt_streams_watermark_after(&mark, context)));
	return result;
}

/* Wraps the driver's function: after the wait, the launches submitted before in the stream are known to be complete. */
EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
	NEED_DRIVER(cuStreamSynchronize);
	return synchronize_stream(nt_driver.cuStreamSynchronize, stream, false);
}

/*
 * Wraps the driver's function, in which stream 0 is the thread's own: after the wait, the launches submitted before in
 * the stream are known to be complete.
 */
EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	NEED_DRIVER(cuStreamSynchronize_ptsz);
	return synchronize_stream(nt_driver.cuStreamSynchronize_ptsz, stream, true);
}

/*
 * Wraps the driver's function: after the wait, all launches submitted before in the current context are known to be
 * complete.
 */
EXPORT CUresult cuCtxSynchronize(void)
{
	struct nt_watermark mark;
	CUcontext context = NULL;

	NEED_DRIVER(cuCtxSynchronize);
	if (nt_mode_of_process() != NT_TRACING || nt_driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
		return nt_driver.cuCtxSynchronize();
	OURS(nt_streams_watermark_before(&mark, context, NULL));
	CUresult result = nt_driver.cuCtxSynchronize();
	OURS(ON_SUCCESS(nt_streams_watermark_after(&mark, context)));
	return result;
}

/* --- for the files around this one --- */

#ifndef NEUTRINO_LATE
/*
 * Runs while the program's dlopen loads this library: looks the driver's functions up. When dlopen succeeds it clears
 * dlerror, and so errors about functions that the driver lacks; after a later look-up the program would find them.
 */
__attribute__((constructor)) static void start(void)
{
	int error = errno;

	nt_hook_load_driver();
	errno = error;
}
#endif

/* Our function that wraps the function of the real driver at that address; the address itself if none does. */
void *nt_hook_wrapper_of(void *real)
{
	/* Must not equal a function that the driver does not have, which is NULL. */
	if (!real)
		return real;
	/* One comparison per function. Of a one-element array of pointers, since ISO C cannot cast a function to void *. */
#define NT_COMPARE(name, parameters, ...)                                                                                   \
	if (real == *(void **)&nt_driver.name)                                                                         \
		return *(void **)&(CUresult(*[]) parameters){name}[0];
	NT_DRIVER_INTERCEPTED(NT_COMPARE)
#undef NT_COMPARE
	return real;
}

/*
 * Our function that wraps the driver's function of that name, NULL if none does. *real: the driver's address of it,
 * NULL while that is not known.
 */
void *nt_hook_wrapper_named(const char *name, void **real)
{
#define NT_COMPARE(function, parameters, ...)                                                                               \
	if (strcmp(name, #function) == 0) {                                                                            \
		*real = *(void **)&nt_driver.function;                                                                 \
		return *(void **)&(CUresult(*[]) parameters){function}[0];                                             \
	}
	NT_DRIVER_INTERCEPTED(NT_COMPARE)
#undef NT_COMPARE
	return NULL;
}
