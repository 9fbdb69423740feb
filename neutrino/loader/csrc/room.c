#include "segment.h"

#include "trace.h"

/* Everything here but nt_pool_forget_stream runs on the launch path: lock-free, from any thread. */

uint64_t nt_submissions;

/*
 * A number of the calling thread. Not the system's thread id, which a later thread may get while launches of this one
 * still run.
 */
static uint32_t thread_number(void)
{
	static __thread __attribute__((tls_model("initial-exec"))) uint32_t number;
	static uint32_t last;

	if (!number)
		number = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
	return number;
}

#define KEY_MARK_BITS 3
#define KEY_MARK_MASK 7u
#define PER_THREAD 2u

/*
 * The key of a stream in the table: its handle, or for a per-thread default stream the thread's number, marked by
 * PER_THREAD in the low bits. These are 0 in handles, which are pointers, and 1 in CU_STREAM_LEGACY.
 */
static uint64_t stream_key(CUstream handle)
{
	if (handle == CU_STREAM_PER_THREAD)
		return (uint64_t)thread_number() << KEY_MARK_BITS | PER_THREAD;
	return (uint64_t)(uintptr_t)handle;
}

bool nt_stream_is_per_thread(const struct nt_stream *stream)
{
	return (stream->key & KEY_MARK_MASK) == PER_THREAD;
}

static CUstream stream_handle(const struct nt_stream *stream)
{
	return nt_stream_is_per_thread(stream) ? CU_STREAM_PER_THREAD : (CUstream)(uintptr_t)stream->key;
}

/*
 * The stream of a handle in the pool's hash table. add: whether to add it if it is missing. NULL if it is missing, or the
 * table is full. Streams are never removed: a new one with the same handle uses the same row.
 */
static struct nt_stream *find_stream(struct nt_pool *pool, CUstream handle, bool add)
{
	uint64_t key = stream_key(handle);
	/* Fibonacci hashing, by 2^64 divided by the golden ratio: the upper bits depend on all bits of the key. */
	uint64_t start = key * UINT64_C(0x9e3779b97f4a7c15) >> 40;

	for (uint64_t i = 0; i < STREAMS; i++) {
		struct nt_stream *stream = &pool->streams[(start + i) % STREAMS];
		uint64_t found = __atomic_load_n(&stream->key, __ATOMIC_ACQUIRE);
		if (found == 0 && !add)
			return NULL;
		if (found == 0 && __atomic_compare_exchange_n(&stream->key, &found, key, false, __ATOMIC_ACQ_REL,
							      __ATOMIC_ACQUIRE))
			return stream;
		/* found: also what another thread has just put there. */
		if (found == key)
			return stream;
	}
	return NULL;
}

/*
 * Hand a full segment, all of whose launches are submitted, over to the drain thread, with an event after the last launch
 * if possible. own: the stream that the calling thread launches on, or is about to destroy; NULL if there is none. An
 * event can be recorded only there, since the program may destroy any other stream at the same time. A segment without an
 * event is complete when a watermark shows it.
 */
static void finish_segment(struct nt_segment *segment, const struct nt_stream *own)
{
	segment->recorded = segment->stream == own &&
			    nt_driver.cuEventRecord(segment->event, stream_handle(own)) == CUDA_SUCCESS;
	/* One step: the segment may be recycled as soon as it is done. */
	__atomic_fetch_xor(&segment->hold, HOLD_FINISHING | HOLD_DONE, __ATOMIC_RELEASE);
}

/*
 * Finish a segment if it is full and nobody holds it. hold: its value as the caller has seen it. If several threads see
 * that, one of them finishes it. own: as of finish_segment.
 */
static void finish_if_last(struct nt_segment *segment, uint32_t hold, const struct nt_stream *own)
{
	while ((hold & HOLD_FULL) && !(hold & (HOLD_DONE | HOLD_FINISHING | HOLD_COUNT))) {
		if (!__atomic_compare_exchange_n(&segment->hold, &hold, hold | HOLD_FINISHING, false, __ATOMIC_ACQ_REL,
						 __ATOMIC_ACQUIRE))
			continue;
		finish_segment(segment, own);
		return;
	}
}

/* Give up a hold on a segment: the caller's launch in it has been submitted, or it takes none. */
static void release_segment(struct nt_segment *segment, const struct nt_stream *own)
{
	finish_if_last(segment, __atomic_sub_fetch(&segment->hold, 1, __ATOMIC_ACQ_REL), own);
}

void nt_segment_close(struct nt_segment *segment, uint32_t count, const struct nt_stream *own)
{
	__atomic_store_n(&segment->count, count, __ATOMIC_RELEASE);
	finish_if_last(segment, __atomic_or_fetch(&segment->hold, HOLD_FULL, __ATOMIC_ACQ_REL), own);
}

