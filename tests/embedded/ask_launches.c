/* What a driver says of launches: shapes, shared memory, parameters, what is null; what waits for a kernel that runs. */
#include "asking.h"

static CUfunction add;
static CUdeviceptr word;
static uint32_t one = 1;
static void *parameters[] = {&word, &one};

static CUresult launch_shape(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
			     unsigned bz, unsigned shared, void **given)
{
	return cuLaunchKernel(function, x, y, z, bx, by, bz, shared, NULL, given, NULL);
}

static void begin_launches(void)
{
	add = obtain(module, "add");
	word = allocate(64);
	to_device(word, &(uint32_t){0}, 4);
}

static void shapes(void)
{
	CUfunction limited = obtain(module, "limited"), required = obtain(module, "required");
	CUfunction empty = obtain(module, "empty");

	begin_launches();
	ASK("grid 0", launch_shape(add, 0, 1, 1, 1, 1, 1, 0, parameters));
	ASK("grid 1 0 1", launch_shape(add, 1, 0, 1, 1, 1, 1, 0, parameters));
	ASK("block 0", launch_shape(add, 1, 1, 1, 0, 1, 1, 0, parameters));
	ASK("1024 threads", launch_shape(add, 1, 1, 1, 1024, 1, 1, 0, parameters));
	ASK("1025 threads", launch_shape(add, 1, 1, 1, 1025, 1, 1, 0, parameters));
	ASK("64x32 threads", launch_shape(add, 1, 1, 1, 64, 32, 1, 0, parameters));
	ASK("block z 64", launch_shape(add, 1, 1, 1, 1, 1, 64, 0, parameters));
	ASK("block z 65", launch_shape(add, 1, 1, 1, 1, 1, 65, 0, parameters));
	ASK("grid y 65536", launch_shape(empty, 1, 65536, 1, 1, 1, 1, 0, NULL));
	ASK("grid z 65536", launch_shape(empty, 1, 1, 65536, 1, 1, 1, 0, NULL));
	ASK("grid x 2^31", launch_shape(empty, 0x80000000u, 1, 1, 1, 1, 1, 0, NULL));
	ASK("maxntid 64, 64", launch_shape(limited, 1, 1, 1, 64, 1, 1, 0, NULL));
	ASK("maxntid 64, 65", launch_shape(limited, 1, 1, 1, 65, 1, 1, 0, NULL));
	ASK("reqntid 32 2, 32 2", launch_shape(required, 1, 1, 1, 32, 2, 1, 0, NULL));
	ASK("reqntid 32 2, 64", launch_shape(required, 1, 1, 1, 64, 1, 1, 0, NULL));
	ASK("reqntid 32 2, 32", launch_shape(required, 1, 1, 1, 32, 1, 1, 0, NULL));
	ASK("reqntid 32 2, 128", launch_shape(required, 1, 1, 1, 128, 1, 1, 0, NULL));
	ASK("cooperative too many",
	    cuLaunchCooperativeKernel(add, 100000, 1, 1, 32, 1, 1, 0, NULL, parameters));
	ASK("cooperative that fits", cuLaunchCooperativeKernel(add, 4, 1, 1, 32, 1, 1, 0, NULL, parameters));
	ASK("cooperative 0", cuLaunchCooperativeKernel(add, 0, 1, 1, 32, 1, 1, 0, NULL, parameters));
	ASK("cooperative 1025 threads", cuLaunchCooperativeKernel(add, 1, 1, 1, 1025, 1, 1, 0, NULL, parameters));
	ASK("null function", launch_shape(NULL, 1, 1, 1, 1, 1, 1, 0, parameters));
	ASK("synchronize", cuCtxSynchronize());
}

