/*
 * What lower floors call of higher ones. front/process.c sets it when the process starts to be recorded, before any thread
 * of ours runs and before any image or pool is made. None of it is on the launch path.
 */
#ifndef NEUTRINO_UPCALLS_H
#define NEUTRINO_UPCALLS_H

#include <stdbool.h>

#include "base/cuda_abi.h"

struct nt_pool;

struct nt_upcalls {
	/* Of memory: the drain thread is needed; false when there is none. A pool was made, or is about to be unmade. */
	bool (*drain_start)(void);
	bool (*pool_made)(const struct nt_pool *pool);
	void (*pool_ends)(const struct nt_pool *pool, bool has_context);
	/* Of drain: the driver has destroyed a context; a round over all pools is done. */
	void (*context_gone)(CUcontext context);
	void (*round_done)(void);
	/* Of requests: the threads in the background are needed. */
	void (*background_start)(void);
};

extern struct nt_upcalls nt_upcalls;

#endif
