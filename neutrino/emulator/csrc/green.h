/* Green contexts: names for the primary context with a part of the multiprocessors. */
#ifndef ED_GREEN_H
#define ED_GREEN_H

#include "context.h"

/*
 * A context becomes the thread's current one, or is so no more. A green context may be current to one thread at a time:
 * a second one is named on stderr and, if strict, ends the process.
 */
void ed_green_enter(CUcontext context);
void ed_green_leave(CUcontext context);

#endif