static void shared_memory(void)
{
	CUfunction sharing = obtain(module, "sharing");
	int value = -1;

	begin_launches();
	ASK("48 KiB", launch_shape(add, 1, 1, 1, 1, 1, 1, 49152, parameters));
	ASK("48 KiB and a byte", launch_shape(add, 1, 1, 1, 1, 1, 1, 49153, parameters));
	ASK("48 KiB beside 1 KiB", launch_shape(sharing, 1, 1, 1, 1, 1, 1, 49152, parameters));
	ASK("47 KiB beside 1 KiB", launch_shape(sharing, 1, 1, 1, 1, 1, 1, 48128, parameters));
	question("attribute of 1 KiB");
	answer(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, sharing));
	answer(value);
	answer(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, sharing));
	answer(value);
	answered();
	question("attribute without");
	answer(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, add));
	answer(value);
	answered();
	question("set attribute");
	answer(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448));
	answer(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232449));
	answer(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -1));
	answer(cuFuncSetAttribute(sharing, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448));
	answer(cuFuncSetAttribute(sharing, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 231424));
	answer(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_NUM_REGS, 32));
	answer(cuFuncSetAttribute(add, 99, 32));
	answer(cuFuncSetAttribute(add, 9, 101));
	answered();
	ASK("227 KiB with the attribute", launch_shape(add, 1, 1, 1, 1, 1, 1, 232448, parameters));
	ASK("227 KiB and a byte", launch_shape(add, 1, 1, 1, 1, 1, 1, 232449, parameters));
	question("occupancy");
	answer(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, add, 1024, 0));
	answer(value);
	answer(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, add, 32, 0));
	answer(value);
	answer(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, add, 32, 65536));
	answer(value);
	answer(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, add, 1025, 0));
	answer(value);
	answer(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, add, 0, 0));
	answer(cuOccupancyMaxActiveBlocksPerMultiprocessor(NULL, add, 32, 0));
	answered();
	ASK("synchronize", cuCtxSynchronize());
	question("attributes");
	for (int attribute = 0; attribute < 2; attribute++) {
		answer(cuFuncGetAttribute(&value, attribute, sharing));
		answer(value);
	}
	answer(cuFuncGetAttribute(&value, 99, sharing));
	answer(cuFuncGetAttribute(NULL, 0, sharing));
	answered();
}

static CUresult launch_extra(CUfunction function, void **extra, void **given)
{
	return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, given, extra);
}

static void given_parameters(void)
{
	uint8_t buffer[64] = {0};
	size_t size;
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
			 CU_LAUNCH_PARAM_END};
	CUfunction empty = obtain(module, "empty"), ignoring = obtain(module, "ignoring");

	begin_launches();
	memcpy(buffer, &word, 8);
	buffer[8] = 1;
	for (size = 0; size <= 24; size++) {
		question("buffer of %zu for 12", size);
		answer(launch_extra(ignoring, extra, NULL));
		answered();
	}
	ASK("synchronize", cuCtxSynchronize());
	question("buffer for no parameters");
	for (size = 0; size <= 8; size += 4)
		answer(launch_extra(empty, extra, NULL));
	answered();
	size = 12;
	ASK("both", launch_extra(add, extra, parameters));
	ASK("both for no parameters", launch_extra(empty, extra, parameters));
	ASK("neither", launch_extra(ignoring, NULL, NULL));
	ASK("neither for no parameters", launch_extra(empty, NULL, NULL));
	ASK("kernelParams for no parameters", launch_extra(empty, NULL, parameters));
	ASK("extra empty", launch_extra(ignoring, (void *[]){CU_LAUNCH_PARAM_END}, NULL));
	ASK("extra without its size",
	    launch_extra(ignoring, (void *[]){CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_END}, NULL));
	ASK("extra without its pointer",
	    launch_extra(ignoring, (void *[]){CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END}, NULL));
	ASK("extra of an unknown key", launch_extra(ignoring, (void *[]){(void *)9, buffer, CU_LAUNCH_PARAM_END}, NULL));
	ASK("synchronize at the end", cuCtxSynchronize());
}

