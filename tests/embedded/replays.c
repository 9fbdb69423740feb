/* What a tool does that swaps the kernels of graphs which a program replays: `replays SCENARIO`. */
#include "replaying.h"

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
	CHECK(write_here(NULL, word, 4, 0));
	EXPECT(4, get_word());

	EXPECT(1, write64(stream, word + 4, 1));
	EXPECT(1, write32(stream, word + 2, 1));
	EXPECT(1, write32(stream, word + 64, 1));
	EXPECT(1, write64(stream, 0, 1));
	EXPECT(1, CALL(cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned))(stream, word, 1, 1));
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

/* Replays on two streams in turns, each with a region of its own: in order, though the streams are not. */
static void swapped(void)
{
	CUstream streams[2] = {make_stream(1), make_stream(1)};
	CUgraphNode nodes[2];
	uint32_t expected = 1;

	begin_twin();
	CUgraph graph = capture_steps(1, 2, nodes);
	CUgraphExec exec = instantiate(graph), untouched = instantiate(graph);
	CHECK(swap(exec, nodes[0]));
	CHECK(swap(exec, nodes[1]));
	CUDA_KERNEL_NODE_PARAMS read;
	CHECK(get_kernel(nodes[0], &read));
	EXPECT((intptr_t)step, (intptr_t)read.func);
	CHECK(CALL(cuGraphDestroy, (CUgraph))(graph));
	set_word(1);
	for (int i = 0; i < 20; i++) {
		CHECK(write64(streams[i % 2], cell, counts[i % 2]));
		CHECK(launch_graph(exec, streams[i % 2]));
		expected = (expected * 3 + 1) * 3 + 2;
		/* The cell is the exec's: what a replay reads may be written only after the one before. */
		CHECK(synchronize(streams[i % 2]));
	}
	EXPECT(expected, get_word());
	EXPECT(20, count_of(0));
	EXPECT(20, count_of(1));
	for (int i = 0; i < 20; i++) {
		CHECK(launch_graph(exec, streams[i % 2]));
		CHECK(launch_graph(untouched, streams[i % 2]));
		expected = (expected * 3 + 1) * 3 + 2;
		expected = (expected * 3 + 1) * 3 + 2;
		if (i % 3 == 2)
			CHECK(CALL(cuCtxSynchronize, (void))());
		else
			CHECK(synchronize(streams[i % 2]));
	}
	EXPECT(expected, get_word());
	set_word(expected = 1);
	for (int i = 0; i < 20; i++) {
		CHECK(launch_graph(exec, streams[i % 2]));
		expected = (expected * 3 + 1) * 3 + 2;
	}
	CHECK(CALL(cuGraphExecDestroy, (CUgraphExec))(exec));
	EXPECT(expected, get_word());
	EXPECT(40 + 40 + 40, count_of(0) + count_of(1));
}

