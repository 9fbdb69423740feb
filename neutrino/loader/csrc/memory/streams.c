/*
 * The streams of a pool: a hash table of lists. A row is added without a lock by the first launch on its stream, leaves
 * the table when the stream is destroyed (or, of a thread's default stream, whenever all of it is drained), and is used
 * again after a grace period, once no segment refers to it.
 */
#include "base/grace.h"
#include "base/lock.h"
#include "base/mapped.h"
#include "base/wake.h"
#include "memory/segment.h"

#include <sys/mman.h>

/*
 * The key of a stream in the table: its handle, or for the calling thread's default stream the thread's number with a
 * mark.
 */
static uint64_t stream_key(CUstream handle)
{
	if (handle == CU_STREAM_PER_THREAD)
		return (uint64_t)nt_grace_thread() << KEY_MARK_BITS | PER_THREAD;
	return (uint64_t)(uintptr_t)handle;
}

/* The row (record of a stream) of that number in a pool, which counts from 1. */
static struct nt_stream *row_of(const struct nt_pool *pool, uint32_t number)
{
	return &__atomic_load_n(&pool->rows[(number - 1) / ROWS_OF_BLOCK], __ATOMIC_ACQUIRE)[(number - 1) % ROWS_OF_BLOCK];
}

/* The number of a stream's row (its record) in a pool, from 1; 0 if it is none of the pool's. */
static uint32_t number_of(const struct nt_pool *pool, const struct nt_stream *stream)
{
	for (uint32_t i = 0; i < pool->row_blocks; i++)
		if (stream >= pool->rows[i] && stream < pool->rows[i] + ROWS_OF_BLOCK)
			return i * ROWS_OF_BLOCK + (uint32_t)(stream - pool->rows[i]) + 1;
	return 0;
}

/* The head of the list in which a stream with that key is: the number of its first row, 0 if it is empty. */
static uint32_t *bucket_of(const struct nt_pool *pool, uint64_t key)
{
	/* Fibonacci hashing, by 2^64 divided by the golden ratio: the upper bits depend on all bits of the key. */
	return &pool->buckets[(key * UINT64_C(0x9e3779b97f4a7c15) >> 40) % BUCKETS];
}

