/*
 * What is asked of the threads in the background (background.h). Requests are kernels, which are never freed; the functions
 * of a kernel are looked up when its twin is there.
 */
#ifndef NEUTRINO_REQUESTS_H
#define NEUTRINO_REQUESTS_H

#include <stdbool.h>
#include <stdint.h>

#include "image/function.h"

/* Whether threads of ours get the twins. Set when the trace begins, before any image. */
extern bool nt_requests_are_on;

/* Launches of a kernel after which its twin is requested; 0: it is when the program obtains the kernel. Set with that. */
extern uint64_t nt_requests_hot;

/* Whether twins are requested at launches: then also those that are there already are not loaded before. */
bool nt_requests_are_by_launch(void);

/* A new image that may have an entry: it is asked for by the thread that fetches. */
void nt_requests_announce(struct nt_image *image);

/* A function that is not ready was added. */
void nt_requests_added(const struct nt_function *function);

/*
 * A function that is not ready is launched, captured, or in a graph that is instantiated: whether its twin is to be
 * requested now. On the launch path: lock-free.
 */
bool nt_requests_is_due(struct nt_function *function);

/* Request the twin of a function that is due. context: that it is launched in. Lock-free; wakes the thread. */
void nt_requests_add(struct nt_function *function, CUcontext context);

/* --- for background.c --- */

/* Kernels for a thread of ours, which takes all at once, linked by next_requested; it sleeps on the count of wakes. */
struct nt_inbox {
	struct nt_kernel *last;
	uint32_t wakes;
};

/* Those that were requested, for the thread that fetches. */
extern struct nt_inbox nt_requests;
/* Images whose twins are to be made ahead, linked by next_begun, for the same thread. */
extern struct nt_image *nt_requests_announced;

/* Wake the thread of an inbox, whatever it shall do. */
void nt_requests_wake(struct nt_inbox *inbox);
/* Sleep until the thread is woken once more than was seen. */
void nt_requests_sleep(struct nt_inbox *inbox, uint32_t seen);
/* Put a kernel into an inbox. Lock-free. */
void nt_requests_push(struct nt_inbox *inbox, struct nt_kernel *kernel);
/* Take all kernels of an inbox, and put them behind a list, first come first served. */
void nt_requests_take(struct nt_inbox *inbox, struct nt_kernel **list);

#endif
