/*
 * What the program sets of functions (attributes, cache configurations) holds for their twins, too: for those that are
 * loaded later as well.
 */
#ifndef NEUTRINO_ATTRIBUTES_H
#define NEUTRINO_ATTRIBUTES_H

#include "image/function.h"

enum nt_setting_call {
	NT_SET_ATTRIBUTE,
	NT_SET_CACHE,
	NT_SET_SHARED,
	NT_SET_KERNEL_ATTRIBUTE,
	NT_SET_KERNEL_CACHE,
};

/* One successful call of the program. */
struct nt_setting {
	enum nt_setting_call call;
	int attribute;
	int value;
	CUdevice device;
	struct nt_setting *next;
};

/* The program has set something of the function with that handle: it holds for its twins of all sets of probes. */
void nt_attributes_set(const void *handle, struct nt_setting setting);

/*
 * Have a function that is not ready begin with what the program has set of another one of the same handle. By the one thread
 * that makes it ready. False without memory.
 */
bool nt_attributes_copy(const struct nt_function *from, struct nt_function *to);

/*
 * A function's twins are loaded now: set of them what the program has set of it so far, and give it its reason, from which
 * on launches run them. By the one thread that makes it ready.
 */
void nt_attributes_publish(struct nt_function *function, enum neutrino_reason reason);

/* Free what is kept of a function that nobody uses any more. */
void nt_attributes_release(struct nt_function *function);

#endif
