#include "copy.h"

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "failure.h"
#include "memory.h"
#include "printed.h"
#include "stream.h"

/* --- execution --- */

/*
 * The number of bytes from the first to the last of a copy's rows, on the side with this pitch (bytes from row to row)
 * and slice size.
 */
static uint64_t bytes_spanned(uint64_t pitch, uint64_t slice, const struct ed_copy *copy)
{
	return (copy->depth - 1) * slice + (copy->height - 1) * pitch + copy->width;
}

/* Whether memory can be accessed: the device's must be allocated, the program's own is not checked. */
static bool is_there(uint64_t address, uint64_t size)
{
	return !ed_memory_is_device(address) || ed_memory_is_valid(address, size);
}

/* Run a copy of memory, row by row, in its stream's turn. An error if its memory was freed since it was submitted. */
CUresult ed_copy_run(const struct ed_copy *copy)
{
	uint64_t failure = ed_failure(ED_FAIL_COPY);

	if (failure)
		return (CUresult)failure;
	if (!copy->width || !copy->height || !copy->depth)
		return CUDA_SUCCESS;
	if (!is_there(copy->to, bytes_spanned(copy->to_pitch, copy->to_slice, copy)) ||
	    (!copy->staged && !is_there(copy->from, bytes_spanned(copy->from_pitch, copy->from_slice, copy))))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	uint8_t *to = ed_memory_here(copy->to);
	const uint8_t *from = copy->staged ? copy->staged : ed_memory_here(copy->from);
	uint64_t from_pitch = copy->staged ? copy->width : copy->from_pitch;
	uint64_t from_slice = copy->staged ? copy->width * copy->height : copy->from_slice;
	for (uint64_t slice = 0; slice < copy->depth; slice++)
		for (uint64_t row = 0; row < copy->height; row++)
			memmove(to + slice * copy->to_slice + row * copy->to_pitch,
				from + slice * from_slice + row * from_pitch, copy->width);
	return CUDA_SUCCESS;
}

/*
 * Run a fill: set memory to a value of 1, 2 or 4 bytes, row by row, in its stream's turn. An error if its memory was
 * freed since it was submitted.
 */
CUresult ed_fill_run(const struct ed_fill *fill)
{
	uint64_t failure = ed_failure(ED_FAIL_COPY);

	if (failure)
		return (CUresult)failure;
	if (!fill->width || !fill->height)
		return CUDA_SUCCESS;
	if (!is_there(fill->to, (fill->height - 1) * fill->pitch + fill->width * fill->element))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint64_t row = 0; row < fill->height; row++) {
		uint8_t *to = ed_memory_here(fill->to) + row * fill->pitch;
		if (fill->element == 1)
			ed_memory_fill(to, (uint8_t)(fill->value & 0xff), fill->width);
		else
			for (uint64_t i = 0; i < fill->width; i++)
				memcpy(to + i * fill->element, &fill->value, fill->element);
	}
	return CUDA_SUCCESS;
}

/* --- submission to a stream --- */

/*
 * Copy the source's bytes into a buffer now, at the call: the program may change pageable memory as soon as the call
 * returns. False without memory.
 */
static bool stage_source(struct ed_copy *copy)
{
	copy->staged = malloc(copy->width * copy->height * copy->depth);
	if (!copy->staged)
		return false;
	uint8_t *to = copy->staged;
	for (uint64_t slice = 0; slice < copy->depth; slice++)
		for (uint64_t row = 0; row < copy->height; row++, to += copy->width)
			memcpy(to, ed_memory_here(copy->from + slice * copy->from_slice + row * copy->from_pitch),
			       copy->width);
	return true;
}

/* Whether an address is ordinary memory of the program, which the driver has not pinned. */
static bool is_pageable(uint64_t address)
{
	return !ed_memory_is_device(address) && !ed_memory_is_pinned(address);
}

