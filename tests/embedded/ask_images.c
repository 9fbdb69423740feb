/* What a driver says of images, names and versions, of null arguments, of memory, and of events that are not ready. */
#include "asking.h"

#define PTX(version, target, body)                                                                                     \
	".version " version "\n.target " target "\n.address_size 64\n.visible .entry k() { " body " }\n"

static void images(void)
{
	static const struct {
		const char *name, *text;
	} texts[] = {
		{"plain", PTX("8.0", "sm_80", "ret;")},
		{"sm_90a", PTX("8.0", "sm_90a", "ret;")},
		{"sm_100", PTX("8.6", "sm_100", "ret;")},
		{"sm_120", PTX("8.7", "sm_120", "ret;")},
		{"version 9.0", PTX("9.0", "sm_90", "ret;")},
		{"version 99.0", PTX("99.0", "sm_90", "ret;")},
		{"a feature beyond its version", PTX("6.0", "sm_90", "ret;")},
		{"bogus instruction", PTX("8.0", "sm_90", "bogus;")},
		{"undeclared register", PTX("8.0", "sm_90", "mov.u32 %r1, 0; ret;")},
		{"unclosed", ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret;"},
		{"undefined function", ".version 8.0\n.target sm_90\n.address_size 64\n.extern .func f();\n"
				       ".visible .entry k() { call f; ret; }\n"},
		{"no target", ".version 8.0\n.address_size 64\n.visible .entry k() { ret; }\n"},
		{"no version", ".target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n"},
		{"no kernel", ".version 8.0\n.target sm_90\n.address_size 64\n"},
		{"a comment first", "// hello\n" PTX("8.0", "sm_90", "ret;")},
		{"blank lines first", "\n\n  " PTX("8.0", "sm_90", "ret;")},
		{"not PTX", "hello"},
		{"empty", ""},
		{"spaces", "   \n"},
	};
	CUmodule found;
	CUlibrary library;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		question("%s", texts[i].name);
		answer(cuModuleLoadData(&found, texts[i].text));
		answer(cuLibraryLoadData(&library, texts[i].text, NULL, NULL, 0, NULL, NULL, 0));
		answered();
	}
}

static void logs(void)
{
	static const char bogus[] = PTX("8.0", "sm_90", "bogus;"), plain[] = PTX("8.0", "sm_80", "ret;");
	char error[512] = {0}, info[512] = {0};
	int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER,
			 CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {error, (void *)512, info, (void *)512};
	CUmodule found;

	question("log of what is refused");
	answer(cuModuleLoadDataEx(&found, bogus, 4, options, values));
	answer(error[0] != 0);
	answer((size_t)values[1] == strlen(error));
	answer((size_t)values[1] == strlen(error) + 1);
	answer((long long)(size_t)values[3]);
	answered();
	question("log of what is loaded");
	error[0] = 0;
	values[1] = values[3] = (void *)512;
	answer(cuModuleLoadDataEx(&found, plain, 4, options, values));
	answer(error[0] == 0);
	answer((long long)(size_t)values[1]);
	answered();
	question("log of a byte");
	error[0] = 'x';
	error[1] = 'y';
	values[1] = (void *)1;
	answer(cuModuleLoadDataEx(&found, bogus, 2, options, values));
	answer(error[0]);
	answer(error[1]);
	answered();
	question("options without values");
	answer(cuModuleLoadDataEx(&found, plain, 0, options, values));
	answer(cuModuleLoadDataEx(&found, plain, 0, NULL, NULL));
	answered();
}

