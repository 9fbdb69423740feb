#include "stream.h"

#include <pthread.h>
#include <stdlib.h>

#include "capture.h"
#include "event.h"
#include "failure.h"
#include "printed.h"

/* --- the queue of a stream handle --- */

#define MAX_THREAD_STREAMS 16

/* A thread's default streams (CU_STREAM_PER_THREAD), one for each context that it has used lately. */
struct thread_streams {
	struct {
		uint64_t context; /* its id: a handle may be used again for another context */
		struct ed_queue *queue;
	} entries[MAX_THREAD_STREAMS];
	unsigned next; /* the entry to replace, modulo their number */
};

static pthread_key_t thread_streams_key;
static pthread_once_t thread_streams_once = PTHREAD_ONCE_INIT;

/* A thread ends: give back the queues of its own default streams. */
static void free_thread_streams(void *argument)
{
	struct thread_streams *streams = argument;

	for (int i = 0; i < MAX_THREAD_STREAMS; i++)
		if (streams->entries[i].queue)
			ed_queue_give(streams->entries[i].queue);
	free(streams);
}

/* Make the key under which each thread keeps the queues of its own default streams. Once. */
static void make_thread_streams_key(void)
{
	pthread_key_create(&thread_streams_key, free_thread_streams);
}

/*
 * The queue (a stream's work) of the thread's own default stream in a context, made when first used. NULL without
 * memory.
 */
static struct ed_queue *thread_queue(struct ed_context *context)
{
	uint64_t id = __atomic_load_n(&context->id, __ATOMIC_ACQUIRE);

	pthread_once(&thread_streams_once, make_thread_streams_key);
	struct thread_streams *streams = pthread_getspecific(thread_streams_key);
	if (!streams) {
		streams = calloc(1, sizeof(*streams));
		if (!streams || pthread_setspecific(thread_streams_key, streams) != 0) {
			free(streams);
			return NULL;
		}
	}
	for (int i = 0; i < MAX_THREAD_STREAMS; i++)
		if (streams->entries[i].queue && streams->entries[i].context == id)
			return streams->entries[i].queue;
	/* The oldest entry is replaced. */
	unsigned slot = streams->next++ % MAX_THREAD_STREAMS;
	if (streams->entries[slot].queue)
		ed_queue_give(streams->entries[slot].queue);
	streams->entries[slot].context = id;
	streams->entries[slot].queue = ed_queue_take(context, true, false);
	return streams->entries[slot].queue;
}

/*
 * The queue (what a stream is beneath its handle) of a stream handle. per_thread: the handle 0 is the thread's own
 * default stream, else the legacy one. An error for a handle that is none.
 */
