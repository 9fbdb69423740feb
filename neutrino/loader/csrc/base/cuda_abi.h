/*
 * The part of the CUDA driver's binary interface that the hook touches, declared here so that building needs no
 * toolkit. Names, types and values are the driver API's: https://docs.nvidia.com/cuda/cuda-driver-api/
 */
#ifndef NEUTRINO_CUDA_ABI_H
#define NEUTRINO_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext;
typedef void *CUmodule;
typedef void *CUlibrary;
typedef void *CUkernel;
typedef void *CUfunction;
typedef void *CUstream;
typedef void *CUevent;
typedef void *CUgraph;
typedef void *CUgraphNode;
typedef void *CUgraphExec;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
	CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
	CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
	CUDA_ERROR_NOT_SUPPORTED = 801,
};

enum {
	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
};

enum {
	CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
	CU_LIMIT_STACK_SIZE = 0,
};

/* Options of the driver's compiler and linker, and the only kind of input that is looked at. */
enum {
	CU_JIT_MAX_REGISTERS = 0,
	CU_JIT_THREADS_PER_BLOCK = 1,
	CU_JIT_WALL_TIME = 2,
	CU_JIT_INFO_LOG_BUFFER = 3,
	CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4,
	CU_JIT_ERROR_LOG_BUFFER = 5,
	CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
	CU_JIT_OPTIMIZATION_LEVEL = 7,
	CU_JIT_TARGET_FROM_CUCONTEXT = 8,
	CU_JIT_TARGET = 9,
	CU_JIT_FALLBACK_STRATEGY = 10,
	CU_JIT_GENERATE_DEBUG_INFO = 11,
	CU_JIT_LOG_VERBOSE = 12,
	CU_JIT_GENERATE_LINE_INFO = 13,
	CU_JIT_CACHE_MODE = 14,
	CU_JIT_INPUT_PTX = 1,
};

enum {
	CU_STREAM_NON_BLOCKING = 1,
	CU_EVENT_DISABLE_TIMING = 2,
	CU_MEMHOSTALLOC_PORTABLE = 1,
	CU_STREAM_CAPTURE_STATUS_NONE = 0,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

/* Stream handles that mean a thread's or a context's default stream. */
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

/* Keys of the `extra` argument of a launch. */
#define CU_LAUNCH_PARAM_END ((void *)0x00)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)0x01)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)0x02)

typedef struct CUlaunchConfig_st {
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	CUstream hStream;
	void *attrs;
	unsigned int numAttrs;
} CUlaunchConfig;

/* The second version, which cuGraphKernelNodeGetParams_v2 and its like take; the first ends before kern. */
typedef struct CUDA_KERNEL_NODE_PARAMS_v2_st {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	void **kernelParams;
	void **extra;
	CUkernel kern; /* where func is NULL; both are set in what the driver returns */
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

enum {
	CU_GRAPH_NODE_TYPE_KERNEL = 0,
	CU_GRAPH_NODE_TYPE_GRAPH = 4,
	CU_GRAPH_NODE_TYPE_CONDITIONAL = 13,
};

enum {
	CU_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH = 4,
	CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE = 13,
};

/* CUgraphNodeParams: the type, then a union, of which this is the conditional node's part. */
typedef struct CUgraphNodeParams_st {
	int type;
	int reserved[3];
	struct {
		unsigned long long handle;
		int type;
		unsigned int size; /* graphs in phGraph_out */
		CUgraph *phGraph_out; /* set by the driver: the bodies */
		CUcontext ctx;
	} conditional;
} CUgraphNodeParams;

/* CUlaunchAttributeValue, of which the hook reads the first byte or word. */
typedef union CUlaunchAttributeValue_union {
	char pad[64];
	int number;
} CUlaunchAttributeValue;

#endif