static void names(void)
{
	static const struct {
		const char *name;
		int version;
		uint64_t flags;
	} symbols[] = {
		{"cuLaunchKernel", 12000, 0},	    {"cuLaunchKernel", 12000, 1},
		{"cuLaunchKernel", 12000, 2},	    {"cuLaunchKernel", 12000, 3},
		{"cuLaunchKernel", 12000, 4},	    {"cuLaunchKernel", 3000, 0},
		{"cuLaunchKernel", 0, 0},	    {"cuLaunchKernel_ptsz", 12000, 0},
		{"cuLaunchKernelEx", 11000, 0},	    {"cuLaunchKernelEx", 11080, 0},
		{"cuMemAlloc", 12000, 0},	    {"cuMemAlloc_v2", 12000, 0},
		{"cuMemAlloc", 2000, 0},	    {"cuNothingLikeIt", 12000, 0},
		{"", 12000, 0},			    {"cuCtxCreate", 13000, 0},
		{"cuGraphKernelNodeGetParams", 12000, 0}, {"cuLibraryLoadData", 11000, 0},
		{"cuLibraryLoadData", 12000, 0},    {"cuLibraryLoadData", 99000, 0},
		{"cudaMalloc", 12000, 0},	    {"strlen", 12000, 0},
	};
	void *function;
	int status;

	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		question("%s of %d, flags %d", symbols[i].name, symbols[i].version, (int)symbols[i].flags);
		function = &function;
		status = -1;
		answer(cuGetProcAddress_v2(symbols[i].name, &function, symbols[i].version, symbols[i].flags, &status));
		answer(status);
		answer(function == NULL);
		answered();
	}
	question("nulls");
	answer(cuGetProcAddress_v2(NULL, &function, 12000, 0, &status));
	answer(cuGetProcAddress_v2("cuLaunchKernel", NULL, 12000, 0, &status));
	answer(cuGetProcAddress_v2("cuLaunchKernel", &function, 12000, 0, NULL));
	answer(cuGetProcAddress_v2("cuNothingLikeIt", &function, 12000, 0, NULL));
	answered();
	question("error names");
	const char *name = "";
	answer(cuGetErrorName(719, &name));
	answer(strcmp(name, "CUDA_ERROR_LAUNCH_FAILED"));
	answer(cuGetErrorName(12345, &name));
	answer(name == NULL);
	answer(cuGetErrorName(0, NULL));
	answered();
}

