#include "base/captures.h"

NT_HOT int nt_captures;
