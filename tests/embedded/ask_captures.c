/* What a driver says of every call while a stream is being captured, by mode and by thread. */
#include "asking.h"

static CUfunction add;
static CUdeviceptr word, spare;
static CUstream captured, other, blocking;
static CUevent outside, timed, fresh, inside;
static CUgraphExec exec;
static CUmodule extra_module;
static CUlibrary library, extra_library;
static CUkernel kernel;
static void *pinned, *spare_pinned;
static uint32_t pageable[16];

static CUresult launch_on(CUstream stream)
{
	uint32_t x = 1;
	void *parameters[] = {&word, &x};

	return launch(add, 1, 1, stream, parameters);
}

static void nothing(void *data)
{
	(void)data;
}

static void nothing_back(CUstream stream, CUresult status, void *data)
{
	(void)stream;
	(void)status;
	(void)data;
}

static CUresult load_library(CUlibrary *ret)
{
	return cuLibraryLoadData(ret, image, NULL, NULL, 0, NULL, NULL, 0);
}

#define CALL_OF(name, ...)                                                                                             \
	static CUresult name(void)                                                                                     \
	{                                                                                                              \
		__VA_ARGS__                                                                                            \
	}
CALL_OF(alloc, CUdeviceptr p; return cuMemAlloc_v2(&p, 64);)
CALL_OF(alloc_pitch, CUdeviceptr p; size_t pitch; return cuMemAllocPitch_v2(&p, &pitch, 64, 2, 4);)
CALL_OF(alloc_managed, CUdeviceptr p; return cuMemAllocManaged(&p, 64, 1);)
CALL_OF(alloc_async_other, CUdeviceptr p; return cuMemAllocAsync(&p, 64, other);)
CALL_OF(free_spare, return cuMemFree_v2(spare);)
CALL_OF(free_null, return cuMemFree_v2(0);)
CALL_OF(host_alloc, void *p; return cuMemHostAlloc(&p, 64, 0);)
CALL_OF(host_free, return cuMemFreeHost(spare_pinned);)
CALL_OF(host_register, return cuMemHostRegister_v2(pageable, sizeof(pageable), 0);)
CALL_OF(host_pointer, CUdeviceptr p; return cuMemHostGetDevicePointer_v2(&p, pinned, 0);)
CALL_OF(mem_info, size_t a, b; return cuMemGetInfo_v2(&a, &b);)
CALL_OF(address_range, CUdeviceptr p; size_t size; return cuMemGetAddressRange_v2(&p, &size, word);)
CALL_OF(pointer_type, unsigned type; return cuPointerGetAttribute(&type, 2, word);)
CALL_OF(copy_to_device, return cuMemcpyHtoD_v2(word, pageable, 4);)
CALL_OF(copy_to_host, return cuMemcpyDtoH_v2(pageable, word, 4);)
CALL_OF(copy_on_device, return cuMemcpyDtoD_v2(word, spare, 4);)
CALL_OF(copy_pinned, return cuMemcpyHtoD_v2(word, pinned, 4);)
CALL_OF(copy_nothing, return cuMemcpyHtoD_v2(word, pageable, 0);)
CALL_OF(copy_async, return cuMemcpyHtoDAsync_v2(word, pinned, 4, captured);)
CALL_OF(copy_async_pageable, return cuMemcpyHtoDAsync_v2(word, pageable, 4, captured);)
CALL_OF(copy_async_to_pageable, return cuMemcpyDtoHAsync_v2(pageable, word, 4, captured);)
CALL_OF(copy_async_other, return cuMemcpyHtoDAsync_v2(word, pinned, 4, other);)
CALL_OF(copy_async_pageable_other, return cuMemcpyHtoDAsync_v2(word, pageable, 4, other);)
CALL_OF(copy_async_to_pageable_other, return cuMemcpyDtoHAsync_v2(pageable, word, 4, other);)
CALL_OF(copy_async_legacy, return cuMemcpyDtoDAsync_v2(word, spare, 4, NULL);)
CALL_OF(fill, return cuMemsetD32_v2(word, 1, 1);)
CALL_OF(fill_async, return cuMemsetD32Async(word, 1, 1, captured);)
CALL_OF(fill_async_other, return cuMemsetD32Async(word, 1, 1, other);)
CALL_OF(event_create, CUevent e; return cuEventCreate(&e, 0);)
CALL_OF(event_destroy, return cuEventDestroy_v2(fresh);)
CALL_OF(event_record, return cuEventRecord(fresh, captured);)
CALL_OF(event_record_other, return cuEventRecord(fresh, other);)
CALL_OF(event_record_legacy, return cuEventRecord(fresh, NULL);)
CALL_OF(event_query, return cuEventQuery(outside);)
CALL_OF(event_query_fresh, return cuEventQuery(fresh);)
CALL_OF(event_query_captured, return cuEventQuery(inside);)
CALL_OF(event_sync, return cuEventSynchronize(outside);)
CALL_OF(event_sync_fresh, return cuEventSynchronize(fresh);)
CALL_OF(event_sync_captured, return cuEventSynchronize(inside);)
CALL_OF(event_elapsed, float ms; return cuEventElapsedTime(&ms, outside, timed);)
CALL_OF(event_elapsed_captured, float ms; return cuEventElapsedTime(&ms, outside, inside);)
CALL_OF(wait_outside, return cuStreamWaitEvent(captured, outside, 0);)
CALL_OF(wait_fresh, return cuStreamWaitEvent(captured, fresh, 0);)
CALL_OF(wait_captured_other, return cuStreamWaitEvent(other, inside, 0);)
CALL_OF(wait_captured_legacy, return cuStreamWaitEvent(NULL, inside, 0);)
CALL_OF(wait_outside_legacy, return cuStreamWaitEvent(NULL, outside, 0);)
CALL_OF(stream_query, return cuStreamQuery(captured);)
CALL_OF(stream_query_other, return cuStreamQuery(other);)
CALL_OF(stream_query_legacy, return cuStreamQuery(NULL);)
CALL_OF(stream_sync, return cuStreamSynchronize(captured);)
CALL_OF(stream_sync_other, return cuStreamSynchronize(other);)
CALL_OF(stream_sync_legacy, return cuStreamSynchronize(NULL);)
CALL_OF(stream_create, CUstream s; return cuStreamCreate(&s, 1);)
CALL_OF(stream_destroy_other, CUstream s = other; other = NULL; return cuStreamDestroy_v2(s);)
CALL_OF(stream_flags, unsigned flags; return cuStreamGetFlags(captured, &flags);)
CALL_OF(stream_context, CUcontext c; return cuStreamGetCtx(captured, &c);)
CALL_OF(context_sync, return cuCtxSynchronize();)
CALL_OF(context_limit, size_t value; return cuCtxGetLimit(&value, 0);)
CALL_OF(context_set_limit, return cuCtxSetLimit(0, 2048);)
CALL_OF(context_pop_push, CUcontext c; cuCtxPopCurrent_v2(&c); return cuCtxPushCurrent_v2(c);)
CALL_OF(launch_captured, return launch_on(captured);)
CALL_OF(launch_other, return launch_on(other);)
CALL_OF(launch_legacy, return launch_on(NULL);)
CALL_OF(launch_blocking, return launch_on(blocking);)
CALL_OF(launch_per_thread, return launch_on(CU_STREAM_PER_THREAD);)
CALL_OF(launch_wrong, return launch(add, 0, 1, captured, NULL);)
CALL_OF(host_function, return cuLaunchHostFunc(captured, nothing, NULL);)
CALL_OF(host_function_other, return cuLaunchHostFunc(other, nothing, NULL);)
CALL_OF(callback, return cuStreamAddCallback(captured, nothing_back, NULL, 0);)
CALL_OF(callback_other, return cuStreamAddCallback(other, nothing_back, NULL, 0);)
CALL_OF(module_load, CUmodule m; return cuModuleLoadData(&m, image);)
CALL_OF(module_unload, return cuModuleUnload(extra_module);)
CALL_OF(module_function, CUfunction f; return cuModuleGetFunction(&f, module, "empty");)
CALL_OF(module_global, CUdeviceptr p; size_t size; return cuModuleGetGlobal_v2(&p, &size, module, "counter");)
CALL_OF(library_load, CUlibrary l; return load_library(&l);)
CALL_OF(library_unload, return cuLibraryUnload(extra_library);)
CALL_OF(library_kernel, CUkernel k; return cuLibraryGetKernel(&k, library, "empty");)
CALL_OF(library_global, CUdeviceptr p; size_t size; return cuLibraryGetGlobal(&p, &size, library, "counter");)
CALL_OF(kernel_function, CUfunction f; return cuKernelGetFunction(&f, kernel);)
CALL_OF(kernel_launch, return launch((CUfunction)(void *)kernel, 1, 1, captured, NULL);)
CALL_OF(function_attribute, int value; return cuFuncGetAttribute(&value, 4, add);)
CALL_OF(function_set, return cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536);)
CALL_OF(occupancy, int value; return cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, add, 32, 0);)
CALL_OF(begin_again, return cuStreamBeginCapture_v2(captured, 0);)
CALL_OF(begin_legacy, return cuStreamBeginCapture_v2(NULL, 2);)
CALL_OF(begin_other, CUresult code = cuStreamBeginCapture_v2(other, 0); CUgraph graph;
	return code ? code : cuStreamEndCapture(other, &graph);)