static void nulls(void)
{
	CUfunction function;
	CUmodule found;
	CUlibrary library;
	CUkernel kernel;
	CUdeviceptr p;
	CUstream stream;
	size_t size;
	int value;

	question("module");
	answer(cuModuleLoadData(NULL, image));
	answer(cuModuleLoadData(&found, NULL));
	answer(cuModuleUnload(NULL));
	answer(cuModuleGetFunction(NULL, module, "add"));
	answer(cuModuleGetFunction(&function, NULL, "add"));
	answer(cuModuleGetFunction(&function, module, NULL));
	answer(cuModuleGetFunction(&function, module, "nothing"));
	answer(cuModuleGetFunction(&function, module, ""));
	answer(cuModuleGetGlobal_v2(NULL, NULL, module, "counter"));
	answer(cuModuleGetGlobal_v2(&p, NULL, module, "counter"));
	answer(cuModuleGetGlobal_v2(NULL, &size, module, "counter"));
	answer((long long)size);
	answer(cuModuleGetGlobal_v2(&p, &size, module, "nothing"));
	answer(cuModuleGetGlobal_v2(&p, &size, NULL, "counter"));
	answered();
	question("library");
	answer(cuLibraryLoadData(NULL, image, NULL, NULL, 0, NULL, NULL, 0));
	answer(cuLibraryLoadData(&library, NULL, NULL, NULL, 0, NULL, NULL, 0));
	answer(cuLibraryUnload(NULL));
	answer(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	answer(cuLibraryGetKernel(NULL, library, "add"));
	answer(cuLibraryGetKernel(&kernel, NULL, "add"));
	answer(cuLibraryGetKernel(&kernel, library, "nothing"));
	answer(cuLibraryGetKernel(&kernel, library, "add"));
	answer(cuKernelGetFunction(&function, kernel));
	answer(cuKernelGetFunction(NULL, kernel));
	answer(cuKernelGetFunction(&function, NULL));
	answer(cuLibraryGetModule(&found, library));
	answer(cuModuleUnload(found));
	answer(cuLibraryGetGlobal(&p, &size, library, "nothing"));
	answer(cuLibraryUnload(library));
	answered();
	question("function");
	function = obtain(module, "add");
	answer(cuFuncGetModule(&found, function));
	answer(found == module);
	answer(cuFuncGetModule(NULL, function));
	answer(cuFuncGetModule(&found, NULL));
	answer(cuFuncGetName(NULL, function));
	answer(cuFuncGetAttribute(&value, 0, NULL));
	answer(obtain(module, "add") == function);
	answered();
	question("stream");
	answer(cuStreamCreate(NULL, 0));
	answer(cuStreamCreate(&stream, 2));
	answer(cuStreamDestroy_v2(NULL));
	answer(cuStreamDestroy_v2(CU_STREAM_LEGACY));
	answer(cuStreamDestroy_v2(CU_STREAM_PER_THREAD));
	answer(cuStreamQuery(NULL));
	answer(cuStreamQuery(CU_STREAM_LEGACY));
	answer(cuStreamQuery(CU_STREAM_PER_THREAD));
	answer(cuStreamWaitEvent(NULL, NULL, 0));
	answer(cuStreamCreateWithPriority(&stream, 1, -100));
	answer(cuStreamGetPriority(stream, &value));
	answer(value);
	answer(cuStreamCreateWithPriority(&stream, 1, 100));
	answer(cuStreamGetPriority(stream, &value));
	answer(value);
	answer(cuStreamGetFlags(stream, NULL));
	answered();
	question("event");
	CUevent event;
	answer(cuEventCreate(NULL, 0));
	answer(cuEventCreate(&event, 64));
	answer(cuEventCreate(&event, 4));
	answer(cuEventCreate(&event, 6));
	answer(cuEventDestroy_v2(NULL));
	answer(cuEventQuery(NULL));
	answer(cuEventSynchronize(NULL));
	answer(cuEventRecord(NULL, NULL));
	answered();
}

static void events(void)
{
	CUevent timed, untimed, never;
	CUstream stream = make_stream(1);
	float milliseconds;

	CHECK(cuEventCreate(&timed, 0));
	CHECK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventCreate(&never, 0));
	CHECK(cuEventRecord(timed, stream));
	CHECK(cuEventRecord(untimed, stream));
	CHECK(cuStreamSynchronize(stream));
	ASK("query", cuEventQuery(timed));
	ASK("query never recorded", cuEventQuery(never));
	ASK("synchronize never recorded", cuEventSynchronize(never));
	ASK("wait for never recorded", cuStreamWaitEvent(stream, never, 0));
	ASK("wait with unknown flags", cuStreamWaitEvent(stream, timed, 2));
	ASK("elapsed to itself", cuEventElapsedTime(&milliseconds, timed, timed));
	ASK("elapsed untimed", cuEventElapsedTime(&milliseconds, timed, untimed));
	ASK("elapsed never recorded", cuEventElapsedTime(&milliseconds, timed, never));
	ASK("elapsed from never recorded", cuEventElapsedTime(&milliseconds, never, timed));
	ASK("elapsed null", cuEventElapsedTime(NULL, timed, timed));
	ASK("elapsed of null", cuEventElapsedTime(&milliseconds, timed, NULL));
}

