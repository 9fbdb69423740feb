/*
 * libvector.so: a library with GPU code in it, as a compiler of CUDA programs would leave it: a fatbin in .nv_fatbin,
 * and in .nvFatBinSegment a wrapper that points at it. It uses the driver API and nothing else of CUDA.
 */
#include "vector.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

/* fatbin.S has the bytes; make_fatbin.py wrote them from kernels.ptx. */
extern const unsigned char vector_fatbin[];

static const struct {
	uint32_t magic, version;
	const void *data;
	const void *unused;
} wrapper __attribute__((section(".nvFatBinSegment"), used, aligned(8))) = {0x466243b1, 1, vector_fatbin, NULL};

/* The part of cuda.h that is used here. */
typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef struct CUfunc_st *CUfunction;

static struct {
	CUresult (*cuInit)(unsigned flags);
	CUresult (*cuDeviceGet)(int *device, int ordinal);
	CUresult (*cuDevicePrimaryCtxRetain)(void **context, int device);
	CUresult (*cuCtxSetCurrent)(void *context);
	CUresult (*cuModuleLoadFatBinary)(void **module, const void *image);
	CUresult (*cuModuleGetFunction)(CUfunction *function, void *module, const char *name);
	CUresult (*cuMemAlloc_v2)(CUdeviceptr *address, size_t size);
	CUresult (*cuMemFree_v2)(CUdeviceptr address);
	CUresult (*cuMemcpyHtoD_v2)(CUdeviceptr to, const void *from, size_t size);
	CUresult (*cuMemcpyDtoH_v2)(void *to, CUdeviceptr from, size_t size);
	CUresult (*cuLaunchKernel)(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
				   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, void *stream,
				   void **parameters, void **extra);
} driver;

static CUfunction saxpy, sum;

/* Run each call until one fails. */
#define TRY(call)                                                                                                      \
	do {                                                                                                           \
		if (!result)                                                                                           \
			result = (call);                                                                               \
	} while (0)

static int start(void)
{
	static int result = -1;
	void *context = NULL, *module = NULL;
	int device = 0;

	if (result >= 0)
		return result;
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		return 3; /* CUDA_ERROR_NOT_INITIALIZED */
#define FIND(name) *(void **)&driver.name = dlsym(library, #name)
	FIND(cuInit);
	FIND(cuDeviceGet);
	FIND(cuDevicePrimaryCtxRetain);
	FIND(cuCtxSetCurrent);
	FIND(cuModuleLoadFatBinary);
	FIND(cuModuleGetFunction);
	FIND(cuMemAlloc_v2);
	FIND(cuMemFree_v2);
	FIND(cuMemcpyHtoD_v2);
	FIND(cuMemcpyDtoH_v2);
	FIND(cuLaunchKernel);
	result = driver.cuInit(0);
	TRY(driver.cuDeviceGet(&device, 0));
	TRY(driver.cuDevicePrimaryCtxRetain(&context, device));
	TRY(driver.cuCtxSetCurrent(context));
	TRY(driver.cuModuleLoadFatBinary(&module, &wrapper));
	TRY(driver.cuModuleGetFunction(&saxpy, module, "saxpy"));
	TRY(driver.cuModuleGetFunction(&sum, module, "sum"));
	return result;
}

static CUresult launch(CUfunction function, unsigned n, void **parameters)
{
	return driver.cuLaunchKernel(function, (n + 127) / 128, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL);
}

int vector_saxpy(unsigned n, float a, const float *x, float *y)
{
	size_t size = n * sizeof(*x);
	CUdeviceptr on_device[2] = {0, 0};
	void *parameters[] = {&on_device[0], &on_device[1], &a, &n};
	int result = start();

	TRY(driver.cuMemAlloc_v2(&on_device[0], size));
	TRY(driver.cuMemAlloc_v2(&on_device[1], size));
	TRY(driver.cuMemcpyHtoD_v2(on_device[0], x, size));
	TRY(driver.cuMemcpyHtoD_v2(on_device[1], y, size));
	TRY(launch(saxpy, n, parameters));
	TRY(driver.cuMemcpyDtoH_v2(y, on_device[1], size));
	for (int i = 0; i < 2; i++)
		if (on_device[i])
			driver.cuMemFree_v2(on_device[i]);
	return result;
}

int vector_sum(unsigned n, const float *x, float *total)
{
	size_t size = n * sizeof(*x);
	CUdeviceptr on_device[2] = {0, 0};
	void *parameters[] = {&on_device[0], &on_device[1], &n};
	int result = start();

	*total = 0;
	TRY(driver.cuMemAlloc_v2(&on_device[0], size));
	TRY(driver.cuMemAlloc_v2(&on_device[1], sizeof(*total)));
	TRY(driver.cuMemcpyHtoD_v2(on_device[0], x, size));
	TRY(driver.cuMemcpyHtoD_v2(on_device[1], total, sizeof(*total)));
	TRY(launch(sum, n, parameters));
	TRY(driver.cuMemcpyDtoH_v2(total, on_device[1], sizeof(*total)));
	for (int i = 0; i < 2; i++)
		if (on_device[i])
			driver.cuMemFree_v2(on_device[i]);
	return result;
}
