#include "launch.h"

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "channel.h"
#include "failure.h"
#include "launch_attributes.h"
#include "module.h"
#include "occupancy.h"
#include "printed.h"
#include "settings.h"
#include "stream.h"

/* Limits of an sm_90: CUDA C++ Programming Guide, table of technical specifications. */
#define GRID_X_MOST 0x7fffffffu
#define GRID_YZ_MOST 65535u
#define BLOCK_MOST 1024u
#define BLOCK_Z_MOST 64u

/*
 * Run a kernel in the device process (which interprets it), and wait for its end. A fault is recorded for the whole
 * device.
 */
CUresult ed_launch_run(const struct ed_kernel_work *work)
{
	struct ed_launch_request request = {
		.module = work->module,
		.kernel = work->kernel,
		.shared = work->shared,
		.cooperative = work->is_cooperative,
		.size = work->size,
	};
	struct iovec parts[] = {{&request, sizeof(request)}, {work->parameters, work->size}};
	struct ed_reply reply;

	memcpy(request.grid, work->grid, sizeof(request.grid));
	memcpy(request.block, work->block, sizeof(request.block));
	ed_channel_call(ED_REQUEST_LAUNCH, parts, 2, &reply);
	if (reply.status)
		ed_device_fail(reply.status, (const char *)reply.data);
	/* The printed text comes after two counters, or after a message and its zero byte. */
	size_t before = reply.status ? strlen((const char *)reply.data) + 1 : 2 * sizeof(uint64_t);
	if (reply.size > before)
		ed_printed_add(reply.data + before, reply.size - before);
	free(reply.data);
	return reply.status;
}

/*
 * Copy a launch's parameters into the kernel's parameter buffer, work->parameters: from one pointer each, or from the
 * buffer that extra names; not both.
 */
static CUresult pack_parameters(const struct ed_description *kernel, void **parameters, void **extra,
				struct ed_kernel_work *work)
{
	uint8_t *ret = work->parameters;
	const void *buffer = NULL;
	const size_t *size = NULL;

	if (extra && parameters)
		return CUDA_ERROR_INVALID_VALUE;
	if (!extra && !parameters)
		return kernel->parameter_count ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	if (parameters) {
		for (uint32_t i = 0; i < kernel->parameter_count; i++) {
			if (!parameters[i])
				return CUDA_ERROR_INVALID_VALUE;
			memcpy(ret + kernel->parameters[i].offset, parameters[i], kernel->parameters[i].size);
		}
		return CUDA_SUCCESS;
	}
	for (void **key = extra; *key != CU_LAUNCH_PARAM_END; key += 2) {
		if (*key == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = key[1];
		else if (*key == CU_LAUNCH_PARAM_BUFFER_SIZE)
			size = key[1];
		else
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (!buffer || !size)
		return CUDA_ERROR_INVALID_VALUE;
	/* NVIDIA's driver accepts a buffer that is too short, unless it is empty, but none that is too long. */
	if (!*size && kernel->parameter_size)
		return CUDA_ERROR_INVALID_VALUE;
	if (*size > kernel->parameter_size)
		return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	memcpy(ret, buffer, *size);
	work->is_packed = true;
	work->packed_size = *size;
	return CUDA_SUCCESS;
}

/* Whether a kernel is a twin (the copy of a kernel with Neutrino's probes), by its name. */
static bool is_twin(const struct ed_description *kernel)
{
	const char *end = "__neutrino";
	size_t length = strlen(kernel->name);

	return length > strlen(end) && !strcmp(kernel->name + length - strlen(end), end);
}

/* Check a launch's grid, block and dynamic shared memory (bytes) against the limits of the device and of the kernel. */
static CUresult check_shape(CUfunction function, const uint32_t grid[3], const uint32_t block[3], uint32_t shared,
			    bool is_cooperative)
{
	uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
	uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];

	if (!blocks || !threads || grid[0] > GRID_X_MOST || grid[1] > GRID_YZ_MOST || grid[2] > GRID_YZ_MOST ||
	    block[0] > BLOCK_MOST || block[1] > BLOCK_MOST || block[2] > BLOCK_Z_MOST || threads > BLOCK_MOST)
		return CUDA_ERROR_INVALID_VALUE;
	if (threads > function->kernel->max_threads ||
	    (function->kernel->required[0] && memcmp(block, function->kernel->required, sizeof(uint32_t[3])) != 0))
		return CUDA_ERROR_INVALID_VALUE;
	if ((int64_t)shared > function->max_dynamic_shared)
		return CUDA_ERROR_INVALID_VALUE;
	if (is_cooperative &&
	    blocks > (uint64_t)ed_occupancy_blocks(function, (uint32_t)threads, shared) * ED_MULTIPROCESSORS)
		return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
	return CUDA_SUCCESS;
}

/*
 * The error with which the test setting fail= makes this launch fail, 0 without one. Errors that destroy the context
 * are recorded as the device's fault, so that all later calls return them too.
 */
static CUresult requested_failure(const struct ed_description *kernel)
{
	uint64_t failure = ed_failure(ED_FAIL_LAUNCH);

	if (!failure && is_twin(kernel))
		failure = ed_failure(ED_FAIL_TWINLAUNCH);
	if (failure >= CUDA_ERROR_ILLEGAL_ADDRESS && failure != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES &&
	    failure != CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE && failure < CUDA_ERROR_NOT_SUPPORTED)
		ed_device_fail((CUresult)failure, "a launch fails, as was asked for");
	return (CUresult)failure;
}

/*
 * Check a launch, and make the work of it, with a copy of the parameters, the caller's to release. handle: a CUfunction
 * or a CUkernel; shared: bytes of dynamic shared memory; parameters or extra: as for cuLaunchKernel.
 */
CUresult ed_launch_prepare(struct ed_context *context, CUfunction handle, const uint32_t grid[3],
			   const uint32_t block[3], uint32_t shared, bool is_cooperative, void **parameters,
			   void **extra, struct ed_kernel_work *ret)
{
	CUfunction function;
	CUresult result = ed_function_of(context, handle, &function);

	if (!result && function->module->context != context)
		result = CUDA_ERROR_INVALID_HANDLE;
	if (!result)
		result = check_shape(function, grid, block, shared, is_cooperative);
	if (!result)
		result = requested_failure(function->kernel);
	if (result)
		return result;
	const struct ed_description *kernel = function->kernel;
	*ret = (struct ed_kernel_work){
		.function = handle,
		.module = function->module->loaded.number,
		.kernel = kernel->number,
		.shared = shared,
		.is_cooperative = is_cooperative,
		.size = kernel->parameter_size,
		.parameters = calloc(1, kernel->parameter_size + 1),
	};
	memcpy(ret->grid, grid, sizeof(ret->grid));
	memcpy(ret->block, block, sizeof(ret->block));
	memcpy(ret->tuning, ed_tuning_default, sizeof(ret->tuning));
	if (!ret->parameters)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = pack_parameters(kernel, parameters, extra, ret);
	if (result) {
		free(ret->parameters);
		ret->parameters = NULL;
	}
	return result;
}

struct launch {
	CUfunction function;
	uint32_t grid[3], block[3], shared;
	bool per_thread;
	CUstream stream;
	void **parameters, **extra;
	struct ed_launch_attributes attributes;
};

/* Put a launch on its stream. A launch that is refused invalidates the stream's capture, if any. */
static CUresult submit_launch(const struct launch *request)
{
	struct ed_queue *queue;

	struct ed_context *context;
	CUresult result = ed_context_current(&context);
	if (!result)
		result = ed_stream_queue(context, request->stream, request->per_thread, &queue);
	if (result)
		return result;
	/* A launch runs in the context of its stream, which need not be the current one. */
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .context = queue->context};
	result = ed_launch_prepare(queue->context, request->function, request->grid, request->block, request->shared,
				   request->attributes.is_cooperative, request->parameters, request->extra,
				   &operation.kernel);
	if (!result) {
		result = ed_launch_attributes_apply(&request->attributes, queue, request->stream, &operation.kernel);
		if (result)
			ed_operation_release(&operation);
	}
	if (result)
		ed_capture_invalidate(queue);
	if (!result)
		result = ed_stream_submit(queue, &operation, NULL);
	return result ? result : ed_launch_attributes_record(&request->attributes, queue);
}

