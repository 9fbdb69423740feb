#include "trace/path.h"

#include <limits.h>
#include <string.h>

#include "trace/trace.h"

static char trace_path[PATH_MAX]; /* "" until the trace has started */

void nt_path_set(const char *path)
{
	strcpy(trace_path + 1, path + 1);
	__atomic_store_n(&trace_path[0], path[0], __ATOMIC_RELEASE);
}

const char *nt_path_of_trace(void)
{
	/* Other threads see the first byte last. */
	return __atomic_load_n(&trace_path[0], __ATOMIC_ACQUIRE) ? trace_path : "";
}
