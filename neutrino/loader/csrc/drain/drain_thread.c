/*
 * The drain thread: it visits all pools again and again while launches are in flight, does what pools are asked for, and
 * sleeps while there is nothing to do.
 */
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/captures.h"
#include "base/clock.h"
#include "base/grace.h"
#include "base/lock.h"
#include "base/quiet.h"
#include "base/scope.h"
#include "base/thread.h"
#include "base/upcalls.h"
#include "base/wake.h"
#include "drain/drain.h"
#include "drain/frames.h"
#include "drain/runs.h"
#include "trace/trace.h"

/*
 * Sleep in the drain thread (it fetches results) until somebody wakes it who may at that depth, or for so many
 * nanoseconds; 0: without an end.
 */
static void sleep_until_woken(enum nt_sleep depth, uint64_t nanoseconds)
{
	struct timespec time = {(time_t)(nanoseconds / 1000000000), (long)(nanoseconds % 1000000000)};

	syscall(SYS_futex, &nt_wake_drain_depth, FUTEX_WAIT_PRIVATE, (int)depth, nanoseconds ? &time : NULL, NULL, 0);
	__atomic_store_n(&nt_wake_drain_depth, NT_AWAKE, __ATOMIC_RELEASE);
}

/*
 * Wait for all launches in the current context, which is the pool's; true if they are complete, which is remembered in
 * the pool.
 */
static bool wait_for_all(struct nt_pool *pool)
{
	uint64_t wave = __atomic_fetch_add(&pool->wave, 1, __ATOMIC_ACQ_REL);

	if (nt_driver.cuCtxSynchronize() != CUDA_SUCCESS)
		return false;
	nt_raise_to(&pool->watermark, wave + 1);
	return true;
}

/* The drain thread has asked for captures, or will, before it waits for a context. */
static int is_waiting;

/*
 * The program begins to capture a stream, and has counted that: if the drain thread (it fetches results) is about to
 * wait for a context, let it do so first, 10 ms at most. A wait that begins during a capture would end that.
 */
void nt_drain_thread_pass(void)
{
	enum { PASS_US = 10000, STEP_US = 100 };

	for (int i = 0; i < PASS_US / STEP_US && __atomic_load_n(&is_waiting, __ATOMIC_SEQ_CST); i++)
		nt_clock_sleep_us(STEP_US);
}

/*
 * Wait for all launches of a pool (device memory for results) unless the program is capturing a stream; false if it is.
 */
static bool wait_between_captures(struct nt_pool *pool)
{
	__atomic_store_n(&is_waiting, 1, __ATOMIC_SEQ_CST);
	bool is_free = !nt_captures_are_any();
	if (is_free)
		wait_for_all(pool);
	__atomic_store_n(&is_waiting, 0, __ATOMIC_SEQ_CST);
	return is_free;
}

/*
 * Do what was asked for: wait for all launches of a pool (device memory for results) and fetch their results; false if
 * that has to wait for the end of a capture.
 */
static bool flush_pool(struct nt_pool *pool, enum nt_flush kind)
{
	if (kind == NT_FLUSH_NOW)
		wait_for_all(pool);
	else if (!wait_between_captures(pool))
		return false;
	nt_drain_pool(pool, false);
	nt_runs_write(NT_RUNS_ENDING);
	__atomic_store_n(&pool->flush, NT_FLUSH_NONE, __ATOMIC_RELEASE);
	return true;
}

/*
 * Fetch all results in a pool (device memory for results) whose context or process ends, and free the pool unless the
 * process ends.
 */
static void close_pool(struct nt_pool *pool)
{
	/* Wait for all launches. If a kernel never ends, this never returns; the caller that waits for it has a time limit. */
	bool complete = wait_for_all(pool);

	/* That limit may be over: the process ends, and the driver with it. */
	if (nt_wake_drain_is_stopped())
		return;
	if (!complete)
		nt_lines_note("the context ended with an error: records of its last launches are lost");
	/* After an error everything is drained, and marked as lost if it cannot be copied. */
	nt_drain_pool(pool, !complete);
	nt_runs_write(NT_RUNS_ENDING);
	if (!__atomic_load_n(&pool->ending, __ATOMIC_ACQUIRE))
		nt_pool_unmake(pool, true);
}

/*
 * Forget a pool (device memory for results) and all else that is known of its context, which the driver has destroyed:
 * its results are lost.
 */
static void forget_pool(struct nt_pool *pool, CUcontext context)
{
	nt_drain_lose_all(pool);
	nt_pool_unmake(pool, false);
	nt_upcalls.context_gone(context);
	__atomic_store_n(&pool->flush, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&pool->give_back, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&pool->expect, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&pool->context, NULL, __ATOMIC_RELEASE);
	__atomic_store_n(&pool->state, POOL_NONE, __ATOMIC_RELEASE);
}

