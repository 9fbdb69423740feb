/*
 * Probing by a twin: the kernel's instrumented copy, loaded beside the program's module and launched in its place, with
 * the probe block as one parameter more.
 */
#ifndef NEUTRINO_TWIN_H
#define NEUTRINO_TWIN_H

#include "backend.h"

/* The row of nt_backends. */
unsigned nt_twin_prepare(struct nt_function *function, CUcontext context);
unsigned nt_twin_room(struct nt_attempt *attempt);
CUresult nt_twin_submit(const struct nt_attempt *attempt);

/* The owner is about to be unloaded: unload its twins. */
void nt_twins_unload(struct nt_owner *owner);

/* The function's attributes have changed: its verdicts on occupancy are void. */
void nt_twin_forget_shapes(struct nt_function *function);

#endif
