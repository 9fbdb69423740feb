/*
 * Which launches are probed, of all those of a process: --launches and --every by their number, --device by where they run,
 * --duration by when, --range by the ranges that the program is in; and while recording is on, in a program that switches it on and off, or that neutrino-ctl does. What
 * is not chosen runs its original and is counted as not-selected.
 */
#ifndef NEUTRINO_CHOICE_H
#define NEUTRINO_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/driver.h"
#include "base/hot.h"
#include "base/kernel.h"

/* The trace begins, and with it the duration. Once, before anything is recorded. */
void nt_choice_begin(void);

/* For the functions below, in one line: each launch asks. Set when the trace begins, but for what is said to change. */
extern NT_HIDDEN struct nt_choice {
	uint64_t begin, end; /* numbers; end is after the last one that is chosen */
	uint64_t every;
	uint64_t devices;  /* a bit for each; 0: all */
	uint64_t until_ns; /* when the duration ends; 0: never */
	int is_set;	   /* changes: any launch may not be chosen */
	int is_by_launch;  /* changes: launches of one kernel in one context may differ */
	bool is_by_number;
	bool is_switched;   /* by the program */
	bool is_ranged;	    /* by the ranges that the program is in */
	bool is_changing;   /* by any of the duration, the program and its ranges */
	bool is_on;	    /* changes: in a program that switches it */
	bool is_steered_off; /* changes: by neutrino-ctl */
	bool was_steered;   /* changes: to off, since when each replay of a graph is asked for */
	bool has_ended;	    /* changes: the duration has passed, so that the clock need not be asked again */
} __attribute__((aligned(64))) nt_choice;

/*
 * Whether an option (such as --launches, --device) or neutrino-ctl may leave launches out of probing, so that each has
 * to be checked. Lock-free.
 */
static inline bool nt_choice_is_set(void)
{
	return __atomic_load_n(&nt_choice.is_set, __ATOMIC_RELAXED);
}

/*
 * Whether one launch of a kernel may be chosen for probing and the next in the same context not, so that each launch
 * must be checked. Lock-free.
 */
static inline bool nt_choice_is_by_launch(void)
{
	return __atomic_load_n(&nt_choice.is_by_launch, __ATOMIC_RELAXED);
}

/* Whether launches are chosen for probing by their number (--launches, --every). */
static inline bool nt_choice_is_by_number(void)
{
	return nt_choice.is_by_number;
}

/* Whether launches are chosen for probing by their device (--device). */
static inline bool nt_choice_is_by_device(void)
{
	return nt_choice.devices;
}

/* Whether the duration has passed. Lock-free. */
bool nt_choice_has_ended(void);

/* The same, as far as it changes without neutrino-ctl. */
bool nt_choice_is_off_now(void);

/*
 * Whether recording is off at the moment: neutrino-ctl or the program has switched it off, --duration is over, or this
 * thread is in none of the ranges of --range. Launches get no numbers then. Lock-free.
 */
static inline bool nt_choice_is_off(void)
{
	return __atomic_load_n(&nt_choice.is_steered_off, __ATOMIC_ACQUIRE) ||
	       (NT_UNLIKELY(nt_choice.is_changing) && nt_choice_is_off_now());
}

/* Switch recording on or off, in a program that may. From any thread, also before the trace begins. */
void nt_choice_switch(bool is_on);

/* The same, for neutrino-ctl, of any process with a trace. While it has recording off, the program cannot switch it on. */
void nt_choice_steer(bool is_on);

/* Why nothing is recorded now, as bits of enum neutrino_off; 0: it is. */
uint32_t nt_choice_off(void);

/* Whether no later launch of the kernel is chosen. Lock-free. */
bool nt_choice_is_over(const struct nt_kernel *kernel);

/* Whether launches in a context are chosen, by its device; true for NULL, and where the device is not known. Lock-free. */
bool nt_choice_has_context(CUcontext context);

/*
 * Whether any launch of an image that is loaded now can be chosen. context: of a module; NULL for a library, which any
 * context can use.
 */
bool nt_choice_has_image(CUcontext context);

/* Take the number of a launch of the kernel, after nt_choice_has_ended: whether it is chosen. Lock-free. */
bool nt_choice_take(struct nt_kernel *kernel);

/* Whether the launch of that number (from 0 on, among those of its kernel) is chosen by --launches and --every. */
static inline bool nt_choice_has_number(uint64_t number)
{
	return number >= nt_choice.begin && number < nt_choice.end && number % nt_choice.every == 0;
}

/*
 * Take the next number of a launch of the kernel if it is not chosen for probing: true. False if it may be chosen: then
 * no number is taken. Whether --duration is over is asked without the clock. Lock-free.
 */
static inline bool nt_choice_pass(struct nt_kernel *kernel)
{
	if (__atomic_load_n(&nt_choice.has_ended, __ATOMIC_RELAXED))
		return true;
	if (!nt_choice.is_by_number)
		return false;
	uint64_t number = __atomic_load_n(&kernel->launches, __ATOMIC_RELAXED);
	/* A kernel that is over needs no numbers. */
	while (number < nt_choice.end && !nt_choice_has_number(number))
		if (__atomic_compare_exchange_n(&kernel->launches, &number, number + 1, true, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			return true;
	return number >= nt_choice.end;
}

/*
 * Whether a launch of the kernel, one that is no node of a graph, is passed over: recording is off, or its number is
 * not chosen, which it takes then. If false, no number is taken. Lock-free.
 */
static inline bool nt_choice_passes(struct nt_kernel *kernel)
{
	return nt_choice_is_by_launch() && (nt_choice_is_off() || nt_choice_pass(kernel));
}

#endif
