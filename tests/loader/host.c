/*
 * A program of the driver API for the tests: `host SCENARIO`. It finds the driver as CUDA programs do, by dlopen, and
 * prints what its kernels computed.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_abi.h"

#define CALL(name, type) ((CUresult(*) type)dlsym(driver, #name))
#define CHECK(expression)                                                                                              \
	do {                                                                                                           \
		CUresult check_result = (expression);                                                                  \
		if (check_result) {                                                                                    \
			printf("line %d: error %d\n", __LINE__, check_result);                                         \
			exit(9);                                                                                       \
		}                                                                                                      \
	} while (0)

static void *driver;
static char image[65536];
static CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
			  void **, void **);

static CUcontext begin(const char *name)
{
	CUcontext context;
	FILE *file = fopen(getenv("HOST_IMAGE"), "rb");

	if (!file || !fread(image, 1, sizeof(image) - 1, file))
		exit(8);
	fclose(file);
	driver = dlopen(name, RTLD_NOW);
	if (!driver) {
		printf("no driver\n");
		exit(7);
	}
	CHECK(CALL(cuInit, (unsigned))(0));
	CHECK(CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&context, 0));
	CHECK(CALL(cuCtxSetCurrent, (CUcontext))(context));
	CHECK(CALL(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))("cuLaunchKernel", (void **)&launch,
										       13000, 0, NULL));
	return context;
}

static CUmodule load(void)
{
	CUmodule module;

	CHECK(CALL(cuModuleLoadData, (CUmodule *, const void *))(&module, image));
	return module;
}

static CUfunction obtain(CUmodule module, const char *name)
{
	CUfunction function;

	CHECK(CALL(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))(&function, module, name));
	return function;
}

static uint64_t counter;

static CUresult count(CUfunction function, unsigned blocks, unsigned threads, CUstream stream)
{
	uint64_t *pointer = &counter;
	uint32_t unused = 5;
	void *parameters[] = {&pointer, &unused};

	return launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL);
}

static void *many(void *argument)
{
	CUstream stream;
	CUcontext context = ((void **)argument)[1];

	CALL(cuCtxSetCurrent, (CUcontext))(context);
	CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 0);
	for (int i = 0; i < 3000; i++)
		count(((void **)argument)[0], 1 + i % 7, 33 + i % 64, i % 3 ? stream : NULL);
	CALL(cuStreamDestroy_v2, (CUstream))(stream);
	return NULL;
}

static void *load_launch_unload(void *argument)
{
	CUstream stream;

	CHECK(CALL(cuCtxSetCurrent, (CUcontext))(((void **)argument)[1]));
	CHECK(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 0));
	for (int i = 0; i < 200; i++) {
		CUmodule module = load();
		CUfunction own = obtain(module, "count_p2");
		for (int j = 0; j < 3; j++) {
			CHECK(count(own, 2, 32, stream));
			CHECK(count(((void **)argument)[0], 2, 32, stream));
		}
		CHECK(CALL(cuStreamSynchronize, (CUstream))(stream));
		CHECK(CALL(cuModuleUnload, (CUmodule))(module));
	}
	return NULL;
}

static void *launch_for_ever(void *argument)
{
	CUstream stream;

	CHECK(CALL(cuCtxSetCurrent, (CUcontext))(((void **)argument)[1]));
	CHECK(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 0));
	for (int i = 1;; i++) {
		count(((void **)argument)[0], 2, 32, stream);
		usleep(200);
		if (i % 100 == 0)
			CALL(cuStreamSynchronize, (CUstream))(stream);
	}
	return NULL;
}

static void *once_on_the_threads_own_stream(void *argument)
{
	uint64_t *pointer = &counter;
	uint32_t unused = 5;
	void *parameters[] = {&pointer, &unused};
	CUresult (*launch_ptsz)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
				CUstream, void **, void **) = dlsym(driver, "cuLaunchKernel_ptsz");

	CHECK(CALL(cuCtxSetCurrent, (CUcontext))(((void **)argument)[1]));
	CHECK(launch_ptsz(((void **)argument)[0], 2, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
	CHECK(CALL(cuStreamSynchronize_ptsz, (CUstream))(NULL));
	return NULL;
}

/* What the scenario needs before anything has been loaded. */
static void surround(const char *scenario)
{
	static const struct {
		const char *scenario;
		rlim_t size;
	} limits[] = {{"small-files", 1 << 20}, {"cut", 12 << 20}};
	int ends[2];

	for (int i = 0; i < 2; i++)
		if (!strcmp(scenario, limits[i].scenario))
			setrlimit(RLIMIT_FSIZE, &(struct rlimit){limits[i].size, limits[i].size});
	if (!strcmp(scenario, "nobody-listens") && pipe(ends) == 0) {
		dup2(ends[1], 2);
		close(ends[0]);
		close(ends[1]);
	}
	if (!strcmp(scenario, "forgetful"))
		unsetenv("NEUTRINO_DRIVER");
	if (!strcmp(scenario, "closed"))
		for (int fd = 0; fd < 3; fd += 2)
			close(fd);
}