/* Check, when a call is made, a copy's pitch, and that its memory is allocated. No bytes are right, too. */
static CUresult check_copy(const struct ed_copy *copy)
{
	uint64_t size = copy->width * copy->height * copy->depth;

	if (!size)
		return CUDA_SUCCESS;
	if (!copy->to || !copy->from || copy->width > copy->to_pitch * (copy->height > 1) + copy->width)
		return CUDA_ERROR_INVALID_VALUE;
	return is_there(copy->to, bytes_spanned(copy->to_pitch, copy->to_slice, copy)) &&
			       is_there(copy->from, bytes_spanned(copy->from_pitch, copy->from_slice, copy))
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

/*
 * The queue (a stream's work) of a copy's or fill's stream. A synchronous call on a captured stream is an error.
 * per_thread: the default stream is the thread's own.
 */
static CUresult find_queue(struct ed_context *context, CUstream stream, bool per_thread, bool is_async,
			   struct ed_queue **queue)
{
	CUresult result = ed_stream_queue(context, stream, per_thread, queue);

	if (!result && !is_async)
		result = ed_capture_forbids(*queue);
	return result;
}

/* Put a copy on a stream, and wait for its end where the driver would. */
static CUresult submit_copy(struct ed_context *context, const struct ed_copy *request, CUstream stream, bool per_thread,
			    bool is_async)
{
	struct ed_queue *queue;
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *request};
	struct ed_copy *copy = &operation.copy;
	struct ed_moment done;
	CUresult result = find_queue(context, stream, per_thread, is_async, &queue);

	if (!result)
		result = check_copy(copy);
	if (result || !copy->width || !copy->height || !copy->depth)
		return result;
	operation.context = queue->context;
	bool is_captured = __atomic_load_n(&queue->capture, __ATOMIC_ACQUIRE) != NULL;
	/* A synchronous copy from pageable memory waits; a captured one reads when the graph runs. */
	if (is_async && !is_captured && is_pageable(copy->from) && !stage_source(copy))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = ed_stream_submit(queue, &operation, &done);
	if (result || is_captured)
		return result;
	/*
	 * NVIDIA's driver waits for synchronous copies, except within the device, and for asynchronous ones to pageable
	 * memory.
	 */
	bool waits = is_async ? is_pageable(request->to) : is_pageable(request->to) || !ed_memory_is_device(request->from) ||
								  !ed_memory_is_device(request->to);
	if (waits) {
		ed_moment_wait(done);
		ed_printed_flush();
	}
	return waits ? ed_device_fault() : CUDA_SUCCESS;
}

/* Copy size bytes in a stream; not is_async waits for the end where the driver would. */
static CUresult copy_linear(struct ed_context *context, uint64_t to, uint64_t from, size_t size, CUstream stream,
			    bool per_thread, bool is_async)
{
	struct ed_copy copy = {.to = to, .from = from, .to_pitch = size, .from_pitch = size, .width = size,
			       .height = 1, .depth = 1};

	return submit_copy(context, &copy, stream, per_thread, is_async);
}

/* Whether the sides that a call's name says are the device's are: cuMemcpyHtoD to host memory is an error. */
static bool are_device(uint64_t to, bool to_device, uint64_t from, bool from_device)
{
	return (!to_device || ed_memory_is_valid(to, 1)) && (!from_device || ed_memory_is_valid(from, 1));
}

#define ADDRESS(pointer) ((uint64_t)(uintptr_t)(pointer))

/* name, suffixes of the synchronous and asynchronous forms, types of the two places, which of them the device has */
#define COPY_FORMS(name, version, to_type, to_device, from_type, from_device)                                          \
	COPY_FORM(name##version, (to_type to, from_type from, size_t size), to_device, from_device, NULL, false, false) \
	COPY_FORM(name##version##_ptds, (to_type to, from_type from, size_t size), to_device, from_device, NULL, true,  \
		  false)                                                                                               \
	COPY_FORM(name##Async##version, (to_type to, from_type from, size_t size, CUstream stream), to_device,         \
		  from_device, stream, false, true)                                                                    \
	COPY_FORM(name##Async##version##_ptsz, (to_type to, from_type from, size_t size, CUstream stream), to_device,  \
		  from_device, stream, true, true)
#define COPY_FORM(full_name, parameters, to_device, from_device, stream, per_thread, is_async)                         \
	API full_name parameters                                                                                       \
	{                                                                                                              \
		ENTER_CONTEXT_OR_RETURN(context);                                                                      \
		if (size && !are_device(ADDRESS(to), to_device, ADDRESS(from), from_device))                           \
			return CUDA_ERROR_INVALID_VALUE;                                                               \
		return copy_linear(context, ADDRESS(to), ADDRESS(from), size, stream, per_thread, is_async);           \
	}

COPY_FORMS(cuMemcpyHtoD, _v2, CUdeviceptr, true, const void *, false)
COPY_FORMS(cuMemcpyDtoH, _v2, void *, false, CUdeviceptr, true)
COPY_FORMS(cuMemcpyDtoD, _v2, CUdeviceptr, true, CUdeviceptr, true)
COPY_FORMS(cuMemcpy, , CUdeviceptr, false, CUdeviceptr, false)

/*
 * What cuMemcpyPeer does: copy size bytes from one context to another; there is one device, so both must only be
 * contexts.
 */
static CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size,
			  CUstream stream, bool is_async)
{
	GET_CONTEXT_OR_RETURN(context);
	if (!ed_object_check(to_context, ED_CONTEXT) || !ed_object_check(from_context, ED_CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	return copy_linear(context, to, from, size, stream, false, is_async);
}

/* Emulated CUDA driver call: copy size bytes from one context to another, and wait. */
API cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size)
{
	ENTER_OR_RETURN();
	return copy_peer(to, to_context, from, from_context, size, NULL, false);
}

/* Emulated CUDA driver call: copy size bytes from one context to another, in a stream. */
API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size,
		      CUstream stream)
{
	ENTER_OR_RETURN();
	return copy_peer(to, to_context, from, from_context, size, stream, true);
}

