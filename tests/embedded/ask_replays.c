/* What a driver says to a tool that swaps kernels in executable graphs: writes, names of nodes, attributes, states. */
#include "asking_graphs.h"

static void writes(void)
{
	static const int attributes[] = {92, 93, 122};
	uint64_t both = 0;
	void *host;
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode nodes[4];
	size_t count = 4;
	int value, type = -1;

	begin_graphs();
	question("attributes");
	for (int i = 0; i < 3; i++) {
		answer(cuDeviceGetAttribute(&value, attributes[i], 0));
		answer(value);
	}
	answered();
	question("first version");
	answer(cuStreamWriteValue32(stream, word, 1, 0));
	answer(cuStreamWriteValue64(stream, word, 1, 0));
	answered();
	question("in order");
	answer(cuStreamWriteValue32_v2(stream, word, 5, 0));
	answer(launch(step, 1, 1, stream, of_two));
	answer(read_word(word));
	answer(cuStreamWriteValue64_v2(stream, word, UINT64_C(3) << 32 | 4, 0));
	answer(launch(step, 1, 1, stream, of_two));
	answer(cuCtxSynchronize());
	cuMemcpyDtoH_v2(&both, word, 8);
	answer((long long)both);
	answer(cuStreamWriteValue32_v2(NULL, word, 6, 1));
	answer(read_word(word));
	answered();
	question("refused ones");
	answer(cuStreamWriteValue64_v2(stream, word + 4, 1, 0));
	answer(cuStreamWriteValue32_v2(stream, word + 2, 1, 0));
	answer(cuStreamWriteValue32_v2(stream, word, 1, 2));
	answer(cuStreamWriteValue64_v2(stream, 0, 1, 0));
	answer(read_word(word));
	answered();
	question("to pinned host memory");
	CHECK(cuMemHostAlloc(&host, 64, 0));
	answer(cuStreamWriteValue32_v2(stream, (uintptr_t)host, 9, 0));
	answer(cuCtxSynchronize());
	answer(*(volatile uint32_t *)host);
	answered();
	question("captured");
	answer(cuStreamBeginCapture_v2(stream, 0));
	answer(launch(step, 1, 1, stream, of_two));
	answer(cuStreamWriteValue32_v2(stream, word, 8, 0));
	answer(cuStreamWriteValue64_v2(stream, word, 9, 0));
	answer(launch(step, 1, 1, stream, of_two));
	answer(cuStreamEndCapture(stream, &graph));
	answer(cuGraphGetNodes(graph, nodes, &count));
	answer((long long)count);
	answer(cuGraphNodeGetType(nodes[1], &type));
	answer(type);
	answer(cuGraphInstantiateWithFlags(&exec, graph, 0));
	answer_launch(exec);
	answered();
}

