/* What a driver says of conditional nodes, of nodes that allocate memory, and of green contexts. */
#include "asking_graphs.h"

/* CUgraphNodeParams of a conditional node. */
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

/* ahead: *p += 1, and the condition of handle is whether *p is not limit. */
static const char ahead_image[] =
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

static uint64_t handle_of(CUgraph graph, unsigned value)
{
	uint64_t handle = 0;

	CHECK(cuGraphConditionalHandleCreate(&handle, graph, context, value, 1));
	return handle;
}

static CUresult add_conditional(CUgraphNode *node, CUgraph graph, struct conditional *given, int kind, unsigned size)
{
	*given = (struct conditional){.type = 13, .handle = given->handle, .kind = kind, .size = size, .context = context};
	return cuGraphAddNode(node, graph, NULL, 0, given);
}

static void conditions(void)
{
	CUgraph graph = NULL, copy;
	CUgraphNode node = NULL, inside;
	CUgraphExec exec = NULL, again;
	CUgraphExecUpdateResultInfo info;
	struct conditional given = {0};
	uint64_t handle;
	uint32_t limit = 4;
	void *of_loop[] = {&word, &given.handle, &limit};
	CUmodule module_ahead;
	CUfunction ahead;
	size_t count = 0;
	int type = -1;

	begin_graphs();
	graph = new_graph();
	question("handles");
	answer(cuGraphConditionalHandleCreate(NULL, graph, context, 0, 1));
	answer(cuGraphConditionalHandleCreate(&handle, NULL, context, 0, 1));
	answer(cuGraphConditionalHandleCreate(&handle, graph, context, 0, 2));
	answer(cuGraphConditionalHandleCreate(&handle, graph, NULL, 0, 0));
	answered();
	graph = new_graph();
	given.handle = handle_of(graph, 1);
	question("refused nodes");
	answer(add_conditional(&node, graph, &given, IF, 0));
	answer(add_conditional(&node, graph, &given, IF, 3));
	answer(add_conditional(&node, graph, &given, WHILE, 2));
	answer(add_conditional(&node, graph, &given, SWITCH, 0));
	answer(add_conditional(&node, graph, &given, 9, 1));
	answered();
	for (int kind = IF; kind <= SWITCH; kind += 2)
		for (unsigned value = 0; value < 3; value++) {
			question("%s of %u", kind == IF ? "IF" : "SWITCH", value);
			graph = new_graph();
			given.handle = handle_of(graph, value);
			answer(add_conditional(&node, graph, &given, kind, 2));
			answer(cuGraphNodeGetType(node, &type));
			answer(type);
			answer(cuGraphGetNodes(given.bodies[0], NULL, &count));
			answer((long long)count);
			inside = add_node(given.bodies[0], NULL, step, of_one);
			add_node(given.bodies[1], NULL, step, of_two);
			answer(cuGraphInstantiateWithFlags(&exec, graph, 0));
			answer_launch(exec);
			answer_launch(exec);
			answer(set_node(exec, inside, twin, of_twin));
			answer_launch(exec);
			answer(read_word(counted));
			answered();
		}
	CHECK(cuModuleLoadData(&module_ahead, ahead_image));
	ahead = obtain(module_ahead, "ahead");
	graph = new_graph();
	given.handle = handle_of(graph, 1);
	question("WHILE");
	answer(add_conditional(&node, graph, &given, WHILE, 1));
	inside = add_node(given.bodies[0], NULL, ahead, of_loop);
	CUDA_MEMSET_NODE_PARAMS fill = {word + 8, 4, 0, 4, 1, 1};
	answer(cuGraphAddMemsetNode(&inside, given.bodies[0], NULL, 0, &fill, context));
	answer(cuGraphInstantiateWithFlags(&exec, graph, 0));
	answer_launch(exec);
	answer_launch(exec);
	answered();
	question("WHILE, what such graphs do not allow");
	CUgraphNode child;
	answer(cuGraphClone(&copy, graph));
	answer(cuGraphAddChildGraphNode(&child, new_graph(), NULL, 0, graph));
	answer(cuGraphInstantiateWithFlags(&again, graph, 0));
	answer(cuGraphDestroy(given.bodies[0]));
	struct conditional same = {.handle = given.handle};
	answer(add_conditional(&node, graph, &same, IF, 1));
	answered();
	question("WHILE, updated with its own graph");
	answer(cuGraphExecUpdate_v2(exec, graph, &info));
	answer(info.result);
	answer_launch(exec);
	answered();
	question("WHILE, instantiated again when the first has gone");
	answer(cuGraphExecDestroy(exec));
	answer(cuGraphInstantiateWithFlags(&exec, graph, 0));
	answered();
	question("WHILE of 0 at launch");
	graph = new_graph();
	given.handle = handle_of(graph, 0);
	answer(add_conditional(&node, graph, &given, WHILE, 1));
	add_node(given.bodies[0], NULL, ahead, of_loop);
	answer(cuGraphInstantiateWithFlags(&exec, graph, 0));
	answer_launch(exec);
	answer(cuGraphDestroy(graph));
	answer_launch(exec);
	answered();
	question("a handle that no node uses");
	graph = new_graph();
	handle_of(graph, 0);
	answer(cuGraphInstantiateWithFlags(&exec, graph, 0));
	answered();
}

