/* Faults, reuse of handles and addresses, kernels that wait, forks, ends of contexts: `life SCENARIO`. */
#include <dirent.h>
#include <sys/wait.h>

#include "host.h"

static CUdeviceptr word;

static CUresult launch_add(CUfunction function, uint32_t x, CUdeviceptr to, CUstream stream)
{
	void *parameters[] = {&to, &x};

	return launch(function, 1, 32, stream, parameters);
}

/* The fault comes back from everything; after a reset the handle is there, and the process has no device any more. */
static void fault(CUmodule module, const char *kind, CUresult expected)
{
	CUfunction add = obtain(module, "add");
	CUdeviceptr address = word;
	CUcontext current;

	if (!strcmp(kind, "trap"))
		CHECK(launch(obtain(module, "trap_here"), 1, 32, NULL, NULL));
	else if (!strcmp(kind, "red-zone"))
		CHECK(launch_add(add, 1, word + 4, NULL));
	else if (!strcmp(kind, "freed")) {
		address = allocate(64);
		CHECK(CALL(cuMemFree_v2, (CUdeviceptr))(address));
		CHECK(launch_add(add, 1, address, NULL));
	} else if (!strcmp(kind, "host-pointer")) {
		CHECK(launch_add(add, 1, (uintptr_t)&address, NULL));
	} else {
		CHECK(launch_add(add, 1, word + 1, NULL));
	}
	EXPECT(expected, synchronize(NULL));
	EXPECT(expected, CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, 4));
	EXPECT(expected, launch_add(add, 1, word, NULL));
	EXPECT(expected, CALL(cuCtxSynchronize, (void))());
	CHECK(CALL(cuCtxGetCurrent, (CUcontext *))(&current));
	CHECK(CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))(0));
	EXPECT(709, CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, 4));
	CHECK(CALL(cuCtxSetCurrent, (CUcontext))(current));
	EXPECT(expected, CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&current, 0));
	EXPECT(0, (intptr_t)current);
}

/* A reset without a fault: everything is gone, and comes again for whoever retains the context again. */
static void reset(CUcontext context)
{
	CUdeviceptr address;
	CUcontext again;
	uint32_t found;

	CHECK(CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))(0));
	EXPECT(709, CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, 4));
	CHECK(CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&again, 0));
	EXPECT((intptr_t)context, (intptr_t)again);
	word = allocate(4);
	to_device(word, &(uint32_t){0}, 4);
	CHECK(launch_add(obtain(load(), "add"), 1, word, NULL));
	to_host(&found, word, 4);
	EXPECT(32, found);
}

/* What was destroyed last is what comes next. */
static void reuse(CUmodule module)
{
	CUcontext context, again;
	CUevent event, next_event;
	CUmodule other = load();
	CUfunction function = obtain(other, "add");
	CUstream stream = make_stream(0);

	CHECK(CALL(cuStreamDestroy_v2, (CUstream))(stream));
	EXPECT((intptr_t)stream, (intptr_t)make_stream(1));
	CHECK(CALL(cuEventCreate, (CUevent *, unsigned))(&event, 0));
	CHECK(CALL(cuEventDestroy_v2, (CUevent))(event));
	CHECK(CALL(cuEventCreate, (CUevent *, unsigned))(&next_event, 0));
	EXPECT((intptr_t)event, (intptr_t)next_event);
	CHECK(CALL(cuModuleUnload, (CUmodule))(other));
	EXPECT((intptr_t)other, (intptr_t)load());
	EXPECT((intptr_t)function, (intptr_t)obtain(other, "step"));
	CUdeviceptr address = allocate(1000);
	CHECK(CALL(cuMemFree_v2, (CUdeviceptr))(address));
	EXPECT(address, allocate(900));
	CHECK(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&context, 0, 0));
	CHECK(CALL(cuCtxDestroy_v2, (CUcontext))(context));
	CHECK(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&again, 0, 0));
	EXPECT((intptr_t)context, (intptr_t)again);
	CHECK(CALL(cuCtxDestroy_v2, (CUcontext))(again));
	obtain(module, "add");
}

