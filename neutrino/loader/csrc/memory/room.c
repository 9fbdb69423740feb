#include "base/grace.h"
#include "base/wake.h"
#include "memory/segment.h"

/* Everything here runs on the launch path: lock-free, from any thread. */

/*
 * Take a free small segment (256 KiB of device memory for the results of one stream's launches) of the pool; NULL if
 * there is none.
 */
static struct nt_segment *take_small(struct nt_pool *pool)
{
	/* A bit for each segment, 1 for a free one. The search begins where one was found last. */
	uint32_t slabs = __atomic_load_n(&pool->slab_end, __ATOMIC_ACQUIRE);
	uint32_t hint = __atomic_load_n(&pool->small_hint, __ATOMIC_RELAXED);

	for (uint32_t i = 0; i < slabs; i++) {
		uint32_t slab = (hint + i) % slabs;
		uint64_t *word = &pool->slabs[slab].free;
		uint64_t bits = __atomic_load_n(word, __ATOMIC_ACQUIRE);
		while (bits) {
			int bit = __builtin_ctzll(bits);
			if (__atomic_compare_exchange_n(word, &bits, bits & ~(UINT64_C(1) << bit), false,
							__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
				if (slab != hint)
					__atomic_store_n(&pool->small_hint, slab, __ATOMIC_RELAXED);
				return &pool->segments[slab * SLAB_SEGMENTS + (uint32_t)bit];
			}
		}
	}
	return NULL;
}

/*
 * Make a small segment (256 KiB for one stream) of the pool (device memory for results) available to launches again.
 * Lock-free.
 */
void nt_room_give(struct nt_pool *pool, struct nt_segment *segment)
{
	uint64_t index = (uint64_t)(segment - pool->segments);

	__atomic_fetch_or(&pool->slabs[index / SLAB_SEGMENTS].free, UINT64_C(1) << index % SLAB_SEGMENTS,
			  __ATOMIC_RELEASE);
}

/*
 * The record of a stream in its context's pool, with one more reference for the memory (segment) that it will get; NULL
 * if there is no row for it.
 */
static struct nt_stream *hold_stream(struct nt_pool *pool, CUstream handle)
{
	for (;;) {
		struct nt_stream *stream = nt_streams_find(pool, handle, true);
		if (!stream)
			return NULL;
		__atomic_fetch_add(&stream->references, 1, __ATOMIC_ACQ_REL);
		/* Change the state, so that a thread that saw the row without references does not take it out. */
		uint64_t state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);
		uint64_t changed;
		do {
			uint64_t generation = UINT64_C(1) << STATE_GENERATION_SHIFT;
			uint64_t mask = (uint64_t)STATE_GENERATION_MASK << STATE_GENERATION_SHIFT;
			changed = (state & ~mask) | ((state + generation) & mask);
		} while (!nt_state_is_gone(state) &&
			 !__atomic_compare_exchange_n(&stream->state, &state, changed, false, __ATOMIC_ACQ_REL,
						      __ATOMIC_ACQUIRE));
		if (!nt_state_is_gone(state))
			return stream;
		nt_streams_release(pool, stream);
	}
}

/*
 * Take a run of free chunks of an area (device memory for large launches) for a launch of size bytes; the segment that
 * stands for them gets its stream later. NULL if there is none that is long enough.
 */
static struct nt_segment *take_chunks(struct nt_pool *pool, struct nt_area *area, uint64_t size)
{
	uint64_t busy = __atomic_load_n(&area->busy, __ATOMIC_ACQUIRE);
	/* Read before the exchange, by which it is known that the area had memory all the time. */
	uint64_t chunk_size = __atomic_load_n(&area->chunk_size, __ATOMIC_ACQUIRE);
	uint64_t chunks = chunk_size ? (size + chunk_size - 1) / chunk_size : CHUNKS + 1;

