/* Executable graphs. */
#ifndef ED_GRAPH_EXEC_H
#define ED_GRAPH_EXEC_H

#include "plan.h"
#include "queue.h"

struct ed_exec {
	struct ed_object object;
	struct ed_context *context;
	struct ed_plan *plan;
	struct ed_moment last; /* launches of one executable graph do not overlap */
	uint64_t flags;
};

#endif