static void memory(void)
{
	struct {
		int type, handles, location, device;
		char rest[72];
		const void *access;
		size_t access_count, size;
		CUdeviceptr address;
	} allocation = {.type = 1, .location = 1, .size = 64};
	CUgraph graph, copy;
	CUgraphNode node, nodes[5], child;
	CUgraphExec exec, again;
	CUdeviceptr address = 0;
	void *of_memory[] = {&address, &two};
	void *of_twin_there[] = {&address, &two, &cell};
	size_t count = 5;
	int type = -1;

	begin_graphs();
	question("captured");
	answer(cuStreamBeginCapture_v2(stream, 0));
	answer(cuMemAllocAsync(&address, 64, stream));
	answer(cuMemcpyDtoDAsync_v2(address, word, 4, stream));
	answer(launch(step, 1, 1, stream, of_memory));
	answer(cuMemcpyDtoDAsync_v2(word, address, 4, stream));
	answer(cuMemFreeAsync(address, stream));
	answer(cuStreamEndCapture(stream, &graph));
	answer(cuGraphGetNodes(graph, nodes, &count));
	answer((long long)count);
	answer(cuGraphNodeGetType(nodes[0], &type));
	answer(type);
	answer(cuGraphNodeGetType(nodes[4], &type));
	answer(type);
	answered();
	question("instantiated, swapped");
	answer(cuGraphClone(&copy, graph));
	answer(cuGraphAddChildGraphNode(&child, new_graph(), NULL, 0, graph));
	answer(cuGraphInstantiateWithFlags(&exec, graph, 0));
	answer(cuGraphInstantiateWithFlags(&again, graph, 0));
	answer_launch(exec);
	answer(set_node(exec, nodes[2], twin, of_twin_there));
	answer_launch(exec);
	answer_launch(exec);
	answer(read_word(counted));
	answer(cuGraphExecDestroy(exec));
	answer(cuGraphInstantiateWithFlags(&exec, graph, 0));
	answered();
	question("added by hand, refused ones");
	graph = new_graph();
	allocation.size = 0;
	answer(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &allocation));
	allocation.size = 64;
	allocation.type = 7;
	answer(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &allocation));
	allocation.type = 1;
	answer(cuGraphAddMemAllocNode(&node, graph, NULL, 0, NULL));
	answer(cuGraphAddMemFreeNode(&node, graph, NULL, 0, word));
	answered();
	question("left to the program");
	answer(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &allocation));
	answer(allocation.address != 0);
	answer(cuGraphInstantiateWithFlags(&exec, graph, 0));
	answer(cuGraphLaunch(exec, stream));
	answer(cuGraphLaunch(exec, stream));
	answer(cuMemFreeAsync(allocation.address, stream));
	answer(cuGraphLaunch(exec, stream));
	answer(cuGraphExecDestroy(exec));
	answer(cuGraphDestroy(graph));
	answer(cuStreamSynchronize(stream));
	answer(cuMemFree_v2(allocation.address));
	answered();
	question("freed at launch");
	graph = new_graph();
	answer(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &allocation));
	answer(cuGraphInstantiateWithFlags(&exec, graph, 1));
	answer(cuGraphLaunch(exec, stream));
	answer(cuGraphLaunch(exec, stream));
	answer(cuCtxSynchronize());
	answered();
}

/* CUdevResource */
struct resource {
	int type;
	char padding[92];
	unsigned count, least, alignment;
	char rest[36];
};

static void *green;
static CUcontext of_green;