	if (chunks > CHUNKS)
		return NULL;
	/* A bit per chunk; search the first run of zeros that is long enough, and set it. C has no shift by all 64 bits. */
	uint64_t run = chunks == CHUNKS ? ~UINT64_C(0) : (UINT64_C(1) << chunks) - 1;
	for (unsigned first = 0; first + chunks <= CHUNKS;) {
		if (busy & run << first) {
			first++;
			continue;
		}
		if (!__atomic_compare_exchange_n(&area->busy, &busy, busy | run << first, false, __ATOMIC_ACQ_REL,
						 __ATOMIC_ACQUIRE)) {
			/* Other chunks were taken or freed: search again, in the new value of busy. */
			first = 0;
			continue;
		}
		/* The area may have been given back and made again, with other chunks, before the exchange. */
		if (__atomic_load_n(&area->chunk_size, __ATOMIC_ACQUIRE) != chunk_size) {
			__atomic_fetch_and(&area->busy, ~(run << first), __ATOMIC_RELEASE);
			return NULL;
		}
		struct nt_segment *segment = &pool->segments[SMALL_MOST + (area - pool->areas) * CHUNKS + first];
		segment->chunks = run << first;
		return segment;
	}
	return NULL;
}

/* Bytes of device memory that the largest launch has in the pool once others have ended. Lock-free. */
uint64_t nt_room_largest(const struct nt_pool *pool)
{
	uint64_t most = 0;

	for (unsigned i = 0; i < AREAS; i++) {
		uint64_t bytes = CHUNKS * __atomic_load_n(&pool->areas[i].chunk_size, __ATOMIC_RELAXED);
		most = bytes > most ? bytes : most;
	}
	return most;
}

/* Bytes of device memory for large launches that are free in the pool now, in one stretch at best. Lock-free. */
uint64_t nt_room_free_large(const struct nt_pool *pool)
{
	uint64_t most = 0;

	for (unsigned i = 0; i < AREAS; i++) {
		uint64_t busy = __atomic_load_n(&pool->areas[i].busy, __ATOMIC_RELAXED);
		uint64_t chunk_size = __atomic_load_n(&pool->areas[i].chunk_size, __ATOMIC_RELAXED);
		uint64_t bytes = (CHUNKS - (uint64_t)__builtin_popcountll(busy)) * chunk_size;
		most = bytes > most ? bytes : most;
	}
	return most;
}

/*
 * Bytes of the largest memory for large launches of the pool (device memory for results) in one stretch of which no launch
 * has any now; 0 if there is none. Lock-free.
 */
uint64_t nt_room_idle(const struct nt_pool *pool)
{
	uint64_t most = 0;

	for (unsigned i = 0; i < AREAS; i++) {
		uint64_t busy = __atomic_load_n(&pool->areas[i].busy, __ATOMIC_RELAXED);
		uint64_t bytes = CHUNKS * __atomic_load_n(&pool->areas[i].chunk_size, __ATOMIC_RELAXED);
		most = !busy && bytes > most ? bytes : most;
	}
	return most;
}

/* Whether a launch of size bytes takes room for large launches. */
bool nt_room_is_large(uint64_t size)
{
	return size > SEGMENT_SIZE;
}

/*
 * Whether a launch of size bytes can find room in the pool (device memory for results) once others have ended, as far
 * as is known. Lock-free.
 */
bool nt_room_reaches(const struct nt_pool *pool, uint64_t size)
{
	uint64_t refused = __atomic_load_n(&pool->large_refused, __ATOMIC_RELAXED);

	return size <= SEGMENT_SIZE || !refused || size < refused || nt_room_largest(pool) >= size;
}

/*
 * Ask the drain thread (it fetches results) to get memory for large launches of size bytes, in its next round.
 * Lock-free.
 */
void nt_room_want_large(struct nt_pool *pool, uint64_t size)
{
	nt_raise_to(&pool->large_wanted, size);
}

/*
 * Take room for a launch that does not fit in a small segment (256 KiB for one stream): a run of free chunks, zeroed.
 * handle: the stream. NT_ROOM with *ret, or why there is none; then the drain thread (it fetches results) is asked for
 * more.
 */
static enum nt_room_result take_large(struct nt_pool *pool, CUstream handle, uint64_t size, struct nt_room *ret)
{
	if (size > nt_slabs_most(pool))
		return NT_ROOM_TOO_LARGE;
	struct nt_stream *stream = hold_stream(pool, handle);
	if (!stream)
		return NT_ROOM_FULL;
	for (unsigned i = 0; i < AREAS; i++) {
		struct nt_segment *segment = take_chunks(pool, &pool->areas[i], size);
		if (!segment)
			continue;
		segment->stream = stream;
		segment->count = 1;
		segment->slots[0] = (struct nt_slot){.size = size};
		/* Full with this launch, which is the one holder. */
		__atomic_store_n(&segment->hold, HOLD_FULL | 1, __ATOMIC_RELEASE);
		*ret = (struct nt_room){segment, stream, pool, 0, segment->address};
		return NT_ROOM;
	}
	nt_streams_release(pool, stream);
	nt_raise_to(&pool->large_wanted, size);
	return NT_ROOM_FULL;
}

