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
	uint64_t per_warp; /* of NT_NEED_PARTS parts of a unit, for each warp of the launch that wanted most by this */
};

#define NT_NEED_PARTS 256u

/* What earlier processes have learnt of a kernel, 0: nothing. key: of the image's entry. */
struct nt_need nt_need_of(const uint8_t key[32], const char *kernel);

/* Of units that a launch of so many warps wanted: parts for each. */
static inline uint64_t nt_need_per_warp(uint64_t units, uint64_t warps)
{
	return (units * NT_NEED_PARTS + warps - 1) / warps;
}

/* Keep needs of kernels of one image, beside those of others that are kept already. The writer does it later. */
void nt_needs_keep(const uint8_t key[32], const struct nt_need *needs, uint32_t count);

#endif