static void by_config(void)
{
	CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};
	CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};

	begin_launches();
	ASK("plain", cuLaunchKernelEx(&config, add, parameters, NULL));
	ASK("no config", cuLaunchKernelEx(NULL, add, parameters, NULL));
	config.gridDimX = 0;
	ASK("grid 0", cuLaunchKernelEx(&config, add, parameters, NULL));
	config.gridDimX = 1;
	config.attrs = &attribute;
	config.numAttrs = 1;
	ASK("cooperative", cuLaunchKernelEx(&config, add, parameters, NULL));
	config.gridDimX = 100000;
	ASK("cooperative too many", cuLaunchKernelEx(&config, add, parameters, NULL));
	config.gridDimX = 1;
	attribute.id = 77;
	ASK("unknown attribute", cuLaunchKernelEx(&config, add, parameters, NULL));
	attribute.id = 0;
	ASK("attribute that is ignored", cuLaunchKernelEx(&config, add, parameters, NULL));
	ASK("synchronize", cuCtxSynchronize());
}

/* --- while a kernel runs: it is let go by another thread, some time later --- */

static volatile uint32_t *flag;
static CUstream busy, idle;

static void *let_go(void *data)
{
	(void)data;
	usleep(60000);
	*flag = 1;
	return NULL;
}

static pthread_t keep_busy(CUmodule of)
{
	CUdeviceptr address = (uintptr_t)flag;
	void *spin_parameters[] = {&address};
	pthread_t thread;

	*flag = 0;
	CHECK(launch(obtain(of, "spin"), 1, 1, busy, spin_parameters));
	pthread_create(&thread, NULL, let_go, NULL);
	return thread;
}

/* The call's answer, and whether it came back only when the kernel had been let go. */
#define WHILE_BUSY(name, of, call)                                                                                     \
	do {                                                                                                           \
		question("%s", name);                                                                                  \
		pthread_t busy_thread = keep_busy(of);                                                                 \
		answer(call);                                                                                          \
		answer(*flag);                                                                                         \
		pthread_join(busy_thread, NULL);                                                                       \
		answer(cuCtxSynchronize());                                                                            \
		answered();                                                                                            \
	} while (0)

