#include "base/mode.h"

NT_HOT int nt_process_mode_now;
