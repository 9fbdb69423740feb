/* Called when the program creates or destroys streams and contexts, in its thread. */
#ifndef NEUTRINO_LIFETIMES_H
#define NEUTRINO_LIFETIMES_H

#include <stdbool.h>

#include "base/driver.h"

/* Before the stream is destroyed. */
void nt_lifetimes_stream_ends(CUstream stream);

/* After a context has become current: prepare it for launches if it is new. */
void nt_lifetimes_context_comes(CUcontext context);

/* After the program has made a green context, or asked for its CUcontext; before it destroys it. */
void nt_lifetimes_green_comes(void *green);
void nt_lifetimes_green_ends(void *green);

/* Before the context is destroyed. */
void nt_lifetimes_context_ends(CUcontext context);

/*
 * Before and after a call that may destroy a context, or only lower a count. Its records are copied back before; whether
 * it is gone is asked of the driver after.
 */
void nt_lifetimes_context_may_end(CUcontext context);
void nt_lifetimes_context_may_have_ended(CUcontext context);

/* The driver has destroyed a context, as the drain thread has found: nt_upcalls.context_gone. */
void nt_lifetimes_context_gone(CUcontext context);

/* After the program has retained a device's primary context; before and after it releases it once, or resets it. */
void nt_lifetimes_primary_retained(CUdevice device);
void nt_lifetimes_primary_release_begins(CUdevice device);
void nt_lifetimes_primary_released(CUdevice device, CUresult result);
void nt_lifetimes_primary_reset_begins(CUdevice device);
void nt_lifetimes_primary_was_reset(CUdevice device);

#endif
