/* Scenarios of captures and graphs: what the driver refuses meanwhile, and what the graphs compute. */
#include "host.h"

static void *instantiate(void *graph)
{
	void *exec = NULL;

	CHECK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

/* Each mode: what is refused meanwhile, what it does to the capture, and what the graph then computes. */
void capture(void)
{
	for (int mode = 0; mode < 3; mode++) {
		void *graph = NULL;
		printf("mode %d\n", mode);
		CHECK(count(function, 1, 32, stream));
		TELL(cu.StreamBeginCapture_v2(stream, mode));
		for (int i = 0; i < 3; i++)
			TELL(count(function, 2, 32, stream));
		TELL(cu.StreamEndCapture(stream, &graph));
		CHECK(cu.StreamSynchronize(stream));
		say_counter();
		void *exec = instantiate(graph);
		for (int i = 0; i < 5; i++) {
			TELL(cu.GraphLaunch(exec, stream));
			CHECK(count(function, 1, 32, stream));
		}
		CHECK(cu.StreamSynchronize(stream));
		say_counter();
		TELL(cu.GraphExecDestroy(exec));
		TELL(cu.GraphDestroy(graph));
	}
}

static CUstream captured;
static CUevent event;

static CUresult unsafe_call(int which)
{
	CUdeviceptr memory;
	CUmodule loaded;
	CUresult result;
	int number;

	switch (which) {
	case 0:
		result = cu.MemAlloc_v2(&memory, 64);
		if (!result)
			cu.MemFree_v2(memory);
		return result;
	case 1:
		return cu.CtxSynchronize();
	case 2:
		return cu.StreamSynchronize(captured);
	case 3:
		return cu.StreamQuery(captured);
	case 4:
		return cu.EventQuery(event);
	case 5:
		return count(function, 1, 32, NULL);
	case 6:
		return cu.StreamIsCapturing(NULL, &number);
	case 7:
		return cu.StreamSynchronize(NULL);
	case 8:
		result = cu.ModuleLoadData(&loaded, image);
		if (!result)
			cu.ModuleUnload(loaded);
		return result;
	case 9:
		return cu.MemcpyDtoH_v2(&number, flag, sizeof(number));
	case 10:
		return count(function, 1, 32, CU_STREAM_PER_THREAD);
	case 11:
		return cu.StreamBeginCapture_v2(captured, 0);
	case 12:
		return cu.EventSynchronize(event);
	default:
		return count(function, 1, 5000, captured);
	}
}

/* What must not be done while a stream is captured, in each mode, by streams that wait for the legacy one or do not. */
void forbidden(void)
{
	CHECK(cu.EventCreate(&event, 0));
	for (int run = 0; run < 14 * 3 * 2; run++) {
		int mode = run / 14 % 3, which = run % 14, status = 0;
		void *graph = NULL;
		captured = make_stream(run / 42 ? CU_STREAM_NON_BLOCKING : 0);
		CHECK(cu.EventRecord(event, captured));
		CHECK(cu.EventSynchronize(event));
		CHECK(cu.StreamBeginCapture_v2(captured, mode));
		CUresult first = count(function, 1, 32, captured), middle = unsafe_call(which);
		CUresult asked = cu.StreamIsCapturing(captured, &status);
		CUresult last = count(function, 1, 32, captured), end = cu.StreamEndCapture(captured, &graph);
		printf("%s mode %d call %d: %d %d %d(%d) %d %d %s\n", run / 42 ? "non-blocking" : "blocking", mode, which,
		       first, middle, asked, status, last, end, graph ? "graph" : "-");
		if (graph) {
			void *exec = instantiate(graph);
			CHECK(cu.GraphLaunch(exec, captured));
			CHECK(cu.StreamSynchronize(captured));
			CHECK(cu.GraphExecDestroy(exec));
			CHECK(cu.GraphDestroy(graph));
		}
		CHECK(cu.StreamDestroy_v2(captured));
	}
	CHECK(cu.CtxSynchronize());
}

/* Other streams join a capture by events; one that does not come back is named; threads that may not end it. */
static void *end_elsewhere(void *graph)
{
	CHECK(cu.CtxSetCurrent(context));
	TELL(cu.StreamEndCapture(captured, graph));
	return NULL;
}

void fork_and_join(void)
{
	CUstream side = make_stream(CU_STREAM_NON_BLOCKING);
	CUevent out, back;
	void *graph = NULL;
	pthread_t thread;

	captured = make_stream(CU_STREAM_NON_BLOCKING);
	CHECK(cu.EventCreate(&out, CU_EVENT_DISABLE_TIMING));
	CHECK(cu.EventCreate(&back, CU_EVENT_DISABLE_TIMING));
	enum { JOINED, UNJOINED, SPOILT, WAYS };
	for (int way = JOINED; way < WAYS; way++) {
		CHECK(count(function, 1, 32, side));
		CHECK(cu.StreamBeginCapture_v2(captured, 0));
		TELL(count(function, 1, 32, captured));
		TELL(cu.EventRecord(out, captured));
		TELL(cu.StreamWaitEvent(side, out, 0));
		TELL(count(function, 2, 32, side));
		TELL(cu.EventRecord(back, side));
		if (way == JOINED)
			TELL(cu.StreamWaitEvent(captured, back, 0));
		if (way == SPOILT) {
			TELL(cu.EventQuery(out));
			TELL(cu.StreamEndCapture(side, &graph));
		}
		TELL(cu.StreamEndCapture(captured, &graph));
		if (way == JOINED) {
			void *exec = instantiate(graph);
			for (int i = 0; i < 3; i++)
				TELL(cu.GraphLaunch(exec, captured));
			CHECK(cu.StreamSynchronize(captured));
			CHECK(cu.GraphExecDestroy(exec));
		}
	}
	CHECK(cu.StreamSynchronize(side));
	say_counter();
	CHECK(cu.StreamBeginCapture_v2(captured, 0));
	pthread_create(&thread, NULL, end_elsewhere, &graph);
	pthread_join(thread, NULL);
	TELL(count(function, 1, 32, captured));
	TELL(cu.StreamEndCapture(captured, &graph));
	/* A stream that ends while it is captured. */
	CUstream brief = make_stream(CU_STREAM_NON_BLOCKING);
	CHECK(count(function, 1, 32, brief));
	CHECK(cu.StreamBeginCapture_v2(brief, 2));
	CHECK(count(function, 1, 32, brief));
	TELL(cu.StreamDestroy_v2(brief));
	TELL(count(function, 1, 32, side));
	CHECK(cu.CtxSynchronize());
}

/* Everything is loaded and obtained for the first time while the thread captures. */
void capture_first(void)
{
	void *graph = NULL;

	image[strlen(image) - 1] ^= 1;
	captured = make_stream(CU_STREAM_NON_BLOCKING);
	for (int mode = 2; mode >= 0; mode--) {
		CHECK(mode == 2 ? 0 : cu.CtxSynchronize());
		CUmodule before = load();
		CHECK(cu.StreamBeginCapture_v2(captured, mode));
		CUmodule meanwhile = mode == 2 ? load() : before;
		CUfunction counting = obtain(meanwhile, "count_p2");
		TELL(count(counting, 2, 32, captured));
		TELL(cu.StreamEndCapture(captured, &graph));
		void *exec = instantiate(graph);
		TELL(cu.GraphLaunch(exec, captured));
		CHECK(cu.StreamSynchronize(captured));
		CHECK(count(counting, 2, 32, captured));
		CHECK(cu.GraphExecDestroy(exec));
		CHECK(cu.GraphDestroy(graph));
	}
}

/* Graphs made node by node, changed, and launched again. */
void nodes(void)
{
	uint32_t unused = 5;
	void *each[] = {&counter, &unused}, *graph, *first, *second;
	size_t known = 0;
	struct kernel_node node = {function, {2, 1, 1}, {32, 1, 1}, 0, each, NULL, NULL, NULL};

	CHECK(cu.GraphCreate(&graph, 0));
	TELL(cu.GraphAddKernelNode_v2(&first, graph, NULL, 0, &node));
	node.function = NULL;
	node.kernel = obtain_kernel(load_library(), "count_p2");
	TELL(cu.GraphAddKernelNode_v2(&second, graph, (const void *const *)&first, 1, &node));
	TELL(cu.GraphGetNodes(graph, NULL, &known));
	printf("%zu nodes\n", known);
	void *exec = instantiate(graph);
	TELL(cu.GraphLaunch(exec, stream));
	node.grid[0] = 7;
	TELL(cu.GraphExecKernelNodeSetParams_v2(exec, second, &node));
	TELL(cu.GraphLaunch(exec, stream));
	CHECK(cu.StreamSynchronize(stream));
	say_counter();
	TELL(cu.GraphExecDestroy(exec));
	TELL(cu.GraphDestroy(graph));
}

/* One thread captures over and over while others launch, load and unload: nothing of the hook's may touch a capture. */
static void *capture_often(void *number)
{
	intptr_t thread = (intptr_t)number;

	CHECK(cu.CtxSetCurrent(context));
	CUstream own = make_stream(CU_STREAM_NON_BLOCKING);
	if (thread) {
		/* Loading is refused while another thread captures in global mode, but not to a relaxed one. */
		int relaxed = 2;
		CHECK(cu.ThreadExchangeStreamCaptureMode(&relaxed));
	}
	for (int i = 0; i < 40; i++) {
		void *graph = NULL;
		if (thread == 0) {
			CHECK(cu.StreamBeginCapture_v2(own, 0));
			for (int j = 0; j < 3; j++) {
				CHECK(count(function, 1, 32, own));
				usleep(1000);
			}
			CHECK(cu.StreamEndCapture(own, &graph));
			void *exec = instantiate(graph);
			CHECK(cu.GraphLaunch(exec, own));
			CHECK(cu.StreamSynchronize(own));
			CHECK(cu.GraphExecDestroy(exec));
			CHECK(cu.GraphDestroy(graph));
		} else {
			CUmodule mine = load();
			CUfunction counting = obtain(mine, "count_p2");
			for (int j = 0; j < 8; j++)
				CHECK(count(j % 2 ? function : counting, 400, 1, own));
			CHECK(cu.StreamSynchronize(own));
			CHECK(cu.ModuleUnload(mine));
		}
	}
	return NULL;
}

void capture_amid(void)
{
	run_threads(2, capture_often);
}
