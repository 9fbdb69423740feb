/* What a driver says of graphs: nodes read and changed, executable graphs updated, nulls. */
#include "asking.h"

static CUfunction add, empty;
static CUdeviceptr word;
static CUstream stream;
static uint32_t one = 1;
static void *of_one[] = {&word, &one};

static CUDA_KERNEL_NODE_PARAMS adding(void)
{
	return (CUDA_KERNEL_NODE_PARAMS){.func = add, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
					 .blockDimY = 1, .blockDimZ = 1, .kernelParams = of_one};
}

static CUgraph make_graph(void)
{
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	return graph;
}

static CUgraphNode add_kernel(CUgraph graph, CUgraphNode after)
{
	CUDA_KERNEL_NODE_PARAMS parameters = adding();
	CUgraphNode node;

	CHECK(cuGraphAddKernelNode_v2(&node, graph, after ? &after : NULL, after ? 1 : 0, &parameters));
	return node;
}

static CUgraphNode add_fill(CUgraph graph, CUgraphNode after)
{
	CUDA_MEMSET_NODE_PARAMS fill = {word, 4, 0, 4, 1, 1};
	CUgraphNode node;

	CHECK(cuGraphAddMemsetNode(&node, graph, after ? &after : NULL, after ? 1 : 0, &fill, context));
	return node;
}

static void begin_graphs(void)
{
	add = obtain(module, "add");
	empty = obtain(module, "empty");
	word = allocate(64);
	to_device(word, &(uint32_t){0}, 4);
	stream = make_stream(1);
}

static uint32_t value(void)
{
	uint32_t found = 0;

	cuStreamSynchronize(stream);
	cuMemcpyDtoH_v2(&found, word, 4);
	return found;
}

static void nodes(void)
{
	CUgraph graph;
	CUgraphNode node, found;
	CUDA_KERNEL_NODE_PARAMS parameters, read;
	size_t count;
	int type;

	begin_graphs();
	graph = make_graph();
	parameters = adding();

	question("add kernel node, refused ones");
	answer(cuGraphAddKernelNode_v2(NULL, graph, NULL, 0, &parameters));
	answer(cuGraphAddKernelNode_v2(&node, NULL, NULL, 0, &parameters));
	answer(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, NULL));
	answer(cuGraphAddKernelNode_v2(&node, graph, NULL, 1, &parameters));
	parameters.gridDimX = 0;
	answer(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &parameters));
	parameters = adding();
	parameters.blockDimX = 1025;
	answer(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &parameters));
	parameters = adding();
	parameters.sharedMemBytes = 1 << 20;
	answer(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &parameters));
	parameters = adding();
	parameters.kernelParams = NULL;
	answer(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &parameters));
	answer(cuGraphGetNodes(graph, NULL, &count));
	answer((long long)count);
	answered();

	question("get kernel node");
	node = add_kernel(graph, NULL);
	answer(cuGraphKernelNodeGetParams_v2(node, &read));
	answer(read.func == add);
	answer(read.kern == NULL);
	answer(read.ctx == context);
	answer(read.extra == NULL);
	answer(*(uint32_t *)read.kernelParams[1]);
	answer(cuGraphKernelNodeGetParams_v2(node, NULL));
	answer(cuGraphKernelNodeGetParams_v2(NULL, &read));
	answer(cuGraphNodeGetType(node, &type));
	answer(type);
	answered();

	question("get a fill as a kernel");
	found = add_fill(graph, node);
	answer(cuGraphKernelNodeGetParams_v2(found, &read));
	parameters = adding();
	answer(cuGraphKernelNodeSetParams_v2(found, &parameters));
	answered();

	question("set kernel node, other function, refused ones");
	answer(cuGraphKernelNodeSetParams_v2(node, NULL));
	parameters.func = empty;
	answer(cuGraphKernelNodeSetParams_v2(node, &parameters));
	answer(cuGraphKernelNodeGetParams_v2(node, &read));
	answer(read.func == empty);
	answer(read.kernelParams == NULL);
	parameters = adding();
	parameters.gridDimX = 0;
	answer(cuGraphKernelNodeSetParams_v2(node, &parameters));
	answered();

	question("kernel node by CUkernel");
	CUlibrary library;
	CUkernel kernel;
	answer(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	answer(cuLibraryGetKernel(&kernel, library, "add"));
	parameters = adding();
	parameters.func = NULL;
	parameters.kern = kernel;
	answer(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &parameters));
	answer(cuGraphKernelNodeGetParams_v2(node, &read));
	answer(read.func == NULL);
	answer(read.kern == kernel);
	parameters.func = (CUfunction)(void *)kernel;
	parameters.kern = NULL;
	answer(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &parameters));
	answer(cuGraphKernelNodeGetParams_v2(node, &read));
	answer(read.func == NULL);
	answer(read.func == (CUfunction)(void *)kernel);
	answer(read.kern == kernel);
	answer(read.ctx == context);
	answered();

	question("destroy node");
	answer(cuGraphDestroyNode(node));
	answer(cuGraphDestroyNode(NULL));
	answer(cuGraphGetNodes(graph, NULL, &count));
	answer((long long)count);
	answer(cuGraphGetNodes(graph, NULL, NULL));
	answered();
}

