/* cuStreamWriteValue32 and cuStreamWriteValue64: a word written in stream order. */
#include "write_value.h"

#include "failure.h"
#include "memory.h"
#include "stream.h"

/*
 * Write a word in a stream's turn. An error if its memory was freed since the call. A kernel that polls it sees all of
 * it or nothing.
 */
CUresult ed_write_run(const struct ed_write *write)
{
	if (!ed_memory_is_valid(write->to, write->size))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	void *to = ed_memory_here(write->to);
	if (write->size == sizeof(uint64_t))
		__atomic_store_n((uint64_t *)to, write->value, __ATOMIC_RELEASE);
	else
		__atomic_store_n((uint32_t *)to, (uint32_t)write->value, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

/*
 * Put a write of size bytes (4 or 8) on a stream; in a capture it becomes a node for batches of memory operations.
 * per_thread: the default stream is the thread's own.
 */
static CUresult write_value(CUstream stream, CUdeviceptr to, uint64_t value, uint32_t size, unsigned flags,
			    bool per_thread)
{
	uint64_t failure = ed_failure(ED_FAIL_WRITE);
	struct ed_queue *queue;

	GET_CONTEXT_OR_RETURN(context);
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);
	if (result)
		return result;
	if (failure)
		return (CUresult)failure;
	/* The second version does not have the only flag, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER. */
	if (flags || to % size || !ed_memory_is_valid(to, size))
		return CUDA_ERROR_INVALID_VALUE;
	struct ed_operation operation = {
		.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
		.context = queue->context,
		.write = {to, value, size},
	};
	return ed_stream_submit(queue, &operation, NULL);
}

/* Emulated CUDA driver call: write 4 bytes to memory in a stream's turn. flags: must be 0. */
API cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
{
	ENTER_OR_RETURN();
	return write_value(stream, address, value, sizeof(value), flags, false);
}

/*
 * Emulated CUDA driver call: write 4 bytes to memory in a stream's turn; the default one is the thread's own. flags:
 * must be 0.
 */
API cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
{
	ENTER_OR_RETURN();
	return write_value(stream, address, value, sizeof(value), flags, true);
}

/* Emulated CUDA driver call: write 8 bytes to memory in a stream's turn. flags: must be 0. */
API cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags)
{
	ENTER_OR_RETURN();
	return write_value(stream, address, value, sizeof(value), flags, false);
}

/*
 * Emulated CUDA driver call: write 8 bytes to memory in a stream's turn; the default one is the thread's own. flags:
 * must be 0.
 */
API cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags)
{
	ENTER_OR_RETURN();
	return write_value(stream, address, value, sizeof(value), flags, true);
}

/*
 * What the first version of cuStreamWriteValue does: refuse. It has attributes of its own,
 * CU_DEVICE_ATTRIBUTE_CAN_USE_..._V1, that are 0 unless the kernel module was loaded with NVreg_EnableStreamMemOPs=1.
 */
static CUresult first_version(void)
{
	GET_CONTEXT_OR_RETURN(context);
	return CUDA_ERROR_NOT_SUPPORTED;
}

#define FIRST_VERSION(name, type)                                                                                      \
	API name(CUstream stream, CUdeviceptr address, type value, unsigned int flags)                                 \
	{                                                                                                              \
		ENTER_OR_RETURN();                                                                                     \
		(void)stream;                                                                                          \
		(void)address;                                                                                         \
		(void)value;                                                                                           \
		(void)flags;                                                                                           \
		return first_version();                                                                                \
	}

FIRST_VERSION(cuStreamWriteValue32, uint32_t)
FIRST_VERSION(cuStreamWriteValue32_ptsz, uint32_t)
FIRST_VERSION(cuStreamWriteValue64, uint64_t)
FIRST_VERSION(cuStreamWriteValue64_ptsz, uint64_t)
