#include "memory/pool.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/mapped.h"
#include "base/quiet.h"
#include "base/settings.h"
#include "base/upcalls.h"
#include "base/wake.h"
#include "memory/own_memory.h"
#include "memory/segment.h"
#include "trace/trace.h"

#define UNKNOWN_PART 16			  /* of the free memory, for launches whose logs have an unknown need */
#define UNKNOWN_MOST (UINT64_C(4) << 30) /* bytes of it */

/*
 * A launch of a kernel needs more than the pool (device memory for results) can ever give, or is_full: more than it had
 * free. Have the trace note that, once for each kernel. size: bytes of the launch. Lock-free.
 */
void nt_pool_too_large(struct nt_pool *pool, struct nt_kernel *kernel, uint64_t size, bool is_full)
{
	struct nt_kernel *none = NULL;

	/* Once for each kernel. If another one is about to be noted, a later launch says so. */
	if (__atomic_load_n(&kernel->size_noted, __ATOMIC_RELAXED) ||
	    !__atomic_compare_exchange_n(&pool->oversized, &none, kernel, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return;
	__atomic_store_n(&kernel->size_noted, true, __ATOMIC_RELAXED);
	__atomic_store_n(&pool->oversized_free, is_full ? nt_room_free_large(pool) : UINT64_MAX, __ATOMIC_RELAXED);
	__atomic_store_n(&pool->oversized_size, size, __ATOMIC_RELEASE);
	nt_wake_drain_from(NT_DOZING);
}

/*
 * Bytes of device memory that a new pool may have: NEUTRINO_POOL, at most half of the device's memory; else by default a
 * 64th of it, or of a small device up to a 16th, so that a few large launches in a row find room.
 */
static uint64_t pool_most(CUdevice device)
{
	uint64_t setting = nt_settings()->pool;
	size_t total = 0;

	if (nt_driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS)
		return POOL_LEAST;
	/* A setting that is no number, or too small, is ignored. */
	if (setting >= POOL_LEAST)
		return setting < total / 2 ? setting : total / 2;
	uint64_t size = total / 64, start = total / 16 < POOL_START ? total / 16 : POOL_START;
	if (size < start)
		size = start;
	return size > POOL_DEFAULT_MOST ? POOL_DEFAULT_MOST : size < POOL_LEAST ? POOL_LEAST : size;
}

/*
 * A kernel with logs (to which threads append records) was obtained: unless a limit was set, let the pool (device memory
 * for results) have half of the memory that is free in the current context, which is the pool's, if that is more than it
 * may have. Once for a pool. Returns for how many bytes there should be room if no kernel's need is known. Not on the
 * launch path.
 */
uint64_t nt_pool_has_logs(struct nt_pool *pool)
{
	uint64_t left, total, most = nt_slabs_large_most(pool) / 2;

	if (!__atomic_load_n(&pool->unknown_most, __ATOMIC_ACQUIRE) && nt_own_memory_left(&left, &total)) {
		left += __atomic_load_n(&pool->size, __ATOMIC_RELAXED);
		uint64_t part = left / UNKNOWN_PART < UNKNOWN_MOST ? left / UNKNOWN_PART : UNKNOWN_MOST;
		__atomic_store_n(&pool->unknown, part, __ATOMIC_RELAXED);
		__atomic_store_n(&pool->unknown_most, most > part / 2 ? most : part / 2, __ATOMIC_RELEASE);
		if (nt_settings()->pool < POOL_LEAST && left / 2 > __atomic_load_n(&pool->most, __ATOMIC_RELAXED)) {
			__atomic_store_n(&pool->most, left / 2, __ATOMIC_RELAXED);
			most = nt_slabs_large_most(pool) / 2;
			nt_own_memory_limited(left / 2, 2 * most, false);
		}
	}
	uint64_t unknown = __atomic_load_n(&pool->unknown, __ATOMIC_RELAXED);
	return unknown < most ? unknown : most;
}

/* Bytes of a launch whose logs have an unknown need, at most; 0: not known. Lock-free. */
uint64_t nt_pool_unknown_most(const struct nt_pool *pool)
{
	return __atomic_load_n(&pool->unknown_most, __ATOMIC_ACQUIRE);
}

/*
 * Free everything of a pool (device memory for results in one context), and clear it. has_context: whether its context
 * is current; if it is gone, so is what the driver has allocated in it.
 */
void nt_pool_unmake(struct nt_pool *pool, bool has_context)
{
	nt_upcalls.pool_ends(pool, has_context);
	nt_slabs_unmake(pool, has_context);
	nt_streams_unmake(pool);
	if (has_context && pool->stream)
		nt_driver.cuStreamDestroy_v2(pool->stream);
	if (has_context && pool->staging)
		nt_driver.cuMemFreeHost(pool->staging);
	if (has_context && pool->mark)
		nt_driver.cuEventDestroy_v2(pool->mark);
	if (pool->segments)
		munmap(pool->segments, SEGMENTS * sizeof(struct nt_segment));
	pool->stream = NULL;
	pool->staging = NULL;
	pool->segments = NULL;
	pool->mark = NULL;
	pool->unknown = pool->unknown_most = 0;
	pool->watermark = pool->mark_wave = pool->stale_since = 0;
}

/*
 * Make the event that shows the end of launches which the program does not wait for; without it the pool (device memory
 * for results) works, too. Always true.
 */
static bool make_mark(struct nt_pool *pool)
{
	if (nt_quiet_is_supported() && nt_driver.cuEventCreate(&pool->mark, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		pool->mark = NULL;
	return true;
}

/*
 * Allocate everything of a pool (device memory for results) in the current context. Called by the one thread that has
 * claimed the pool. False if that fails; then nt_pool_unmake frees what there is.
 */
static bool make_pool(struct nt_pool *pool)
{
	void *staging = NULL;

	if (nt_driver.cuCtxGetDevice(&pool->device) != CUDA_SUCCESS)
		return false;
	pool->most = pool_most(pool->device);
	nt_own_memory_limited(pool->most, nt_slabs_large_most(pool), true);
	/* Waits are counted from 1: 0 would be below every watermark. */
	pool->wave = 1;
	pool->segments = nt_map_zeroed(SEGMENTS * sizeof(struct nt_segment));
	if (!pool->segments || !nt_streams_make(pool))
		return false;
	/* Nothing is copied then. */
	if (nt_own_memory_is_memusage)
		return nt_slabs_make(pool) && make_mark(pool);
	if (nt_driver.cuMemHostAlloc(&staging, STAGING_SIZE, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS)
		return false;
	pool->staging = staging;
	return nt_driver.cuStreamCreate(&pool->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS && nt_slabs_make(pool) &&
	       nt_upcalls.pool_made(pool) && make_mark(pool);
}

/*
 * The pool (device memory for results) of a context in any state. If it has none, a free one is claimed for it
 * (*claimed), in state POOL_PREPARING, for the caller to make. NULL if all are taken. Takes a mutex, so that only one
 * thread claims.
 */
static struct nt_pool *claim_pool(CUcontext context, bool *claimed)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	struct nt_pool *pool;

	nt_lock_take(&mutex);
	pool = nt_pools_known(context);
	*claimed = false;
	for (unsigned i = 0; i < CONTEXTS && !pool; i++) {
		/* A closed pool without a context can be used again: it was closed after its context had been destroyed. */
		int state = __atomic_load_n(&nt_pools[i].state, __ATOMIC_ACQUIRE);
		if (state != POOL_NONE &&
		    (state != POOL_CLOSED || __atomic_load_n(&nt_pools[i].context, __ATOMIC_ACQUIRE)))
			continue;
		pool = &nt_pools[i];
		__atomic_store_n(&pool->state, POOL_PREPARING, __ATOMIC_RELEASE);
		__atomic_store_n(&pool->id, nt_pools_id_of(context), __ATOMIC_RELEASE);
		__atomic_store_n(&pool->context, context, __ATOMIC_RELEASE);
		*claimed = true;
	}
	nt_lock_release(&mutex);
	return pool;
}

/*
 * The pool (device memory for results) of a context, which is current; it is made if there is none. NULL if it could
 * not be made, also for all later calls with this context. Not on the launch path: it allocates, and may wait for
 * another thread.
 */
struct nt_pool *nt_pool_prepare(CUcontext context)
{
	bool claimed;

	if (!context)
		return NULL;
	struct nt_pool *pool = nt_pools_find(context);
	if (pool)
		return pool;
	pool = claim_pool(context, &claimed);
	if (!pool)
		return NULL;
	if (claimed) {
		/* The program may be capturing a stream, in which allocating would fail. */
		int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
		nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
		bool made = nt_upcalls.drain_start() && make_pool(pool);
		if (!made)
			nt_pool_unmake(pool, true);
		nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
		__atomic_store_n(&pool->state, made ? POOL_READY : POOL_FAILED, __ATOMIC_RELEASE);
		if (!made)
			nt_lines_note("not enough memory for maps, or no thread to drain them, in context %p: its kernels run unprobed", context);
	}
	/* If another thread makes it, wait; that takes milliseconds. */
	for (int i = 0; i < 1000 && __atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) == POOL_PREPARING; i++)
		nt_clock_sleep_us(100);
	return nt_pools_find(context);
}

/*
 * Wake the drain thread (it fetches results), and wait until it has taken a pool (device memory for results) out of
 * that state; false after so many milliseconds.
 */
static bool wait_while_in_state(struct nt_pool *pool, enum pool_state state, unsigned milliseconds)
{
	uint64_t until = nt_clock_now_ns() + (uint64_t)milliseconds * 1000000;

	nt_wake_drain();
	while (__atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) == (int)state) {
		if (nt_clock_now_ns() >= until)
			return false;
		nt_clock_sleep_us(200);
	}
	return true;
}

/*
 * Just before the program destroys a context: have the drain thread fetch the results in its pool (device memory for
 * results) and free it, and wait for that, so many milliseconds at most.
 */
void nt_pool_forget_context(CUcontext context, unsigned milliseconds)
{
	struct nt_pool *pool = nt_pools_known(context);
	int ready = POOL_READY;

	if (!pool)
		return;
	/* The drain thread closes the pool; nothing happens to one that failed. */
	wait_while_in_state(pool, POOL_PREPARING, milliseconds);
	__atomic_compare_exchange_n(&pool->state, &ready, POOL_CLOSING, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	bool closed = wait_while_in_state(pool, POOL_CLOSING, milliseconds);
	/* No launch uses the pool any more: the program may not launch in a context while it destroys it. */
	__atomic_store_n(&pool->context, NULL, __ATOMIC_RELEASE);
	if (closed)
		__atomic_store_n(&pool->state, POOL_NONE, __ATOMIC_RELEASE);
	else
		nt_lines_note("a context was destroyed before its records could be copied back");
}

/*
 * Ask something of the drain thread (it fetches results) by setting a flag, which it clears when that is done, and
 * wait; false after so many milliseconds.
 */
static bool ask_drain_thread(int *flag, unsigned milliseconds)
{
	uint64_t until = nt_clock_now_ns() + (uint64_t)milliseconds * 1000000;

	__atomic_store_n(flag, 1, __ATOMIC_RELEASE); /* of a flush: NT_FLUSH_NOW */
	nt_wake_drain();
	while (__atomic_load_n(flag, __ATOMIC_ACQUIRE)) {
		if (nt_clock_now_ns() >= until)
			return false;
		nt_clock_sleep_us(200);
	}
	return true;
}

/*
 * A kernel was obtained one launch of which takes size bytes: have the pool (device memory for results) get memory for
 * it, beside what was expected before, and shared bytes beside, which such kernels share; and wait for that. Once for each
 * kernel in a pool. Not on the launch path.
 */
void nt_pool_expect(struct nt_pool *pool, struct nt_kernel *kernel, uint64_t size, uint64_t shared)
{
	enum { LIMIT_MS = 2000 };
	static int too_slow;
	uint64_t bit = UINT64_C(1) << (pool - nt_pools);

	if (size + shared <= SEGMENT_SIZE || __atomic_fetch_or(&kernel->expected_in, bit, __ATOMIC_ACQ_REL) & bit)
		return;
	__atomic_add_fetch(&pool->large_expected, size, __ATOMIC_ACQ_REL);
	nt_raise_to(&pool->shared_expected, shared);
	nt_raise_to(&pool->largest_expected, size ? size : shared);
	/* A drain thread that has to wait for the device must not stop the program again and again. */
	if (__atomic_load_n(&too_slow, __ATOMIC_RELAXED))
		nt_wake_drain();
	else if (!ask_drain_thread(&pool->expect, LIMIT_MS))
		__atomic_store_n(&too_slow, 1, __ATOMIC_RELAXED);
}

/*
 * Just before the program may destroy a context: have all its launches waited for and their results fetched by the
 * drain thread, and wait, so many milliseconds at most. The pool (device memory for results) stays.
 */
void nt_pool_flush(CUcontext context, unsigned milliseconds)
{
	struct nt_pool *pool = nt_pools_find(context);

	if (pool && !ask_drain_thread(&pool->flush, milliseconds))
		nt_lines_note("a context may have ended before its records could be copied back");
}

/*
 * Have the launches in all contexts waited for and their results fetched; false if that takes longer than so many
 * milliseconds.
 */
bool nt_pool_flush_all(unsigned milliseconds)
{
	uint64_t until = nt_clock_now_ns() + (uint64_t)milliseconds * 1000000;
	bool all = true;

	for (unsigned i = 0; i < CONTEXTS; i++) {
		uint64_t now = nt_clock_now_ns();
		if (__atomic_load_n(&nt_pools[i].state, __ATOMIC_ACQUIRE) == POOL_READY)
			all &= ask_drain_thread(&nt_pools[i].flush, now < until ? (unsigned)((until - now) / 1000000) : 0);
	}
	return all;
}

/*
 * Have the launches in all contexts waited for and their results fetched, without waiting here: nt_pool_are_all_flushed
 * says when. Captures of streams, which a wait for a context would end, come first.
 */
void nt_pool_flush_gently(void)
{
	for (unsigned i = 0; i < CONTEXTS; i++) {
		int none = NT_FLUSH_NONE;
		if (__atomic_load_n(&nt_pools[i].state, __ATOMIC_ACQUIRE) == POOL_READY)
			__atomic_compare_exchange_n(&nt_pools[i].flush, &none, NT_FLUSH_GENTLY, false, __ATOMIC_ACQ_REL,
						    __ATOMIC_ACQUIRE);
	}
	nt_wake_drain();
}

/* Whether what nt_pool_flush_gently or nt_pool_flush_all has asked for is done in all contexts. */
bool nt_pool_are_all_flushed(void)
{
	for (unsigned i = 0; i < CONTEXTS; i++)
		if (__atomic_load_n(&nt_pools[i].state, __ATOMIC_ACQUIRE) == POOL_READY &&
		    __atomic_load_n(&nt_pools[i].flush, __ATOMIC_ACQUIRE))
			return false;
	return true;
}

/* Bytes of device memory that all pools have now. */
uint64_t nt_pool_size_all(void)
{
	uint64_t ret = 0;

	for (unsigned i = 0; i < CONTEXTS; i++)
		if (__atomic_load_n(&nt_pools[i].state, __ATOMIC_ACQUIRE) == POOL_READY)
			ret += __atomic_load_n(&nt_pools[i].size, __ATOMIC_RELAXED);
	return ret;
}

/*
 * After the driver has refused the program memory: have what no launch uses of the pools (device memory for results) on
 * the current device freed, and wait for that, so many milliseconds at most for each. Whether anything was.
 */
bool nt_pool_give_back(unsigned milliseconds)
{
	CUdevice device;
	bool freed = false;

	if (nt_own_memory_is_memusage || nt_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		return false;
	for (unsigned i = 0; i < CONTEXTS; i++) {
		struct nt_pool *pool = &nt_pools[i];
		if (__atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) != POOL_READY || pool->device != device)
			continue;
		uint64_t before = __atomic_load_n(&pool->size, __ATOMIC_RELAXED);
		if (before && ask_drain_thread(&pool->give_back, milliseconds))
			freed |= __atomic_load_n(&pool->size, __ATOMIC_RELAXED) < before;
	}
	return freed;
}

/*
 * If the driver has destroyed the context: give up its pool (device memory for results), and wait for the drain thread
 * (it fetches results) to do so, so many milliseconds at most.
 */
void nt_pool_context_gone(CUcontext context, unsigned milliseconds)
{
	struct nt_pool *pool = nt_pools_known(context);

	if (!pool)
		return;
	/* A pool that could not be made has nothing to forget but its context: a new one is tried anew. */
	int failed = POOL_FAILED;
	if (__atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) == POOL_FAILED && !nt_pools_is_current(pool, context)) {
		__atomic_store_n(&pool->context, NULL, __ATOMIC_RELEASE);
		__atomic_compare_exchange_n(&pool->state, &failed, POOL_NONE, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
		return;
	}
	nt_pools_find(context);
	wait_while_in_state(pool, POOL_GONE, milliseconds);
}

/*
 * At the end of the process: have the results in all pools (device memory for results) fetched, and wait for that.
 * False if so many milliseconds did not suffice.
 */
bool nt_pool_drain_all(unsigned milliseconds)
{
	uint64_t until = nt_clock_now_ns() + (uint64_t)milliseconds * 1000000;
	bool drained = true;

	for (unsigned i = 0; i < CONTEXTS; i++) {
		int ready = POOL_READY;
		/* First: the drain thread reads it once the pool is closing. */
		__atomic_store_n(&nt_pools[i].ending, true, __ATOMIC_RELEASE);
		__atomic_compare_exchange_n(&nt_pools[i].state, &ready, POOL_CLOSING, false, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE);
	}
	for (unsigned i = 0; i < CONTEXTS; i++) {
		uint64_t now = nt_clock_now_ns();
		drained &= wait_while_in_state(&nt_pools[i], POOL_CLOSING, now < until ? (unsigned)((until - now) / 1000000) : 0);
	}
	return drained;
}

/* In the child after fork: discard all pools (device memory for results), which belong to the parent's contexts. */
void nt_pool_child(void)
{
	for (unsigned i = 0; i < CONTEXTS; i++) {
		nt_pools[i].context = NULL;
		nt_pools[i].state = POOL_FAILED;
	}
}