CALL_OF(end_other, CUgraph graph; return cuStreamEndCapture(other, &graph);)
CALL_OF(is_capturing_legacy, int status; return cuStreamIsCapturing(NULL, &status);)
CALL_OF(is_capturing_other, int status; return cuStreamIsCapturing(other, &status);)
CALL_OF(info_legacy, int status; uint64_t id; return cuStreamGetCaptureInfo_v2(NULL, &status, &id, NULL, NULL, NULL);)
CALL_OF(graph_create, CUgraph graph; return cuGraphCreate(&graph, 0);)
CALL_OF(graph_launch, return cuGraphLaunch(exec, captured);)
CALL_OF(graph_launch_other, return cuGraphLaunch(exec, other);)
CALL_OF(graph_launch_legacy, return cuGraphLaunch(exec, NULL);)
CALL_OF(graph_upload, return cuGraphUpload(exec, captured);)
CALL_OF(graph_upload_other, return cuGraphUpload(exec, other);)

#define ROW(name) {#name, name}
static const struct row {
	const char *name;
	CUresult (*call)(void);
} rows[] = {
	ROW(alloc), ROW(alloc_pitch), ROW(alloc_managed), ROW(alloc_async_other), ROW(free_spare), ROW(free_null),
	ROW(host_alloc), ROW(host_free), ROW(host_register), ROW(host_pointer), ROW(mem_info), ROW(address_range),
	ROW(pointer_type), ROW(copy_to_device), ROW(copy_to_host), ROW(copy_on_device), ROW(copy_pinned),
	ROW(copy_nothing), ROW(copy_async), ROW(copy_async_pageable), ROW(copy_async_to_pageable),
	ROW(copy_async_other), ROW(copy_async_pageable_other), ROW(copy_async_to_pageable_other),
	ROW(copy_async_legacy), ROW(fill), ROW(fill_async), ROW(fill_async_other), ROW(event_create),
	ROW(event_destroy), ROW(event_record), ROW(event_record_other), ROW(event_record_legacy), ROW(event_query),
	ROW(event_query_fresh), ROW(event_query_captured), ROW(event_sync), ROW(event_sync_fresh),
	ROW(event_sync_captured), ROW(event_elapsed), ROW(event_elapsed_captured), ROW(wait_outside), ROW(wait_fresh),
	ROW(wait_captured_other), ROW(wait_captured_legacy), ROW(wait_outside_legacy), ROW(stream_query),
	ROW(stream_query_other), ROW(stream_query_legacy), ROW(stream_sync), ROW(stream_sync_other),
	ROW(stream_sync_legacy), ROW(stream_create), ROW(stream_destroy_other), ROW(stream_flags), ROW(stream_context),
	ROW(context_sync), ROW(context_limit), ROW(context_set_limit), ROW(context_pop_push), ROW(launch_captured),
	ROW(launch_other), ROW(launch_legacy), ROW(launch_blocking), ROW(launch_per_thread), ROW(launch_wrong),
	ROW(host_function), ROW(host_function_other), ROW(callback), ROW(callback_other), ROW(module_load),
	ROW(module_unload), ROW(module_function), ROW(module_global), ROW(library_load), ROW(library_unload),
	ROW(library_kernel), ROW(library_global), ROW(kernel_function), ROW(kernel_launch), ROW(function_attribute),
	ROW(function_set), ROW(occupancy), ROW(begin_again), ROW(begin_legacy), ROW(begin_other), ROW(end_other),
	ROW(is_capturing_legacy), ROW(is_capturing_other), ROW(info_legacy), ROW(graph_create), ROW(graph_launch),
	ROW(graph_launch_other), ROW(graph_launch_legacy), ROW(graph_upload), ROW(graph_upload_other),
};

