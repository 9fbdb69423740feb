/*
 * The drain thread: it copies the maps of complete launches from the device, has them written to the trace, zeroes their
 * segments and makes these available again. All functions but nt_drain_start run in that thread, with the pool's context
 * current.
 */
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "frames.h"
#include "segment.h"
#include "trace.h"

bool nt_slot_is_refused(const struct nt_slot *slot)
{
	return slot->kernel == NULL;
}

/* Copy size bytes from the device to pool->staging, and wait for that; false if it fails. */
static bool copy_back(struct nt_pool *pool, CUdeviceptr from, uint64_t size)
{
	return nt_driver.cuMemcpyDtoHAsync_v2(pool->staging, from, size, pool->stream) == CUDA_SUCCESS &&
	       nt_driver.cuStreamSynchronize(pool->stream) == CUDA_SUCCESS;
}

/*
 * Copy launches [from, to) of a small segment from the device in one piece, and append their frames to the files of their
 * kernels, by one write per kernel.
 */
static void drain_small(struct nt_pool *pool, struct nt_segment *segment, uint32_t from, uint32_t to)
{
	/* Offsets in the segment, and from begin on in pool->staging. */
	uint64_t begin = segment->slots[from].offset * UNIT;
	uint64_t end = begin;
	bool handled[SLOTS] = {false}; /* by the index of the launch */

	/* The range of the segment that the launches fill. */
	for (uint32_t i = from; i < to; i++) {
		const struct nt_slot *slot = &segment->slots[i];
		if (!nt_slot_is_refused(slot) && slot->offset * UNIT + slot->size > end)
			end = slot->offset * UNIT + slot->size;
	}
	bool copied = end == begin || copy_back(pool, segment->address + begin, end - begin);
	for (uint32_t i = from; i < to; i++) {
		struct nt_kernel *kernel = segment->slots[i].kernel;
		if (handled[i] || nt_slot_is_refused(&segment->slots[i]))
			continue;
		/* One piece, with the frames of all launches of this kernel. */
		uint64_t size = 0;
		uint32_t count = 0;
		for (uint32_t j = i; j < to; j++) {
			if (segment->slots[j].kernel != kernel)
				continue;
			size += sizeof(struct neutrino_frame) + segment->slots[j].size;
			count++;
		}
		struct nt_piece *piece = copied ? nt_frames_piece(kernel, size, count) : NULL;
		for (uint32_t j = i; j < to; j++) {
			const struct nt_slot *slot = &segment->slots[j];
			if (slot->kernel != kernel)
				continue;
			handled[j] = true;
			if (!piece) {
				nt_frame_lost(slot);
				continue;
			}
			const uint8_t *data = pool->staging + (slot->offset * UNIT - begin);
			nt_frames_add(piece, slot);
			nt_frames_add_data(piece, data, slot->size);
			if (kernel->has_dynamic_cap)
				nt_frame_learn(slot, data, 0, slot->size);
		}
		if (piece)
			nt_frames_write(piece);
	}
}

/* Copy the one launch of a large segment from the device in pieces, and append its frame to its kernel's file. */
static void drain_large(struct nt_pool *pool, struct nt_segment *segment)
{
	const struct nt_slot *slot = &segment->slots[0];
	uint64_t done = 0;

	if (nt_slot_is_refused(slot))
		return;
	do {
		uint64_t size = slot->size - done < STAGING_SIZE ? slot->size - done : STAGING_SIZE;
		struct nt_piece *piece = nt_frames_piece(slot->kernel, sizeof(struct neutrino_frame) + size, 1);
		if (!piece) {
			/* The kernel's next piece cuts off what was written of this one. */
			nt_frame_lost(slot);
			return;
		}
		piece->begins = done == 0;
		piece->ends = done + size == slot->size;
		if (piece->begins)
			nt_frames_add(piece, slot);
		piece->launches[0] = (struct nt_framed){slot->launch, 0, slot->size};
		piece->count = 1;
		if (!copy_back(pool, segment->address + done, size)) {
			piece->failed = piece->ends = true;
		} else {
			nt_frames_add_data(piece, pool->staging, size);
			if (slot->kernel->has_dynamic_cap)
				nt_frame_learn(slot, pool->staging, done, size);
		}
		done = piece->ends ? slot->size : done + size;
		nt_frames_write(piece);
	} while (done < slot->size);
}

/*
 * The index after the last launch of a segment that is complete by the watermarks, without a gap from the first one that
 * is not drained. count: launches in the segment.
 */
