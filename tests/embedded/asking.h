/*
 * Questions to a driver: each prints one line, `name: code code …`, the calls' answers in the order of the calls, and
 * nothing that differs from machine to machine. A program with no argument prints the names of its groups; a group is
 * a process of its own.
 */
#ifndef ASKING_H
#define ASKING_H

#include <stdarg.h>

#include "host.h"

/* The driver's functions, as variables of their names. */
#define DRIVER_CALLS(X)                                                                                                \
	X(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))                                                           \
	X(cuCtxDestroy_v2, (CUcontext))                                                                                \
	X(cuCtxGetApiVersion, (CUcontext, unsigned *))                                                                 \
	X(cuCtxGetCurrent, (CUcontext *))                                                                              \
	X(cuCtxGetDevice, (CUdevice *))                                                                                \
	X(cuCtxGetFlags, (unsigned *))                                                                                 \
	X(cuCtxGetId, (CUcontext, unsigned long long *))                                                               \
	X(cuCtxGetLimit, (size_t *, int))                                                                              \
	X(cuCtxPopCurrent_v2, (CUcontext *))                                                                           \
	X(cuCtxPushCurrent_v2, (CUcontext))                                                                            \
	X(cuCtxSetCurrent, (CUcontext))                                                                                \
	X(cuCtxSetLimit, (int, size_t))                                                                                \
	X(cuCtxSynchronize, (void))                                                                                    \
	X(cuDeviceGetAttribute, (int *, int, CUdevice))                                                                \
	X(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *))                                                   \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                    \
	X(cuDevicePrimaryCtxReset_v2, (CUdevice))                                                                      \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                           \
	X(cuDevicePrimaryCtxSetFlags_v2, (CUdevice, unsigned))                                                         \
	X(cuEventCreate, (CUevent *, unsigned))                                                                        \
	X(cuEventDestroy_v2, (CUevent))                                                                                \
	X(cuEventElapsedTime, (float *, CUevent, CUevent))                                                             \
	X(cuEventQuery, (CUevent))                                                                                     \
	X(cuEventRecord, (CUevent, CUstream))                                                                          \
	X(cuEventSynchronize, (CUevent))                                                                               \
	X(cuFuncGetAttribute, (int *, int, CUfunction))                                                                \
	X(cuFuncGetModule, (CUmodule *, CUfunction))                                                                   \
	X(cuFuncGetName, (const char **, CUfunction))                                                                  \
	X(cuFuncSetAttribute, (CUfunction, int, int))                                                                  \
	X(cuGetErrorName, (CUresult, const char **))                                                                   \
	X(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))                                          \
	X(cuGraphAddKernelNode_v2,                                                                                     \
	  (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *))                      \
	X(cuGraphAddMemsetNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t,                                  \
				 const CUDA_MEMSET_NODE_PARAMS *, CUcontext))                                          \
	X(cuGraphAddEmptyNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t))                                  \
	X(cuGraphCreate, (CUgraph *, unsigned))                                                                        \
	X(cuGraphDestroy, (CUgraph))                                                                                   \
	X(cuGraphDestroyNode, (CUgraphNode))                                                                           \
	X(cuGraphExecDestroy, (CUgraphExec))                                                                           \
	X(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))              \
	X(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *))                                 \
	X(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))                                                         \
	X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                                   \
	X(cuGraphKernelNodeGetParams_v2, (CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))                                     \
	X(cuGraphKernelNodeSetParams_v2, (CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))                               \
	X(cuGraphLaunch, (CUgraphExec, CUstream))                                                                      \
	X(cuGraphNodeGetType, (CUgraphNode, int *))                                                                    \
	X(cuGraphUpload, (CUgraphExec, CUstream))                                                                      \
	X(cuKernelGetFunction, (CUfunction *, CUkernel))                                                               \
	X(cuLaunchCooperativeKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,          \
				      unsigned, CUstream, void **))                                                    \
	X(cuLaunchHostFunc, (CUstream, CUhostFn, void *))                                                              \
	X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
			   void **, void **))                                                                          \
	X(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                                    \
	X(cuLibraryGetGlobal, (CUdeviceptr *, size_t *, CUlibrary, const char *))                                      \
	X(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))                                                   \
	X(cuLibraryGetModule, (CUmodule *, CUlibrary))                                                                 \
	X(cuLibraryLoadData,                                                                                           \
	  (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))                             \
	X(cuLibraryUnload, (CUlibrary))                                                                                \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                      \
	X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                                          \
	X(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))                                                        \
	X(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                                     \
	X(cuMemFree_v2, (CUdeviceptr))                                                                                 \
	X(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                                     \
	X(cuMemFreeHost, (void *))                                                                                     \
	X(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr))                                             \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                       \
	X(cuMemHostAlloc, (void **, size_t, unsigned))                                                                 \
	X(cuMemHostGetDevicePointer_v2, (CUdeviceptr *, void *, unsigned))                                             \
	X(cuMemHostGetFlags, (unsigned *, void *))                                                                     \
	X(cuMemHostRegister_v2, (void *, size_t, unsigned))                                                            \
	X(cuMemHostUnregister, (void *))                                                                               \
	X(cuMemcpy, (CUdeviceptr, CUdeviceptr, size_t))                                                                \
	X(cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))                                                         \
	X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                          \
	X(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                                                              \
	X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                               \
	X(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                                                        \
	X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                                         \
	X(cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t))                                                             \
	X(cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream))                                                 \
	X(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))                                                         \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                 \
	X(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                                     \
	X(cuModuleLoadData, (CUmodule *, const void *))                                                                \
	X(cuModuleLoadDataEx, (CUmodule *, const void *, unsigned, int *, void **))                                    \
	X(cuModuleUnload, (CUmodule))                                                                                  \
	X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, CUfunction, int, size_t))                               \
	X(cuPointerGetAttribute, (void *, int, CUdeviceptr))                                                           \
	X(cuStreamAddCallback, (CUstream, CUstreamCallback, void *, unsigned))                                         \
	X(cuStreamBeginCapture_v2, (CUstream, int))                                                                    \
	X(cuStreamCreate, (CUstream *, unsigned))                                                                      \
	X(cuStreamCreateWithPriority, (CUstream *, unsigned, int))                                                     \
	X(cuStreamDestroy_v2, (CUstream))                                                                              \
	X(cuStreamEndCapture, (CUstream, CUgraph *))                                                                   \
	X(cuStreamGetCaptureInfo_v2,                                                                                   \
	  (CUstream, int *, uint64_t *, CUgraph *, const CUgraphNode **, size_t *))                                    \
	X(cuStreamGetCtx, (CUstream, CUcontext *))                                                                     \
	X(cuStreamGetFlags, (CUstream, unsigned *))                                                                    \
	X(cuStreamGetPriority, (CUstream, int *))                                                                      \
	X(cuStreamIsCapturing, (CUstream, int *))                                                                      \
	X(cuStreamQuery, (CUstream))                                                                                   \
	X(cuStreamSynchronize, (CUstream))                                                                             \
	X(cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                                            \
	X(cuThreadExchangeStreamCaptureMode, (int *))

#define DECLARE(name, type) static CUresult(*name) type __attribute__((unused));
DRIVER_CALLS(DECLARE)
#undef DECLARE

static CUcontext context;
static CUmodule module;

/* Begin a line. */
__attribute__((format(printf, 1, 2), unused)) static void question(const char *name, ...)
{
	va_list arguments;

	va_start(arguments, name);
	vprintf(name, arguments);
	va_end(arguments);
	printf(":");
	fflush(stdout);
}

/* One answer: on the line at once, so that a crash shows where it was. */
__attribute__((unused)) static long long answer(long long code)
{
	printf(" %lld", code);
	fflush(stdout);
	return code;
}

__attribute__((unused)) static void answered(void)
{
	printf("\n");
	fflush(stdout);
}

/* A line of one call. */
#define ASK(name, call)                                                                                                \
	do {                                                                                                           \
		question("%s", name);                                                                                  \
		answer(call);                                                                                          \
		answered();                                                                                            \
	} while (0)

struct group {
	const char *name;
	void (*ask)(void);
};


/* The group that the command line names, with a context and the module of HOST_IMAGE. */
static inline int run_group(int argc, char **argv, const struct group *groups, size_t count)
{
	for (size_t i = 0; argc < 2 && i < count; i++)
		printf("%s\n", groups[i].name);
	for (size_t i = 0; argc > 1 && i < count; i++) {
		if (strcmp(groups[i].name, argv[1]) != 0)
			continue;
		context = begin();
#define FIND(name, type) name = (CUresult(*) type)function_named(#name);
		DRIVER_CALLS(FIND)
#undef FIND
		module = load();
		groups[i].ask();
		fflush(stdout);
		/* What a group leaves behind may be broken on purpose: no exit handlers. */
		_exit(0);
	}
	return argc < 2 ? 0 : 2;
}

#endif
