/*
 * What the CUDA driver is called by: its library, and every function of it that the hook calls or intercepts. All that
 * the hook knows of names, versions and variants is here; a driver of another vendor would have a table like this.
 *
 * A function that is to be intercepted is one row of NT_DRIVER_WRAPPED. Its columns are name, parameters, arguments, what
 * is done before the real call and what after it. In the last two, `result` is what the real call returned, and
 *   ON_SUCCESS(action)   the real call succeeded
 *   ON_FAILURE(action)   it did not
 *   IN_TRACE(action)     a trace is being written
 *   AGAIN_WITHOUT_POOL(call)   if the driver had no memory and the hook could give some back, the result of call instead
 *   FOR_TWINS(handle, NT_SET_..., attribute, value, device)   both, and the twins of the function or kernel get it, too
 * hook.c makes the exported functions of these rows, and has those of NT_DRIVER_HAND_WRAPPED in full.
 */
#ifndef NEUTRINO_CUDA_FUNCTIONS_H
#define NEUTRINO_CUDA_FUNCTIONS_H

#include "base/cuda_abi.h"

#define NT_DRIVER_NAME "libcuda.so"
#define NT_DRIVER_SONAME NT_DRIVER_NAME ".1"
/* The prefix of every function's name. */
#define NT_DRIVER_PREFIX "cu"
/* A library that has this function is a driver. */
#define NT_DRIVER_START cuInit
/* Prefixes of the names of the driver's own libraries, which look functions up on its behalf. */
#define NT_DRIVER_COMPANIONS NT_DRIVER_NAME, "libcudadebugger", "libnvidia-"

/* Called by the hook, not wrapped. */
#define NT_DRIVER_CALLED(X)                                                                                            \
	X(cuDriverGetVersion, (int *))                                                                                 \
	X(cuFuncGetParamInfo, (CUfunction, size_t, size_t *, size_t *))                                                \
	X(cuKernelGetParamInfo, (CUkernel, size_t, size_t *, size_t *))                                                \
	X(cuDeviceGet, (CUdevice *, int))                                                                              \
	X(cuDeviceGetCount, (int *))                                                                                   \
	X(cuDeviceGetAttribute, (int *, int, CUdevice))                                                                \
	X(cuDeviceGetName, (char *, int, CUdevice))                                                                    \
	X(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                                   \
	X(cuCtxGetCurrent, (CUcontext *))                                                                              \
	X(cuCtxGetDevice, (CUdevice *))                                                                                \
	X(cuStreamGetId, (CUstream, unsigned long long *))                                                             \
	X(cuCtxRecordEvent, (CUcontext, CUevent))                                                                      \
	X(cuCtxGetId, (CUcontext, unsigned long long *))                                                               \
	X(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *))                                                   \
	X(cuCtxPushCurrent_v2, (CUcontext))                                                                            \
	X(cuCtxPopCurrent_v2, (CUcontext *))                                                                           \
	X(cuMemFree_v2, (CUdeviceptr))                                                                                 \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                       \
	X(cuMemHostAlloc, (void **, size_t, unsigned int))                                                             \
	X(cuMemFreeHost, (void *))                                                                                     \
	X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                             \
	X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                               \
	X(cuStreamCreate, (CUstream *, unsigned int))                                                                  \
	X(cuStreamIsCapturing, (CUstream, int *))                                                                      \
	X(cuStreamIsCapturing_ptsz, (CUstream, int *))                                                                 \
	X(cuEventCreate, (CUevent *, unsigned int))                                                                    \
	X(cuEventDestroy_v2, (CUevent))                                                                                \
	X(cuEventRecord, (CUevent, CUstream))                                                                          \
	X(cuEventElapsedTime, (float *, CUevent, CUevent))                                                             \
	X(cuEventQuery, (CUevent))                                                                                     \
	X(cuThreadExchangeStreamCaptureMode, (int *))                                                                  \
	X(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                                     \
	X(cuLibraryGetGlobal, (CUdeviceptr *, size_t *, CUlibrary, const char *))                                      \
	X(cuKernelGetName, (const char **, CUkernel))                                                                  \
	X(cuFuncGetName, (const char **, CUfunction))                                                                  \
	X(cuFuncGetAttribute, (int *, int, CUfunction))                                                                \
	X(cuCtxGetLimit, (size_t *, int))                                                                              \
	X(cuFuncLoad, (CUfunction))                                                                                    \
	X(cuStreamGetCtx, (CUstream, CUcontext *))                                                                     \
	X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, CUfunction, int, size_t))                               \
	X(cuStreamWaitEvent, (CUstream, CUevent, unsigned int))                                                        \
	X(cuStreamWriteValue64, (CUstream, CUdeviceptr, uint64_t, unsigned int))                                       \
	X(cuStreamWriteValue64_v2, (CUstream, CUdeviceptr, uint64_t, unsigned int))                                    \
	X(cuGraphClone, (CUgraph *, CUgraph))                                                                          \
	X(cuGraphNodeFindInClone, (CUgraphNode *, CUgraphNode, CUgraph))                                               \
	X(cuGraphKernelNodeSetParams_v2, (CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))                               \
	X(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))                                                         \
	X(cuGraphNodeGetType, (CUgraphNode, int *))                                                                    \
	X(cuGraphChildGraphNodeGetGraph, (CUgraphNode, CUgraph *))                                                     \
	X(cuGraphKernelNodeGetParams_v2, (CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))                                     \
	X(cuGraphKernelNodeGetAttribute, (CUgraphNode, int, CUlaunchAttributeValue *))                                 \
	/* Of the embedded device alone: why this thread's last image was refused. */                                  \
	X(neutrinoEmbeddedRefusal, (char *, size_t))

