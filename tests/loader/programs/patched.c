/*
 * What the tests patch: a library with an image in it, which finds the driver as a runtime does that is linked into it.
 * Compiled with IMAGE, the path of the PTX, and SECTION, the path of a .neutrino section, or without the latter.
 */
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

static void set_up(void)
{
	CUcontext context;

	find_driver("libcuda.so.1");
	CHECK(cu.Init(0));
	CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
	CHECK(cu.CtxSetCurrent(context));
	find_launches();
	CHECK(cu.ModuleLoadData(&module, patched_image));
	function = obtain(module, "count_p2");
	counter = allocate(sizeof(uint64_t));
}

/* Launch; returns how many warps there were, by the kernels' own count. */
uint64_t patched_work(int launches)
{
	if (!cu.library)
		set_up();
	for (int i = 0; i < launches; i++)
		CHECK(launch_at(function, counter, 2, 96, NULL));
	CHECK(cu.CtxSynchronize());
	return value_at(counter);
}

/* Let go of what patched_work made, so that the library can be closed. */
void patched_end(void)
{
	if (!cu.library)
		return;
	CHECK(cu.ModuleUnload(module));
	CHECK(cu.MemFree_v2(counter));
	dlclose(cu.library);
	cu.library = NULL;
}
