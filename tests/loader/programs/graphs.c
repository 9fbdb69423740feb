/* Scenarios of executable graphs that are launched many times, changed in between, and destroyed. */
#include <sched.h>

#include "host.h"

/* A graph of that many launches of count_p2, by its CUfunction and its CUkernel in turns, each of i + 1 blocks. */
static void *chain(int nodes, CUkernel kernel)
{
	void *graph = NULL;

	CHECK(cu.StreamBeginCapture_v2(stream, 2));
	for (int i = 0; i < nodes; i++)
		CHECK(count(i % 2 && kernel ? (CUfunction)kernel : function, (unsigned)i + 1, 64, stream));
	CHECK(cu.StreamEndCapture(stream, &graph));
	return graph;
}

static void *made_of(void *graph)
{
	void *exec = NULL;

	CHECK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

/* Replays queued without a wait; the graph is destroyed before the first. */
void graph_replays(void)
{
	void *graph = chain(5, obtain_kernel(load_library(), "count_p2"));
	void *exec = made_of(graph);

	CHECK(cu.GraphDestroy(graph));
	for (int i = 0; i < 100; i++) {
		CHECK(cu.GraphLaunch(exec, stream));
		if (i % 10 == 0)
			CHECK(count(function, 3, 32, stream));
	}
	CHECK(cu.StreamSynchronize(stream));
	say_counter();
	CHECK(cu.GraphExecDestroy(exec));
}

/* So many replays, queued after a kernel that waits, and one more. */
static void crowd(int replays)
{
	CUfunction waiting = obtain(module, "spin_p1");
	CUstream other = make_stream(1);
	uint32_t one = 1;
	void *exec = made_of(chain(3, NULL));

	CHECK(launch_at(waiting, flag, 1, 32, stream));
	for (int i = 0; i < replays; i++)
		CHECK(cu.GraphLaunch(exec, stream));
	/* Time enough for the hook to drain what it must not. */
	rest();
	CHECK(cu.MemsetD32Async(flag, one, 1, other));
	CHECK(cu.StreamSynchronize(stream));
	say_counter();
	CHECK(cu.GraphLaunch(exec, stream));
}

/* More than the pool has room for; or than there are events for, where HOST_COUNT says how many. */
void graph_crowd(void)
{
	crowd(getenv("HOST_COUNT") ? wished() : 800);
}

/* More than it has room for where each has logs. */
void graph_small_crowd(void)
{
	crowd(100);
}

/* One executable graph in two streams by turns, one of which is destroyed and made anew. */
void graph_streams(void)
{
	CUstream other = make_stream(1);
	void *exec = made_of(chain(4, NULL));

	for (int i = 0; i < 60; i++) {
		CHECK(cu.GraphLaunch(exec, i % 2 ? other : stream));
		if (i % 20 == 19) {
			CHECK(cu.StreamDestroy_v2(other));
			other = make_stream(1);
		}
		if (i % 7 == 0)
			CHECK(cu.GraphLaunch(exec, i % 2 ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD));
	}
	CHECK(cu.CtxSynchronize());
	say_counter();
}

/* Updated by other graphs, of which the first is destroyed; single nodes set; all between replays that are queued. */
void graph_changes(void)
{
	uint32_t unused = 5;
	void *each[] = {&counter, &unused}, *graph = chain(4, NULL), *nodes[4];
	size_t known = 4;
	struct kernel_node node = {function, {9, 1, 1}, {32, 1, 1}, 0, each, NULL, NULL, NULL};
	uint64_t info[4];
	void *exec = made_of(graph);

	CHECK(cu.GraphGetNodes(graph, nodes, &known));
	for (int i = 0; i < 10; i++) {
		CHECK(cu.GraphLaunch(exec, stream));
		void *next = chain(4, NULL);
		TELL(cu.GraphExecUpdate_v2(exec, next, info));
		CHECK(cu.GraphLaunch(exec, stream));
		CHECK(cu.GraphDestroy(next));
		node.grid[0] = 9 + (unsigned)i;
		for (int j = 0; j < 2; j++)
			TELL(cu.GraphExecKernelNodeSetParams_v2(exec, nodes[j], &node));
		CHECK(cu.GraphLaunch(exec, stream));
	}
	void *different = chain(3, NULL);
	TELL(cu.GraphExecUpdate_v2(exec, different, info));
	CHECK(cu.GraphLaunch(exec, stream));
	CHECK(cu.GraphDestroy(graph));
	void *last = chain(4, NULL);
	TELL(cu.GraphExecUpdate_v2(exec, last, info));
	CHECK(cu.GraphLaunch(exec, stream));
	CHECK(cu.StreamSynchronize(stream));
	say_counter();
	/* As many again, most of them while others run. */
	for (int i = 0; i < 50; i++) {
		void *brief = made_of(last);
		CHECK(cu.GraphLaunch(brief, stream));
		CHECK(cu.GraphExecDestroy(brief));
	}
	CHECK(cu.StreamSynchronize(stream));
	say_counter();
}

/* Several threads, each with a stream and a graph of its own, while the first loads and unloads. */
static void *replay_often(void *number)
{
	CHECK(cu.CtxSetCurrent(context));
	CUstream own = make_stream(1);
	void *graph = NULL;

	CHECK(cu.StreamBeginCapture_v2(own, 2));
	for (int i = 0; i < 6; i++)
		CHECK(count(function, 2, 64, own));
	CHECK(cu.StreamEndCapture(own, &graph));
	void *exec = made_of(graph);
	for (int i = 0; i < 40; i++) {
		CHECK(cu.GraphLaunch(exec, own));
		if (i % 4 == (intptr_t)number)
			CHECK(cu.StreamSynchronize(own));
	}
	CHECK(cu.StreamSynchronize(own));
	CHECK(cu.GraphExecDestroy(exec));
	CHECK(cu.GraphDestroy(graph));
	return NULL;
}

void graph_threads(void)
{
	run_threads(4, replay_often);
}

/* Graphs in a context that ends, and in one that comes to its address. */
void graph_contexts(void)
{
	CUcontext before;

	CHECK(cu.CtxGetCurrent(&before));
	for (int i = 0; i < 3; i++) {
		CUcontext own;
		CHECK(cu.CtxCreate_v2(&own, 0, 0));
		CUmodule mine = load();
		CUdeviceptr memory = make_counter();
		CUfunction counting = obtain(mine, "count_p2");
		CUstream there = make_stream(1);
		void *graph = NULL;
		CHECK(cu.StreamBeginCapture_v2(there, 2));
		CHECK(launch_at(counting, memory, 4, 32, there));
		CHECK(cu.StreamEndCapture(there, &graph));
		void *exec = made_of(graph);
		for (int j = 0; j < 5; j++)
			CHECK(cu.GraphLaunch(exec, there));
		CHECK(cu.StreamSynchronize(there));
		printf("%llu\n", (unsigned long long)value_at(memory));
		CHECK(cu.CtxDestroy_v2(own));
		CHECK(cu.CtxSetCurrent(before));
	}
}

/* As many replays as HOST_LAUNCHES says; a wait now and then, so that they are drained. */
void graph_many(void)
{
	const char *launches = getenv("HOST_LAUNCHES");
	void *exec = made_of(chain(5, NULL));

	for (int i = 0; i < (launches ? atoi(launches) : 100); i++) {
		CHECK(cu.GraphLaunch(exec, stream));
		if (i % 64 == 63)
			CHECK(cu.StreamSynchronize(stream));
	}
	CHECK(cu.StreamSynchronize(stream));
}

/* A reset of the primary context: graphs made after it must not use device memory of before, which is the program's. */
void graph_reset(void)
{
	enum { BLOCKS = 300, WORDS = 65536 };
	static CUdeviceptr blocks[BLOCKS];
	static unsigned words[WORDS], expected[WORDS];
	void *exec = made_of(chain(3, NULL));
	int changed = 0;

	CHECK(cu.GraphLaunch(exec, stream));
	CHECK(cu.StreamSynchronize(stream));
	CHECK(cu.DevicePrimaryCtxReset_v2(0));
	CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
	CHECK(cu.CtxSetCurrent(context));
	for (int i = 0; i < BLOCKS; i++) {
		blocks[i] = allocate(sizeof(words));
		CHECK(cu.MemsetD32Async(blocks[i], 0x55aa55aa, WORDS, NULL));
	}
	CHECK(cu.CtxSynchronize());
	counter = make_counter();
	module = load();
	function = obtain(module, "count_p2");
	stream = make_stream(1);
	exec = made_of(chain(3, NULL));
	for (int i = 0; i < 3; i++)
		CHECK(cu.GraphLaunch(exec, stream));
	CHECK(cu.StreamSynchronize(stream));
	for (int j = 0; j < WORDS; j++)
		expected[j] = 0x55aa55aa;
	for (int i = 0; i < BLOCKS; i++) {
		CHECK(cu.MemcpyDtoH_v2(words, blocks[i], sizeof(words)));
		changed += memcmp(words, expected, sizeof(words)) != 0;
	}
	printf("changed blocks of the program: %d\n", changed);
}

/* Parameters set before each replay, by turns of two sizes. */
void graph_sizes(void)
{
	uint32_t unused = 5;
	void *each[] = {&counter, &unused}, *graph = chain(1, NULL), *nodes[1];
	size_t known = 1;
	struct kernel_node node = {function, {9, 1, 1}, {32, 1, 1}, 0, each, NULL, NULL, NULL};
	void *exec = made_of(graph);

	CHECK(cu.GraphGetNodes(graph, nodes, &known));
	for (int i = 0; i < 200; i++) {
		node.grid[0] = i % 2 ? 20 : 4;
		CHECK(cu.GraphExecKernelNodeSetParams_v2(exec, nodes[0], &node));
		CHECK(cu.GraphLaunch(exec, stream));
		CHECK(cu.StreamSynchronize(stream));
	}
}

/* Streams of one replay each, for which nothing but an event waits. */
void graph_short_streams(void)
{
	void *exec = made_of(chain(2, NULL));
	CUevent done;

	CHECK(cu.EventCreate(&done, CU_EVENT_DISABLE_TIMING));
	launches_made = 0; /* what was captured */
	for (int i = 0; i < 60; i++) {
		CUstream brief = make_stream(1);
		CHECK(cu.GraphLaunch(exec, brief));
		CHECK(cu.EventRecord(done, brief));
		CHECK(cu.EventSynchronize(done));
		CHECK(cu.StreamDestroy_v2(brief));
		launches_made += 2;
		if (i % 4 == 3)
			written();
	}
}

/*
 * A launch and a replay of two, as often as the test asks before an hour passes, and as often after it; then launches of
 * another image's kernel, and of a graph with it.
 */
void lasting(void)
{
	void *exec = made_of(chain(2, NULL));

	for (int i = 0; i < 2 * wished(); i++) {
		if (i == wished())
			__atomic_store_n(&clock_ahead_s, 3600, __ATOMIC_RELAXED);
		CHECK(count(function, 3, 32, stream));
		CHECK(cu.GraphLaunch(exec, stream));
		CHECK(cu.StreamSynchronize(stream));
	}
	image[strlen(image) - 1] ^= 1;
	function = obtain(load(), "count_p2");
	for (int i = 0; i < 3; i++)
		CHECK(count(function, 3, 32, stream));
	CHECK(cu.GraphLaunch(made_of(chain(2, NULL)), stream));
	CHECK(cu.GraphLaunch(exec, stream));
}

/* The stream of a queued replay is destroyed while it is captured, and another replay follows elsewhere. */
void graph_captured_end(void)
{
	CUfunction waiting = obtain(module, "spin_p1");
	CUstream first = make_stream(1), second = make_stream(1), other = make_stream(1);
	void *exec = made_of(chain(3, NULL));

	CHECK(launch_at(waiting, flag, 1, 32, first));
	CHECK(cu.GraphLaunch(exec, first));
	CHECK(cu.StreamBeginCapture_v2(first, 2));
	TELL(cu.StreamDestroy_v2(first));
	CHECK(cu.GraphLaunch(exec, second));
	rest();
	CHECK(cu.MemsetD32Async(flag, 1, 1, other));
	CHECK(cu.CtxSynchronize());
}

/* A disabled node stays disabled through an update. */
void graph_disabled(void)
{
	void *graph = chain(3, NULL), *nodes[3];
	size_t known = 3;
	uint64_t info[4];
	void *exec = made_of(graph);

	CHECK(cu.GraphGetNodes(graph, nodes, &known));
	CHECK(cu.GraphNodeSetEnabled(exec, nodes[1], 0));
	CHECK(cu.GraphLaunch(exec, stream));
	CHECK(cu.StreamSynchronize(stream));
	CHECK(cu.GraphExecUpdate_v2(exec, chain(3, NULL), info));
	CHECK(cu.GraphLaunch(exec, stream));
	CHECK(cu.StreamSynchronize(stream));
}

/*
 * The stream of the last replay is destroyed by another thread while the next replay is launched. Fewer streams than a pool
 * of 64 MiB has segments (128), so that each finds one even if the drain thread gets no time.
 */
static CUstream handed;

static void *destroy_handed(void *unused)
{
	CHECK(cu.CtxSetCurrent(context));
	for (;;) {
		CUstream given = __atomic_exchange_n(&handed, NULL, __ATOMIC_ACQ_REL);
		if (given == (CUstream)1)
			return unused;
		if (given)
			CHECK(cu.StreamDestroy_v2(given));
		else
			sched_yield();
	}
}

void graph_handed(void)
{
	void *exec = made_of(chain(2, NULL));
	CUstream next = make_stream(1);
	pthread_t thread;

	pthread_create(&thread, NULL, destroy_handed, NULL);
	for (int i = 0; i < 100; i++) {
		CUstream now = next;
		next = make_stream(1);
		CHECK(cu.GraphLaunch(exec, now));
		CHECK(cu.StreamSynchronize(now));
		while (__atomic_load_n(&handed, __ATOMIC_ACQUIRE))
			sched_yield();
		__atomic_store_n(&handed, now, __ATOMIC_RELEASE);
		CHECK(cu.GraphLaunch(exec, next));
	}
	CHECK(cu.CtxSynchronize());
	while (__atomic_load_n(&handed, __ATOMIC_ACQUIRE))
		sched_yield();
	__atomic_store_n(&handed, (CUstream)1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
}
