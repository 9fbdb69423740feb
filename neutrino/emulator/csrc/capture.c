#include "capture.h"

#include <stdlib.h>
#include <string.h>

#include "event.h"
#include "graph.h"
#include "stream.h"

/* A stream's part in a capture. */
struct member {
	struct ed_queue *queue;
	CUgraphNode *frontier; /* the nodes that the next node of this stream depends on */
	size_t count;
};

struct ed_capture {
	uint64_t id;
	CUgraph graph;
	bool owns_graph; /* made for this capture, not given by the program */
	bool is_invalidated; /* by a forbidden call; it can only be ended */
	int mode; /* CUstreamCaptureMode */
	const void *thread; /* that began it: this_thread() */
	struct ed_queue *origin; /* of the stream that was captured first */
	struct member *members;
	size_t member_count;
	struct ed_capture *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the captures, and the captured nodes of events */
static struct ed_capture *captures;
static uint32_t capture_count; /* read without the mutex: most programs never have one */
static __thread int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* An identity of the calling thread: the address of a variable that each thread has of its own. */
static const void *this_thread(void)
{
	return &thread_mode;
}

/* Whether any stream is being captured. Cheap, without the mutex. */
static bool is_any_capture(void)
{
	return __atomic_load_n(&capture_count, __ATOMIC_ACQUIRE) != 0;
}

/* --- with the mutex held --- */

/* A stream's part in a capture (a graph being made of what streams are given), NULL if it has none. Under the mutex. */
static struct member *member_of(struct ed_capture *capture, const struct ed_queue *queue)
{
	for (size_t i = 0; i < capture->member_count; i++)
		if (capture->members[i].queue == queue)
			return &capture->members[i];
	return NULL;
}

/* The capture with that id, NULL if it has ended. Under the mutex. */
static struct ed_capture *find_capture(uint64_t id)
{
	struct ed_capture *capture = captures;

	while (capture && capture->id != id)
		capture = capture->next;
	return capture;
}

/* Make the next node of a captured stream depend on this node, too. False without memory. Under the mutex. */
static bool add_to_frontier(struct member *member, CUgraphNode node)
{
	for (size_t i = 0; i < member->count; i++)
		if (member->frontier[i] == node)
			return true;
	CUgraphNode *more = realloc(member->frontier, (member->count + 1) * sizeof(*more));
	if (!more)
		return false;
	member->frontier = more;
	member->frontier[member->count++] = node;
	return true;
}

/* Make a stream part of a capture. NULL without memory. Under the mutex. */
static struct member *join_capture(struct ed_capture *capture, struct ed_queue *queue)
{
	struct member *more = realloc(capture->members, (capture->member_count + 1) * sizeof(*more));