#define SHAPE_PARAMETERS                                                                                               \
	unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y,     \
		unsigned int block_z, unsigned int shared
#define SHAPE {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared

/* Emulated CUDA driver call: launch a kernel in a stream. */
API cuLaunchKernel(CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **parameters, void **extra)
{
	ENTER_OR_RETURN();
	return submit_launch(&(struct launch){function, SHAPE, false, stream, parameters, extra, {0}});
}

/* Emulated CUDA driver call: launch a kernel in a stream; the default one is the thread's own. */
API cuLaunchKernel_ptsz(CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **parameters, void **extra)
{
	ENTER_OR_RETURN();
	return submit_launch(&(struct launch){function, SHAPE, true, stream, parameters, extra, {0}});
}

/* Emulated CUDA driver call: launch a kernel whose blocks all run at the same time; an error if not so many fit. */
API cuLaunchCooperativeKernel(CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **parameters)
{
	ENTER_OR_RETURN();
	return submit_launch(
		&(struct launch){function, SHAPE, false, stream, parameters, NULL, {.is_cooperative = true}});
}

/*
 * Emulated CUDA driver call: launch a kernel whose blocks all run at the same time; an error if not so many fit. The
 * default stream is the thread's own.
 */
API cuLaunchCooperativeKernel_ptsz(CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **parameters)
{
	ENTER_OR_RETURN();
	return submit_launch(
		&(struct launch){function, SHAPE, true, stream, parameters, NULL, {.is_cooperative = true}});
}

/*
 * What cuLaunchKernelEx does: launch a kernel by a configuration, with attributes. per_thread: the default stream is
 * the thread's own.
 */
static CUresult launch_config(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra,
			      bool per_thread)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	struct launch request = {
		.function = function,
		.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
		.block = {config->blockDimX, config->blockDimY, config->blockDimZ},
		.shared = config->sharedMemBytes,
		.per_thread = per_thread,
		.stream = config->hStream,
		.parameters = parameters,
		.extra = extra,
	};
	CUresult result = ed_launch_attributes_read(config, &request.attributes);
	return result ? result : submit_launch(&request);
}

/* Emulated CUDA driver call: launch a kernel by a configuration, with attributes. */
API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
	ENTER_OR_RETURN();
	return launch_config(config, function, parameters, extra, false);
}

/*
 * Emulated CUDA driver call: launch a kernel by a configuration, with attributes; the default stream is the thread's
 * own.
 */
API cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
	ENTER_OR_RETURN();
	return launch_config(config, function, parameters, extra, true);
}
