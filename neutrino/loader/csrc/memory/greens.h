/*
 * Green contexts. The driver allows one to be current to one thread at a time, so the hook never makes one current: its
 * kernels run unprobed.
 */
#ifndef NEUTRINO_GREENS_H
#define NEUTRINO_GREENS_H

#include <stdbool.h>

#include "base/driver.h"

/* A context is, or was, that of a green one. From any thread. */
void nt_greens_add(CUcontext context);
void nt_greens_remove(CUcontext context);

/* Lock-free. */
bool nt_greens_has(CUcontext context);

#endif
