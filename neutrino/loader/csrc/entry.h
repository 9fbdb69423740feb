/* A cache entry (struct neutrino_twins_header and what follows), read in place and checked before use. */
#ifndef NEUTRINO_ENTRY_H
#define NEUTRINO_ENTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "neutrino_layout.h"

struct nt_entry {
	const uint8_t *data;
	size_t size;
	const struct neutrino_twins_header *header;
	const struct neutrino_map *maps;
	const struct neutrino_twin_kernel *kernels;
	const struct neutrino_twin_image *images;
};

/* Check size, digest, key and every offset. data must be 8-byte aligned and stay as it is while ret is used. */
bool nt_entry_open(const void *data, size_t size, const uint8_t key[32], struct nt_entry *ret);

/* The kernel of that mangled name, or NULL. */
const struct neutrino_twin_kernel *nt_entry_find(const struct nt_entry *entry, const char *name);

/* Whether any kernel has its twin in that image, not only one under a register cap. */
bool nt_entry_has_twins(const struct nt_entry *entry, uint32_t image);

/* A NUL-terminated string of the entry; NULL for offset 0. */
const char *nt_entry_string(const struct nt_entry *entry, uint64_t offset);

#endif
