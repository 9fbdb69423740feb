#include "memory/segment.h"

/* Everything here runs on the launch path: lock-free, from any thread. */

/*
 * Hand a full segment (device memory for launches of one stream) over to the drain thread, which fetches its results:
 * with an event after its last launch if own is its stream and the driver records one.
 */
static void hand_over(struct nt_segment *segment, const struct nt_stream *own)
{
	segment->recorded = segment->stream == own &&
			    nt_driver.cuEventRecord(segment->event, nt_segment_handle(own)) == CUDA_SUCCESS;
	/* One step: the segment may be recycled as soon as it is done. */
	__atomic_fetch_xor(&segment->hold, HOLD_FINISHING | HOLD_DONE, __ATOMIC_RELEASE);
}

/*
 * Finish a segment (device memory for launches of one stream) if it is full and nobody holds it: hand it over to the
 * thread that fetches results. hold: its value as the caller has seen it. Of several threads that see that, one does
 * it. own: the stream that the calling thread launches on, or is about to destroy, NULL if there is none: an event can
 * be recorded only there, since the program may destroy any other stream meanwhile. Lock-free.
 */
void nt_segment_finish(struct nt_segment *segment, uint32_t hold, const struct nt_stream *own)
{
	while (nt_segment_is_last(hold)) {
		if (!__atomic_compare_exchange_n(&segment->hold, &hold, hold | HOLD_FINISHING, false, __ATOMIC_ACQ_REL,
						 __ATOMIC_ACQUIRE))
			continue;
		hand_over(segment, own);
		return;
	}
}

/*
 * Mark a segment (device memory for launches of one stream) as full, with `count` launches, so that their results are
 * fetched once they are complete. own: the stream that the calling thread launches on, or NULL. Lock-free.
 */
void nt_segment_close(struct nt_segment *segment, uint32_t count, const struct nt_stream *own)
{
	__atomic_store_n(&segment->count, count, __ATOMIC_RELEASE);
	nt_segment_finish(segment, __atomic_or_fetch(&segment->hold, HOLD_FULL, __ATOMIC_ACQ_REL), own);
}
