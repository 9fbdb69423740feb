/* Words written in stream order. */
#ifndef ED_WRITE_VALUE_H
#define ED_WRITE_VALUE_H

#include "operation.h"

CUresult ed_write_run(const struct ed_write *write);

#endif
