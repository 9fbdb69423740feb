/* What the hook has recorded so far, seen from the program: so that it waits for what is needed, and not for a time. */
#ifndef WATCHED_H
#define WATCHED_H

#include "program.h"

/* The path of a file of the trace in folder; "" if there is none. */
void trace_file(char *ret, size_t size, const char *folder, const char *name);

/* How many launches have been probed so far, as the trace has counted them; 0 without the hook. */
uint64_t probed_so_far(void);

/*
 * Wait until the hook, where there is one, has written every launch of launches_made. None may be on a stream that nothing
 * waits for.
 */
void written(void);

/*
 * Wait until the hook's own thread, where there is one, has done all that it does for launches that are written: streams
 * have given up segments, memory is free again, and there is more of it where that lacked.
 */
void settled(void);

#endif
