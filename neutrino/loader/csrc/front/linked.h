/* The driver's own linker, cuLink*: what it makes machine code from is kept, for when the program loads that. */
#ifndef NEUTRINO_LINKED_H
#define NEUTRINO_LINKED_H

#include "base/cuda_abi.h"

/* After cuLinkCreate has succeeded. options, values: `count` options of the compiler, CU_JIT_... and their values. */
void nt_linked_begins(void *state, unsigned count, const int *options, void *const *values);

/* After cuLinkAddData or cuLinkAddFile, successful or not. data: NULL for a file. */
void nt_linked_gets(void *state, int type, const void *data, size_t size, unsigned count, const int *options,
		    void *const *values);

/* After cuLinkComplete has succeeded. size may be NULL. */
void nt_linked_done(void *state, void *const *cubin, const size_t *size);

/* Before cuLinkDestroy. */
void nt_linked_ends(void *state);

#endif