static void names(void)
{
	CUgraph graph, child, inside, other, copy;
	CUgraphNode first, last, outer, inner[2], found, foreign, empty_node;
	CUgraphExec exec;
	CUgraphExecUpdateResultInfo info = {0};
	size_t count = 2;

	begin_graphs();
	graph = new_graph();
	first = add_node(graph, NULL, step, of_one);
	child = new_graph();
	last = add_node(child, add_node(child, NULL, step, of_one), step, of_two);
	CHECK(cuGraphAddChildGraphNode(&outer, graph, &first, 1, child));
	CHECK(cuGraphAddEmptyNode(&empty_node, graph, NULL, 0));
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	question("nodes of child graphs");
	answer(cuGraphChildGraphNodeGetGraph(outer, &inside));
	answer(cuGraphGetNodes(inside, inner, &count));
	answer(set_node(exec, last, twin, of_twin));
	answer(set_node(exec, inner[0], twin, of_twin));
	answer(set_node(exec, inner[1], twin, of_twin));
	answer(set_node(exec, outer, twin, of_twin));
	answer_launch(exec);
	answer(read_word(counted));
	answered();
	question("the graph that was instantiated puts them back");
	answer(cuGraphExecUpdate_v2(exec, graph, &info));
	answer_launch(exec);
	answer(read_word(counted));
	answered();
	question("after an update with another graph");
	other = new_graph();
	foreign = add_node(other, NULL, step, of_two);
	CHECK(cuGraphAddChildGraphNode(&found, other, &foreign, 1, child));
	CHECK(cuGraphAddEmptyNode(&empty_node, other, NULL, 0));
	answer(cuGraphExecUpdate_v2(exec, other, &info));
	answer(info.result);
	answer(set_node(exec, foreign, twin, of_twin));
	answer(set_node(exec, first, twin, of_twin));
	answer(set_node(exec, inner[0], twin, of_twin));
	answer_launch(exec);
	answer(read_word(counted));
	answered();
	question("a clone with a kernel of another module");
	answer(cuGraphClone(&copy, graph));
	answer(cuGraphNodeFindInClone(&found, first, copy));
	CUDA_KERNEL_NODE_PARAMS of_clone = launch_of(twin, of_twin);
	answer(cuGraphKernelNodeSetParams_v2(found, &of_clone));
	answer(cuGraphExecUpdate_v2(exec, copy, &info));
	answer_launch(exec);
	answer(read_word(counted));
	answered();
	question("a child graph as a whole");
	CUgraph twins = new_graph(), longer = new_graph();
	add_node(twins, add_node(twins, NULL, twin, of_twin), twin, of_twin);
	add_node(longer, NULL, twin, of_twin);
	answer(cuGraphExecChildGraphNodeSetParams(exec, outer, twins));
	answer(cuGraphExecChildGraphNodeSetParams(exec, outer, longer));
	answer(cuGraphExecChildGraphNodeSetParams(exec, first, twins));
	answer(cuGraphExecChildGraphNodeSetParams(exec, outer, NULL));
	answer_launch(exec);
	answer(read_word(counted));
	answer(set_node(exec, inner[0], step, of_one));
	answered();
	question("by type");
	struct {
		int type, reserved[3];
		CUDA_KERNEL_NODE_PARAMS kernel;
		char rest[168];
	} any = {.kernel = launch_of(step, of_one)};
	answer(cuGraphExecNodeSetParams(exec, first, &any));
	answer(cuGraphExecNodeSetParams(exec, inner[1], &any));
	answer(cuGraphNodeSetParams(first, &any));
	any.type = 3;
	answer(cuGraphExecNodeSetParams(exec, first, &any));
	answer(cuGraphExecNodeSetParams(exec, first, NULL));
	answer_launch(exec);
	answered();
	question("after the graph was destroyed");
	answer(cuGraphDestroy(graph));
	answer_launch(exec);
	answered();
}

static void states(void)
{
	CUgraph graph;
	CUgraphNode first, last, empty_node;
	CUgraphExec exec;
	CUgraphExecUpdateResultInfo info;
	CUstream second;
	unsigned enabled = 7;

	begin_graphs();
	graph = new_graph();
	first = add_node(graph, NULL, step, of_one);
	last = add_node(graph, first, step, of_two);
	CHECK(cuGraphAddEmptyNode(&empty_node, graph, NULL, 0));
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	question("disabled");
	answer(cuGraphNodeGetEnabled(exec, first, &enabled));
	answer(enabled);
	answer(cuGraphNodeSetEnabled(exec, first, 0));
	answer_launch(exec);
	answer(set_node(exec, first, twin, of_twin));
	answer(cuGraphNodeGetEnabled(exec, first, &enabled));
	answer(enabled);
	answer_launch(exec);
	answer(cuGraphExecUpdate_v2(exec, graph, &info));
	answer(cuGraphNodeGetEnabled(exec, first, &enabled));
	answer(enabled);
	answer(cuGraphNodeSetEnabled(exec, first, 2));
	answer_launch(exec);
	answered();
	question("what cannot be disabled");
	answer(cuGraphNodeSetEnabled(exec, empty_node, 0));
	answer(cuGraphNodeGetEnabled(exec, empty_node, &enabled));
	answer(cuGraphNodeSetEnabled(exec, NULL, 0));
	answer(cuGraphNodeGetEnabled(exec, last, NULL));
	answered();
	question("one after the other on two streams");
	second = make_stream(1);
	to_device(word, &one, 4);
	for (int i = 0; i < 6; i++)
		answer(cuGraphLaunch(exec, i % 2 ? second : stream));
	answer(read_word(word));
	answered();
}

