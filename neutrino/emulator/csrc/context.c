#include "context.h"

#include <pthread.h>
#include <string.h>

#include "capture.h"
#include "channel.h"
#include "event.h"
#include "green.h"
#include "memory.h"
#include "module.h"
#include "printed.h"
#include "queue.h"
#include "settings.h"
#include "stream.h"

#define DEPTH 64

static __thread struct {
	CUcontext contexts[DEPTH];
	unsigned depth;
} stack;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of the primary context */
static struct ed_context *primary; /* made when first retained, and never freed */
static int retained; /* how often the primary context is retained */
static uint32_t device_fault; /* CUresult of the first fault of a kernel, which lasts to the end of the process */
static unsigned primary_flags;
static int started; /* cuInit has succeeded, in this process or in one that it was forked from */

/* Whether cuInit has succeeded in this process, and it is not a fork of the one in which it did. */
bool ed_initialised(void)
{
	return __atomic_load_n(&started, __ATOMIC_ACQUIRE) && ed_channel_is_ours();
}

/*
 * Emulated CUDA driver call: start the emulated device, at the first call. In a fork of a process that uses it, it
 * stays unusable.
 */
API cuInit(unsigned int flags)
{
	static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;
	static struct ed_counter counter;
	static bool failed;

	ed_count(&counter, __func__, __builtin_return_address(0));
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (__atomic_load_n(&started, __ATOMIC_ACQUIRE))
		/* A process that was forked from one that uses the driver cannot use it. */
		return ed_channel_is_ours() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&init_mutex);
	if (!started && !failed) {
		failed = !ed_channel_start();
		if (!failed) {
			ed_count_start();
			__atomic_store_n(&started, 1, __ATOMIC_RELEASE);
		}
	}
	pthread_mutex_unlock(&init_mutex);
	return failed ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

/* The fault (a kernel's error that no context survives) that every call returns after it, 0 if there was none. */
CUresult ed_device_fault(void)
{
	return (CUresult)__atomic_load_n(&device_fault, __ATOMIC_ACQUIRE);
}

/*
 * Record a fault of the device, which every later call returns. The first one stays. line: what is said about it on
 * stderr, NULL for nothing.
 */
void ed_device_fail(CUresult fault, const char *line)
{
	uint32_t none = 0;

	if (__atomic_compare_exchange_n(&device_fault, &none, (uint32_t)fault, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE) &&
	    line)
		ed_say("%s", line);
}

/* The calling thread's current context, NULL without one. */
static CUcontext current_handle(void)
{
	return stack.depth ? stack.contexts[stack.depth - 1] : NULL;
}

/*
 * The context of a handle; the thread's current one for NULL; of a green context the primary one. An error if there is
 * none, or it was destroyed.
 */
CUresult ed_context_of(CUcontext handle, struct ed_context **ret)
{
	*ret = handle ? handle : current_handle();
	if (!*ret)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!ed_object_check(*ret, ED_CONTEXT))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	/* What a green context has belongs to the primary one. */
	if ((*ret)->green_of)
		*ret = (*ret)->green_of;
	return __atomic_load_n(&(*ret)->is_ended, __ATOMIC_ACQUIRE) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

/* The calling thread's context as the program named it (a green one is itself here), NULL without one. */
CUcontext ed_context_handle(void)
{
	return current_handle();
}

/*
 * The thread's current context. An error without one, or if it was destroyed; after a fault of the device, the fault.
 */
CUresult ed_context_current(struct ed_context **ret)
{
	CUresult result = ed_context_of(NULL, ret);

	return result ? result : ed_device_fault();
}

/* --- creation and destruction --- */

