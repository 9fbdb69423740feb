#include "base/errand.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/own_table.h"
#include "base/thread.h"

#define MOST_THREADS 80u /* requests that nobody waits for yet take up to 64 */

/* nt_errand.state */
enum { WAITING, DROPPED, DONE, NOT_RUN };

/* Guards these; never held across an errand. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nt_errand *first, *last;
static uint32_t threads, idle; /* threads that there are, and that wait */
static uint32_t waiting;       /* errands that no thread has taken */
static uint32_t wakes;	       /* futex */
static uint32_t accepted;      /* calls of nt_errand_accept_filters */
static enum {
	USABLE,
	IMPOSSIBLE, /* threads can have no table of their own */
	FORBIDDEN,  /* the program has installed a seccomp filter since, and what it forbids may end the process */
} usability;

static __thread __attribute__((tls_model("initial-exec"))) bool is_own;

/* Wake at most `count` threads that sleep on a futex (a word of memory that the kernel lets threads wait on). */
static void wake_futex(uint32_t *word, int count)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/*
 * Remove the first errand (a function that a helper thread is to call) from the queue; NULL if that is empty. Under the
 * mutex.
 */
static struct nt_errand *take_errand(void)
{
	struct nt_errand *taken = first;

	if (taken) {
		first = taken->next;
		waiting--;
		if (!first)
			last = NULL;
	}
	return taken;
}

/*
 * End an errand (a function that a helper thread calls): tell whoever waits for it (state: DONE or NOT_RUN), or release
 * its argument if it was dropped, that is nobody waits any more. The errand must not be touched after that.
 */
static void settle_errand(struct nt_errand *errand, uint32_t state)
{
	void (*release)(void *) = errand->release;
	void *argument = errand->argument;

	/* Whoever waits may free it at once: after that only its address is used. */
	if (__atomic_exchange_n(&errand->state, state, __ATOMIC_ACQ_REL) == DROPPED)
		release(argument);
	else
		wake_futex(&errand->state, INT_MAX);
}

/*
 * Main function of a helper thread: gives itself a descriptor table of its own, then runs errands as they come, and
 * sleeps between. If it can have no such table, or the program has installed a new seccomp filter (which may kill
 * threads that open files), it settles all that wait as NOT_RUN and ends.
 */
