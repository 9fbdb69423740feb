/* The hook in this process: when it begins, when its trace is made, how it ends, and that a forked child has none. */
#ifndef NEUTRINO_PROCESS_H
#define NEUTRINO_PROCESS_H

#include <stdbool.h>

enum nt_mode {
	NT_OFF,	    /* pass everything through */
	NT_READY,   /* after cuInit, no image yet */
	NT_TRACING, /* the trace directory is there */
	NT_ENDED,
};

/* How long the end of a context or of the process waits for its records. */
#define DRAIN_LIMIT_MS 5000

extern int nt_process_mode_now;

static inline enum nt_mode nt_process_mode(void)
{
	return (enum nt_mode)__atomic_load_n(&nt_process_mode_now, __ATOMIC_ACQUIRE);
}

/* After the program's first call of the driver. */
void nt_process_start(void);

/* Make the trace, at the first image: no process that never uses the GPU leaves a folder. Whether there is one. */
bool nt_process_trace(void);

/* At the end of the process: where the driver was used before the hook was there, say what was not recorded. */
void nt_process_missed(void);

#endif
