/* What programs that ask of graphs and green contexts need besides asking.h. */
#ifndef ASKING_GRAPHS_H
#define ASKING_GRAPHS_H

#include "asking.h"

#define MORE_CALLS(X)                                                                                                  \
	X(cuCtxAttach, (CUcontext *, unsigned))                                                                        \
	X(cuCtxDetach, (CUcontext))                                                                                    \
	X(cuCtxFromGreenCtx, (CUcontext *, void *))                                                                    \
	X(cuCtxGetDevResource, (CUcontext, void *, int))                                                               \
	X(cuDeviceGetDevResource, (CUdevice, void *, int))                                                             \
	X(cuDevResourceGenerateDesc, (void **, void *, unsigned))                                                      \
	X(cuDevSmResourceSplitByCount, (void *, unsigned *, const void *, void *, unsigned, unsigned))                 \
	X(cuGraphAddChildGraphNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph))                    \
	X(cuGraphAddMemAllocNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, void *))                       \
	X(cuGraphAddMemFreeNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr))                   \
	X(cuGraphAddNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, void *))                               \
	X(cuGraphChildGraphNodeGetGraph, (CUgraphNode, CUgraph *))                                                     \
	X(cuGraphClone, (CUgraph *, CUgraph))                                                                          \
	X(cuGraphConditionalHandleCreate, (uint64_t *, CUgraph, CUcontext, unsigned, unsigned))                        \
	X(cuGraphExecChildGraphNodeSetParams, (CUgraphExec, CUgraphNode, CUgraph))                                     \
	X(cuGraphExecNodeSetParams, (CUgraphExec, CUgraphNode, void *))                                                \
	X(cuGraphInstantiateWithParams, (CUgraphExec *, CUgraph, void *))                                              \
	X(cuGraphKernelNodeCopyAttributes, (CUgraphNode, CUgraphNode))                                                 \
	X(cuGraphKernelNodeGetAttribute, (CUgraphNode, int, CUlaunchAttributeValue *))                                 \
	X(cuGraphKernelNodeSetAttribute, (CUgraphNode, int, const CUlaunchAttributeValue *))                           \
	X(cuGraphNodeFindInClone, (CUgraphNode *, CUgraphNode, CUgraph))                                               \
	X(cuGraphNodeGetEnabled, (CUgraphExec, CUgraphNode, unsigned *))                                               \
	X(cuGraphNodeSetEnabled, (CUgraphExec, CUgraphNode, unsigned))                                                 \
	X(cuGraphNodeSetParams, (CUgraphNode, void *))                                                                 \
	X(cuGreenCtxCreate, (void **, void *, CUdevice, unsigned))                                                     \
	X(cuGreenCtxDestroy, (void *))                                                                                 \
	X(cuGreenCtxGetDevResource, (void *, void *, int))                                                             \
	X(cuGreenCtxStreamCreate, (CUstream *, void *, unsigned, int))                                                 \
	X(cuStreamGetGreenCtx, (CUstream, void **))                                                                    \
	X(cuStreamGetId, (CUstream, unsigned long long *))                                                             \
	X(cuStreamGetId_ptsz, (CUstream, unsigned long long *))                                                        \
	X(cuStreamWriteValue32, (CUstream, CUdeviceptr, uint32_t, unsigned))                                           \
	X(cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned))                                        \
	X(cuStreamWriteValue64, (CUstream, CUdeviceptr, uint64_t, unsigned))                                           \
	X(cuStreamWriteValue64_v2, (CUstream, CUdeviceptr, uint64_t, unsigned))

#define DECLARE(name, type) static CUresult(*name) type __attribute__((unused));
MORE_CALLS(DECLARE)
#undef DECLARE

/* step: *p = 3 * *p + x, which shows an order. twin: the same, and counts in the word whose address cell holds. */
static const char steps_image[] =
	".version 8.0\n.target sm_80\n.address_size 64\n"
	".visible .entry step(.param .u64 p, .param .u32 x)\n"
	"{\n"
	".reg .b32 %r<4>;\n.reg .b64 %rd<2>;\n"
	"ld.param.u64 %rd1, [p];\nld.param.u32 %r1, [x];\n"
	"ld.global.u32 %r2, [%rd1];\nmad.lo.u32 %r3, %r2, 3, %r1;\nst.global.u32 [%rd1], %r3;\nret;\n}\n"
	".visible .entry twin(.param .u64 p, .param .u32 x, .param .u64 cell)\n"
	"{\n"
	".reg .b32 %r<5>;\n.reg .b64 %rd<4>;\n"
	"ld.param.u64 %rd1, [p];\nld.param.u32 %r1, [x];\n"
	"ld.global.u32 %r2, [%rd1];\nmad.lo.u32 %r3, %r2, 3, %r1;\nst.global.u32 [%rd1], %r3;\n"
	"ld.param.u64 %rd2, [cell];\nld.global.u64 %rd3, [%rd2];\natom.global.add.u32 %r4, [%rd3], 1;\nret;\n}\n";

static CUfunction step, twin;
static CUdeviceptr word, cell, counted;
static CUstream stream;
static uint32_t one = 1, two = 2;
static void *of_one[] = {&word, &one}, *of_two[] = {&word, &two}, *of_twin[] = {&word, &two, &cell};

static inline void begin_graphs(void)
{
	CUmodule steps;

#define FIND(name, type) name = (CUresult(*) type)function_named(#name);
	MORE_CALLS(FIND)
#undef FIND
	CHECK(cuModuleLoadData(&steps, steps_image));
	step = obtain(steps, "step");
	twin = obtain(steps, "twin");
	word = allocate(64);
	cell = allocate(8);
	counted = allocate(4);
	to_device(counted, &(uint32_t){0}, 4);
	to_device(cell, &counted, 8);
	stream = make_stream(1);
}

static inline uint32_t read_word(CUdeviceptr from)
{
	uint32_t found = 77;

	cuCtxSynchronize();
	cuMemcpyDtoH_v2(&found, from, 4);
	return found;
}

/* A launch's result where word was 1 before. */
static inline void answer_launch(CUgraphExec exec)
{
	cuMemcpyHtoD_v2(word, &one, 4);
	answer(cuGraphLaunch(exec, stream));
	answer(read_word(word));
}

static inline CUDA_KERNEL_NODE_PARAMS launch_of(CUfunction function, void **parameters)
{
	return (CUDA_KERNEL_NODE_PARAMS){.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
					 .blockDimY = 1, .blockDimZ = 1, .kernelParams = parameters};
}

static inline CUgraphNode add_node(CUgraph graph, CUgraphNode after, CUfunction function, void **parameters)
{
	CUDA_KERNEL_NODE_PARAMS kernel = launch_of(function, parameters);
	CUgraphNode node;

	CHECK(cuGraphAddKernelNode_v2(&node, graph, &after, after != NULL, &kernel));
	return node;
}

static inline CUgraph new_graph(void)
{
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	return graph;
}

static inline CUresult set_node(CUgraphExec exec, CUgraphNode node, CUfunction function, void **parameters)
{
	CUDA_KERNEL_NODE_PARAMS kernel = launch_of(function, parameters);

	return cuGraphExecKernelNodeSetParams_v2(exec, node, &kernel);
}

#endif
