#include "event.h"

#include <stdlib.h>

#include "capture.h"
#include "failure.h"
#include "printed.h"
#include "settings.h"
#include "stream.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the mark of every event */

/* Make a mark, one recording of an event, with one reference. NULL without memory. */
struct ed_mark *ed_mark_make(void)
{
	struct ed_mark *mark = calloc(1, sizeof(*mark));

	if (mark)
		mark->holders = 1;
	return mark;
}

void ed_mark_release(struct ed_mark *mark)
{
	if (mark && __atomic_sub_fetch(&mark->holders, 1, __ATOMIC_ACQ_REL) == 0)
		free(mark);
}

struct ed_moment ed_event_moment(CUevent event)
{
	pthread_mutex_lock(&mutex);
	struct ed_moment moment = event->mark ? event->mark->moment : (struct ed_moment){0};
	pthread_mutex_unlock(&mutex);
	return moment;
}

/* Replace the mark of an event: its last recording. */
void ed_event_set(CUevent event, struct ed_mark *mark)
{
	pthread_mutex_lock(&mutex);
	struct ed_mark *before = event->mark;
	event->mark = mark;
	pthread_mutex_unlock(&mutex);
	ed_mark_release(before);
}

/* Record an event on a queue: its new mark gets the time when the work before it has run, and that of the moments after. */
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

CUresult ed_event_record(CUevent event, struct ed_queue *queue)
{
	return record_after(event, queue, NULL, 0);
}

API cuEventCreate(CUevent *event, unsigned int flags)
{
	ENTER_CONTEXT(context);
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

/* Free an event. */
static CUresult destroy(CUevent event)
{
	if (!ed_object_check(event, ED_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	ed_capture_event_gone(event);
	ed_event_set(event, NULL);
	ed_object_give(event);
	return CUDA_SUCCESS;
}

/* cuEventDestroy. After a fault of the device the event is freed, but the call returns the fault. */
static CUresult destroy_handle(CUevent event)
{
	CUresult result = destroy(event);

	return result ? result : ed_device_fault();
}

API cuEventDestroy(CUevent event)
{
	ENTER();
	return destroy_handle(event);
}

API cuEventDestroy_v2(CUevent event)
{
	ENTER();
	return destroy_handle(event);
}

static bool is_of_context(const void *event, const void *context)
{
	return __atomic_load_n(&((const struct ed_event *)event)->context, __ATOMIC_RELAXED) == context;
}

static void forget_event(void *event)
{
	destroy(event);
}

void ed_event_forget_context(const struct ed_context *context)
{
	ed_object_each(ED_EVENT, is_of_context, forget_event, context);
}

/* cuEventRecord: record an event on a stream, or in its capture. */
static CUresult record(struct ed_context *context, CUevent event, CUstream stream, bool per_thread)
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

API cuEventRecord(CUevent event, CUstream stream)
{
	ENTER_CONTEXT(context);
	return record(context, event, stream, false);
}

API cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	ENTER_CONTEXT(context);
	return record(context, event, stream, true);
}

API cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	ENTER_CONTEXT(context);
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(context, event, stream, false);
}

API cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags)
{
	ENTER_CONTEXT(context);
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(context, event, stream, true);
}

/* cuCtxRecordEvent: an event after all work of a context. A capture in the context is refused, and invalidated. */
API cuCtxRecordEvent(CUcontext handle, CUevent event)
{
	struct ed_moment ends[ED_QUEUE_ENDS];
	struct ed_context *context;

	ENTER();
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

API cuEventQuery(CUevent event)
{
	ENTER_ANYWHERE();
	/* NVIDIA's driver checks the event first, then whether it is called from a host function. */
	if (ed_in_host_function)
		return ed_object_check(event, ED_EVENT) ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_HANDLE;
	IN_CONTEXT(context);
	if (!ed_object_check(event, ED_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = ed_capture_asks_event(event, true);
	if (!result)
		result = ed_capture_unsafe();
	if (result)
		return result;
	return ed_moment_is_past(ed_event_moment(event)) ? ed_device_fault() : CUDA_ERROR_NOT_READY;
}

API cuEventSynchronize(CUevent event)
{
	ENTER_CONTEXT(context);
	if (!ed_object_check(event, ED_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = ed_capture_asks_event(event, true);
	if (!result)
		result = ed_capture_unsafe();
	if (result)
		return result;
	ed_moment_wait(ed_event_moment(event));
	ed_printed_flush();
	return ed_device_fault();
}

/*
 * cuEventElapsedTime. The times are those of the host's clock when the events' marks were reached, since the device's
 * clock counts steps.
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

API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	ENTER_CONTEXT(context);
	return elapsed(milliseconds, start, end);
}

API cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	ENTER_CONTEXT(context);
	return elapsed(milliseconds, start, end);
}
