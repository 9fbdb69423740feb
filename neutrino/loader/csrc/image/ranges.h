/*
 * Ranges of the program's code, as it marks them by NVTX (nvtx.c) or neutrino.range(), and which of them --range has chosen.
 * What is pushed and popped counts for launches of that thread, or with --range-scope process of all; what is started and
 * ended for those of all threads. All of it may be called from any thread, also before the trace begins.
 */
#ifndef NEUTRINO_RANGES_H
#define NEUTRINO_RANGES_H

#include <stdbool.h>
#include <stdint.h>

/* Whether --range was given. Without it nothing else here does anything. */
bool nt_ranges_are_set(void);

/* Whether a launch of this thread is in a chosen range now. Lock-free. */
bool nt_ranges_are_open(void);

/* A domain of names. */
struct nt_domain;

/* That of a name, "" for NVTX's default one; the same each time. Never NULL, and never freed. */
struct nt_domain *nt_ranges_domain_named(const char *name);

/* That of a handle, which the program may have from anywhere: one of nt_ranges_domain_named, or NULL for the default one. */
struct nt_domain *nt_ranges_domain_of(void *handle);

/* Whether a range of that name is chosen: if it is pushed, if it is started. */
struct nt_chosen_range {
	bool if_pushed, if_started;
};
struct nt_chosen_range nt_ranges_chosen(const struct nt_domain *domain, const char *name);

/* Push a range, or pop the last one of this thread: its level from 0 on, negative if that is not known. */
int nt_ranges_push(struct nt_domain *domain, struct nt_chosen_range chosen);
int nt_ranges_pop(struct nt_domain *domain);

/* Start a range, whose number is returned, and end it in any thread. */
uint64_t nt_ranges_start(struct nt_domain *domain, struct nt_chosen_range chosen);
void nt_ranges_end(uint64_t number);

/* The program needs a domain no more: what was started in it has ended. */
void nt_ranges_domain_ends(struct nt_domain *domain);

/* The program calls NVTX, and its calls arrive here. */
void nt_ranges_arrive(void);

/* When the trace begins, and at the end of the process: note why nothing may be, or was, chosen. */
void nt_ranges_note_begin(void);
void nt_ranges_note_end(void);

#endif
