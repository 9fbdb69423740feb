/* What the other parts of the hook want of the drain thread (drain/drain_thread.c): to wake up, or to stop. */
#ifndef NEUTRINO_WAKE_H
#define NEUTRINO_WAKE_H

#include <stdbool.h>

/* How deep the drain thread sleeps. */
enum nt_sleep {
	NT_AWAKE,
	NT_DOZING, /* launches are in flight: it is woken by whoever takes a new segment */
	NT_ASLEEP, /* nothing is in flight: it is woken by any launch */
};
extern int nt_wake_drain_depth;

/* Wake the drain thread. */
void nt_wake_drain(void);

/*
 * Wake the drain thread (ours, which fetches results of finished launches) if it sleeps at least that deep. On the
 * launch path: one load, and a system call only if it has to be woken.
 */
static inline void nt_wake_drain_from(enum nt_sleep depth)
{
	if (__builtin_expect(__atomic_load_n(&nt_wake_drain_depth, __ATOMIC_RELAXED) >= (int)depth, 0))
		nt_wake_drain();
}

/* Have the drain thread make no further call of the driver: the process ends without it. */
void nt_wake_stop_drain(void);
bool nt_wake_drain_is_stopped(void);

#endif
