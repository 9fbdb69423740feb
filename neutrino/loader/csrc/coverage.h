/* What part of the process's launches was probed, and why the others were not: said on stderr when the process ends. */
#ifndef NEUTRINO_COVERAGE_H
#define NEUTRINO_COVERAGE_H

/*
 * Say it, from the trace's counters. rank: of this process among those that were started together, which then says one
 * line; NULL if it has none.
 */
void nt_coverage_say(const char *rank);

/* Say that this process has called the driver and has loaded no GPU code. */
void nt_coverage_say_unused(const char *rank);

/* Say that this process has used the driver without calling the hook, and which tool may be the cause. */
void nt_coverage_say_missed(const char *rank);

#endif
