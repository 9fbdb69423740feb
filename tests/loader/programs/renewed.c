/*
 * `renewed LIBRARY early|late`: a process that used the GPU before a patched library brought the hook. It resets its
 * primary context, by a pointer older than the hook or by a newer one, and fills memory that the old context had.
 */
#include "program.h"

enum { BLOCKS = 96, SIZE = 1 << 20 };
static uint8_t block[SIZE], back[SIZE];

int main(int argc, char **argv)
{
	CUcontext context, again;
	CUdeviceptr blocks[BLOCKS];
	uint64_t (*work)(int);
	void (*forget)(void);
	long changed = 0;

	if (argc != 3)
		return 2;
	find_driver("libcuda.so.1");
	CHECK(cu.Init(0));
	CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
	CHECK(cu.CtxSetCurrent(context));
	void *library = dlopen(argv[1], RTLD_NOW);
	if (!library) {
		puts(dlerror());
		return 3;
	}
	*(void **)&work = dlsym(library, "patched_work");
	*(void **)&forget = dlsym(library, "patched_forget");
	printf("%llu\n", (unsigned long long)work(20));
	if (!strcmp(argv[2], "late"))
		*(void **)&cu.DevicePrimaryCtxReset_v2 = dlsym(cu.library, "cuDevicePrimaryCtxReset_v2");
	CHECK(cu.DevicePrimaryCtxReset_v2(0));
	forget();
	CHECK(cu.DevicePrimaryCtxRetain(&again, 0));
	CHECK(cu.CtxSetCurrent(again));
	printf("%s\n", again == context ? "at the same address" : "elsewhere");
	memset(block, 0x5a, SIZE);
	for (int i = 0; i < BLOCKS; i++) {
		CHECK(cu.MemAlloc_v2(&blocks[i], SIZE));
		CHECK(cu.MemcpyHtoD_v2(blocks[i], block, SIZE));
	}
	printf("%llu\n", (unsigned long long)work(20));
	CHECK(cu.CtxSynchronize());
	usleep(300000);
	for (int i = 0; i < BLOCKS; i++) {
		CHECK(cu.MemcpyDtoH_v2(back, blocks[i], SIZE));
		for (int j = 0; j < SIZE; j++)
			changed += back[j] != 0x5a;
	}
	printf("%ld bytes changed\n", changed);
	return 0;
}
