/* What a program may ask of the hook in its process: exported functions. From any thread. */
#ifndef NEUTRINO_CONTROL_H
#define NEUTRINO_CONTROL_H

#include <stdint.h>

/* The folder of this process's trace; "" before there is one. */
const char *neutrino_trace_dir(void);

/*
 * Wait for all launches that were submitted so far, and have their records written, for at most that long. 1 if they are
 * in the trace, 0 if not, or if there is no trace.
 */
int neutrino_flush(uint32_t milliseconds);

/*
 * Switch recording on or off, in a process whose NEUTRINO_SWITCHED is set; then it is off at first. Launches that are not
 * recorded run their own code, and count as not-selected.
 */
void neutrino_record(int is_on);

/*
 * Push a range of the domain "neutrino" in this thread, and pop it: as NVTX's, for --range. Without that nothing happens.
 */
void neutrino_range_push(const char *name);
void neutrino_range_pop(void);

/*
 * Make a set of probes known, in a process whose NEUTRINO_ASKS is set: its number, from 2, or that of the set which has this key
 * already; 0 if it cannot be had. The texts are as NEUTRINO_KEY, NEUTRINO_SOCKET, NEUTRINO_PROBE_FILE and NEUTRINO_PROBES.
 */
uint32_t neutrino_set(const char *key, const char *socket, const char *probe_file, const char *names);

/*
 * Have launches run the twins of a set of probes from now on; the first has number 1. Waits until they are made and loaded for
 * all kernels that the program has. 0 if that is so; 1: another thread does the same; 2: a stream is being captured; 3: no
 * memory; 4: no such set, or the process has one set alone.
 */
int neutrino_use(uint32_t number);

/* CLOCK_MONOTONIC in nanoseconds, as launch records have it. */
uint64_t neutrino_now(void);

#endif
