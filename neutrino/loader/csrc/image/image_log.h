/* What the trace has of devices, images and kernels: their events and files. */
#ifndef NEUTRINO_IMAGE_LOG_H
#define NEUTRINO_IMAGE_LOG_H

#include <stdbool.h>

#include "base/driver.h"
#include "image/image.h"

/* Write the event of a device, once for each. arch: as Neutrino's targets name it. */
void nt_image_log_device(CUdevice device, const char *arch);

/* Write the event of an image. cached: whether its twins were in the cache. ready_ms: milliseconds until they were there. */
void nt_image_log_image(const struct nt_image *image, bool cached, double ready_ms);

/* Write the event of a kernel and, if it is probed, its files. detail: what its reason alone does not say, or NULL. */
void nt_image_log_kernel(const struct nt_image *image, const struct nt_kernel *kernel, const char *detail);

#endif
