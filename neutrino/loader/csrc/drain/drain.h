/* The drain thread: it empties the pools' segments (drain.c), and sleeps while there is nothing to do (drain_thread.c). */
#ifndef NEUTRINO_DRAIN_H
#define NEUTRINO_DRAIN_H

#include "memory/segment.h"

/* What a round of draining found. */
struct nt_drained {
	bool worked;	/* something was drained, and the next round should be soon: */
	bool in_flight; /* some launches are not drained yet */
	bool is_sparse; /* launches of segments that are not full were drained: there is no hurry */
};

/* --- drain.c: in the drain thread, with the pool's context current --- */

/* Drain what is complete in a pool. all_complete: whether every submitted launch is known to be. */
struct nt_drained nt_drain_pool(struct nt_pool *pool, bool all_complete);
/* Mark all launches of a pool as lost that were not drained yet: what they recorded is gone with their context. */
void nt_drain_lose_all(struct nt_pool *pool);

/* --- drain_thread.c --- */

/* Start the drain thread, once; false when there is none. */
bool nt_drain_thread_start(void);

/*
 * The program begins a capture, and has counted it: if the drain thread is about to wait for a context, let it begin, for at
 * most 10 ms. A wait that begins during a capture would end that.
 */
void nt_drain_thread_pass(void);

#endif
