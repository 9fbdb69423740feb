/*
 * The way to the driver redirected in a process that runs already: in every loaded object the slots in memory through
 * which it calls dlsym, dlvsym and dlopen, and functions of the driver that the hook wraps.
 *
 * Left alone are the driver's own objects, ours, libc's and the dynamic loader's, and whatever a slot was bound to that
 * is not the dynamic loader's function or the driver's. What a program looked up earlier and keeps stays as it is.
 */
#ifndef NEUTRINO_SLOTS_H
#define NEUTRINO_SLOTS_H

#include <stdbool.h>

/* From a constructor of ours: the dynamic loader's lock is held. False when this process cannot be redirected. */
bool nt_slots_start(void);

/*
 * Redirect what objects have brought that were loaded since, or all functions of a driver that is known by now. Changes
 * what dlerror says; keeps errno. Nothing when nothing was loaded.
 */
void nt_slots_update(void);

#endif
