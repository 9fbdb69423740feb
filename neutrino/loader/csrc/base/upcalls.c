#include "base/upcalls.h"

struct nt_upcalls nt_upcalls;
