/* What a tool does that swaps the kernels of graphs which a program replays: `replays SCENARIO`. */
#include "host.h"

static CUfunction step;
static CUdeviceptr word;

static void set_word(uint32_t value)
{
	to_device(word, &value, sizeof(value));
}

static uint32_t get_word(void)
{
	uint32_t value;

	CHECK(CALL(cuCtxSynchronize, (void))());
	to_host(&value, word, sizeof(value));
	return value;
}

static CUresult launch_step(uint32_t x, CUstream stream)
{
	void *parameters[] = {&word, &x};

	return launch(step, 1, 1, stream, parameters);
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

static CUresult write32(CUstream stream, CUdeviceptr to, uint32_t value)
{
	return CALL(cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned))(stream, to, value, 0);
}

static CUresult write64(CUstream stream, CUdeviceptr to, uint64_t value)
{
	return CALL(cuStreamWriteValue64_v2, (CUstream, CUdeviceptr, uint64_t, unsigned))(stream, to, value, 0);
}

/* Words written between launches, on every kind of stream, and in a graph. */
static void write_value(void)
{
	CUstream streams[] = {make_stream(0), make_stream(1), CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
	CUresult (*write_here)(CUstream, CUdeviceptr, uint64_t, unsigned) =
		function_named("cuStreamWriteValue64_v2_ptsz");
	CUstream stream = streams[0];
	uint64_t both = 0;
	CUgraph graph;
	CUgraphNode nodes[3];
	size_t count = 3;
	int type;

	for (int i = 0; i < 4; i++) {
		set_word(0);
		CHECK(launch_step(1, streams[i]));
		CHECK(write32(streams[i], word, 5));
		CHECK(launch_step(2, streams[i]));
		EXPECT(5 * 3 + 2, get_word());
	}
	CHECK(write64(stream, word, UINT64_C(7) << 32 | 3));
	CHECK(launch_step(1, stream));
	CHECK(synchronize(stream));
	to_host(&both, word, sizeof(both));
	EXPECT(UINT64_C(7) << 32 | 10, both);
	CHECK(write_here(NULL, word, 4, 1));
	EXPECT(4, get_word());

	EXPECT(1, write64(stream, word + 4, 1));
	EXPECT(1, write32(stream, word + 2, 1));
	EXPECT(1, write32(stream, word + 64, 1));
	EXPECT(1, write64(stream, 0, 1));
	EXPECT(1, CALL(cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned))(stream, word, 1, 2));
	EXPECT(4, get_word());

	CHECK(CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, 0));
	CHECK(launch_step(1, stream));
	CHECK(write32(stream, word, 8));
	CHECK(launch_step(2, stream));
	CHECK(CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, &graph));
	EXPECT(4, get_word());
	CHECK(CALL(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))(graph, nodes, &count));
	EXPECT(3, count);
	CHECK(CALL(cuGraphNodeGetType, (CUgraphNode, int *))(nodes[1], &type));
	EXPECT(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, type);
	CHECK(launch_graph(instantiate(graph), stream));
	EXPECT(8 * 3 + 2, get_word());
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = {
		{"write-value", write_value},
	};

	(void)begin();
	CUmodule module = load();
	step = obtain(module, "step");
	word = allocate(64);
	for (size_t i = 0; argc > 1 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		if (strcmp(scenarios[i].name, argv[1]) != 0)
			continue;
		scenarios[i].run();
		printf("done\n");
		return 0;
	}
	return 2;
}
