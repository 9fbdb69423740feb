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

bool ed_initialised(void)
{
	return __atomic_load_n(&started, __ATOMIC_ACQUIRE) && ed_channel_is_ours();
}

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

CUresult ed_device_fault(void)
{
	return (CUresult)__atomic_load_n(&device_fault, __ATOMIC_ACQUIRE);
}

void ed_device_fail(CUresult fault, const char *line)
{
	uint32_t none = 0;

	if (__atomic_compare_exchange_n(&device_fault, &none, (uint32_t)fault, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE) &&
	    line)
		ed_say("%s", line);
}

static CUcontext current(void)
{
	return stack.depth ? stack.contexts[stack.depth - 1] : NULL;
}

/* The context of a handle; the thread's current one for NULL. An error if there is none, or it was destroyed. */
CUresult ed_context_of(CUcontext handle, struct ed_context **ret)
{
	*ret = handle ? handle : current();
	if (!*ret)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!ed_object_check(*ret, ED_CONTEXT))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	/* What a green context has belongs to the primary one. */
	if ((*ret)->green_of)
		*ret = (*ret)->green_of;
	return __atomic_load_n(&(*ret)->is_ended, __ATOMIC_ACQUIRE) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

CUcontext ed_context_handle(void)
{
	return current();
}

/* The thread's current context. After a fault of the device, every call that needs a context returns the fault. */
CUresult ed_context_current(struct ed_context **ret)
{
	CUresult result = ed_context_of(NULL, ret);

	return result ? result : ed_device_fault();
}

/* --- creation and destruction --- */

static uint64_t next_id(void)
{
	static uint64_t last;

	return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

/* Make a context with its default stream. version: for cuCtxGetApiVersion. Returns NULL without memory. */
static struct ed_context *make(unsigned flags, unsigned version)
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
static void empty(struct ed_context *context)
{
	ed_queue_wait_all(context);
	ed_printed_flush();
	ed_stream_forget_context(context);
	ed_event_forget_context(context);
	ed_module_forget_context(context);
	ed_memory_forget_context(context);
}

/* Free a context with all that it has. Its default stream goes last: the handle must be invalid before that. */
static void destroy(struct ed_context *context)
{
	empty(context);
	struct ed_queue *legacy = context->legacy;
	ed_object_give(context);
	ed_queue_give(legacy);
}

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

static CUresult push(CUcontext context)
{
	if (stack.depth == DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	stack.contexts[stack.depth++] = context;
	ed_green_enter(context);
	return CUDA_SUCCESS;
}

/* The thread's current context is so no more. */
static CUcontext leave(void)
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

static CUresult create(CUcontext *ret, unsigned flags, CUdevice device, unsigned version)
{
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	if (device != 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!are_flags(flags))
		return CUDA_ERROR_INVALID_VALUE;
	if (ed_device_fault())
		return ed_device_fault();
	struct ed_context *context = make(flags, version);
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = push(context);
	if (result)
		destroy(context);
	else
		*ret = context;
	return result;
}

API cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
	ENTER();
	return create(context, flags, device, 3010);
}

API cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	ENTER();
	return create(context, flags, device, 3020);
}

API cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned int flags, CUdevice device)
{
	ENTER();
	(void)affinity;
	return count ? CUDA_ERROR_NOT_SUPPORTED : create(context, flags, device, 3020);
}

API cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
	ENTER();
	return parameters ? CUDA_ERROR_NOT_SUPPORTED : create(context, flags, device, 3020);
}

/* cuCtxDestroy: also pops the context if it is the thread's current one. */
static CUresult destroy_handle(CUcontext handle)
{
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (!ed_object_check(handle, ED_CONTEXT))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (handle->is_primary || handle->green_of)
		return CUDA_ERROR_INVALID_CONTEXT;
	destroy(handle);
	if (current() == handle)
		leave();
	return CUDA_SUCCESS;
}

API cuCtxDestroy(CUcontext context)
{
	ENTER();
	return destroy_handle(context);
}

API cuCtxDestroy_v2(CUcontext context)
{
	ENTER();
	return destroy_handle(context);
}

/* cuCtxAttach: one more cuCtxDetach is needed to destroy the current context. */
static CUresult attach(CUcontext *ret, unsigned flags)
{
	IN_CONTEXT(context);
	if (!ret || flags)
		return CUDA_ERROR_INVALID_VALUE;
	__atomic_add_fetch(&context->attached, 1, __ATOMIC_RELAXED);
	*ret = context;
	return CUDA_SUCCESS;
}

API cuCtxAttach(CUcontext *context, unsigned int flags)
{
	ENTER();
	return attach(context, flags);
}

/* cuCtxDetach: destroys the thread's current context, unless it is attached or the primary one. */
static CUresult detach(CUcontext handle)
{
	if (!handle || !ed_object_check(handle, ED_CONTEXT) || handle != current() || handle->green_of)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (__atomic_load_n(&handle->attached, __ATOMIC_RELAXED)) {
		__atomic_sub_fetch(&handle->attached, 1, __ATOMIC_RELAXED);
		return CUDA_SUCCESS;
	}
	/* Those who retained the primary context still have it. */
	return handle->is_primary ? CUDA_SUCCESS : destroy_handle(handle);
}

