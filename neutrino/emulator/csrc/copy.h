/* Copies and fills. */
#ifndef ED_COPY_H
#define ED_COPY_H

#include "operation.h"

/* Run a copy or a fill. */
CUresult ed_copy_run(const struct ed_copy *copy);
CUresult ed_fill_run(const struct ed_fill *fill);

/* Read CUDA_MEMCPY3D and CUDA_MEMSET_NODE_PARAMS, and check them. */
CUresult ed_copy_from(const CUDA_MEMCPY3D *parameters, struct ed_copy *ret);
CUresult ed_fill_from(const CUDA_MEMSET_NODE_PARAMS *parameters, struct ed_fill *ret);

#endif
