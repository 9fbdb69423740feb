/* Occupancy: how many blocks can be resident on a multiprocessor. */
#ifndef ED_OCCUPANCY_H
#define ED_OCCUPANCY_H

#include "abi.h"

#define ED_MULTIPROCESSORS 132

/* The number of resident blocks of that many threads. shared: bytes of dynamic shared memory per block. */
int ed_occupancy_blocks(CUfunction function, uint32_t threads, uint64_t shared);

#endif
