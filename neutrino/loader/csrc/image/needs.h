/*
 * Needs: how much memory the logs of a kernel wanted, kept in the cache for the next process, beside the twins of the
 * kernel's image. A need is a hint: one that is wrong costs memory or records, which are counted.
 */
#ifndef NEUTRINO_NEEDS_H
#define NEUTRINO_NEEDS_H

#include <stdint.h>

#include "base/kernel.h"
/* What earlier processes have learnt of a kernel, 0: nothing. key: of the image's entry. */
struct nt_need nt_needs_of(const uint8_t key[32], const char *kernel);

/* Keep needs of kernels of one image, beside those of others that are kept already. The writer does it later. */
void nt_needs_keep(const uint8_t key[32], const struct nt_need *needs, uint32_t count);

#endif