CUresult ed_stream_queue(struct ed_context *context, CUstream handle, bool per_thread, struct ed_queue **ret)
{
	if (!handle)
		handle = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
	if (handle == CU_STREAM_LEGACY) {
		*ret = context->legacy;
	} else if (handle == CU_STREAM_PER_THREAD) {
		*ret = thread_queue(context);
	} else {
		if (!ed_object_check(handle, ED_STREAM))
			return CUDA_ERROR_INVALID_HANDLE;
		if (handle->green && !ed_object_is(handle->green, ED_CONTEXT))
			return CUDA_ERROR_CONTEXT_IS_DESTROYED;
		*ret = handle->queue;
		return ed_device_fault();
	}
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Put an operation on a queue (a stream's work), to run after `count` moments too; or into the graph if the stream is
 * captured. The queue or the graph owns it from then on; at an error it is released. ret: the moment when it has run,
 * an empty one if it was captured; may be NULL.
 */
CUresult ed_stream_submit_after(struct ed_queue *queue, struct ed_operation *operation, const struct ed_moment *after,
				size_t count, struct ed_moment *ret)
{
	bool captured = false;
	CUresult result = ed_capture_operation(queue, operation, &captured);

	if (result || captured) {
		if (!captured)
			ed_operation_release(operation);
		if (ret)
			*ret = (struct ed_moment){0};
		return result;
	}
	struct ed_moment moment = ed_queue_submit(queue, operation, after, count);
	if (ret)
		*ret = moment;
	return moment.queue ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Put an operation on a queue (a stream's work), or into the graph if the stream is captured; it is given away whatever
 * comes back. ret: the moment when it has run, an empty one if it was captured; may be NULL.
 */
CUresult ed_stream_submit(struct ed_queue *queue, struct ed_operation *operation, struct ed_moment *ret)
{
	return ed_stream_submit_after(queue, operation, NULL, 0, ret);
}

/* --- creation --- */

/* An id for a new stream, which none had before. 1 is the id of the legacy default stream, 2 of the per-thread one. */
static uint64_t next_id(void)
{
	/* 1 is the id of the legacy default stream, 2 of the per-thread one. */
	static uint64_t last = 2;

	return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

/*
 * Make a stream of a context. green: the green context that it is of, NULL for none. flags: CU_STREAM_NON_BLOCKING or
 * 0; priority: brought into its range.
 */
CUresult ed_stream_make(struct ed_context *context, CUcontext green, CUstream *ret, unsigned flags, int priority)
{
	uint64_t failure = ed_failure(ED_FAIL_STREAM);

	if (!ret || flags > CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	if (failure)
		return (CUresult)failure;
	struct ed_queue *queue = ed_queue_take(context, !(flags & CU_STREAM_NON_BLOCKING), false);
	struct ed_stream *stream = queue ? ed_object_take(ED_STREAM, sizeof(*stream)) : NULL;
	if (!stream) {
		if (queue)
			ed_queue_give(queue);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* Atomic, since ed_stream_forget_context may read it in another thread meanwhile. */
	__atomic_store_n(&stream->context, context, __ATOMIC_RELAXED);
	stream->queue = queue;
	stream->id = next_id();
	stream->flags = flags;
	stream->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
	stream->green = green;
	*ret = stream;
	return CUDA_SUCCESS;
}

/* What cuStreamCreate does: make a stream in the thread's context; of a green context if that is the current one. */
static CUresult create_stream(CUstream *ret, unsigned flags, int priority)
{
	GET_CONTEXT_OR_RETURN(context);
	CUcontext handle = ed_context_handle();
	return ed_stream_make(context, handle != context ? handle : NULL, ret, flags, priority);
}

/* Emulated CUDA driver call: make a stream in the current context. */
API cuStreamCreate(CUstream *stream, unsigned int flags)
{
	ENTER_OR_RETURN();
	return create_stream(stream, flags, 0);
}

/* Emulated CUDA driver call: make a stream in the current context. Its priority can be asked for, and has no effect. */
API cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	ENTER_OR_RETURN();
	return create_stream(stream, flags, priority);
}

/* Free a stream. The handle is invalid before its queue is given back; work on it still runs. */
static CUresult destroy_stream(CUstream stream)
{
	if (!ed_object_check(stream, ED_STREAM))
		return CUDA_ERROR_INVALID_HANDLE;
	ed_capture_stream_gone(stream->queue);
	struct ed_queue *queue = stream->queue;
	ed_object_give(stream);
	ed_queue_give(queue);
	return CUDA_SUCCESS;
}

/* What cuStreamDestroy does. After a fault of the device the stream is freed, but the call returns an error. */
static CUresult destroy_handle(CUstream stream)
{
	if (ed_object_is(stream, ED_STREAM) && stream->green && !ed_object_is(stream->green, ED_CONTEXT))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	CUresult result = destroy_stream(stream);

	return ed_device_fault() ? CUDA_ERROR_INVALID_HANDLE : result;
}

/* Emulated CUDA driver call: destroy a stream; work on it still runs. */
API cuStreamDestroy(CUstream stream)
{
	ENTER_OR_RETURN();
	return destroy_handle(stream);
}

/* Emulated CUDA driver call: destroy a stream; work on it still runs. */
API cuStreamDestroy_v2(CUstream stream)
{
	ENTER_OR_RETURN();
	return destroy_handle(stream);
}

/* Whether a stream belongs to a context; for ed_object_each. */
static bool is_of_context(const void *stream, const void *context)
{
	return __atomic_load_n(&((const struct ed_stream *)stream)->context, __ATOMIC_RELAXED) == context;
}

/* Free a stream whose context is destroyed; for ed_object_each. */
static void forget_stream(void *stream)
{
	destroy_stream(stream);
}

/* Free all streams of a context that is destroyed. */
void ed_stream_forget_context(const struct ed_context *context)
{
	ed_object_each(ED_STREAM, is_of_context, forget_stream, context);
}

/* --- queries --- */

/*
 * What cuStreamGetCtx does: the context of a stream. Handles up to CU_STREAM_PER_THREAD are the default streams, which
 * every context has.
 */
static CUresult get_context(CUstream stream, CUcontext *ret)
{
	GET_CONTEXT_OR_RETURN(context);
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD) {
		*ret = ed_context_handle();
		return CUDA_SUCCESS;
	}
	if (!ed_object_check(stream, ED_STREAM))
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->green && !ed_object_is(stream->green, ED_CONTEXT))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*ret = stream->green ? stream->green : stream->context;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the context of a stream. */
API cuStreamGetCtx(CUstream stream, CUcontext *ret)
{
	ENTER_OR_RETURN();
	return get_context(stream, ret);
}

/* Emulated CUDA driver call: the context of a stream. */
API cuStreamGetCtx_ptsz(CUstream stream, CUcontext *ret)
{
	ENTER_OR_RETURN();
	return get_context(stream, ret);
}

/* Emulated CUDA driver call: the device of a stream, always 0. */
API cuStreamGetDevice(CUstream stream, CUdevice *device)
{
	CUcontext context;

	ENTER_OR_RETURN();
	CUresult result = get_context(stream, &context);
	if (!result && device)
		*device = 0;
	return result;
}

/* Emulated CUDA driver call: the flags of a stream; 0 of default ones. An error while it is captured. */
API cuStreamGetFlags(CUstream stream, unsigned int *flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = 0;
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD)
		return CUDA_SUCCESS;
	if (!ed_object_check(stream, ED_STREAM))
		return CUDA_ERROR_INVALID_HANDLE;
	*flags = stream->flags;
	return ed_capture_forbids(stream->queue);
}

/* Emulated CUDA driver call: the priority of a stream; 0 of default ones. */
API cuStreamGetPriority(CUstream stream, int *priority)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	*priority = 0;
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD)
		return CUDA_SUCCESS;
	if (!ed_object_check(stream, ED_STREAM))
		return CUDA_ERROR_INVALID_HANDLE;
	*priority = stream->priority;
	return CUDA_SUCCESS;
}

/*
 * What cuStreamGetId does: the id of a stream, which no other one ever has; but the default streams of every context
 * have 1 and 2.
 */
static CUresult get_id(CUstream stream, unsigned long long *id, bool per_thread)
{
	GET_CONTEXT_OR_RETURN(context);
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD) {
		*id = stream == CU_STREAM_PER_THREAD || (!stream && per_thread) ? 2 : 1;
		return CUDA_SUCCESS;
	}
	if (!ed_object_check(stream, ED_STREAM))
		return CUDA_ERROR_INVALID_HANDLE;
	*id = stream->id;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the id of a stream, which no other one ever has. */
API cuStreamGetId(CUstream stream, unsigned long long *id)
{
	ENTER_OR_RETURN();
	return get_id(stream, id, false);
}

/* Emulated CUDA driver call: the id of a stream, which no other one ever has; the default one is the thread's own. */
API cuStreamGetId_ptsz(CUstream stream, unsigned long long *id)
{
	ENTER_OR_RETURN();
	return get_id(stream, id, true);
}

/* --- waiting --- */

/*
 * What cuStreamQuery does: CUDA_ERROR_NOT_READY while work of the stream has not ended. per_thread: the default stream
 * is the thread's own.
 */
static CUresult query_stream(struct ed_context *context, CUstream handle, bool per_thread)
{
	struct ed_queue *queue;
	CUresult result = ed_stream_queue(context, handle, per_thread, &queue);

	if (!result)
		result = ed_capture_waits_for(queue);
	if (result)
		return result;
	if (!ed_moment_is_past(ed_queue_end(queue)))
		return CUDA_ERROR_NOT_READY;
	return ed_device_fault();
}

/* Emulated CUDA driver call: CUDA_ERROR_NOT_READY while work of the stream has not ended. */
API cuStreamQuery(CUstream stream)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return query_stream(context, stream, false);
}

/*
 * Emulated CUDA driver call: CUDA_ERROR_NOT_READY while work of the stream has not ended; the default one is the
 * thread's own.
 */
API cuStreamQuery_ptsz(CUstream stream)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return query_stream(context, stream, true);
}