/* Note in the trace a launch, if one was reported, for which the pool (device memory for results) had no room. */
static void note_oversized(struct nt_pool *pool)
{
	uint64_t size = __atomic_exchange_n(&pool->oversized_size, 0, __ATOMIC_ACQ_REL);

	if (!size)
		return;
	struct nt_kernel *kernel = __atomic_load_n(&pool->oversized, __ATOMIC_ACQUIRE);
	uint64_t left = __atomic_load_n(&pool->oversized_free, __ATOMIC_RELAXED);
	if (left != UINT64_MAX)
		nt_lines_note("kernel %u %s: a launch found no room for its logs, which need %llu bytes: %llu of them were missing; "
			      "see --max-device-memory",
			      kernel->id, kernel->name, (unsigned long long)size,
			      (unsigned long long)(size > left ? size - left : 0));
	else
		nt_lines_note("kernel %u %s: a launch needs %llu MiB of device memory for its maps, and the pool has at most %llu MiB "
			      "for one: see --max-device-memory",
			      kernel->id, kernel->name, (unsigned long long)(size + (1 << 20) - 1) >> 20,
			      (unsigned long long)nt_slabs_most(pool) >> 20);
	__atomic_store_n(&pool->oversized, NULL, __ATOMIC_RELEASE);
}

/*
 * Records reach the trace when a segment is full or the program waits for the GPU. If neither has happened for STALE_NS,
 * an event of ours shows which launches are complete: what they recorded is then there whatever ends the process.
 */
#define STALE_NS UINT64_C(250000000)

/*
 * If launches are in flight and no results were fetched for STALE_NS, record an event of ours behind them, which shows
 * later that they are complete, though the program does not wait. drained: what the last round found.
 */
static void mark_stale(struct nt_pool *pool, struct nt_drained drained)
{
	uint64_t now = nt_clock_now_ns();

	if (pool->mark_wave && nt_driver.cuEventQuery(pool->mark) != CUDA_ERROR_NOT_READY) {
		/* Of a context with an error, nothing is copied that could be wrong: that fails, too. */
		nt_raise_to(&pool->watermark, pool->mark_wave + 1);
		pool->mark_wave = 0;
		pool->stale_since = now;
	}
	if (!drained.in_flight || drained.worked || drained.is_sparse)
		pool->stale_since = 0;
	else if (!pool->stale_since)
		pool->stale_since = now;
	if (!pool->stale_since || now - pool->stale_since < STALE_NS || pool->mark_wave || !pool->mark)
		return;
	uint64_t wave = __atomic_fetch_add(&pool->wave, 1, __ATOMIC_ACQ_REL);
	if (nt_quiet_record(__atomic_load_n(&pool->context, __ATOMIC_ACQUIRE), pool->mark))
		pool->mark_wave = wave;
}

/*
 * Do what a ready pool (device memory for results) needs, whose context is current: fetch results, do what was asked
 * for, get or free memory. Returns what was found.
 */
static struct nt_drained tend_pool(struct nt_pool *pool)
{
	enum nt_flush wanted = (enum nt_flush)__atomic_load_n(&pool->flush, __ATOMIC_ACQUIRE);
	bool is_put_off = wanted && !flush_pool(pool, wanted);
	struct nt_drained drained = nt_drain_pool(pool, false);
	/* Soon again: nothing announces the end of a capture. */
	drained.worked |= is_put_off;
	mark_stale(pool, drained);
	note_oversized(pool);
	nt_streams_tend(pool);
	if (__atomic_load_n(&pool->give_back, __ATOMIC_ACQUIRE)) {
		nt_slabs_give_back(pool);
		__atomic_store_n(&pool->give_back, 0, __ATOMIC_RELEASE);
	} else if (!nt_wake_drain_is_stopped()) {
		nt_slabs_grow(pool);
	}
	__atomic_store_n(&pool->expect, 0, __ATOMIC_RELEASE);
	return drained;
}

/*
 * Do what a pool (device memory for results) needs now, whatever its state is, in its context. Returns what was found.
 */
static struct nt_drained visit_pool(struct nt_pool *pool)
{
	struct nt_drained drained = {0};
	int state = __atomic_load_n(&pool->state, __ATOMIC_ACQUIRE);
	CUcontext context = __atomic_load_n(&pool->context, __ATOMIC_ACQUIRE), popped;

