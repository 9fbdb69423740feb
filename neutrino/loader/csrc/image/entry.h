/* A cache entry (struct neutrino_twins_header and what follows), read in place and checked before use. */
#ifndef NEUTRINO_ENTRY_H
#define NEUTRINO_ENTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/neutrino_layout.h"

struct nt_entry {
	const uint8_t *data;
	size_t size;
	const struct neutrino_twins_header *header;
	const struct neutrino_map *maps;
	const struct neutrino_twin_kernel *kernels;
	const struct neutrino_twin_image *images;
	const uint64_t *unused_logs; /* of each kernel, a bit for each map; NULL: none */
	/* Rows of kernels + 1 by the hash of their names, 2^index_bits of them; NULL before nt_entry_index. */
	uint32_t *index;
	uint32_t index_bits;
};

/*
 * Check an entry's size, digest, key and every offset; false if anything is wrong. ret refers to data, which must be 8-byte
 * aligned and must not change.
 */
bool nt_entry_open(const void *data, size_t size, const uint8_t key[32], struct nt_entry *ret);

/* Have kernels found by a hash of their names from now on. Without memory they are searched for. */
void nt_entry_index(struct nt_entry *entry);

/* The kernel of that mangled name, or NULL. */
const struct neutrino_twin_kernel *nt_entry_find(const struct nt_entry *entry, const char *name);

/*
 * The entry's maps as a kernel's twin has them, for nt_memory_free(): logs that it never saves to have cap 0. NULL without memory.
 */
struct neutrino_map *nt_entry_maps(const struct nt_entry *entry, const struct neutrino_twin_kernel *kernel);

/* Whether the image of that index has the twin of any kernel, not counting those under a register cap. */
bool nt_entry_has_twins(const struct nt_entry *entry, uint32_t image);

/* A NUL-terminated string of the entry; NULL for offset 0. */
const char *nt_entry_string(const struct nt_entry *entry, uint64_t offset);

#endif
