/* Conditional nodes and memory nodes, with swapped kernels beside and within them: `bodies SCENARIO`. */
#include "replaying.h"

/* CUgraphNodeParams of a conditional node, and of an allocation. */
struct conditional {
	int type, reserved[3];
	uint64_t handle;
	int kind;
	unsigned size;
	CUgraph *bodies;
	CUcontext context;
	char rest[208];
};

_Static_assert(sizeof(struct conditional) == 256, "CUgraphNodeParams");

enum { IF, WHILE, SWITCH };

/* *p += 1, and the condition of handle is whether *p is not limit */
static const char condition_image[] =
	".version 8.0\n.target sm_80\n.address_size 64\n"
	".extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);\n"
	".visible .entry ahead(.param .u64 p, .param .u64 handle, .param .u32 limit)\n"
	"{\n"
	".reg .pred %p<2>;\n.reg .b32 %r<5>;\n.reg .b64 %rd<3>;\n"
	"ld.param.u64 %rd1, [p];\nld.param.u64 %rd2, [handle];\nld.param.u32 %r1, [limit];\n"
	"ld.global.u32 %r2, [%rd1];\nadd.u32 %r2, %r2, 1;\nst.global.u32 [%rd1], %r2;\n"
	"setp.ne.u32 %p1, %r2, %r1;\nselp.u32 %r3, 1, 0, %p1;\n"
	"{\n.param .b64 param0;\nst.param.b64 [param0+0], %rd2;\n"
	".param .b32 param1;\nst.param.b32 [param1+0], %r3;\n"
	"call.uni cudaGraphSetConditional, (param0, param1);\n}\nret;\n}\n";

static uint64_t make_handle(CUgraph graph, unsigned value, unsigned flags)
{
	CUresult (*create)(uint64_t *, CUgraph, CUcontext, unsigned, unsigned) =
		function_named("cuGraphConditionalHandleCreate");
	CUcontext context;
	uint64_t handle;

	CHECK(CALL(cuCtxGetCurrent, (CUcontext *))(&context));
	EXPECT(201, create(&handle, graph, NULL, value, flags));
	CHECK(create(&handle, graph, context, value, flags));
	return handle;
}

static CUresult add_conditional(CUgraphNode *node, CUgraph graph, CUgraphNode after, struct conditional *parameters)
{
	return CALL(cuGraphAddNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, void *))(
		node, graph, &after, after != NULL, parameters);
}

static CUgraphNode add_kernel(CUgraph graph, CUgraphNode after, CUfunction function, void **parameters)
{
	CUDA_KERNEL_NODE_PARAMS kernel = {.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
					  .blockDimY = 1, .blockDimZ = 1, .kernelParams = parameters};
	CUgraphNode node;

	CHECK(CALL(cuGraphAddKernelNode_v2, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
					     const CUDA_KERNEL_NODE_PARAMS *))(&node, graph, &after, after != NULL,
									       &kernel));
	return node;
}

/* Bodies that run never, once or until a kernel in them says that it is enough. */
static void conditional(void)
{
	uint32_t one = 1, two = 2, limit = 5;
	void *of_one[] = {&word, &one}, *of_two[] = {&word, &two};
	CUgraphExecUpdateResultInfo info;
	CUgraphNode node, within;
	CUmodule module;
	CUgraph graph, copy;
	CUgraphExec again;
	int type;

	begin_twin();
	to_device(cell, &counts[0], 8);
	CHECK(CALL(cuModuleLoadData, (CUmodule *, const void *))(&module, condition_image));
	CUfunction ahead = obtain(module, "ahead");
	for (unsigned value = 0; value < 3; value++)
		for (int kind = 0; kind < 3; kind += 2) {
			CHECK(CALL(cuGraphCreate, (CUgraph *, unsigned))(&graph, 0));
			struct conditional parameters = {.type = 13, .handle = make_handle(graph, value, 1), .kind = kind,
							 .size = 2};
			CHECK(add_conditional(&node, graph, NULL, &parameters));
			CHECK(CALL(cuGraphNodeGetType, (CUgraphNode, int *))(node, &type));
			EXPECT(13, type);
			within = add_kernel(parameters.bodies[0], NULL, step, of_one);
			add_kernel(parameters.bodies[1], NULL, step, of_two);
			add_kernel(graph, node, step, of_one);
			CUgraphExec exec = instantiate(graph);
			for (int i = 0; i < 2; i++) {
				set_word(1);
				CHECK(launch_graph(exec, NULL));
				uint32_t first = kind == IF ? (value ? 1 : 2) : value == 0 ? 1 : value == 1 ? 2 : 0;
				EXPECT((first ? 3 + first : 1) * 3 + 1, get_word());
			}
			CHECK(swap(exec, within));
			CHECK(launch_graph(exec, NULL));
		}
	/* Twice by IF, once by SWITCH. */
	EXPECT(3, count_of(0));

	CHECK(CALL(cuGraphCreate, (CUgraph *, unsigned))(&graph, 0));
	struct conditional loop = {.type = 13, .handle = make_handle(graph, 1, 1), .kind = WHILE, .size = 1};
	CHECK(add_conditional(&node, graph, NULL, &loop));
	void *of_loop[] = {&word, &loop.handle, &limit};
	within = add_kernel(loop.bodies[0], NULL, ahead, of_loop);
	CUdeviceptr other = allocate(4);
	uint32_t zero = 0;
	void *of_other[] = {&other, &zero};
	CUgraphNode beside = add_kernel(loop.bodies[0], within, step, of_other);
	CUgraphExec exec = instantiate(graph);
	EXPECT(801, CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))(&again, graph, 0));
	EXPECT(801, CALL(cuGraphClone, (CUgraph *, CUgraph))(&copy, graph));
	EXPECT(1, add_conditional(&node, graph, NULL, &loop));
	CHECK(swap(exec, beside));
	to_device(counts[0], &zero, 4);
	for (int i = 0; i < 3; i++) {
		set_word(0);
		CHECK(launch_graph(exec, i % 2 ? CU_STREAM_PER_THREAD : NULL));
		EXPECT(5, get_word());
		EXPECT(5 * (i + 1), count_of(0));
	}
	CHECK(CALL(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *))(exec, graph, &info));
	set_word(0);
	CHECK(launch_graph(exec, NULL));
	EXPECT(5, get_word());
	EXPECT(15, count_of(0));
	CHECK(CALL(cuGraphDestroy, (CUgraph))(graph));
	set_word(2);
	CHECK(launch_graph(exec, NULL));
	EXPECT(5, get_word());
	CHECK(CALL(cuGraphExecDestroy, (CUgraphExec))(exec));

	/* A value that is 0 at launch: no run of the body. A handle that no node uses. */
	CHECK(CALL(cuGraphCreate, (CUgraph *, unsigned))(&graph, 0));
	loop = (struct conditional){.type = 13, .handle = make_handle(graph, 0, 1), .kind = WHILE, .size = 1};
	EXPECT(1, CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))(&exec, graph, 0));
	CHECK(add_conditional(&node, graph, NULL, &loop));
	add_kernel(loop.bodies[0], NULL, ahead, of_loop);
	exec = instantiate(graph);
	set_word(0);
	CHECK(launch_graph(exec, NULL));
	EXPECT(0, get_word());
}

