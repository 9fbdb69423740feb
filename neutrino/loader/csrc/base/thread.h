#ifndef NEUTRINO_THREAD_H
#define NEUTRINO_THREAD_H

#include <stdbool.h>
#include <stdint.h>

/* The system's id of the calling thread, asked for once. */
uint32_t nt_thread_id(void);

/*
 * Start a thread of ours, which nobody joins; false if there can be none. All signals are blocked in it, so that the
 * program's signals are delivered to its own threads. name: NULL if it may end soon.
 */
bool nt_thread_start(void *(*main)(void *), void *argument, const char *name);

#endif
