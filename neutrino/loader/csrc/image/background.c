#include "image/background.h"

#include <pthread.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/errand.h"
#include "base/lock.h"
#include "base/own_table.h"
#include "base/quiet.h"
#include "base/settings.h"
#include "base/thread.h"
#include "image/entry_fetch.h"
#include "image/registry.h"
#include "image/requests.h"
#include "trace/trace.h"

/* How long a context has to become idle before the others get their turn. */
#define QUIET_MS 20
/* How long an answer is waited for before others are looked at. */
#define ANSWER_MS 20
/* Pauses between rounds in which nothing became ready: they double. */
#define SHORTEST_PAUSE_US 1000
#define LONGEST_PAUSE_US 64000
#define END_LIMIT_MS 1000
/* How long a context's end waits for the thread that may be loading into it, which takes seconds on a busy machine. */
#define HOLD_LIMIT_MS 30000

/* Kernels whose images are resolved, for the thread that loads. */
static struct nt_inbox resolved;

/* Guards these; never held across a call of the driver. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int holds;     /* calls under way that destroy contexts */
static int is_inside; /* the thread that loads is, or may be, in a call of the driver */
static int is_stopped;

/* Of the thread that fetches entries: whether it is about to ask for what it has taken, has ended, or must not ask. */
static int is_taking, has_fetched, must_not_ask;

/* The calling thread has one of the holds. */
static __thread __attribute__((tls_model("initial-exec"))) bool is_holding;

/*
 * When the trace begins: decide whether threads of ours load twins (kernels' copies with probes) so that the program
 * waits for none: only with --no-wait, --when launch or --hot, and if the driver can tell when a context is idle.
 */
void nt_background_begin(void)
{
	const struct nt_settings *settings = nt_settings();

	if (!settings->hot && !settings->waits_for_none)
		return;
	if (!nt_quiet_is_supported()) {
		nt_lines_note("this driver, older than CUDA 12.5, cannot tell when a context is idle: twins are waited for");
		return;
	}
	nt_requests_hot = settings->hot;
	nt_quiet_counts = true;
	nt_requests_are_on = true;
}

/* Whether the process ends, so that the background threads must stop. */
static bool is_ending(void)
{
	return __atomic_load_n(&is_stopped, __ATOMIC_ACQUIRE);
}

/* --- the thread that fetches entries, and calls no driver --- */

/*
 * Ask the listener (the process that puts probes into kernels) for the images that were announced, and add them to the
 * list; drop those from it that are resolved meanwhile. list: images that were asked for, linked by next_begun.
 */
static void take_announced(struct nt_image **list)
{
	struct nt_image *taken = __atomic_exchange_n(&nt_requests_announced, NULL, __ATOMIC_ACQ_REL);

	while (taken) {
		struct nt_image *next = taken->next_begun;
		nt_image_begin(taken);
		taken->next_begun = *list;
		*list = taken;
		taken = next;
	}
	/* The program may have found it in the cache. */
	while (*list) {
		if (!nt_image_is_resolved(*list)) {
			list = &(*list)->next_begun;
			continue;
		}
		nt_image_drop(*list);
		*list = (*list)->next_begun;
	}
}

/*
 * Pass the kernels whose twins (copies with probes) are there, or need not be waited for, to the thread that loads
 * twins, and take them out of the list; whether there were any. list: linked by next_requested.
 */
static bool hand_on(struct nt_kernel **list)
{
	bool is_any = false;

	while (*list) {
		struct nt_kernel *kernel = *list;
		if (!nt_image_is_resolved(kernel->image) && !nt_image_is_answered(kernel->image, 0)) {
			list = &kernel->next_requested;
			continue;
		}
		nt_image_resolve(kernel->image);
		nt_image_complete(kernel);
		*list = kernel->next_requested;
		nt_requests_push(&resolved, kernel);
		is_any = true;
	}
	return is_any;
}

/*
 * Main function of the background thread that gets twins (kernels' copies with probes) from the cache or the listener
 * (it puts probes into kernels). It opens files, and calls no driver.
 */
