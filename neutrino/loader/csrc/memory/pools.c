/* The table of pools, by context. */
#include "memory/pool.h"
#include "memory/segment.h"

struct nt_pool nt_pools[CONTEXTS];

/* The pool (device memory for results) of a context in any state, or NULL. Lock-free. */
struct nt_pool *nt_pools_known(CUcontext context)
{
	for (unsigned i = 0; i < CONTEXTS; i++)
		if (__atomic_load_n(&nt_pools[i].context, __ATOMIC_ACQUIRE) == context)
			return &nt_pools[i];
	return NULL;
}

/* A context's number, which no other of the process ever has; 0 if the driver has none, ~0 if the context is gone. */
uint64_t nt_pools_id_of(CUcontext context)
{
	unsigned long long id;

	if (!nt_driver.cuCtxGetId)
		return 0;
	return nt_driver.cuCtxGetId(context, &id) == CUDA_SUCCESS ? id : ~UINT64_C(0);
}

/*
 * Whether the context of a pool (device memory for results) is still the one that it was made in: the driver may have
 * made a new one at its address, and what was allocated in the old one may be the program's by now. Lock-free.
 */
bool nt_pools_is_current(const struct nt_pool *pool, CUcontext context)
{
	return nt_pools_id_of(context) == __atomic_load_n(&pool->id, __ATOMIC_ACQUIRE);
}

/*
 * The pool (device memory for results) of a context if it is ready, else NULL. If the driver has since made a new
 * context at that address, the old one's pool is given up. Lock-free.
 */
struct nt_pool *nt_pools_find(CUcontext context)
{
	struct nt_pool *pool = context ? nt_pools_known(context) : NULL;
	int ready = POOL_READY;

	if (!pool || __atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) != POOL_READY)
		return NULL;
	if (nt_pools_is_current(pool, context))
		return pool;
	__atomic_compare_exchange_n(&pool->state, &ready, POOL_GONE, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	return NULL;
}

/* Whether a pool (device memory for results) was made for the context, is being made, or could not be made. */
bool nt_pools_has(CUcontext context)
{
	return nt_pools_known(context) != NULL;
}

/* Ordinal of the device that a pool (device memory for results) is on. */
CUdevice nt_pools_device(const struct nt_pool *pool)
{
	return pool->device;
}

/* Write the contexts whose pools (device memory for results) are ready to ret, at most so many; returns how many. Lock-free. */
unsigned nt_pools_contexts(CUcontext *ret, unsigned most)
{
	unsigned count = 0;

	for (unsigned i = 0; i < CONTEXTS && count < most; i++) {
		CUcontext context = __atomic_load_n(&nt_pools[i].context, __ATOMIC_ACQUIRE);
		if (nt_pools_find(context))
			ret[count++] = context;
	}
	return count;
}
