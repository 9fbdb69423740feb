/* launch_cost IMAGE KERNEL LAUNCHES BATCHES: prints, for each batch, nanoseconds of this thread's time per launch. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"

#define FUNCTIONS(X)                                                                                                   \
	X(cuInit, (unsigned))                                                                                          \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                           \
	X(cuCtxSetCurrent, (CUcontext))                                                                                \
	X(cuModuleLoadData, (CUmodule *, const void *))                                                                \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                 \
	X(cuStreamCreate, (CUstream *, unsigned))                                                                      \
	X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
			   void **, void **))
#define DECLARE(name, parameters) static CUresult(*name) parameters;
FUNCTIONS(DECLARE)

static double thread_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
	static char image[1 << 20];
	unsigned long long counter = 0;
	unsigned unused = 5;
	void *parameters[] = {&counter, &unused};
	CUcontext context;
	CUmodule module;
	CUfunction function;
	CUstream stream;
	FILE *file = argc == 5 ? fopen(argv[1], "rb") : NULL;
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	if (!file || !driver || !fread(image, 1, sizeof(image) - 1, file))
		return 2;
#define FIND(name, parameters)                                                                                         \
	if (!(*(void **)&name = dlsym(driver, #name)))                                                                 \
		return 3;
	FUNCTIONS(FIND)
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
	    cuModuleLoadData(&module, image) || cuModuleGetFunction(&function, module, argv[2]) ||
	    cuStreamCreate(&stream, 1))
		return 4;
	long launches = atol(argv[3]), batches = atol(argv[4]);
	/* The first batch meets memory that nothing has touched yet. */
	for (long batch = -1; batch < batches; batch++) {
		double begin = thread_ns();
		for (long i = 0; i < launches; i++)
			if (cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL))
				return 5;
		if (batch >= 0)
			printf("%.1f\n", (thread_ns() - begin) / (double)launches);
		/* The hook's own thread empties the pool. */
		usleep(50000);
	}
	return 0;
}
