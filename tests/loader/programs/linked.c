/* As patched.c, but the driver is what this library was linked with: calls go through its own slots. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/driver.h"

CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
#define DECLARE(name, parameters, ...) CUresult name parameters;
NT_DRIVER_INTERCEPTED(DECLARE)

__asm__(".section .rodata\n"
	".balign 64\n"
	"patched_image:\n"
	".incbin \"" IMAGE "\"\n"
	".byte 0\n"
	".section .neutrino,\"a\"\n"
	".balign 4096\n"
	".incbin \"" SECTION "\"\n"
	".text\n");
extern const char patched_image[] __attribute__((visibility("hidden")));

/* Pointers that the dynamic loader fills in: another sort of slot. */
static CUresult (*volatile load)(CUmodule *, const void *) = cuModuleLoadData;

#define CHECK(expression)                                                                                              \
	do {                                                                                                           \
		CUresult check_result = (expression);                                                                  \
		if (check_result) {                                                                                    \
			printf("%s: error %d\n", #expression, check_result);                                           \
			exit(9);                                                                                       \
		}                                                                                                      \
	} while (0)

uint64_t patched_work(int launches)
{
	static CUfunction function;
	static CUdeviceptr counter;
	uint64_t value = 0;
	uint32_t unused = 5;
	void *parameters[] = {&counter, &unused};

	if (!function) {
		CUcontext context;
		CUmodule module;
		CHECK(cuInit(0));
		CHECK(cuDevicePrimaryCtxRetain(&context, 0));
		CHECK(cuCtxSetCurrent(context));
		CHECK(load(&module, patched_image));
		CHECK(cuModuleGetFunction(&function, module, "count_p2"));
		CHECK(cuMemAlloc_v2(&counter, sizeof(value)));
		CHECK(cuMemcpyHtoD_v2(counter, &value, sizeof(value)));
	}
	for (int i = 0; i < launches; i++)
		CHECK(cuLaunchKernel(function, 2, 1, 1, 96, 1, 1, 0, NULL, parameters, NULL));
	CHECK(cuCtxSynchronize());
	CHECK(cuMemcpyDtoH_v2(&value, counter, sizeof(value)));
	return value;
}
