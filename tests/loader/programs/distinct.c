/*
 * distinct COUNT: loads so many different images, one after the other, launches the one kernel of each and unloads it, in
 * front of null_driver.c.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cuda_abi.h"

#define FUNCTIONS(X)                                                                                                   \
	X(cuInit, (unsigned))                                                                                          \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                           \
	X(cuCtxSetCurrent, (CUcontext))                                                                                \
	X(cuModuleLoadData, (CUmodule *, const void *))                                                                \
	X(cuModuleUnload, (CUmodule))                                                                                  \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                 \
	X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
			   void **, void **))
#define DECLARE(name, parameters) static CUresult(*name) parameters;
FUNCTIONS(DECLARE)

int main(int argc, char **argv)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	unsigned long count = argc == 2 ? strtoul(argv[1], NULL, 10) : 0;
	char image[256], name[32];
	CUcontext context;
	CUmodule module;
	CUfunction function;

#define FIND(name, parameters)                                                                                         \
	if (!driver || !(*(void **)&name = dlsym(driver, #name)))                                                      \
		return 2;
	FUNCTIONS(FIND)
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
		return 3;
	for (unsigned long i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "kernel_%lu", i);
		snprintf(image, sizeof(image), ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry %s()\n{\nret;\n}\n", name);
		if (cuModuleLoadData(&module, image) || cuModuleGetFunction(&function, module, name) ||
		    cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) || cuModuleUnload(module))
			return 4;
	}
	return 0;
}
