/*
 * signals IMAGE KERNEL SECONDS LOADS: threads launch, load and unload, and get signals, whose handlers do nothing, until
 * SECONDS have passed or LOADS modules were loaded (0: no such limit). Prints the numbers of launches, loads and signals.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "driver_calls.h"

#define LAUNCHING 3
#define LOADING 2
#define THREADS (LAUNCHING + LOADING)

static char image[1 << 20];
static const char *kernel;
static uint64_t launches, loads, signals, failures, most_loads;
static int is_over;

/* Count one more; from any thread, and from a signal handler. */
static void count(uint64_t *number)
{
	__atomic_fetch_add(number, 1, __ATOMIC_RELAXED);
}

/* What was counted so far. */
static uint64_t read_count(const uint64_t *number)
{
	return __atomic_load_n(number, __ATOMIC_RELAXED);
}

/* Count a failure, if something is wrong; the test goes on. */
static void check(bool is_wrong)
{
	if (is_wrong)
		count(&failures);
}

/* Handler of both signals: only counts. */
static void on_signal(int number)
{
	(void)number;
	count(&signals);
}

/* Launch the kernel in a stream (NULL: the default one), and count that. */
static void launch(CUfunction function, CUstream stream)
{
	unsigned long long counter = 0;
	unsigned unused = 5;
	void *parameters[] = {&counter, &unused};

	check(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL) != CUDA_SUCCESS);
	count(&launches);
}

/*
 * Main function of a launching thread: launches in streams of its own, of which it makes others from time to time, and
 * waits for them, until the time is over.
 */
static void *launch_often(void *unused)
{
	CUmodule module;
	CUfunction function;
	CUstream stream;

	(void)unused;
	check(!begin_context());
	check(cuModuleLoadData(&module, image) != CUDA_SUCCESS);
	check(cuModuleGetFunction(&function, module, kernel) != CUDA_SUCCESS);
	while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
		check(cuStreamCreate(&stream, 1) != CUDA_SUCCESS);
		for (unsigned i = 0; i < 1024; i++) {
			launch(function, stream);
			if (i % 64 == 63) {
				/* So that the pool is not always full. A signal may cut it short. */
				usleep(5000);
				check(cuStreamSynchronize(stream) != CUDA_SUCCESS);
			}
		}
		check(cuCtxSynchronize() != CUDA_SUCCESS);
		check(cuStreamDestroy_v2(stream) != CUDA_SUCCESS);
	}
	check(cuModuleUnload(module) != CUDA_SUCCESS);
	return NULL;
}

/*
 * Main function of a loading thread: loads the image as a module and as a library, launches a few times and unloads,
 * until the time is over.
 */
static void *load_often(void *unused)
{
	CUmodule module;
	CUlibrary library;
	CUfunction function;
	CUkernel handle;

	(void)unused;
	check(!begin_context());
	while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
		check(cuModuleLoadData(&module, image) != CUDA_SUCCESS);
		check(cuModuleGetFunction(&function, module, kernel) != CUDA_SUCCESS);
		launch(function, NULL);
		check(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0) != CUDA_SUCCESS);
		check(cuLibraryGetKernel(&handle, library, kernel) != CUDA_SUCCESS);
		launch((CUfunction)handle, NULL);
		check(cuModuleUnload(module) != CUDA_SUCCESS);
		check(cuLibraryUnload(library) != CUDA_SUCCESS);
		count(&loads);
		count(&loads);
	}
	return NULL;
}

/* Seconds on a clock that only goes forward. */
static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/*
 * Run the threads, and send them signals at random until the time is over or enough was loaded; print the numbers of
 * launches, loads and signals. Status 6 if any call failed.
 */
int main(int argc, char **argv)
{
	/* One interrupts system calls, the other has them begun again. */
	struct sigaction interrupting = {.sa_handler = on_signal}, restarting = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	pthread_t threads[THREADS];
	FILE *file = argc == 5 ? fopen(argv[1], "rb") : NULL;
	unsigned random = 1;

	if (!file || !fread(image, 1, sizeof(image) - 1, file))
		return 2;
	fclose(file);
	kernel = argv[2];
	most_loads = strtoull(argv[4], NULL, 10);
	sigaction(SIGUSR1, &interrupting, NULL);
	sigaction(SIGUSR2, &restarting, NULL);
	if (!find_driver())
		return 3;
	double end = now() + atof(argv[3]);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, i < LAUNCHING ? launch_often : load_often, NULL))
			return 5;
	while (now() < end && (!most_loads || read_count(&loads) < most_loads)) {
		struct timespec pause = {0, 20000 + random % 16 * 20000};
		random = random * 1103515245 + 12345;
		pthread_kill(threads[random / 65536 % THREADS], random & 0x8000 ? SIGUSR1 : SIGUSR2);
		nanosleep(&pause, NULL);
	}
	__atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("%llu %llu %llu\n", (unsigned long long)launches, (unsigned long long)loads, (unsigned long long)signals);
	return failures ? 6 : 0;
}