/*
 * What cuStreamSynchronize does: wait for all work of a stream, and print what kernels have printed. per_thread: the
 * default stream is the thread's own.
 */
static CUresult synchronize_stream(struct ed_context *context, CUstream handle, bool per_thread)
{
	struct ed_queue *queue;
	CUresult result = ed_stream_queue(context, handle, per_thread, &queue);

	if (!result)
		result = ed_capture_waits_for(queue);
	if (result)
		return result;
	/* The legacy default stream synchronizes with all blocking streams. */
	if (queue->is_legacy)
		ed_queue_wait_blocking(context);
	ed_moment_wait(ed_queue_end(queue));
	ed_printed_flush();
	return ed_device_fault();
}

/* Emulated CUDA driver call: wait for all work of a stream. */
API cuStreamSynchronize(CUstream stream)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return synchronize_stream(context, stream, false);
}

/* Emulated CUDA driver call: wait for all work of a stream; the default one is the thread's own. */
API cuStreamSynchronize_ptsz(CUstream stream)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return synchronize_stream(context, stream, true);
}

/*
 * What cuStreamWaitEvent does: later work of the stream runs after the work that the event recorded. per_thread: the
 * default stream is the thread's own.
 */
static CUresult wait_event(struct ed_context *context, CUstream handle, CUevent event, bool per_thread)
{
	struct ed_queue *queue;
	CUresult result = ed_stream_queue(context, handle, per_thread, &queue);
	bool captured = false;

	if (!result && !ed_object_check(event, ED_EVENT))
		result = CUDA_ERROR_INVALID_HANDLE;
	if (!result)
		result = ed_capture_wait(queue, event, &captured);
	if (result || captured)
		return result;
	struct ed_moment moment = ed_event_moment(event);
	struct ed_operation nothing = {.type = CU_GRAPH_NODE_TYPE_EMPTY, .context = queue->context};
	if (ed_moment_is_past(moment))
		return CUDA_SUCCESS;
	return ed_queue_submit(queue, &nothing, &moment, 1).queue ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Emulated CUDA driver call: have later work of a stream wait for an event; flags are only checked. */
API cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : wait_event(context, stream, event, false);
}

