#include "occupancy.h"

#include <string.h>

#include "failure.h"
#include "module.h"

/* An sm_90: CUDA C++ Programming Guide, table of technical specifications. Registers are not counted. */
#define THREADS 2048
#define BLOCKS 32
#define SHARED 233472
#define SHARED_RESERVED 1024
#define SHARED_MOST 232448

/* Whether a kernel is a twin (the copy of a kernel with Neutrino's probes), by its name. */
static bool is_twin(const struct ed_description *kernel)
{
	const char *found = strstr(kernel->name, "__neutrino");

	return found && !found[strlen("__neutrino")];
}

/*
 * How many blocks of a kernel fit on a multiprocessor at the same time. threads: of a block; shared: bytes of dynamic
 * shared memory of a block. Registers are not counted.
 */
int ed_occupancy_blocks(CUfunction function, uint32_t threads, uint64_t shared)
{
	uint64_t warps = (threads + 31) / 32;
	uint64_t total = shared + function->kernel->shared_size;

	if (!warps || threads > function->kernel->max_threads || total > SHARED_MOST)
		return 0;
	uint64_t blocks = THREADS / (warps * 32);
	uint64_t by_shared = SHARED / (total + SHARED_RESERVED);
	blocks = blocks < BLOCKS ? blocks : BLOCKS;
	blocks = blocks < by_shared ? blocks : by_shared;
	uint64_t divisor = is_twin(function->kernel) ? ed_failure(ED_FAIL_OCCUPANCY) : 0;
	return (int)(divisor ? blocks / divisor : blocks);
}

/*
 * What cuOccupancyMaxActiveBlocksPerMultiprocessor does: how many blocks of a kernel fit on a multiprocessor at the
 * same time. threads: of a block; shared: bytes of dynamic shared memory of a block.
 */
static CUresult active_blocks(int *ret, CUfunction handle, int threads, size_t shared)
{
	CUfunction function;

	GET_CONTEXT_OR_RETURN(context);
	if (!ret || threads <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_function_of(context, handle, &function);
	if (!result)
		*ret = ed_occupancy_blocks(function, (uint32_t)threads, shared);
	return result;
}

/* Emulated CUDA driver call: how many blocks of a kernel fit on a multiprocessor at the same time. */
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared)
{
	ENTER_OR_RETURN();
	return active_blocks(blocks, function, threads, shared);
}

/*
 * Emulated CUDA driver call: how many blocks of a kernel fit on a multiprocessor at the same time; flags are only
 * checked.
 */
API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads, size_t shared,
							 unsigned int flags)
{
	ENTER_OR_RETURN();
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : active_blocks(blocks, function, threads, shared);
}

/*
 * What cuOccupancyMaxPotentialBlockSize does: the block with the most resident threads, the largest one of several, and
 * a grid that fills the device. shared_of: bytes of dynamic shared memory by threads, or NULL: shared. limit: of
 * threads, 0 for none.
 */
static CUresult best_block(int *grid, int *block, CUfunction handle, CUoccupancyB2DSize shared_of, size_t shared,
			   int limit)
{
	CUfunction function;
	int best = 0;

	GET_CONTEXT_OR_RETURN(context);
	if (!grid || !block)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_function_of(context, handle, &function);
	if (result)
		return result;
	int most = (int)function->kernel->max_threads;
	if (limit > 0 && limit < most)
		most = limit;
	*block = 0;
	*grid = 0;
	for (int threads = most / 32 * 32; threads > 0; threads -= 32) {
		int blocks = ed_occupancy_blocks(function, (uint32_t)threads, shared_of ? shared_of(threads) : shared);
		if (blocks * threads > best) {
			best = blocks * threads;
			*block = threads;
			*grid = blocks * ED_MULTIPROCESSORS;
		}
	}
	return CUDA_SUCCESS;
}

/*
 * Emulated CUDA driver call: the size of block with which most threads of a kernel are resident, and a grid of such
 * blocks that fills the device.
 */
API cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of,
				     size_t shared, int limit)
{
	ENTER_OR_RETURN();
	return best_block(grid, block, function, shared_of, shared, limit);
}

/*
 * Emulated CUDA driver call: the size of block with which most threads of a kernel are resident, and a grid of such
 * blocks that fills the device; flags are only checked.
 */
API cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
					      CUoccupancyB2DSize shared_of, size_t shared, int limit,
					      unsigned int flags)
{
	ENTER_OR_RETURN();
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : best_block(grid, block, function, shared_of, shared, limit);
}

/*
 * Emulated CUDA driver call: bytes of dynamic shared memory that each block of a kernel can have, if so many blocks are
 * to fit on a multiprocessor.
 */
API cuOccupancyAvailableDynamicSMemPerBlock(size_t *ret, CUfunction handle, int blocks, int threads)
{
	CUfunction function;

	ENTER_CONTEXT_OR_RETURN(context);
	if (!ret || blocks <= 0 || threads <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_function_of(context, handle, &function);
	if (result)
		return result;
	uint64_t each = SHARED / (uint64_t)blocks;
	uint64_t used = SHARED_RESERVED + function->kernel->shared_size;
	*ret = each > used ? each - used : 0;
	if (*ret > SHARED_MOST - function->kernel->shared_size)
		*ret = SHARED_MOST - function->kernel->shared_size;
	return CUDA_SUCCESS;
}
