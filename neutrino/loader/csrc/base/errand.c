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

static void wake(uint32_t *word, int count)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* Take the first errand; NULL if there is none. Under the mutex. */
static struct nt_errand *take(void)
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

static void settle(struct nt_errand *errand, uint32_t state)
{
	void (*release)(void *) = errand->release;
	void *argument = errand->argument;

	/* Whoever waits may free it at once: after that only its address is used. */
	if (__atomic_exchange_n(&errand->state, state, __ATOMIC_ACQ_REL) == DROPPED)
		release(argument);
	else
		wake(&errand->state, INT_MAX);
}

/* The main function of a thread. */
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
		} else if ((errand = take())) {
			nt_lock_release(&mutex);
			errand->run(errand->argument);
			settle(errand, DONE);
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
	while ((errand = take()))
		settle(errand, NOT_RUN);
	threads--;
	nt_lock_release(&mutex);
	return NULL;
}

/* Start a thread; false if that fails. Under the mutex. */
static bool start_thread(void)
{
	if (threads == MOST_THREADS)
		return false;
	bool started = nt_thread_start(run_errands, NULL, NULL);
	threads += started;
	return started;
}

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
		wake(&wakes, 1);
	errno = before;
	return taken;
}

bool nt_errand_is_done(struct nt_errand *errand, unsigned milliseconds)
{
	struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
	int before = errno;

	if (milliseconds && __atomic_load_n(&errand->state, __ATOMIC_ACQUIRE) == WAITING)
		syscall(SYS_futex, &errand->state, FUTEX_WAIT_PRIVATE, WAITING, &time, NULL, 0);
	errno = before;
	return __atomic_load_n(&errand->state, __ATOMIC_ACQUIRE) > DROPPED;
}

void nt_errand_drop(struct nt_errand *errand)
{
	uint32_t waiting_state = WAITING;

	if (!__atomic_compare_exchange_n(&errand->state, &waiting_state, DROPPED, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		errand->release(errand->argument);
}

bool nt_errand_is_dropped(const struct nt_errand *errand)
{
	return __atomic_load_n(&errand->state, __ATOMIC_ACQUIRE) == DROPPED;
}

bool nt_errand_has_run(const struct nt_errand *errand)
{
	return __atomic_load_n(&errand->state, __ATOMIC_ACQUIRE) == DONE;
}

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

bool nt_errand_take_table(void)
{
	is_own = nt_own_table_unshare();
	return is_own;
}

void nt_errand_accept_filters(void)
{
	nt_lock_take(&mutex);
	accepted++;
	nt_lock_release(&mutex);
}

void nt_errand_prepare(void)
{
	nt_lock_take(&mutex);
	if (!threads && usability == USABLE)
		start_thread();
	nt_lock_release(&mutex);
}

void nt_errand_forget_threads(void)
{
	static const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;

	mutex = unlocked;
	first = last = NULL;
	threads = idle = waiting = 0;
}

void nt_errand_child(void)
{
	nt_errand_forget_threads();
	usability = IMPOSSIBLE;
}
