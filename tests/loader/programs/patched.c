/*
 * What the tests patch: a library with an image in it, which finds the driver as a runtime does that is linked into it.
 * Compiled with IMAGE, the path of the PTX, and perhaps with
 * SECTION     the path of a .neutrino section,
 * AT_LOADING  to work in its constructor.
 */
#include <time.h>

#include "program.h"

__asm__(".section .rodata\n"
	".balign 64\n"
	"patched_image:\n"
	".incbin \"" IMAGE "\"\n"
	".byte 0\n"
#ifdef SECTION
	".section .neutrino,\"a\"\n"
	".balign 4096\n"
	".incbin \"" SECTION "\"\n"
#endif
	".text\n");
extern const char patched_image[] __attribute__((visibility("hidden")));

static CUmodule module;
static CUfunction function;
static CUdeviceptr counter;
static uint64_t start;

static void set_up(void)
{
	struct timespec now;
	CUcontext context;

	/* A runtime that several libraries share has looked the driver up before. */
	if (!cu.library) {
		find_driver("libcuda.so.1");
		CHECK(cu.Init(0));
		find_launches();
	}
	CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
	CHECK(cu.CtxSetCurrent(context));
	CHECK(cu.ModuleLoadData(&module, patched_image));
	function = obtain(module, "count_p2");
	counter = allocate(sizeof(uint64_t));
	/* No two libraries give out the same tickets. */
	clock_gettime(CLOCK_MONOTONIC, &now);
	start = ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec) << 12;
	CHECK(cu.MemcpyHtoD_v2(counter, &start, sizeof(start)));
}

/* Launch; returns how many warps there were, by the kernels' own count. */
uint64_t patched_work(int launches)
{
	if (!module)
		set_up();
	for (int i = 0; i < launches; i++)
		CHECK(launch_at(function, counter, 2, 96, NULL));
	CHECK(cu.CtxSynchronize());
	return value_at(counter) - start;
}

/* Let go of what patched_work made, so that the library can be closed. */
void patched_end(void)
{
	if (!module)
		return;
	CHECK(cu.ModuleUnload(module));
	CHECK(cu.MemFree_v2(counter));
	dlclose(cu.library);
	cu.library = NULL;
	module = NULL;
}

/* The same after a reset of the context, which has ended all that was made in it. */
void patched_forget(void)
{
	module = NULL;
}

#ifdef AT_LOADING
__attribute__((constructor)) static void at_loading(void)
{
	printf("at loading: %llu\n", (unsigned long long)patched_work(20));
}
#endif