/* Kernels that wait for a flag: set by the host, by a copy on another stream, by what is launched after them. */
static void spin(CUmodule module)
{
	CUfunction wait = obtain(module, "spin"), add = obtain(module, "add");
	CUstream first = make_stream(1), second = make_stream(1);
	uint32_t one = 1, zero = 0, found;
	uint32_t *pinned;

	CHECK(CALL(cuMemHostAlloc, (void **, size_t, unsigned))((void **)&pinned, 64, 0));
	*pinned = 0;
	CUdeviceptr flag = (uintptr_t)pinned;
	void *parameters[] = {&flag};
	CHECK(launch(wait, 1, 1, first, parameters));
	CHECK(launch_add(add, 1, word, first));
	EXPECT(600, CALL(cuStreamQuery, (CUstream))(first));
	for (int i = 0; i < 50; i++)
		CHECK(launch_add(add, 1, word, second));
	CHECK(synchronize(second));
	EXPECT(600, CALL(cuStreamQuery, (CUstream))(first));
	__atomic_store_n(pinned, 1, __ATOMIC_RELEASE);
	CHECK(synchronize(first));
	to_host(&found, word, 4);
	EXPECT(51 * 32, found);

	flag = allocate(4);
	to_device(flag, &zero, 4);
	CHECK(launch(wait, 3, 64, first, parameters));
	CHECK(CALL(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))(flag, &one, 4, second));
	CHECK(synchronize(first));
	CHECK(synchronize(second));
	to_device(flag, &zero, 4);
	CHECK(launch(wait, 1, 1, first, parameters));
	CHECK(launch_add(add, 1, flag, second));
	CHECK(synchronize(first));
}

static void host_function(void *argument)
{
	usleep(20000);
	__atomic_add_fetch((int *)argument, 1, __ATOMIC_ACQ_REL);
}

/* The default stream and blocking ones wait for each other; others do not. */
static void default_stream(void)
{
	CUstream blocking = make_stream(0), apart = make_stream(1);
	CUresult (*host)(CUstream, CUhostFn, void *) = function_named("cuLaunchHostFunc");
	int calls = 0;

	CHECK(host(blocking, host_function, &calls));
	CHECK(host(NULL, host_function, &calls));
	CHECK(synchronize(NULL));
	EXPECT(2, __atomic_load_n(&calls, __ATOMIC_ACQUIRE));
	CHECK(host(NULL, host_function, &calls));
	CHECK(host(blocking, host_function, &calls));
	CHECK(synchronize(blocking));
	EXPECT(4, __atomic_load_n(&calls, __ATOMIC_ACQUIRE));
	CHECK(host(NULL, host_function, &calls));
	CHECK(CALL(cuStreamQuery, (CUstream))(apart));
	CHECK(synchronize(apart));
	CHECK(CALL(cuCtxSynchronize, (void))());
	EXPECT(5, calls);
}

/* Events: a wait across streams orders, a query reports, time passes. */
static void events(CUmodule module)
{
	CUfunction step = obtain(module, "step");
	CUstream first = make_stream(1), second = make_stream(1);
	CUevent begun, done;
	float milliseconds = -1;
	uint32_t expected = 0, found;

	CHECK(CALL(cuEventCreate, (CUevent *, unsigned))(&begun, 0));
	CHECK(CALL(cuEventCreate, (CUevent *, unsigned))(&done, 0));
	CHECK(CALL(cuEventQuery, (CUevent))(done));
	EXPECT(400, CALL(cuEventElapsedTime, (float *, CUevent, CUevent))(&milliseconds, begun, done));
	CHECK(CALL(cuEventRecord, (CUevent, CUstream))(begun, first));
	for (uint32_t i = 0; i < 10; i++) {
		CUstream stream = i % 2 ? first : second, next = i % 2 ? second : first;
		void *parameters[] = {&word, &i};
		CHECK(launch(step, 1, 1, stream, parameters));
		CHECK(CALL(cuEventRecord, (CUevent, CUstream))(done, stream));
		CHECK(CALL(cuStreamWaitEvent, (CUstream, CUevent, unsigned))(next, done, 0));
		expected = expected * 3 + i;
	}
	CHECK(CALL(cuEventSynchronize, (CUevent))(done));
	CHECK(CALL(cuEventElapsedTime, (float *, CUevent, CUevent))(&milliseconds, begun, done));
	EXPECT(1, milliseconds > 0 && milliseconds < 60000);
	to_host(&found, word, 4);
	EXPECT(expected, found);
}

