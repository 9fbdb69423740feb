#include "pool.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "segment.h"
#include "settings.h"
#include "trace.h"

struct nt_pool nt_pools[CONTEXTS];

struct nt_pool *nt_pool_find(CUcontext context)
{
	for (unsigned i = 0; i < CONTEXTS; i++) {
		CUcontext found = __atomic_load_n(&nt_pools[i].context, __ATOMIC_ACQUIRE);
		if (found == context) /* in no other row */
			return __atomic_load_n(&nt_pools[i].state, __ATOMIC_ACQUIRE) == POOL_READY ? &nt_pools[i] : NULL;
	}
	return NULL;
}

uint64_t nt_pool_most(const struct nt_pool *pool)
{
	return CHUNKS * pool->chunk_size;
}

CUdevice nt_pool_device(const struct nt_pool *pool)
{
	return pool->device;
}

/* The size in bytes of a new pool: NEUTRINO_POOL, at most half of the device's memory; else by default a 64th of it. */
static uint64_t pool_size(CUdevice device)
{
	uint64_t setting = nt_settings()->pool;
	size_t total = 0;

	if (nt_driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS)
		return POOL_LEAST;
	/* A setting that is no number, or too small, is ignored. */
	if (setting >= POOL_LEAST)
		return setting < total / 2 ? setting : total / 2;
	uint64_t size = total / 64;
	return size > POOL_DEFAULT_MOST ? POOL_DEFAULT_MOST : size < POOL_LEAST ? POOL_LEAST : size;
}

void *nt_map_zeroed(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return memory == MAP_FAILED ? NULL : memory;
}

void nt_pool_unmake(struct nt_pool *pool, bool has_context)
{
	uint64_t segments = pool->small_count + CHUNKS;

	for (uint64_t i = 0; has_context && pool->segments && i < segments; i++)
		if (pool->segments[i].event)
			nt_driver.cuEventDestroy_v2(pool->segments[i].event);
	if (has_context && pool->stream)
		nt_driver.cuStreamDestroy_v2(pool->stream);
	if (has_context && pool->staging)
		nt_driver.cuMemFreeHost(pool->staging);
	if (has_context && pool->base)
		nt_driver.cuMemFree_v2(pool->base);
	if (pool->segments)
		munmap(pool->segments, segments * sizeof(struct nt_segment));
	if (pool->slots)
		munmap(pool->slots, (pool->small_count * SLOTS + CHUNKS) * sizeof(struct nt_slot));
	if (pool->streams)
		munmap(pool->streams, STREAMS * sizeof(struct nt_stream));
	pool->base = 0;
	pool->stream = NULL;
	pool->staging = NULL;
	pool->segments = NULL;
	pool->slots = NULL;
	pool->streams = NULL;
	memset(pool->small_free, 0, sizeof(pool->small_free));
	pool->chunks_busy = 0;
	pool->watermark = 0;
}

/*
 * Allocate everything of a pool in the current context. Called by the one thread that has claimed the pool. False if that
 * fails; then nt_pool_unmake frees what there is.
 */
