#include "lifetimes.h"

#include "graph.h"
#include "launch.h"
#include "pool.h"
#include "process.h"
#include "registry.h"

void nt_stream_ends(CUstream stream)
{
	CUcontext context = NULL;

	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD)
		return; /* a default stream, which cannot be destroyed */
	nt_graphs_stream_ends(stream);
	if ((nt_driver.cuStreamGetCtx && nt_driver.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS) ||
	    nt_driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS)
		nt_pool_forget_stream(context, stream);
}

void nt_context_comes(CUcontext context)
{
	if (context && nt_registry_has_probed() && !nt_pool_known(context))
		nt_registry_prepare_context(context);
}

void nt_context_ends(CUcontext context)
{
	if (nt_process_mode() != NT_TRACING || !context)
		return;
	nt_launch_forget_context(context, DRAIN_LIMIT_MS);
	nt_pool_forget_context(context, DRAIN_LIMIT_MS);
	nt_graphs_context_ends(context);
	nt_registry_forget_context(context);
}

/* The primary context of each device, and how often the program has retained it. */
#define DEVICES 64
static CUcontext primary_contexts[DEVICES];
static int primary_counts[DEVICES];

void nt_primary_retained(CUcontext context, CUdevice device)
{
	if (device < 0 || device >= DEVICES)
		return;
	__atomic_store_n(&primary_contexts[device], context, __ATOMIC_RELEASE);
	__atomic_fetch_add(&primary_counts[device], 1, __ATOMIC_ACQ_REL);
}

void nt_primary_released(CUdevice device)
{
	if (device < 0 || device >= DEVICES)
		return;
	/* The driver refuses a release without a retain, which must not be counted. The last one destroys the context. */
	int count = __atomic_load_n(&primary_counts[device], __ATOMIC_ACQUIRE);
	while (count > 0 && !__atomic_compare_exchange_n(&primary_counts[device], &count, count - 1, false,
							 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
	if (count == 1)
		nt_context_ends(__atomic_exchange_n(&primary_contexts[device], NULL, __ATOMIC_ACQ_REL));
}

void nt_primary_reset(CUdevice device)
{
	if (device >= 0 && device < DEVICES)
		nt_context_ends(__atomic_load_n(&primary_contexts[device], __ATOMIC_ACQUIRE));
}
