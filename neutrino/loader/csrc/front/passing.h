/*
 * NVRTC and nvJitLink in the program's process: what they make machine code from is kept. The auditing module (audit.c)
 * calls neutrino_passing, which is declared in base/front.h.
 */
#ifndef NEUTRINO_PASSING_H
#define NEUTRINO_PASSING_H

#include <stdbool.h>

/* Whether PTX that passes through this process is kept: it is recorded, with probes of the run, or may be. */
bool nt_passing_is_on(void);

#endif
