/* launches.bin and counters.bin, as files. All functions run in the writer. */
#ifndef NEUTRINO_LAUNCHES_FILE_H
#define NEUTRINO_LAUNCHES_FILE_H

#include <stdbool.h>

/* Create both. False if that fails: errno is set. */
bool nt_launches_file_create(void);

/*
 * Write records and counters that have changed. is_last: all of them, and that the trace is complete if they are written;
 * has_events: and its events.
 */
void nt_launches_file_write(bool is_last, bool has_events);

#endif
