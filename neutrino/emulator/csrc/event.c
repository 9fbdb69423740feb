#include "event.h"

#include <stdlib.h>

#include "capture.h"
#include "failure.h"
#include "printed.h"
#include "settings.h"
#include "stream.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the mark of every event */

/* Make a mark, which is one recording of an event, with one reference. NULL without memory. */
struct ed_mark *ed_mark_make(void)
{
	struct ed_mark *mark = calloc(1, sizeof(*mark));

	if (mark)
		mark->holders = 1;
	return mark;
}

/* Give up a reference to a mark (one recording of an event); NULL is ignored. The last one frees it. */
void ed_mark_release(struct ed_mark *mark)
{
	if (mark && __atomic_sub_fetch(&mark->holders, 1, __ATOMIC_ACQ_REL) == 0)
		free(mark);
}

/* The moment (place in a stream's work) of the event's last recording; of no stream if it was never recorded. */
struct ed_moment ed_event_moment(CUevent event)
{
	pthread_mutex_lock(&mutex);
	struct ed_moment moment = event->mark ? event->mark->moment : (struct ed_moment){0};
	pthread_mutex_unlock(&mutex);
	return moment;
}

/* Make a mark (one recording) the event's last recording, or NULL. The event owns the caller's reference. */
void ed_event_set(CUevent event, struct ed_mark *mark)
{
	pthread_mutex_lock(&mutex);
	struct ed_mark *before = event->mark;
	event->mark = mark;
	pthread_mutex_unlock(&mutex);
	ed_mark_release(before);
}

/*
 * Record an event on a queue (a stream's work): it is past when the work before it has run, and also that before the
 * `count` moments (points in queues) in `after`.
 */