static uint32_t complete_until(const struct nt_pool *pool, const struct nt_segment *segment, uint32_t count)
{
	const struct nt_stream *stream = segment->stream;
	uint64_t stream_mark = __atomic_load_n(&stream->watermark, __ATOMIC_ACQUIRE);
	uint64_t mark = __atomic_load_n(&pool->watermark, __ATOMIC_ACQUIRE);
	uint32_t until = segment->drained;

	/*
	 * Both marks are numbers of submissions. The stream's watermark counts only if no stream with this handle was
	 * destroyed since the segment was taken. lives is read after the watermark, which could else be that of a new stream
	 * at the same address.
	 */
	if (stream_mark > mark && __atomic_load_n(&stream->lives, __ATOMIC_ACQUIRE) == segment->life)
		mark = stream_mark;

	while (until < count) {
		uint64_t submitted = __atomic_load_n(&segment->slots[until].sequence, __ATOMIC_ACQUIRE);
		if (submitted == 0 || submitted > mark)
			break;
		until++;
	}
	return until;
}

/* Zero a segment whose launches were all copied, and make it available again. */
static void recycle(struct nt_pool *pool, struct nt_segment *segment)
{
	bool is_small = segment->chunks == 0;
	uint64_t size = is_small ? SEGMENT_SIZE : segment->slots[0].size;

	/* A segment that cannot be zeroed is never used again, and no longer visited by the drain thread. */
	if (nt_driver.cuMemsetD8Async(segment->address, 0, size, pool->stream) != CUDA_SUCCESS ||
	    nt_driver.cuStreamSynchronize(pool->stream) != CUDA_SUCCESS) {
		/* DONE is cleared, so that it is not visited; FINISHING is set, so that no thread finishes it. */
		__atomic_fetch_xor(&segment->hold, HOLD_DONE | HOLD_FINISHING, __ATOMIC_ACQ_REL);
		return;
	}
	for (uint32_t i = 0; i < segment->count; i++)
		segment->slots[i].sequence = 0;
	segment->drained = 0;
	__atomic_fetch_and(&segment->hold, ~(HOLD_FULL | HOLD_DONE), __ATOMIC_ACQ_REL);
	if (is_small) {
		nt_segment_give(pool, segment);
	} else {
		/* Cleared before its chunks are free, since the next launch that takes them sets it. */
		uint64_t chunks = segment->chunks;
		segment->chunks = 0;
		__atomic_fetch_and(&pool->chunks_busy, ~chunks, __ATOMIC_RELEASE);
	}
}

/*
 * Drain and recycle a full segment if all its launches are complete: by its event, the watermarks, or all_complete.
 * Returns whether it was.
 */
static bool drain_full(struct nt_pool *pool, struct nt_segment *segment, bool all_complete)
{
	if (!all_complete) {
		/* Either is enough: the event has completed, or the watermarks cover all launches. */
		CUresult status = segment->recorded ? nt_driver.cuEventQuery(segment->event) : CUDA_ERROR_NOT_READY;
		if (status != CUDA_SUCCESS && complete_until(pool, segment, segment->count) < segment->count)
			return false;
	}
	if (segment->chunks)
		drain_large(pool, segment);
	else if (segment->drained < segment->count)
		drain_small(pool, segment, segment->drained, segment->count);
	recycle(pool, segment);
	return true;
}

/*
 * Drain the complete launches of a stream's current segment, which others may still be added to. is_short: whether the
 * pool has few free segments, so that a segment without other launches is taken from the stream. Returns whether anything
 * was done.
 */
static bool drain_open(struct nt_pool *pool, struct nt_stream *stream, bool all_complete, bool is_short)
{
	uint64_t state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);
	uint32_t number = (uint32_t)(state >> STATE_SEGMENT_SHIFT);
	uint32_t count = (uint32_t)(state >> STATE_COUNT_SHIFT) & STATE_COUNT_MASK;

	if (!number)
		return false; /* the stream has no current segment */
	struct nt_segment *segment = &pool->segments[number - 1];
	/* The index after the last complete launch. A launch without a sequence is not submitted yet. */
	uint32_t until = segment->drained;
	if (all_complete)
		while (until < count && __atomic_load_n(&segment->slots[until].sequence, __ATOMIC_ACQUIRE))
			until++;
	else
		until = complete_until(pool, segment, count);
	bool worked = until > segment->drained;
	if (worked)
		drain_small(pool, segment, segment->drained, until);
	segment->drained = until;
	/*
	 * If all is drained, close the segment so that it can be recycled: of a per-thread default stream always, since that
	 * ends with its thread and no call shows it; of others if the pool is short of segments.
	 */
	if (until == count && (is_short || nt_stream_is_per_thread(stream)) &&
	    __atomic_compare_exchange_n(&stream->state, &state, nt_stream_without_segment(state), false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE)) {
		nt_segment_close(segment, count, NULL);
		worked = true;
	}
	return worked;
}

