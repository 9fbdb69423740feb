/*
 * A driver that does nothing: what a launch costs in front of it is the hook's own. Device memory is host memory, every
 * call succeeds. Only what the hook, scale.c, signals.c and passing.c call is here. What cuLinkComplete gives is the file
 * that LINKED names.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cuda_abi.h"

static char contexts[8][64];
static __thread CUcontext current;
/*
 * A handle is a number, whose lower bits name what is in a module: its functions have handles of their own. Of those that
 * are given back every second is given out again, the others never.
 */
#define HANDLE_STEP UINT64_C(0x100000)
#define FUNCTION_STEP 0x40
#define FUNCTIONS (HANDLE_STEP / FUNCTION_STEP)
static uint64_t last_handle;
static pthread_mutex_t given_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t given_back;
static void **given; /* those to give out again */
static size_t given_count, given_room;

/*
 * A handle for a new object of the program: one that was given back, if there is one to give out again, else a new
 * number.
 */
static void *fresh(void)
{
	void *handle = NULL;

	pthread_mutex_lock(&given_mutex);
	if (given_count)
		handle = given[--given_count];
	else
		handle = (void *)(uintptr_t)(last_handle += HANDLE_STEP);
	pthread_mutex_unlock(&given_mutex);
	return handle;
}

/* The object of a handle is gone: every second such handle is given out again, the others never. */
static void give_back(void *handle)
{
	pthread_mutex_lock(&given_mutex);
	if (given_count == given_room) {
		given_room = given_room ? 2 * given_room : 1024;
		given = realloc(given, given_room * sizeof(*given));
	}
	if (given_back++ % 2)
		given[given_count++] = handle;
	pthread_mutex_unlock(&given_mutex);
}

/*
 * The handle of the function of that name in a module (or kernel in a library): the same one whenever it is asked for.
 */
static void *named(void *module, const char *name)
{
	uint64_t hash = 0;

	for (; *name; name++)
		hash = hash * 31 + (unsigned char)*name;
	return (char *)module + (1 + hash % (FUNCTIONS - 1)) * FUNCTION_STEP;
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
CALL(cuStreamDestroy_v2, (CUstream s), give_back(s))
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
CALL(cuCtxRecordEvent, (CUcontext c, CUevent e))
CALL(cuEventQuery, (CUevent e))
CALL(cuThreadExchangeStreamCaptureMode, (int *m))
CALL(cuModuleLoadData, (CUmodule *m, const void *i), *m = fresh())
CALL(cuModuleUnload, (CUmodule m), give_back(m))
CALL(cuModuleGetFunction, (CUfunction *f, CUmodule m, const char *n), *f = named(m, n))
CALL(cuModuleGetGlobal_v2, (CUdeviceptr *p, size_t *s, CUmodule m, const char *n), *p = 0x1000, *s = 8)
CALL(cuLibraryLoadData, (CUlibrary *l, const void *i, int *a, void **b, unsigned c, int *d, void **e, unsigned g), *l = fresh())
CALL(cuLibraryUnload, (CUlibrary l), give_back(l))
CALL(cuLibraryGetKernel, (CUkernel *k, CUlibrary l, const char *n), *k = named(l, n))
CALL(cuLibraryGetGlobal, (CUdeviceptr *p, size_t *s, CUlibrary l, const char *n), *p = 0x1000, *s = 8)
CALL(cuKernelGetFunction, (CUfunction *f, CUkernel k), *f = (char *)k + 0x20)
CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *n, CUfunction f, int t, size_t s), *n = 1)
CALL(cuLaunchKernel, (CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h,
		      CUstream s, void **p, void **x))

/* What a link has made: the bytes of the file that LINKED names. */
static char linked[1 << 20];

static size_t read_linked(void)
{
	FILE *file = fopen(getenv("LINKED"), "rb");
	size_t size = file ? fread(linked, 1, sizeof(linked), file) : 0;

	if (file)
		fclose(file);
	return size;
}

CALL(cuLinkCreate_v2, (unsigned n, int *o, void **v, void **s), *s = fresh())
CALL(cuLinkAddData_v2, (void *s, int t, void *d, size_t n, const char *name, unsigned c, int *o, void **v))
CALL(cuLinkAddFile_v2, (void *s, int t, const char *path, unsigned c, int *o, void **v))
CALL(cuLinkComplete, (void *s, void **cubin, size_t *n), *n = read_linked(), *cubin = linked)
CALL(cuLinkDestroy, (void *s), give_back(s))

/* NVRTC asks for one, and does without. */
CUresult cuGetExportTable(const void **table, const void *id);
CUresult cuGetExportTable(const void **table, const void *id)
{
	*table = NULL;
	return CUDA_ERROR_NOT_SUPPORTED;
}
