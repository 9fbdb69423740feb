/* Queries of a stream's capture. */
#include "capture.h"

/* Emulated CUDA driver call: whether a stream is captured (CUstreamCaptureStatus). */
API cuStreamIsCapturing(CUstream stream, int *status)
{
	ENTER_OR_RETURN();
	return ed_capture_ask(stream, &(struct ed_capture_info){.status = status}, false);
}

/*
 * Emulated CUDA driver call: whether a stream is captured (CUstreamCaptureStatus); the default stream is the thread's
 * own.
 */
API cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
	ENTER_OR_RETURN();
	return ed_capture_ask(stream, &(struct ed_capture_info){.status = status}, true);
}

/* Emulated CUDA driver call: whether a stream is captured, and the capture's id. */
API cuStreamGetCaptureInfo(CUstream stream, int *status, uint64_t *id)
{
	ENTER_OR_RETURN();
	return ed_capture_ask(stream, &(struct ed_capture_info){.status = status, .id = id}, false);
}

/*
 * Emulated CUDA driver call: whether a stream is captured, and the capture's id; the default stream is the thread's
 * own.
 */
API cuStreamGetCaptureInfo_ptsz(CUstream stream, int *status, uint64_t *id)
{
	ENTER_OR_RETURN();
	return ed_capture_ask(stream, &(struct ed_capture_info){.status = status, .id = id}, true);
}

/*
 * Emulated CUDA driver call: a stream's capture: status, id, graph, and the nodes that the stream's next one depends
 * on. Pointers may be NULL but for status.
 */
API cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
			      const CUgraphNode **dependencies, size_t *count)
{
	ENTER_OR_RETURN();
	return ed_capture_ask(stream, &(struct ed_capture_info){status, id, graph, dependencies, NULL, count}, false);
}

/*
 * Emulated CUDA driver call: a stream's capture: status, id, graph, and the nodes that the stream's next one depends
 * on; the default stream is the thread's own. Pointers may be NULL but for status.
 */
API cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
				   const CUgraphNode **dependencies, size_t *count)
{
	ENTER_OR_RETURN();
	return ed_capture_ask(stream, &(struct ed_capture_info){status, id, graph, dependencies, NULL, count}, true);
}

/*
 * Emulated CUDA driver call: a stream's capture: status, id, graph, and the nodes that the stream's next one depends
 * on, with data of these edges (NULL). Pointers may be NULL but for status.
 */
API cuStreamGetCaptureInfo_v3(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
			      const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
	ENTER_OR_RETURN();
	return ed_capture_ask(stream, &(struct ed_capture_info){status, id, graph, dependencies, edges, count}, false);
}

/*
 * Emulated CUDA driver call: a stream's capture: status, id, graph, and the nodes that the stream's next one depends
 * on, with data of these edges (NULL); the default stream is the thread's own. Pointers may be NULL but for status.
 */
API cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
				   const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
	ENTER_OR_RETURN();
	return ed_capture_ask(stream, &(struct ed_capture_info){status, id, graph, dependencies, edges, count}, true);
}
