/*
 * Stream captures: which calls go into a graph instead of onto a stream, and which are refused meanwhile.
 * https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html
 */
#ifndef ED_CAPTURE_H
#define ED_CAPTURE_H

#include "queue.h"

/*
 * For work on a queue: captured is set when it has become a node of a graph, which then owns the operation. 906 where
 * the default stream would have to wait for a stream that is being captured, 901 once the capture was invalidated.
 */
CUresult ed_capture_operation(struct ed_queue *queue, struct ed_operation *operation, bool *captured);

/*
 * For calls that wait for a queue or query it: 900 while it is captured, and the capture is invalidated. For another
 * queue they are unsafe calls, as allocations are.
 */
CUresult ed_capture_waits_for(struct ed_queue *queue);

/* For calls that wait for all work of a context: 900 while any stream of it is captured, in whatever mode. */
CUresult ed_capture_waits_for_all(const struct ed_context *context);

/* For calls that cannot be captured: 900 while the queue is captured, and the capture is invalidated. */
CUresult ed_capture_forbids(struct ed_queue *queue);

/* For calls that are unsafe during a capture: 900 where the thread's mode and those of the captures forbid them. */
CUresult ed_capture_refuses_unsafe(void);

/* For cuStreamWaitEvent and cuEventRecord: captured is set when nothing is left to do. */
CUresult ed_capture_wait(struct ed_queue *queue, CUevent event, bool *captured);
CUresult ed_capture_record(struct ed_queue *queue, CUevent event, bool *captured);

/*
 * For cuEventQuery and the like: 907 when the event was last recorded in a capture, which is invalidated if invalidates
 * is set; 1 when that capture has ended or was invalidated before.
 */
CUresult ed_capture_asks_event(CUevent event, bool invalidates);

/* Invalidate the capture of a queue, if any, since a call on the queue had invalid arguments. */
void ed_capture_invalidate(struct ed_queue *queue);

/* Where the results of cuStreamGetCaptureInfo go; NULL for those not asked for. */
struct ed_capture_info {
	int *status;
	uint64_t *id;
	CUgraph *graph;
	const CUgraphNode **dependencies;
	const CUgraphEdgeData **edges;
	size_t *count;
};

CUresult ed_capture_ask(CUstream stream, const struct ed_capture_info *ret, bool per_thread);

void ed_capture_stream_gone(struct ed_queue *queue);
void ed_capture_event_gone(CUevent event);

#endif
