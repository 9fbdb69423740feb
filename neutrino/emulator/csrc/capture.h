/*
 * Stream captures: which calls go into a graph instead of onto a stream, and which are refused meanwhile.
 * https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html
 */
#ifndef ED_CAPTURE_H
#define ED_CAPTURE_H

#include "queue.h"

/*
 * For work on a queue: captured is set when it has become a node of a graph, which then owns the operation. 906 where
 * the default stream would have to wait for a stream that is being captured, 901 once the capture has been spoilt.
 */
CUresult ed_capture_operation(struct ed_queue *queue, struct ed_operation *operation, bool *captured);

/*
 * For what would wait for a queue, or ask how far it is: 900 while it is captured, and the capture is spoilt; of another
 * queue it is as unsafe as an allocation.
 */
CUresult ed_capture_waits_for(struct ed_queue *queue);

/* For what would wait for all that a context does: 900 while anything of it is captured, in whatever mode. */
CUresult ed_capture_waits_for_all(const struct ed_context *context);

/* For what a capture cannot hold: 900 while the queue is captured, and the capture is spoilt. */
CUresult ed_capture_forbids(struct ed_queue *queue);

/* For calls that are unsafe in a capture: 900 where the thread's mode and the captures that go on say so. */
CUresult ed_capture_unsafe(void);

/* cuStreamWaitEvent, cuEventRecord: captured is set when nothing is left to do. */
CUresult ed_capture_wait(struct ed_queue *queue, CUevent event, bool *captured);
CUresult ed_capture_record(struct ed_queue *queue, CUevent event, bool *captured);

/*
 * For cuEventQuery and the like: 907 when the event was last recorded in a capture, which is spoilt by it if spoils; 1
 * when that capture has ended or was spoilt before.
 */
CUresult ed_capture_asks_event(CUevent event, bool spoils);

/* A call on the queue was wrong in itself: the capture that it would have gone into is spoilt. */
void ed_capture_spoil(struct ed_queue *queue);

/* Where the answers go; NULL: not asked for. */
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