/* Variables are each context's own; the library serves all. */
static void libraries(CUcontext context)
{
	CUlibrary library;
	CUkernel kernel;
	CUcontext other;
	CUdeviceptr counter[2], offset;
	size_t size;
	uint32_t nine = 9, found;
	const char *name;

	CHECK(CALL(cuLibraryLoadData, (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))(
		&library, image, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(CALL(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))(&kernel, library, "variables"));
	CHECK(CALL(cuKernelGetName, (const char **, CUkernel))(&name, kernel));
	EXPECT(0, strcmp(name, "variables"));
	for (int i = 0; i < 2; i++) {
		if (i)
			CHECK(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&other, 0, 0));
		CHECK(CALL(cuLibraryGetGlobal, (CUdeviceptr *, size_t *, CUlibrary, const char *))(&counter[i], &size,
												    library, "counter"));
		EXPECT(4, size);
		CUdeviceptr out = allocate(4);
		void *parameters[] = {&out};
		CHECK(launch((CUfunction)(void *)kernel, 1, 1, NULL, parameters));
		to_host(&found, out, 4);
		EXPECT(12, found);
		CHECK(CALL(cuLibraryGetGlobal, (CUdeviceptr *, size_t *, CUlibrary, const char *))(&offset, NULL,
												    library, "offset"));
		to_device(counter[i], &nine, 4);
		to_device(offset, &(uint32_t){100}, 4);
		CHECK(launch((CUfunction)(void *)kernel, 1, 1, NULL, parameters));
		to_host(&found, out, 4);
		EXPECT(109, found);
	}
	EXPECT(1, counter[0] != counter[1]);
	CHECK(CALL(cuCtxDestroy_v2, (CUcontext))(other));
	CHECK(CALL(cuCtxSetCurrent, (CUcontext))(context));
	CHECK(CALL(cuLibraryUnload, (CUlibrary))(library));
	EXPECT(1, CALL(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))(&found, counter[0], 4));
}

static CUlibrary shared_library;

/* Contexts that use the library and end. */
static void *short_contexts(void *unused)
{
	CUcontext context;
	CUmodule module;

	for (int i = 0; i < 24; i++) {
		CHECK(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&context, 0, 0));
		CHECK(CALL(cuLibraryGetModule, (CUmodule *, CUlibrary))(&module, shared_library));
		CHECK(CALL(cuCtxDestroy_v2, (CUcontext))(context));
	}
	return unused;
}

/* What belongs to the library stays the same while they come and go, its names too. */
static void library_of_threads(void)
{
	CUkernel kernel, again;
	pthread_t threads[2];
	const char *name;
	size_t offset, size;
	unsigned count;

	CHECK(CALL(cuLibraryLoadData, (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))(
		&shared_library, image, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(CALL(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))(&kernel, shared_library, "add"));
	CHECK(CALL(cuKernelGetName, (const char **, CUkernel))(&name, kernel));
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, short_contexts, NULL);
	for (int i = 0; i < 4000; i++) {
		CHECK(CALL(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))(&again, shared_library, "add"));
		EXPECT((intptr_t)kernel, (intptr_t)again);
		CHECK(CALL(cuLibraryGetKernelCount, (unsigned *, CUlibrary))(&count, shared_library));
		CHECK(CALL(cuLibraryEnumerateKernels, (CUkernel *, unsigned, CUlibrary))(&again, 1, shared_library));
		CHECK(CALL(cuKernelGetParamInfo, (CUkernel, size_t, size_t *, size_t *))(kernel, 1, &offset, &size));
		EXPECT(8, offset);
		EXPECT(4, size);
		EXPECT(0, strcmp(name, "add"));
	}
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	CHECK(CALL(cuLibraryUnload, (CUlibrary))(shared_library));
}

static int forked(CUmodule module, bool bare)
{
	uint32_t found;
	int status;

	CHECK(launch_add(obtain(module, "add"), 1, word, NULL));
	pid_t child = bare ? _Fork() : fork();
	if (child == 0)
		_exit(CALL(cuInit, (unsigned))(0) == 3 && CALL(cuCtxSynchronize, (void))() == 3 ? 5 : 6);
	EXPECT(child, waitpid(-1, &status, 0));
	EXPECT(5, WEXITSTATUS(status));
	/* The device process is nobody's child. */
	EXPECT(-1, waitpid(-1, &status, 0));
	to_host(&found, word, 4);
	EXPECT(32, found);
	return 0;
}