/*
 * Emulated CUDA driver call: have later work of a stream, the default one being the thread's own, wait for an
 * event; flags are only checked.
 */
API cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : wait_event(context, stream, event, true);
}

/* --- host functions --- */

/*
 * What cuLaunchHostFunc (function) and cuStreamAddCallback (callback) do: have either called after the work before it
 * in the stream. per_thread: the default stream is the thread's own.
 */
static CUresult host_function(struct ed_context *context, CUstream handle, CUhostFn function,
			      CUstreamCallback callback, void *data, bool per_thread)
{
	struct ed_queue *queue;
	CUresult result = ed_stream_queue(context, handle, per_thread, &queue);

	if (!function && !callback)
		return CUDA_ERROR_INVALID_VALUE;
	/* Callbacks, unlike host functions, cannot be captured. */
	if (!result && callback)
		result = ed_capture_forbids(queue);
	if (result)
		return result;
	struct ed_operation operation = {
		.type = CU_GRAPH_NODE_TYPE_HOST,
		.context = queue->context,
		.host = {.function = function, .callback = callback, .stream = handle, .data = data},
	};
	return ed_stream_submit(queue, &operation, NULL);
}

/* Emulated CUDA driver call: have a function of the program called in a stream's turn. */
API cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return host_function(context, stream, function, NULL, data, false);
}

/*
 * Emulated CUDA driver call: have a function of the program called in a stream's turn; the default one is the thread's
 * own.
 */
API cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return host_function(context, stream, function, NULL, data, true);
}

/*
 * Emulated CUDA driver call: have a callback of the program, which gets the stream's error, called in a stream's turn.
 */
API cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return flags ? CUDA_ERROR_INVALID_VALUE : host_function(context, stream, NULL, callback, data, false);
}

/*
 * Emulated CUDA driver call: have a callback of the program, which gets the stream's error, called in a stream's
 * turn; the default one is the thread's own.
 */
API cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return flags ? CUDA_ERROR_INVALID_VALUE : host_function(context, stream, NULL, callback, data, true);
}

/* Emulated CUDA driver call: attach managed memory to a stream, which has no effect; only the address is checked. */
API cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t length, unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	(void)stream;
	(void)length;
	(void)flags;
	return address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