/* --- rows and slices --- */

/*
 * The address that a memory type and the two pointers of a copy's structure stand for. False for an unsupported type
 * (arrays).
 */
static bool find_address(int type, const void *host, CUdeviceptr device, uint64_t *ret)
{
	*ret = type == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)host : device;
	return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

/*
 * Read the parameters of a copy (CUDA_MEMCPY3D), and check them. A pitch or height of 0 means that rows or slices are
 * adjacent.
 */
CUresult ed_copy_from(const CUDA_MEMCPY3D *p, struct ed_copy *ret)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = (struct ed_copy){
		.to_pitch = p->dstPitch ? p->dstPitch : p->WidthInBytes,
		.from_pitch = p->srcPitch ? p->srcPitch : p->WidthInBytes,
		.width = p->WidthInBytes,
		.height = p->Height,
		.depth = p->Depth,
	};
	if (!find_address(p->dstMemoryType, p->dstHost, p->dstDevice, &ret->to) ||
	    !find_address(p->srcMemoryType, p->srcHost, p->srcDevice, &ret->from))
		return CUDA_ERROR_INVALID_VALUE;
	ret->to_slice = ret->to_pitch * (p->dstHeight ? p->dstHeight : p->Height);
	ret->from_slice = ret->from_pitch * (p->srcHeight ? p->srcHeight : p->Height);
	if ((p->Height > 1 && (ret->to_pitch < p->WidthInBytes || ret->from_pitch < p->WidthInBytes)))
		return CUDA_ERROR_INVALID_VALUE;
	ret->to += p->dstZ * ret->to_slice + p->dstY * ret->to_pitch + p->dstXInBytes;
	ret->from += p->srcZ * ret->from_slice + p->srcY * ret->from_pitch + p->srcXInBytes;
	return check_copy(ret);
}

/* Copy rows in slices, in a stream; not is_async waits for the end where the driver would. */
static CUresult copy_3d(const CUDA_MEMCPY3D *parameters, CUstream stream, bool per_thread, bool is_async)
{
	struct ed_copy copy;

	GET_CONTEXT_OR_RETURN(context);
	CUresult result = ed_copy_from(parameters, &copy);
	return result ? result : submit_copy(context, &copy, stream, per_thread, is_async);
}

/* Copy rows (CUDA_MEMCPY2D) in a stream, as a copy in three dimensions with one slice. */
static CUresult copy_2d(const CUDA_MEMCPY2D *p, CUstream stream, bool per_thread, bool is_async)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_MEMCPY3D parameters = {
		.srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcMemoryType = p->srcMemoryType, .srcHost = p->srcHost,
		.srcDevice = p->srcDevice, .srcPitch = p->srcPitch, .dstXInBytes = p->dstXInBytes, .dstY = p->dstY,
		.dstMemoryType = p->dstMemoryType, .dstHost = p->dstHost, .dstDevice = p->dstDevice,
		.dstPitch = p->dstPitch, .WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = 1,
	};
	return copy_3d(&parameters, stream, per_thread, is_async);
}

#define SHAPE_FORM(name, type, function, parameters, stream, per_thread, is_async)                                     \
	API name parameters                                                                                            \
	{                                                                                                              \
		ENTER_OR_RETURN();                                                                                     \
		return function(copy, stream, per_thread, is_async);                                                   \
	}
SHAPE_FORM(cuMemcpy2D_v2, CUDA_MEMCPY2D, copy_2d, (const CUDA_MEMCPY2D *copy), NULL, false, false)
SHAPE_FORM(cuMemcpy2D_v2_ptds, CUDA_MEMCPY2D, copy_2d, (const CUDA_MEMCPY2D *copy), NULL, true, false)
SHAPE_FORM(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, copy_2d, (const CUDA_MEMCPY2D *copy), NULL, false, false)
SHAPE_FORM(cuMemcpy2DUnaligned_v2_ptds, CUDA_MEMCPY2D, copy_2d, (const CUDA_MEMCPY2D *copy), NULL, true, false)
SHAPE_FORM(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, copy_2d, (const CUDA_MEMCPY2D *copy, CUstream stream), stream, false, true)
SHAPE_FORM(cuMemcpy2DAsync_v2_ptsz, CUDA_MEMCPY2D, copy_2d, (const CUDA_MEMCPY2D *copy, CUstream stream), stream, true,
	   true)
