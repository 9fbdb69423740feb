/* Captures and graphs, and the errors that they ask for: `graph SCENARIO`. */
#include "host.h"

static CUfunction step, add;
static CUdeviceptr word;

static void set_word(uint32_t value)
{
	to_device(word, &value, sizeof(value));
}

static uint32_t get_word(void)
{
	uint32_t value;

	to_host(&value, word, sizeof(value));
	return value;
}

static CUresult launch_step(uint32_t x, CUstream stream)
{
	void *parameters[] = {&word, &x};

	return launch(step, 1, 1, stream, parameters);
}

static CUresult begin_capture(CUstream stream, int mode)
{
	return CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, mode);
}

static CUresult end_capture(CUstream stream, CUgraph *graph)
{
	return CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, graph);
}

static CUgraphExec instantiate(CUgraph graph)
{
	CUgraphExec exec;

	CHECK(CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))(&exec, graph, 0));
	return exec;
}

static CUresult launch_graph(CUgraphExec exec, CUstream stream)
{
	return CALL(cuGraphLaunch, (CUgraphExec, CUstream))(exec, stream);
}

static CUevent make_event(void)
{
	CUevent event;

	CHECK(CALL(cuEventCreate, (CUevent *, unsigned))(&event, 2));
	return event;
}

static CUresult record(CUevent event, CUstream stream)
{
	return CALL(cuEventRecord, (CUevent, CUstream))(event, stream);
}

static CUresult wait_event(CUstream stream, CUevent event)
{
	return CALL(cuStreamWaitEvent, (CUstream, CUevent, unsigned))(stream, event, 0);
}

static int status_of(CUstream stream)
{
	int status;

	CHECK(CALL(cuStreamIsCapturing, (CUstream, int *))(stream, &status));
	return status;
}

/* A chain with a fork and a join, replayed: two branches add, which no order between them changes. */
static void replay(void)
{
	CUstream first = make_stream(0), second = make_stream(0);
	CUevent forked = make_event(), joined = make_event();
	uint32_t two = 2, five = 5;
	void *of_two[] = {&word, &two}, *of_five[] = {&word, &five};
	CUgraph graph;
	size_t count = 0;

	set_word(1);
	CHECK(begin_capture(first, 0));
	EXPECT(1, status_of(first));
	CHECK(launch_step(4, first));
	CHECK(record(forked, first));
	CHECK(wait_event(second, forked));
	EXPECT(1, status_of(second));
	CHECK(launch(add, 2, 32, second, of_two));
	CHECK(launch(add, 1, 1, first, of_five));
	CHECK(record(joined, second));
	CHECK(wait_event(first, joined));
	CHECK(launch_step(1, first));
	CHECK(end_capture(first, &graph));
	EXPECT(0, status_of(first));
	EXPECT(0, status_of(second));
	CHECK(CALL(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))(graph, NULL, &count));
	EXPECT(4, count);
	EXPECT(1, get_word());
	CUgraphExec exec = instantiate(graph);
	uint32_t expected = 1;
	for (int i = 0; i < 5; i++) {
		CHECK(launch_graph(exec, i % 2 ? first : second));
		expected = ((expected * 3 + 4) + 64 * 2 + 5) * 3 + 1;
	}
	CHECK(CALL(cuCtxSynchronize, (void))());
	EXPECT(expected, get_word());
	CHECK(CALL(cuGraphDestroy, (CUgraph))(graph));
	CHECK(launch_graph(exec, first));
	CHECK(CALL(cuGraphExecDestroy, (CUgraphExec))(exec));
	CHECK(synchronize(first));
	EXPECT(((expected * 3 + 4) + 64 * 2 + 5) * 3 + 1, get_word());
}

