/* The mapped ranges of this process, with their protection. */
#ifndef NEUTRINO_MEMORY_MAP_H
#define NEUTRINO_MEMORY_MAP_H

#include <stdbool.h>
#include <stdint.h>

struct nt_memory_range {
	uintptr_t from, to; /* to: past its last byte */
	int protection;	    /* PROT_ flags */
};

/*
 * Call visit for each range, in the order of addresses, until it returns false. False if the ranges cannot be read. The
 * thread is not cancelled meanwhile.
 */
bool nt_memory_map(bool (*visit)(const struct nt_memory_range *range, void *argument), void *argument);

#endif