	if (state == POOL_GONE)
		forget_pool(pool, context);
	if (state != POOL_READY && state != POOL_CLOSING)
		return drained;
	/* Also gives the pool up if it is not in this context any more. */
	if (state == POOL_READY && !nt_pools_find(context))
		return (struct nt_drained){.worked = true};
	if (nt_driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
		if (state == POOL_CLOSING)
			close_pool(pool);
		else
			drained = tend_pool(pool);
		if (nt_wake_drain_is_stopped())
			return drained;
		nt_driver.cuCtxPopCurrent_v2(&popped);
	} else if (state == POOL_CLOSING && !__atomic_load_n(&pool->ending, __ATOMIC_ACQUIRE)) {
		/* The context is gone already, and with it what the driver has allocated. */
		nt_pool_unmake(pool, false);
	}
	if (state == POOL_CLOSING)
		__atomic_store_n(&pool->state, POOL_CLOSED, __ATOMIC_RELEASE);
	return drained;
}

/*
 * One round of the drain thread (it fetches results) over all pools (device memory for results), and all else that it
 * does from time to time. Returns what was found.
 */
static struct nt_drained visit_all_pools(void)
{
	struct nt_drained all = {0};

	nt_grace_step();
	nt_grace_release();
	for (unsigned i = 0; i < CONTEXTS && !nt_wake_drain_is_stopped(); i++) {
		struct nt_drained drained = visit_pool(&nt_pools[i]);
		all.worked |= drained.worked;
		all.in_flight |= drained.in_flight;
		all.is_sparse |= drained.is_sparse;
	}
	nt_upcalls.round_done();
	nt_runs_write(all.worked || all.is_sparse ? NT_RUNS_BUSY : NT_RUNS_IDLE);
	nt_trace_round();
	all.in_flight |= nt_grace_is_wanted();
	return all;
}

/*
 * The main function of the drain thread (it fetches results). Its pauses are short while segments fill up. They grow to
 * DOZE while few launches are recorded, since its calls take locks of the driver that launches wait for, and further,
 * by half each time, while launches are in flight that are not complete. Once nothing has been in flight for some time
 * it sleeps until a launch wakes it.
 */
static void *drain_forever(void *unused)
{
	enum { SHORTEST_PAUSE = 1000, DOZE = 8000, LONGEST_PAUSE = 4000000, PAUSE_STEP = 500 }; /* microseconds */
	const uint64_t idle_limit = 1000000000, last_look = 10000000000;			 /* nanoseconds */
	uint64_t idle_since = 0;
	long pause = SHORTEST_PAUSE;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	(void)unused;
	nt_lock_without_signals();
	/* Calls of this thread must neither fail because the program captures a stream, nor become part of the capture. */
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	while (!nt_wake_drain_is_stopped()) {
		struct nt_drained drained = visit_all_pools();
		uint64_t now = nt_clock_now_ns();
		bool is_idle = !drained.worked && !drained.is_sparse && !drained.in_flight;
		if (!is_idle || !idle_since)
			idle_since = now;
		if (drained.worked)
			pause = SHORTEST_PAUSE;
		else if (drained.is_sparse && pause >= DOZE)
			pause = DOZE;
		else if (pause < LONGEST_PAUSE)
			pause += pause < DOZE ? PAUSE_STEP : pause / 2;
		if (pause <= DOZE) {
			nt_clock_sleep_us(pause);
			continue;
		}
		enum nt_sleep depth = is_idle && now - idle_since >= idle_limit ? NT_ASLEEP : NT_DOZING;
		/*
		 * A launch that is submitted while the depth is set is usually seen by visit_all_pools, or wakes this thread.
		 * If neither happens, because the two cross, it waits for the next launch or for the last visit, after
		 * which they cannot cross any more.
		 */
		__atomic_exchange_n(&nt_wake_drain_depth, depth, __ATOMIC_SEQ_CST);
		drained = visit_all_pools();
		if (drained.worked || ((drained.in_flight || drained.is_sparse) && depth == NT_ASLEEP)) {
			__atomic_store_n(&nt_wake_drain_depth, NT_AWAKE, __ATOMIC_RELEASE);
			pause = SHORTEST_PAUSE;
			continue;
		}
		if (depth == NT_DOZING) {
			sleep_until_woken(depth, (uint64_t)pause * 1000);
		} else {
			bool is_last = now - idle_since >= last_look;
			sleep_until_woken(depth, is_last ? 0 : last_look - (now - idle_since) + 1);
			/* If it was a launch that woke this thread, the next look finds it. */
		}
		if (depth == NT_ASLEEP)
			pause = SHORTEST_PAUSE;
	}
	/* The process ends: nothing is freed. */
	for (;;)
		sleep_until_woken(NT_AWAKE, 0);
	return NULL;
}

/* Start the drain thread (it fetches the results of finished launches), once; false if it cannot be started. */
bool nt_drain_thread_start(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static bool started;

	NT_LOCKED(&mutex);
	if (!started)
		started = nt_thread_start(drain_forever, NULL, "neutrino-drain");
	return started;
}
