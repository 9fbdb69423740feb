/* The launch path: from a program's launch to a probed one, or to the original's with the reason counted. */
#ifndef NEUTRINO_LAUNCH_H
#define NEUTRINO_LAUNCH_H

#include <stdbool.h>

#include "driver.h"
#include "registry.h"

/* A launch of the program, whatever call it came by. */
struct nt_launch {
	unsigned int grid[3];
	unsigned int block[3];
	unsigned int shared;
	CUstream stream; /* as the program gave it */
	bool per_thread; /* by a _ptsz call: stream 0 is the thread's own */
	void **parameters;
	void **extra;
	/* Makes the program's call with that function and these parameters. */
	CUresult (*submit)(const struct nt_launch *launch, CUfunction function, void **parameters, void **extra);
	const void *argument; /* for submit */
};

/* Launches function by its kernel's backend, or the original; returns what the program shall see. */
CUresult nt_launch(struct nt_function *function, const struct nt_launch *launch);

/* The trace has ended: every launch runs the original. */
void nt_launch_end(void);

/*
 * The context goes away; another at its address is prepared anew. Waits, at most that long, for a thread of ours that
 * prepares it still.
 */
void nt_launch_forget_context(CUcontext context, unsigned milliseconds);

/* A launch of a function that the hook never saw obtained. */
void nt_launch_unknown(void);

#endif
