/* A step that shows the order of launches, its twin in a module of its own, and what swaps them in replays of graphs. */
#ifndef REPLAYING_H
#define REPLAYING_H

#include "host.h"

static CUfunction step;
static CUdeviceptr word;

static inline void set_word(uint32_t value)
{
	to_device(word, &value, sizeof(value));
}

static inline uint32_t get_word(void)
{
	uint32_t value;

	CHECK(CALL(cuCtxSynchronize, (void))());
	to_host(&value, word, sizeof(value));
	return value;
}

static inline CUresult launch_step(uint32_t x, CUstream stream)
{
	void *parameters[] = {&word, &x};

	return launch(step, 1, 1, stream, parameters);
}

static inline CUgraphExec instantiate(CUgraph graph)
{
	CUgraphExec exec;

	CHECK(CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))(&exec, graph, 0));
	return exec;
}

static inline CUresult launch_graph(CUgraphExec exec, CUstream stream)
{
	return CALL(cuGraphLaunch, (CUgraphExec, CUstream))(exec, stream);
}

static inline CUresult write32(CUstream stream, CUdeviceptr to, uint32_t value)
{
	return CALL(cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned))(stream, to, value, 0);
}

static inline CUresult write64(CUstream stream, CUdeviceptr to, uint64_t value)
{
	return CALL(cuStreamWriteValue64_v2, (CUstream, CUdeviceptr, uint64_t, unsigned))(stream, to, value, 0);
}

/* step as a tool's copy of it: a module of its own, one parameter more, the address of a word to count in there. */
static const char twin_image[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
				 ".visible .entry step__twin(.param .u64 p, .param .u32 x, .param .u64 cell)\n"
				 "{\n"
				 ".reg .b32 %r<5>;\n.reg .b64 %rd<4>;\n"
				 "ld.param.u64 %rd1, [p];\nld.param.u32 %r1, [x];\n"
				 "ld.global.u32 %r2, [%rd1];\nmad.lo.u32 %r3, %r2, 3, %r1;\nst.global.u32 [%rd1], %r3;\n"
				 "ld.param.u64 %rd2, [cell];\nld.global.u64 %rd3, [%rd2];\n"
				 "atom.global.add.u32 %r4, [%rd3], 1;\nret;\n}\n";

static CUfunction twin;
static CUdeviceptr cell, counts[2];

static inline void begin_twin(void)
{
	CUmodule module;

	CHECK(CALL(cuModuleLoadData, (CUmodule *, const void *))(&module, twin_image));
	twin = obtain(module, "step__twin");
	cell = allocate(8);
	for (int i = 0; i < 2; i++) {
		counts[i] = allocate(4);
		to_device(counts[i], &(uint32_t){0}, 4);
	}
}

static inline uint32_t count_of(int region)
{
	uint32_t count;

	CHECK(CALL(cuCtxSynchronize, (void))());
	to_host(&count, counts[region], sizeof(count));
	return count;
}

static inline CUresult get_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *ret)
{
	return CALL(cuGraphKernelNodeGetParams_v2, (CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))(node, ret);
}

static inline CUresult exec_set_kernel(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	return CALL(cuGraphExecKernelNodeSetParams_v2,
		    (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))(exec, node, parameters);
}

static inline CUresult update(CUgraphExec exec, CUgraph graph)
{
	CUgraphExecUpdateResultInfo info;

	return CALL(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *))(exec, graph, &info);
}

/* The node's launch with the twin in place of its kernel; memory is the parameters' list. */
static inline CUDA_KERNEL_NODE_PARAMS as_twin(CUgraphNode node, void *memory[3])
{
	CUDA_KERNEL_NODE_PARAMS read;

	CHECK(get_kernel(node, &read));
	memory[0] = read.kernelParams[0];
	memory[1] = read.kernelParams[1];
	memory[2] = &cell;
	read.func = twin;
	read.kern = NULL;
	read.kernelParams = memory;
	return read;
}

static inline CUresult swap(CUgraphExec exec, CUgraphNode node)
{
	void *memory[3];
	CUDA_KERNEL_NODE_PARAMS parameters = as_twin(node, memory);

	return exec_set_kernel(exec, node, &parameters);
}

/* A graph of step(first) and step(second), by capture, and its two nodes. */
static inline CUgraph capture_steps(uint32_t first, uint32_t second, CUgraphNode nodes[2])
{
	CUstream stream = make_stream(1);
	CUgraph graph;
	size_t count = 2;

	CHECK(CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, 0));
	CHECK(launch_step(first, stream));
	CHECK(launch_step(second, stream));
	CHECK(CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, &graph));
	CHECK(CALL(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))(graph, nodes, &count));
	EXPECT(2, count);
	return graph;
}

static inline void begin_replays(void)
{
	(void)begin();
	step = obtain(load(), "step");
	word = allocate(64);
}

struct scenario {
	const char *name;
	void (*run)(void);
};

/* Run the scenario that the command line names. Returns the exit status. */
static inline int run_scenario(int argc, char **argv, const struct scenario *scenarios, size_t count)
{
	for (size_t i = 0; argc > 1 && i < count; i++) {
		if (strcmp(scenarios[i].name, argv[1]) != 0)
			continue;
		begin_replays();
		scenarios[i].run();
		printf("done\n");
		return 0;
	}
	return 2;
}

#endif
