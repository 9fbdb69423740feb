#include "image/function.h"

#include "base/hot.h"

NT_HOT struct nt_handles nt_function_table;