static void while_busy(void)
{
	CUmodule extra = load(), running = load();
	CUdeviceptr spare = allocate(64), fresh;
	CUevent begun, ended;
	CUstream doomed = make_stream(1);
	uint32_t found;
	void *pinned, *memory;
	float milliseconds;

	begin_launches();
	CHECK(cuMemHostAlloc(&pinned, 64, 0));
	CHECK(cuMemHostAlloc(&memory, 64, 0));
	flag = memory;
	busy = make_stream(1);
	idle = make_stream(1);
	CHECK(cuEventCreate(&begun, 0));
	CHECK(cuEventCreate(&ended, 0));
	/* Whatever is loaded lazily is loaded before a kernel runs. */
	*flag = 1;
	pthread_join(keep_busy(module), NULL);
	CHECK(cuCtxSynchronize());
	CHECK(launch(add, 1, 1, idle, parameters));
	CHECK(cuCtxSynchronize());

	WHILE_BUSY("stream query", module, cuStreamQuery(busy));
	WHILE_BUSY("stream query of another", module, cuStreamQuery(idle));
	WHILE_BUSY("stream query of the default stream", module, cuStreamQuery(NULL));
	WHILE_BUSY("stream synchronize of another", module, cuStreamSynchronize(idle));
	WHILE_BUSY("stream synchronize", module, cuStreamSynchronize(busy));
	WHILE_BUSY("context synchronize", module, cuCtxSynchronize());
	WHILE_BUSY("launch on another", module, launch(add, 1, 1, idle, parameters));
	WHILE_BUSY("launch on the default stream", module, launch(add, 1, 1, NULL, parameters));
	WHILE_BUSY("alloc", module, cuMemAlloc_v2(&fresh, 64));
	WHILE_BUSY("free", module, cuMemFree_v2(spare));
	WHILE_BUSY("host free", module, cuMemFreeHost(pinned));
	WHILE_BUSY("copy to host", module, cuMemcpyDtoH_v2(&found, word, 4));
	WHILE_BUSY("copy to device", module, cuMemcpyHtoD_v2(word, &one, 4));
	WHILE_BUSY("fill", module, cuMemsetD32_v2(word, 0, 1));
	WHILE_BUSY("asynchronous copy to pageable memory", module, cuMemcpyDtoHAsync_v2(&found, word, 4, idle));
	WHILE_BUSY("asynchronous copy from pageable memory", module, cuMemcpyHtoDAsync_v2(word, &one, 4, idle));
	WHILE_BUSY("asynchronous copy behind it from pageable memory", module,
		   cuMemcpyHtoDAsync_v2(word, &one, 4, busy));
	WHILE_BUSY("get a function's name", module, cuFuncGetName(&(const char *){NULL}, add));
	WHILE_BUSY("stream create", module, cuStreamCreate(&(CUstream){NULL}, 1));
	WHILE_BUSY("stream destroy of another", module, cuStreamDestroy_v2(doomed));
	WHILE_BUSY("unload of another module", module, cuModuleUnload(extra));
	WHILE_BUSY("unload of its module", running, cuModuleUnload(running));

	question("event");
	pthread_t thread = keep_busy(module);
	answer(cuEventRecord(begun, busy));
	answer(cuEventRecord(ended, busy));
	answer(cuEventQuery(begun));
	answer(cuEventElapsedTime(&milliseconds, begun, ended));
	answer(*flag);
	answer(cuStreamWaitEvent(idle, ended, 0));
	answer(cuStreamQuery(idle));
	answer(cuEventDestroy_v2(begun));
	answer(*flag);
	answer(cuEventSynchronize(ended));
	answer(*flag);
	pthread_join(thread, NULL);
	answered();

	question("stream destroyed");
	thread = keep_busy(module);
	answer(cuStreamDestroy_v2(busy));
	answer(*flag);
	pthread_join(thread, NULL);
	answer(cuCtxSynchronize());
	answered();
}

/* --- host functions that call the driver --- */

static CUresult from_within[8];

static void call_driver(void *data)
{
	size_t a, b;
	CUdeviceptr p;

	(void)data;
	from_within[0] = cuMemAlloc_v2(&p, 64);
	from_within[1] = cuStreamQuery(NULL);
	from_within[2] = cuMemGetInfo_v2(&a, &b);
	from_within[3] = cuEventQuery(NULL);
	from_within[4] = cuCtxGetCurrent(&(CUcontext){NULL});
	from_within[5] = cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

static void call_back(CUstream stream, CUresult status, void *data)
{
	(void)stream;
	from_within[6] = status;
	call_driver(data);
}

static void from_host_functions(void)
{
	CUstream stream = make_stream(1);

	begin_launches();
	question("from a host function");
	answer(cuLaunchHostFunc(stream, call_driver, NULL));
	answer(cuStreamSynchronize(stream));
	for (int i = 0; i < 6; i++)
		answer(from_within[i]);
	answered();
	question("from a callback");
	from_within[6] = -1;
	answer(cuStreamAddCallback(stream, call_back, NULL, 0));
	answer(cuStreamSynchronize(stream));
	for (int i = 0; i < 7; i++)
		answer(from_within[i]);
	answered();
	ASK("host function null", cuLaunchHostFunc(stream, NULL, NULL));
	ASK("callback null", cuStreamAddCallback(stream, NULL, NULL, 0));
	ASK("callback flags", cuStreamAddCallback(stream, call_back, NULL, 1));
	ASK("synchronize", cuCtxSynchronize());
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {
		{"shapes", shapes},	  {"shared-memory", shared_memory}, {"parameters", given_parameters},
		{"by-config", by_config}, {"while-busy", while_busy},	    {"from-host-functions", from_host_functions},
	};

	return run_group(argc, argv, groups, sizeof(groups) / sizeof(groups[0]));
}
