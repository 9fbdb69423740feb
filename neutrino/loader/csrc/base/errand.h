/*
 * What opens descriptors for the program's threads: threads of ours, each with a descriptor table of its own. So the
 * program cannot close, read or inherit one of ours, also while its own call waits for an answer. They block all signals,
 * and no thread of the program is cancelled in them.
 */
#ifndef NEUTRINO_ERRAND_H
#define NEUTRINO_ERRAND_H

#include <stdbool.h>
#include <stdint.h>

/* A function that a thread of ours calls. It must end by itself, and must not call the driver. */
struct nt_errand {
	void (*run)(void *argument);
	void (*release)(void *argument); /* for nt_errand_drop; may be NULL otherwise */
	void *argument;
	struct nt_errand *next;
	uint32_t state; /* futex */
};

/*
 * Have a function called, and do not wait. The errand must stay until it is settled. False if no thread can do that:
 * none could be started, or a seccomp filter that the program has installed since may forbid what it does.
 */
bool nt_errand_start(struct nt_errand *errand);

/* Whether it is settled; waits for that, at most so many milliseconds. */
bool nt_errand_is_done(struct nt_errand *errand, unsigned milliseconds);
/* Have an errand released once it is settled: nobody waits for it any more. */
void nt_errand_drop(struct nt_errand *errand);
/* Whether that was called. */
bool nt_errand_is_dropped(const struct nt_errand *errand);

/* Whether a settled errand was run: not if a seccomp filter came before. */
bool nt_errand_has_run(const struct nt_errand *errand);

/*
 * Have a function called, and wait for its end. Where no thread can have a table of its own, and in a thread that has one,
 * it runs in the caller. False if it did not run, as what it does may be forbidden.
 */
bool nt_errand_run(void (*run)(void *argument), void *argument);

/* Give the calling thread, one of ours, a table of its own: it does its errands itself. False if that fails. */
bool nt_errand_take_table(void);

/* What seccomp filters there are now allow what errands do. */
void nt_errand_accept_filters(void);

/* Start a thread that waits for an errand, so that the next one needs none to be started. */
void nt_errand_prepare(void);

/* In the child after fork: there are no such threads yet. */
void nt_errand_forget_threads(void);
/* The same, and none is started: what errands remain run in the caller. */
void nt_errand_child(void);

#endif
