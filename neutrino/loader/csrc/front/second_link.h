/*
 * A link of LTO IR (input of optimization at link time) makes machine code at once, without PTX. The same link, done a
 * second time with nvJitLink's option -ptx, gives the PTX.
 */
#ifndef NEUTRINO_SECOND_LINK_H
#define NEUTRINO_SECOND_LINK_H

#include <stddef.h>

#include "base/front.h"
#include "image/ltoir.h"

/*
 * Its PTX: memory of nt_memory_alloc, the caller's, of *size bytes; NULL if there is none. Runs in the calling thread, and
 * takes a part of the time of the first link.
 */
char *nt_second_link_ptx(const struct nt_ltoir *ltoir, const struct neutrino_nvjitlink *library, size_t *size);

#endif