/* Built by hand, read back, changed. */
static void by_hand(void)
{
	CUgraph graph, copy;
	CUgraphNode nodes[3], found;
	uint32_t x = 3, y = 10;
	void *of_x[] = {&word, &x}, *of_y[] = {&word, &y};
	CUDA_KERNEL_NODE_PARAMS kernel = {.func = step, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
					  .blockDimY = 1, .blockDimZ = 1, .kernelParams = of_x};
	CUDA_MEMSET_NODE_PARAMS fill = {word, 4, 2, 4, 1, 1};
	CUDA_KERNEL_NODE_PARAMS read;
	CUresult (*add_kernel)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *) =
		function_named("cuGraphAddKernelNode_v2");

	CHECK(CALL(cuGraphCreate, (CUgraph *, unsigned))(&graph, 0));
	CHECK(CALL(cuGraphAddMemsetNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
					  const CUDA_MEMSET_NODE_PARAMS *, CUcontext))(&nodes[0], graph, NULL, 0, &fill,
										       NULL));
	CHECK(add_kernel(&nodes[1], graph, &nodes[0], 1, &kernel));
	CHECK(add_kernel(&nodes[2], graph, &nodes[1], 1, &kernel));
	CUgraphExec exec = instantiate(graph);
	CHECK(launch_graph(exec, NULL));
	EXPECT((2 * 3 + 3) * 3 + 3, get_word());

	CHECK(CALL(cuGraphKernelNodeGetParams_v2, (CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))(nodes[2], &read));
	EXPECT(3, *(uint32_t *)read.kernelParams[1]);
	EXPECT((intptr_t)step, (intptr_t)read.func);
	CUDA_KERNEL_NODE_PARAMS changed = read;
	void *pointers[] = {read.kernelParams[0], &y};
	changed.kernelParams = pointers;
	CHECK(CALL(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))(
		exec, nodes[2], &changed));
	CHECK(launch_graph(exec, NULL));
	EXPECT((2 * 3 + 3) * 3 + 10, get_word());

	CHECK(CALL(cuGraphClone, (CUgraph *, CUgraph))(&copy, graph));
	CHECK(CALL(cuGraphNodeFindInClone, (CUgraphNode *, CUgraphNode, CUgraph))(&found, nodes[1], copy));
	kernel.kernelParams = of_y;
	CHECK(CALL(cuGraphKernelNodeSetParams_v2, (CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))(found, &kernel));
	CUgraphExecUpdateResultInfo info;
	CHECK(CALL(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *))(exec, copy, &info));
	EXPECT(0, info.result);
	CHECK(launch_graph(exec, NULL));
	EXPECT((2 * 3 + 10) * 3 + 3, get_word());

	CHECK(add_kernel(&found, copy, NULL, 0, &kernel));
	EXPECT(910, CALL(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *))(exec, copy,
												      &info));
	EXPECT(2, info.result);
	CUgraphNode back[2] = {nodes[2], nodes[0]};
	CHECK(CALL(cuGraphAddDependencies, (CUgraph, const CUgraphNode *, const CUgraphNode *, size_t))(
		graph, &back[0], &back[1], 1));
	EXPECT(1, CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))(&exec, graph, 0));
}

