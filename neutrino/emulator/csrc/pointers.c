/* Queries of an address: cuPointerGetAttribute. */
#include "region.h"

enum {
	POINTER_CONTEXT = 1,
	POINTER_MEMORY_TYPE,
	POINTER_DEVICE_POINTER,
	POINTER_HOST_POINTER,
	POINTER_SYNC_MEMOPS = 6,
	POINTER_BUFFER_ID,
	POINTER_IS_MANAGED,
	POINTER_DEVICE_ORDINAL,
	POINTER_IPC_CAPABLE,
	POINTER_RANGE_START,
	POINTER_RANGE_SIZE,
	POINTER_MAPPED,
	POINTER_HANDLE_TYPES,
	POINTER_RDMA_CAPABLE,
	POINTER_ACCESS_FLAGS,
	POINTER_MEMPOOL,
};

/*
 * What cuPointerGetAttribute does: an attribute of the memory at an address. ret is set, mostly to 0, even when
 * CUDA_ERROR_INVALID_VALUE says that the address is unknown.
 */
static CUresult pointer_attribute(void *ret, int attribute, uint64_t address)
{
	uint64_t offset;
	struct ed_region *region = ed_region_of(address, &offset);
	struct ed_piece allocation = {0};
	bool is_known = false;

	if (region) {
		pthread_mutex_lock(&ed_memory_mutex);
		const struct ed_piece *piece = ed_piece_at(region, offset);
		is_known = piece != NULL;
		if (piece)
			allocation = *piece;
		pthread_mutex_unlock(&ed_memory_mutex);
	}
	bool on_device = is_known && (allocation.sort == DEVICE || allocation.sort == VARIABLE);
	switch (attribute) {
	case POINTER_CONTEXT:
		*(CUcontext *)ret = allocation.context;
		break;
	case POINTER_MEMORY_TYPE:
		*(unsigned *)ret = allocation.sort == PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		break;
	case POINTER_DEVICE_POINTER:
		*(CUdeviceptr *)ret = address;
		break;
	case POINTER_HOST_POINTER:
		if (on_device)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)ret = (void *)(uintptr_t)address;
		break;
	case POINTER_BUFFER_ID:
		*(unsigned long long *)ret = allocation.id;
		break;
	case POINTER_IS_MANAGED:
		*(int *)ret = allocation.sort == MANAGED;
		break;
	case POINTER_RANGE_START:
		*(CUdeviceptr *)ret = is_known ? address - (offset - allocation.offset) : 0;
		break;
	case POINTER_RANGE_SIZE:
		*(size_t *)ret = allocation.size;
		break;
	case POINTER_MAPPED:
		*(int *)ret = is_known;
		break;
	case POINTER_DEVICE_ORDINAL:
		*(int *)ret = 0;
		break;
	case POINTER_SYNC_MEMOPS:
	case POINTER_IPC_CAPABLE:
	case POINTER_RDMA_CAPABLE:
		*(int *)ret = 0;
		break;
	case POINTER_HANDLE_TYPES:
		*(unsigned long long *)ret = 0;
		break;
	case POINTER_ACCESS_FLAGS:
		*(unsigned *)ret = 3;
		break;
	case POINTER_MEMPOOL:
		*(void **)ret = NULL;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Emulated CUDA driver call: an attribute (CUpointer_attribute) of the memory at an address, which must be known. */
API cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return data ? pointer_attribute(data, attribute, address) : CUDA_ERROR_INVALID_VALUE;
}

/*
 * Emulated CUDA driver call: `count` attributes of the memory at an address. Unlike with cuPointerGetAttribute, an
 * unknown address is no error: its attributes are 0.
 */
API cuPointerGetAttributes(unsigned int count, int *attributes, void **data, CUdeviceptr address)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		CUresult result = pointer_attribute(data[i], attributes[i], address);
		if (!result || ed_memory_is_valid(address, 1))
			continue;
		if (attributes[i] == POINTER_MEMORY_TYPE)
			*(unsigned *)data[i] = 0;
		if (attributes[i] == POINTER_DEVICE_POINTER)
			*(CUdeviceptr *)data[i] = 0;
		if (attributes[i] == POINTER_DEVICE_ORDINAL)
			*(int *)data[i] = -2;
	}
	return CUDA_SUCCESS;
}

/*
 * Emulated CUDA driver call: set an attribute of the memory at an address; only one can be set, and it has no effect.
 */
API cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return value && attribute == POINTER_SYNC_MEMOPS && ed_memory_is_valid(address, 1) ? CUDA_SUCCESS
											   : CUDA_ERROR_INVALID_VALUE;
}
