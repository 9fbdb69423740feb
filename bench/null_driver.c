/*
 * A driver that does nothing: what a launch costs in front of it is the hook's own. Device memory is host memory, every
 * call succeeds. Only what the hook and launch_cost.c call is here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda_abi.h"

static char contexts[8][64];
static __thread CUcontext current;
static uintptr_t last_handle = 0x10000;

static void *fresh(void)
{
	return (void *)__atomic_add_fetch(&last_handle, 0x40, __ATOMIC_RELAXED);
}

#define CALL(name, parameters, ...)                                                                                    \
	CUresult name parameters;                                                                                      \
	CUresult name parameters                                                                                       \
	{                                                                                                              \
		__VA_ARGS__;                                                                                           \
		return CUDA_SUCCESS;                                                                                   \
	}

#pragma GCC diagnostic ignored "-Wunused-parameter"
CALL(cuInit, (unsigned f))
CALL(cuDriverGetVersion, (int *v), *v = 13000)
CALL(cuDeviceGet, (CUdevice *d, int i), *d = i)
CALL(cuDeviceGetCount, (int *n), *n = 1)
CALL(cuDeviceGetAttribute, (int *v, int a, CUdevice d), *v = a == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0)
CALL(cuDeviceGetName, (char *s, int n, CUdevice d), snprintf(s, (size_t)n, "null"))
CALL(cuDeviceTotalMem_v2, (size_t *s, CUdevice d), *s = (size_t)32 << 30)
CALL(cuCtxGetCurrent, (CUcontext *c), *c = current)
CALL(cuCtxGetDevice, (CUdevice *d), *d = 0)
CALL(cuCtxPushCurrent_v2, (CUcontext c), current = c)
CALL(cuCtxPopCurrent_v2, (CUcontext *c), *c = current, current = NULL)
CALL(cuCtxSetCurrent, (CUcontext c), current = c)
CALL(cuCtxSynchronize, (void))
CALL(cuDevicePrimaryCtxRetain, (CUcontext *c, CUdevice d), *c = contexts[d])
CALL(cuMemAlloc_v2, (CUdeviceptr *p, size_t n), *p = (uintptr_t)mmap(NULL, n, PROT_READ | PROT_WRITE,
								       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))
CALL(cuMemFree_v2, (CUdeviceptr p))
CALL(cuMemHostAlloc, (void **p, size_t n, unsigned f), *p = calloc(1, n))
CALL(cuMemFreeHost, (void *p), free(p))
/* Pages that nothing was written to stay unused. */
CALL(cuMemsetD8Async, (CUdeviceptr p, unsigned char v, size_t n, CUstream s))
CALL(cuMemsetD32Async, (CUdeviceptr p, unsigned v, size_t n, CUstream s))
CALL(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t n, CUstream s), memcpy(to, (void *)(uintptr_t)from, n))
CALL(cuStreamCreate, (CUstream *s, unsigned f), *s = fresh())
CALL(cuStreamSynchronize, (CUstream s))
CALL(cuStreamIsCapturing, (CUstream s, int *v), *v = 0)
CALL(cuStreamGetCtx, (CUstream s, CUcontext *c), *c = current)
CALL(cuEventCreate, (CUevent *e, unsigned f), *e = fresh())
CALL(cuEventDestroy_v2, (CUevent e))
CALL(cuEventRecord, (CUevent e, CUstream s))
CALL(cuEventQuery, (CUevent e))
CALL(cuThreadExchangeStreamCaptureMode, (int *m))
CALL(cuModuleLoadData, (CUmodule *m, const void *i), *m = fresh())
CALL(cuModuleUnload, (CUmodule m))
CALL(cuModuleGetFunction, (CUfunction *f, CUmodule m, const char *n), *f = fresh())
CALL(cuModuleGetGlobal_v2, (CUdeviceptr *p, size_t *s, CUmodule m, const char *n), *p = 0x1000, *s = 8)
CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *n, CUfunction f, int t, size_t s), *n = 1)
CALL(cuLaunchKernel, (CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h,
		      CUstream s, void **p, void **x))
