/* Settings of contexts, most of which have no effect here. */
#include "capture.h"
#include "context.h"
#include "printed.h"

/* Emulated CUDA driver call: the context's preference for L1 cache or shared memory; always none (0) here. */
API cuCtxGetCacheConfig(int *config)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = 0;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: set the context's preference for L1 cache or shared memory; only checked. */
API cuCtxSetCacheConfig(int config)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return config < 0 || config > 3 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the context's size of shared memory banks; always 4 bytes (1) here. */
API cuCtxGetSharedMemConfig(int *config)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = 1;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: set the context's size of shared memory banks; only checked. */
API cuCtxSetSharedMemConfig(int config)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return config < 0 || config > 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

#define LIMIT_PRINTED 1
#define LIMIT_LAST 9 /* of CUDA 13.0 */

/* Stack, printf buffer, heap, nested depth, pending launches, L2 granularity, persisting L2. */
static size_t limits[] = {1024, ED_PRINTED_SIZE, 8388608, 2, 2048, 64, 0};

/* Success for a limit (CUlimit) that the device has; other errors for one that only newer devices have, or none has. */
static CUresult check_limit(int limit)
{
	if (limit < 0 || limit > LIMIT_LAST)
		return CUDA_ERROR_INVALID_VALUE;
	return (size_t)limit < sizeof(limits) / sizeof(limits[0]) ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_LIMIT;
}

/* Emulated CUDA driver call: a limit (CUlimit) of the device, one for all contexts here. */
API cuCtxGetLimit(size_t *value, int limit)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = check_limit(limit);
	if (result)
		return result;
	*value = __atomic_load_n(&limits[limit], __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: set a limit (CUlimit) of the device; only the size of the printf buffer has an effect. */
API cuCtxSetLimit(int limit, size_t value)
{
	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = check_limit(limit);
	if (!result)
		result = ed_capture_refuses_unsafe();
	if (result)
		return result;
	__atomic_store_n(&limits[limit], value, __ATOMIC_RELAXED);
	if (limit == LIMIT_PRINTED)
		ed_printed_limit(value);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the least (0) and the greatest (-5) priority of streams; either pointer may be NULL. */
API cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: forget what persists in the L2 cache; there is none, so nothing happens. */
API cuCtxResetPersistingL2Cache(void)
{
	ENTER_CONTEXT_OR_RETURN(context);
	return CUDA_SUCCESS;
}
