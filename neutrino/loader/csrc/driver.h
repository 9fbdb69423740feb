/* The real driver: every function of it that the hook calls, looked up once. */
#ifndef NEUTRINO_DRIVER_H
#define NEUTRINO_DRIVER_H

#include <stdbool.h>

#include "cuda_abi.h"

/* Called by the hook, not wrapped. */
#define NT_DRIVER_CALLED(X)                                                                                            \
	X(cuDriverGetVersion, (int *))                                                                                 \
	X(cuDeviceGet, (CUdevice *, int))                                                                              \
	X(cuDeviceGetCount, (int *))                                                                                   \
	X(cuDeviceGetAttribute, (int *, int, CUdevice))                                                                \
	X(cuDeviceGetName, (char *, int, CUdevice))                                                                    \
	X(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                                   \
	X(cuCtxGetCurrent, (CUcontext *))                                                                              \
	X(cuCtxGetDevice, (CUdevice *))                                                                                \
	X(cuCtxPushCurrent_v2, (CUcontext))                                                                            \
	X(cuCtxPopCurrent_v2, (CUcontext *))                                                                           \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                      \
	X(cuMemFree_v2, (CUdeviceptr))                                                                                 \
	X(cuMemHostAlloc, (void **, size_t, unsigned int))                                                             \
	X(cuMemFreeHost, (void *))                                                                                     \
	X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                             \
	X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                               \
	X(cuStreamCreate, (CUstream *, unsigned int))                                                                  \
	X(cuStreamIsCapturing, (CUstream, int *))                                                                      \
	X(cuStreamIsCapturing_ptsz, (CUstream, int *))                                                                 \
	X(cuEventCreate, (CUevent *, unsigned int))                                                                    \
	X(cuEventDestroy_v2, (CUevent))                                                                                \
	X(cuEventRecord, (CUevent, CUstream))                                                                          \
	X(cuEventQuery, (CUevent))                                                                                     \
	X(cuThreadExchangeStreamCaptureMode, (int *))                                                                  \
	X(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                                     \
	X(cuLibraryGetGlobal, (CUdeviceptr *, size_t *, CUlibrary, const char *))                                      \
	X(cuKernelGetName, (const char **, CUkernel))                                                                  \
	X(cuFuncGetName, (const char **, CUfunction))                                                                  \
	X(cuFuncLoad, (CUfunction))                                                                                    \
	X(cuStreamGetCtx, (CUstream, CUcontext *))                                                                     \
	X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, CUfunction, int, size_t))                               \
	/* Of the embedded device alone: why this thread's last image was refused. */                                  \
	X(neutrinoEmbeddedRefusal, (char *, size_t))