static void *fetch_twins(void *unused)
{
	struct nt_kernel *list = NULL;
	struct nt_image *begun = NULL;
	int filters_fd = -1;

	(void)unused;
	nt_lock_without_signals();
	pthread_setname_np(pthread_self(), "neutrino-fetch");
	/* Without one, what it opens is in the program's for a short time. */
	if (nt_errand_take_table())
		filters_fd = nt_own_table_open_filters();
	int filters = nt_own_table_count_filters(filters_fd);
	for (;;) {
		/* What was requested until then is asked for: a later run finds it in the cache. */
		bool is_last = is_ending();
		uint32_t seen = __atomic_load_n(&nt_requests.wakes, __ATOMIC_ACQUIRE);
		/* What a new filter forbids might end the process. */
		if (nt_own_table_count_filters(filters_fd) != filters) {
			__atomic_store_n(&must_not_ask, 1, __ATOMIC_RELEASE);
			break;
		}
		__atomic_store_n(&is_taking, 1, __ATOMIC_SEQ_CST);
		take_announced(&begun);
		nt_requests_take(&nt_requests, &list);
		/* So that twins of many images are made side by side. */
		for (struct nt_kernel *kernel = list; kernel; kernel = kernel->next_requested)
			nt_image_begin(kernel->image);
		__atomic_store_n(&is_taking, 0, __ATOMIC_RELEASE);
		if (is_last)
			break;
		if (!list)
			nt_requests_sleep(&nt_requests, seen);
		else if (hand_on(&list))
			continue;
		else if (list->image->begun)
			/* In steps, so that what is requested meanwhile is asked for, too. */
			nt_image_is_answered(list->image, ANSWER_MS);
		else
			nt_image_resolve(list->image);
	}
	__atomic_store_n(&has_fetched, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* --- the thread that loads them, and opens no file --- */

/*
 * Begin to call the driver in the loading thread, or in one that changes the set of probes (there is never more than one of
 * both); false while a context is being destroyed, or when the process ends. is_inside tells the others. Takes the mutex.
 */
bool nt_background_enter(void)
{
	nt_lock_take(&mutex);
	bool may_enter = !holds && !is_stopped;
	__atomic_store_n(&is_inside, may_enter, __ATOMIC_RELEASE);
	nt_lock_release(&mutex);
	return may_enter;
}

/* End what nt_background_enter has begun. */
void nt_background_leave(void)
{
	__atomic_store_n(&is_inside, 0, __ATOMIC_RELEASE);
}

/*
 * Load the twins (copies with probes) of kernels in the list, where the context is idle for long enough, and take those
 * kernels out of it. Whether there were any. list: linked by next_requested.
 */
static bool load_all(struct nt_kernel **list)
{
	bool is_any = false;

	while (*list) {
		struct nt_kernel *kernel = *list;
		bool is_done = nt_background_enter() && nt_registry_make_ready(kernel, QUIET_MS);
		nt_background_leave();
		if (!is_done) {
			list = &kernel->next_requested;
			continue;
		}
		*list = kernel->next_requested;
		/* From now on it may be requested again, for functions that were added meanwhile. */
		__atomic_store_n(&kernel->is_requested, 0, __ATOMIC_RELEASE);
		is_any = true;
	}
	return is_any;
}

/*
 * Main function of the background thread that loads twins (kernels' copies with probes) into the driver. It opens no
 * file.
 */
static void *load_twins(void *unused)
{
	struct nt_kernel *list = NULL;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	long pause = SHORTEST_PAUSE_US;

	(void)unused;
	nt_lock_without_signals();
	pthread_setname_np(pthread_self(), "neutrino-twins");
	/* Calls of this thread must neither fail because the program captures a stream, nor invalidate the capture. */
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	while (!is_ending()) {
		uint32_t seen = __atomic_load_n(&resolved.wakes, __ATOMIC_ACQUIRE);
		nt_requests_take(&resolved, &list);
		if (!list) {
			nt_requests_sleep(&resolved, seen);
		} else if (load_all(&list)) {
			pause = SHORTEST_PAUSE_US;
		} else {
			nt_clock_sleep_us(pause);
			pause = pause < LONGEST_PAUSE_US ? 2 * pause : pause;
		}
	}
	return NULL;
}

/*
 * Start the two background threads that get and load twins (copies with probes), at the first call; later calls do
 * nothing. If one cannot be started, the trace says so, and kernels run unprobed.
 */
void nt_background_start(void)
{
	static int is_started;

	if (__atomic_exchange_n(&is_started, 1, __ATOMIC_ACQ_REL))
		return;
	/* They name themselves. */
	bool is_fetching = nt_thread_start(fetch_twins, NULL, NULL);
	if (!is_fetching)
		__atomic_store_n(&must_not_ask, 1, __ATOMIC_RELEASE);
	if (!is_fetching || !nt_thread_start(load_twins, NULL, NULL))
		nt_lines_note("no thread could be started to get twins: kernels run unprobed");
}

/* --- ends --- */

/* Whether the loading thread is in a call of the driver, or may be. */
static bool is_loading(void)
{
	return __atomic_load_n(&is_inside, __ATOMIC_ACQUIRE);
}

/*
 * Whether the listener has not been asked yet for something that was requested, and will be. In this order: what the
 * thread has taken is seen by is_taking, and after that as unsent.
 */
static bool is_asking(void)
{
	bool is_there = __atomic_load_n(&nt_requests.last, __ATOMIC_SEQ_CST) ||
			__atomic_load_n(&nt_requests_announced, __ATOMIC_SEQ_CST) || __atomic_load_n(&is_taking, __ATOMIC_SEQ_CST);

	if (__atomic_load_n(&must_not_ask, __ATOMIC_ACQUIRE))
		return false;
	return (is_there && !__atomic_load_n(&has_fetched, __ATOMIC_ACQUIRE)) || nt_entry_fetch_is_unsent();
}

/* Whether a thread of ours has to come to an end before the process may: it loads, or asks. */
static bool is_busy(void)
{
	return is_loading() || is_asking();
}

/* Wait while something is so, but for so many milliseconds at most. */
static void wait_while(bool (*is_so)(void), unsigned milliseconds)
{
	uint64_t until = nt_clock_now_ns() + milliseconds * UINT64_C(1000000);

	while (is_so() && nt_clock_now_ns() < until)
		nt_clock_sleep_us(100);
}

/*
 * Before the program destroys a context: keep the loading thread out of the driver until nt_background_release, in the
 * same thread. Waits while it is in it, half a minute at most.
 */
void nt_background_hold(void)
{
	if ((!nt_requests_are_on && !nt_settings()->asks_again) || is_holding)
		return;
	is_holding = true;
	nt_lock_take(&mutex);
	holds++;
	nt_lock_release(&mutex);
	wait_while(is_loading, HOLD_LIMIT_MS);
}

/*
 * After the program has destroyed a context: let the loading thread call the driver again. Does nothing in a thread
 * without nt_background_hold before.
 */
void nt_background_release(void)
{
	if (!is_holding)
		return;
	is_holding = false;
	nt_lock_take(&mutex);
	holds--;
	nt_lock_release(&mutex);
}

/*
 * At the end of the process: stop the background threads. Waits while a twin (copy with probes) is being loaded, and
 * until the listener is asked for all that was requested, for a second at most.
 */
void nt_background_end(void)
{
	if (!nt_requests_are_on)
		return;
	nt_lock_take(&mutex);
	__atomic_store_n(&is_stopped, 1, __ATOMIC_RELEASE);
	nt_lock_release(&mutex);
	nt_requests_wake(&nt_requests);
	wait_while(is_busy, END_LIMIT_MS);
}

/*
 * In the child after fork, where no background thread exists: twins (copies with probes) are not loaded in the
 * background any more.
 */
void nt_background_child(void)
{
	nt_requests_are_on = false;
	nt_quiet_child();
}
