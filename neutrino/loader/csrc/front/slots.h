/*
 * Puts the hook between a running process and its driver: in every loaded object it redirects the slots in memory through
 * which the object calls dlsym, dlvsym, dlopen, and functions of the driver that the hook wraps, and the addresses of such
 * functions that it has looked up and keeps in its data (cached_pointers.h).
 *
 * The objects of the driver, the hook, libc and the dynamic loader are excluded, and slots that are bound to anything
 * else than the dynamic loader's or the driver's function. Addresses on the heap stay as they are.
 */
#ifndef NEUTRINO_SLOTS_H
#define NEUTRINO_SLOTS_H

#include <stdbool.h>

/*
 * Start redirecting. Called once, from a constructor of this library, when the dynamic loader holds its lock. False if
 * this process cannot be redirected.
 */
bool nt_slots_start(void);

/*
 * Redirect the slots of objects that were loaded since the last call, and those of the driver's functions once the driver
 * is known. From any thread. Keeps errno, but may change dlerror's message.
 */
void nt_slots_update(void);

#endif