/* Wrapped: the hook exports a function of the same name. */
#define NT_DRIVER_WRAPPED(X)                                                                                           \
	X(cuInit, (unsigned int))                                                                                      \
	X(cuGetProcAddress, (const char *, void **, int, uint64_t))                                                    \
	X(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))                                          \
	X(cuModuleLoad, (CUmodule *, const char *))                                                                    \
	X(cuModuleLoadData, (CUmodule *, const void *))                                                                \
	X(cuModuleLoadDataEx, (CUmodule *, const void *, unsigned int, int *, void **))                                \
	X(cuModuleLoadFatBinary, (CUmodule *, const void *))                                                           \
	X(cuModuleUnload, (CUmodule))                                                                                  \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                 \
	X(cuModuleEnumerateFunctions, (CUfunction *, unsigned int, CUmodule))                                          \
	X(cuLibraryLoadData,                                                                                           \
	  (CUlibrary *, const void *, int *, void **, unsigned int, int *, void **, unsigned int))                     \
	X(cuLibraryLoadFromFile,                                                                                       \
	  (CUlibrary *, const char *, int *, void **, unsigned int, int *, void **, unsigned int))                     \
	X(cuLibraryUnload, (CUlibrary))                                                                                \
	X(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))                                                   \
	X(cuLibraryEnumerateKernels, (CUkernel *, unsigned int, CUlibrary))                                            \
	X(cuLibraryGetModule, (CUmodule *, CUlibrary))                                                                 \
	X(cuKernelGetFunction, (CUfunction *, CUkernel))                                                               \
	X(cuKernelSetAttribute, (int, int, CUkernel, CUdevice))                                                        \
	X(cuKernelSetCacheConfig, (CUkernel, int, CUdevice))                                                           \
	X(cuFuncSetAttribute, (CUfunction, int, int))                                                                  \
	X(cuFuncSetCacheConfig, (CUfunction, int))                                                                     \
	X(cuFuncSetSharedMemConfig, (CUfunction, int))                                                                 \
	X(cuLaunchKernel, (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,           \
			   unsigned int, unsigned int, CUstream, void **, void **))                                    \
	X(cuLaunchKernel_ptsz, (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,      \
				unsigned int, unsigned int, CUstream, void **, void **))                               \
	X(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                                    \
	X(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *, CUfunction, void **, void **))                               \
	X(cuLaunchCooperativeKernel, (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,              \
				      unsigned int, unsigned int, unsigned int, CUstream, void **))                    \
	X(cuLaunchCooperativeKernel_ptsz, (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,         \
					   unsigned int, unsigned int, unsigned int, CUstream, void **))               \
	X(cuLaunch, (CUfunction))                                                                                      \
	X(cuLaunchGrid, (CUfunction, int, int))                                                                        \
	X(cuLaunchGridAsync, (CUfunction, int, int, CUstream))                                                         \
	X(cuGraphAddKernelNode, (void **, void *, const void *const *, size_t, const void *))                          \
	X(cuGraphAddKernelNode_v2, (void **, void *, const void *const *, size_t, const void *))                       \
	X(cuGraphAddNode, (void **, void *, const void *const *, size_t, const void *))                                \
	X(cuGraphAddNode_v2, (void **, void *, const void *const *, const void *const *, size_t, const void *))        \
	X(cuStreamSynchronize, (CUstream))                                                                             \
	X(cuStreamSynchronize_ptsz, (CUstream))                                                                        \
	X(cuStreamDestroy, (CUstream))                                                                                 \
	X(cuStreamDestroy_v2, (CUstream))                                                                              \
	X(cuCtxSynchronize, (void))                                                                                    \
	X(cuCtxSetCurrent, (CUcontext))                                                                                \
	X(cuCtxDestroy, (CUcontext))                                                                                   \
	X(cuCtxDestroy_v2, (CUcontext))                                                                                \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                           \
	X(cuDevicePrimaryCtxRelease, (CUdevice))                                                                       \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                    \
	X(cuDevicePrimaryCtxReset, (CUdevice))                                                                         \
	X(cuDevicePrimaryCtxReset_v2, (CUdevice))

struct nt_driver {
#define NT_MEMBER(name, parameters) CUresult (*name) parameters;
	NT_DRIVER_CALLED(NT_MEMBER)
	NT_DRIVER_WRAPPED(NT_MEMBER)
#undef NT_MEMBER
};

/* Functions that the real driver lacks are NULL. Valid once nt_driver_load has returned true. */
extern struct nt_driver nt_driver;

/*
 * Look the driver up; false when there is none. Safe from any thread. The preloaded hook looks once, where it was told;
 * the stub as long as the process has no driver loaded.
 */
bool nt_driver_load(void);

/* Whether nt_driver_load has returned true before. */
bool nt_driver_known(void);

/* The hook's function in place of a pointer of the real driver; the pointer itself when it is not wrapped. */
void *nt_driver_wrapper_of(void *real);

/* The hook's function of that name, and in *real the driver's, NULL while it is not known; NULL for other names. */
void *nt_driver_wrapper_named(const char *name, void **real);

#endif
