/* Streams and contexts of the program as they come and go. */
#ifndef NEUTRINO_LIFETIMES_H
#define NEUTRINO_LIFETIMES_H

#include "driver.h"

/* Before the stream is destroyed. */
void nt_stream_ends(CUstream stream);

/* The context is current now; it is got ready when it is new. */
void nt_context_comes(CUcontext context);

/* Before the context is destroyed. */
void nt_context_ends(CUcontext context);

/* The program has retained a device's primary context; it is about to release it once, or to reset it. */
void nt_primary_retained(CUcontext context, CUdevice device);
void nt_primary_released(CUdevice device);
void nt_primary_reset(CUdevice device);

#endif
