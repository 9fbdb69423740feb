#include "trace/path.h"

#include <limits.h>
#include <string.h>

#include "trace/trace.h"

static char trace_path[PATH_MAX]; /* "" until the trace has started */

/* The trace has started, in this directory: from now on nt_path_of_trace says so, in all threads. Called once. */
void nt_path_set(const char *path)
{
	strcpy(trace_path + 1, path + 1);
	__atomic_store_n(&trace_path[0], path[0], __ATOMIC_RELEASE);
}

/* The path of the trace directory; "" before the trace has started. From any thread. */
const char *nt_path_of_trace(void)
{
	/* Other threads see the first byte last. */
	return __atomic_load_n(&trace_path[0], __ATOMIC_ACQUIRE) ? trace_path : "";
}
