#include "launch_forms.h"

#include <string.h>

#include "process.h"
#include "registry.h"
#include "trace.h"

/*
 * The function of a handle if its launches are recorded; NULL if the launch is to be passed through. In a reading section,
 * which lasts until the launch is made.
 */
static struct nt_function *recorded(CUfunction handle)
{
	if (nt_process_mode() < NT_TRACING)
		return NULL;
	struct nt_function *function = nt_registry_find(handle);
	if (!function)
		nt_launch_unknown();
	return function;
}

/* nt_launch.submit for cuLaunchKernel. */
static CUresult submit_plain(const struct nt_launch *l, CUfunction function, void **parameters, void **extra)
{
	return (l->per_thread ? nt_driver.cuLaunchKernel_ptsz : nt_driver.cuLaunchKernel)(
		function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared, l->stream,
		parameters, extra);
}

/* nt_launch.submit for cuLaunchKernelEx, whose configuration is the launch's argument. */
static CUresult submit_config(const struct nt_launch *l, CUfunction function, void **parameters, void **extra)
{
	return (l->per_thread ? nt_driver.cuLaunchKernelEx_ptsz : nt_driver.cuLaunchKernelEx)(l->argument, function,
											     parameters, extra);
}

CUresult nt_launch_plain(CUfunction handle, struct nt_launch *launch)
{
	uint32_t *reading = nt_reading_begin();
	struct nt_function *function = recorded(handle);

	launch->submit = submit_plain;
	CUresult result = function ? nt_launch(function, launch)
				   : submit_plain(launch, handle, launch->parameters, launch->extra);
	nt_reading_end(reading);
	return result;
}

CUresult nt_launch_config(const CUlaunchConfig *config, CUfunction handle, void **parameters, void **extra,
			  bool per_thread)
{
	uint32_t *reading = nt_reading_begin();
	struct nt_function *function = config ? recorded(handle) : NULL;

	/* Also without a configuration, which the driver refuses. */
	if (!function) {
		nt_reading_end(reading);
		return (per_thread ? nt_driver.cuLaunchKernelEx_ptsz : nt_driver.cuLaunchKernelEx)(config, handle,
												   parameters, extra);
	}
	struct nt_launch launch = {
		{config->gridDimX, config->gridDimY, config->gridDimZ},
		{config->blockDimX, config->blockDimY, config->blockDimZ},
		config->sharedMemBytes,
		config->hStream,
		per_thread,
		parameters,
		extra,
		submit_config,
		config,
	};
	CUresult result = nt_launch(function, &launch);
	nt_reading_end(reading);
	return result;
}

/* Count a launch that runs its original: by the kernel's own reason if it has one, else by the reason given. */
static void count_original(CUfunction handle, unsigned reason)
{
	uint32_t *reading = nt_reading_begin();
	const struct nt_function *function = recorded(handle);

	if (function)
		nt_trace_count(function->kernel->id, function->reason ? function->reason : reason);
	nt_reading_end(reading);
}

void nt_launch_of_other_form(CUfunction handle)
{
	count_original(handle, NEUTRINO_REASON_LAUNCH_FORM);
}

/* Nodes of graphs are counted once when they are added: the hook does not see when the driver runs them. */

#define NODE_KERNEL_OFFSET 56
/* CUDA_KERNEL_NODE_PARAMS begins with the CUfunction. If that is NULL, version 2 has a CUkernel at NODE_KERNEL_OFFSET. */
void nt_launch_in_graph(const void *kernel_parameters, bool is_v2)
{
	CUfunction function;

	if (!kernel_parameters)
		return;
	memcpy(&function, kernel_parameters, sizeof(function));
	if (!function && is_v2)
		memcpy(&function, (const char *)kernel_parameters + NODE_KERNEL_OFFSET, sizeof(function));
	count_original(function, NEUTRINO_REASON_GRAPH);
}

enum { NODE_TYPE_KERNEL = 0 };
/* CUgraphNodeParams begins with the type and three reserved ints; the type's parameters follow. */
void nt_launch_in_any_node(const void *parameters)
{
	int type;

	if (!parameters)
		return;
	memcpy(&type, parameters, sizeof(type));
	if (type == NODE_TYPE_KERNEL)
		nt_launch_in_graph((const char *)parameters + 4 * sizeof(int), true);
}
