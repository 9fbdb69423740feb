/*
 * Launches counted by kernel and reason. Threads count in different lines of memory: each has one of SHARDS copies of the
 * counters. The writer adds the copies up, and writes what has changed to counters.bin.
 */
#ifndef NEUTRINO_COUNTERS_H
#define NEUTRINO_COUNTERS_H

#include <stdbool.h>
#include <stdint.h>

/* Make the counters of kernel 0 and the next ones. False without memory. */
bool nt_counters_start(void);

/* Whether something was counted since it was last written. */
bool nt_counters_changed(void);

/* Write what has changed to a file. False if that fails: it is written again next time. By one thread at a time. */
bool nt_counters_write(int fd);

#endif
