/* Called when the program creates or destroys streams and contexts, in its thread. */
#ifndef NEUTRINO_LIFETIMES_H
#define NEUTRINO_LIFETIMES_H

#include "driver.h"

/* Before the stream is destroyed. */
void nt_stream_ends(CUstream stream);

/* After a context has become current: prepare it for launches if it is new. */
void nt_context_comes(CUcontext context);

/* Before the context is destroyed. */
void nt_context_ends(CUcontext context);

/* After the program has retained a device's primary context; before it releases it once; before it resets it. */
void nt_primary_retained(CUcontext context, CUdevice device);
void nt_primary_released(CUdevice device);
void nt_primary_reset(CUdevice device);

#endif
