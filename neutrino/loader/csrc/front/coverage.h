/* How many of the process's launches were probed, and why the others were not: printed on stderr when it ends. */
#ifndef NEUTRINO_COVERAGE_H
#define NEUTRINO_COVERAGE_H

/*
 * Print that, from the trace's counters. rank: the process's rank if it was started as one of several, for which it
 * prints one line only; NULL if it has none.
 */
void nt_coverage_say(const char *rank);

/* When the trace begins, in a thread of the program: what the driver is asked for that is said at the end. */
void nt_coverage_begin(void);

/*
 * Print on stderr what is missing from the trace, and why, if anything is. After nt_trace_end. rank: as above.
 */
void nt_coverage_say_losses(const char *rank);

/* Print that this process has called the driver and has loaded no GPU code. */
void nt_coverage_say_unused(const char *rank);

/* Say that this process has used the driver without calling the hook, and which tool may be the cause. */
void nt_coverage_say_missed(const char *rank);

#endif