SHAPE_FORM(cuMemcpy3D_v2, CUDA_MEMCPY3D, copy_3d, (const CUDA_MEMCPY3D *copy), NULL, false, false)
SHAPE_FORM(cuMemcpy3D_v2_ptds, CUDA_MEMCPY3D, copy_3d, (const CUDA_MEMCPY3D *copy), NULL, true, false)
SHAPE_FORM(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, copy_3d, (const CUDA_MEMCPY3D *copy, CUstream stream), stream, false, true)
SHAPE_FORM(cuMemcpy3DAsync_v2_ptsz, CUDA_MEMCPY3D, copy_3d, (const CUDA_MEMCPY3D *copy, CUstream stream), stream, true,
	   true)

/* --- fills --- */

/* Check a fill's alignment and pitch, and that its memory is allocated. */
static CUresult check_fill(const struct ed_fill *fill)
{
	if (!fill->width || !fill->height)
		return CUDA_SUCCESS;
	if (fill->to % fill->element || (fill->height > 1 && fill->pitch < fill->width * fill->element))
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t size = (fill->height - 1) * fill->pitch + fill->width * fill->element;
	return ed_memory_is_valid(fill->to, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Read the parameters of a fill (CUDA_MEMSET_NODE_PARAMS), and check them. */
CUresult ed_fill_from(const CUDA_MEMSET_NODE_PARAMS *p, struct ed_fill *ret)
{
	if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4))
		return CUDA_ERROR_INVALID_VALUE;
	*ret = (struct ed_fill){p->dst, p->pitch, p->width, p->height, p->value, p->elementSize};
	return check_fill(ret);
}

/* Put a fill on a stream. The driver does not wait for fills, even in the synchronous calls (not is_async). */
static CUresult submit_fill(const struct ed_fill *fill, CUstream stream, bool per_thread, bool is_async)
{
	struct ed_queue *queue;

	GET_CONTEXT_OR_RETURN(context);
	CUresult result = find_queue(context, stream, per_thread, is_async, &queue);
	if (!result)
		result = check_fill(fill);
	if (result || !fill->width || !fill->height)
		return result;
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .context = queue->context, .fill = *fill};
	return ed_stream_submit(queue, &operation, NULL);
}

#define FILL_FORMS(bits, type)                                                                                         \
	FILL_FORM(cuMemsetD##bits##_v2, (CUdeviceptr to, type value, size_t width), bits, 0, 1, NULL, false, false)    \
	FILL_FORM(cuMemsetD##bits##_v2_ptds, (CUdeviceptr to, type value, size_t width), bits, 0, 1, NULL, true, false) \
	FILL_FORM(cuMemsetD##bits##Async, (CUdeviceptr to, type value, size_t width, CUstream stream), bits, 0, 1,     \
		  stream, false, true)                                                                                 \
	FILL_FORM(cuMemsetD##bits##Async_ptsz, (CUdeviceptr to, type value, size_t width, CUstream stream), bits, 0,   \
		  1, stream, true, true)                                                                               \
	FILL_FORM(cuMemsetD2D##bits##_v2, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),     \
		  bits, pitch, height, NULL, false, false)                                                             \
	FILL_FORM(cuMemsetD2D##bits##_v2_ptds, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height), \
		  bits, pitch, height, NULL, true, false)                                                              \
	FILL_FORM(cuMemsetD2D##bits##Async,                                                                            \
		  (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream), bits,      \
		  pitch, height, stream, false, true)                                                                  \
	FILL_FORM(cuMemsetD2D##bits##Async_ptsz,                                                                       \
		  (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream), bits,      \
		  pitch, height, stream, true, true)
#define FILL_FORM(name, parameters, bits, pitch, height, stream, per_thread, is_async)                                 \
	API name parameters                                                                                            \
	{                                                                                                              \
		ENTER_OR_RETURN();                                                                                     \
		struct ed_fill fill = {to, pitch, width, height, value, bits / 8};                                     \
		return submit_fill(&fill, stream, per_thread, is_async);                                               \
	}

FILL_FORMS(8, unsigned char)
FILL_FORMS(16, unsigned short)
FILL_FORMS(32, unsigned int)