/* An id for a new context, which none had before. */
static uint64_t next_id(void)
{
	static uint64_t last;

	return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

/* Make a context with its default stream. version: for cuCtxGetApiVersion. NULL without memory. */
static struct ed_context *make_context(unsigned flags, unsigned version)
{
	struct ed_context *context = ed_object_take(ED_CONTEXT, sizeof(*context));

	if (!context)
		return NULL;
	__atomic_store_n(&context->id, next_id(), __ATOMIC_RELEASE);
	context->flags = flags;
	context->version = version;
	context->legacy = ed_queue_take(context, true, true);
	if (!context->legacy) {
		ed_object_give(context);
		return NULL;
	}
	return context;
}

/* Wait for all work of a context, then free its streams, events, modules and memory. */
static void empty_context(struct ed_context *context)
{
	ed_queue_wait_all(context);
	ed_printed_flush();
	ed_stream_forget_context(context);
	ed_event_forget_context(context);
	ed_module_forget_context(context);
	ed_memory_forget_context(context);
}

/* Free a context with all that it has. Its default stream goes last: the handle must be invalid before that. */
static void destroy_context(struct ed_context *context)
{
	empty_context(context);
	struct ed_queue *legacy = context->legacy;
	ed_object_give(context);
	ed_queue_give(legacy);
}

/*
 * Make a green context (a name for the primary one, with a part of the multiprocessors), without its resources; NULL
 * without memory.
 */
struct ed_context *ed_context_make_green(struct ed_context *of)
{
	struct ed_context *context = ed_object_take(ED_CONTEXT, sizeof(*context));

	if (context) {
		__atomic_store_n(&context->id, next_id(), __ATOMIC_RELEASE);
		context->version = of->version;
		context->green_of = of;
	}
	return context;
}

/* Make a context the thread's current one, above the one that was; an error if too many are below it. */
static CUresult push_context(CUcontext context)
{
	if (stack.depth == DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	stack.contexts[stack.depth++] = context;
	ed_green_enter(context);
	return CUDA_SUCCESS;
}

/* The thread's current context, which there must be, is so no more; returns it. */
static CUcontext pop_context(void)
{
	CUcontext context = stack.contexts[--stack.depth];

	ed_green_leave(context);
	return context;
}

/* Whether flags are valid CUctx_flags. The low three bits are one of four scheduling policies: 0, 1, 2 or 4. */
static bool are_flags(unsigned flags)
{
	unsigned schedule = flags & 7;

	return flags <= 0xff && (schedule <= 2 || schedule == 4);
}

/*
 * What the forms of cuCtxCreate do: make a context and make it the thread's current one. version: of the API of the
 * form that was called.
 */
static CUresult create_context(CUcontext *ret, unsigned flags, CUdevice device, unsigned version)
{
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	if (device != 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!are_flags(flags))
		return CUDA_ERROR_INVALID_VALUE;
	if (ed_device_fault())
		return ed_device_fault();
	struct ed_context *context = make_context(flags, version);
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = push_context(context);
	if (result)
		destroy_context(context);
	else
		*ret = context;
	return result;
}

/* Emulated CUDA driver call: make a context and make it current. */
API cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
	ENTER_OR_RETURN();
	return create_context(context, flags, device, 3010);
}

/* Emulated CUDA driver call: make a context and make it current. */
API cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	ENTER_OR_RETURN();
	return create_context(context, flags, device, 3020);
}

/* Emulated CUDA driver call: make a context and make it current. Parts of the device (affinity) cannot be asked for. */
API cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned int flags, CUdevice device)
{
	ENTER_OR_RETURN();
	(void)affinity;
	return count ? CUDA_ERROR_NOT_SUPPORTED : create_context(context, flags, device, 3020);
}

/* Emulated CUDA driver call: make a context and make it current. Further parameters are not supported. */
API cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
	ENTER_OR_RETURN();
	return parameters ? CUDA_ERROR_NOT_SUPPORTED : create_context(context, flags, device, 3020);
}

/*
 * What cuCtxDestroy does: destroy a context that was made by cuCtxCreate, and pop it if it is the thread's current one.
 */
