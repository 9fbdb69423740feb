
#include "base/captures.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/quiet.h"

NT_HOT bool nt_quiet_counts;
struct nt_quiet_shard nt_quiet_shards[NT_SHARDS];
int nt_quiet_is_loading;

/* How many threads are recording an event. */
static int is_recording;

/* What waits for others goes on after so long, whatever has happened to them. */
#define LONGEST_WAIT_NS UINT64_C(1000000000)
#define PAUSE_US 50

/* Wait until another thread sets a flag to 0, but for a second at most, whatever has happened to that thread. */
static void wait_until_zero(const int *flag)
{
	uint64_t until = nt_clock_now_ns() + LONGEST_WAIT_NS;

	while (__atomic_load_n(flag, __ATOMIC_SEQ_CST) && nt_clock_now_ns() < until)
		nt_clock_sleep_us(PAUSE_US);
}

/* Have a launch of the program wait until our thread has loaded its image into the driver; a second at most. */
void nt_quiet_wait(void)
{
	wait_until_zero(&nt_quiet_is_loading);
}

/*
 * Before the program begins to capture a stream: wait until our threads record no event, which would invalidate the
 * capture; a second at most.
 */
void nt_quiet_capture_begins(void)
{
	wait_until_zero(&is_recording);
}

/* Whether the driver can tell when a context is idle: it needs cuCtxRecordEvent (CUDA 12.5). */
bool nt_quiet_is_supported(void)
{
	return nt_driver.cuCtxRecordEvent != NULL;
}

/* How many launches of the program have begun so far, in all threads. */
static uint64_t launches_begun(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < NT_SHARDS; i++)
		sum += __atomic_load_n(&nt_quiet_shards[i].begun, __ATOMIC_SEQ_CST);
	return sum;
}

/*
 * Launches that have begun so far, if all of them were submitted at some moment of this call; false if that is not known.
 * Those that were submitted are counted first: the two sums differ unless they were equal in between.
 */
static bool all_submitted(uint64_t *ret)
{
	uint64_t submitted = 0;

	for (unsigned i = 0; i < NT_SHARDS; i++)
		submitted += __atomic_load_n(&nt_quiet_shards[i].submitted, __ATOMIC_SEQ_CST);
	*ret = launches_begun();
	return *ret == submitted;
}

/*
 * Record an event after all work that the context has been given so far: it is complete once the context is idle. False
 * if the driver refuses, or while a stream is captured, since that would invalidate the capture.
 */
bool nt_quiet_record(CUcontext context, CUevent event)
{
	__atomic_fetch_add(&is_recording, 1, __ATOMIC_SEQ_CST);
	bool recorded = !nt_captures_are_any() && nt_driver.cuCtxRecordEvent(context, event) == CUDA_SUCCESS;
	__atomic_fetch_sub(&is_recording, 1, __ATOMIC_SEQ_CST);
	return recorded;
}

/* Wait until the event is past, before a deadline (nt_clock_now_ns), while no launch follows the first `launches` ones. */
static bool wait_until_past(CUevent event, uint64_t launches, uint64_t deadline)
{
	CUresult result;

	while ((result = nt_driver.cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {
		if (nt_clock_now_ns() >= deadline || launches_begun() != launches)
			return false;
		nt_clock_sleep_us(PAUSE_US);
	}
	return result == CUDA_SUCCESS;
}

/*
 * Wait until a context is idle, at most so many milliseconds, and then keep the program's launches waiting until
 * nt_quiet_end, so that an image can be loaded. False, without keeping any, if it was not idle in time or a stream is
 * captured. By one thread at a time.
 */
bool nt_quiet_begin(CUcontext context, unsigned milliseconds)
{
	uint64_t deadline = nt_clock_now_ns() + milliseconds * UINT64_C(1000000), launches;
	bool is_quiet = false;
	CUevent event;

	if (nt_driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		return false;
	do {
		if (all_submitted(&launches) && nt_quiet_record(context, event) && wait_until_past(event, launches, deadline)) {
			__atomic_store_n(&nt_quiet_is_loading, 1, __ATOMIC_SEQ_CST);
			is_quiet = launches_begun() == launches;
			if (!is_quiet)
				nt_quiet_end();
		}
		if (!is_quiet)
			nt_clock_sleep_us(PAUSE_US);
	} while (!is_quiet && nt_clock_now_ns() < deadline);
	nt_driver.cuEventDestroy_v2(event);
	return is_quiet;
}

/* The image is loaded: let the program's launches go on that nt_quiet_begin has kept waiting. */
void nt_quiet_end(void)
{
	__atomic_store_n(&nt_quiet_is_loading, 0, __ATOMIC_SEQ_CST);
}

/*
 * In the child after fork, where none of our threads exists: no image is being loaded, and launches need not be
 * counted.
 */
void nt_quiet_child(void)
{
	nt_quiet_counts = false;
	nt_quiet_is_loading = is_recording = 0;
}