static bool make_pool(struct nt_pool *pool)
{
	if (nt_driver.cuCtxGetDevice(&pool->device) != CUDA_SUCCESS)
		return false;
	/* Device memory: half in small segments, half in chunks. Less if there is not enough. */
	uint64_t size = pool_size(pool->device);
	while (nt_driver.cuMemAlloc_v2(&pool->base, size) != CUDA_SUCCESS) {
		size /= 2;
		if (size < POOL_LEAST)
			return false;
	}
	pool->small_count = size / 2 / SEGMENT_SIZE;
	if (pool->small_count > SMALL_MOST)
		pool->small_count = SMALL_MOST;
	uint64_t small_size = pool->small_count * SEGMENT_SIZE;
	pool->chunk_size = (size - small_size) / CHUNKS / UNIT * UNIT;

	/* Host memory: the segments, and as many slots as these can have launches. A large segment has one. */
	uint64_t segments = pool->small_count + CHUNKS;
	void *staging = NULL;
	pool->segments = nt_map_zeroed(segments * sizeof(struct nt_segment));
	pool->slots = nt_map_zeroed((pool->small_count * SLOTS + CHUNKS) * sizeof(struct nt_slot));
	pool->streams = nt_map_zeroed(STREAMS * sizeof(struct nt_stream));
	if (!pool->segments || !pool->slots || !pool->streams ||
	    nt_driver.cuMemHostAlloc(&staging, STAGING_SIZE, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS)
		return false;
	pool->staging = staging;
	if (nt_driver.cuStreamCreate(&pool->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
	    nt_driver.cuMemsetD8Async(pool->base, 0, size, pool->stream) != CUDA_SUCCESS)
		return false;
	for (uint64_t i = 0; i < segments; i++) {
		struct nt_segment *segment = &pool->segments[i];
		bool is_small = i < pool->small_count;
		segment->address = is_small ? pool->base + i * SEGMENT_SIZE
					    : pool->base + small_size + (i - pool->small_count) * pool->chunk_size;
		segment->slots = is_small ? pool->slots + i * SLOTS
					  : pool->slots + pool->small_count * SLOTS + (i - pool->small_count);
		if (nt_driver.cuEventCreate(&segment->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
			return false;
	}
	if (nt_driver.cuStreamSynchronize(pool->stream) != CUDA_SUCCESS)
		return false;
	/* All small segments are free, by a bit for each. */
	for (uint64_t i = 0; i < pool->small_count; i++)
		pool->small_free[i / 64] |= UINT64_C(1) << i % 64;
	return true;
}

/* The pool of a context in any state, or NULL. Lock-free. */
static struct nt_pool *known_pool(CUcontext context)
{
	for (unsigned i = 0; i < CONTEXTS; i++)
		if (__atomic_load_n(&nt_pools[i].context, __ATOMIC_ACQUIRE) == context)
			return &nt_pools[i];
	return NULL;
}

bool nt_pool_known(CUcontext context)
{
	return known_pool(context) != NULL;
}

/*
 * The pool of a context. If it has none, a free one is claimed for it (*claimed), in state POOL_PREPARING, for the caller
 * to make. NULL if there is none. Takes a mutex, so that only one thread claims.
 */
static struct nt_pool *claim_pool(CUcontext context, bool *claimed)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	struct nt_pool *pool;

	pthread_mutex_lock(&mutex);
	pool = known_pool(context);
	*claimed = false;
	for (unsigned i = 0; i < CONTEXTS && !pool; i++) {
		/* A closed pool without a context can be used again: it was closed after its context had been destroyed. */
		int state = __atomic_load_n(&nt_pools[i].state, __ATOMIC_ACQUIRE);
		if (state != POOL_NONE &&
		    (state != POOL_CLOSED || __atomic_load_n(&nt_pools[i].context, __ATOMIC_ACQUIRE)))
			continue;
		pool = &nt_pools[i];
		__atomic_store_n(&pool->state, POOL_PREPARING, __ATOMIC_RELEASE);
		__atomic_store_n(&pool->context, context, __ATOMIC_RELEASE);
		*claimed = true;
	}
	pthread_mutex_unlock(&mutex);
	return pool;
}

struct nt_pool *nt_pool_prepare(CUcontext context)
{
	bool claimed;

	if (!context)
		return NULL;
	struct nt_pool *pool = nt_pool_find(context);
	if (pool)
		return pool;
	pool = claim_pool(context, &claimed);
	if (!pool)
		return NULL;
	if (claimed) {
		/* The program may be capturing a stream, in which allocating would fail. */
		int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
		nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
		bool made = nt_drain_start() && make_pool(pool);
		if (!made)
			nt_pool_unmake(pool, true);
		nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
		__atomic_store_n(&pool->state, made ? POOL_READY : POOL_FAILED, __ATOMIC_RELEASE);
		if (!made)
			nt_trace_note("not enough memory for maps, or no thread to drain them, in context %p: its kernels run unprobed", context);
	}
	/* If another thread makes it, wait; that takes milliseconds. */
	for (int i = 0; i < 1000 && __atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) == POOL_PREPARING; i++)
		nt_sleep_us(100);
	return nt_pool_find(context);
}

/* Wait until a pool is no longer in a state; false after that many milliseconds. */
static bool wait_out(struct nt_pool *pool, enum pool_state state, unsigned milliseconds)
{
	uint64_t until = nt_now_ns() + (uint64_t)milliseconds * 1000000;

	while (__atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) == (int)state) {
		if (nt_now_ns() >= until)
			return false;
		nt_sleep_us(200);
	}
	return true;
}

void nt_pool_forget_context(CUcontext context, unsigned milliseconds)
{
	struct nt_pool *pool = known_pool(context);
	int ready = POOL_READY;

	if (!pool)
		return;
	/* The drain thread closes the pool; nothing happens to one that failed. */
	wait_out(pool, POOL_PREPARING, milliseconds);
	__atomic_compare_exchange_n(&pool->state, &ready, POOL_CLOSING, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	bool closed = wait_out(pool, POOL_CLOSING, milliseconds);
	/* No launch uses the pool any more: the program may not launch in a context while it destroys it. */
	__atomic_store_n(&pool->context, NULL, __ATOMIC_RELEASE);
	if (closed)
		__atomic_store_n(&pool->state, POOL_NONE, __ATOMIC_RELEASE);
	else
		nt_trace_note("a context was destroyed before its records could be copied back");
}

bool nt_pool_drain_all(unsigned milliseconds)
{
	uint64_t until = nt_now_ns() + (uint64_t)milliseconds * 1000000;
	bool drained = true;

	for (unsigned i = 0; i < CONTEXTS; i++) {
		int ready = POOL_READY;
		/* First: the drain thread reads it once the pool is closing. */
		__atomic_store_n(&nt_pools[i].ending, true, __ATOMIC_RELEASE);
		__atomic_compare_exchange_n(&nt_pools[i].state, &ready, POOL_CLOSING, false, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE);
	}
	for (unsigned i = 0; i < CONTEXTS; i++) {
		uint64_t now = nt_now_ns();
		drained &= wait_out(&nt_pools[i], POOL_CLOSING, now < until ? (unsigned)((until - now) / 1000000) : 0);
	}
	return drained;
}

void nt_pool_child(void)
{
	for (unsigned i = 0; i < CONTEXTS; i++) {
		nt_pools[i].context = NULL;
		nt_pools[i].state = POOL_FAILED;
	}
}
