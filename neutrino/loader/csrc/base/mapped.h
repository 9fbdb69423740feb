#ifndef NEUTRINO_MAPPED_H
#define NEUTRINO_MAPPED_H

#include <stddef.h>
#include <sys/mman.h>

/* Map size bytes of zeroed memory, which takes space only when it is written; NULL if that fails. */
static inline void *nt_map_zeroed(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return memory == MAP_FAILED ? NULL : memory;
}

#endif
