/*
 * For a program that loads this library by dlmopen, in a namespace with a copy of libc of its own. glibc 2.36 does not tell
 * the program's copy that there are threads now, so that malloc takes no lock there; and for a new thread it frees what
 * the other copy has allocated for an earlier one that had the same stack. A program that has threads of its own before
 * meets neither; with a GPU's driver both may happen.
 */
#ifndef ED_APART_H
#define ED_APART_H

#include <pthread.h>
#include <stdbool.h>

/* Set a stack that no other thread has had, for a thread that never ends, if that is needed; false without memory. */
bool ed_apart_set_stack(pthread_attr_t *attributes);

#endif