/* Put a row (record of a stream) among the free ones of a pool. Lock-free. */
static void give_row(struct nt_pool *pool, uint32_t number)
{
	uint64_t head = __atomic_load_n(&pool->free_rows, __ATOMIC_RELAXED), changed;

	do {
		__atomic_store_n(&row_of(pool, number)->next_gone, (uint32_t)head, __ATOMIC_RELAXED);
		changed = ((head >> 32) + 1) << 32 | number;
	} while (!__atomic_compare_exchange_n(&pool->free_rows, &head, changed, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

/*
 * Take a free row (record of a stream) of a pool, by its number; 0 if there is none. The count of changes shows if the
 * first one was taken and is back. Lock-free.
 */
static uint32_t take_row(struct nt_pool *pool)
{
	uint64_t head = __atomic_load_n(&pool->free_rows, __ATOMIC_ACQUIRE), changed;

	do {
		if (!(uint32_t)head)
			return 0;
		uint32_t next = __atomic_load_n(&row_of(pool, (uint32_t)head)->next_gone, __ATOMIC_RELAXED);
		changed = ((head >> 32) + 1) << 32 | next;
	} while (!__atomic_compare_exchange_n(&pool->free_rows, &head, changed, true, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE));
	return (uint32_t)head;
}

/*
 * The row with a key in a list of rows, from `number` up to `end`, which is not looked at; rows that have left the
 * table do not count. NULL if there is none.
 */
static struct nt_stream *find_in(const struct nt_pool *pool, uint32_t number, uint32_t end, uint64_t key)
{
	while (number && number != end) {
		struct nt_stream *stream = row_of(pool, number);
		if (stream->key == key && !nt_state_is_gone(__atomic_load_n(&stream->state, __ATOMIC_ACQUIRE)))
			return stream;
		number = __atomic_load_n(&stream->next, __ATOMIC_ACQUIRE);
	}
	return NULL;
}

/*
 * The record of a stream in its context's pool by the stream's handle; with add it is made if it is missing. NULL if it
 * is missing, or there is no free one. In a reading section (what is found in it is not freed), lock-free.
 */
struct nt_stream *nt_streams_find(struct nt_pool *pool, CUstream handle, bool add)
{
	uint64_t key = stream_key(handle);
	uint32_t *bucket = bucket_of(pool, key);
	uint32_t head = __atomic_load_n(bucket, __ATOMIC_ACQUIRE);
	struct nt_stream *stream = find_in(pool, head, 0, key);

	if (stream || !add)
		return stream;
	uint32_t number = take_row(pool);
	if (!number)
		return NULL;
	stream = row_of(pool, number);
	stream->key = key;
	stream->submitted = stream->watermark = 0;
	stream->references = 1;
	stream->life++;
	__atomic_store_n(&stream->state, nt_streams_without_segment(stream->state), __ATOMIC_RELAXED);
	for (;;) {
		__atomic_store_n(&stream->next, head, __ATOMIC_RELAXED);
		if (__atomic_compare_exchange_n(bucket, &head, number, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			__atomic_fetch_add(&pool->rows_used, 1, __ATOMIC_RELAXED);
			return stream;
		}
		/* Another row was added, perhaps by another thread for the same stream; or the first one was taken out. */
		struct nt_stream *other = find_in(pool, head, 0, key);
		if (other) {
			__atomic_store_n(&stream->state, (uint64_t)STATE_GONE << STATE_SEGMENT_SHIFT |
								 (stream->state & ((UINT64_C(1) << STATE_SEGMENT_SHIFT) - 1)),
					 __ATOMIC_RELAXED);
			give_row(pool, number);
			return other;
		}
	}
}

/*
 * The next state of a stream, in which it has no segment (memory for results): not equal to any recent state of it, as
 * its generation goes on.
 */
uint64_t nt_streams_without_segment(uint64_t state)
{
	return (((state >> STATE_GENERATION_SHIFT) + 1) & STATE_GENERATION_MASK) << STATE_GENERATION_SHIFT;
}

/*
 * Take a stream's row that is marked as gone out of its list. Under the mutex, so that only new rows change the lists
 * meanwhile.
 */
static void unlink_row(struct nt_pool *pool, struct nt_stream *stream)
{
	uint32_t *bucket = bucket_of(pool, stream->key), number = number_of(pool, stream), head = number;

	/* The first one: unless a new one has come before it. */
	if (__atomic_compare_exchange_n(bucket, &head, stream->next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return;
	while (head) {
		struct nt_stream *before = row_of(pool, head);
		if (before->next == number) {
			__atomic_store_n(&before->next, stream->next, __ATOMIC_RELEASE);
			return;
		}
		head = before->next;
	}
}

/*
 * Give up a reference to a stream's record, of a segment (memory for results) or of the table: the last one frees it
 * after a grace period, when no thread can be reading it. Lock-free.
 */
void nt_streams_release(struct nt_pool *pool, struct nt_stream *stream)
{
	if (__atomic_sub_fetch(&stream->references, 1, __ATOMIC_ACQ_REL))
		return;
	stream->ticket = nt_grace_ticket();
	uint32_t head = __atomic_load_n(&pool->gone, __ATOMIC_RELAXED);
	do
		__atomic_store_n(&stream->next_gone, head, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&pool->gone, &head, number_of(pool, stream), true, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED));
}

/* Take a stream out of the table, whose state the caller has set to gone. Takes the mutex. */
static void leave_table(struct nt_pool *pool, struct nt_stream *stream)
{
	nt_lock_take(&pool->streams_mutex);
	unlink_row(pool, stream);
	nt_lock_release(&pool->streams_mutex);
	nt_streams_release(pool, stream);
}

/* The state of a stream's row that leaves the table; the generation goes on. */
static uint64_t gone_state(uint64_t state)
{
	return nt_streams_without_segment(state) | (uint64_t)STATE_GONE << STATE_SEGMENT_SHIFT;
}

/*
 * Take a stream that has no segment (memory for results) out of the table, unless a launch comes meanwhile. By the
 * thread that fetches results.
 */
void nt_streams_retire(struct nt_pool *pool, struct nt_stream *stream)
{
	uint64_t state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);

	/* A launch that takes a segment counts it first, and then changes the state. */
	if (!(state >> STATE_SEGMENT_SHIFT) && __atomic_load_n(&stream->references, __ATOMIC_ACQUIRE) == 1 &&
	    __atomic_compare_exchange_n(&stream->state, &state, gone_state(state), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		leave_table(pool, stream);
}

/*
 * Just before the program destroys a stream: close its segment (memory for results), so that its results are fetched,
 * while an event can be recorded on it, and take the stream out of the table.
 */
void nt_streams_forget(CUcontext context, CUstream handle)
{
	struct nt_pool *pool = nt_pools_find(context);
	int capturing = CU_STREAM_CAPTURE_STATUS_NONE;

	if (!pool)
		return;
	uint32_t *reading = nt_grace_reading_begin();
	struct nt_stream *stream = nt_streams_find(pool, handle, false);
	nt_grace_reading_end(reading);
	/* It stays in the table until here: only this call takes it out. */
	if (!stream)
		return;
	/* A stream with the same handle may come later; it gets another row. */
	uint64_t state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);
	while (!nt_state_is_gone(state) && !__atomic_compare_exchange_n(&stream->state, &state, gone_state(state), false,
									 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
	if (nt_state_is_gone(state))
		return; /* by another thread: the program may not destroy a stream twice, but must not end here if it does */
	uint32_t number = (uint32_t)(state >> STATE_SEGMENT_SHIFT);
	if (number) {
		/* In a capture the event would become a part of the program's graph. */
		bool recordable = nt_driver.cuStreamIsCapturing(handle, &capturing) == CUDA_SUCCESS &&
				  capturing == CU_STREAM_CAPTURE_STATUS_NONE;
		nt_segment_close(&pool->segments[number - 1], (uint32_t)(state >> STATE_COUNT_SHIFT) & STATE_COUNT_MASK,
				 recordable ? stream : NULL);
	}
	leave_table(pool, stream);
	nt_wake_drain_from(NT_ASLEEP);
}

/* --- waits of the program --- */

/*
 * Before a call of the program that waits for a stream (for all of the context if handle is NULL): note in *mark which
 * launches were submitted by now.
 */
void nt_streams_watermark_before(struct nt_watermark *mark, CUcontext context, CUstream handle)
{
	*mark = (struct nt_watermark){.pool = nt_pools_find(context), .handle = handle};
	if (!mark->pool)
		return;
	mark->id = mark->pool->id;
	if (!handle) {
		mark->moment = __atomic_fetch_add(&mark->pool->wave, 1, __ATOMIC_ACQ_REL);
		return;
	}
	uint32_t *reading = nt_grace_reading_begin();
	mark->stream = nt_streams_find(mark->pool, handle, false);
	if (mark->stream) {
		mark->life = mark->stream->life;
		mark->moment = __atomic_load_n(&mark->stream->submitted, __ATOMIC_ACQUIRE);
	}
	nt_grace_reading_end(reading);
}

/*
 * After the program has waited for a stream or context: the launches that *mark noted are complete, so their results
 * may be fetched. Does nothing if the stream or context is another one by now.
 */
void nt_streams_watermark_after(const struct nt_watermark *mark, CUcontext context)
{
	/* Everything may have gone meanwhile, and something else may be in its place. */
	if (!mark->pool || (mark->handle && !mark->stream) || nt_pools_find(context) != mark->pool ||
	    mark->pool->id != mark->id)
		return;
	if (!mark->handle) {
		nt_raise_to(&mark->pool->watermark, mark->moment + 1);
		nt_wake_drain_from(NT_DOZING);
		return;
	}
	uint32_t *reading = nt_grace_reading_begin();
	struct nt_stream *stream = nt_streams_find(mark->pool, mark->handle, false);
	if (stream == mark->stream && stream->life == mark->life)
		nt_raise_to(&stream->watermark, mark->moment);
	nt_grace_reading_end(reading);
	nt_wake_drain_from(NT_DOZING);
}

/* --- rows --- */

/* Map a block of rows for streams more, all of them free; false without memory or if there are too many. */
static bool add_rows(struct nt_pool *pool)
{
	uint32_t blocks = pool->row_blocks;
	struct nt_stream *rows = blocks < ROW_BLOCKS ? nt_map_zeroed(ROWS_OF_BLOCK * sizeof(*rows)) : NULL;

	if (!rows)
		return false;
	__atomic_store_n(&pool->rows[blocks], rows, __ATOMIC_RELEASE);
	__atomic_store_n(&pool->row_blocks, blocks + 1, __ATOMIC_RELEASE);
	for (uint32_t i = ROWS_OF_BLOCK; i > 0; i--)
		give_row(pool, blocks * ROWS_OF_BLOCK + i);
	return true;
}

/* Make the table of streams of a pool (device memory for results), with rows for some; false without memory. */
bool nt_streams_make(struct nt_pool *pool)
{
	pthread_mutex_init(&pool->streams_mutex, NULL);
	pool->buckets = nt_map_zeroed(BUCKETS * sizeof(*pool->buckets));
	return pool->buckets && add_rows(pool);
}

/*
 * Free rows of streams that are gone after their grace period (until no reader can have them), and map more if few are
 * free. By the drain thread (it fetches results), from time to time.
 */
void nt_streams_tend(struct nt_pool *pool)
{
	/* Append the rows that have left the table since, in that order: of those that wait, the oldest are first. */
	uint32_t number = __atomic_exchange_n(&pool->gone, 0, __ATOMIC_ACQUIRE), added = 0;
	while (number) {
		struct nt_stream *stream = row_of(pool, number);
		uint32_t next = stream->next_gone;
		__atomic_store_n(&stream->next_gone, added, __ATOMIC_RELAXED);
		added = number;
		number = next;
	}
	if (added && pool->waiting_last)
		__atomic_store_n(&row_of(pool, pool->waiting_last)->next_gone, added, __ATOMIC_RELAXED);
	else if (added)
		pool->waiting = added;
	for (; added; added = row_of(pool, added)->next_gone)
		pool->waiting_last = added;
	while (pool->waiting && nt_grace_is_over(row_of(pool, pool->waiting)->ticket)) {
		number = pool->waiting;
		pool->waiting = row_of(pool, number)->next_gone;
		give_row(pool, number);
		__atomic_fetch_sub(&pool->rows_used, 1, __ATOMIC_RELAXED);
	}
	if (!pool->waiting)
		pool->waiting_last = 0;
	if (__atomic_load_n(&pool->rows_used, __ATOMIC_RELAXED) > pool->row_blocks * ROWS_OF_BLOCK / 2)
		add_rows(pool);
}

/* Free the table of streams of a pool (device memory for results). */
void nt_streams_unmake(struct nt_pool *pool)
{
	for (uint32_t i = 0; i < pool->row_blocks; i++) {
		munmap(pool->rows[i], ROWS_OF_BLOCK * sizeof(struct nt_stream));
		pool->rows[i] = NULL;
	}
	if (pool->buckets)
		munmap(pool->buckets, BUCKETS * sizeof(*pool->buckets));
	pool->buckets = NULL;
	pool->row_blocks = pool->rows_used = 0;
	pool->gone = pool->waiting = pool->waiting_last = 0;
	pool->free_rows = 0;
}
