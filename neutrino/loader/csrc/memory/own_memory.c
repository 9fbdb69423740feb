#include "memory/own_memory.h"

#include "base/settings.h"
#include "trace/trace.h"

bool nt_own_memory_is_memusage;

/* Where memory is that is only counted: no device has so high addresses. */
#define FIRST_ADDRESS (UINT64_C(1) << 56)

static uint64_t now[NT_OWN_KINDS], most[NT_OWN_KINDS], all_now, all_most;
static uint64_t pools, pool_limit, launch_limit; /* how many were made; of the largest one */
static uint64_t next_address = FIRST_ADDRESS;

/* Read from the settings whether device memory is only counted in this process (--memusage), or taken. */
void nt_own_memory_begin(void)
{
	nt_own_memory_is_memusage = nt_settings()->measures_only;
}

/* Set *value to the greater one of itself and `least`. Lock-free. */
static void raise_to(uint64_t *value, uint64_t least)
{
	uint64_t before = __atomic_load_n(value, __ATOMIC_RELAXED);

	while (before < least &&
	       !__atomic_compare_exchange_n(value, &before, least, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/*
 * Note, for the trace, that a pool (device memory of a context), which is new or not, may have limit bytes, of which one
 * launch can have of_launch.
 */
void nt_own_memory_limited(uint64_t limit, uint64_t of_launch, bool is_new)
{
	__atomic_fetch_add(&pools, is_new, __ATOMIC_RELAXED);
	raise_to(&pool_limit, limit);
	raise_to(&launch_limit, of_launch);
}

/*
 * Free and total bytes of the current context's device. With --memusage as if all that is only counted was taken. False
 * if the driver does not say.
 */
bool nt_own_memory_left(uint64_t *left, uint64_t *total)
{
	size_t free_bytes = 0, all = 0;

	if (!nt_driver.cuMemGetInfo_v2 || nt_driver.cuMemGetInfo_v2(&free_bytes, &all) != CUDA_SUCCESS)
		return false;
	uint64_t counted = nt_own_memory_is_memusage ? __atomic_load_n(&all_now, __ATOMIC_RELAXED) : 0;
	*left = free_bytes > counted ? free_bytes - counted : 0;
	*total = all;
	return true;
}

/*
 * Allocate size bytes of device memory in the current context for results, and count them; 0 if there are none. With
 * --memusage it is only counted, and the address stands for nothing. Not on the launch path.
 */
CUdeviceptr nt_own_memory_get(enum nt_own_memory kind, uint64_t size)
{
	CUdeviceptr address = 0;
	uint64_t left, total;

	if (!nt_own_memory_is_memusage) {
		if (nt_driver.cuMemAlloc_v2(&address, size) != CUDA_SUCCESS)
			return 0;
	} else if (!nt_own_memory_left(&left, &total) || left >= size) {
		address = __atomic_fetch_add(&next_address, size, __ATOMIC_RELAXED);
	} else {
		return 0;
	}
	raise_to(&most[kind], __atomic_add_fetch(&now[kind], size, __ATOMIC_RELAXED));
	raise_to(&all_most, __atomic_add_fetch(&all_now, size, __ATOMIC_RELAXED));
	return address;
}

/* Size bytes of our device memory are gone with their context: count them no more. */
void nt_own_memory_gone(enum nt_own_memory kind, uint64_t size)
{
	__atomic_fetch_sub(&now[kind], size, __ATOMIC_RELAXED);
	__atomic_fetch_sub(&all_now, size, __ATOMIC_RELAXED);
}

/* Free device memory of nt_own_memory_get; kind and size as there. */
void nt_own_memory_free(enum nt_own_memory kind, CUdeviceptr address, uint64_t size)
{
	if (!nt_own_memory_is_memusage)
		nt_driver.cuMemFree_v2(address);
	nt_own_memory_gone(kind, size);
}

/* Write the event of the trace that says how much device memory there was at most for results. */
void nt_own_memory_log(void)
{
	struct nt_event event;

	nt_event_begin(&event, "memory");
	nt_event_number(&event, "most", __atomic_load_n(&all_most, __ATOMIC_RELAXED));
	nt_event_number(&event, "pools", __atomic_load_n(&most[NT_OWN_POOLS], __ATOMIC_RELAXED));
	nt_event_number(&event, "graphs", __atomic_load_n(&most[NT_OWN_GRAPHS], __ATOMIC_RELAXED));
	nt_event_number(&event, "contexts", __atomic_load_n(&pools, __ATOMIC_RELAXED));
	nt_event_number(&event, "pool_limit", __atomic_load_n(&pool_limit, __ATOMIC_RELAXED));
	nt_event_number(&event, "launch_limit", __atomic_load_n(&launch_limit, __ATOMIC_RELAXED));
	nt_lines_event(&event);
}
