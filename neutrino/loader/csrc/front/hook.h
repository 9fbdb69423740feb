/* The hook's functions that wrap the driver's. */
#ifndef NEUTRINO_HOOK_H
#define NEUTRINO_HOOK_H

#include "base/driver.h"

nt_driver_start NT_DRIVER_START;

/* Look up the real GPU driver's functions if that has not been done; false if there is no driver. From any thread. */
static inline bool nt_hook_load_driver(void)
{
	return NT_UNLIKELY(!nt_driver_known()) ? nt_driver_load_now(NT_DRIVER_START) : true;
}

/* The hook's function that wraps a function of the real driver, by that address; the address itself if none does. */
void *nt_hook_wrapper_of(void *real);

/* The hook's function of that name, NULL if it wraps none. *real: the driver's, NULL while that is not known. */
void *nt_hook_wrapper_named(const char *name, void **real);

#endif