#define NT_DRIVER_WRAPPED(X)                                                                                           \
	/* Start, and looking functions up. */                                                                         \
	X(cuInit, (unsigned flags), (flags), NOTHING, ON_SUCCESS(nt_process_start()))                                  \
	X(cuGetProcAddress, (const char *symbol, void **function, int version, uint64_t flags),                        \
	  (symbol, function, version, flags), NOTHING, ON_SUCCESS(give_ours(function)))                                \
	X(cuGetProcAddress_v2, (const char *symbol, void **function, int version, uint64_t flags,                      \
	   int *status),                                                                                               \
	  (symbol, function, version, flags, status), NOTHING, ON_SUCCESS(give_ours(function)))                        \
	/* Modules and libraries. */                                                                                   \
	X(cuModuleLoad, (CUmodule *module, const char *path),                                                          \
	  (module, path), NOTHING, nt_loaded_file(module, false, path, CALLER, result))                                \
	X(cuModuleLoadData, (CUmodule *module, const void *image),                                                     \
	  (module, image), NOTHING, nt_loaded_data(module, false, image, CALLER, result))                              \
	X(cuModuleLoadDataEx, (CUmodule *module, const void *image, unsigned count, int *options,                      \
	   void **values),                                                                                             \
	  (module, image, count, options, values), NOTHING,                                                            \
	  nt_loaded_data(module, false, image, CALLER, result))                                                        \
	X(cuModuleLoadFatBinary, (CUmodule *module, const void *image),                                                \
	  (module, image), NOTHING, nt_loaded_data(module, false, image, CALLER, result))                              \
	X(cuLibraryLoadData, (CUlibrary *library, const void *image, int *jit_options, void **jit_values,              \
	   unsigned jit_count, int *options, void **values, unsigned count),                                           \
	  (library, image, jit_options, jit_values, jit_count, options, values, count), NOTHING,                       \
	  nt_loaded_data(library, true, image, CALLER, result))                                                        \
	X(cuLibraryLoadFromFile, (CUlibrary *library, const char *path, int *jit_options, void **jit_values,           \
	   unsigned jit_count, int *options, void **values, unsigned count),                                           \
	  (library, path, jit_options, jit_values, jit_count, options, values, count), NOTHING,                        \
	  nt_loaded_file(library, true, path, CALLER, result))                                                         \
	X(cuModuleUnload, (CUmodule module), (module), IN_TRACE(nt_registry_unloading(module, false)), NOTHING)        \
	X(cuLibraryUnload, (CUlibrary library),                                                                        \
	  (library), IN_TRACE(nt_registry_unloading(library, true)), NOTHING)                                          \
	X(cuLibraryGetModule, (CUmodule *module, CUlibrary library),                                                   \
	  (module, library), NOTHING, ON_SUCCESS(IN_TRACE(nt_registry_alias(*module, library))))                       \
	/* The driver's linker. */                                                                                     \
	X(cuLinkCreate, (unsigned count, int *options, void **values, void **state),                                   \
	  (count, options, values, state), NOTHING, ON_SUCCESS(nt_linked_begins(*state, count, options, values)))      \
	X(cuLinkAddData, (void *state, int type, void *data, size_t size, const char *name, unsigned count,            \
	   int *options, void **values),                                                                               \
	  (state, type, data, size, name, count, options, values), NOTHING,                                            \
	  nt_linked_gets(state, type, data, size, count, options, values))                                             \
	X(cuLinkAddFile, (void *state, int type, const char *path, unsigned count, int *options, void **values),       \
	  (state, type, path, count, options, values), NOTHING,                                                        \
	  nt_linked_gets(state, type, NULL, 0, count, options, values))                                                \
	X(cuLinkCreate_v2, (unsigned count, int *options, void **values, void **state),                                \
	  (count, options, values, state), NOTHING, ON_SUCCESS(nt_linked_begins(*state, count, options, values)))      \
	X(cuLinkAddData_v2, (void *state, int type, void *data, size_t size, const char *name, unsigned count,         \
	   int *options, void **values),                                                                               \
	  (state, type, data, size, name, count, options, values), NOTHING,                                            \
	  nt_linked_gets(state, type, data, size, count, options, values))                                             \
	X(cuLinkAddFile_v2, (void *state, int type, const char *path, unsigned count, int *options, void **values),    \
	  (state, type, path, count, options, values), NOTHING,                                                        \
	  nt_linked_gets(state, type, NULL, 0, count, options, values))                                                \
	X(cuLinkComplete, (void *state, void **cubin, size_t *size),                                                   \
	  (state, cubin, size), NOTHING, ON_SUCCESS(nt_linked_done(state, cubin, size)))                               \
	X(cuLinkDestroy, (void *state), (state), nt_linked_ends(state), NOTHING)                                       \
	/* Functions and kernels. What the program sets of one holds for its twins. */                                 \
	X(cuModuleGetFunction, (CUfunction *function, CUmodule module, const char *name),                              \
	  (function, module, name), NOTHING,                                                                           \
	  ON_SUCCESS(IN_TRACE(nt_registry_obtained(module, false, *function, name))))                                  \
	X(cuModuleEnumerateFunctions, (CUfunction *functions, unsigned count, CUmodule module),                        \
	  (functions, count, module), NOTHING,                                                                         \
	  ON_SUCCESS(IN_TRACE(obtained_all(module, false, functions, count))))                                         \
	X(cuLibraryGetKernel, (CUkernel *kernel, CUlibrary library, const char *name),                                 \
	  (kernel, library, name), NOTHING,                                                                            \
	  ON_SUCCESS(IN_TRACE(nt_registry_obtained(library, true, *kernel, name))))                                    \
	X(cuLibraryEnumerateKernels, (CUkernel *kernels, unsigned count, CUlibrary library),                           \
	  (kernels, count, library), NOTHING,                                                                          \
	  ON_SUCCESS(IN_TRACE(obtained_all(library, true, kernels, count))))                                           \
	X(cuKernelGetFunction, (CUfunction *function, CUkernel kernel),                                                \
	  (function, kernel), NOTHING, ON_SUCCESS(IN_TRACE(nt_registry_function_of(kernel, *function))))               \
	X(cuFuncSetAttribute, (CUfunction function, int attribute, int value),                                         \
	  (function, attribute, value), NOTHING,                                                                       \
	  FOR_TWINS(function, NT_SET_ATTRIBUTE, attribute, value, 0))                                                  \
	X(cuFuncSetCacheConfig, (CUfunction function, int config),                                                     \
	  (function, config), NOTHING, FOR_TWINS(function, NT_SET_CACHE, 0, config, 0))                                \
	X(cuFuncSetSharedMemConfig, (CUfunction function, int config),                                                 \
	  (function, config), NOTHING, FOR_TWINS(function, NT_SET_SHARED, 0, config, 0))                               \
	X(cuKernelSetAttribute, (int attribute, int value, CUkernel kernel, CUdevice device),                          \
	  (attribute, value, kernel, device), NOTHING,                                                                 \
	  FOR_TWINS(kernel, NT_SET_KERNEL_ATTRIBUTE, attribute, value, device))                                        \
	X(cuKernelSetCacheConfig, (CUkernel kernel, int config, CUdevice device),                                      \
	  (kernel, config, device), NOTHING,                                                                           \
	  FOR_TWINS(kernel, NT_SET_KERNEL_CACHE, 0, config, device))                                                   \
	/* Launches that run their originals: counted. */                                                              \
	X(cuLaunchCooperativeKernelMultiDevice, (void *launches, unsigned count, unsigned flags),                      \
	  (launches, count, flags), nt_launch_forms_unknown(), nt_quiet_launch_ends())                                 \
	X(cuLaunch, (CUfunction function), (function), nt_launch_forms_other(function), nt_quiet_launch_ends())        \
	X(cuLaunchGrid, (CUfunction function, int width, int height),                                                  \
	  (function, width, height), nt_launch_forms_other(function), nt_quiet_launch_ends())                          \
	X(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream),                            \
	  (function, width, height, stream), nt_launch_forms_other(function), nt_quiet_launch_ends())                  \
	/* Captures of streams: counted, so that launches need not ask while there is none. */                         \
	X(cuStreamBeginCapture, (CUstream stream), (stream), nt_launch_capture_begins(),                               \
	  ON_FAILURE(nt_launch_capture_ends()))                                                                        \
	X(cuStreamBeginCapture_ptsz, (CUstream stream), (stream), nt_launch_capture_begins(),                          \
	  ON_FAILURE(nt_launch_capture_ends()))                                                                        \
	X(cuStreamBeginCapture_v2, (CUstream stream, int mode), (stream, mode), nt_launch_capture_begins(),            \
	  ON_FAILURE(nt_launch_capture_ends()))                                                                        \
	X(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode), (stream, mode), nt_launch_capture_begins(),       \
	  ON_FAILURE(nt_launch_capture_ends()))                                                                        \
	X(cuStreamBeginCaptureToGraph, (CUstream stream, CUgraph graph, const CUgraphNode *dependencies,               \
	   const void *edges, size_t count, int mode),                                                                 \
	  (stream, graph, dependencies, edges, count, mode), nt_launch_capture_begins(),                               \
	  ON_FAILURE(nt_launch_capture_ends()))                                                                        \
	X(cuStreamBeginCaptureToGraph_ptsz, (CUstream stream, CUgraph graph, const CUgraphNode *dependencies,          \
	   const void *edges, size_t count, int mode),                                                                 \
	  (stream, graph, dependencies, edges, count, mode), nt_launch_capture_begins(),                               \
	  ON_FAILURE(nt_launch_capture_ends()))                                                                        \
	X(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph), NOTHING, nt_launch_capture_ends())   \
	X(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph), (stream, graph), NOTHING,                        \
	  nt_launch_capture_ends())                                                                                    \
	/* Executable graphs: made, changed, destroyed. */                                                             \
	X(cuGraphInstantiate, (CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size),           \
	  (exec, graph, node, log, size), NOTHING, ON_SUCCESS(IN_TRACE(nt_graph_instantiated(*exec, graph, 0))))       \
	X(cuGraphInstantiate_v2, (CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size),        \
	  (exec, graph, node, log, size), NOTHING, ON_SUCCESS(IN_TRACE(nt_graph_instantiated(*exec, graph, 0))))       \
	X(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags),                   \
	  (exec, graph, flags), NOTHING, ON_SUCCESS(IN_TRACE(nt_graph_instantiated(*exec, graph, flags))))             \
	X(cuGraphInstantiateWithParams, (CUgraphExec *exec, CUgraph graph, uint64_t *parameters),                      \
	  (exec, graph, parameters), NOTHING,                                                                          \
	  ON_SUCCESS(IN_TRACE(nt_graph_instantiated(*exec, graph, *parameters))))                                      \
	X(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *exec, CUgraph graph, uint64_t *parameters),                 \
	  (exec, graph, parameters), NOTHING,                                                                          \
	  ON_SUCCESS(IN_TRACE(nt_graph_instantiated(*exec, graph, *parameters))))                                      \
	X(cuGraphExecUpdate, (CUgraphExec exec, CUgraph graph, CUgraphNode *node, int *verdict),                       \
	  (exec, graph, node, verdict), NOTHING, ON_SUCCESS(IN_TRACE(nt_graph_updated(exec, graph))))                  \
	X(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, void *info),                                         \
	  (exec, graph, info), NOTHING, ON_SUCCESS(IN_TRACE(nt_graph_updated(exec, graph))))                           \
	X(cuGraphExecKernelNodeSetParams, (CUgraphExec exec, CUgraphNode node, const void *parameters),                \
	  (exec, node, parameters), NOTHING, ON_SUCCESS(IN_TRACE(nt_graph_node_set(exec, node, parameters, false))))   \
	X(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec exec, CUgraphNode node, const void *parameters),             \
	  (exec, node, parameters), NOTHING, ON_SUCCESS(IN_TRACE(nt_graph_node_set(exec, node, parameters, true))))    \
	X(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, void *parameters),                            \
	  (exec, node, parameters), NOTHING,                                                                           \
	  ON_SUCCESS(IN_TRACE(nt_graph_any_node_set(exec, node, parameters))))                                         \
	X(cuGraphExecChildGraphNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraph child),                     \
	  (exec, node, child), NOTHING, ON_SUCCESS(IN_TRACE(nt_graph_child_set(exec, node, child))))                   \
	X(cuGraphNodeSetEnabled, (CUgraphExec exec, CUgraphNode node, unsigned enabled),                               \
	  (exec, node, enabled), NOTHING, ON_SUCCESS(IN_TRACE(nt_graph_node_enabled(exec, node, enabled))))            \
	X(cuGraphExecDestroy, (CUgraphExec exec), (exec), nt_graph_exec_ends(exec), NOTHING)                           \
	X(cuGraphAddNode, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,            \
	   CUgraphNodeParams *parameters),                                                                             \
	  (node, graph, dependencies, count, parameters), NOTHING,                                                     \
	  ON_SUCCESS(nt_graph_node_added(*node, graph, parameters)))                                                   \
	X(cuGraphAddNode_v2, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,                       \
	   const void *edges, size_t count, CUgraphNodeParams *parameters),                                            \
	  (node, graph, dependencies, edges, count, parameters), NOTHING,                                              \
	  ON_SUCCESS(nt_graph_node_added(*node, graph, parameters)))                                                   \
	/* Allocations of device memory: the driver may have none because the hook has it. */                          \
	X(cuMemAlloc_v2, (CUdeviceptr *address, size_t size),                                                          \
	  (address, size), NOTHING, AGAIN_WITHOUT_POOL(nt_driver.cuMemAlloc_v2(address, size)))                        \
	X(cuMemAllocPitch_v2, (CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element),    \
	  (address, pitch, width, height, element), NOTHING,                                                           \
	  AGAIN_WITHOUT_POOL(nt_driver.cuMemAllocPitch_v2(address, pitch, width, height, element)))                    \
	X(cuMemAllocManaged, (CUdeviceptr *address, size_t size, unsigned flags),                                      \
	  (address, size, flags), NOTHING, AGAIN_WITHOUT_POOL(nt_driver.cuMemAllocManaged(address, size, flags)))      \
	X(cuMemAllocAsync, (CUdeviceptr *address, size_t size, CUstream stream),                                       \
	  (address, size, stream), NOTHING, AGAIN_WITHOUT_POOL(nt_driver.cuMemAllocAsync(address, size, stream)))      \
	X(cuMemAllocAsync_ptsz, (CUdeviceptr *address, size_t size, CUstream stream),                                  \
	  (address, size, stream), NOTHING,                                                                            \
	  AGAIN_WITHOUT_POOL(nt_driver.cuMemAllocAsync_ptsz(address, size, stream)))                                   \
	X(cuMemAllocFromPoolAsync, (CUdeviceptr *address, size_t size, void *pool, CUstream stream),                   \
	  (address, size, pool, stream), NOTHING,                                                                      \
	  AGAIN_WITHOUT_POOL(nt_driver.cuMemAllocFromPoolAsync(address, size, pool, stream)))                          \
	X(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr *address, size_t size, void *pool, CUstream stream),              \
	  (address, size, pool, stream), NOTHING,                                                                      \
	  AGAIN_WITHOUT_POOL(nt_driver.cuMemAllocFromPoolAsync_ptsz(address, size, pool, stream)))                     \
	X(cuMemCreate, (uint64_t *handle, size_t size, const void *properties, uint64_t flags),                        \
	  (handle, size, properties, flags), NOTHING,                                                                  \
	  AGAIN_WITHOUT_POOL(nt_driver.cuMemCreate(handle, size, properties, flags)))                                  \
	X(cuArrayCreate_v2, (void **array, const void *descriptor),                                                    \
	  (array, descriptor), NOTHING, AGAIN_WITHOUT_POOL(nt_driver.cuArrayCreate_v2(array, descriptor)))             \
	X(cuArray3DCreate_v2, (void **array, const void *descriptor),                                                  \
	  (array, descriptor), NOTHING, AGAIN_WITHOUT_POOL(nt_driver.cuArray3DCreate_v2(array, descriptor)))           \
	X(cuMipmappedArrayCreate, (void **array, const void *descriptor, unsigned levels),                             \
	  (array, descriptor, levels), NOTHING,                                                                        \
	  AGAIN_WITHOUT_POOL(nt_driver.cuMipmappedArrayCreate(array, descriptor, levels)))                             \
	/* Streams and contexts that are destroyed, and contexts that become current. */                               \
	X(cuStreamDestroy, (CUstream stream), (stream), IN_TRACE(nt_lifetimes_stream_ends(stream)), NOTHING)           \
	X(cuStreamDestroy_v2, (CUstream stream), (stream), IN_TRACE(nt_lifetimes_stream_ends(stream)), NOTHING)        \
	X(cuCtxSetCurrent, (CUcontext context),                                                                        \
	  (context), NOTHING, ON_SUCCESS(IN_TRACE(nt_lifetimes_context_comes(context))))                               \
	X(cuCtxDestroy, (CUcontext context), (context), IN_TRACE(nt_lifetimes_context_ends(context)), NOTHING)         \
	X(cuCtxDestroy_v2, (CUcontext context), (context), IN_TRACE(nt_lifetimes_context_ends(context)), NOTHING)      \
	X(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device),                                             \
	  (context, device), NOTHING, ON_SUCCESS(nt_lifetimes_primary_retained(device)))                               \
	X(cuGreenCtxCreate, (void **green, void *resources, CUdevice device, unsigned flags),                          \
	  (green, resources, device, flags), NOTHING, ON_SUCCESS(nt_lifetimes_green_comes(*green)))                    \
	X(cuCtxFromGreenCtx, (CUcontext *context, void *green),                                                        \
	  (context, green), NOTHING, ON_SUCCESS(nt_lifetimes_green_comes(green)))                                      \
	X(cuGreenCtxDestroy, (void *green), (green), nt_lifetimes_green_ends(green), NOTHING)                          \
	X(cuCtxDetach, (CUcontext context),                                                                            \
	  (context), IN_TRACE(nt_lifetimes_context_may_end(context)),                                                  \
	  IN_TRACE(nt_lifetimes_context_may_have_ended(context)))                                                      \
	X(cuDevicePrimaryCtxRelease, (CUdevice device),                                                                \
	  (device), nt_lifetimes_primary_release_begins(device), nt_lifetimes_primary_released(device, result))        \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice device),                                                             \
	  (device), nt_lifetimes_primary_release_begins(device), nt_lifetimes_primary_released(device, result))        \
	X(cuDevicePrimaryCtxReset, (CUdevice device),                                                                  \
	  (device), IN_TRACE(nt_lifetimes_primary_reset_begins(device)),                                               \
	  IN_TRACE(nt_lifetimes_primary_was_reset(device)))                                                            \
	X(cuDevicePrimaryCtxReset_v2, (CUdevice device),                                                               \
	  (device), IN_TRACE(nt_lifetimes_primary_reset_begins(device)), IN_TRACE(nt_lifetimes_primary_was_reset(device)))

