/*
 * Redirects the addresses of the driver's functions that objects looked up before the hook was loaded, and keep in their
 * data: a shared libcudart, CuPy and launchers of Triton do. Each word of their writable data that is the address of a
 * function that the hook wraps becomes the hook's. Memory outside of objects (malloc) is not searched.
 */
#ifndef NEUTRINO_CACHED_POINTERS_H
#define NEUTRINO_CACHED_POINTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "front/memory_map.h"
#include "front/object.h"

struct nt_cached_pointers {
	struct nt_memory_range *writable; /* readable and writable ranges, in the order of addresses */
	size_t count, capacity;
	uintptr_t lowest, highest; /* functions' addresses */
};

/* Prepare a search; the driver must be known. False without memory, or if the mapped ranges cannot be read. */
bool nt_cached_pointers_begin(struct nt_cached_pointers *ret);

/* Redirect the pointers in an object's data. The caller holds the dynamic loader's lock. */
void nt_cached_pointers_redirect(const struct nt_cached_pointers *search, const struct nt_object *object);

void nt_cached_pointers_end(struct nt_cached_pointers *search);

#endif
