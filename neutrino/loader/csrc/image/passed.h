/*
 * PTX that has passed through the process: what a compiler or linker in it (NVRTC, nvJitLink, the driver's cuLink*) made
 * a cubin (machine code for a GPU) from, by the cubin's bytes. Twins (copies of kernels with probes) are made from it when
 * the program loads the cubin, which holds no PTX itself.
 */
#ifndef NEUTRINO_PASSED_H
#define NEUTRINO_PASSED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "image/image_bytes.h"

/* What is known of a cubin: with its PTX, a fatbin of both; without, why there is none. */
struct nt_passed {
	uint8_t *fatbin; /* of nt_memory_alloc, the caller's; NULL: there is no PTX, or no memory */
	size_t size;
	const char *by;	 /* who made the cubin, such as "NVRTC"; NULL: nobody whom the hook has seen */
	const char *why; /* without PTX: why; or NULL */
};

/* The SHA-256 by which a cubin is known: of its bytes, and zeros up to a multiple of 8 bytes, as fatbins store it. */
void nt_passed_digest(const struct nt_image_bytes *cubin, uint8_t ret[32]);

/* Whether PTX of a cubin of size bytes would be kept: it holds none, and none of it is kept yet. */
bool nt_passed_is_wanted(const void *cubin, size_t size);

/*
 * Keep the PTX that a cubin was compiled from. by, why: as above, texts that are never freed; text: NULL if it cannot be
 * used. A cubin that holds PTX is not kept. Of what was kept long ago, the program has loaded what it wants to.
 */
void nt_passed_keep(const void *cubin, size_t cubin_size, const char *text, size_t text_size, const char *by,
		    const char *why);

/* What is known of an image without PTX that the program has loaded on a device. arch: the device's, such as "sm_90". */
struct nt_passed nt_passed_find(const struct nt_image_bytes *bytes, const char *arch);

#endif