/* Kernels within child graphs, and updates: which nodes name what of an executable graph. */
static void nested(void)
{
	CUgraphNode inner[2], outer[2], of_child[2], foreign[2], child_node;
	CUgraph child, copy;
	size_t count = 2;
	uint32_t nine = 9;
	void *of_nine[] = {&word, &nine};

	begin_twin();
	to_device(cell, &counts[0], 8);
	CUgraph graph = capture_steps(1, 2, outer), within = capture_steps(3, 4, inner);
	CHECK(CALL(cuGraphAddChildGraphNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph))(
		&child_node, graph, &outer[1], 1, within));
	CHECK(CALL(cuGraphChildGraphNodeGetGraph, (CUgraphNode, CUgraph *))(child_node, &child));
	CHECK(CALL(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))(child, of_child, &count));
	EXPECT(2, count);
	CUgraphExec exec = instantiate(graph);
	EXPECT(1, swap(exec, inner[0]));
	CHECK(swap(exec, of_child[0]));
	CHECK(swap(exec, of_child[1]));
	CHECK(swap(exec, outer[0]));
	uint32_t expected = (((1 * 3 + 1) * 3 + 2) * 3 + 3) * 3 + 4;
	set_word(1);
	CHECK(launch_graph(exec, NULL));
	EXPECT(expected, get_word());
	EXPECT(3, count_of(0));

	/* An update puts the originals back, and changes no names. */
	CHECK(update(exec, graph));
	set_word(1);
	CHECK(launch_graph(exec, NULL));
	EXPECT(expected, get_word());
	EXPECT(3, count_of(0));
	CHECK(swap(exec, of_child[1]));
	CUgraph other = capture_steps(5, 6, foreign), other_within = capture_steps(7, 8, inner);
	CUgraphNode other_child;
	CHECK(CALL(cuGraphAddChildGraphNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph))(
		&other_child, other, &foreign[1], 1, other_within));
	CHECK(update(exec, other));
	EXPECT(1, swap(exec, foreign[0]));
	CHECK(swap(exec, of_child[0]));
	set_word(1);
	CHECK(launch_graph(exec, NULL));
	/* What is set is what was given: the twin of child node 0 has that node's own parameters, 3. */
	EXPECT((((1 * 3 + 5) * 3 + 6) * 3 + 3) * 3 + 8, get_word());
	EXPECT(4, count_of(0));

	/* A clone whose kernels were set to those of another module. */
	CHECK(CALL(cuGraphClone, (CUgraph *, CUgraph))(&copy, graph));
	CUgraphNode cloned;
	void *memory[3];
	CHECK(CALL(cuGraphNodeFindInClone, (CUgraphNode *, CUgraphNode, CUgraph))(&cloned, outer[1], copy));
	CUDA_KERNEL_NODE_PARAMS parameters = as_twin(outer[1], memory);
	CHECK(CALL(cuGraphKernelNodeSetParams_v2, (CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))(cloned, &parameters));
	CHECK(update(exec, copy));
	set_word(1);
	CHECK(launch_graph(exec, NULL));
	EXPECT(expected, get_word());
	EXPECT(5, count_of(0));

	/* A child graph as a whole: one of the same shape only. */
	CUresult (*set_child)(CUgraphExec, CUgraphNode, CUgraph) = function_named("cuGraphExecChildGraphNodeSetParams");
	CHECK(set_child(exec, child_node, other_within));
	EXPECT(910, set_child(exec, child_node, graph));
	EXPECT(1, set_child(exec, outer[0], other_within));
	set_word(1);
	CHECK(launch_graph(exec, NULL));
	EXPECT((((1 * 3 + 1) * 3 + 2) * 3 + 7) * 3 + 8, get_word());
	CHECK(swap(exec, of_child[1]));

	/* Any node's parameters by their type. */
	struct {
		int type, reserved[3];
		CUDA_KERNEL_NODE_PARAMS kernel;
		char rest[168];
	} any = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
	_Static_assert(sizeof(any) == 256, "CUgraphNodeParams");
	CHECK(get_kernel(outer[0], &any.kernel));
	any.kernel.kernelParams = of_nine;
	CHECK(CALL(cuGraphExecNodeSetParams, (CUgraphExec, CUgraphNode, void *))(exec, outer[0], &any));
	any.type = CU_GRAPH_NODE_TYPE_HOST;
	EXPECT(1, CALL(cuGraphExecNodeSetParams, (CUgraphExec, CUgraphNode, void *))(exec, outer[0], &any));
	set_word(1);
	CHECK(launch_graph(exec, NULL));
	EXPECT((((1 * 3 + 9) * 3 + 2) * 3 + 7) * 3 + 4, get_word());
}

static unsigned is_enabled(CUgraphExec exec, CUgraphNode node)
{
	unsigned found = 9;

	CHECK(CALL(cuGraphNodeGetEnabled, (CUgraphExec, CUgraphNode, unsigned *))(exec, node, &found));
	return found;
}

/* Nodes that do nothing for a while. */
static void disabled(void)
{
	CUgraphNode nodes[2];
	CUgraph graph = capture_steps(1, 2, nodes);
	CUgraphNode empty;
	unsigned found;

	begin_twin();
	to_device(cell, &counts[0], 8);
	CHECK(CALL(cuGraphAddEmptyNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t))(&empty, graph, NULL, 0));
	CUgraphExec exec = instantiate(graph);
	CUresult (*enable)(CUgraphExec, CUgraphNode, unsigned) = function_named("cuGraphNodeSetEnabled");
	EXPECT(1, is_enabled(exec, nodes[0]));
	CHECK(enable(exec, nodes[0], 0));
	EXPECT(0, is_enabled(exec, nodes[0]));
	set_word(1);
	CHECK(launch_graph(exec, NULL));
	EXPECT(1 * 3 + 2, get_word());
	/* Neither other parameters nor an update enable it. */
	CHECK(swap(exec, nodes[0]));
	EXPECT(0, is_enabled(exec, nodes[0]));
	CHECK(update(exec, graph));
	EXPECT(0, is_enabled(exec, nodes[0]));
	CHECK(swap(exec, nodes[0]));
	CHECK(enable(exec, nodes[0], 1));
	set_word(1);
	CHECK(launch_graph(exec, NULL));
	EXPECT((1 * 3 + 1) * 3 + 2, get_word());
	EXPECT(1, count_of(0));
	EXPECT(1, enable(exec, empty, 0));
	EXPECT(1, CALL(cuGraphNodeGetEnabled, (CUgraphExec, CUgraphNode, unsigned *))(exec, empty, &found));
	EXPECT(1, enable(exec, NULL, 0));
	EXPECT(1, enable(NULL, nodes[0], 0));
}

