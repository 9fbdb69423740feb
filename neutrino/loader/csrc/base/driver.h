/* The real driver: every function of it that the hook calls, looked up once. */
#ifndef NEUTRINO_DRIVER_H
#define NEUTRINO_DRIVER_H

#include <stdbool.h>
#include <string.h>

#include "base/cuda_functions.h"
#include "base/hot.h"

struct nt_driver {
#define NT_MEMBER(name, parameters, ...) CUresult(*name) parameters;
	NT_DRIVER_CALLED(NT_MEMBER)
	NT_DRIVER_INTERCEPTED(NT_MEMBER)
#undef NT_MEMBER
};

/* Functions that the real driver lacks are NULL. Valid once nt_hook_load_driver has returned true. */
extern NT_HIDDEN struct nt_driver nt_driver;

/*
 * Look the driver's functions up, if that has not been done; false if there is no driver. From any thread. The hook
 * tries once, at the path that it was given; the late hook tries as long as the process has no driver loaded. own: the
 * hook's NT_DRIVER_START, which is not the driver's.
 */
typedef CUresult nt_driver_start(unsigned int);
bool nt_driver_load_now(nt_driver_start *own);

extern NT_HIDDEN bool nt_driver_loaded;

enum {
	NT_DRIVER_ARCH = 16, /* bytes of an architecture's name, with its NUL, as in neutrino_layout.h */
};

/*
 * The architecture of the current context's device, else of device 0, as its target names it ("sm_90"), and which device
 * that is; false if the driver fails.
 */
bool nt_driver_arch(char ret[NT_DRIVER_ARCH], CUdevice *device);

/* Whether the real GPU driver was found, so that nt_driver (its functions) can be used. Lock-free. */
static inline bool nt_driver_known(void)
{
	return __atomic_load_n(&nt_driver_loaded, __ATOMIC_ACQUIRE);
}

/* Whether a function's name begins as those of the driver do, so that it is worth a look-up. */
static inline bool nt_driver_may_have(const char *name)
{
	return strncmp(name, NT_DRIVER_PREFIX, sizeof(NT_DRIVER_PREFIX) - 1) == 0;
}

#endif