/* Memory that a graph allocates, uses and frees; and memory that it leaves to the program. */
static void memory_nodes(void)
{
	struct {
		int type, handles, location, device;
		char rest[72];
		const void *access;
		size_t access_count, size;
		CUdeviceptr address;
	} allocation = {.type = 1, .location = 1, .size = 64};
	CUstream stream = make_stream(1);
	CUgraphNode node, nodes[5];
	CUgraph graph, copy;
	CUgraphExec exec, again;
	CUdeviceptr address, found;
	size_t count = 5;
	uint32_t two = 2;
	int type;

	begin_twin();
	to_device(cell, &counts[0], 8);
	CHECK(CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, 0));
	CHECK(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&address, 64, stream));
	CHECK(CALL(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))(address, word, 4, stream));
	void *of_two[] = {&address, &two};
	CHECK(launch(step, 1, 1, stream, of_two));
	CHECK(CALL(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))(word, address, 4, stream));
	CHECK(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(address, stream));
	CHECK(CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, &graph));
	CHECK(CALL(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))(graph, nodes, &count));
	EXPECT(5, count);
	CHECK(CALL(cuGraphNodeGetType, (CUgraphNode, int *))(nodes[0], &type));
	EXPECT(10, type);
	CHECK(CALL(cuGraphMemAllocNodeGetParams, (CUgraphNode, void *))(nodes[0], &allocation));
	EXPECT(address, allocation.address);
	EXPECT(64, allocation.size);
	CHECK(CALL(cuGraphNodeGetType, (CUgraphNode, int *))(nodes[4], &type));
	EXPECT(11, type);
	CHECK(CALL(cuGraphMemFreeNodeGetParams, (CUgraphNode, CUdeviceptr *))(nodes[4], &found));
	EXPECT(address, found);
	EXPECT(801, CALL(cuGraphClone, (CUgraph *, CUgraph))(&copy, graph));
	exec = instantiate(graph);
	EXPECT(801, CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))(&again, graph, 0));
	CHECK(swap(exec, nodes[2]));
	set_word(1);
	for (int i = 0; i < 3; i++)
		CHECK(launch_graph(exec, stream));
	EXPECT(((1 * 3 + 2) * 3 + 2) * 3 + 2, get_word());
	EXPECT(3, count_of(0));
	CHECK(CALL(cuGraphExecDestroy, (CUgraphExec))(exec));
	exec = instantiate(graph);
	CHECK(CALL(cuGraphExecDestroy, (CUgraphExec))(exec));
	CHECK(CALL(cuGraphDestroy, (CUgraph))(graph));
	EXPECT(1, CALL(cuMemFree_v2, (CUdeviceptr))(address));

	/* Left to the program, which frees it before the next launch. */
	CHECK(CALL(cuGraphCreate, (CUgraph *, unsigned))(&graph, 0));
	allocation.address = 0;
	CHECK(CALL(cuGraphAddMemAllocNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, void *))(
		&node, graph, NULL, 0, &allocation));
	exec = instantiate(graph);
	CHECK(launch_graph(exec, stream));
	EXPECT(1, launch_graph(exec, stream));
	CHECK(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(allocation.address, stream));
	EXPECT(1, CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(allocation.address, stream));
	CHECK(launch_graph(exec, stream));
	CHECK(CALL(cuGraphExecDestroy, (CUgraphExec))(exec));
	CHECK(CALL(cuGraphDestroy, (CUgraph))(graph));
	CHECK(synchronize(stream));
	CHECK(CALL(cuMemFree_v2, (CUdeviceptr))(allocation.address));
	EXPECT(1, CALL(cuMemFree_v2, (CUdeviceptr))(allocation.address));
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {{"conditional", conditional}, {"memory-nodes", memory_nodes}};

	return run_scenario(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}
