/* The launch path: from a program's launch to a probed one, or to the original's with the reason counted. */
#ifndef NEUTRINO_LAUNCH_H
#define NEUTRINO_LAUNCH_H

#include <stdbool.h>

#include "base/driver.h"
#include "base/regions.h"
#include "image/backend.h"

/*
 * Launch a function with its probes, or the original if that is not possible; returns the driver's result for the
 * program. On the launch path: lock-free, from any thread.
 */
CUresult nt_launch(struct nt_function *function, const struct nt_launch *launch);

/* What nt_launch_find has found out; it fits into two registers. */
struct nt_found {
	uint32_t *reading; /* the reading section that it has begun and not ended; NULL: nothing was looked up */
	struct nt_function *function;
};

/*
 * Look up the function of a launch. If it is certain by that alone that the launch runs the original, count it: then there is
 * nothing else to do for it. Most launches of most programs are such: it takes few instructions and touches little memory.
 */
struct nt_found nt_launch_find(CUfunction handle);

/* For reading: the launch is counted, and runs the original. */
extern NT_HIDDEN uint32_t nt_launch_passed;

/* Whether nt_launch_find has counted the launch already as one of the original, so that it only goes to the driver. */
static inline bool nt_launch_passes(struct nt_found found)
{
	return found.reading == &nt_launch_passed;
}

/* A capture of a stream begins, or has ended: what is launched in one is counted when its graph is. */
void nt_launch_capture_begins(void);
void nt_launch_capture_ends(void);

/* Whether a launch's stream is being captured. */
bool nt_launch_is_captured(CUstream stream, bool per_thread);

/* The stream that a call means: for 0 the explicit handle of the default stream. */
CUstream nt_launch_explicit_stream(CUstream stream, bool per_thread);

/*
 * Take the number of a launch, which is no node of a graph: NOT_SELECTED if it is not chosen, else reason, the function's.
 * Lock-free.
 */
enum neutrino_reason nt_launch_chosen(const struct nt_function *function, const struct nt_launch *launch,
				      enum neutrino_reason reason);

/* Compute a launch's extent. PROBED, or the reason to run the original. */
enum neutrino_reason nt_launch_extent(const struct nt_launch *launch, const struct nt_kernel *kernel, struct nt_extent *ret);

/* End the trace: from now on every launch runs the original. */
void nt_launch_end(void);

/*
 * Just before the program destroys a context: forget that it was prepared, as a new one may get its address. Waits at
 * most that long for the thread that prepares it.
 */
void nt_launch_forget_context(CUcontext context, unsigned milliseconds);

bool nt_launch_is_ended(void);

/* Count launches of functions that were not obtained through the hook. is_chosen: they came before --duration was over. */
void nt_launch_unknown(uint64_t launches, bool is_chosen);

#endif
