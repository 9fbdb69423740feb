/* A function is prepared for probed launches: its twin is loaded, in the context that it belongs to. */
#ifndef NEUTRINO_PREPARE_H
#define NEUTRINO_PREPARE_H

#include <stdbool.h>

#include "image/function.h"

/* Why a function is not prepared: NOT_READY if that comes later; PROBED if it can be prepared now. */
enum neutrino_reason nt_prepare_reason(const struct nt_function *function);

/*
 * Load a function's twin, and what its launches need: PROBED, or why its original runs. quiet_ms: how long the context may
 * take to become idle, else NOT_READY; 0: that is not waited for.
 */
enum neutrino_reason nt_prepare_function(struct nt_function *function, unsigned quiet_ms);

/* Whether any function is probed; if not, contexts need not be prepared. Lock-free. */
bool nt_prepare_any(void);

#endif
