/* Launches. */
#ifndef ED_LAUNCH_H
#define ED_LAUNCH_H

#include "context.h"
#include "operation.h"

/* Let the device process run a kernel, and wait for its end. */
CUresult ed_launch_run(const struct ed_kernel_work *work);

/*
 * Check a launch and copy its parameters: of parameters, one pointer each, or of the buffer that extra names. What
 * ret holds is the caller's to release.
 */
CUresult ed_launch_prepare(struct ed_context *context, CUfunction handle, const uint32_t grid[3],
			   const uint32_t block[3], uint32_t shared, bool is_cooperative, void **parameters,
			   void **extra, struct ed_kernel_work *ret);

#endif
