/* Calls that allocate and free memory: device memory, at once or in a stream's turn, and pinned memory. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "capture.h"
#include "channel.h"
#include "count.h"
#include "failure.h"
#include "graph_memory.h"
#include "region.h"
#include "settings.h"
#include "stream.h"

/* --- device memory --- */

/* Sleep as long as the test setting fail=slowalloc asks for, if it does. */
static void be_slow(void)
{
	uint64_t time = ed_failure(ED_FAIL_SLOWALLOC);

	if (time)
		nanosleep(&(struct timespec){(time_t)(time / 1000000000), (long)(time % 1000000000)}, NULL);
}

/*
 * Allocate size bytes of device or managed memory of the emulated GPU; *ret gets the address. flags: of managed memory
 * (cuMemAllocManaged), else 0.
 */
static CUresult allocate(struct ed_context *context, CUdeviceptr *ret, size_t size, enum ed_sort sort, unsigned flags)
{
	uint64_t failure = ed_failure(ED_FAIL_ALLOC);

	be_slow();
	if (!ret || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if (failure)
		return (CUresult)failure;
	*ret = ed_region_take(sort == DEVICE ? &ed_device_region : &ed_host_region, size,
		    (struct ed_piece){.context = context, .sort = sort, .flags = flags});
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Emulated CUDA driver call: allocate size bytes of device memory. An error during a stream's capture, whose modes
 * forbid it.
 */
API cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_capture_refuses_unsafe();
	if (!result)
		result = allocate(context, address, size, DEVICE, 0);
	if (!result)
		ed_count_bytes(size, __builtin_return_address(0));
	return result;
}

/*
 * Emulated CUDA driver call: allocate height rows of device memory, each of width bytes rounded up to 512, which *pitch
 * gets. element: bytes that one access will have, only checked.
 */
API cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_capture_refuses_unsafe();
	if (result)
		return result;
	if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = (width + 511) / 512 * 512;
	return allocate(context, address, *pitch * height, DEVICE, 0);
}

/* Emulated CUDA driver call: allocate size bytes of managed memory, which the host and kernels use by one address. */
API cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_capture_refuses_unsafe();
	if (result)
		return result;
	return flags < 1 || flags > 2 ? CUDA_ERROR_INVALID_VALUE : allocate(context, address, size, MANAGED, flags);
}

/* Emulated CUDA driver call: free device memory, after all work of the context that may still use it. */
API cuMemFree_v2(CUdeviceptr address)
{
	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_capture_refuses_unsafe();
	if (result || !address)
		return result;
	if (!ed_memory_is_valid(address, 1))
		return CUDA_ERROR_INVALID_VALUE;
	/* As NVIDIA's driver does: work that may still use the memory ends first. */
	ed_queue_wait_all(context);
	if (ed_graph_memory_free_outside(address, &result))
		return result;
	result = ed_memory_release(address, false);
	return result ? result : ed_device_fault();
}

/* Emulated CUDA driver call: bytes of device memory that are free, and all; either pointer may be NULL. */
API cuMemGetInfo_v2(size_t *available, size_t *total)
{
	ENTER_CONTEXT_OR_RETURN(context);
	pthread_mutex_lock(&ed_memory_mutex);
	size_t size = ed_shared.device_size - ed_memory_module_part();
	if (total)
		*total = ed_shared.device_size;
	if (available)
		*available = size - ed_device_region.in_use;
	pthread_mutex_unlock(&ed_memory_mutex);
	return CUDA_SUCCESS;
}

/*
 * Emulated CUDA driver call: the start and size of the allocation that contains an address; either pointer may be NULL.
 */
API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
	ENTER_CONTEXT_OR_RETURN(context);
	uint64_t offset;
	struct ed_region *region = ed_region_of(address, &offset);
	if (!region)
		return CUDA_ERROR_NOT_FOUND;
	pthread_mutex_lock(&ed_memory_mutex);
	const struct ed_piece *piece = ed_piece_at(region, offset);
	if (piece && base)
		*base = address - (offset - piece->offset);
	if (piece && size)
		*size = piece->size;
	pthread_mutex_unlock(&ed_memory_mutex);
	return piece ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* --- by streams --- */

/* Host function of a stream: free device memory (its address) when the stream's work before it has run. */
static void free_in_turn(void *address)
{
	ed_memory_free_now((uint64_t)(uintptr_t)address);
}

/*
 * cuMemAllocAsync on a captured stream: add a node to the graph that allocates; *address gets the memory's address
 * already.
 */
static CUresult capture_allocation(struct ed_queue *queue, CUdeviceptr *address, size_t size)
{
	struct ed_operation operation;
	uint64_t found;
	CUresult result = ed_graph_memory_allocate(queue->context, size, &found, &operation);

	if (!result)
		result = ed_stream_submit(queue, &operation, NULL);
	if (!result)
		*address = found;
	return result;
}

