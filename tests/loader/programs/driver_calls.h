/* The driver's functions as a program calls them that looks them up itself: for scale.c and signals.c. */
#ifndef NEUTRINO_BENCH_DRIVER_CALLS_H
#define NEUTRINO_BENCH_DRIVER_CALLS_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/cuda_abi.h"

#define CALLED(X)                                                                                                      \
	X(cuInit, (unsigned))                                                                                          \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                           \
	X(cuCtxSetCurrent, (CUcontext))                                                                                \
	X(cuModuleLoadData, (CUmodule *, const void *))                                                                \
	X(cuModuleUnload, (CUmodule))                                                                                  \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                 \
	X(cuLibraryLoadData, (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))          \
	X(cuLibraryUnload, (CUlibrary))                                                                                \
	X(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))                                                   \
	X(cuStreamCreate, (CUstream *, unsigned))                                                                      \
	X(cuStreamDestroy_v2, (CUstream))                                                                              \
	X(cuStreamSynchronize, (CUstream))                                                                             \
	X(cuCtxSynchronize, (void))                                                                                    \
	X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
			   void **, void **))
#define DECLARE(name, parameters) static CUresult(*name) parameters;
CALLED(DECLARE)

/* Look all of them up; whether each was found. */
static bool find_driver(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

#define FIND(name, parameters)                                                                                         \
	if (!driver || !(*(void **)&name = dlsym(driver, #name)))                                                      \
		return false;
	CALLED(FIND)
	return true;
}

/* Make the primary context of device 0 current; whether that succeeded. */
static bool begin_context(void)
{
	CUcontext context;

	return !cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context);
}

#endif
