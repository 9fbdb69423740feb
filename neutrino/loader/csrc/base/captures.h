/* Captures of streams. launch/launch.c counts them. */
#ifndef NEUTRINO_CAPTURES_H
#define NEUTRINO_CAPTURES_H

#include <stdbool.h>

#include "base/hot.h"

/* How many are under way, as far as the hook has seen them begin and end. */
extern NT_HIDDEN int nt_captures;

/* Whether a stream is being captured (its work goes into a graph), as far as we have seen captures begin and end. */
static inline bool nt_captures_are_any(void)
{
	return __atomic_load_n(&nt_captures, __ATOMIC_SEQ_CST) > 0;
}

#endif
