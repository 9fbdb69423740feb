#include "memory/greens.h"

#include "memory/pool.h"

/*
 * The CUcontexts of green contexts. If there are more than fit here, the hook prepares no context that it does not
 * know.
 */
enum { GREENS = 256 };
static CUcontext greens[GREENS];
static int green_count; /* rows that were ever used */

/*
 * Remember that a context is that of a green context (one with a part of the multiprocessors), in which kernels run
 * unprobed. If there are more than GREENS, contexts that are not known count as green. From any thread.
 */
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

/* A green context is destroyed: its CUcontext may be that of another one later. From any thread. */
void nt_greens_remove(CUcontext context)
{
	for (int i = 0; i < GREENS; i++) {
		CUcontext found = context;
		__atomic_compare_exchange_n(&greens[i], &found, NULL, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	}
}

/* Whether a context is that of a green context, or may be: then its kernels run unprobed. false for NULL. Lock-free. */
bool nt_greens_has(CUcontext context)
{
	int count = __atomic_load_n(&green_count, __ATOMIC_ACQUIRE);

	for (int i = 0; i < count && context; i++)
		if (__atomic_load_n(&greens[i], __ATOMIC_ACQUIRE) == context)
			return true;
	return context && count == GREENS && !nt_pools_has(context);
}
