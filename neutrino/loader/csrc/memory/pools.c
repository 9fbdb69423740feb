/* The table of pools, by context. */
#include "memory/pool.h"
#include "memory/segment.h"

struct nt_pool nt_pools[CONTEXTS];

struct nt_pool *nt_pools_known(CUcontext context)
{
	for (unsigned i = 0; i < CONTEXTS; i++)
		if (__atomic_load_n(&nt_pools[i].context, __ATOMIC_ACQUIRE) == context)
			return &nt_pools[i];
	return NULL;
}

uint64_t nt_pools_id_of(CUcontext context)
{
	unsigned long long id;

	if (!nt_driver.cuCtxGetId)
		return 0;
	return nt_driver.cuCtxGetId(context, &id) == CUDA_SUCCESS ? id : ~UINT64_C(0);
}

bool nt_pools_is_current(const struct nt_pool *pool, CUcontext context)
{
	return nt_pools_id_of(context) == __atomic_load_n(&pool->id, __ATOMIC_ACQUIRE);
}

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

bool nt_pools_has(CUcontext context)
{
	return nt_pools_known(context) != NULL;
}

CUdevice nt_pools_device(const struct nt_pool *pool)
{
	return pool->device;
}
