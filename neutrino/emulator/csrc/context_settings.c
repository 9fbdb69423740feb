/* Settings of contexts, most of which have no effect here. */
#include "capture.h"
#include "context.h"
#include "printed.h"

API cuCtxGetCacheConfig(int *config)
{
	ENTER_CONTEXT(context);
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = 0;
	return CUDA_SUCCESS;
}

API cuCtxSetCacheConfig(int config)
{
	ENTER_CONTEXT(context);
	return config < 0 || config > 3 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuCtxGetSharedMemConfig(int *config)
{
	ENTER_CONTEXT(context);
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = 1;
	return CUDA_SUCCESS;
}

API cuCtxSetSharedMemConfig(int config)
{
	ENTER_CONTEXT(context);
	return config < 0 || config > 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

#define LIMIT_PRINTED 1
#define LIMIT_LAST 9 /* of CUDA 13.0 */

/* Stack, printf buffer, heap, nested depth, pending launches, L2 granularity, persisting L2. */
static size_t limits[] = {1024, ED_PRINTED_SIZE, 8388608, 2, 2048, 64, 0};

/* CUDA_SUCCESS for a CUlimit that the device has; other errors for one that only newer devices have, or none has. */
static CUresult check_limit(int limit)
{
	if (limit < 0 || limit > LIMIT_LAST)
		return CUDA_ERROR_INVALID_VALUE;
	return (size_t)limit < sizeof(limits) / sizeof(limits[0]) ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_LIMIT;
}

API cuCtxGetLimit(size_t *value, int limit)
{
	ENTER_CONTEXT(context);
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = check_limit(limit);
	if (result)
		return result;
	*value = __atomic_load_n(&limits[limit], __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

API cuCtxSetLimit(int limit, size_t value)
{
	ENTER_CONTEXT(context);
	CUresult result = check_limit(limit);
	if (!result)
		result = ed_capture_unsafe();
	if (result)
		return result;
	__atomic_store_n(&limits[limit], value, __ATOMIC_RELAXED);
	if (limit == LIMIT_PRINTED)
		ed_printed_limit(value);
	return CUDA_SUCCESS;
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	ENTER_CONTEXT(context);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

API cuCtxResetPersistingL2Cache(void)
{
	ENTER_CONTEXT(context);
	return CUDA_SUCCESS;
}