uint64_t nt_stream_without_segment(uint64_t state)
{
	return (((state >> STATE_GENERATION_SHIFT) + 1) & STATE_GENERATION_MASK) << STATE_GENERATION_SHIFT;
}

/* Take a free small segment of the pool; NULL if there is none. */
static struct nt_segment *take_small(struct nt_pool *pool)
{
	/* A bit for each segment, 1 for a free one. The search begins where one was found last. */
	uint32_t words = (uint32_t)((pool->small_count + 63) / 64);
	uint32_t hint = __atomic_load_n(&pool->small_hint, __ATOMIC_RELAXED);

	for (uint32_t i = 0; i < words; i++) {
		uint64_t *word = &pool->small_free[(hint + i) % words];
		uint64_t bits = __atomic_load_n(word, __ATOMIC_ACQUIRE);
		while (bits) {
			int bit = __builtin_ctzll(bits);
			if (__atomic_compare_exchange_n(word, &bits, bits & ~(UINT64_C(1) << bit), false,
							__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
				__atomic_store_n(&pool->small_hint, (hint + i) % words, __ATOMIC_RELAXED);
				return &pool->segments[(hint + i) % words * 64 + (uint32_t)bit];
			}
		}
	}
	return NULL;
}

void nt_segment_give(struct nt_pool *pool, struct nt_segment *segment)
{
	uint64_t index = (uint64_t)(segment - pool->segments);

	__atomic_fetch_or(&pool->small_free[index / 64], UINT64_C(1) << index % 64, __ATOMIC_RELEASE);
}

/* As nt_pool_take, for a launch that does not fit in a small segment: take a run of free chunks. */
static enum nt_room_result take_large(struct nt_pool *pool, CUstream handle, uint64_t size, struct nt_room *ret)
{
	if (size > nt_pool_most(pool))
		return NT_ROOM_TOO_LARGE;
	uint64_t chunks = (size + pool->chunk_size - 1) / pool->chunk_size;
	struct nt_stream *stream = find_stream(pool, handle, true);
	if (!stream)
		return NT_ROOM_FULL;
	/* A bit per chunk; search the first run of zeros that is long enough, and set it. C has no shift by all 64 bits. */
	uint64_t run = chunks == CHUNKS ? ~UINT64_C(0) : (UINT64_C(1) << chunks) - 1;
	uint64_t busy = __atomic_load_n(&pool->chunks_busy, __ATOMIC_ACQUIRE);
	for (unsigned first = 0; first + chunks <= CHUNKS;) {
		if (busy & run << first) {
			first++;
			continue;
		}
		if (!__atomic_compare_exchange_n(&pool->chunks_busy, &busy, busy | run << first, false,
						 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			/* Other chunks were taken or freed: search again, in the new value of busy. */
			first = 0;
			continue;
		}
		struct nt_segment *segment = &pool->segments[pool->small_count + first];
		segment->chunks = run << first;
		segment->stream = stream;
		segment->life = __atomic_load_n(&stream->lives, __ATOMIC_ACQUIRE);
		segment->count = 1;
		segment->slots[0] = (struct nt_slot){.size = size};
		/* Full with this launch, which is the one holder. */
		__atomic_store_n(&segment->hold, HOLD_FULL | 1, __ATOMIC_RELEASE);
		*ret = (struct nt_room){segment, stream, 0, segment->address};
		return NT_ROOM;
	}
	return NT_ROOM_FULL;
}

enum nt_room_result nt_pool_take(struct nt_pool *pool, CUstream handle, uint64_t size, struct nt_room *ret)
{
	if (size > SEGMENT_SIZE)
		return take_large(pool, handle, size, ret);

