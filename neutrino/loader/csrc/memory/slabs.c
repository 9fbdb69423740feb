/*
 * The device memory of a pool: slabs of small segments and areas for large launches, half of the pool's limit each.
 * Unless memory is plentiful, a pool begins small and gets more when launches lack it as long as enough is left for the
 * program. It gives back what no launch uses when an allocation of the program fails.
 */
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/mapped.h"
#include "memory/own_memory.h"
#include "memory/segment.h"

#define LEFT_LEAST (UINT64_C(512) << 20) /* bytes that the program finds free, or a part (1/LEFT_PART) of the device */
#define LEFT_PART 50
#define PLENTY 16 /* times what a pool may have: then it is got at once */
#define GROW_PAUSE_NS UINT64_C(10000000000) /* after the program lacked memory: 10 s */

/*
 * Whether the device has so much free memory that the program has enough left if we take size bytes more. Also true if
 * the driver does not say what is free.
 */
static bool leaves_enough(uint64_t size)
{
	uint64_t left, total;

	if (!nt_own_memory_left(&left, &total))
		return true;
	uint64_t least = total / LEFT_PART > LEFT_LEAST ? total / LEFT_PART : LEFT_LEAST;
	/* Of a small device, half. */
	if (least > total / 2)
		least = total / 2;
	return left >= size + least;
}

/* Whether so much device memory is free that size bytes do not matter. */
static bool is_little(uint64_t size)
{
	uint64_t left, total;

	return nt_own_memory_left(&left, &total) && left / PLENTY >= size;
}

/* Allocate size bytes of device memory for a pool, all zero; 0 if there are none. */
static CUdeviceptr allocate_zeroed(struct nt_pool *pool, uint64_t size)
{
	CUdeviceptr base = nt_own_memory_get(NT_OWN_POOLS, size);

	if (!base)
		return 0;
	if (nt_own_memory_is_memusage || (nt_driver.cuMemsetD8Async(base, 0, size, pool->stream) == CUDA_SUCCESS &&
					    nt_driver.cuStreamSynchronize(pool->stream) == CUDA_SUCCESS)) {
		__atomic_fetch_add(&pool->size, size, __ATOMIC_RELAXED);
		return base;
	}
	nt_own_memory_free(NT_OWN_POOLS, base, size);
	return 0;
}

/*
 * Give `count` segments from `first` on what they need beside device memory: events, and slots for slots_each launches.
 * False if that fails.
 */
