/* Scenarios of contexts: made, reset, destroyed, without memory, in error. */
#include "host.h"

void primary(void)
{
	for (int i = 0; i < 5; i++) {
		for (int j = 0; j < 3; j++)
			CHECK(count(function, 2, 32, NULL));
		say_counter();
		if (i % 2) {
			CHECK(cu.DevicePrimaryCtxReset_v2(0));
		} else {
			CHECK(cu.DevicePrimaryCtxRelease_v2(0));
			TELL(cu.DevicePrimaryCtxRelease_v2(0));
		}
		CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
		CHECK(cu.CtxSetCurrent(context));
		counter = make_counter();
		module = load();
		function = obtain(module, "count_p2");
	}
}

/*
 * Not probed at first: they show the hook that the context is another one, and then have it prepared aside. Once without
 * the hook.
 */
static void launch_until_probed(CUfunction launched)
{
	CUdeviceptr aside = make_counter();
	uint64_t before = probed_so_far();

	do {
		CHECK(launch_at(launched, aside, 2, 32, NULL));
		CHECK(cu.CtxSynchronize());
		written();
	} while (getenv("NEUTRINO_TRACEDIR") && probed_so_far() == before);
}

/* A kernel of a library outlives the context that is reset by a pointer older than the hook. */
void reset_unseen(void)
{
	const char *driver = getenv("NEUTRINO_DRIVER");
	void *real = dlopen(driver ? driver : "libcuda.so.1", RTLD_NOW);
	CUresult (*reset)(CUdevice);
	CUkernel kernel = obtain_kernel(load_library(), "count_p2");

	*(void **)&reset = dlsym(real, "cuDevicePrimaryCtxReset_v2");
	for (int i = 0; i < 4; i++) {
		for (int j = 0; j < 5; j++)
			CHECK(count(kernel, 2, 32, NULL));
		CHECK(cu.CtxSynchronize());
		say_counter();
		written();
		CHECK(reset(0));
		CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
		CHECK(cu.CtxSetCurrent(context));
		counter = make_counter();
		launch_until_probed(kernel);
	}
}

void destroy(void)
{
	CUcontext own;

	CHECK(cu.CtxCreate_v2(&own, 0, 0));
	counter = make_counter();
	function = obtain(load(), "count_p2");
	for (int i = 0; i < 30; i++)
		CHECK(count(function, 2, 32, NULL));
	say_counter();
	CHECK(count(function, 2, 32, NULL));
	CHECK(cu.CtxDestroy_v2(own));
	CHECK(cu.CtxSetCurrent(context));
	counter = make_counter();
}

/* Contexts that the program makes and destroys without ever making them current by a call that the hook sees. */
void unannounced(void)
{
	CUkernel kernel = obtain_kernel(load_library(), "count_p2");

	for (int i = 0; i < 3; i++) {
		CUcontext other;
		CHECK(cu.CtxCreate_v2(&other, 0, 0));
		counter = make_counter();
		CHECK(count(kernel, 2, 32, NULL));
		if (i == 2)
			launch_until_probed(kernel);
		CHECK(count(kernel, 2, 32, NULL));
		CHECK(cu.CtxSynchronize());
		say_counter();
		CHECK(cu.CtxDestroy_v2(other));
		usleep(100000);
	}
	CHECK(cu.CtxSetCurrent(context));
	counter = make_counter();
}

void no_memory(void)
{
	CUkernel kernel = obtain_kernel(load_library(), "count_p2");

	for (int i = 0; i < 100; i++)
		CHECK(cu.CtxSetCurrent(context));
	CHECK(count(kernel, 2, 32, NULL));
}

static void fault_by(const char *name, CUdeviceptr where)
{
	for (int i = 0; i < 10; i++)
		CHECK(count(function, 2, 32, stream));
	CHECK(cu.StreamSynchronize(stream));
	say_counter();
	/* What is done must be written before the fault. */
	written();
	TELL(launch_at(obtain(module, name), where, 1, 1, stream));
	TELL(cu.StreamSynchronize(stream));
	TELL(count(function, 2, 32, stream));
	TELL(count(function, 2, 32, NULL));
	TELL(cu.MemAlloc_v2(&where, 8));
	TELL(cu.StreamDestroy_v2(stream));
	TELL(cu.CtxSynchronize());
}

void fault(void)
{
	fault_by("fault_p1", 8);
}

void misaligned(void)
{
	fault_by("fault_p1", counter + 2);
}

void trap(void)
{
	fault_by("trap_p0", 0);
}

/* The fault of one context is no other's affair; a new primary context begins anew. */
void fault_elsewhere(void)
{
	CUcontext other;
	CUdeviceptr theirs;

	CHECK(cu.CtxCreate_v2(&other, 0, 0));
	theirs = make_counter();
	CUmodule loaded = load();
	TELL(launch_at(obtain(loaded, "count_p2"), theirs, 2, 32, NULL));
	TELL(launch_at(obtain(loaded, "fault_p1"), 8, 1, 1, NULL));
	TELL(cu.CtxSynchronize());
	CHECK(cu.CtxSetCurrent(context));
	for (int i = 0; i < 5; i++)
		TELL(count(function, 2, 32, stream));
	TELL(cu.StreamSynchronize(stream));
	TELL(cu.CtxDestroy_v2(other));
	for (int i = 0; i < 5; i++)
		TELL(count(function, 2, 32, stream));
}
