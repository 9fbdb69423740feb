/* Queries of a stream's capture. */
#include "capture.h"

API cuStreamIsCapturing(CUstream stream, int *status)
{
	ENTER();
	return ed_capture_ask(stream, &(struct ed_capture_info){.status = status}, false);
}

API cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
	ENTER();
	return ed_capture_ask(stream, &(struct ed_capture_info){.status = status}, true);
}

API cuStreamGetCaptureInfo(CUstream stream, int *status, uint64_t *id)
{
	ENTER();
	return ed_capture_ask(stream, &(struct ed_capture_info){.status = status, .id = id}, false);
}

API cuStreamGetCaptureInfo_ptsz(CUstream stream, int *status, uint64_t *id)
{
	ENTER();
	return ed_capture_ask(stream, &(struct ed_capture_info){.status = status, .id = id}, true);
}

API cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
			      const CUgraphNode **dependencies, size_t *count)
{
	ENTER();
	return ed_capture_ask(stream, &(struct ed_capture_info){status, id, graph, dependencies, NULL, count}, false);
}

API cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
				   const CUgraphNode **dependencies, size_t *count)
{
	ENTER();
	return ed_capture_ask(stream, &(struct ed_capture_info){status, id, graph, dependencies, NULL, count}, true);
}

API cuStreamGetCaptureInfo_v3(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
			      const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
	ENTER();
	return ed_capture_ask(stream, &(struct ed_capture_info){status, id, graph, dependencies, edges, count}, false);
}

API cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
				   const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
	ENTER();
	return ed_capture_ask(stream, &(struct ed_capture_info){status, id, graph, dependencies, edges, count}, true);
}
