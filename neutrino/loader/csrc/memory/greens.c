#include "memory/greens.h"

#include "memory/pool.h"

/*
 * The CUcontexts of green contexts. If there are more than fit here, the hook prepares no context that it does not
 * know.
 */
enum { GREENS = 256 };
static CUcontext greens[GREENS];
static int green_count; /* rows that were ever used */

void nt_greens_add(CUcontext context)
{
	for (int i = 0; i < GREENS; i++) {
		CUcontext none = NULL;
		if (!__atomic_compare_exchange_n(&greens[i], &none, context, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			continue;
		int count = __atomic_load_n(&green_count, __ATOMIC_ACQUIRE);
		while (count <= i && !__atomic_compare_exchange_n(&green_count, &count, i + 1, false, __ATOMIC_ACQ_REL,
								  __ATOMIC_ACQUIRE))
			;
		return;
	}
}

void nt_greens_remove(CUcontext context)
{
	for (int i = 0; i < GREENS; i++) {
		CUcontext found = context;
		__atomic_compare_exchange_n(&greens[i], &found, NULL, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	}
}

bool nt_greens_has(CUcontext context)
{
	int count = __atomic_load_n(&green_count, __ATOMIC_ACQUIRE);

	for (int i = 0; i < count && context; i++)
		if (__atomic_load_n(&greens[i], __ATOMIC_ACQUIRE) == context)
			return true;
	return context && count == GREENS && !nt_pools_has(context);
}