	if (!more)
		return NULL;
	capture->members = more;
	more[capture->member_count] = (struct member){.queue = queue};
	__atomic_store_n(&queue->capture, capture, __ATOMIC_RELEASE);
	return &more[capture->member_count++];
}

/* End a capture for all its streams, and free it. Its graph stays. Under the mutex. */
static void end_and_free(struct ed_capture *capture)
{
	for (size_t i = 0; i < capture->member_count; i++) {
		__atomic_store_n(&capture->members[i].queue->capture, NULL, __ATOMIC_RELEASE);
		free(capture->members[i].frontier);
	}
	free(capture->members);
	for (struct ed_capture **link = &captures; *link; link = &(*link)->next)
		if (*link == capture) {
			*link = capture->next;
			break;
		}
	__atomic_sub_fetch(&capture_count, 1, __ATOMIC_ACQ_REL);
	free(capture);
}

/*
 * A capture of a stream with which the default stream `legacy` of its context synchronizes, or NULL. Under the mutex.
 */
static struct ed_capture *find_blocking_capture(const struct ed_queue *legacy)
{
	for (struct ed_capture *capture = captures; capture; capture = capture->next)
		for (size_t i = 0; i < capture->member_count; i++)
			if (capture->members[i].queue->is_blocking && capture->members[i].queue->context == legacy->context)
				return capture;
	return NULL;
}

/*
 * Work on the context's default stream would depend on captured streams: if this is it, and there are any, refuse it,
 * and invalidate the capture. Under the mutex.
 */
static CUresult check_legacy(const struct ed_queue *queue)
{
	struct ed_capture *capture = queue->is_legacy ? find_blocking_capture(queue) : NULL;

	if (!capture)
		return CUDA_SUCCESS;
	capture->is_invalidated = true;
	return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

/* --- checks of other calls --- */

/*
 * If the queue's stream is captured, add the operation to the graph, as a node that depends on the stream's last ones,
 * instead of running it: *captured is set, and the node owns the operation. Errors: 906 where the default stream would
 * have to wait for a captured one, 901 once the capture was invalidated.
 */
CUresult ed_capture_operation(struct ed_queue *queue, struct ed_operation *operation, bool *captured)
{
	if (!is_any_capture())
		return CUDA_SUCCESS;
	pthread_mutex_lock(&mutex);
	CUresult result = check_legacy(queue);
	struct ed_capture *capture = queue->capture;
	if (!result && capture && capture->is_invalidated)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (!result && capture) {
		struct member *member = member_of(capture, queue);
		CUgraphNode node = ed_graph_add(capture->graph, operation, member->frontier, member->count);
		if (node) {
			*captured = true;
			member->count = 0;
		}
		if (!node || !add_to_frontier(member, node)) {
			capture->is_invalidated = true;
			result = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

/*
 * For calls that cannot be captured: an error (900) if the queue's stream is captured, and the capture is invalidated.
 */
CUresult ed_capture_forbids(struct ed_queue *queue)
{
	if (!is_any_capture())
		return CUDA_SUCCESS;
	pthread_mutex_lock(&mutex);
	CUresult result = check_legacy(queue);
	if (!result && queue->capture) {
		queue->capture->is_invalidated = true;
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

/*
 * For calls that wait for a stream or query it: an error if it is captured, or if another stream's capture forbids such
 * calls; that capture is invalidated.
 */
CUresult ed_capture_waits_for(struct ed_queue *queue)
{
	CUresult result = ed_capture_forbids(queue);

	return result ? result : ed_capture_refuses_unsafe();
}

/*
 * Invalidate the capture of a stream, if any, since a call on the stream had invalid arguments. It can only be ended
 * then.
 */
void ed_capture_invalidate(struct ed_queue *queue)
{
	if (!is_any_capture())
		return;
	pthread_mutex_lock(&mutex);
	if (queue->capture)
		queue->capture->is_invalidated = true;
	pthread_mutex_unlock(&mutex);
}

/*
 * For calls that are unsafe during a capture, such as allocations. They are an error, and invalidate the capture, in
 * the thread that captures unless the mode is relaxed, and in other threads if both modes are global.
 */
CUresult ed_capture_refuses_unsafe(void)
{
	CUresult result = CUDA_SUCCESS;

	if (!is_any_capture() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&mutex);
	for (struct ed_capture *capture = captures; capture; capture = capture->next) {
		bool is_own = capture->thread == this_thread();
		if ((is_own && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) ||
		    (!is_own && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
		     capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL)) {
			capture->is_invalidated = true;
			result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

/* Whether any stream of a capture belongs to the context. Under the mutex. */
static bool is_in_context(const struct ed_capture *capture, const struct ed_context *context)
{
	for (size_t i = 0; i < capture->member_count; i++)
		if (capture->members[i].queue->context == context)
			return true;
	return false;
}

/* For a call that waits for all streams of a context: an error if any is captured, and the capture is invalidated. */
CUresult ed_capture_waits_for_all(const struct ed_context *context)
{
	CUresult result = CUDA_SUCCESS;

	if (!is_any_capture())
		return CUDA_SUCCESS;
	pthread_mutex_lock(&mutex);
	for (struct ed_capture *capture = captures; capture; capture = capture->next)
		if (is_in_context(capture, context)) {
			capture->is_invalidated = true;
			result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	pthread_mutex_unlock(&mutex);
	return result;
}

/*
 * With the mutex held: the stream waits for an event that was recorded in a capture. It joins the capture, and its next
 * node depends on the nodes of the event.
 */
static CUresult wait_in_capture(struct ed_queue *queue, CUevent event, struct ed_capture *capture)
{
	if (queue->is_legacy) {
		capture->is_invalidated = true;
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	if (queue->capture && queue->capture != capture) {
		queue->capture->is_invalidated = capture->is_invalidated = true;
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	/* Nothing is left of an invalidated capture that a stream outside of it could wait for. */
	if (capture->is_invalidated)
		return queue->capture ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_INVALID_VALUE;
	struct member *member = queue->capture ? member_of(capture, queue) : join_capture(capture, queue);
	for (size_t i = 0; member && i < event->node_count; i++)
		if (!add_to_frontier(member, event->nodes[i]))
			member = NULL;
	return member ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * cuStreamWaitEvent, as far as captures are concerned: after an event that was recorded in a capture, the stream joins
 * it. *captured is set if nothing is left to do.
 */
CUresult ed_capture_wait(struct ed_queue *queue, CUevent event, bool *captured)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&mutex);
	struct ed_capture *capture = event->capture_id ? find_capture(event->capture_id) : NULL;
	if (capture) {
		*captured = true;
		result = wait_in_capture(queue, event, capture);
	} else if (event->capture_id) {
		result = CUDA_ERROR_INVALID_VALUE;
		if (queue->capture)
			queue->capture->is_invalidated = true;
	} else if (queue->capture) {
		*captured = true;
		/* An event that was never recorded is no dependency. A captured stream cannot depend on other work. */
		if (!ed_moment_is_past(ed_event_moment(event)) || ed_event_moment(event).queue) {
			queue->capture->is_invalidated = true;
			result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
		}
	} else {
		result = check_legacy(queue);
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

/* cuEventRecord: on a captured stream, the event gets a copy of the stream's frontier, and captured is set. */
CUresult ed_capture_record(struct ed_queue *queue, CUevent event, bool *captured)
{
	if (!is_any_capture() && !__atomic_load_n(&event->capture_id, __ATOMIC_ACQUIRE))
		return CUDA_SUCCESS;
	pthread_mutex_lock(&mutex);
	CUresult result = check_legacy(queue);
	struct ed_capture *capture = queue->capture;
	if (!result && capture && capture->is_invalidated)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (!result) {
		free(event->nodes);
		event->nodes = NULL;
		event->node_count = 0;
		__atomic_store_n(&event->capture_id, capture ? capture->id : 0, __ATOMIC_RELEASE);
	}
	if (!result && capture) {
		const struct member *member = member_of(capture, queue);
		*captured = true;
		event->nodes = calloc(member->count + 1, sizeof(CUgraphNode));
		if (event->nodes) {
			if (member->count)
				memcpy(event->nodes, member->frontier, member->count * sizeof(CUgraphNode));
			event->node_count = member->count;
		} else {
			result = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

/*
 * For a query of an event: an error (907) if it was last recorded in a capture, which is invalidated if
 * `invalidates`; 1 if that capture has ended or was invalidated before.
 */
CUresult ed_capture_asks_event(CUevent event, bool invalidates)
{
	CUresult result = CUDA_SUCCESS;

	if (!__atomic_load_n(&event->capture_id, __ATOMIC_ACQUIRE))
		return CUDA_SUCCESS;
	pthread_mutex_lock(&mutex);
	if (event->capture_id) {
		struct ed_capture *capture = find_capture(event->capture_id);
		/* The driver returns another error once the capture has ended or was invalidated. */
		result = !capture || capture->is_invalidated ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_CAPTURED_EVENT;
		if (capture && invalidates)
			capture->is_invalidated = true;
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

/* An event is destroyed: free its captured nodes. */
void ed_capture_event_gone(CUevent event)
{
	pthread_mutex_lock(&mutex);
	free(event->nodes);
	event->nodes = NULL;
	event->capture_id = 0;
	pthread_mutex_unlock(&mutex);
}

/* A stream is destroyed: end the capture that it began, or leave and invalidate the one that it joined. */
void ed_capture_stream_gone(struct ed_queue *queue)
{
	if (!is_any_capture())
		return;
	pthread_mutex_lock(&mutex);
	struct ed_capture *capture = queue->capture;
	if (capture && capture->origin == queue) {
		if (capture->owns_graph)
			ed_graph_destroy(capture->graph);
		end_and_free(capture);
	} else if (capture) {
		struct member *member = member_of(capture, queue);
		capture->is_invalidated = true;
		free(member->frontier);
		*member = capture->members[--capture->member_count];
		__atomic_store_n(&queue->capture, NULL, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&mutex);
}

/* --- beginning and ending --- */

/*
 * Begin a capture of a stream: what it is given goes into a graph. graph: to add to, NULL for a new one. dependencies:
 * `count` nodes that the first captured node depends on. mode: which other calls are refused meanwhile. per_thread: the
 * default stream is the thread's own.
 */
static CUresult begin_capture(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, size_t count, int mode,
			      bool per_thread)
{
	static uint64_t last_id;
	struct ed_queue *queue;

	GET_CONTEXT_OR_RETURN(context);
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);
	if (result)
		return result;
	if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED ||
	    (graph && !ed_object_check(graph, ED_GRAPH)))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&mutex);
	if (queue->is_legacy) {
		result = check_legacy(queue);
		pthread_mutex_unlock(&mutex);
		return result ? result : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	struct ed_capture *capture = queue->capture ? NULL : calloc(1, sizeof(*capture));
	if (!capture) {
		result = queue->capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_OUT_OF_MEMORY;
		goto out;
	}
	capture->id = ++last_id;
	capture->owns_graph = !graph;
	capture->graph = graph ? graph : ed_graph_make();
	capture->mode = mode;
	capture->thread = this_thread();
	capture->origin = queue;
	capture->next = captures;
	captures = capture;
	__atomic_add_fetch(&capture_count, 1, __ATOMIC_ACQ_REL);
	struct member *member = capture->graph ? join_capture(capture, queue) : NULL;
	for (size_t i = 0; member && i < count; i++)
		if (!add_to_frontier(member, dependencies[i]))
			member = NULL;
	if (!member) {
		end_and_free(capture);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
out:
	pthread_mutex_unlock(&mutex);
	return result;
}

/* Emulated CUDA driver call: begin a capture of a stream into a new graph, in global mode. */
API cuStreamBeginCapture(CUstream stream)
{
	ENTER_OR_RETURN();
	return begin_capture(stream, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL, false);
}

/*
 * Emulated CUDA driver call: begin a capture of a stream into a new graph, in global mode; the default stream is the
 * thread's own.
 */
API cuStreamBeginCapture_ptsz(CUstream stream)
{
	ENTER_OR_RETURN();
	return begin_capture(stream, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL, true);
}

/*
 * Emulated CUDA driver call: begin a capture of a stream into a new graph. mode: which other calls are refused
 * meanwhile.
 */
API cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	ENTER_OR_RETURN();
	return begin_capture(stream, NULL, NULL, 0, mode, false);
}

/*
 * Emulated CUDA driver call: begin a capture of a stream into a new graph; the default stream is the thread's own.
 * mode: which other calls are refused meanwhile.
 */
API cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	ENTER_OR_RETURN();
	return begin_capture(stream, NULL, NULL, 0, mode, true);
}

/* Emulated CUDA driver call: begin a capture of a stream into an existing graph, after `count` of its nodes. */
API cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
				const CUgraphEdgeData *data, size_t count, int mode)
{
	ENTER_OR_RETURN();
	(void)data;
	return graph ? begin_capture(stream, graph, dependencies, count, mode, false) : CUDA_ERROR_INVALID_VALUE;
}

/*
 * Emulated CUDA driver call: begin a capture of a stream into an existing graph, after `count` of its nodes; the
 * default stream is the thread's own.
 */
API cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
				     const CUgraphEdgeData *data, size_t count, int mode)
{
	ENTER_OR_RETURN();
	(void)data;
	return graph ? begin_capture(stream, graph, dependencies, count, mode, true) : CUDA_ERROR_INVALID_VALUE;
}

/*
 * Whether the stream that was captured first waits, directly or not, for the last nodes of all others in the capture,
 * as it must at its end. Under the mutex.
 */
static bool is_joined(struct ed_capture *capture)
{
	const struct member *origin = member_of(capture, capture->origin);

	for (size_t i = 0; i < capture->member_count; i++)
		for (size_t j = 0; j < capture->members[i].count; j++) {
			bool reached = false;
			for (size_t k = 0; k < origin->count && !reached; k++)
				reached = ed_graph_reaches(origin->frontier[k], capture->members[i].frontier[j]);
			if (!reached)
				return false;
		}
	return true;
}

/*
 * What the forms of cuStreamEndCapture do: end the capture of a stream. *ret gets the graph, NULL if the capture was
 * invalidated or may not be ended so. per_thread: the default stream is the thread's own.
 */
static CUresult end_capture(CUstream stream, CUgraph *ret, bool per_thread)
{
	struct ed_queue *queue;

	GET_CONTEXT_OR_RETURN(context);
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);
	if (result)
		return result;
	pthread_mutex_lock(&mutex);
	struct ed_capture *capture = queue->capture;
	if (!capture) {
		result = CUDA_ERROR_ILLEGAL_STATE;
		goto out;
	}
	/* A call from the wrong thread ends the capture nevertheless, but gets an error and no graph. */
	bool is_wrong_thread = capture->thread != this_thread() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	if (capture->origin != queue) {
		capture->is_invalidated = true;
		result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
		goto out;
	}
	result = capture->is_invalidated    ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
		 : is_wrong_thread     ? CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
		 : !is_joined(capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
				       : CUDA_SUCCESS;
	if (result && capture->owns_graph)
		ed_graph_destroy(capture->graph);
	if (ret)
		*ret = result ? NULL : capture->graph;
	end_and_free(capture);
out:
	pthread_mutex_unlock(&mutex);
	return result;
}

/* Emulated CUDA driver call: end the capture of a stream, and get its graph. */
API cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	ENTER_OR_RETURN();
	return end_capture(stream, graph, false);
}

/* Emulated CUDA driver call: end the capture of a stream, and get its graph; the default stream is the thread's own. */
API cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	ENTER_OR_RETURN();
	return end_capture(stream, graph, true);
}

/*
 * Emulated CUDA driver call: set the thread's capture mode, by which its unsafe calls during captures are refused, and
 * return the old one in *mode.
 */
API cuThreadExchangeStreamCaptureMode(int *mode)
{
	ENTER_OR_RETURN();
	/* NVIDIA's driver also accepts the value after the last mode, which acts as none of the three. */
	if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED + 1)
		return CUDA_ERROR_INVALID_VALUE;
	int before = thread_mode;
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

/*
 * What cuStreamGetCaptureInfo and cuStreamIsCapturing do: the state of a stream's capture, as far as ret asks for it.
 * For the default stream an error while a stream is captured that it synchronizes with, but the capture stays valid.
 */
CUresult ed_capture_ask(CUstream stream, const struct ed_capture_info *ret, bool per_thread)
{
	struct ed_context *context;
	struct ed_queue *queue;

	CUresult result = ed_context_current(&context);
	if (!result && !ret->status)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = ed_stream_queue(context, stream, per_thread, &queue);
	if (result)
		return result;
	*ret->status = CU_STREAM_CAPTURE_STATUS_NONE;
	if (!is_any_capture())
		return CUDA_SUCCESS;
	pthread_mutex_lock(&mutex);
	struct ed_capture *capture = queue->capture;
	if (queue->is_legacy && find_blocking_capture(queue))
		result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	if (!result && capture) {
		const struct member *member = member_of(capture, queue);
		*ret->status = capture->is_invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
						  : CU_STREAM_CAPTURE_STATUS_ACTIVE;
		if (ret->id)
			*ret->id = capture->id;
		if (ret->graph)
			*ret->graph = capture->graph;
		if (ret->dependencies)
			*ret->dependencies = member->frontier;
		if (ret->edges)
			*ret->edges = NULL;
		if (ret->count)
			*ret->count = member->count;
	}
	pthread_mutex_unlock(&mutex);
	return result;
}
