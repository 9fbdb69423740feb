/*
 * Twins that nobody waits for (--no-wait, --when launch, --hot): threads of ours get them. Until then launches run originals,
 * reason not-ready. requests.h has what is asked of them.
 *
 * One thread asks the listener and reads the cache. It has a descriptor table of its own, as the program would see, and
 * might close, what it opens later; and so it calls no driver, whose descriptors it lacks. The other loads, and opens nothing.
 */
#ifndef NEUTRINO_BACKGROUND_H
#define NEUTRINO_BACKGROUND_H

#include <stdbool.h>

/* The trace begins. */
void nt_background_begin(void);

/* Start the threads, once: nt_upcalls.background_start. */
void nt_background_start(void);

/*
 * Before and after a call that destroys a context, in the same thread: the thread of ours is in no context between. Waits
 * while it is in one, half a minute at most. The second does nothing without the first.
 */
void nt_background_hold(void);
void nt_background_release(void);

/*
 * A thread that changes the set of probes calls the driver between these two. False while a context is being destroyed, or when
 * the process ends.
 */
bool nt_background_enter(void);
void nt_background_leave(void);

/*
 * At the end of the process: nothing is loaded any more. Waits while an image is being loaded, and until the listener is
 * asked for all that was requested, for a second at most.
 */
void nt_background_end(void);

/* In the child after fork, where there is no such thread. */
void nt_background_child(void);

#endif
