/*
 * Probing by a twin: the kernel's instrumented copy, loaded beside the program's module and launched in its place, with
 * the probe block as one more parameter.
 */
#ifndef NEUTRINO_TWIN_H
#define NEUTRINO_TWIN_H

#include "image/backend.h"

/* The backend's functions; backend.h says what each does. */
enum neutrino_reason nt_twin_prepare(struct nt_function *function, CUcontext context);
enum neutrino_reason nt_twin_choose(struct nt_attempt *attempt);
CUresult nt_twin_submit(const struct nt_attempt *attempt);

/* The size in bytes of the program's parameters in one buffer: up to the end of the last one. */
size_t nt_twin_parameters_size(const struct nt_kernel *kernel);

/* Unload the twins of a module or library, just before the program unloads that. */
void nt_twin_unload_all(struct nt_owner *owner);

/* Discard the stored choices by occupancy, because the program has changed an attribute of the function. */
void nt_twin_forget_shapes(struct nt_function *function);

#endif