static CUresult destroy_handle(CUcontext handle)
{
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (!ed_object_check(handle, ED_CONTEXT))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (handle->is_primary || handle->green_of)
		return CUDA_ERROR_INVALID_CONTEXT;
	destroy_context(handle);
	if (current_handle() == handle)
		pop_context();
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: destroy a context with all that it has. */
API cuCtxDestroy(CUcontext context)
{
	ENTER_OR_RETURN();
	return destroy_handle(context);
}

/* Emulated CUDA driver call: destroy a context with all that it has. */
API cuCtxDestroy_v2(CUcontext context)
{
	ENTER_OR_RETURN();
	return destroy_handle(context);
}

/* What cuCtxAttach does: one more cuCtxDetach is needed to destroy the current context. flags: must be 0. */
static CUresult attach(CUcontext *ret, unsigned flags)
{
	GET_CONTEXT_OR_RETURN(context);
	if (!ret || flags)
		return CUDA_ERROR_INVALID_VALUE;
	__atomic_add_fetch(&context->attached, 1, __ATOMIC_RELAXED);
	*ret = context;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call (an old one): hold the current context once more, and get its handle. */
API cuCtxAttach(CUcontext *context, unsigned int flags)
{
	ENTER_OR_RETURN();
	return attach(context, flags);
}

/* What cuCtxDetach does: destroy the thread's current context, unless it is attached or the primary one. */
static CUresult detach(CUcontext handle)
{
	if (!handle || !ed_object_check(handle, ED_CONTEXT) || handle != current_handle() || handle->green_of)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (__atomic_load_n(&handle->attached, __ATOMIC_RELAXED)) {
		__atomic_sub_fetch(&handle->attached, 1, __ATOMIC_RELAXED);
		return CUDA_SUCCESS;
	}
	/* Those who retained the primary context still have it. */
	return handle->is_primary ? CUDA_SUCCESS : destroy_handle(handle);
}

/* Emulated CUDA driver call (an old one): undo one cuCtxAttach or cuCtxCreate of the current context. */
API cuCtxDetach(CUcontext context)
{
	ENTER_OR_RETURN();
	return detach(context);
}

/*
 * Retain the primary context (the one that all users of the device share), making it at the first time. *context is
 * NULL after an error.
 */
CUresult ed_context_retain_primary(CUcontext *context)
{
	pthread_mutex_lock(&mutex);
	if (!primary) {
		primary = make_context(primary_flags, 3020);
		if (primary)
			primary->is_primary = true;
	}
	CUresult result = !primary ? CUDA_ERROR_OUT_OF_MEMORY : ed_device_fault();
	if (!result) {
		retained++;
		if (__atomic_load_n(&primary->is_ended, __ATOMIC_ACQUIRE))
			__atomic_store_n(&primary->id, next_id(), __ATOMIC_RELEASE);
		__atomic_store_n(&primary->is_ended, 0, __ATOMIC_RELEASE);
	}
	*context = result ? NULL : primary;
	pthread_mutex_unlock(&mutex);
	return result;
}

/* Emulated CUDA driver call: retain the device's primary context, making it at the first time. */
API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	ENTER_OR_RETURN();
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	return device != 0 ? CUDA_ERROR_INVALID_DEVICE : ed_context_retain_primary(context);
}

/*
 * End the primary context: free what it has. Its handle stays valid for cuCtxSetCurrent, and when it is retained again.
 */
static void end_primary(void)
{
	pthread_mutex_lock(&mutex);
	struct ed_context *context = primary;
	if (context)
		__atomic_store_n(&context->is_ended, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&mutex);
	if (context)
		empty_context(context);
}

/* Release the primary context once; the last time ends it. An error if it is not retained. */
CUresult ed_context_release_primary(void)
{
	pthread_mutex_lock(&mutex);
	bool is_held = retained > 0, is_last = retained == 1;
	retained -= is_held;
	pthread_mutex_unlock(&mutex);
	if (is_last)
		end_primary();
	return is_held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* Emulated CUDA driver call: release the device's primary context once; the last time ends it. */
API cuDevicePrimaryCtxRelease(CUdevice device)
{
	ENTER_OR_RETURN();
	return device != 0 ? CUDA_ERROR_INVALID_DEVICE : ed_context_release_primary();
}

/* Emulated CUDA driver call: release the device's primary context once; the last time ends it. */
API cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	ENTER_OR_RETURN();
	return device != 0 ? CUDA_ERROR_INVALID_DEVICE : ed_context_release_primary();
}

/* What cuDevicePrimaryCtxReset does: free all that the primary context has, though it is retained. */
static CUresult reset_primary(CUdevice device)
{
	if (device != 0)
		return CUDA_ERROR_INVALID_DEVICE;
	end_primary();
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: free all that the device's primary context has, though it is retained. */
API cuDevicePrimaryCtxReset(CUdevice device)
{
	ENTER_OR_RETURN();
	return reset_primary(device);
}

/* Emulated CUDA driver call: free all that the device's primary context has, though it is retained. */
API cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	ENTER_OR_RETURN();
	return reset_primary(device);
}

/*
 * What cuDevicePrimaryCtxSetFlags does: set flags of the primary context that exists, and of the one that will be made.
 */
static CUresult set_primary_flags(CUdevice device, unsigned flags)
{
	if (device != 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!are_flags(flags))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&mutex);
	primary_flags = flags;
	if (primary)
		primary->flags = flags;
	pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: set the flags of the device's primary context. */
API cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
	ENTER_OR_RETURN();
	return set_primary_flags(device, flags);
}

/* Emulated CUDA driver call: set the flags of the device's primary context. */
API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
	ENTER_OR_RETURN();
	return set_primary_flags(device, flags);
}

/*
 * Emulated CUDA driver call: the flags of the device's primary context, and whether it exists; either pointer may be
 * NULL.
 */
API cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
	ENTER_OR_RETURN();
	if (device != 0)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&mutex);
	if (flags)
		*flags = primary_flags;
	if (active)
		*active = primary && !__atomic_load_n(&primary->is_ended, __ATOMIC_ACQUIRE);
	pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

/* --- the thread's stack of contexts --- */

/* Emulated CUDA driver call: the thread's current context, NULL without one. */
API cuCtxGetCurrent(CUcontext *context)
{
	ENTER_OR_RETURN();
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = current_handle();
	return CUDA_SUCCESS;
}