static CUresult record_after(CUevent event, struct ed_queue *queue, const struct ed_moment *after, size_t count)
{
	struct ed_mark *mark = ed_mark_make();

	if (!mark)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct ed_operation operation = {
		.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
		.context = queue->context,
		.event = {mark, event},
	};
	__atomic_add_fetch(&mark->holders, 1, __ATOMIC_ACQ_REL);
	/* No other thread has the mark before it has its moment. */
	struct ed_moment moment = ed_queue_submit(queue, &operation, after, count);
	if (!moment.queue) {
		ed_mark_release(mark);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	mark->moment = moment;
	ed_event_set(event, mark);
	return CUDA_SUCCESS;
}

/* Record the event on a queue (a stream's work), outside of captures. The arguments must have been checked. */
CUresult ed_event_record(CUevent event, struct ed_queue *queue)
{
	return record_after(event, queue, NULL, 0);
}

/* Emulated CUDA driver call: make an event; flags: CU_EVENT_.... */
API cuEventCreate(CUevent *event, unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	uint64_t failure = ed_failure(ED_FAIL_EVENT);
	if (!event || flags > 7 || (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
		return CUDA_ERROR_INVALID_VALUE;
	if (failure)
		return (CUresult)failure;
	struct ed_event *created = ed_object_take(ED_EVENT, sizeof(*created));
	if (!created)
		return CUDA_ERROR_OUT_OF_MEMORY;
	__atomic_store_n(&created->context, context, __ATOMIC_RELAXED);
	created->flags = flags;
	*event = created;
	return CUDA_SUCCESS;
}

/* Free an event of the program, and its place in a capture. */
static CUresult destroy_event(CUevent event)
{
	if (!ed_object_check(event, ED_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	ed_capture_event_gone(event);
	ed_event_set(event, NULL);
	ed_object_give(event);
	return CUDA_SUCCESS;
}

/* What cuEventDestroy does. After a fault of the device the event is freed, but the call returns the fault. */
static CUresult destroy_handle(CUevent event)
{
	CUresult result = destroy_event(event);

	return result ? result : ed_device_fault();
}

/* Emulated CUDA driver call: destroy an event. */
API cuEventDestroy(CUevent event)
{
	ENTER_OR_RETURN();
	return destroy_handle(event);
}

/* Emulated CUDA driver call: destroy an event. */
API cuEventDestroy_v2(CUevent event)
{
	ENTER_OR_RETURN();
	return destroy_handle(event);
}

/* Whether an event belongs to a context; for ed_object_each. */
static bool is_of_context(const void *event, const void *context)
{
	return __atomic_load_n(&((const struct ed_event *)event)->context, __ATOMIC_RELAXED) == context;
}

/* Free an event whose context is destroyed; for ed_object_each. */
static void forget_event(void *event)
{
	destroy_event(event);
}

/* Free all events of a context that is destroyed. */
void ed_event_forget_context(const struct ed_context *context)
{
	ed_object_each(ED_EVENT, is_of_context, forget_event, context);
}

/*
 * What the forms of cuEventRecord do: record an event on a stream, or in its capture. per_thread: the default stream is
 * the thread's own.
 */
static CUresult record_on_stream(struct ed_context *context, CUevent event, CUstream stream, bool per_thread)
{
	struct ed_queue *queue;
	bool captured = false;

	if (!ed_object_check(event, ED_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);
	if (!result && queue->context != event->context)
		result = CUDA_ERROR_INVALID_HANDLE;
	if (!result)
		result = ed_capture_record(queue, event, &captured);
	if (result || captured)
		return result;
	return ed_event_record(event, queue);
}

/* Emulated CUDA driver call: record an event after the work of a stream so far. */
API cuEventRecord(CUevent event, CUstream stream)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return record_on_stream(context, event, stream, false);
}

/*
 * Emulated CUDA driver call: record an event after the work of a stream so far; the default stream is the thread's own.
 */
API cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return record_on_stream(context, event, stream, true);
}

/* Emulated CUDA driver call: record an event after the work of a stream so far; flags are only checked. */
API cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record_on_stream(context, event, stream, false);
}

/*
 * Emulated CUDA driver call: record an event after the work of a stream so far, the default one being the thread's
 * own; flags are only checked.
 */
API cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record_on_stream(context, event, stream, true);
}

/*
 * Emulated CUDA driver call: record an event after all work of a context so far. A capture in the context is an error,
 * and invalidated.
 */
API cuCtxRecordEvent(CUcontext handle, CUevent event)
{
	struct ed_moment ends[ED_QUEUE_ENDS];
	struct ed_context *context;

	ENTER_OR_RETURN();
	CUresult result = ed_context_of(handle, &context);
	if (!result && (!ed_object_check(event, ED_EVENT) || event->context != context))
		result = CUDA_ERROR_INVALID_HANDLE;
	if (!result)
		result = ed_capture_waits_for_all(context);
	if (result)
		return result;
	size_t count = ed_queue_ends(context, ends, ED_QUEUE_ENDS);
	/* On a queue of its own, for which nothing waits. */
	struct ed_queue *queue = ed_queue_take(context, false, false);
	if (!queue)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = record_after(event, queue, ends, count);
	ed_queue_give(queue);
	return result;
}

/* Emulated CUDA driver call: success if the event's last recording is past, else CUDA_ERROR_NOT_READY. */
API cuEventQuery(CUevent event)
{
	ENTER_ANYWHERE_OR_RETURN();
	/* NVIDIA's driver checks the event first, then whether it is called from a host function. */
	if (ed_in_host_function)
		return ed_object_check(event, ED_EVENT) ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_HANDLE;
	GET_CONTEXT_OR_RETURN(context);
	if (!ed_object_check(event, ED_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = ed_capture_asks_event(event, true);
	if (!result)
		result = ed_capture_refuses_unsafe();
	if (result)
		return result;
	return ed_moment_is_past(ed_event_moment(event)) ? ed_device_fault() : CUDA_ERROR_NOT_READY;
}

/* Emulated CUDA driver call: wait until the event's last recording is past. */
API cuEventSynchronize(CUevent event)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!ed_object_check(event, ED_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = ed_capture_asks_event(event, true);
	if (!result)
		result = ed_capture_refuses_unsafe();
	if (result)
		return result;
	ed_moment_wait(ed_event_moment(event));
	ed_printed_flush();
	return ed_device_fault();
}

/*
 * What cuEventElapsedTime does: milliseconds between the last recordings of two events, which must be past. By the
 * host's clock when they were reached, since the device's clock counts steps.
 */
static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
	CUevent events[] = {start, end};
	uint64_t times[2];

	if (!milliseconds)
		return CUDA_ERROR_INVALID_HANDLE;
	for (int i = 0; i < 2; i++) {
		if (!ed_object_check(events[i], ED_EVENT) || (events[i]->flags & CU_EVENT_DISABLE_TIMING))
			return CUDA_ERROR_INVALID_HANDLE;
		CUresult result = ed_capture_asks_event(events[i], false);
		if (result)
			return result;
		pthread_mutex_lock(&mutex);
		const struct ed_mark *mark = events[i]->mark;
		bool is_past = mark && ed_moment_is_past(mark->moment);
		times[i] = is_past ? __atomic_load_n(&mark->done_ns, __ATOMIC_ACQUIRE) : 0;
		pthread_mutex_unlock(&mutex);
		if (!mark)
			return CUDA_ERROR_INVALID_HANDLE;
		if (!is_past)
			return CUDA_ERROR_NOT_READY;
	}
	*milliseconds = (float)((double)(int64_t)(times[1] - times[0]) / 1e6);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: milliseconds between the last recordings of two events. */
API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return elapsed(milliseconds, start, end);
}

/* Emulated CUDA driver call: milliseconds between the last recordings of two events. */
API cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return elapsed(milliseconds, start, end);
}