static void memory(void)
{
	CUdeviceptr word = allocate(1024), p = 0;
	uint32_t x = 1;
	static uint32_t pageable[1024];
	void *pinned;
	size_t size, free_before, free_after, total;
	unsigned flags;
	int value = -1;

	question("alloc");
	answer(cuMemAlloc_v2(&p, 0));
	answer(cuMemAlloc_v2(NULL, 64));
	answer(cuMemAlloc_v2(&p, (size_t)1 << 50));
	answer(word % 256 == 0);
	answered();
	question("free");
	answer(cuMemFree_v2(0));
	answer(cuMemFree_v2(word + 4));
	answer(cuMemFree_v2(0x10));
	p = allocate(64);
	answer(cuMemFree_v2(p));
	answer(cuMemFree_v2(p));
	answer(cuMemFree_v2((uintptr_t)pageable));
	answered();
	question("host alloc");
	answer(cuMemHostAlloc(&pinned, 0, 0));
	answer(cuMemHostAlloc(NULL, 64, 0));
	answer(cuMemHostAlloc(&pinned, 64, 8));
	answer(cuMemHostAlloc(&pinned, 64, 0));
	answer(cuMemHostGetDevicePointer_v2(&p, pinned, 0));
	answer(p == (uintptr_t)pinned);
	answer(cuMemHostGetDevicePointer_v2(&p, pageable, 0));
	answer(cuMemHostGetFlags(&flags, pinned));
	answer(flags);
	answer(cuMemFreeHost((char *)pinned + 4));
	answer(cuMemFree_v2((uintptr_t)pinned));
	answer(cuMemFreeHost(pinned));
	answer(cuMemFreeHost(NULL));
	answer(cuMemFreeHost(pageable));
	answered();
	question("host register");
	answer(cuMemHostRegister_v2(pageable, sizeof(pageable), 0));
	answer(cuMemHostRegister_v2(pageable, sizeof(pageable), 0));
	answer(cuMemHostRegister_v2(NULL, 64, 0));
	answer(cuMemHostUnregister(pageable));
	answer(cuMemHostUnregister(pageable));
	answered();
	question("copies");
	answer(cuMemcpyHtoD_v2(word, &x, 0));
	answer(cuMemcpyHtoD_v2(0, &x, 4));
	answer(cuMemcpyHtoD_v2(word, NULL, 4));
	answer(cuMemcpyDtoH_v2(NULL, word, 4));
	answer(cuMemcpyDtoH_v2(&x, 0x10, 4));
	answer(cuMemcpyHtoD_v2((uintptr_t)pageable, &x, 4));
	answer(cuMemcpyDtoD_v2(word, 0x10, 4));
	answer(cuMemcpy(word, (uintptr_t)&x, 4));
	answer(cuMemcpyHtoDAsync_v2(0x10, &x, 4, NULL));
	answer(cuCtxSynchronize());
	answered();
	question("fills");
	answer(cuMemsetD32_v2(word, 1, 4));
	answer(cuMemsetD32_v2(word + 1, 1, 4));
	answer(cuMemsetD32_v2(word, 1, 0));
	answer(cuMemsetD32_v2(0, 1, 4));
	answer(cuMemsetD8_v2(0x10, 1, 4));
	answer(cuCtxSynchronize());
	answered();
	question("address range");
	answer(cuMemGetAddressRange_v2(&p, &size, word + 100));
	answer(p == word);
	answer((long long)size);
	answer(cuMemGetAddressRange_v2(&p, &size, 0x10));
	answer(cuMemGetAddressRange_v2(NULL, NULL, word));
	answered();
	question("pointer attributes");
	answer(cuPointerGetAttribute(&value, 2, word));
	answer(value);
	answer(cuPointerGetAttribute(&value, 2, (uintptr_t)pageable));
	answer(cuPointerGetAttribute(&value, 99, word));
	answer(cuPointerGetAttribute(NULL, 2, word));
	answered();
	question("mem info");
	answer(cuMemGetInfo_v2(&free_before, &total));
	p = allocate(64 << 20);
	answer(cuMemGetInfo_v2(&free_after, &total));
	answer(free_before - free_after == 64 << 20);
	answer(free_after < total);
	answer(cuMemGetInfo_v2(NULL, NULL));
	answered();
	question("by streams");
	CUstream stream = make_stream(1);
	answer(cuMemAllocAsync(&p, 64, stream));
	answer(cuMemFreeAsync(p, stream));
	answer(cuStreamSynchronize(stream));
	answer(cuMemAllocAsync(&p, 0, stream));
	answer(cuMemAllocAsync(NULL, 64, stream));
	answer(cuMemFreeAsync(0x10, stream));
	answer(cuMemFreeAsync(0, stream));
	answer(cuMemFreeAsync(word, stream));
	answer(cuStreamSynchronize(stream));
	answered();
	question("limits");
	answer(cuCtxGetLimit(&size, 99));
	answer(cuCtxGetLimit(NULL, 0));
	answer(cuCtxGetLimit(&size, 0));
	answer((long long)size);
	answer(cuCtxSetLimit(99, 1));
	answer(cuDeviceGetAttribute(&value, 75, 0));
	answer(value);
	answer(cuDeviceGetAttribute(&value, 10000, 0));
	answer(cuDeviceGetAttribute(&value, 75, 99));
	answered();
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"images", images}, {"logs", logs},	{"names", names},
		{"nulls", nulls},   {"events", events}, {"memory", memory},
	};

	return run_group(argc, argv, groups, sizeof(groups) / sizeof(groups[0]));
}