/* The capture's mode, the flags of its stream, who calls. */
struct setting {
	const char *name;
	int mode;
	unsigned flags;
	int thread_mode; /* of the other thread that calls, or -1: the capturing thread calls */
};

static CUevent make_event(void)
{
	CUevent event;

	CHECK(cuEventCreate(&event, 0));
	return event;
}

static void prepare(const struct setting *setting)
{
	CUgraph graph;

	captured = make_stream(setting->flags);
	other = make_stream(1);
	blocking = make_stream(0);
	outside = make_event();
	timed = make_event();
	fresh = make_event();
	inside = make_event();
	CHECK(cuEventRecord(outside, other));
	CHECK(cuEventRecord(timed, other));
	CHECK(cuCtxSynchronize());
	spare = allocate(64);
	CHECK(cuMemHostAlloc(&spare_pinned, 64, 0));
	if (exec)
		return;
	CHECK(cuMemHostAlloc(&pinned, 64, 0));
	CHECK(load_library(&library));
	CHECK(cuLibraryGetKernel(&kernel, library, "empty"));
	CHECK(cuStreamBeginCapture_v2(captured, 2));
	CHECK(launch_on(captured));
	CHECK(cuStreamEndCapture(captured, &graph));
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
}

static void clean_up(const struct row *row)
{
	int mode = 0;

	CHECK(cuThreadExchangeStreamCaptureMode(&mode));
	cuCtxSynchronize();
	if (row->call == host_register)
		cuMemHostUnregister(pageable);
	if (row->call != free_spare)
		cuMemFree_v2(spare);
	if (row->call != host_free)
		cuMemFreeHost(spare_pinned);
	cuStreamDestroy_v2(captured);
	cuStreamDestroy_v2(blocking);
	if (other)
		cuStreamDestroy_v2(other);
}