static void *run_errands(void *unused)
{
	struct nt_errand *errand;

	(void)unused;
	nt_lock_without_signals();
	pthread_setname_np(pthread_self(), "neutrino-files");
	is_own = nt_own_table_unshare();
	int filters_fd = is_own ? nt_own_table_open_filters() : -1, filters = nt_own_table_count_filters(filters_fd);
	uint32_t seen_accepted = 0;
	nt_lock_take(&mutex);
	if (!is_own)
		usability = IMPOSSIBLE;
	while (usability == USABLE) {
		if (accepted != seen_accepted) {
			seen_accepted = accepted;
			filters = nt_own_table_count_filters(filters_fd);
		}
		if (first && nt_own_table_count_filters(filters_fd) != filters) {
			usability = FORBIDDEN;
		} else if ((errand = take_errand())) {
			nt_lock_release(&mutex);
			errand->run(errand->argument);
			settle_errand(errand, DONE);
			nt_lock_take(&mutex);
		} else {
			uint32_t seen = wakes;
			idle++;
			nt_lock_release(&mutex);
			syscall(SYS_futex, &wakes, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
			nt_lock_take(&mutex);
			idle--;
		}
	}
	while ((errand = take_errand()))
		settle_errand(errand, NOT_RUN);
	threads--;
	nt_lock_release(&mutex);
	return NULL;
}

/* Start one more helper thread; false if there are MOST_THREADS already or it cannot be started. Under the mutex. */
static bool start_thread(void)
{
	if (threads == MOST_THREADS)
		return false;
	bool started = nt_thread_start(run_errands, NULL, NULL);
	threads += started;
	return started;
}

/*
 * Have a helper thread call errand->run(argument), and do not wait. The errand must stay in memory until it is settled
 * (run or given up). False if no thread can run it: none could be started, or a seccomp filter forbids it. errno stays.
 */
bool nt_errand_start(struct nt_errand *errand)
{
	int before = errno;

	errand->next = NULL;
	errand->state = WAITING;
	nt_lock_take(&mutex);
	bool taken = usability == USABLE && (idle > waiting || start_thread() || threads);
	if (taken) {
		*(last ? &last->next : &first) = errand;
		last = errand;
		waiting++;
		wakes++;
	}
	nt_lock_release(&mutex);
	if (taken)
		wake_futex(&wakes, 1);
	errno = before;
	return taken;
}

/*
 * Whether an errand (a function that a helper thread calls) is settled: it was run, or given up. Waits for that at most
 * so many milliseconds; 0 only looks. errno stays.
 */
bool nt_errand_is_done(struct nt_errand *errand, unsigned milliseconds)
{
	struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
	int before = errno;

	if (milliseconds && __atomic_load_n(&errand->state, __ATOMIC_ACQUIRE) == WAITING)
		syscall(SYS_futex, &errand->state, FUTEX_WAIT_PRIVATE, WAITING, &time, NULL, 0);
	errno = before;
	return __atomic_load_n(&errand->state, __ATOMIC_ACQUIRE) > DROPPED;
}

/*
 * Nobody waits for an errand (a function that a helper thread calls) any more: its release function frees it, here if
 * it is settled already, else later by the thread that settles it.
 */
void nt_errand_drop(struct nt_errand *errand)
{
	uint32_t waiting_state = WAITING;

	if (!__atomic_compare_exchange_n(&errand->state, &waiting_state, DROPPED, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		errand->release(errand->argument);
}

/*
 * Whether nobody waits for the errand (a function that a helper thread calls) any more (nt_errand_drop), so that its
 * function can stop early.
 */
bool nt_errand_is_dropped(const struct nt_errand *errand)
{
	return __atomic_load_n(&errand->state, __ATOMIC_ACQUIRE) == DROPPED;
}

/*
 * Whether a settled errand (a function that a helper thread calls) was really run; false if it was given up because a
 * seccomp filter of the program may forbid what it does.
 */
bool nt_errand_has_run(const struct nt_errand *errand)
{
	return __atomic_load_n(&errand->state, __ATOMIC_ACQUIRE) == DONE;
}

/*
 * Call run(argument) in a helper thread, which has a descriptor table of its own, and wait for its end. In such a
 * thread, and where none can be had, it is called here. False if it was not called, as a seccomp filter may forbid what
 * it does.
 */
bool nt_errand_run(void (*run)(void *argument), void *argument)
{
	struct nt_errand errand = {.run = run, .argument = argument};

	if (!is_own && nt_errand_start(&errand)) {
		while (!nt_errand_is_done(&errand, 1000))
			;
		if (nt_errand_has_run(&errand))
			return true;
	}
	if (!is_own && __atomic_load_n(&usability, __ATOMIC_RELAXED) == FORBIDDEN)
		return false;
	run(argument);
	return true;
}

/*
 * Give the calling thread (one of ours) a descriptor table of its own, so that it opens files itself instead of asking
 * a helper thread. False if the system does not allow it.
 */
bool nt_errand_take_table(void)
{
	is_own = nt_own_table_unshare();
	return is_own;
}

/*
 * The seccomp filters that the program has installed by now are known to allow what errands do: helper threads count
 * them as harmless.
 */
void nt_errand_accept_filters(void)
{
	nt_lock_take(&mutex);
	accepted++;
	nt_lock_release(&mutex);
}

/*
 * Start a helper thread ahead if there is none, so that the next errand (a function for such a thread to call) finds
 * one; threads may not be startable later.
 */
void nt_errand_prepare(void)
{
	nt_lock_take(&mutex);
	if (!threads && usability == USABLE)
		start_thread();
	nt_lock_release(&mutex);
}

/*
 * In the child after fork, where only the forking thread exists: forget the helper threads and the queue of the parent,
 * and unlock the mutex, which one of them may have held.
 */
void nt_errand_forget_threads(void)
{
	static const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;

	mutex = unlocked;
	first = last = NULL;
	threads = idle = waiting = 0;
}

/*
 * In a child after fork that must start no threads: forget the parent's, and have errands run in their caller from now
 * on.
 */
void nt_errand_child(void)
{
	nt_errand_forget_threads();
	usability = IMPOSSIBLE;
}
