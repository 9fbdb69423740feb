/* What the hook does in this process. front/process.c sets it. */
#ifndef NEUTRINO_MODE_H
#define NEUTRINO_MODE_H

#include "base/hot.h"

enum nt_mode {
	NT_OFF,	    /* pass everything through */
	NT_READY,   /* after cuInit, no image yet */
	NT_TRACING, /* the trace directory is there */
	NT_ENDED,
};

extern NT_HIDDEN int nt_mode_now;

/*
 * What this library does in the process at the moment: nothing, wait for a first image, trace, or no more since the
 * trace has ended.
 */
static inline enum nt_mode nt_mode_of_process(void)
{
	return (enum nt_mode)__atomic_load_n(&nt_mode_now, __ATOMIC_ACQUIRE);
}

#endif