static void *call_elsewhere(void *argument)
{
	const void **what = argument;
	const struct row *row = what[0];
	const struct setting *setting = what[1];
	int mode = setting->thread_mode;

	CHECK(cuCtxSetCurrent(context));
	CHECK(cuThreadExchangeStreamCaptureMode(&mode));
	answer(row->call());
	return NULL;
}

/* Answers: the call, the capture's status, its end. */
static void ask_row(const struct row *row, const struct setting *setting)
{
	const void *what[] = {row, setting};
	pthread_t thread;
	CUgraph graph;
	int status = -1;

	prepare(setting);
	if (row->call == module_unload)
		extra_module = load();
	if (row->call == library_unload)
		CHECK(load_library(&extra_library));
	question("%s %s", setting->name, row->name);
	CHECK(cuStreamBeginCapture_v2(captured, setting->mode));
	CHECK(cuEventRecord(inside, captured));
	if (setting->thread_mode < 0) {
		answer(row->call());
	} else {
		pthread_create(&thread, NULL, call_elsewhere, what);
		pthread_join(thread, NULL);
	}
	cuStreamIsCapturing(captured, &status);
	answer(status);
	answer(cuStreamEndCapture(captured, &graph));
	answered();
	clean_up(row);
}

static void ask_rows(const struct setting *setting)
{
	add = obtain(module, "add");
	word = allocate(64);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		ask_row(&rows[i], setting);
}

