/* The state of the hook in this process: its start, its trace, its end, and fork. */
#ifndef NEUTRINO_PROCESS_H
#define NEUTRINO_PROCESS_H

#include <stdbool.h>

/* Milliseconds that the end of a context or of the process waits for its records. */
#define DRAIN_LIMIT_MS 5000
/* Milliseconds that an allocation of the program waits for device memory of the hook. */
#define GIVE_BACK_LIMIT_MS 1000

/* Decide whether this process is recorded. After the program's first call of the driver; from any thread, done once. */
void nt_process_start(void);

/* Whether it was decided. */
bool nt_process_has_started(void);

/*
 * Start the trace if that has not been done; whether there is one. Called at the first image, so that a process that never
 * uses the GPU leaves no folder. From any thread.
 */
bool nt_process_trace(void);

/*
 * At the end of the process: if the driver was used before the hook was loaded, and so nothing was recorded, start a trace
 * that says so.
 */
void nt_process_missed(void);

/* Start the thread that does what is left at the end of the process. Done once. */
void nt_process_prepare_end(void);

/* nt_process_missed, by that thread; in the thread that calls exit, which waits for it for a second or two. */
void nt_process_end_missed(void);

#endif