/* Launches, waits, and what is not always the driver's: their functions are written out in hook.c. */
#define NT_DRIVER_HAND_WRAPPED(X)                                                                                      \
	X(cuLaunchKernel, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                     \
	   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream,                     \
	   void **parameters, void **extra))                                                                           \
	X(cuLaunchKernel_ptsz, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                \
	   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream,                     \
	   void **parameters, void **extra))                                                                           \
	X(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **parameters,                     \
	   void **extra))                                                                                              \
	X(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *config, CUfunction function, void **parameters,                \
	   void **extra))                                                                                              \
	X(cuLaunchCooperativeKernel, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,          \
	   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream,                     \
	   void **parameters))                                                                                         \
	X(cuLaunchCooperativeKernel_ptsz, (CUfunction function, unsigned grid_x, unsigned grid_y,                      \
	   unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,                     \
	   CUstream stream, void **parameters))                                                                        \
	X(cuGraphDestroy, (CUgraph graph))                                                                             \
	X(cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                                          \
	X(cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream))                                                     \
	X(cuStreamSynchronize, (CUstream stream))                                                                      \
	X(cuStreamSynchronize_ptsz, (CUstream stream))                                                                 \
	X(cuCtxSynchronize, (void))

/* All that the hook exports. */
#define NT_DRIVER_INTERCEPTED(X) NT_DRIVER_WRAPPED(X) NT_DRIVER_HAND_WRAPPED(X)

#endif