static void global(void)
{
	ask_rows(&(struct setting){"global", 0, 1, -1});
}

static void thread_local_mode(void)
{
	ask_rows(&(struct setting){"thread-local", 1, 1, -1});
}

static void relaxed(void)
{
	ask_rows(&(struct setting){"relaxed", 2, 1, -1});
}

static void global_blocking(void)
{
	ask_rows(&(struct setting){"global-blocking", 0, 0, -1});
}

static void relaxed_blocking(void)
{
	ask_rows(&(struct setting){"relaxed-blocking", 2, 0, -1});
}

static void global_from_global(void)
{
	ask_rows(&(struct setting){"global-elsewhere", 0, 1, 0});
}

static void global_from_local(void)
{
	ask_rows(&(struct setting){"global-elsewhere-thread-local", 0, 1, 1});
}

static void global_from_relaxed(void)
{
	ask_rows(&(struct setting){"global-elsewhere-relaxed", 0, 1, 2});
}

static void local_from_global(void)
{
	ask_rows(&(struct setting){"thread-local-elsewhere", 1, 1, 0});
}

static void *end_elsewhere(void *argument)
{
	CUgraph graph;

	(void)argument;
	CHECK(cuCtxSetCurrent(context));
	answer(cuStreamEndCapture(captured, &graph));
	return NULL;
}

static void begin_and_record(int mode)
{
	CHECK(cuStreamBeginCapture_v2(captured, mode));
	CHECK(cuEventRecord(inside, captured));
}