static void instances(void)
{
	CUgraphExec exec = NULL, again;
	CUgraph graph, other;
	CUgraphNode node, last;
	CUDA_KERNEL_NODE_PARAMS parameters;
	CUgraphExecUpdateResultInfo info = {0};
	uint32_t ten = 10;
	void *of_ten[] = {&word, &ten};

	begin_graphs();
	graph = make_graph();

	question("instantiate, refused ones");
	answer(cuGraphInstantiateWithFlags(NULL, graph, 0));
	answer(cuGraphInstantiateWithFlags(&exec, NULL, 0));
	answer(cuGraphInstantiateWithFlags(&exec, graph, 1024));
	answered();

	question("empty graph");
	answer(cuGraphInstantiateWithFlags(&exec, graph, 0));
	answer(cuGraphLaunch(exec, stream));
	answer(cuGraphLaunch(NULL, stream));
	answer(cuGraphUpload(NULL, stream));
	answer(cuGraphExecDestroy(exec));
	answer(cuGraphExecDestroy(NULL));
	answer(cuGraphDestroy(NULL));
	answered();

	node = add_kernel(graph, NULL);
	last = add_kernel(graph, node);
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	question("set in an executable graph");
	parameters = adding();
	parameters.kernelParams = of_ten;
	answer(cuGraphExecKernelNodeSetParams_v2(exec, node, &parameters));
	answer(cuGraphLaunch(exec, stream));
	answer(value());
	answer(cuGraphLaunch(exec, NULL));
	answer(cuCtxSynchronize());
	answer(value());
	parameters.func = empty;
	parameters.kernelParams = NULL;
	answer(cuGraphExecKernelNodeSetParams_v2(exec, node, &parameters));
	answer(cuGraphLaunch(exec, stream));
	answer(value());
	answer(cuGraphExecKernelNodeSetParams_v2(exec, NULL, &parameters));
	parameters.gridDimX = 0;
	answer(cuGraphExecKernelNodeSetParams_v2(exec, node, &parameters));
	answered();

	question("node of another graph");
	other = make_graph();
	CUgraphNode foreign = add_kernel(other, NULL);
	parameters = adding();
	answer(cuGraphExecKernelNodeSetParams_v2(exec, foreign, &parameters));
	answered();

	question("update with the same");
	answer(cuGraphExecUpdate_v2(exec, graph, &info));
	answer(info.result);
	answered();
	question("update with fewer nodes");
	answer(cuGraphExecUpdate_v2(exec, other, &info));
	answer(info.result);
	answer(info.errorNode == NULL);
	answer(info.errorFromNode == NULL);
	answered();
	question("update with more nodes");
	CUgraph more = make_graph();
	add_kernel(more, add_kernel(more, add_kernel(more, NULL)));
	answer(cuGraphExecUpdate_v2(exec, more, &info));
	answer(info.result);
	answered();
	question("update with another kind");
	CUgraph kind = make_graph();
	add_fill(kind, add_kernel(kind, NULL));
	answer(cuGraphExecUpdate_v2(exec, kind, &info));
	answer(info.result);
	answer(info.errorNode == NULL);
	answered();
	question("update with other edges");
	CUgraph edges = make_graph();
	add_kernel(edges, NULL);
	add_kernel(edges, NULL);
	answer(cuGraphExecUpdate_v2(exec, edges, &info));
	answer(info.result);
	answered();
	question("update with another function");
	CUgraph function = make_graph();
	parameters = adding();
	parameters.func = empty;
	parameters.kernelParams = NULL;
	CHECK(cuGraphAddKernelNode_v2(&node, function, NULL, 0, &parameters));
	add_kernel(function, node);
	answer(cuGraphExecUpdate_v2(exec, function, &info));
	answer(info.result);
	answered();
	question("update with an empty graph");
	answer(cuGraphExecUpdate_v2(exec, make_graph(), &info));
	answer(info.result);
	answered();
	question("update with nothing");
	answer(cuGraphExecUpdate_v2(exec, NULL, &info));
	answer(cuGraphExecUpdate_v2(exec, graph, NULL));
	answered();
	question("launch after an update that failed");
	to_device(word, &(uint32_t){0}, 4);
	answer(cuGraphExecUpdate_v2(exec, graph, &info));
	answer(cuGraphExecUpdate_v2(exec, more, &info));
	answer(cuGraphLaunch(exec, stream));
	answer(value());
	answered();

	question("the graph goes, what was made of it stays");
	answer(cuGraphDestroyNode(last));
	answer(cuGraphDestroy(graph));
	answer(cuGraphLaunch(exec, stream));
	answer(value());
	answered();

	question("launched twice at once, on two streams");
	CUstream second = make_stream(1);
	answer(cuGraphLaunch(exec, stream));
	answer(cuGraphLaunch(exec, second));
	answer(cuCtxSynchronize());
	answer(value());
	answered();

	question("a graph captured of a graph's launch");
	size_t count = 0;
	CUgraphNode inner[4];
	int type = -1;
	answer(cuStreamBeginCapture_v2(stream, 2));
	answer(cuGraphLaunch(exec, stream));
	answer(cuStreamEndCapture(stream, &other));
	answer(cuGraphGetNodes(other, NULL, &count));
	answer((long long)count);
	count = 4;
	answer(cuGraphGetNodes(other, inner, &count));
	answer(cuGraphNodeGetType(inner[0], &type));
	answer(type);
	answer(cuGraphInstantiateWithFlags(&again, other, 0));
	answered();

	question("destroyed while it runs");
	answer(cuGraphLaunch(exec, stream));
	answer(cuGraphExecDestroy(exec));
	answer(value());
	answered();
}

/* A graph that names a function of a module that goes. */
static void unloaded(void)
{
	CUmodule extra;
	CUgraph graph;
	CUgraphExec exec;

	begin_graphs();
	extra = load();
	add = obtain(extra, "add");
	graph = make_graph();
	add_kernel(graph, NULL);
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	question("unload a module that an executable graph names");
	answer(cuGraphLaunch(exec, stream));
	answer(cuModuleUnload(extra));
	answer(value());
	answered();
}

int main(int argc, char **argv)
{
	static const struct group groups[] = {{"nodes", nodes}, {"instances", instances}, {"unloaded", unloaded}};

	return run_group(argc, argv, groups, sizeof(groups) / sizeof(groups[0]));
}
