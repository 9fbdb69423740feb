#include "launch/launch_forms.h"

#include "base/mode.h"
#include "base/quiet.h"
#include "image/choice.h"
#include "trace/trace.h"

/*
 * The function of a handle if its launches are recorded; NULL if the launch goes to the driver as it is (then counted
 * as unknown during a trace). In a reading section (what is found in it is not freed), which lasts until the launch is
 * made.
 */
static struct nt_function *recorded_function(CUfunction handle)
{
	if (nt_mode_of_process() < NT_TRACING)
		return NULL;
	struct nt_function *function = nt_function_find(handle);
	if (!function)
		nt_launch_unknown(1, !nt_choice_is_off());
	return function;
}

/*
 * Before a launch: begin a reading section (what is found in it is not freed), in which no image of ours is loaded,
 * either. Returns what end_launch takes.
 */
static uint32_t *begin_launch(void)
{
	nt_quiet_launch_begins();
	return nt_grace_reading_begin();
}

/*
 * Before a launch that nt_launch_find has looked up: as begin_launch. *ret: the function if its launches are recorded,
 * or NULL.
 */
static uint32_t *begin_found_launch(CUfunction handle, struct nt_found found, struct nt_function **ret)
{
	if (!found.reading) {
		uint32_t *reading = begin_launch();
		*ret = recorded_function(handle);
		return reading;
	}
	*ret = found.function;
	if (!*ret)
		nt_launch_unknown(1, !nt_choice_is_off());
	return found.reading;
}

/* After a launch: end what begin_launch has begun. reading: its result. */
static void end_launch(uint32_t *reading)
{
	nt_grace_reading_end(reading);
	nt_quiet_launch_ends();
}

/* Submit function for cuLaunchKernel: make the program's call with this function and these parameters. */
static CUresult submit_plain(const struct nt_launch *l, CUfunction function, void **parameters, void **extra)
{
	return (l->per_thread ? nt_driver.cuLaunchKernel_ptsz : nt_driver.cuLaunchKernel)(
		function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared, l->stream,
		parameters, extra);
}

/*
 * Submit function for cuLaunchKernelEx, whose configuration is launch->argument: make the program's call with this
 * function and these parameters.
 */
static CUresult submit_config(const struct nt_launch *l, CUfunction function, void **parameters, void **extra)
{
	return (l->per_thread ? nt_driver.cuLaunchKernelEx_ptsz : nt_driver.cuLaunchKernelEx)(l->argument, function,
											     parameters, extra);
}

/*
 * A launch by cuLaunchKernel or cuLaunchKernel_ptsz: with probes if possible. launch lacks only how it is submitted.
 * found: of nt_launch_find, which has not passed it.
 */
CUresult nt_launch_forms_plain(CUfunction handle, struct nt_launch *launch, struct nt_found found)
{
	struct nt_function *function;
	uint32_t *reading = begin_found_launch(handle, found, &function);

	launch->submit = submit_plain;
	launch->is_ordinary = true;
	CUresult result = function ? nt_launch(function, launch)
				   : submit_plain(launch, handle, launch->parameters, launch->extra);
	end_launch(reading);
	return result;
}

/*
 * A launch by cuLaunchKernelEx, or with per_thread by cuLaunchKernelEx_ptsz: with probes if possible. config NULL: the
 * driver refuses it. found: of nt_launch_find, of no use without config.
 */
CUresult nt_launch_forms_config(const CUlaunchConfig *config, CUfunction handle, void **parameters, void **extra,
				bool per_thread, struct nt_found found)
{
	struct nt_function *function = NULL;
	uint32_t *reading = config ? begin_found_launch(handle, found, &function) : begin_launch();

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

/*
 * Submit function for cuLaunchCooperativeKernel, which takes the parameters as pointers alone: make the program's call
 * with this function and these parameters.
 */
static CUresult submit_cooperative(const struct nt_launch *l, CUfunction function, void **parameters, void **extra)
{
	(void)extra;
	return (l->per_thread ? nt_driver.cuLaunchCooperativeKernel_ptsz : nt_driver.cuLaunchCooperativeKernel)(
		function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared, l->stream,
		parameters);
}

/*
 * A launch by cuLaunchCooperativeKernel or cuLaunchCooperativeKernel_ptsz: with probes if possible. launch lacks only
 * how it is submitted.
 */
CUresult nt_launch_forms_cooperative(CUfunction handle, struct nt_launch *launch)
{
	uint32_t *reading = begin_launch();
	struct nt_function *function = recorded_function(handle);

	launch->submit = submit_cooperative;
	CUresult result = function ? nt_launch(function, launch)
				   : submit_cooperative(launch, handle, launch->parameters, NULL);
	end_launch(reading);
	return result;
}

/* Before a launch by a call whose kernels are never probed: count it. nt_quiet_launch_ends is called after it. */
void nt_launch_forms_other(CUfunction handle)
{
	nt_quiet_launch_begins();
	uint32_t *reading = nt_grace_reading_begin();
	const struct nt_function *function = recorded_function(handle);
	enum neutrino_reason reason = function ? nt_function_reason(function) : 0;

	/* By the kernel's own reason if it has one. */
	if (function && (reason == NEUTRINO_REASON_PROBED || reason == NEUTRINO_REASON_NOT_READY))
		reason = NEUTRINO_REASON_LAUNCH_FORM;
	if (function)
		nt_counters_count(function->kernel->id, nt_launch_chosen(function, &(struct nt_launch){.stream = NULL}, reason));
	nt_grace_reading_end(reading);
}

/*
 * Before a call that launches several kernels at once, which are never probed: count it as one launch of an unknown
 * kernel. nt_quiet_launch_ends is called after it.
 */
void nt_launch_forms_unknown(void)
{
	nt_quiet_launch_begins();
	if (nt_mode_of_process() >= NT_TRACING)
		nt_launch_unknown(1, !nt_choice_is_off());
}
