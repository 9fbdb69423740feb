/*
 * The hook's locks. A thread that holds one gets no signal: its handler might call exit, and the lock would never be
 * released; what the end of the process needs would wait for it. Never held across a call of the driver, or a wait.
 */
#ifndef NEUTRINO_LOCK_H
#define NEUTRINO_LOCK_H

#include <pthread.h>

/* The calling thread is one of ours, which gets no signals at all: its locks need no system calls. */
void nt_lock_without_signals(void);

/*
 * The calling thread gets no signal between these, as while it holds a lock: for calls that take locks of the dynamic
 * loader, which exit takes, too.
 */
void nt_lock_begin_quiet(void);
void nt_lock_end_quiet(void);

void nt_lock_take(pthread_mutex_t *mutex);
void nt_lock_release(pthread_mutex_t *mutex);

#endif
