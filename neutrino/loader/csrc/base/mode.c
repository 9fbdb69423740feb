#include "base/mode.h"

NT_HOT int nt_mode_now;