static void *churn(void *argument)
{
	CUdeviceptr own;

	CHECK(CALL(cuCtxSetCurrent, (CUcontext))(argument));
	CHECK(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&own, 4));
	to_device(own, &(uint32_t){0}, 4);
	for (uint32_t i = 0; i < 8; i++) {
		CUmodule module = load();
		CUstream stream = make_stream(i % 2);
		CUfunction add = obtain(module, "add");
		CUevent event;
		CHECK(CALL(cuEventCreate, (CUevent *, unsigned))(&event, 0));
		for (int j = 0; j < 3; j++)
			CHECK(launch_add(add, 1, own, stream));
		CHECK(CALL(cuEventRecord, (CUevent, CUstream))(event, stream));
		CHECK(CALL(cuEventDestroy_v2, (CUevent))(event));
		CHECK(launch_add(add, 1, word, stream));
		if (i % 3)
			CHECK(synchronize(stream));
		CHECK(CALL(cuStreamDestroy_v2, (CUstream))(stream));
		CHECK(CALL(cuModuleUnload, (CUmodule))(module));
	}
	uint32_t found;
	to_host(&found, own, 4);
	EXPECT(8 * 3 * 32, found);
	return NULL;
}

/* Four threads that make and unmake everything. */
static void many_threads(CUcontext context)
{
	pthread_t threads[4];
	uint32_t found;

	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, churn, context);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	CHECK(CALL(cuCtxSynchronize, (void))());
	to_host(&found, word, 4);
	EXPECT(4 * 8 * 32, found);
}

/* Rows, managed memory, fills, memory given back by a stream, what the driver knows of a pointer. */
static void memory(void)
{
	unsigned char rows[4][16], found[4][8];
	size_t pitch, available, total;
	CUdeviceptr pitched, managed, by_stream, base;
	CUstream stream = make_stream(0);
	int kind;

	for (int i = 0; i < 64; i++)
		rows[i / 16][i % 16] = (unsigned char)i;
	CHECK(CALL(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))(&pitched, &pitch, 16, 4, 4));
	CUDA_MEMCPY2D copy = {.srcMemoryType = 1, .srcHost = rows, .srcPitch = 16, .dstMemoryType = 2,
			      .dstDevice = pitched, .dstPitch = pitch, .WidthInBytes = 16, .Height = 4};
	CHECK(CALL(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *))(&copy));
	copy = (CUDA_MEMCPY2D){.srcXInBytes = 4, .srcMemoryType = 2, .srcDevice = pitched, .srcPitch = pitch,
			       .dstMemoryType = 1, .dstHost = found, .dstPitch = 8, .WidthInBytes = 8, .Height = 4};
	CHECK(CALL(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *, CUstream))(&copy, stream));
	CHECK(synchronize(stream));
	for (int i = 0; i < 4; i++)
		EXPECT(0, memcmp(found[i], rows[i] + 4, 8));
	CHECK(CALL(cuMemsetD2D8_v2, (CUdeviceptr, size_t, unsigned char, size_t, size_t))(pitched, pitch, 7, 5, 2));
	to_host(rows, pitched + pitch, 16);
	EXPECT(7, rows[0][4]);
	EXPECT(21, rows[0][5]);

	CHECK(CALL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))(&managed, 4096, 1));
	*(uint32_t *)(uintptr_t)managed = 5;
	CHECK(CALL(cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t))(managed + 4, 9, 3));
	CHECK(CALL(cuCtxSynchronize, (void))());
	EXPECT(9, ((uint32_t *)(uintptr_t)managed)[3]);
	EXPECT(5, *(uint32_t *)(uintptr_t)managed);
	CHECK(CALL(cuPointerGetAttribute, (void *, int, CUdeviceptr))(&kind, 8, managed + 100));
	EXPECT(1, kind);
	CHECK(CALL(cuPointerGetAttribute, (void *, int, CUdeviceptr))(&kind, 2, pitched));
	EXPECT(2, kind);
	EXPECT(1, CALL(cuPointerGetAttribute, (void *, int, CUdeviceptr))(&kind, 2, (uintptr_t)rows));
	CHECK(CALL(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr))(&base, &total, pitched + 700));
	EXPECT(pitched, base);
	EXPECT(4 * pitch, total);

	CHECK(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&available, &total));
	CHECK(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&by_stream, 1 << 20, stream));
	CHECK(CALL(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))(by_stream, 1, 1 << 20, stream));
	CHECK(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(by_stream, stream));
	CHECK(synchronize(stream));
	size_t after;
	CHECK(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&after, &total));
	EXPECT(available, after);
	EXPECT(1, CALL(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))(rows, by_stream, 16));
	EXPECT(2, CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&by_stream, total));
	EXPECT(1, CALL(cuMemFree_v2, (CUdeviceptr))(pitched + 4));
}