/* Whether fewer than a quarter of the small segments are free. */
static bool runs_short(const struct nt_pool *pool)
{
	uint64_t count = 0;

	/* 64 segments a word, a bit for each. */
	for (uint64_t i = 0; i < (pool->small_count + 63) / 64; i++)
		count += (uint64_t)__builtin_popcountll(__atomic_load_n(&pool->small_free[i], __ATOMIC_RELAXED));
	return count < pool->small_count / 4;
}

/*
 * Drain what is complete in a pool. all_complete: whether every submitted launch is known to be. Returns whether anything
 * was done.
 */
static bool drain_pool(struct nt_pool *pool, bool all_complete)
{
	bool worked = false, is_short = runs_short(pool);

	for (uint64_t i = 0; i < pool->small_count + CHUNKS; i++) {
		struct nt_segment *segment = &pool->segments[i];
		if (__atomic_load_n(&segment->hold, __ATOMIC_ACQUIRE) & HOLD_DONE)
			worked |= drain_full(pool, segment, all_complete);
	}
	for (unsigned i = 0; i < STREAMS; i++)
		if (__atomic_load_n(&pool->streams[i].key, __ATOMIC_ACQUIRE))
			worked |= drain_open(pool, &pool->streams[i], all_complete, is_short);
	return worked;
}

/* Drain a pool whose context or process ends, and free it unless the process ends. */
static void close_pool(struct nt_pool *pool)
{
	uint64_t moment = __atomic_load_n(&nt_submissions, __ATOMIC_ACQUIRE);
	/* Wait for all launches. If a kernel never ends, this never returns; the caller that waits for it has a time limit. */
	bool complete = nt_driver.cuCtxSynchronize() == CUDA_SUCCESS;

	if (complete)
		nt_raise_to(&pool->watermark, moment);
	else
		nt_trace_note("the context ended with an error: records of its last launches are lost");
	/* After an error everything is drained, and marked as lost if it cannot be copied. */
	drain_pool(pool, !complete);
	if (!__atomic_load_n(&pool->ending, __ATOMIC_ACQUIRE))
		nt_pool_unmake(pool, true);
}

/*
 * The main function of the drain thread: visit all pools again and again. The pause between two rounds is the shortest as
 * long as there is something to drain, and grows to the longest otherwise.
 */
static void *drain(void *unused)
{
	enum { SHORTEST_PAUSE = 1000, LONGEST_PAUSE = 8000, PAUSE_STEP = 500 }; /* microseconds */
	long pause = SHORTEST_PAUSE;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	(void)unused;
	/* Calls of this thread must neither fail because the program captures a stream, nor become part of the capture. */
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	for (;;) {
		bool worked = false;
		for (unsigned i = 0; i < CONTEXTS; i++) {
			struct nt_pool *pool = &nt_pools[i];
			int state = __atomic_load_n(&pool->state, __ATOMIC_ACQUIRE);
			CUcontext popped;
			if (state != POOL_READY && state != POOL_CLOSING)
				continue;
			if (nt_driver.cuCtxPushCurrent_v2(__atomic_load_n(&pool->context, __ATOMIC_ACQUIRE)) ==
			    CUDA_SUCCESS) {
				if (state == POOL_CLOSING)
					close_pool(pool);
				else
					worked |= drain_pool(pool, false);
				nt_driver.cuCtxPopCurrent_v2(&popped);
			} else if (state == POOL_CLOSING && !__atomic_load_n(&pool->ending, __ATOMIC_ACQUIRE)) {
				/* The context is gone already, and with it what the driver has allocated. */
				nt_pool_unmake(pool, false);
			}
			if (state == POOL_CLOSING)
				__atomic_store_n(&pool->state, POOL_CLOSED, __ATOMIC_RELEASE);
		}
		nt_trace_round();
		if (worked)
			pause = SHORTEST_PAUSE;
		else if (pause < LONGEST_PAUSE)
			pause += PAUSE_STEP;
		nt_sleep_us(pause);
	}
	return NULL;
}

bool nt_drain_start(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static bool started;
	sigset_t all, before;
	pthread_t thread;
	pthread_attr_t attributes;

	pthread_mutex_lock(&mutex);
	/* With all signals blocked, so that the program's signals are delivered to its own threads. */
	if (!started) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		pthread_attr_init(&attributes);
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
		started = pthread_create(&thread, &attributes, drain, NULL) == 0;
		if (started)
			pthread_setname_np(thread, "neutrino-drain");
		pthread_attr_destroy(&attributes);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	pthread_mutex_unlock(&mutex);
	return started;
}