int main(int argc, char **argv)
{
	const char *scenario = argc > 1 ? argv[1] : "plain";
	CUstream stream;
	surround(scenario);
	CUcontext context = begin(strcmp(scenario, "unversioned") ? "libcuda.so.1" : "libcuda.so");
	CUmodule module = load();
	CUfunction function = obtain(module, "count_p2");
	int status = 0;

	CHECK(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 0));
	if (!strcmp(scenario, "plain") || !strcmp(scenario, "unversioned") || !strcmp(scenario, "small-files") ||
	    !strcmp(scenario, "nobody-listens") || !strcmp(scenario, "forgetful") || !strcmp(scenario, "closed")) {
		for (int i = 0; i < 20; i++)
			CHECK(count(function, 3, 48, stream));
	} else if (!strcmp(scenario, "extra")) {
		struct {
			uint64_t *pointer;
			uint64_t unused;
		} packed = {&counter, 5};
		size_t size = sizeof(packed);
		void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
				 CU_LAUNCH_PARAM_END};
		for (int i = 0; i < 20; i++)
			CHECK(launch(function, 3, 1, 1, 48, 1, 1, 0, stream, NULL, extra));
	} else if (!strcmp(scenario, "threads")) {
		pthread_t threads[4];
		void *argument[] = {function, context};
		for (int i = 0; i < 4; i++)
			pthread_create(&threads[i], NULL, many, argument);
		for (int i = 0; i < 4; i++)
			pthread_join(threads[i], NULL);
	} else if (!strcmp(scenario, "large")) {
		for (int i = 0; i < 6; i++)
			CHECK(count(function, 20000, 64, stream));
		CHECK(count(function, 4000000, 1024, stream));
	} else if (!strcmp(scenario, "cut")) {
		CHECK(count(function, 650000, 64, stream));
		CHECK(CALL(cuStreamSynchronize, (CUstream))(stream));
		usleep(300000);
		for (int i = 0; i < 20; i++)
			CHECK(count(function, 2, 32, stream));
	} else if (!strcmp(scenario, "immense")) {
		CHECK(count(function, 1 << 21, 1024, stream));
	} else if (!strcmp(scenario, "fault")) {
		for (int i = 0; i < 10; i++)
			CHECK(count(function, 2, 32, stream));
		CHECK(CALL(cuStreamSynchronize, (CUstream))(stream));
		usleep(100000);
		uint64_t *pointer = &counter;
		void *parameters[] = {&pointer};
		CHECK(launch(obtain(module, "fault_p1"), 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
		CALL(cuStreamDestroy_v2, (CUstream))(stream);
		usleep(100000);
		status = count(function, 2, 32, NULL) == 700 ? 0 : 1;
	} else if (!strcmp(scenario, "unannounced")) {
		CUlibrary library;
		CUkernel kernel;
		CHECK(CALL(cuLibraryLoadData, (CUlibrary *, const void *, int *, void **, unsigned, int *, void **,
					       unsigned))(&library, image, NULL, NULL, 0, NULL, NULL, 0));
		CHECK(CALL(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))(&kernel, library, "count_p2"));
		for (int i = 0; i < 3; i++) {
			CUcontext other;
			CHECK(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&other, 0, 0));
			CHECK(count(kernel, 2, 32, NULL));
			if (i == 2)
				usleep(600000);
			CHECK(count(kernel, 2, 32, NULL));
			CHECK(CALL(cuCtxSynchronize, (void))());
			if (i == 1)
				CHECK(CALL(cuCtxDestroy, (CUcontext))(other));
			else
				CHECK(CALL(cuCtxDestroy_v2, (CUcontext))(other));
			usleep(400000);
		}
		CHECK(CALL(cuCtxSetCurrent, (CUcontext))(context));
	} else if (!strcmp(scenario, "no-memory")) {
		CUlibrary library;
		CUkernel kernel;
		CHECK(CALL(cuLibraryLoadData, (CUlibrary *, const void *, int *, void **, unsigned, int *, void **,
					       unsigned))(&library, image, NULL, NULL, 0, NULL, NULL, 0));
		CHECK(CALL(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))(&kernel, library, "count_p2"));
		for (int i = 0; i < 100; i++)
			CHECK(CALL(cuCtxSetCurrent, (CUcontext))(context));
		if (*(int *)dlsym(driver, "fake_kernels_asked") > 10)
			status = 1;
		CHECK(count(kernel, 2, 32, NULL));
	} else if (!strcmp(scenario, "churn")) {
		pthread_t threads[4];
		void *argument[] = {function, context};
		for (int i = 0; i < 4; i++)
			pthread_create(&threads[i], NULL, load_launch_unload, argument);
		for (int i = 0; i < 4; i++)
			pthread_join(threads[i], NULL);
	} else if (!strcmp(scenario, "exit-amid")) {
		pthread_t threads[3];
		void *argument[] = {function, context};
		for (int i = 0; i < 3; i++)
			pthread_create(&threads[i], NULL, launch_for_ever, argument);
		usleep(200000);
		exit(4);
	} else if (!strcmp(scenario, "short-streams")) {
		for (int i = 0; i < 300; i++) {
			CUstream brief;
			CHECK(CALL(cuStreamCreate, (CUstream *, unsigned))(&brief, 0));
			for (int j = 0; j < 3; j++)
				CHECK(count(function, 2, 32, brief));
			CHECK(CALL(cuStreamDestroy_v2, (CUstream))(brief));
			if (i % 4 == 3)
				usleep(15000);
		}
	} else if (!strcmp(scenario, "names")) {
		for (int i = 0; i < 5; i++) {
			CUlibrary library;
			CUkernel kernel;
			CUmodule of_library;
			CUfunction in_context;
			CHECK(CALL(cuLibraryLoadData, (CUlibrary *, const void *, int *, void **, unsigned, int *, void **,
						       unsigned))(&library, image, NULL, NULL, 0, NULL, NULL, 0));
			CHECK(CALL(cuLibraryGetModule, (CUmodule *, CUlibrary))(&of_library, library));
			CHECK(count(obtain(of_library, "count_p2"), 2, 32, stream));
			CHECK(CALL(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))(&kernel, library,
											      "count_p2"));
			CHECK(count(kernel, 2, 32, stream));
			CHECK(CALL(cuKernelGetFunction, (CUfunction *, CUkernel))(&in_context, kernel));
			CHECK(count(in_context, 2, 32, stream));
			CHECK(CALL(cuStreamSynchronize, (CUstream))(stream));
			CHECK(CALL(cuLibraryUnload, (CUlibrary))(library));
		}
	} else if (!strcmp(scenario, "primary")) {
		for (int i = 0; i < 5; i++) {
			for (int j = 0; j < 3; j++)
				CHECK(count(function, 2, 32, NULL));
			if (i % 2)
				CHECK(CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))(0));
			else
				CHECK(CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice))(0));
			if (i % 2 == 0)
				CHECK(CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&context, 0));
			CHECK(CALL(cuCtxSetCurrent, (CUcontext))(context));
			function = obtain(load(), "count_p2");
		}
	} else if (!strcmp(scenario, "own-streams")) {
		void *argument[] = {function, context};
		for (int i = 0; i < 40; i++) {
			pthread_t thread;
			pthread_create(&thread, NULL, once_on_the_threads_own_stream, argument);
			pthread_join(thread, NULL);
			usleep(20000);
		}
	} else if (!strcmp(scenario, "spin")) {
		static uint32_t flag;
		uint32_t *pointer = &flag;
		void *parameters[] = {&pointer};
		CHECK(launch(obtain(module, "spin_p1"), 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
		CUstream others[8];
		for (int i = 0; i < 8; i++)
			CHECK(CALL(cuStreamCreate, (CUstream *, unsigned))(&others[i], 0));
		for (int i = 0; i < 200; i++)
			CHECK(count(function, 64, 1024, others[i % 8]));
		__atomic_store_n(&flag, 1, __ATOMIC_RELEASE);
		CHECK(CALL(cuStreamSynchronize, (CUstream))(stream));
	} else if (!strcmp(scenario, "capture")) {
		void *graph;
		CHECK(count(function, 1, 32, stream));
		CHECK(CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, 0));
		CHECK(count(function, 1, 32, stream));
		CHECK(CALL(cuStreamEndCapture, (CUstream, void **))(stream, &graph));
	} else if (!strcmp(scenario, "reload")) {
		for (int i = 0; i < 50; i++) {
			CHECK(count(function, 1, 32, stream));
			CHECK(CALL(cuStreamSynchronize, (CUstream))(stream));
			CHECK(CALL(cuModuleUnload, (CUmodule))(module));
			image[4000] ^= (char)(i % 2);
			module = load();
			function = obtain(module, "count_p2");
		}
	} else if (!strcmp(scenario, "fork")) {
		CHECK(count(function, 1, 32, stream));
		pid_t child = fork();
		if (child == 0)
			exit(3);
		waitpid(child, &status, 0);
		status = WEXITSTATUS(status);
	} else if (!strcmp(scenario, "bare-fork")) {
		CHECK(count(function, 1, 32, stream));
		pid_t child = _Fork();
		if (child == 0)
			exit(3);
		waitpid(child, &status, 0);
		status = WEXITSTATUS(status);
	} else if (!strcmp(scenario, "kill")) {
		for (int i = 0; i < 100; i++)
			CHECK(count(function, 1, 32, stream));
		CHECK(CALL(cuStreamSynchronize, (CUstream))(stream));
		usleep(200000);
		raise(9);
	} else if (!strcmp(scenario, "refused")) {
		status = count(function, 0, 32, stream);
	} else if (!strcmp(scenario, "destroy")) {
		for (int i = 0; i < 30; i++)
			CHECK(count(function, 2, 32, stream));
		CHECK(CALL(cuCtxDestroy_v2, (CUcontext))(context));
	}
	if (strcmp(scenario, "destroy") && strcmp(scenario, "fault"))
		CHECK(CALL(cuCtxSynchronize, (void))());
	printf("%llu\n", (unsigned long long)counter);
	return status;
}
