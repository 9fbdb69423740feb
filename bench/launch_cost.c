/* launch_cost IMAGE KERNEL LAUNCHES BATCHES: prints, for each batch, nanoseconds of this thread's time per launch. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "driver_calls.h"

/* The CPU time that this thread has taken so far, in nanoseconds. */
static double thread_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/*
 * Launch a kernel LAUNCHES times in each of BATCHES batches, and print the thread's CPU time per launch of each, in
 * nanoseconds. Status 2 to 5: the arguments, the driver, the module or a launch failed.
 */
int main(int argc, char **argv)
{
	static char image[1 << 20];
	unsigned long long counter = 0;
	unsigned unused = 5;
	void *parameters[] = {&counter, &unused};
	CUmodule module;
	CUfunction function;
	CUstream stream;
	FILE *file = argc == 5 ? fopen(argv[1], "rb") : NULL;

	if (!file || !fread(image, 1, sizeof(image) - 1, file))
		return 2;
	if (!find_driver())
		return 3;
	if (!begin_context() || cuModuleLoadData(&module, image) || cuModuleGetFunction(&function, module, argv[2]) ||
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
