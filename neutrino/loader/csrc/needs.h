/*
 * Needs: how much memory the logs of a kernel wanted, kept in the cache for the next process, beside the twins of the
 * kernel's image. A need is a hint: one that is wrong costs memory or records, which are counted.
 */
#ifndef NEUTRINO_NEEDS_H
#define NEUTRINO_NEEDS_H

#include <stdint.h>

struct nt_need {
	uint64_t kernel; /* nt_hash_text of its name */
	uint64_t units;	 /* of the log that wanted most */
};

/* What earlier processes have learnt of a kernel, in units; 0: nothing. key: of the image's entry. */
uint64_t nt_need_of(const uint8_t key[32], const char *kernel);

/* Keep needs of kernels of one image, beside those of others that are kept already. The writer does it later. */
void nt_needs_keep(const uint8_t key[32], const struct nt_need *needs, uint32_t count);

#endif
