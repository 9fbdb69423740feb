/*
 * The device memory of the hook itself: allocated, and counted. With --memusage it is counted only: addresses stand for
 * memory that is not there, so that pools and graphs grow as those of a run that probes.
 */
#ifndef NEUTRINO_OWN_MEMORY_H
#define NEUTRINO_OWN_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/driver.h"

/*
 * Whether all launches run their originals, and only the memory that their twins would take is measured (--memusage). Set
 * before the trace begins.
 */
extern bool nt_own_memory_is_memusage;

enum nt_own_memory {
	NT_OWN_POOLS,
	NT_OWN_GRAPHS,
	NT_OWN_KINDS,
};

/* Read from the settings what this process does. */
void nt_own_memory_begin(void);

/* Allocate size bytes in the current context; 0 if there are none. Not on the launch path. */
CUdeviceptr nt_own_memory_get(enum nt_own_memory kind, uint64_t size);
/* Free them. */
void nt_own_memory_free(enum nt_own_memory kind, CUdeviceptr address, uint64_t size);
/* Size bytes are gone with their context. */
void nt_own_memory_gone(enum nt_own_memory kind, uint64_t size);

/* A pool, which is new or not, may have limit bytes, of which one launch can have of_launch. */
void nt_own_memory_limited(uint64_t limit, uint64_t of_launch, bool is_new);

/* Free and total bytes of the current context's device, as if all that is counted was taken. False if the driver does not say. */
bool nt_own_memory_left(uint64_t *left, uint64_t *total);

/* Write the event that says how much there was at most. */
void nt_own_memory_log(void);

#endif
