/*
 * Two threads obtain the same kernel. The first is held up where the hook looks at the clock to log it; the other one
 * launches it meanwhile, if it can, so that its twin becomes ready. Prints whether the twin has counted all launches.
 */
#include <dlfcn.h>
#include <time.h>

#include "watched.h"

#define HELD_US 600000

static CUcontext context;
static CUmodule module;
static int is_held;
static __thread int is_first;

/* In place of glibc's, also for the hook: as if the thread had lost the processor there. */
int clock_gettime(clockid_t clock, struct timespec *ret)
{
	static int (*real)(clockid_t, struct timespec *);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
	if (is_first && clock == CLOCK_REALTIME) {
		is_first = 0;
		__atomic_store_n(&is_held, 1, __ATOMIC_RELEASE);
		usleep(HELD_US);
	}
	return real(clock, ret);
}

static void *obtain_first(void *unused)
{
	CHECK(cu.CtxSetCurrent(context));
	is_first = 1;
	obtain(module, "count_p2");
	if (is_first)
		printf("the kernel was not logged\n");
	return unused;
}

int main(void)
{
	pthread_t first;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	read_image();
	find_driver("libcuda.so.1");
	CHECK(cu.Init(0));
	find_launches();
	CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
	CHECK(cu.CtxSetCurrent(context));
	CUdeviceptr counter = allocate(8);
	module = load();
	pthread_create(&first, NULL, obtain_first, NULL);
	while (!__atomic_load_n(&is_held, __ATOMIC_ACQUIRE))
		usleep(1000);
	CUfunction function = obtain(module, "count_p2");
	while (!probed_so_far()) {
		CHECK(launch_at(function, counter, 1, 32, NULL));
		CHECK(cu.CtxSynchronize());
		usleep(5000);
	}
	pthread_join(first, NULL);
	printf("%s\n", value_at(counter) == launches_made ? "all" : "not all");
	return 0;
}