/*
 * Take memory for the results of a launch of size bytes on a stream, in the reading section of nt_room_take: behind the
 * launches before in the stream's current segment (256 KiB), or in a new one.
 */
static enum nt_room_result take_room(struct nt_pool *pool, CUstream handle, uint64_t size, struct nt_room *ret)
{
	if (size > SEGMENT_SIZE)
		return take_large(pool, handle, size, ret);

	struct nt_stream *stream = nt_streams_find(pool, handle, true);
	if (!stream)
		return NT_ROOM_FULL;
	uint64_t units = (size + UNIT - 1) / UNIT;
	uint64_t state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);
	for (;;) {
		if (nt_state_is_gone(state)) {
			/* It has left the table since it was found. */
			stream = nt_streams_find(pool, handle, true);
			if (!stream)
				return NT_ROOM_FULL;
			state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);
			continue;
		}
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
				*ret = (struct nt_room){current, stream, pool, count, current->address + used * UNIT};
				return NT_ROOM;
			}
			nt_segment_release(current, stream);
			continue;
		}
		struct nt_segment *next = take_small(pool);
		if (!next) {
			/* Close the current one all the same: only a closed segment is recycled. */
			if (current && __atomic_compare_exchange_n(&stream->state, &state, nt_streams_without_segment(state), false,
								   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
				nt_segment_close(current, count, stream);
			__atomic_store_n(&pool->small_wanted, 1, __ATOMIC_RELAXED);
			return NT_ROOM_FULL;
		}

		/* A new segment becomes the stream's current one, with this launch as its first. */
		__atomic_store_n(&next->stream, stream, __ATOMIC_RELEASE);
		__atomic_fetch_add(&stream->references, 1, __ATOMIC_ACQ_REL);
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
			*ret = (struct nt_room){next, stream, pool, 0, next->address};
			return NT_ROOM;
		}
		/* Another thread has changed the stream's state: return the new segment and try again. */
		nt_segment_release(next, stream);
		nt_room_give(pool, next);
		nt_streams_release(pool, stream);
	}
}

/*
 * Take size zeroed bytes of device memory for a launch's results, on a stream (default streams by their explicit
 * handles). After NT_ROOM the caller must call nt_room_submitted. Lock-free.
 */
enum nt_room_result nt_room_take(struct nt_pool *pool, CUstream handle, uint64_t size, struct nt_room *ret)
{
	uint32_t *reading = nt_grace_reading_begin();
	enum nt_room_result result = take_room(pool, handle, size, ret);

	nt_grace_reading_end(reading);
	/* A thread that dozes has to make room; one that sleeps is woken once the launch is submitted. */
	if (result == NT_ROOM_FULL || (result == NT_ROOM && ret->slot == 0))
		nt_wake_drain_from(NT_DOZING);
	return result;
}

/*
 * A launch that has memory for results was submitted, or with launched false not: from now on its results may be
 * fetched. It is of a kernel, or a launch of a graph with that layout (what its nodes run); the other is NULL. launch:
 * its number in launches.bin; size: bytes of results. Lock-free.
 */
void nt_room_submitted(const struct nt_room *room, struct nt_kernel *kernel, struct nt_layout *layout, uint64_t launch,
		       uint64_t size, bool launched)
{
	struct nt_slot *slot = &room->segment->slots[room->slot];

	slot->kernel = launched ? kernel : NULL;
	slot->layout = launched ? layout : NULL;
	slot->launch = launch;
	slot->size = size;
	/* After the submission: a wait that begins later covers it. */
	uint64_t sequence = __atomic_add_fetch(&room->stream->submitted, 1, __ATOMIC_SEQ_CST);
	slot->wave = __atomic_load_n(&room->pool->wave, __ATOMIC_SEQ_CST);
	/* Last: a slot with a sequence is read by the drain thread. */
	__atomic_store_n(&slot->sequence, sequence, __ATOMIC_RELEASE);
	nt_segment_release(room->segment, room->stream);
	nt_wake_drain_from(NT_ASLEEP);
}