API cuCtxDetach(CUcontext context)
{
	ENTER();
	return detach(context);
}

CUresult ed_context_retain_primary(CUcontext *context)
{
	pthread_mutex_lock(&mutex);
	if (!primary) {
		primary = make(primary_flags, 3020);
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

API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	ENTER();
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	return device != 0 ? CUDA_ERROR_INVALID_DEVICE : ed_context_retain_primary(context);
}

/* Free what the primary context has. Its handle stays valid for cuCtxSetCurrent, and when it is retained again. */
static void end_primary(void)
{
	pthread_mutex_lock(&mutex);
	struct ed_context *context = primary;
	if (context)
		__atomic_store_n(&context->is_ended, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&mutex);
	if (context)
		empty(context);
}

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

API cuDevicePrimaryCtxRelease(CUdevice device)
{
	ENTER();
	return device != 0 ? CUDA_ERROR_INVALID_DEVICE : ed_context_release_primary();
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	ENTER();
	return device != 0 ? CUDA_ERROR_INVALID_DEVICE : ed_context_release_primary();
}

static CUresult reset_primary(CUdevice device)
{
	if (device != 0)
		return CUDA_ERROR_INVALID_DEVICE;
	end_primary();
	return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxReset(CUdevice device)
{
	ENTER();
	return reset_primary(device);
}

API cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	ENTER();
	return reset_primary(device);
}

/* cuDevicePrimaryCtxSetFlags: for the context that exists, and for the one that will be made. */
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

API cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
	ENTER();
	return set_primary_flags(device, flags);
}

API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
	ENTER();
	return set_primary_flags(device, flags);
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
	ENTER();
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

API cuCtxGetCurrent(CUcontext *context)
{
	ENTER();
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = current();
	return CUDA_SUCCESS;
}

/* NVIDIA's driver lets a destroyed context become current without an error; later calls in it fail. */
static bool is_or_was_context(CUcontext context)
{
	return ed_object_check(context, ED_CONTEXT) || ed_object_was(context, ED_CONTEXT);
}

API cuCtxSetCurrent(CUcontext context)
{
	ENTER();
	if (context && !is_or_was_context(context))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (stack.depth)
		leave();
	return context ? push(context) : CUDA_SUCCESS;
}

static CUresult push_handle(CUcontext context)
{
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	return is_or_was_context(context) ? push(context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

API cuCtxPushCurrent(CUcontext context)
{
	ENTER();
	return push_handle(context);
}

API cuCtxPushCurrent_v2(CUcontext context)
{
	ENTER();
	return push_handle(context);
}

static CUresult pop(CUcontext *ret)
{
	if (!stack.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	CUcontext context = leave();
	if (ret)
		*ret = context;
	return CUDA_SUCCESS;
}

API cuCtxPopCurrent(CUcontext *context)
{
	ENTER();
	return pop(context);
}

API cuCtxPopCurrent_v2(CUcontext *context)
{
	ENTER();
	return pop(context);
}

API cuCtxGetDevice(CUdevice *device)
{
	struct ed_context *context;

	ENTER();
	CUresult result = ed_context_of(NULL, &context);
	if (!result && device)
		*device = 0;
	return !device ? CUDA_ERROR_INVALID_VALUE : result;
}

API cuCtxGetDevice_v2(CUdevice *device, CUcontext handle)
{
	struct ed_context *context;

	ENTER();
	CUresult result = ed_context_of(handle, &context);
	if (!result && device)
		*device = 0;
	return !device ? CUDA_ERROR_INVALID_VALUE : result;
}

API cuCtxGetFlags(unsigned int *flags)
{
	ENTER_CONTEXT(context);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = context->flags;
	return CUDA_SUCCESS;
}

API cuCtxSetFlags(unsigned int flags)
{
	ENTER_CONTEXT(context);
	context->flags = flags;
	return CUDA_SUCCESS;
}

API cuCtxGetId(CUcontext handle, unsigned long long *id)
{
	struct ed_context *unused;

	ENTER();
	CUresult result = ed_context_of(handle, &unused);
	/* A green context has an id of its own. */
	if (!result && id)
		*id = __atomic_load_n(&(handle ? handle : current())->id, __ATOMIC_ACQUIRE);
	return !id ? CUDA_ERROR_INVALID_VALUE : result;
}

API cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
	struct ed_context *context;

	ENTER();
	CUresult result = ed_context_of(handle, &context);
	if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED && handle)
		result = CUDA_ERROR_INVALID_CONTEXT;
	if (!result && version)
		*version = context->version;
	return !version ? CUDA_ERROR_INVALID_VALUE : result;
}

static CUresult synchronize(struct ed_context *context)
{
	CUresult result = ed_capture_waits_for_all(context);

	if (result)
		return result;
	ed_queue_wait_all(context);
	ed_printed_flush();
	return ed_device_fault();
}

API cuCtxSynchronize(void)
{
	ENTER_CONTEXT(context);
	return synchronize(context);
}

API cuCtxSynchronize_v2(CUcontext handle)
{
	struct ed_context *context;

	ENTER();
	CUresult result = ed_context_of(handle, &context);
	return result ? result : synchronize(context);
}
