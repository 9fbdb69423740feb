#include "base/lock.h"

#include <signal.h>

/* How many locks the thread holds, and its signal mask before the first. */
static __thread __attribute__((tls_model("initial-exec"))) struct {
	unsigned depth;
	sigset_t mask;
} held;

void nt_lock_without_signals(void)
{
	held.depth++;
}

void nt_lock_take(pthread_mutex_t *mutex)
{
	if (!held.depth) {
		sigset_t blocked, before;
		sigfillset(&blocked);
		pthread_sigmask(SIG_SETMASK, &blocked, &before);
		held.mask = before;
	}
	held.depth++;
	pthread_mutex_lock(mutex);
}

void nt_lock_release(pthread_mutex_t *mutex)
{
	pthread_mutex_unlock(mutex);
	if (!--held.depth) {
		sigset_t mask = held.mask;
		pthread_sigmask(SIG_SETMASK, &mask, NULL);
	}
}