/* Ends: by which thread, on which stream, with what left over. */
static void ends(void)
{
	static const struct setting setting = {"ends", 0, 1, -1};
	CUgraph graph;
	pthread_t thread;
	int mode, status;
	uint64_t id;
	size_t count;

	add = obtain(module, "add");
	word = allocate(64);
	prepare(&setting);
	for (int alloc_first = 0; alloc_first < 2; alloc_first++)
		for (mode = 0; mode < 3; mode++) {
			question("end elsewhere alloc %d mode %d", alloc_first, mode);
			answer(cuStreamBeginCapture_v2(captured, mode));
			if (alloc_first)
				answer(alloc());
			pthread_create(&thread, NULL, end_elsewhere, NULL);
			pthread_join(thread, NULL);
			answer(cuStreamIsCapturing(captured, &status));
			answer(status);
			answer(cuStreamEndCapture(captured, &graph));
			answer(cuStreamEndCapture(captured, &graph));
			answered();
		}

	question("unjoined");
	begin_and_record(2);
	answer(cuStreamWaitEvent(other, inside, 0));
	answer(launch_on(other));
	answer(cuStreamEndCapture(captured, &graph));
	answer(cuStreamIsCapturing(other, &status));
	answer(status);
	answered();

	question("joined without work is unjoined or not");
	begin_and_record(2);
	answer(cuStreamWaitEvent(other, inside, 0));
	answer(cuStreamEndCapture(captured, &graph));
	answered();

	question("end on a joined stream");
	begin_and_record(2);
	answer(cuStreamWaitEvent(other, inside, 0));
	answer(cuStreamEndCapture(other, &graph));
	answer(cuStreamIsCapturing(captured, &status));
	answer(status);
	answer(cuStreamEndCapture(captured, &graph));
	answered();

	question("two captures that meet");
	begin_and_record(2);
	answer(cuStreamBeginCapture_v2(other, 2));
	answer(cuStreamWaitEvent(other, inside, 0));
	answer(cuStreamEndCapture(captured, &graph));
	answer(cuStreamEndCapture(other, &graph));
	answered();

	question("an event of an ended capture");
	begin_and_record(2);
	answer(cuStreamEndCapture(captured, &graph));
	answer(cuEventQuery(inside));
	answer(cuEventSynchronize(inside));
	answer(cuStreamWaitEvent(other, inside, 0));
	answer(cuStreamBeginCapture_v2(other, 2));
	answer(cuStreamWaitEvent(other, inside, 0));
	answer(cuStreamEndCapture(other, &graph));
	answer(cuEventRecord(inside, captured));
	answer(cuEventSynchronize(inside));
	answered();

	question("calls after it is invalid");
	begin_and_record(0);
	answer(alloc());
	answer(launch_on(captured));
	answer(cuEventRecord(fresh, captured));
	answer(cuStreamWaitEvent(other, inside, 0));
	answer(cuMemsetD32Async(word, 1, 1, captured));
	answer(cuStreamQuery(captured));
	answer(alloc());
	answer(cuStreamBeginCapture_v2(captured, 0));
	answer(cuStreamGetCaptureInfo_v2(captured, &status, &id, NULL, NULL, &count));
	answer(status);
	answer(cuStreamEndCapture(captured, &graph));
	answer(graph != NULL);
	answered();

	question("a stream destroyed while captured");
	begin_and_record(0);
	answer(cuStreamDestroy_v2(captured));
	answer(alloc());
	captured = make_stream(1);
	answered();

	question("capture info");
	begin_and_record(2);
	answer(launch_on(captured));
	answer(launch_on(captured));
	answer(cuStreamGetCaptureInfo_v2(captured, &status, &id, &graph, NULL, &count));
	answer(status);
	answer((long long)count);
	answer(cuStreamGetCaptureInfo_v2(other, &status, &id, NULL, NULL, NULL));
	answer(status);
	answer(cuStreamIsCapturing(captured, NULL));
	answer(cuStreamEndCapture(captured, NULL));
	answer(cuStreamIsCapturing(captured, &status));
	answer(status);
	cuStreamEndCapture(captured, &graph);
	answered();

	question("wrong modes");
	answer(cuStreamBeginCapture_v2(captured, 3));
	answer(cuStreamBeginCapture_v2(captured, -1));
	mode = 3;
	answer(cuThreadExchangeStreamCaptureMode(&mode));
	mode = 1;
	answer(cuThreadExchangeStreamCaptureMode(&mode));
	answer(mode);
	answer(cuThreadExchangeStreamCaptureMode(&mode));
	answer(mode);
	answered();

	question("begin on the default streams");
	answer(cuStreamBeginCapture_v2(NULL, 2));
	answer(cuStreamBeginCapture_v2(CU_STREAM_LEGACY, 2));
	answer(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, 2));
	answer(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
	answered();

	question("modes exchanged within a capture");
	begin_and_record(0);
	mode = 2;
	answer(cuThreadExchangeStreamCaptureMode(&mode));
	answer(mode);
	answer(alloc());
	answer(cuEventQuery(outside));
	answer(cuThreadExchangeStreamCaptureMode(&mode));
	answer(mode);
	answer(cuStreamEndCapture(captured, &graph));
	begin_and_record(2);
	mode = 1;
	answer(cuThreadExchangeStreamCaptureMode(&mode));
	answer(alloc());
	answer(cuStreamEndCapture(captured, &graph));
	mode = 0;
	answer(cuThreadExchangeStreamCaptureMode(&mode));
	answered();

	question("memory allocated and freed by a captured stream");
	CUdeviceptr by_stream;
	begin_and_record(2);
	answer(cuMemAllocAsync(&by_stream, 64, captured));
	answer(cuMemFreeAsync(by_stream, captured));
	answer(cuStreamEndCapture(captured, &graph));
	answered();
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"global", global},
		{"thread-local", thread_local_mode},
		{"relaxed", relaxed},
		{"global-blocking", global_blocking},
		{"relaxed-blocking", relaxed_blocking},
		{"global-elsewhere", global_from_global},
		{"global-elsewhere-thread-local", global_from_local},
		{"global-elsewhere-relaxed", global_from_relaxed},
		{"thread-local-elsewhere", local_from_global},
		{"ends", ends},
	};

	return run_group(argc, argv, groups, sizeof(groups) / sizeof(groups[0]));
}
