/*
 * Recording without the `neutrino` command: this library is loaded with the first patched library of the process, whose
 * DT_AUXILIARY names it, and is a hook of its own where NEUTRINO_TRACEDIR is set and no other hook is there.
 */
#ifndef NEUTRINO_STUB_H
#define NEUTRINO_STUB_H

#include <stdbool.h>

/* Whether this copy records. Decided before the program runs any code of the patched library. */
bool nt_stub_is_active(void);

/* Whether the driver was in the process before this library was: part of it may have been looked up then. */
bool nt_stub_is_late(void);

#endif
