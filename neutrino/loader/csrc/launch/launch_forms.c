#include "launch/launch_forms.h"

#include "base/mode.h"
#include "base/quiet.h"
#include "image/choice.h"
#include "trace/trace.h"

/*
 * The function of a handle if its launches are recorded; NULL if the launch is to be passed through. In a reading section,
 * which lasts until the launch is made.
 */
static struct nt_function *recorded(CUfunction handle)
{
	if (nt_mode_of_process() < NT_TRACING)
		return NULL;
	struct nt_function *function = nt_function_find(handle);
	if (!function)
		nt_launch_unknown(1, !nt_choice_is_off());
	return function;
}

/* Around a launch: a reading section, in which no image of ours is loaded. */
static uint32_t *begin_launch(void)
{
	nt_quiet_launch_begins();
	return nt_grace_reading_begin();
}

/* The same, with the function that launches are recorded of, or NULL, after nt_launch_find. */
static uint32_t *begin_with(CUfunction handle, struct nt_found found, struct nt_function **ret)
{
	if (!found.reading) {
		uint32_t *reading = begin_launch();
		*ret = recorded(handle);
		return reading;
	}
	*ret = found.function;
	if (!*ret)
		nt_launch_unknown(1, !nt_choice_is_off());
	return found.reading;
}

static void end_launch(uint32_t *reading)
{
	nt_grace_reading_end(reading);
	nt_quiet_launch_ends();
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

CUresult nt_launch_forms_plain(CUfunction handle, struct nt_launch *launch, struct nt_found found)
{
	struct nt_function *function;
	uint32_t *reading = begin_with(handle, found, &function);

	launch->submit = submit_plain;
	launch->is_ordinary = true;
	CUresult result = function ? nt_launch(function, launch)
				   : submit_plain(launch, handle, launch->parameters, launch->extra);
	end_launch(reading);
	return result;
}

CUresult nt_launch_forms_config(const CUlaunchConfig *config, CUfunction handle, void **parameters, void **extra,
				bool per_thread, struct nt_found found)
{
	struct nt_function *function = NULL;
	uint32_t *reading = config ? begin_with(handle, found, &function) : begin_launch();

	/* Also without a configuration, which the driver refuses. */
	if (!function) {
		CUresult result = (per_thread ? nt_driver.cuLaunchKernelEx_ptsz : nt_driver.cuLaunchKernelEx)(
			config, handle, parameters, extra);
		end_launch(reading);
		return result;
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
		config->numAttrs == 0,
	};
	CUresult result = nt_launch(function, &launch);
	end_launch(reading);
	return result;
}

/* nt_launch.submit for cuLaunchCooperativeKernel, which takes the parameters as pointers alone. */
static CUresult submit_cooperative(const struct nt_launch *l, CUfunction function, void **parameters, void **extra)
{
	(void)extra;
	return (l->per_thread ? nt_driver.cuLaunchCooperativeKernel_ptsz : nt_driver.cuLaunchCooperativeKernel)(
		function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared, l->stream,
		parameters);
}

CUresult nt_launch_forms_cooperative(CUfunction handle, struct nt_launch *launch)
{
	uint32_t *reading = begin_launch();
	struct nt_function *function = recorded(handle);

	launch->submit = submit_cooperative;
	CUresult result = function ? nt_launch(function, launch)
				   : submit_cooperative(launch, handle, launch->parameters, NULL);
	end_launch(reading);
	return result;
}

void nt_launch_forms_other(CUfunction handle)
{
	nt_quiet_launch_begins();
	uint32_t *reading = nt_grace_reading_begin();
	const struct nt_function *function = recorded(handle);
	enum neutrino_reason reason = function ? nt_function_reason(function) : 0;

	/* By the kernel's own reason if it has one. */
	if (function && (reason == NEUTRINO_REASON_PROBED || reason == NEUTRINO_REASON_NOT_READY))
		reason = NEUTRINO_REASON_LAUNCH_FORM;
	if (function)
		nt_counters_count(function->kernel->id, nt_launch_chosen(function, &(struct nt_launch){.stream = NULL}, reason));
	nt_grace_reading_end(reading);
}

void nt_launch_forms_unknown(void)
{
	nt_quiet_launch_begins();
	if (nt_mode_of_process() >= NT_TRACING)
		nt_launch_unknown(1, !nt_choice_is_off());
}
