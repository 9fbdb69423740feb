/*
 * Kernels with an entry (twins, copies with probes) of their own: those of machine code, of which twins are made one by one, when
 * the program obtains a kernel. What a module or library was loaded from is kept for that.
 */
#ifndef NEUTRINO_KERNEL_IMAGE_H
#define NEUTRINO_KERNEL_IMAGE_H

#include "image/function.h"

/*
 * Keep what a module or library was loaded from, if that is needed later: for other sets of probes, or for kernels of their own.
 * Without memory it has no twins of these. Before the owner is listed.
 */
void nt_kernel_image_keep(struct nt_owner *owner, const struct nt_image_bytes *bytes);

/* Free what nt_kernel_image_keep has kept. */
void nt_kernel_image_release(struct nt_owner *owner);

/*
 * The image of one kernel of a module or library for a set of probes: image itself, what nt_function_image_for has returned, or
 * one of this kernel alone, if the run makes twins of machine code and the kernel has none in image, as far as that is known.
 * Where the latter cannot be made, image. In a reading section.
 */
struct nt_image *nt_kernel_image_of(struct nt_owner *owner, struct nt_image *image, const struct nt_set *set, const char *name);

#endif