/*
 * Whether a handle is, or was, that of a context. NVIDIA's driver lets a destroyed context become current without an
 * error; later calls in it fail.
 */
static bool is_or_was_context(CUcontext context)
{
	return ed_object_check(context, ED_CONTEXT) || ed_object_was(context, ED_CONTEXT);
}

/* Emulated CUDA driver call: make a context current in place of the one that is; NULL: none. */
API cuCtxSetCurrent(CUcontext context)
{
	ENTER_OR_RETURN();
	if (context && !is_or_was_context(context))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (stack.depth)
		pop_context();
	return context ? push_context(context) : CUDA_SUCCESS;
}

/* What cuCtxPushCurrent does: make a context the thread's current one, above the one that was. */
static CUresult push_handle(CUcontext context)
{
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	return is_or_was_context(context) ? push_context(context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* Emulated CUDA driver call: make a context current, above the one that is. */
API cuCtxPushCurrent(CUcontext context)
{
	ENTER_OR_RETURN();
	return push_handle(context);
}

/* Emulated CUDA driver call: make a context current, above the one that is. */
API cuCtxPushCurrent_v2(CUcontext context)
{
	ENTER_OR_RETURN();
	return push_handle(context);
}

/*
 * What cuCtxPopCurrent does: the context below the current one becomes current again. ret gets the one that was; it may
 * be NULL.
 */
static CUresult pop_handle(CUcontext *ret)
{
	if (!stack.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	CUcontext context = pop_context();
	if (ret)
		*ret = context;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: take the current context off, so that the one below it is current again. */
API cuCtxPopCurrent(CUcontext *context)
{
	ENTER_OR_RETURN();
	return pop_handle(context);
}

/* Emulated CUDA driver call: take the current context off, so that the one below it is current again. */
API cuCtxPopCurrent_v2(CUcontext *context)
{
	ENTER_OR_RETURN();
	return pop_handle(context);
}

/* Emulated CUDA driver call: the device of the current context, always 0. */
API cuCtxGetDevice(CUdevice *device)
{
	struct ed_context *context;

	ENTER_OR_RETURN();
	CUresult result = ed_context_of(NULL, &context);
	if (!result && device)
		*device = 0;
	return !device ? CUDA_ERROR_INVALID_VALUE : result;
}

/* Emulated CUDA driver call: the device of a context (NULL: the current one), always 0. */
API cuCtxGetDevice_v2(CUdevice *device, CUcontext handle)
{
	struct ed_context *context;

	ENTER_OR_RETURN();
	CUresult result = ed_context_of(handle, &context);
	if (!result && device)
		*device = 0;
	return !device ? CUDA_ERROR_INVALID_VALUE : result;
}

/* Emulated CUDA driver call: the flags of the current context. */
API cuCtxGetFlags(unsigned int *flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = context->flags;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: set the flags of the current context, which have no effect here. */
API cuCtxSetFlags(unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	context->flags = flags;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the id of a context (NULL: the current one), which no other context ever has. */
API cuCtxGetId(CUcontext handle, unsigned long long *id)
{
	struct ed_context *unused;

	ENTER_OR_RETURN();
	CUresult result = ed_context_of(handle, &unused);
	/* A green context has an id of its own. */
	if (!result && id)
		*id = __atomic_load_n(&(handle ? handle : current_handle())->id, __ATOMIC_ACQUIRE);
	return !id ? CUDA_ERROR_INVALID_VALUE : result;
}

/* Emulated CUDA driver call: the API version that a context (NULL: the current one) was made by. */
API cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
	struct ed_context *context;

	ENTER_OR_RETURN();
	CUresult result = ed_context_of(handle, &context);
	if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED && handle)
		result = CUDA_ERROR_INVALID_CONTEXT;
	if (!result && version)
		*version = context->version;
	return !version ? CUDA_ERROR_INVALID_VALUE : result;
}

/*
 * Wait for all work of a context, and print what kernels have printed. An error if a stream of it is captured, or the
 * device's fault.
 */
static CUresult synchronize_context(struct ed_context *context)
{
	CUresult result = ed_capture_waits_for_all(context);

	if (result)
		return result;
	ed_queue_wait_all(context);
	ed_printed_flush();
	return ed_device_fault();
}

/* Emulated CUDA driver call: wait for all work of the current context. */
API cuCtxSynchronize(void)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return synchronize_context(context);
}

/* Emulated CUDA driver call: wait for all work of a context (NULL: the current one). */
API cuCtxSynchronize_v2(CUcontext handle)
{
	struct ed_context *context;

	ENTER_OR_RETURN();
	CUresult result = ed_context_of(handle, &context);
	return result ? result : synchronize_context(context);
}
