#include "image/choice.h"

#include "base/clock.h"
#include "base/hot.h"
#include "base/neutrino_layout.h"
#include "base/settings.h"
#include "image/ranges.h"
#include "memory/pool.h"

/* Devices that NEUTRINO_ONLY_DEVICES can name: the bits of a word. */
#define MOST_DEVICES 64

NT_HOT struct nt_choice nt_choice = {.end = UINT64_MAX, .every = 1};

/* Whether any option leaves launches out of probing; what neutrino-ctl switches does not count here. */
static bool is_limited(void)
{
	return nt_choice.is_by_number || nt_choice.devices || nt_choice.until_ns || nt_choice.is_switched || nt_choice.is_ranged;
}

/*
 * Set nt_choice.is_by_launch: whether each launch of a kernel must be checked. From any thread; neutrino-ctl may switch
 * recording before the trace begins.
 */
static void set_by_launch(void)
{
	__atomic_store_n(&nt_choice.is_by_launch,
			 nt_choice.is_by_number || nt_choice.is_changing ||
				 __atomic_load_n(&nt_choice.was_steered, __ATOMIC_RELAXED),
			 __ATOMIC_RELEASE);
}

/*
 * The trace begins: take from the settings which launches are probed, and start the clock of --duration. Once, before
 * anything is recorded.
 */
void nt_choice_begin(void)
{
	const struct nt_settings *settings = nt_settings();

	nt_choice.is_by_number = settings->launches_begin || settings->launches_end != UINT64_MAX || settings->every > 1;
	nt_choice.begin = settings->launches_begin;
	nt_choice.every = settings->every ? settings->every : 1;
	nt_choice.end = settings->launches_end ? (settings->launches_end - 1) / nt_choice.every * nt_choice.every + 1 : 0;
	if (nt_choice.end <= nt_choice.begin)
		nt_choice.end = 0;
	nt_choice.devices = settings->devices;
	nt_choice.until_ns = settings->duration_ms ? nt_clock_now_ns() + settings->duration_ms * 1000000 : 0;
	nt_choice.is_switched = settings->is_switched;
	nt_choice.is_ranged = nt_ranges_are_set();
	nt_choice.is_changing = nt_choice.until_ns || nt_choice.is_switched || nt_choice.is_ranged;
	set_by_launch();
	__atomic_store_n(&nt_choice.is_set, is_limited(), __ATOMIC_RELEASE);
}

/* Whether the time of --duration is over; the clock is not asked again once it is. Lock-free. */
bool nt_choice_has_ended(void)
{
	if (!nt_choice.until_ns)
		return false;
	if (__atomic_load_n(&nt_choice.has_ended, __ATOMIC_RELAXED))
		return true;
	if (nt_clock_now_ns() < nt_choice.until_ns)
		return false;
	__atomic_store_n(&nt_choice.has_ended, true, __ATOMIC_RELAXED);
	return true;
}

/*
 * Whether recording is off for a reason that changes while the program runs: it has switched it off, this thread is in
 * no range of --range, or --duration is over. neutrino-ctl does not count here.
 */
bool nt_choice_is_off_now(void)
{
	return (nt_choice.is_switched && !__atomic_load_n(&nt_choice.is_on, __ATOMIC_ACQUIRE)) ||
	       (nt_choice.is_ranged && !nt_ranges_are_open()) || nt_choice_has_ended();
}

/*
 * Switch recording on or off for the program itself (neutrino_record). Counts only if the run lets the program switch.
 * From any thread, also before the trace begins.
 */
void nt_choice_switch(bool on)
{
	__atomic_store_n(&nt_choice.is_on, on, __ATOMIC_RELEASE);
}

/*
 * Switch recording on or off for neutrino-ctl, from outside the process. While it is off by that, the program cannot
 * switch it on.
 */
void nt_choice_steer(bool on)
{
	if (!on)
		__atomic_store_n(&nt_choice.was_steered, true, __ATOMIC_RELEASE);
	set_by_launch();
	__atomic_store_n(&nt_choice.is_steered_off, !on, __ATOMIC_RELEASE);
	__atomic_store_n(&nt_choice.is_set, !on || is_limited(), __ATOMIC_RELEASE);
}

/* Why nothing is recorded at the moment, as bits of enum neutrino_off; 0: it is recorded. */
uint32_t nt_choice_off(void)
{
	uint32_t ret = 0;

	if (__atomic_load_n(&nt_choice.is_steered_off, __ATOMIC_ACQUIRE))
		ret |= NEUTRINO_OFF_STEERED;
	if (nt_choice.is_switched && !__atomic_load_n(&nt_choice.is_on, __ATOMIC_ACQUIRE))
		ret |= NEUTRINO_OFF_SWITCHED;
	if (nt_choice_has_ended())
		ret |= NEUTRINO_OFF_OVER;
	return ret;
}

/*
 * Whether no later launch of the kernel can be chosen, as far as that is known without asking the clock: --duration was
 * found to be over, or its launches have passed the end of --launches.
 */
static bool is_known_over(const struct nt_kernel *kernel)
{
	return __atomic_load_n(&nt_choice.has_ended, __ATOMIC_RELAXED) ||
	       (nt_choice.is_by_number && __atomic_load_n(&kernel->launches, __ATOMIC_RELAXED) >= nt_choice.end);
}

/* Whether no later launch of the kernel can be chosen any more, by --duration or --launches. Lock-free. */
bool nt_choice_is_over(const struct nt_kernel *kernel)
{
	return nt_choice_has_ended() || is_known_over(kernel);
}

/*
 * Take the next number of a launch of the kernel, and return whether the launch is chosen for probing. The caller has
 * asked nt_choice_has_ended. Lock-free.
 */
bool nt_choice_take(struct nt_kernel *kernel)
{
	/* A kernel that is over needs no numbers. */
	if (is_known_over(kernel))
		return false;
	return !nt_choice.is_by_number || nt_choice_has_number(__atomic_fetch_add(&kernel->launches, 1, __ATOMIC_RELAXED));
}

/* --- devices --- */

/* The device of a context, which is made current meanwhile if it is not; -1 if the driver does not say. */
static CUdevice device_of(CUcontext context)
{
	CUcontext current = NULL, popped;
	CUdevice device = -1;

	nt_driver.cuCtxGetCurrent(&current);
	bool is_pushed = current != context;
	if (is_pushed && nt_driver.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return -1;
	if (nt_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		device = -1;
	if (is_pushed)
		nt_driver.cuCtxPopCurrent_v2(&popped);
	return device;
}

/*
 * Whether launches in a context are chosen by --device; true for NULL, and where the context's device is not known.
 * Lock-free.
 */
bool nt_choice_has_context(CUcontext context)
{
	if (!nt_choice.devices || !context)
		return true;
	const struct nt_pool *pool = nt_pools_find(context);
	CUdevice device = pool ? nt_pools_device(pool) : device_of(context);
	return device < 0 || (device < MOST_DEVICES && nt_choice.devices >> device & 1);
}

/*
 * Whether any launch of an image (GPU code of the program) that is loaded now can be chosen by --duration and --device,
 * so that it needs twins (copies with probes). context: of a module; NULL for a library, which any context can use.
 */
bool nt_choice_has_image(CUcontext context)
{
	int count = 0;

	if (nt_choice_has_ended() || !nt_choice_has_context(context))
		return false;
	if (!nt_choice.devices || context || nt_driver.cuDeviceGetCount(&count) != CUDA_SUCCESS || count >= MOST_DEVICES)
		return true;
	return nt_choice.devices & ((UINT64_C(1) << count) - 1);
}