/* Each misuse, the error that it gives, and what becomes of the capture. */
static void errors(void)
{
	CUstream stream = make_stream(0), other = make_stream(0), apart = make_stream(1);
	CUevent event = make_event(), outside = make_event();
	CUdeviceptr address;
	CUgraph graph;
	int status, mode;

	EXPECT(900, begin_capture(NULL, 0));
	EXPECT(401, end_capture(stream, &graph));

	CHECK(begin_capture(stream, 0));
	EXPECT(401, begin_capture(stream, 0));
	EXPECT(900, CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, 64));
	EXPECT(2, status_of(stream));
	EXPECT(901, launch_step(1, stream));
	EXPECT(901, end_capture(stream, &graph));
	EXPECT(0, (intptr_t)graph);

	CHECK(begin_capture(stream, 0));
	EXPECT(900, CALL(cuCtxSynchronize, (void))());
	EXPECT(901, end_capture(stream, &graph));

	CHECK(begin_capture(stream, 2));
	EXPECT(900, synchronize(stream));
	EXPECT(901, end_capture(stream, &graph));

	/* The default stream would have to wait for it. */
	CHECK(begin_capture(stream, 2));
	EXPECT(906, CALL(cuStreamIsCapturing, (CUstream, int *))(NULL, &status));
	EXPECT(1, status_of(stream));
	EXPECT(906, launch_step(1, NULL));
	EXPECT(901, end_capture(stream, &graph));
	CHECK(begin_capture(apart, 2));
	CHECK(launch_step(1, NULL));
	CHECK(end_capture(apart, &graph));

	/* Two captures, and work outside, do not meet. */
	CHECK(begin_capture(stream, 2));
	CHECK(begin_capture(other, 2));
	CHECK(record(event, stream));
	EXPECT(902, wait_event(other, event));
	EXPECT(901, end_capture(stream, &graph));
	EXPECT(901, end_capture(other, &graph));
	CHECK(record(outside, other));
	CHECK(begin_capture(stream, 2));
	EXPECT(905, wait_event(stream, outside));
	EXPECT(901, end_capture(stream, &graph));

	/* What was forked is joined, and ended where it began. */
	CHECK(begin_capture(stream, 2));
	CHECK(record(event, stream));
	CHECK(wait_event(other, event));
	CHECK(launch_step(1, other));
	EXPECT(904, end_capture(stream, &graph));
	EXPECT(0, status_of(other));
	CHECK(begin_capture(stream, 2));
	CHECK(record(event, stream));
	CHECK(wait_event(other, event));
	EXPECT(903, end_capture(other, &graph));
	EXPECT(901, end_capture(stream, &graph));

	CHECK(begin_capture(stream, 2));
	CHECK(record(event, stream));
	EXPECT(907, CALL(cuEventQuery, (CUevent))(event));
	EXPECT(901, end_capture(stream, &graph));

	/* A thread that says that it knows what it does. */
	CHECK(begin_capture(apart, 0));
	mode = 2;
	CHECK(CALL(cuThreadExchangeStreamCaptureMode, (int *))(&mode));
	EXPECT(0, mode);
	CHECK(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, 64));
	CHECK(CALL(cuThreadExchangeStreamCaptureMode, (int *))(&mode));
	EXPECT(2, mode);
	CHECK(end_capture(apart, &graph));
}

static CUresult from_another_thread[2];
static CUstream shared_stream;
static CUcontext shared_context;

static void *elsewhere(void *argument)
{
	CUdeviceptr address;
	CUgraph graph;

	(void)argument;
	CHECK(CALL(cuCtxSetCurrent, (CUcontext))(shared_context));
	from_another_thread[0] = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, 64);
	from_another_thread[1] = end_capture(shared_stream, &graph);
	return NULL;
}

/* What other threads may do: mode, then what an allocation, and ending it, give there. */
static void threads(CUcontext context)
{
	static const int expected[3][3] = {{900, 901, 401}, {0, 908, 401}, {0, 0, 401}};
	pthread_t thread;
	CUgraph graph;

	shared_context = context;
	shared_stream = make_stream(1);
	for (int mode = 0; mode < 3; mode++) {
		CHECK(begin_capture(shared_stream, mode));
		pthread_create(&thread, NULL, elsewhere, NULL);
		pthread_join(thread, NULL);
		EXPECT(expected[mode][0], from_another_thread[0]);
		EXPECT(expected[mode][1], from_another_thread[1]);
		EXPECT(expected[mode][2], end_capture(shared_stream, &graph));
	}
}

int main(int argc, char **argv)
{
	const char *scenario = argc > 1 ? argv[1] : "replay";
	CUcontext context = begin();
	CUmodule module = load();

	step = obtain(module, "step");
	add = obtain(module, "add");
	word = allocate(4);
	if (!strcmp(scenario, "replay"))
		replay();
	else if (!strcmp(scenario, "by-hand"))
		by_hand();
	else if (!strcmp(scenario, "errors"))
		errors();
	else if (!strcmp(scenario, "threads"))
		threads(context);
	else
		return 2;
	printf("done\n");
	return 0;
}
