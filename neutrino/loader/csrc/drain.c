/*
 * The drain thread: it copies the maps of complete launches from the device, has them written to the trace, zeroes their
 * segments and makes these available again. All functions but nt_drain_start run in that thread, with the pool's context
 * current.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "frames.h"
#include "launch.h"
#include "registry.h"
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
		/* The frames of all launches of this kernel; used: bytes of them; first: offset of the first in the file. */
		uint64_t used = 0, first = 0;
		for (uint32_t j = i; j < to; j++) {
			const struct nt_slot *slot = &segment->slots[j];
			if (slot->kernel != kernel)
				continue;
			struct neutrino_frame frame = nt_frame_of(slot);
			memcpy(nt_frames + used, &frame, sizeof(frame));
			const uint8_t *data = pool->staging + (slot->offset * UNIT - begin);
			memcpy(nt_frames + used + sizeof(frame), data, slot->size);
			if (copied && kernel->has_dynamic_cap)
				nt_frame_learn(slot, data, 0, slot->size);
			used += sizeof(frame) + slot->size;
		}
		bool written = copied && nt_frames_append(kernel, used, &first);
		/* Settle the same launches, now that the frames' offsets in the file are known. */
		used = 0;
		for (uint32_t j = i; j < to; j++) {
			const struct nt_slot *slot = &segment->slots[j];
			if (slot->kernel != kernel)
				continue;
			handled[j] = true;
			nt_frame_settle(slot, written, first + used);
			used += sizeof(struct neutrino_frame) + slot->size;
		}
	}
}

/* Copy the one launch of a large segment from the device in pieces, and append its frame to its kernel's file. */
static void drain_large(struct nt_pool *pool, struct nt_segment *segment)
{
	const struct nt_slot *slot = &segment->slots[0];
	uint64_t first = 0, done = 0;
	bool written = true, framed = false; /* framed: the frame's header is in the file */
	char name[48];

	if (nt_slot_is_refused(slot))
		return;
	struct neutrino_frame frame = nt_frame_of(slot);
	memcpy(nt_frames, &frame, sizeof(frame));
	snprintf(name, sizeof(name), "result/%u.bin", slot->kernel->id);
	while (done < slot->size && written) {
		uint64_t piece = slot->size - done < STAGING_SIZE ? slot->size - done : STAGING_SIZE;
		uint64_t offset;
		struct iovec part = {pool->staging, piece};
		written = copy_back(pool, segment->address + done, piece);
		if (written && slot->kernel->has_dynamic_cap)
			nt_frame_learn(slot, pool->staging, done, piece);
		if (written && done == 0)
			written = framed = nt_frames_append(slot->kernel, sizeof(frame), &first);
		if (written)
			written = nt_trace_append(name, &part, 1, &offset);
		done += piece;
	}
	/* After a frame without its data, a reader could not find the next one. */
	if (framed && !written)
		nt_trace_cut(name, first);
	nt_frame_settle(slot, written, first);
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
	CUcontext context = __atomic_load_n(&pool->context, __ATOMIC_ACQUIRE);

	for (uint64_t i = 0; i < pool->small_count + CHUNKS; i++) {
		struct nt_segment *segment = &pool->segments[i];
		if (!(__atomic_load_n(&segment->hold, __ATOMIC_ACQUIRE) & HOLD_DONE))
			continue;
		/* Before each: it is zeroed, and must not be the program's by now. */
		if (!nt_pool_is_current(pool, context))
			return false;
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

/* Mark all launches of a pool as lost that were not drained yet: what they recorded is gone with their context. */
static void lose_all(struct nt_pool *pool)
{
	bool lost = false;

	for (uint64_t i = 0; i < pool->small_count + CHUNKS; i++) {
		struct nt_segment *segment = &pool->segments[i];
		bool is_large = i >= pool->small_count;
		uint32_t count = is_large ? segment->chunks != 0 : SLOTS;
		for (uint32_t j = segment->drained; j < count; j++) {
			const struct nt_slot *slot = &segment->slots[j];
			if (!__atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE) || nt_slot_is_refused(slot))
				continue;
			nt_frame_settle(slot, false, 0);
			lost = true;
		}
	}
	if (lost)
		nt_trace_note("a context was reset by a call that the hook did not see: its last records are lost");
}

/* Forget a pool and all else that is known of its context, which the driver has destroyed. */
static void forget_pool(struct nt_pool *pool, CUcontext context)
{
	lose_all(pool);
	nt_pool_unmake(pool, false);
	nt_registry_forget_context(context);
	nt_launch_forget_context(context, 0);
	__atomic_store_n(&pool->flush, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&pool->context, NULL, __ATOMIC_RELEASE);
	__atomic_store_n(&pool->state, POOL_NONE, __ATOMIC_RELEASE);
}

/* Wait for all launches of a pool, and drain them: the program is about to end its context, perhaps. */
static void flush_pool(struct nt_pool *pool)
{
	uint64_t moment = __atomic_load_n(&nt_submissions, __ATOMIC_ACQUIRE);

	if (nt_driver.cuCtxSynchronize() == CUDA_SUCCESS)
		nt_raise_to(&pool->watermark, moment);
	drain_pool(pool, false);
	__atomic_store_n(&pool->flush, 0, __ATOMIC_RELEASE);
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
			CUcontext context = __atomic_load_n(&pool->context, __ATOMIC_ACQUIRE), popped;
			if (state == POOL_GONE)
				forget_pool(pool, context);
			if (state != POOL_READY && state != POOL_CLOSING)
				continue;
			/* Also gives the pool up if it is not in this context any more. */
			if (state == POOL_READY && !nt_pool_find(context))
				continue;
			if (nt_driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
				if (state == POOL_CLOSING)
					close_pool(pool);
				else if (__atomic_load_n(&pool->flush, __ATOMIC_ACQUIRE))
					flush_pool(pool);
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
		nt_trace_grow();
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
	if (!nt_frames)
		nt_frames = nt_map_zeroed(FRAMES_SIZE);
	/* With all signals blocked, so that the program's signals are delivered to its own threads. */
	if (!started && nt_frames) {
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
