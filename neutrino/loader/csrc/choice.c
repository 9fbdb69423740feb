#include "choice.h"

#include "hot.h"
#include "neutrino_layout.h"
#include "pool.h"
#include "ranges.h"
#include "settings.h"
#include "trace.h"

/* Devices that NEUTRINO_ONLY_DEVICES can name: the bits of a word. */
#define MOST_DEVICES 64

NT_HOT int nt_choice_set_now;

/* Set when the trace begins. */
NT_HOT static struct {
	bool is_by_number;
	uint64_t begin, end; /* numbers; end is after the last one that is chosen */
	uint64_t every;
	uint64_t devices;  /* a bit for each; 0: all */
	uint64_t until_ns; /* when the duration ends; 0: never */
	bool is_switched;  /* by the program */
	bool is_ranged;	   /* by the ranges that the program is in */
} choice = {.end = UINT64_MAX, .every = 1};

/* The duration has passed, so that the clock need not be asked again. */
NT_HOT static int has_ended;
/* Recording is on, in a program that switches it. */
NT_HOT static int is_on;
/* neutrino-ctl has switched recording off; and has done so before, since when each replay of a graph is asked for. */
NT_HOT static int is_steered_off, was_steered;

/* Whether any launch may not be chosen, but for neutrino-ctl. */
static bool is_limited(void)
{
	return choice.is_by_number || choice.devices || choice.until_ns || choice.is_switched || choice.is_ranged;
}

void nt_choice_begin(void)
{
	const struct nt_settings *settings = nt_settings();

	choice.is_by_number = settings->launches_begin || settings->launches_end != UINT64_MAX || settings->every > 1;
	choice.begin = settings->launches_begin;
	choice.every = settings->every ? settings->every : 1;
	choice.end = settings->launches_end ? (settings->launches_end - 1) / choice.every * choice.every + 1 : 0;
	if (choice.end <= choice.begin)
		choice.end = 0;
	choice.devices = settings->devices;
	choice.until_ns = settings->duration_ms ? nt_now_ns() + settings->duration_ms * 1000000 : 0;
	choice.is_switched = settings->is_switched;
	choice.is_ranged = nt_ranges_are_set();
	__atomic_store_n(&nt_choice_set_now, is_limited(), __ATOMIC_RELEASE);
}

bool nt_choice_is_by_number(void)
{
	return choice.is_by_number;
}

bool nt_choice_is_by_launch(void)
{
	return choice.is_by_number || choice.until_ns || choice.is_switched || choice.is_ranged ||
	       __atomic_load_n(&was_steered, __ATOMIC_RELAXED);
}

bool nt_choice_has_ended(void)
{
	if (!choice.until_ns)
		return false;
	if (__atomic_load_n(&has_ended, __ATOMIC_RELAXED))
		return true;
	if (nt_now_ns() < choice.until_ns)
		return false;
	__atomic_store_n(&has_ended, 1, __ATOMIC_RELAXED);
	return true;
}

bool nt_choice_is_off(void)
{
	return __atomic_load_n(&is_steered_off, __ATOMIC_ACQUIRE) ||
	       (choice.is_switched && !__atomic_load_n(&is_on, __ATOMIC_ACQUIRE)) ||
	       (choice.is_ranged && !nt_ranges_are_open()) || nt_choice_has_ended();
}

void nt_choice_switch(bool on)
{
	__atomic_store_n(&is_on, on, __ATOMIC_RELEASE);
}

void nt_choice_steer(bool on)
{
	if (!on)
		__atomic_store_n(&was_steered, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&is_steered_off, !on, __ATOMIC_RELEASE);
	__atomic_store_n(&nt_choice_set_now, !on || is_limited(), __ATOMIC_RELEASE);
}

uint32_t nt_choice_off(void)
{
	uint32_t ret = 0;

	if (__atomic_load_n(&is_steered_off, __ATOMIC_ACQUIRE))
		ret |= NEUTRINO_OFF_STEERED;
	if (choice.is_switched && !__atomic_load_n(&is_on, __ATOMIC_ACQUIRE))
		ret |= NEUTRINO_OFF_SWITCHED;
	if (nt_choice_has_ended())
		ret |= NEUTRINO_OFF_OVER;
	return ret;
}

/* Whether the launch of that number is chosen. */
static bool is_chosen(uint64_t number)
{
	return number >= choice.begin && number < choice.end && number % choice.every == 0;
}

/* nt_choice_is_over, as far as it is known without the clock. */
static bool is_known_over(const struct nt_kernel *kernel)
{
	return __atomic_load_n(&has_ended, __ATOMIC_RELAXED) ||
	       (choice.is_by_number && __atomic_load_n(&kernel->launches, __ATOMIC_RELAXED) >= choice.end);
}

bool nt_choice_is_over(const struct nt_kernel *kernel)
{
	return nt_choice_has_ended() || is_known_over(kernel);
}

bool nt_choice_take(struct nt_kernel *kernel)
{
	/* A kernel that is over needs no numbers. */
	if (is_known_over(kernel))
		return false;
	return !choice.is_by_number || is_chosen(__atomic_fetch_add(&kernel->launches, 1, __ATOMIC_RELAXED));
}

bool nt_choice_pass(struct nt_kernel *kernel)
{
	if (is_known_over(kernel))
		return true;
	uint64_t number = __atomic_load_n(&kernel->launches, __ATOMIC_RELAXED);
	while (choice.is_by_number && !is_chosen(number))
		if (__atomic_compare_exchange_n(&kernel->launches, &number, number + 1, true, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			return true;
	return false;
}

bool nt_choice_passes(struct nt_kernel *kernel)
{
	return nt_choice_is_by_launch() && (nt_choice_is_off() || nt_choice_pass(kernel));
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

bool nt_choice_is_by_device(void)
{
	return choice.devices;
}

bool nt_choice_has_context(CUcontext context)
{
	if (!choice.devices || !context)
		return true;
	const struct nt_pool *pool = nt_pool_find(context);
	CUdevice device = pool ? nt_pool_device(pool) : device_of(context);
	return device < 0 || (device < MOST_DEVICES && choice.devices >> device & 1);
}

bool nt_choice_has_image(CUcontext context)
{
	int count = 0;

	if (nt_choice_has_ended() || !nt_choice_has_context(context))
		return false;
	if (!choice.devices || context || nt_driver.cuDeviceGetCount(&count) != CUDA_SUCCESS || count >= MOST_DEVICES)
		return true;
	return choice.devices & ((UINT64_C(1) << count) - 1);
}
