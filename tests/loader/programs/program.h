/*
 * What the tests' programs share: the driver found as CUDA programs find it, by dlopen; launches through the pointers
 * that cuGetProcAddress gives; kernels that count.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cuda_abi.h"

/* CUDA_KERNEL_NODE_PARAMS_v2 of the driver API. */
struct kernel_node {
	CUfunction function;
	unsigned int grid[3], block[3], shared;
	void **parameters, **extra;
	CUkernel kernel;
	CUcontext context;
};

#define FUNCTIONS(X)                                                                                                   \
	X(Init, (unsigned))                                                                                            \
	X(DevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                             \
	X(DevicePrimaryCtxRelease_v2, (CUdevice))                                                                      \
	X(DevicePrimaryCtxReset_v2, (CUdevice))                                                                        \
	X(CtxCreate_v2, (CUcontext *, unsigned, CUdevice))                                                             \
	X(CtxDestroy_v2, (CUcontext))                                                                                  \
	X(CtxSetCurrent, (CUcontext))                                                                                  \
	X(CtxGetCurrent, (CUcontext *))                                                                                \
	X(CtxSynchronize, (void))                                                                                      \
	X(MemAlloc_v2, (CUdeviceptr *, size_t))                                                                        \
	X(MemGetInfo_v2, (size_t *, size_t *))                                                                         \
	X(MemFree_v2, (CUdeviceptr))                                                                                   \
	X(MemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream))                                                   \
	X(MemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                                                                \
	X(MemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                                                          \
	X(MemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                                 \
	X(ModuleLoadData, (CUmodule *, const void *))                                                                  \
	X(ModuleUnload, (CUmodule))                                                                                    \
	X(ModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                   \
	X(ModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                                       \
	X(LibraryLoadData,                                                                                             \
	  (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))                             \
	X(LibraryUnload, (CUlibrary))                                                                                  \
	X(LibraryGetKernel, (CUkernel *, CUlibrary, const char *))                                                     \
	X(LibraryGetModule, (CUmodule *, CUlibrary))                                                                   \
	X(LibraryGetGlobal, (CUdeviceptr *, size_t *, CUlibrary, const char *))                                        \
	X(KernelGetFunction, (CUfunction *, CUkernel))                                                                 \
	X(FuncSetAttribute, (CUfunction, int, int))                                                                    \
	X(StreamCreate, (CUstream *, unsigned))                                                                        \
	X(StreamDestroy_v2, (CUstream))                                                                                \
	X(StreamSynchronize, (CUstream))                                                                               \
	X(StreamSynchronize_ptsz, (CUstream))                                                                          \
	X(StreamQuery, (CUstream))                                                                                     \
	X(StreamWaitEvent, (CUstream, CUevent, unsigned))                                                              \
	X(LaunchHostFunc, (CUstream, void (*)(void *), void *))                                                        \
	X(StreamBeginCapture_v2, (CUstream, int))                                                                      \
	X(StreamEndCapture, (CUstream, void **))                                                                       \
	X(StreamIsCapturing, (CUstream, int *))                                                                        \
	X(ThreadExchangeStreamCaptureMode, (int *))                                                                    \
	X(EventCreate, (CUevent *, unsigned))                                                                          \
	X(EventRecord, (CUevent, CUstream))                                                                            \
	X(EventQuery, (CUevent))                                                                                       \
	X(EventSynchronize, (CUevent))                                                                                 \
	X(EventDestroy_v2, (CUevent))                                                                                  \
	X(GraphCreate, (void **, unsigned))                                                                            \
	X(GraphAddKernelNode_v2, (void **, void *, const void *const *, size_t, const struct kernel_node *))           \
	X(GraphGetNodes, (void *, void **, size_t *))                                                                  \
	X(GraphInstantiateWithFlags, (void **, void *, unsigned long long))                                            \
	X(GraphExecKernelNodeSetParams_v2, (void *, void *, const struct kernel_node *))                               \
	X(GraphLaunch, (void *, CUstream))                                                                             \
	X(GraphNodeSetEnabled, (void *, void *, unsigned))                                                             \
	X(GraphExecUpdate_v2, (void *, void *, uint64_t *))                                                            \
	X(GraphExecDestroy, (void *))                                                                                  \
	X(GraphDestroy, (void *))                                                                                      \
	X(GetProcAddress_v2, (const char *, void **, int, uint64_t, int *))

/* Asked of cuGetProcAddress, as cudart does. */
#define LAUNCHES(X)                                                                                                    \
	X(LaunchKernel,                                                                                             \
	  (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,        \
	   void **))                                                                                                   \
	X(LaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                                   \
	X(LaunchCooperativeKernel,                                                                                  \
	  (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **))

struct driver {
	void *library;
#define MEMBER(name, parameters) CUresult(*name) parameters;
	FUNCTIONS(MEMBER)
	LAUNCHES(MEMBER)
#undef MEMBER
	/* With a thread's own stream for its default. */
	CUresult (*LaunchKernel_ptsz)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
				      CUstream, void **, void **);
};
extern struct driver cu;

/* The program cannot go on without this. */
#define CHECK(expression)                                                                                              \
	do {                                                                                                           \
		CUresult check_result = (expression);                                                                  \
		if (check_result) {                                                                                    \
			printf("line %d: %s: error %d\n", __LINE__, #expression, check_result);                        \
			exit(9);                                                                                       \
		}                                                                                                      \
	} while (0)

/* What the driver answers is the scenario's result. */
#define TELL(expression) printf("%s: %d\n", #expression, (expression))

/* PTX text, as HOST_IMAGE names it. */
extern char image[65536];
void read_image(void);

/* Look everything up in the library of that name: libcuda.so.1, as programs know it. */
void find_driver(const char *name);

/* Through cuGetProcAddress; after cuInit. */
void find_launches(void);

CUmodule load(void);
CUlibrary load_library(void);
CUfunction obtain(CUmodule module, const char *name);
CUkernel obtain_kernel(CUlibrary library, const char *name);
CUstream make_stream(unsigned flags);

/* Zeroed device memory. */
CUdeviceptr allocate(size_t size);
uint64_t value_at(CUdeviceptr address);

/* A launch of a kernel whose first parameter is a device address and whose second, if it has one, an integer. */
extern uint64_t launches_made; /* by launch_at, or counted by the scenario */
CUresult launch_at(CUfunction function, CUdeviceptr address, unsigned blocks, unsigned threads, CUstream stream);

/* Run that many threads of work, each with its number, to their end. */
void run_threads(int count, void *(*work)(void *));

#endif
