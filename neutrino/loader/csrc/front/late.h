/*
 * The hook in a process that is running already. The stub of the first patched library loads it if NEUTRINO_TRACEDIR is
 * set. It does nothing if the process has another hook.
 */
#ifndef NEUTRINO_LATE_H
#define NEUTRINO_LATE_H

#include <stdbool.h>

/* Whether this copy records. Decided before the program runs any code of the patched library. */
bool nt_late_is_active(void);

/* Whether the driver was in the process before this library was: part of it may have been looked up then. */
bool nt_late_came_after(void);

/* For late.c, which sets them: the same two. */
extern int nt_late_active;
extern bool nt_late_came; /* this library was loaded after the driver */

#endif
