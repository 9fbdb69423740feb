/*
 * Counts of calls and of device memory, for NEUTRINO_EMBEDDED's count=FILE: how often the program, the hook's library and threads that only
 * the hook runs called each entry point. A call that the hook passes on by a jump counts as the program's; one that it
 * passes on by a call counts as the hook's.
 */
#ifndef ED_COUNT_H
#define ED_COUNT_H

#include <stdint.h>

enum ed_caller {
	ED_PROGRAM,
	ED_HOOK,
	ED_HOOK_THREAD, /* the hook's library on a thread named neutrino-… */
	ED_CALLERS,
};

struct ed_counter {
	const char *name; /* NULL until first counted */
	struct ed_counter *next;
	uint64_t calls[ED_CALLERS];
};

void ed_count(struct ed_counter *counter, const char *name, const void *caller);

/* Count bytes of device memory that were allocated. caller: the return address. */
void ed_count_bytes(uint64_t bytes, const void *caller);

/* Write the file when the process ends. */
void ed_count_start(void);

#endif
