/* How many blocks a multiprocessor would hold. */
#ifndef ED_OCCUPANCY_H
#define ED_OCCUPANCY_H

#include "abi.h"

#define ED_MULTIPROCESSORS 132

/* Blocks of that many threads and bytes of dynamic shared memory. */
int ed_occupancy_blocks(CUfunction function, uint32_t threads, uint64_t shared);

#endif
