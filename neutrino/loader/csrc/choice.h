/*
 * Which launches are probed, of all those of a process: --launches and --every by their number, --device by where they run,
 * --duration by when, --range by the ranges that the program is in; and while recording is on, in a program that switches it on and off, or that neutrino-ctl does. What
 * is not chosen runs its original and is counted as not-selected.
 */
#ifndef NEUTRINO_CHOICE_H
#define NEUTRINO_CHOICE_H

#include <stdbool.h>

#include "driver.h"
#include "kernel.h"

/* The trace begins, and with it the duration. Once, before anything is recorded. */
void nt_choice_begin(void);

/* Whether any launch may not be chosen. Set when the trace begins, and by neutrino-ctl. Lock-free. */
extern int nt_choice_set_now;

static inline bool nt_choice_is_set(void)
{
	return __atomic_load_n(&nt_choice_set_now, __ATOMIC_RELAXED);
}

/* Whether launches of one kernel in one context may differ: each must be asked for. */
bool nt_choice_is_by_launch(void);
/* Whether they may differ by their number. */
bool nt_choice_is_by_number(void);

/* Whether they may differ by their device. */
bool nt_choice_is_by_device(void);

/* Whether the duration has passed. Lock-free. */
bool nt_choice_has_ended(void);

/*
 * Whether that, or the program or neutrino-ctl has recording off now, or this thread is in no range that is chosen. Then
 * launches have no numbers. Lock-free.
 */
bool nt_choice_is_off(void);

/* Switch recording on or off, in a program that may. From any thread, also before the trace begins. */
void nt_choice_switch(bool is_on);

/* The same, for neutrino-ctl, of any process with a trace. While it has recording off, the program cannot switch it on. */
void nt_choice_steer(bool is_on);

/* Why nothing is recorded now, as bits of enum neutrino_off; 0: it is. */
uint32_t nt_choice_off(void);

/*
 * Whether a launch of the kernel that is no node of a graph is not chosen, by recording or its number, which it takes then. If
 * not, it has taken none. Lock-free.
 */
bool nt_choice_passes(struct nt_kernel *kernel);

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

/*
 * Take the number of a launch if it is not chosen, as far as that is known without the clock. False if it may be: then no
 * number is taken. Lock-free.
 */
bool nt_choice_pass(struct nt_kernel *kernel);

#endif
