/* What every test program of the driver API needs: the driver by dlopen, a context, the image that HOST_IMAGE names. */
#ifndef HOST_H
#define HOST_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"

/* A function of the driver with that type of parameters. */
#define CALL(name, type) ((CUresult(*) type)function_named(#name))
#define CHECK(expression)                                                                                              \
	do {                                                                                                           \
		CUresult check_result = (expression);                                                                  \
		if (check_result) {                                                                                    \
			printf("%s:%d: error %d\n", __FILE__, __LINE__, check_result);                                 \
			exit(9);                                                                                       \
		}                                                                                                      \
	} while (0)
#define EXPECT(expected, expression)                                                                                   \
	do {                                                                                                           \
		long long expect_result = (long long)(expression);                                                     \
		if (expect_result != (long long)(expected)) {                                                          \
			printf("%s:%d: %lld, expected %lld\n", __FILE__, __LINE__, expect_result,                      \
			       (long long)(expected));                                                                 \
			exit(9);                                                                                       \
		}                                                                                                      \
	} while (0)

static void *driver;
static char image[1 << 16];

static inline void *function_named(const char *name)
{
	void *found = dlsym(driver, name);

	if (!found) {
		printf("no %s\n", name);
		exit(8);
	}
	return found;
}

static inline CUcontext begin(void)
{
	CUcontext context;
	FILE *file = fopen(getenv("HOST_IMAGE"), "rb");

	if (!file || !fread(image, 1, sizeof(image) - 1, file))
		exit(8);
	fclose(file);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver) {
		printf("%s\n", dlerror());
		exit(7);
	}
	CHECK(CALL(cuInit, (unsigned))(0));
	CHECK(CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&context, 0));
	CHECK(CALL(cuCtxSetCurrent, (CUcontext))(context));
	return context;
}

static inline CUmodule load(void)
{
	CUmodule module;

	CHECK(CALL(cuModuleLoadData, (CUmodule *, const void *))(&module, image));
	return module;
}

static inline CUfunction obtain(CUmodule module, const char *name)
{
	CUfunction function;

	CHECK(CALL(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))(&function, module, name));
	return function;
}

static inline CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream, void **parameters)
{
	return CALL(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
				     CUstream, void **, void **))(function, blocks, 1, 1, threads, 1, 1, 0, stream,
								  parameters, NULL);
}

static inline CUdeviceptr allocate(size_t size)
{
	CUdeviceptr address;

	CHECK(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, size));
	return address;
}

static inline void to_device(CUdeviceptr to, const void *from, size_t size)
{
	CHECK(CALL(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))(to, from, size));
}

static inline void to_host(void *to, CUdeviceptr from, size_t size)
{
	CHECK(CALL(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))(to, from, size));
}

static inline CUstream make_stream(unsigned flags)
{
	CUstream stream;

	CHECK(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, flags));
	return stream;
}

static inline CUresult synchronize(CUstream stream)
{
	return CALL(cuStreamSynchronize, (CUstream))(stream);
}

#endif