/*
 * What the forms of cuMemAllocAsync do: allocate memory for use in a stream. It is allocated at once, not in the
 * stream's turn. per_thread: the default stream is the thread's own.
 */
static CUresult allocate_async(struct ed_context *context, CUdeviceptr *address, size_t size, CUstream stream,
			       bool per_thread)
{
	struct ed_queue *queue;
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);

	if (!result && size && address && __atomic_load_n(&queue->capture, __ATOMIC_ACQUIRE))
		return capture_allocation(queue, address, size);
	if (!result)
		result = ed_capture_forbids(queue);
	if (!result)
		result = ed_capture_refuses_unsafe();
	if (result || size || !address)
		return result ? result : allocate(context, address, size, DEVICE, 0);
	*address = 0;
	return CUDA_SUCCESS;
}

/*
 * What the forms of cuMemFreeAsync do: free memory when the work before it in the stream has run; on a captured stream
 * by a node of the graph. per_thread: the default stream is the thread's own.
 */
static CUresult free_async(struct ed_context *context, CUdeviceptr address, CUstream stream, bool per_thread)
{
	struct ed_queue *queue;
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);

	if (!result && __atomic_load_n(&queue->capture, __ATOMIC_ACQUIRE)) {
		/* Only what a graph has allocated. */
		struct ed_operation freeing;
		if (!ed_graph_memory_free(queue->context, address, &freeing))
			return ed_stream_submit(queue, &freeing, NULL);
	}
	if (!result)
		result = ed_capture_forbids(queue);
	if (result || !address)
		return result;
	if (ed_graph_memory_free_outside(address, &result))
		return result;
	if (!ed_memory_is_valid(address, 1))
		return CUDA_ERROR_INVALID_VALUE;
	struct ed_operation operation = {
		.type = CU_GRAPH_NODE_TYPE_HOST,
		.context = queue->context,
		.host = {.function = free_in_turn, .data = (void *)(uintptr_t)address},
	};
	return ed_stream_submit(queue, &operation, NULL);
}

/* Emulated CUDA driver call: allocate memory for use in a stream. */
API cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return allocate_async(context, address, size, stream, false);
}

/* Emulated CUDA driver call: allocate memory for use in a stream; the default one is the thread's own. */
API cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return allocate_async(context, address, size, stream, true);
}

/* Emulated CUDA driver call: free memory when the work before it in the stream has run. */
API cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return free_async(context, address, stream, false);
}

/*
 * Emulated CUDA driver call: free memory when the work before it in the stream has run; the default stream is the
 * thread's own.
 */
API cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return free_async(context, address, stream, true);
}

/* The device's only memory pool, a handle without any memory of its own. */
static CUmemoryPool default_pool(void)
{
	static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
	static CUmemoryPool pool;

	pthread_mutex_lock(&pool_mutex);
	if (!pool)
		pool = ed_object_take(ED_POOL, sizeof(struct ed_object));
	pthread_mutex_unlock(&pool_mutex);
	return pool;
}

/* Emulated CUDA driver call: the memory pool of device 0, which is only a handle here. */
API cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	ENTER_OR_RETURN();
	if (!pool || device)
		return pool ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	*pool = default_pool();
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the current memory pool of device 0, always the default one here. */
API cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	ENTER_OR_RETURN();
	if (!pool || device)
		return pool ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	*pool = default_pool();
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: allocate memory for use in a stream. There is one pool, so which one is only checked. */
API cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!ed_object_check(pool, ED_POOL))
		return CUDA_ERROR_INVALID_HANDLE;
	return allocate_async(context, address, size, stream, false);
}

/* Every attribute of a pool is a 64-bit number or, for the first three, an int. */
static uint64_t pool_attributes[16] = {0, 1, 1, 1};

/* Emulated CUDA driver call: set an attribute (1 to 8) of the memory pool, which only remembers it. */
API cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(pool, ED_POOL) || attribute < 1 || attribute > 8 || !value)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t number = 0;
	memcpy(&number, value, attribute < 4 ? 4 : 8);
	__atomic_store_n(&pool_attributes[attribute], number, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: an attribute (1 to 8) of the memory pool as it was set. */
API cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(pool, ED_POOL) || attribute < 1 || attribute > 8 || !value)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t number = __atomic_load_n(&pool_attributes[attribute], __ATOMIC_RELAXED);
	memcpy(value, &number, attribute < 4 ? 4 : 8);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: give back unused memory of the pool; there is none here, so it only checks the handle. */
API cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	ENTER_OR_RETURN();
	(void)keep;
	return ed_object_check(pool, ED_POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* --- pinned memory --- */

/*
 * Allocate size bytes of pinned host memory, which kernels can use by the same address. No bytes give NULL without an
 * error.
 */
static CUresult allocate_host(struct ed_context *context, void **ret, size_t size, unsigned flags)
{
	uint64_t failure = ed_failure(ED_FAIL_HOSTALLOC);

	if (!ret || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	if (failure)
		return (CUresult)failure;
	*ret = NULL;
	if (!size)
		return CUDA_SUCCESS;
	uint64_t address =
		ed_region_take(&ed_host_region, size, (struct ed_piece){.context = context, .sort = PINNED, .flags = flags});
	*ret = (void *)(uintptr_t)address;
	return address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Emulated CUDA driver call: allocate pinned host memory with flags (CU_MEMHOSTALLOC_...). */
API cuMemHostAlloc(void **memory, size_t size, unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_capture_refuses_unsafe();
	return result ? result : allocate_host(context, memory, size, flags);
}

/* Emulated CUDA driver call: allocate pinned host memory. */
API cuMemAllocHost_v2(void **memory, size_t size)
{
	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_capture_refuses_unsafe();
	return result ? result : allocate_host(context, memory, size, 0);
}

/* Emulated CUDA driver call: free pinned host memory, after all work of the context that may still use it. */
API cuMemFreeHost(void *memory)
{
	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_capture_refuses_unsafe();
	if (result || !memory)
		return result;
	ed_queue_wait_all(context);
	return ed_memory_release((uint64_t)(uintptr_t)memory, true);
}

/*
 * Emulated CUDA driver call: the address by which kernels use pinned memory: the same one. Not for memory that the
 * program registered, which kernels cannot reach here.
 */
API cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory, unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!address || flags)
		return CUDA_ERROR_INVALID_VALUE;
	/* Kernels run in another process: they cannot access memory that the program has registered. */
	if (!ed_memory_is_valid((uint64_t)(uintptr_t)memory, 1))
		return ed_memory_is_pinned((uint64_t)(uintptr_t)memory) ? CUDA_ERROR_NOT_SUPPORTED
									 : CUDA_ERROR_INVALID_VALUE;
	*address = (uint64_t)(uintptr_t)memory;
	return CUDA_SUCCESS;
}

/*
 * Emulated CUDA driver call: the flags with which pinned memory was allocated, always with CU_MEMHOSTALLOC_DEVICEMAP
 * (2).
 */
API cuMemHostGetFlags(unsigned int *flags, void *memory)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t offset = (uint64_t)(uintptr_t)memory - (uint64_t)(uintptr_t)ed_shared.host;
	pthread_mutex_lock(&ed_memory_mutex);
	const struct ed_piece *piece = ed_piece_at(&ed_host_region, offset);
	if (piece)
		*flags = piece->flags | 2;
	pthread_mutex_unlock(&ed_memory_mutex);
	return piece ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Emulated CUDA driver call: pin memory of the program; here it only counts as pinned, for copies. */
API cuMemHostRegister_v2(void *memory, size_t size, unsigned int flags)
{
	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_capture_refuses_unsafe();
	if (result)
		return result;
	if (!memory || !size || flags > 15)
		return CUDA_ERROR_INVALID_VALUE;
	if (ed_memory_is_pinned((uint64_t)(uintptr_t)memory))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	pthread_mutex_lock(&ed_memory_mutex);
	struct ed_registered *more = realloc(ed_registered, (ed_registered_count + 1) * sizeof(*ed_registered));
	if (more) {
		ed_registered = more;
		ed_registered[ed_registered_count++] = (struct ed_registered){(uint64_t)(uintptr_t)memory, size};
	}
	pthread_mutex_unlock(&ed_memory_mutex);
	return more ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Emulated CUDA driver call: memory that was registered counts as pinned no more. */
API cuMemHostUnregister(void *memory)
{
	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_capture_refuses_unsafe();
	if (result)
		return result;
	result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	pthread_mutex_lock(&ed_memory_mutex);
	for (size_t i = 0; i < ed_registered_count; i++)
		if (ed_registered[i].address == (uint64_t)(uintptr_t)memory) {
			ed_registered[i] = ed_registered[--ed_registered_count];
			result = CUDA_SUCCESS;
			break;
		}
	pthread_mutex_unlock(&ed_memory_mutex);
	return result;
}

/* Emulated CUDA driver call: advice about managed memory, which has no effect; only the range is checked. */
API cuMemAdvise_v2(CUdeviceptr address, size_t size, int advice, uint64_t location)
{
	ENTER_CONTEXT_OR_RETURN(context);
	(void)advice;
	(void)location;
	return ed_memory_is_valid(address, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Emulated CUDA driver call: move managed memory ahead of its use, which has no effect; only the range is checked. */
API cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, uint64_t location, unsigned int flags, CUstream stream)
{
	ENTER_CONTEXT_OR_RETURN(context);
	(void)location;
	(void)flags;
	(void)stream;
	return ed_memory_is_valid(address, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
