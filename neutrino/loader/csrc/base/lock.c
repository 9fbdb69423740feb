#include "base/lock.h"

#include <signal.h>

/* For how many locks the thread holds its signals back, and its signal mask before the first. */
static __thread __attribute__((tls_model("initial-exec"))) struct {
	unsigned depth;
	sigset_t mask;
} held;

/* The calling thread, one of ours, gets no signals at all: from now on its locks need no system calls to block them. */
void nt_lock_without_signals(void)
{
	held.depth++;
}

/*
 * Block all signals in the thread until nt_lock_end_quiet: it takes a lock, or calls what does (the dynamic loader). May
 * be nested.
 */
void nt_lock_begin_quiet(void)
{
	if (!held.depth) {
		sigset_t blocked, before;
		sigfillset(&blocked);
		pthread_sigmask(SIG_SETMASK, &blocked, &before);
		held.mask = before;
	}
	held.depth++;
}

/* Let signals through again, after the last nt_lock_begin_quiet of the thread. errno stays. */
void nt_lock_end_quiet(void)
{
	if (!--held.depth) {
		sigset_t mask = held.mask;
		pthread_sigmask(SIG_SETMASK, &mask, NULL);
	}
}

/*
 * Lock a mutex, and block all signals in the thread while it holds one: a signal handler that ended the process
 * meanwhile would leave it locked forever. Ends with nt_lock_release.
 */
void nt_lock_take(pthread_mutex_t *mutex)
{
	nt_lock_begin_quiet();
	pthread_mutex_lock(mutex);
}

/* Unlock a mutex of nt_lock_take, and let signals through again after the last one that the thread holds. */
void nt_lock_release(pthread_mutex_t *mutex)
{
	pthread_mutex_unlock(mutex);
	nt_lock_end_quiet();
}