static void attributes(void)
{
	size_t size = 12;
	struct {
		CUdeviceptr p;
		uint32_t x;
	} packed = {word, 2};
	CUlibrary library;
	CUkernel kernel;
	CUfunction function;
	CUgraph graph;
	CUgraphNode nodes[4];
	CUgraphExec exec;
	CUlaunchAttributeValue value;
	CUDA_KERNEL_NODE_PARAMS read;
	size_t count = 4;

	begin_graphs();
	packed.p = word;
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
	CHECK(cuLibraryLoadData(&library, steps_image, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(cuLibraryGetKernel(&kernel, library, "step"));
	CHECK(cuKernelGetFunction(&function, kernel));
	question("captured");
	CUstream urgent;
	CHECK(cuStreamCreateWithPriority(&urgent, 1, -2));
	answer(cuStreamBeginCapture_v2(urgent, 0));
	answer(launch((CUfunction)(void *)kernel, 1, 1, urgent, of_one));
	answer(cuLaunchKernel(step, 1, 1, 1, 1, 1, 1, 0, urgent, NULL, extra));
	answer(cuLaunchCooperativeKernel(step, 1, 1, 1, 1, 1, 1, 0, urgent, of_two));
	answer(cuStreamEndCapture(urgent, &graph));
	answer(cuGraphGetNodes(graph, nodes, &count));
	answer((long long)count);
	answered();
	question("a CUkernel");
	answer(cuGraphKernelNodeGetParams_v2(nodes[0], &read));
	answer(read.func == function);
	answer(read.kern == kernel);
	answer(read.extra == NULL);
	answered();
	question("a packed buffer");
	answer(cuGraphKernelNodeGetParams_v2(nodes[1], &read));
	answer(read.kern == NULL);
	answer(read.kernelParams == NULL);
	answer(read.extra != NULL);
	if (read.extra) {
		answer((intptr_t)read.extra[0]);
		answer((intptr_t)read.extra[2]);
		answer((long long)*(size_t *)read.extra[3]);
		answer((intptr_t)read.extra[4]);
	}
	answered();
	for (int node = 0; node < 3; node++)
		for (int id = 0; id < 18; id++) {
			memset(&value, 0x55, sizeof(value));
			question("attribute %d of node %d", id, node);
			if (!answer(cuGraphKernelNodeGetAttribute(nodes[node], id, &value)) &&
			    (id == 2 || id == 8 || id == 13))
				answer(value.cooperative);
			else if (id == 4)
				answer(value.clusterDim.x);
			answered();
		}
	question("set and copied");
	memset(&value, 0, sizeof(value));
	value.priority = -3;
	answer(cuGraphKernelNodeSetAttribute(nodes[0], 8, &value));
	answer(cuGraphKernelNodeGetAttribute(nodes[0], 8, &value));
	answer(value.priority);
	answer(cuGraphKernelNodeCopyAttributes(nodes[1], nodes[0]));
	answer(cuGraphKernelNodeGetAttribute(nodes[1], 8, &value));
	answer(value.priority);
	read = launch_of(step, of_two);
	answer(cuGraphKernelNodeSetParams_v2(nodes[0], &read));
	answer(cuGraphKernelNodeGetAttribute(nodes[0], 8, &value));
	answer(value.priority);
	answer(cuGraphKernelNodeGetAttribute(nodes[0], 77, &value));
	answer(cuGraphKernelNodeGetAttribute(NULL, 8, &value));
	answered();
	question("set in an executable graph");
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	answer(set_node(exec, nodes[0], twin, of_twin));
	read = launch_of(step, of_two);
	read.gridDimX = 1000000;
	answer(cuGraphExecKernelNodeSetParams_v2(exec, nodes[2], &read));
	read = launch_of(twin, of_twin);
	read.kern = kernel;
	answer(cuGraphExecKernelNodeSetParams_v2(exec, nodes[1], &read));
	answered();
	question("updatable from the device");
	memset(&value, 0, sizeof(value));
	answer(cuGraphKernelNodeSetAttribute(nodes[0], 13, &value));
	answered();
}

static CUresult launch_with(unsigned blocks, int id, unsigned x, CUstream on)
{
	CUlaunchAttribute attribute = {.id = id, .value.clusterDim = {x, 1, 1}};
	CUlaunchConfig config = {blocks, 1, 1, 1, 1, 1, 0, on, &attribute, 1};

	return cuLaunchKernelEx(&config, step, of_one, NULL);
}

static void launches(void)
{
	CUlaunchAttributeValue value;
	CUgraph graph;
	CUgraphNode nodes[4];
	size_t count = 4;

	begin_graphs();
	question("clusters");
	answer(launch_with(4, 4, 1, stream));
	answer(launch_with(4, 4, 2, stream));
	answer(launch_with(8, 4, 8, stream));
	answer(launch_with(3, 4, 2, stream));
	answer(launch_with(16, 4, 16, stream));
	answer(launch_with(4, 4, 0, stream));
	answer(cuCtxSynchronize());
	answered();
	question("programmatic serialization, priority");
	answer(launch_with(1, 6, 1, stream));
	answer(launch_with(1, 6, 1, stream));
	answer(launch_with(1, 6, 2, stream));
	answer(launch_with(1, 8, 0, stream));
	answer(launch_with(1, 8, (unsigned)-3, stream));
	answer(launch_with(1, 8, 77, stream));
	answer(cuCtxSynchronize());
	answered();
	question("captured");
	answer(cuStreamBeginCapture_v2(stream, 0));
	answer(launch_with(1, 2, 1, stream));
	answer(launch_with(1, 8, (unsigned)-3, stream));
	answer(launch_with(4, 4, 2, stream));
	answer(launch_with(1, 6, 1, stream));
	answer(cuStreamEndCapture(stream, &graph));
	answer(cuGraphGetNodes(graph, nodes, &count));
	answer((long long)count);
	answer(cuGraphKernelNodeGetAttribute(nodes[0], 2, &value));
	answer(value.cooperative);
	answer(cuGraphKernelNodeGetAttribute(nodes[1], 8, &value));
	answer(value.priority);
	answer(cuGraphKernelNodeGetAttribute(nodes[2], 4, &value));
	answer(value.clusterDim.x);
	answered();
	question("updatable from the device, outside of a capture");
	answer(launch_with(1, 13, 0, stream));
	answered();
}

static void identities(void)
{
	unsigned long long ids[4] = {0}, id = 0, again = 0;
	CUstream streams[] = {NULL, (CUstream)2, NULL, NULL};
	CUcontext own, found = NULL;

	begin_graphs();
	streams[2] = stream;
	streams[3] = make_stream(0);
	question("streams");
	for (int i = 0; i < 4; i++) {
		answer(cuStreamGetId(streams[i], &ids[i]));
		for (int j = 0; j < i; j++)
			answer(ids[i] == ids[j]);
	}
	answer(cuStreamGetId_ptsz(NULL, &id));
	answer(id == ids[1]);
	answer(cuStreamGetId(stream, NULL));
	answered();
	question("contexts");
	answer(cuCtxGetId(NULL, &id));
	answer(cuCtxGetId(context, &again));
	answer(id == again);
	answer(cuCtxCreate_v2(&own, 0, 0));
	answer(cuCtxGetId(NULL, &again));
	answer(id == again);
	answered();
	question("attached and detached");
	answer(cuCtxAttach(&found, 0));
	answer(found == own);
	answer(cuCtxAttach(&found, 1));
	answer(cuCtxAttach(NULL, 0));
	answer(cuCtxDetach(own));
	answer(cuCtxGetId(own, &again));
	answer(cuCtxDetach(own));
	answer(cuCtxGetCurrent(&found));
	answer(found == context);
	answer(cuCtxDetach(NULL));
	answered();
	ASK("detach the primary context", cuCtxDetach(context));
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {{"writes", writes},     {"names", names},	      {"states", states},
					      {"attributes", attributes}, {"launches", launches}, {"identities", identities}};

	return run_group(argc, argv, groups, sizeof(groups) / sizeof(groups[0]));
}