static bool make_segments(struct nt_segment *first, uint32_t count, uint32_t slots_each)
{
	/* Those of memory that was given back have them already. */
	struct nt_slot *slots = first->slots ? first->slots : nt_map_zeroed(count * slots_each * sizeof(*slots));

	for (uint32_t i = 0; i < count && slots; i++) {
		first[i].slots = slots + (size_t)i * slots_each;
		if (!first[i].event && nt_driver.cuEventCreate(&first[i].event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
			return false;
	}
	return slots;
}

/*
 * Get device memory for `count` segments of size bytes each, from `first` on. Returns its address, 0 if there is none.
 */
static CUdeviceptr place_segments(struct nt_pool *pool, struct nt_segment *first, uint32_t count, uint64_t size)
{
	CUdeviceptr base = allocate_zeroed(pool, count * size);

	for (uint32_t i = 0; base && i < count; i++)
		first[i].address = base + i * size;
	return base;
}

/*
 * Get memory for a slab (up to 64 small segments) of a pool (device memory for results), with `count` segments, and
 * make them available. number: of the slab. False if that fails.
 */
static bool make_slab(struct nt_pool *pool, uint32_t number, uint32_t count)
{
	struct nt_slab *slab = &pool->slabs[number];
	struct nt_segment *first = &pool->segments[number * SLAB_SEGMENTS];

	/* Slots for a whole slab: it may come back with more segments. */
	if (!make_segments(first, SLAB_SEGMENTS, SLOTS))
		return false;
	slab->base = place_segments(pool, first, count, SEGMENT_SIZE);
	if (!slab->base)
		return false;
	slab->count = count;
	__atomic_store_n(&slab->free, count == 64 ? ~UINT64_C(0) : (UINT64_C(1) << count) - 1, __ATOMIC_RELEASE);
	if (number >= pool->slab_end)
		__atomic_store_n(&pool->slab_end, number + 1, __ATOMIC_RELEASE);
	return true;
}

/*
 * Get memory for an area (64 chunks for large launches) of a pool (device memory for results), and make it available.
 * number: of the area. False if that fails.
 */
static bool make_area(struct nt_pool *pool, uint32_t number, uint64_t chunk_size)
{
	struct nt_area *area = &pool->areas[number];
	struct nt_segment *first = &pool->segments[SMALL_MOST + number * CHUNKS];

	if (!chunk_size || !make_segments(first, CHUNKS, 1))
		return false;
	area->base = place_segments(pool, first, CHUNKS, chunk_size);
	if (!area->base)
		return false;
	__atomic_store_n(&area->chunk_size, chunk_size, __ATOMIC_RELEASE);
	__atomic_store_n(&area->busy, 0, __ATOMIC_RELEASE);
	return true;
}

/*
 * Free the memory of a slab (up to 64 small segments) if no launch has one of its
 * segments; whether it was freed.
 */
static bool free_slab(struct nt_pool *pool, struct nt_slab *slab)
{
	uint64_t all = slab->count == 64 ? ~UINT64_C(0) : (UINT64_C(1) << slab->count) - 1;

	if (!slab->base || !__atomic_compare_exchange_n(&slab->free, &all, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return false;
	nt_own_memory_free(NT_OWN_POOLS, slab->base, slab->count * SEGMENT_SIZE);
	slab->base = 0;
	__atomic_fetch_sub(&pool->size, slab->count * SEGMENT_SIZE, __ATOMIC_RELAXED);
	return true;
}

/*
 * Free the memory of an area (64 chunks for large launches) if no launch has one of its chunks; whether it was freed.
 */
static bool free_area(struct nt_pool *pool, struct nt_area *area)
{
	uint64_t none = 0;

	if (!area->base ||
	    !__atomic_compare_exchange_n(&area->busy, &none, ~UINT64_C(0), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return false;
	nt_own_memory_free(NT_OWN_POOLS, area->base, CHUNKS * area->chunk_size);
	area->base = 0;
	__atomic_fetch_sub(&pool->size, CHUNKS * area->chunk_size, __ATOMIC_RELAXED);
	__atomic_store_n(&area->chunk_size, 0, __ATOMIC_RELEASE);
	return true;
}

/*
 * Of size bytes that a pool (device memory for results) may have: how many are for small segments (256 KiB for one
 * stream). The rest is for large launches.
 */
static uint64_t small_part(uint64_t size)
{
	uint64_t segments = size / 2 / SEGMENT_SIZE;

	return (segments < SMALL_MOST ? segments : SMALL_MOST) * SEGMENT_SIZE;
}

/* Bytes for large launches that the pool (device memory for results) may ever have. */
uint64_t nt_slabs_large_most(const struct nt_pool *pool)
{
	uint64_t most = __atomic_load_n(&pool->most, __ATOMIC_RELAXED);

	return (most - small_part(most)) / CHUNKS / UNIT * UNIT * CHUNKS;
}

/* Bytes of the largest launch that the pool (device memory for results) can ever take. */
uint64_t nt_slabs_most(const struct nt_pool *pool)
{
	return nt_slabs_large_most(pool);
}

/*
 * Get size bytes for an empty pool (device memory for results): half of them for small segments (256 KiB for one
 * stream), half for large launches. False if that fails.
 */
static bool make_all(struct nt_pool *pool, uint64_t size)
{
	uint64_t small = small_part(size), count = small / SEGMENT_SIZE;

	for (uint32_t slab = 0; count; slab++) {
		uint32_t now = count < SLAB_SEGMENTS ? (uint32_t)count : SLAB_SEGMENTS;
		if (!make_slab(pool, slab, now))
			return false;
		count -= now;
	}
	return make_area(pool, 0, (size - small) / CHUNKS / UNIT * UNIT);
}

/* Get the device memory that a new pool begins with; false if there is none. */
bool nt_slabs_make(struct nt_pool *pool)
{
	/*
	 * All that it may have, if that is little of what is free: until a pool has grown, launches may find no room.
	 */
	uint64_t size = pool->most < POOL_START || is_little(pool->most) ? pool->most : POOL_START;

	for (uint32_t i = 0; i < AREAS; i++)
		pool->areas[i].busy = ~UINT64_C(0);
	/* Less if there is not enough. */
	while (size / 2 >= POOL_LEAST && !leaves_enough(size))
		size /= 2;
	for (; size >= POOL_LEAST; size /= 2) {
		bool made = make_all(pool, size);
		if (!made)
			nt_slabs_give_back(pool);
		pool->grow_after = 0;
		if (made)
			return true;
	}
	return false;
}

/* Bytes that a pool (device memory for results) has now for large launches. */
static uint64_t areas_size(const struct nt_pool *pool)
{
	uint64_t size = 0;

	for (uint32_t i = 0; i < AREAS; i++)
		if (pool->areas[i].base)
			size += CHUNKS * pool->areas[i].chunk_size;
	return size;
}

/* Remember that there was no memory for a launch of size bytes, so that launches do not insist on it. */
static void note_refused_size(struct nt_pool *pool, uint64_t size)
{
	if (!pool->large_refused || size < pool->large_refused)
		__atomic_store_n(&pool->large_refused, size, __ATOMIC_RELEASE);
}

/*
 * Bytes of the largest area (device memory for large launches) of a pool: those of the largest launch that can find
 * room now.
 */
static uint64_t largest_area(const struct nt_pool *pool)
{
	uint64_t largest = 0;

	for (uint32_t i = 0; i < AREAS; i++)
		if (pool->areas[i].base && CHUNKS * pool->areas[i].chunk_size > largest)
			largest = CHUNKS * pool->areas[i].chunk_size;
	return largest;
}

/*
 * Get an area (device memory for large launches) for launches of size bytes, in place of others that nobody uses if the
 * pool would have too much. If there is no memory, that is remembered.
 */
static void grow_large(struct nt_pool *pool, uint64_t size)
{
	uint64_t most = nt_slabs_large_most(pool), used = areas_size(pool), largest = largest_area(pool);
	uint32_t number = AREAS;

	uint64_t step = UNIT * CHUNKS, asked = size;
	size = (size + step - 1) / step * step;
	/* Some to spare, as more launches like this one may come. */
	uint64_t wanted = size > 2 * largest ? size : 2 * largest;
	if (wanted > most - used && most - used >= size)
		wanted = (most - used) / step * step;
	for (uint32_t i = 0; i < AREAS && most - used < wanted; i++) {
		uint64_t freed = CHUNKS * pool->areas[i].chunk_size;
		wanted = size;
		if (most - used < wanted && free_area(pool, &pool->areas[i]))
			used -= freed;
	}
	for (uint32_t i = 0; i < AREAS && number == AREAS; i++)
		if (!pool->areas[i].base)
			number = i;
	/* Of areas that are all in memory, the first ones are the small ones. */
	for (uint32_t i = 0; i < AREAS && number == AREAS; i++)
		if (CHUNKS * pool->areas[i].chunk_size < wanted && free_area(pool, &pool->areas[i]))
			number = i;
	if (number == AREAS || !wanted || most - used < wanted)
		return;
	if (wanted > size && !leaves_enough(wanted))
		wanted = size;
	if (!leaves_enough(wanted) || !make_area(pool, number, wanted / CHUNKS))
		note_refused_size(pool, asked);
	else if (wanted >= pool->large_refused)
		__atomic_store_n(&pool->large_refused, 0, __ATOMIC_RELEASE);
}

/*
 * Get an area (device memory for large launches) for the launches that are expected of kernels, beside the areas that
 * there are.
 */
static void grow_expected(struct nt_pool *pool)
{
	uint64_t expected = __atomic_load_n(&pool->large_expected, __ATOMIC_ACQUIRE), most = nt_slabs_large_most(pool);
	expected += __atomic_load_n(&pool->shared_expected, __ATOMIC_ACQUIRE);
	uint64_t one = __atomic_load_n(&pool->largest_expected, __ATOMIC_ACQUIRE), used = areas_size(pool);

	if (expected > most)
		expected = most;
	uint64_t missing = expected > used ? expected - used : 0;
	/* One launch is in one area. */
	if (missing < one && largest_area(pool) < one)
		missing = one;
	if (missing)
		grow_large(pool, missing);
}

/*
 * Whether fewer than a quarter of the small segments (256 KiB for one stream) are free. *bytes: what all of them take.
 */
static bool runs_short(const struct nt_pool *pool, uint64_t *bytes)
{
	uint64_t count = 0, free = 0;

	for (uint32_t i = 0; i < pool->slab_end; i++) {
		if (!pool->slabs[i].base)
			continue;
		count += pool->slabs[i].count;
		free += (uint64_t)__builtin_popcountll(__atomic_load_n(&pool->slabs[i].free, __ATOMIC_RELAXED));
	}
	*bytes = count * SEGMENT_SIZE;
	return free < count / 4 || !count;
}

/* Whether fewer than a quarter of the pool's small segments (256 KiB for one stream) are free. */
bool nt_slabs_run_short(const struct nt_pool *pool)
{
	uint64_t bytes;

	return runs_short(pool, &bytes);
}

/*
 * Get more memory for a pool (device memory for results) where launches lack it and the program does not. By the drain
 * thread (it fetches results).
 */
void nt_slabs_grow(struct nt_pool *pool)
{
	uint64_t bytes, small = __atomic_exchange_n(&pool->small_wanted, 0, __ATOMIC_RELAXED);
	uint64_t large = __atomic_exchange_n(&pool->large_wanted, 0, __ATOMIC_RELAXED);
	uint64_t most = small_part(pool->most);

	if (nt_clock_now_ns() < pool->grow_after) {
		if (large)
			note_refused_size(pool, large);
		return;
	}
	if (__atomic_load_n(&pool->expect, __ATOMIC_ACQUIRE))
		grow_expected(pool);
	if (large)
		grow_large(pool, large);
	/* A slab at a time; the last one may be smaller. */
	if (!runs_short(pool, &bytes) && !small)
		return;
	uint64_t size = most - bytes < SLAB_SEGMENTS * SEGMENT_SIZE ? most - bytes : SLAB_SEGMENTS * SEGMENT_SIZE;
	for (uint32_t i = 0; i < SLABS && size; i++)
		if (!pool->slabs[i].base) {
			if (leaves_enough(size))
				make_slab(pool, i, (uint32_t)(size / SEGMENT_SIZE));
			return;
		}
}

/*
 * Free all memory of a pool (device memory for results) that no launch has, and let it not grow for 10 s, since the
 * program lacks memory.
 */
void nt_slabs_give_back(struct nt_pool *pool)
{
	for (uint32_t i = 0; i < SLABS; i++)
		free_slab(pool, &pool->slabs[i]);
	for (uint32_t i = 0; i < AREAS; i++)
		free_area(pool, &pool->areas[i]);
	pool->grow_after = nt_clock_now_ns() + GROW_PAUSE_NS;
}

/* The area (device memory for large launches) that a large segment is in. */
struct nt_area *nt_slabs_area(struct nt_pool *pool, const struct nt_segment *segment)
{
	return &pool->areas[((uint64_t)(segment - pool->segments) - SMALL_MOST) / CHUNKS];
}

/* Free device memory, or only count it no more if it is gone with its context. */
static void free_or_forget(CUdeviceptr base, uint64_t size, bool has_context)
{
	if (has_context)
		nt_own_memory_free(NT_OWN_POOLS, base, size);
	else
		nt_own_memory_gone(NT_OWN_POOLS, size);
}

/*
 * Free all device memory of a pool with its events and records of launches, whether or not launches use it.
 * has_context: whether its context is current; else it is gone, and what the driver has allocated in it.
 */
void nt_slabs_unmake(struct nt_pool *pool, bool has_context)
{
	for (uint32_t i = 0; i < SLABS; i++) {
		struct nt_slot *slots = pool->segments ? pool->segments[i * SLAB_SEGMENTS].slots : NULL;
		if (slots)
			munmap(slots, (size_t)SLAB_SEGMENTS * SLOTS * sizeof(*slots));
		if (pool->slabs[i].base)
			free_or_forget(pool->slabs[i].base, pool->slabs[i].count * SEGMENT_SIZE, has_context);
	}
	for (uint32_t i = 0; i < AREAS; i++) {
		struct nt_slot *slots = pool->segments ? pool->segments[SMALL_MOST + i * CHUNKS].slots : NULL;
		if (slots)
			munmap(slots, CHUNKS * sizeof(*slots));
		if (pool->areas[i].base)
			free_or_forget(pool->areas[i].base, CHUNKS * pool->areas[i].chunk_size, has_context);
	}
	for (uint32_t i = 0; has_context && pool->segments && i < SEGMENTS; i++)
		if (pool->segments[i].event)
			nt_driver.cuEventDestroy_v2(pool->segments[i].event);
	memset(pool->slabs, 0, sizeof(pool->slabs));
	memset(pool->areas, 0, sizeof(pool->areas));
	pool->slab_end = 0;
	pool->size = 0;
	pool->grow_after = 0;
	pool->small_wanted = pool->large_wanted = pool->large_refused = 0;
	pool->large_expected = pool->shared_expected = pool->largest_expected = 0;
}
