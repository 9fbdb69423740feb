/* The thread that copies complete launches back, has them written, zeroes their segments and lists them again. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "frames.h"
#include "segment.h"
#include "trace.h"

bool nt_slot_is_refused(const struct nt_slot *slot)
{
	return slot->kernel == NULL;
}

static bool copy_back(struct nt_pool *pool, CUdeviceptr from, uint64_t size)
{
	return nt_driver.cuMemcpyDtoHAsync_v2(pool->staging, from, size, pool->stream) == CUDA_SUCCESS &&
	       nt_driver.cuStreamSynchronize(pool->stream) == CUDA_SUCCESS;
}

/* Launches [from, to) of a small segment, copied back in one piece and written kernel by kernel. */
static void drain_small(struct nt_pool *pool, struct nt_segment *segment, uint32_t from, uint32_t to)
{
	uint64_t begin = segment->slots[from].offset * UNIT;
	uint64_t end = begin;
	bool handled[SLOTS] = {false};

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

static void drain_large(struct nt_pool *pool, struct nt_segment *segment)
{
	const struct nt_slot *slot = &segment->slots[0];
	uint64_t first = 0, done = 0;
	bool written = true, framed = false;
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
	/* A frame without its data would hide the frames after it from a reader. */
	if (framed && !written)
		nt_trace_cut(name, first);
	nt_frame_settle(slot, written, first);
}

/* How many launches of a segment, from the first one not yet drained, are complete by the watermarks. */
static uint32_t complete_until(const struct nt_pool *pool, const struct nt_segment *segment, uint32_t count)
{
	const struct nt_stream *stream = segment->stream;
	uint64_t stream_mark = __atomic_load_n(&stream->watermark, __ATOMIC_ACQUIRE);
	uint64_t mark = __atomic_load_n(&pool->watermark, __ATOMIC_ACQUIRE);
	uint32_t until = segment->drained;

	/* Read after the watermark: waiting for a stream says nothing of one that was destroyed before at its address. */
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

/* Everything of the segment has been copied: zero it and list it again. */
static void recycle(struct nt_pool *pool, struct nt_segment *segment)
{
	bool is_small = segment->chunks == 0;
	uint64_t size = is_small ? SEGMENT_SIZE : segment->slots[0].size;

	/* A segment that cannot be zeroed is never used again, nor looked at. */
	if (nt_driver.cuMemsetD8Async(segment->address, 0, size, pool->stream) != CUDA_SUCCESS ||
	    nt_driver.cuStreamSynchronize(pool->stream) != CUDA_SUCCESS) {
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
		uint64_t chunks = segment->chunks;
		segment->chunks = 0;
		__atomic_fetch_and(&pool->chunks_busy, ~chunks, __ATOMIC_RELEASE);
	}
}

static bool drain_full(struct nt_pool *pool, struct nt_segment *segment, bool all_complete)
{
	if (!all_complete) {
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

static bool drain_open(struct nt_pool *pool, struct nt_stream *stream, bool all_complete, bool is_short)
{
	uint64_t state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);
	uint32_t number = (uint32_t)(state >> STATE_SEGMENT_SHIFT);
	uint32_t count = (uint32_t)(state >> STATE_COUNT_SHIFT) & 0xfff;

	if (!number)
		return false;
	struct nt_segment *segment = &pool->segments[number - 1];
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
	 * A thread's default stream ends with the thread, without a call: its segment may not be left to it. Nor may
	 * streams keep segments that others lack.
	 */
	if (until == count && (is_short || nt_stream_is_per_thread(stream)) &&
	    __atomic_compare_exchange_n(&stream->state, &state, nt_stream_without_segment(state), false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE)) {
		nt_segment_close(segment, count, NULL);
		worked = true;
	}
	return worked;
}

/* Fewer than a quarter of the small segments are free. */
static bool runs_short(const struct nt_pool *pool)
{
	uint64_t count = 0;

	for (uint64_t i = 0; i < (pool->small_count + 63) / 64; i++)
		count += (uint64_t)__builtin_popcountll(__atomic_load_n(&pool->small_free[i], __ATOMIC_RELAXED));
	return count < pool->small_count / 4;
}

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

static void close_pool(struct nt_pool *pool)
{
	uint64_t moment = __atomic_load_n(&nt_submissions, __ATOMIC_ACQUIRE);
	/* What has been submitted is waited for; a kernel that never ends is cut off by the waiting caller's limit. */
	bool complete = nt_driver.cuCtxSynchronize() == CUDA_SUCCESS;

	if (complete)
		nt_raise_to(&pool->watermark, moment);
	else
		nt_trace_note("the context ended with an error: records of its last launches are lost");
	/* Of a context in error everything is taken, to be marked lost where it cannot be copied. */
	drain_pool(pool, !complete);
	if (!__atomic_load_n(&pool->ending, __ATOMIC_ACQUIRE))
		nt_pool_unmake(pool, true);
}

static void *drain(void *unused)
{
	long pause = 1000;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	(void)unused;
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
				nt_pool_unmake(pool, false);
			}
			if (state == POOL_CLOSING)
				__atomic_store_n(&pool->state, POOL_CLOSED, __ATOMIC_RELEASE);
		}
		nt_trace_grow();
		pause = worked ? 1000 : pause < 8000 ? pause + 500 : 8000;
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
