/*
 * Twins that nobody waits for (--no-wait, --when launch, --hot): threads of ours get them. Until then launches run originals,
 * reason not-ready.
 *
 * One thread asks the listener and reads the cache. It has a descriptor table of its own, as the program would see, and
 * might close, what it opens later; and so it calls no driver, whose descriptors it lacks. The other loads, and opens nothing.
 *
 * Requests are kernels, which are never freed; the functions of a kernel are looked up when its twin is there.
 */
#ifndef NEUTRINO_BACKGROUND_H
#define NEUTRINO_BACKGROUND_H

#include <stdbool.h>

#include "image/registry.h"

/* Whether threads of ours get the twins. Set when the trace begins, before any image. */
extern bool nt_background_is_on;

/* The trace begins. */
void nt_background_begin(void);

/* Whether twins are requested at launches: then also those that are there already are not loaded before. */
bool nt_background_is_by_launch(void);

/*
 * Whether a kernel of the image, which the program obtains, has to do without a twin for now; false if the image is
 * resolved, which it is then if that takes no long wait.
 */
bool nt_background_defers(struct nt_image *image);

/* A new image that may have an entry: it is asked for by the thread that fetches. */
void nt_background_announce(struct nt_image *image);

/* A function that is not ready was added. */
void nt_background_added(const struct nt_function *function);

/*
 * A function that is not ready is launched, captured, or in a graph that is instantiated: whether its twin is to be
 * requested now. On the launch path: lock-free.
 */
bool nt_background_is_due(struct nt_function *function);

/* Request the twin of a function that is due. context: that it is launched in. Lock-free; wakes the thread. */
void nt_background_request(struct nt_function *function, CUcontext context);

/*
 * Before and after a call that destroys a context, in the same thread: the thread of ours is in no context between. Waits
 * while it is in one, half a minute at most. The second does nothing without the first.
 */
void nt_background_hold(void);
void nt_background_release(void);

/* At the end of the process: drop all requests. Waits only while an image is being loaded, and for a second at most. */
void nt_background_end(void);

/* In the child after fork, where there is no such thread. */
void nt_background_child(void);

#endif