/* Launches that the driver refuses. */
static void refused(CUmodule module)
{
	CUfunction add = obtain(module, "add"), none;
	uint32_t x = 1;
	void *parameters[] = {&word, &x};

	EXPECT(1, launch(add, 0, 32, NULL, parameters));
	EXPECT(1, launch(add, 1, 1025, NULL, parameters));
	EXPECT(1, launch(add, 1, 1, NULL, NULL));
	EXPECT(500, CALL(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))(&none, module, "nothing"));
	EXPECT(720, CALL(cuLaunchCooperativeKernel,
			 (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
			  void **))(add, 100000, 1, 1, 32, 1, 1, 0, NULL, parameters));
	struct {
		CUdeviceptr to;
		uint32_t x;
	} packed = {word, 2};
	/* Without the struct's padding: a size beyond the parameters' is refused. */
	size_t size = offsetof(typeof(packed), x) + sizeof(packed.x);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
			 CU_LAUNCH_PARAM_END};
	CHECK(CALL(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
				    CUstream, void **, void **))(add, 1, 1, 1, 4, 1, 1, 0, NULL, NULL, extra));
	uint32_t found;
	to_host(&found, word, 4);
	EXPECT(8, found);
}

/* What is wrong with a library's image comes back from whatever asks for something of it. */
static void lazy_library(void)
{
	CUlibrary library;
	CUkernel kernel;
	CUmodule module;
	unsigned count;

	CHECK(CALL(cuLibraryLoadData, (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))(
		&library, ".version 8.0\n.target sm_80\n.entry k() { bogus; }", NULL, NULL, 0, NULL, NULL, 0));
	EXPECT(218, CALL(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))(&kernel, library, "k"));
	EXPECT(218, CALL(cuLibraryGetKernelCount, (unsigned *, CUlibrary))(&count, library));
	EXPECT(218, CALL(cuLibraryGetModule, (CUmodule *, CUlibrary))(&module, library));
	CHECK(CALL(cuLibraryUnload, (CUlibrary))(library));
}

int main(int argc, char **argv)
{
	const char *scenario = argc > 1 ? argv[1] : "";
	CUcontext context = begin();
	CUmodule module = load();
	int status = 0;

	word = allocate(4);
	to_device(word, &(uint32_t){0}, 4);
	if (!strcmp(scenario, "fault"))
		fault(module, argv[2], atoi(argv[3]));
	else if (!strcmp(scenario, "reset"))
		reset(context);
	else if (!strcmp(scenario, "reuse"))
		reuse(module);
	else if (!strcmp(scenario, "spin"))
		spin(module);
	else if (!strcmp(scenario, "default-stream"))
		default_stream();
	else if (!strcmp(scenario, "events"))
		events(module);
	else if (!strcmp(scenario, "libraries"))
		libraries(context);
	else if (!strcmp(scenario, "library-threads"))
		library_of_threads();
	else if (!strcmp(scenario, "fork") || !strcmp(scenario, "bare-fork"))
		status = forked(module, !strcmp(scenario, "bare-fork"));
	else if (!strcmp(scenario, "threads"))
		many_threads(context);
	else if (!strcmp(scenario, "memory"))
		memory();
	else if (!strcmp(scenario, "refused"))
		refused(module);
	else if (!strcmp(scenario, "lazy-library"))
		lazy_library();
	else if (!strcmp(scenario, "stale-stream")) {
		CUstream stream = make_stream(0);
		CHECK(CALL(cuStreamDestroy_v2, (CUstream))(stream));
		EXPECT(400, synchronize(stream));
	} else if (!strcmp(scenario, "device-pointer")) {
		*(volatile uint32_t *)(uintptr_t)word = 1;
	} else if (!strcmp(scenario, "wait")) {
		printf("ready\n");
		fflush(stdout);
		pause();
	} else if (!strcmp(scenario, "lost-device")) {
		CUfunction add = obtain(module, "add");
		printf("ready\n");
		fflush(stdout);
		getchar();
		CHECK(launch_add(add, 1, word, NULL));
		EXPECT(999, synchronize(NULL));
		EXPECT(999, launch_add(add, 1, word, NULL));
	} else if (!strcmp(scenario, "allocations")) {
		CUdeviceptr address;
		for (int i = 2; i < 6; i++)
			printf("%d ", CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, 64));
		for (int i = 1; i < 5; i++)
			printf("%d ", launch_add(obtain(module, "add"), 1, word, NULL));
	} else {
		return 2;
	}
	printf("done\n");
	return status;
}