	struct nt_stream *stream = find_stream(pool, handle, true);
	if (!stream)
		return NT_ROOM_FULL;
	uint64_t units = (size + UNIT - 1) / UNIT;
	uint64_t state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);
	for (;;) {
		uint32_t number = (uint32_t)(state >> STATE_SEGMENT_SHIFT);
		uint32_t count = (uint32_t)(state >> STATE_COUNT_SHIFT) & STATE_COUNT_MASK;
		uint64_t used = state & STATE_UNITS_MASK;
		struct nt_segment *current = number ? &pool->segments[number - 1] : NULL;
		/* There is space in the stream's current segment. */
		if (current && count < SLOTS && used + units <= SEGMENT_SIZE / UNIT) {
			/* Held before the exchange: the segment could be recycled, and taken by another stream, in between. */
			__atomic_fetch_add(&current->hold, 1, __ATOMIC_ACQ_REL);
			/* One launch more in the segment, and its units. */
			if (__atomic_compare_exchange_n(&stream->state, &state,
							state + (UINT64_C(1) << STATE_COUNT_SHIFT) + units, false,
							__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
				current->slots[count].offset = (uint32_t)used;
				*ret = (struct nt_room){current, stream, count, current->address + used * UNIT};
				return NT_ROOM;
			}
			release_segment(current, stream);
			continue;
		}
		struct nt_segment *next = take_small(pool);
		if (!next) {
			/* Close the current one all the same: only a closed segment is recycled. */
			if (current && __atomic_compare_exchange_n(&stream->state, &state, nt_stream_without_segment(state), false,
								   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
				nt_segment_close(current, count, stream);
			return NT_ROOM_FULL;
		}

		/* A new segment becomes the stream's current one, with this launch as its first. */
		__atomic_store_n(&next->stream, stream, __ATOMIC_RELEASE);
		next->life = __atomic_load_n(&stream->lives, __ATOMIC_ACQUIRE);
		__atomic_fetch_add(&next->hold, 1, __ATOMIC_ACQ_REL);
		uint64_t generation = (state >> STATE_GENERATION_SHIFT) + 1;
		uint64_t replaced = (uint64_t)(next - pool->segments + 1) << STATE_SEGMENT_SHIFT |
				    (generation & STATE_GENERATION_MASK) << STATE_GENERATION_SHIFT |
				    UINT64_C(1) << STATE_COUNT_SHIFT | units;
		if (__atomic_compare_exchange_n(&stream->state, &state, replaced, false, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE)) {
			if (current)
				nt_segment_close(current, count, stream);
			next->slots[0].offset = 0;
			*ret = (struct nt_room){next, stream, 0, next->address};
			return NT_ROOM;
		}
		/* Another thread has changed the stream's state: return the new segment and try again. */
		release_segment(next, stream);
		nt_segment_give(pool, next);
	}
}

void nt_pool_submitted(const struct nt_room *room, struct nt_kernel *kernel, struct nt_layout *layout, uint64_t launch,
		       uint64_t size, bool launched)
{
	struct nt_slot *slot = &room->segment->slots[room->slot];

	slot->kernel = launched ? kernel : NULL;
	slot->layout = launched ? layout : NULL;
	slot->launch = launch;
	slot->size = size;
	/* Last: a slot with a sequence is read by the drain thread. */
	__atomic_store_n(&slot->sequence, __atomic_add_fetch(&nt_submissions, 1, __ATOMIC_ACQ_REL), __ATOMIC_RELEASE);
	release_segment(room->segment, room->stream);
}

void nt_watermark_before(struct nt_watermark *mark, CUcontext context, CUstream stream)
{
	mark->pool = nt_pool_find(context);
	mark->stream = stream;
	mark->moment = __atomic_load_n(&nt_submissions, __ATOMIC_ACQUIRE);
}

void nt_watermark_after(const struct nt_watermark *mark)
{
	if (!mark->pool)
		return;
	if (!mark->stream) {
		nt_raise_to(&mark->pool->watermark, mark->moment);
		return;
	}
	struct nt_stream *stream = find_stream(mark->pool, mark->stream, false);
	if (stream)
		nt_raise_to(&stream->watermark, mark->moment);
}

void nt_pool_forget_stream(CUcontext context, CUstream handle)
{
	struct nt_pool *pool = nt_pool_find(context);
	struct nt_stream *stream = pool ? find_stream(pool, handle, false) : NULL;
	int capturing = CU_STREAM_CAPTURE_STATUS_NONE;

	if (!stream)
		return;
	/* Take the current segment from the stream. */
	uint64_t state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);
	while (!__atomic_compare_exchange_n(&stream->state, &state, nt_stream_without_segment(state), false, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE))
		;
	/* A stream with the same handle may come later, whose watermark says nothing about launches until now. */
	__atomic_add_fetch(&stream->lives, 1, __ATOMIC_RELEASE);
	uint32_t number = (uint32_t)(state >> STATE_SEGMENT_SHIFT);
	if (!number)
		return;
	/* In a capture the event would become a part of the program's graph. */
	bool recordable = nt_driver.cuStreamIsCapturing(handle, &capturing) == CUDA_SUCCESS &&
			  capturing == CU_STREAM_CAPTURE_STATUS_NONE;
	nt_segment_close(&pool->segments[number - 1], (uint32_t)(state >> STATE_COUNT_SHIFT) & STATE_COUNT_MASK,
		      recordable ? stream : NULL);
}