/* What a captured launch looks like as a node: a CUkernel, a packed buffer, attributes. */
static void read_back(void)
{
	CUstream stream = make_stream(1);
	CUlibrary library;
	CUkernel kernel;
	CUfunction function;
	CUgraph graph;
	CUgraphNode nodes[2];
	CUDA_KERNEL_NODE_PARAMS read;
	size_t count = 2, size = 12;
	uint32_t four = 4;
	void *of_four[] = {&word, &four};
	struct {
		CUdeviceptr p;
		uint32_t x;
	} packed = {word, 6};
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};

	CHECK(CALL(cuLibraryLoadData, (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))(
		&library, image, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(CALL(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))(&kernel, library, "step"));
	CHECK(CALL(cuKernelGetFunction, (CUfunction *, CUkernel))(&function, kernel));
	CHECK(CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, 0));
	CHECK(launch((CUfunction)(void *)kernel, 1, 1, stream, of_four));
	CHECK(CALL(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
				    CUstream, void **, void **))(step, 1, 1, 1, 1, 1, 1, 0, stream, NULL, extra));
	CHECK(CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, &graph));
	CHECK(CALL(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))(graph, nodes, &count));
	CHECK(get_kernel(nodes[0], &read));
	EXPECT((intptr_t)function, (intptr_t)read.func);
	EXPECT((intptr_t)kernel, (intptr_t)read.kern);
	EXPECT(4, *(uint32_t *)read.kernelParams[1]);
	EXPECT(0, (intptr_t)read.extra);
	CHECK(get_kernel(nodes[1], &read));
	EXPECT((intptr_t)step, (intptr_t)read.func);
	EXPECT(0, (intptr_t)read.kern);
	EXPECT(0, (intptr_t)read.kernelParams);
	EXPECT((intptr_t)CU_LAUNCH_PARAM_BUFFER_SIZE, (intptr_t)read.extra[0]);
	EXPECT(12, *(size_t *)read.extra[1]);
	EXPECT((intptr_t)CU_LAUNCH_PARAM_BUFFER_POINTER, (intptr_t)read.extra[2]);
	EXPECT(0, memcmp(read.extra[3], &packed, 12));
	EXPECT(0, (intptr_t)read.extra[4]);
	CUgraphExec exec = instantiate(graph);
	packed.x = 8;
	read.extra = extra;
	CHECK(exec_set_kernel(exec, nodes[1], &read));
	set_word(1);
	CHECK(launch_graph(exec, stream));
	EXPECT((1 * 3 + 4) * 3 + 8, get_word());

	CUlaunchAttributeValue value;
	CUresult (*get)(CUgraphNode, int, CUlaunchAttributeValue *) = function_named("cuGraphKernelNodeGetAttribute");
	CUresult (*set)(CUgraphNode, int, const CUlaunchAttributeValue *) =
		function_named("cuGraphKernelNodeSetAttribute");
	value.cooperative = 7;
	CHECK(get(nodes[0], CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &value));
	EXPECT(0, value.cooperative);
	value.priority = -2;
	CHECK(set(nodes[0], CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
	CHECK(get_kernel(nodes[0], &read));
	CHECK(CALL(cuGraphKernelNodeSetParams_v2, (CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))(nodes[0], &read));
	value.priority = 0;
	CHECK(get(nodes[0], CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
	EXPECT(-2, value.priority);
	CHECK(CALL(cuGraphKernelNodeCopyAttributes, (CUgraphNode, CUgraphNode))(nodes[1], nodes[0]));
	value.priority = 0;
	CHECK(get(nodes[1], CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
	EXPECT(-2, value.priority);
	/* Of tuning: set, kept when the parameters change, copied. */
	value.priority = 1;
	CHECK(set(nodes[0], CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
	CHECK(get_kernel(nodes[0], &read));
	CHECK(CALL(cuGraphKernelNodeSetParams_v2, (CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))(nodes[0], &read));
	CHECK(CALL(cuGraphKernelNodeCopyAttributes, (CUgraphNode, CUgraphNode))(nodes[1], nodes[0]));
	value.priority = 7;
	CHECK(get(nodes[1], CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
	EXPECT(1, value.priority);
	EXPECT(1, get(nodes[0], 77, &value));
	struct {
		uint64_t flags;
		CUstream stream;
		CUgraphNode node;
		int result;
	} parameters = {.stream = stream};
	CHECK(CALL(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *, CUgraph, void *))(&exec, graph, &parameters));
	EXPECT(0, parameters.result);
}

/* What streams and contexts are called, and a context that ends by being detached. */
static void identities(void)
{
	CUstream streams[] = {NULL, CU_STREAM_PER_THREAD, make_stream(0), make_stream(1)};
	CUcontext primary, own, found;
	unsigned long long ids[4], here, there;
	CUresult (*stream_id)(CUstream, unsigned long long *) = function_named("cuStreamGetId");
	CUresult (*context_id)(CUcontext, unsigned long long *) = function_named("cuCtxGetId");
	CUresult (*detach)(CUcontext) = function_named("cuCtxDetach");

	for (int i = 0; i < 4; i++)
		CHECK(stream_id(streams[i], &ids[i]));
	for (int i = 0; i < 4; i++)
		for (int j = 0; j < i; j++)
			EXPECT(1, ids[i] != ids[j]);
	CHECK(CALL(cuStreamGetId_ptsz, (CUstream, unsigned long long *))(NULL, &here));
	EXPECT(ids[1], here);
	EXPECT(1, stream_id(streams[2], NULL));

	CHECK(CALL(cuCtxGetCurrent, (CUcontext *))(&primary));
	CHECK(context_id(primary, &here));
	CHECK(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&own, 0, 0));
	CHECK(context_id(NULL, &there));
	EXPECT(1, here != there);
	CHECK(CALL(cuCtxAttach, (CUcontext *, unsigned))(&found, 0));
	EXPECT((intptr_t)own, (intptr_t)found);
	CHECK(detach(own));
	CHECK(context_id(own, &here));
	EXPECT(there, here);
	CHECK(detach(own));
	CHECK(CALL(cuCtxGetCurrent, (CUcontext *))(&found));
	EXPECT((intptr_t)primary, (intptr_t)found);
	CHECK(detach(primary));
	EXPECT(201, detach(NULL));
}

static CUresult launch_with(CUfunction function, unsigned blocks, CUstream stream, CUlaunchAttribute attribute,
			    void **parameters)
{
	CUlaunchConfig config = {blocks, 1, 1, 1, 1, 1, 0, stream, &attribute, 1};

	return CALL(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))(&config, function,
											      parameters, NULL);
}

static CUlaunchAttribute clusters_of(unsigned x)
{
	return (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {x, 1, 1}};
}

/* Attributes of launches: what they allow and refuse, and what a node shows of them. */
static void attributes(void)
{
	CUstream stream = make_stream(1), other = make_stream(1);
	CUlaunchAttribute cooperative = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
	CUlaunchAttribute priority = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = -3};
	CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
				   .value.programmaticStreamSerializationAllowed = 1};
	CUlaunchAttribute completion = {.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT};
	/* Not updatable from the device: only in a capture may a launch say so. */
	CUlaunchAttribute updatable = {.id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE};
	CUlaunchAttribute carveout = {.id = CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, .value.priority = 50};
	CUlaunchAttributeValue value;
	CUresult (*get)(CUgraphNode, int, CUlaunchAttributeValue *) = function_named("cuGraphKernelNodeGetAttribute");
	uint32_t two = 2;
	void *of_two[] = {&word, &two};
	int blocks, processors;
	CUgraph graph;
	CUgraphNode nodes[5];
	size_t count = 5;

	set_word(1);
	CHECK(launch_with(step, 1, stream, early, of_two));
	CHECK(launch_with(step, 1, stream, priority, of_two));
	CHECK(launch_with(step, 1, stream, cooperative, of_two));
	CHECK(launch_with(step, 1, stream, clusters_of(1), of_two));
	EXPECT((((1 * 3 + 2) * 3 + 2) * 3 + 2) * 3 + 2, get_word());
	CHECK(CALL(cuEventCreate, (CUevent *, unsigned))(&completion.value.event, 2));
	CHECK(launch_with(step, 1, stream, completion, of_two));
	CHECK(CALL(cuStreamWaitEvent, (CUstream, CUevent, unsigned))(other, completion.value.event, 0));
	CHECK(write32(other, word, 7));
	EXPECT(7, get_word());

	CUfunction add = obtain(load(), "add");
	set_word(0);
	CHECK(launch_with(add, 4, stream, clusters_of(2), of_two));
	EXPECT(8, get_word());
	EXPECT(912, launch_with(add, 3, stream, clusters_of(2), of_two));
	EXPECT(801, launch_with(add, 1, stream, updatable, of_two));
	EXPECT(912, launch_with(add, 16, stream, clusters_of(16), of_two));
	CHECK(CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, CUfunction, int, size_t))(&blocks, add, 1, 0));
	CHECK(CALL(cuDeviceGetAttribute, (int *, int, CUdevice))(&processors, 16, 0));
	set_word(0);
	CHECK(launch_with(add, (unsigned)(blocks * processors), stream, cooperative, of_two));
	EXPECT(2 * blocks * processors, get_word());
	EXPECT(720, launch_with(add, (unsigned)(blocks * processors + 1), stream, cooperative, of_two));

	CHECK(CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, 0));
	CHECK(launch_with(add, 2, stream, cooperative, of_two));
	CHECK(launch_with(add, 2, stream, priority, of_two));
	CHECK(launch_with(add, 2, stream, clusters_of(2), of_two));
	CHECK(launch_with(add, 2, stream, updatable, of_two));
	CHECK(launch_with(add, 2, stream, carveout, of_two));
	CHECK(CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, &graph));
	CHECK(CALL(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))(graph, nodes, &count));
	CHECK(get(nodes[0], CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
	EXPECT(1, value.cooperative);
	CHECK(get(nodes[1], CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
	EXPECT(-3, value.priority);
	CHECK(get(nodes[2], CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value));
	EXPECT(2, value.clusterDim.x);
	for (int i = 3; i < 5; i++) {
		CHECK(get(nodes[i], CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, &value));
		EXPECT(i == 3 ? -1 : 50, value.priority);
	}
	/* An executable graph keeps the attributes of what is set. */
	CUgraphExec exec = instantiate(graph);
	CUDA_KERNEL_NODE_PARAMS read;
	CHECK(get_kernel(nodes[0], &read));
	read.gridDimX = (unsigned)(blocks * processors + 1);
	EXPECT(720, exec_set_kernel(exec, nodes[0], &read));
	CHECK(exec_set_kernel(exec, nodes[1], &read));
}

/* A kernel whose result depends on clusters: *p += %cluster_nctarank */
static const char cluster_image[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
				    ".visible .entry of_cluster(.param .u64 p, .param .u32 x)\n"
				    "{\n"
				    ".reg .b32 %r<3>;\n.reg .b64 %rd<2>;\n"
				    "ld.param.u64 %rd1, [p];\nmov.u32 %r1, %cluster_nctarank;\n"
				    "atom.global.add.u32 %r2, [%rd1], %r1;\nret;\n}\n";

/* Refused rather than run with another result than a GPU's. */
static void clusters(void)
{
	uint32_t two = 2;
	void *of_two[] = {&word, &two};
	CUmodule module;

	CHECK(CALL(cuModuleLoadData, (CUmodule *, const void *))(&module, cluster_image));
	CUfunction of_cluster = obtain(module, "of_cluster");
	set_word(0);
	CHECK(launch_with(of_cluster, 2, NULL, clusters_of(1), of_two));
	EXPECT(2, get_word());
	EXPECT(801, launch_with(of_cluster, 2, NULL, clusters_of(2), of_two));
	EXPECT(2, get_word());
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{"write-value", write_value}, {"swapped", swapped},     {"nested", nested},
		{"disabled", disabled},	      {"read-back", read_back}, {"identities", identities},
		{"attributes", attributes},   {"clusters", clusters},
	};

	return run_scenario(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}