static void *push_elsewhere(void *data)
{
	(void)data;
	answer(cuCtxPushCurrent_v2(of_green));
	return NULL;
}

static void greens(void)
{
	struct resource all = {0}, groups[2] = {0}, rest = {0};
	unsigned count = 0;
	unsigned long long ids[2] = {0};
	void *description = NULL, *found_green = NULL;
	CUcontext found = NULL;
	CUstream own = NULL;
	pthread_t thread;

	begin_graphs();
	question("resources");
	answer(cuDeviceGetDevResource(0, &all, 1));
	answer(all.type);
	answer(all.least);
	answer(all.alignment);
	answer(cuDeviceGetDevResource(0, NULL, 1));
	answer(cuDeviceGetDevResource(0, &rest, 0));
	answer(cuDeviceGetDevResource(1, &rest, 1));
	answer(cuCtxGetDevResource(context, &rest, 1));
	answer(rest.count == all.count);
	answered();
	question("split");
	answer(cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 0, 60));
	answer(count);
	count = 2;
	answer(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 60));
	answer(count);
	answer(groups[0].count);
	answer(rest.count == all.count - 2 * groups[0].count);
	count = 2;
	answer(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, all.count + 1));
	count = 2;
	answer(cuDevSmResourceSplitByCount(groups, NULL, &all, &rest, 0, 8));
	answer(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 1));
	answer(groups[0].count);
	count = 2;
	answer(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 60));
	answered();
	question("made");
	answer(cuDevResourceGenerateDesc(&description, NULL, 1));
	answer(cuDevResourceGenerateDesc(&description, groups, 1));
	answer(cuGreenCtxCreate(&green, description, 0, 0));
	answer(cuGreenCtxCreate(&green, NULL, 0, 1));
	answer(cuGreenCtxCreate(&green, description, 0, 1));
	answer(cuGreenCtxGetDevResource(green, &rest, 1));
	answer(rest.count == groups[0].count);
	answer(cuCtxFromGreenCtx(&of_green, green));
	answer(of_green == context);
	answer(cuCtxGetId(context, &ids[0]));
	answer(cuCtxGetId(of_green, &ids[1]));
	answer(ids[0] == ids[1]);
	answered();
	question("its streams");
	answer(cuGreenCtxStreamCreate(&own, green, 0, 0));
	answer(cuGreenCtxStreamCreate(&own, green, 1, 0));
	answer(cuStreamGetCtx(own, &found));
	answer(found == of_green);
	answer(cuStreamGetGreenCtx(own, &found_green));
	answer(found_green == green);
	answer(cuStreamGetGreenCtx(stream, &found_green));
	answer(found_green == NULL);
	to_device(word, &one, 4);
	answer(launch(step, 1, 1, own, of_two));
	answer(cuStreamWriteValue32_v2(own, word + 4, 6, 0));
	answer(cuStreamSynchronize(own));
	answer(read_word(word));
	answered();
	question("current");
	answer(cuCtxPushCurrent_v2(of_green));
	answer(cuCtxGetCurrent(&found));
	answer(found == of_green);
	CUdeviceptr memory_there = 0;
	CUmodule there;
	CUfunction loaded;
	answer(cuMemAlloc_v2(&memory_there, 64));
	answer(cuModuleLoadData(&there, steps_image));
	answer(cuModuleGetFunction(&loaded, there, "step"));
	answer(launch(loaded, 1, 1, NULL, of_two));
	answer(cuCtxSynchronize());
	answer(cuCtxPopCurrent_v2(&found));
	answer(read_word(word));
	answer(launch(loaded, 1, 1, stream, of_two));
	answer(read_word(word));
	answer(cuCtxDestroy_v2(of_green));
	answered();
	question("current to a second thread");
	answer(cuCtxPushCurrent_v2(of_green));
	pthread_create(&thread, NULL, push_elsewhere, NULL);
	pthread_join(thread, NULL);
	answer(cuCtxPopCurrent_v2(&found));
	answered();
	question("destroyed");
	answer(cuGreenCtxDestroy(green));
	answer(launch(step, 1, 1, own, of_two));
	answer(cuStreamDestroy_v2(own));
	answer(cuMemFree_v2(memory_there));
	answer(cuCtxSynchronize());
	answered();
	ASK("destroyed twice", cuGreenCtxDestroy(green));
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {{"conditions", conditions}, {"memory", memory}, {"greens", greens}};

	return run_group(argc, argv, groups, sizeof(groups) / sizeof(groups[0]));
}
