/* Streams: handles over queues. */
#ifndef ED_STREAM_H
#define ED_STREAM_H

#include "queue.h"

struct ed_stream {
	struct ed_object object;
	struct ed_context *context;
	struct ed_queue *queue;
	uint64_t id;
	unsigned flags;
	int priority;
	CUcontext green; /* the green context that it is of, NULL for none */
};

/* Make a stream. green: the green context that it is of, whose primary context the other one is; NULL for none. */
CUresult ed_stream_make(struct ed_context *context, CUcontext green, CUstream *ret, unsigned flags, int priority);

/*
 * The queue that a handle means in the thread's context: NULL is the default stream, the thread's own in functions
 * whose names end in _ptsz or _ptds.
 */
CUresult ed_stream_queue(struct ed_context *context, CUstream handle, bool per_thread, struct ed_queue **ret);

/*
 * Put an operation on a stream, or into the graph that it is being captured into. ret may be NULL. The operation is
 * given away whatever comes back.
 */
CUresult ed_stream_submit(struct ed_queue *queue, struct ed_operation *operation, struct ed_moment *ret);

/* The same after other moments too. */
CUresult ed_stream_submit_after(struct ed_queue *queue, struct ed_operation *operation, const struct ed_moment *after,
				size_t count, struct ed_moment *ret);

/* Free the streams of a context, and its threads' default streams. */
void ed_stream_forget_context(const struct ed_context *context);

#endif
