/* Modules and libraries of the program, and functions that it obtained from these: as the registry has them. */
#ifndef NEUTRINO_FUNCTION_H
#define NEUTRINO_FUNCTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/driver.h"
#include "base/handles.h"
#include "base/kernel.h"
#include "image/image.h"

#define NT_FUNCTION_CONTEXTS 8
#define NT_FUNCTION_SHAPES 16

struct nt_counters;
struct nt_part;
struct nt_set;
struct nt_setting;

/* What twin.c has loaded for a module or library, of its image for one set of probes. */
struct nt_made {
	struct nt_image *image;
	struct nt_part *parts; /* twin.c's: by image of the entry; NULL while no kernel with a twin was obtained */
	int load_noted;	       /* that a part would not load: said once */
	struct nt_made *next;  /* for another set; only added to */
};

/* A module or a library of the program. */
struct nt_owner {
	struct nt_handle handle; /* first: what nt_handles_find compares */
	struct nt_retired retired;
	bool is_library;
	bool is_gone; /* unloaded: no function is added to it any more */
	struct nt_made made;	/* for the set that was in force when it was loaded; others follow */
	struct nt_image_bytes kept; /* what it was loaded from, for other sets and kernels of their own; data NULL: none */
	bool is_kept_elsewhere; /* kept is no copy, but in a loaded library that nobody can write to */
	uint8_t kept_digest[32]; /* kernel_image.c's: SHA-256 of kept, once is_kept_known */
	bool is_kept_known;
	const struct nt_set *kept_for; /* the set by whose listener there is a file of it */
	CUcontext context;	/* that a module belongs to */
	struct nt_owner *alias; /* a module made of this library */
	int users; /* threads that prepare contexts for its functions: it is not unloaded under them */
	struct nt_function *functions; /* of all sets */
	struct nt_owner *aliases; /* modules made of this library */
	/* Lists: all owners, and the aliases of one library; with what points at this one in each. */
	struct nt_owner *next, **link, *next_alias, **alias_link;
};

/* Addresses of the original's module variables in one context. */
struct nt_addresses {
	CUcontext context;
	CUdeviceptr values[];
};

/* Where a parameter of a kernel is, in bytes. */
struct nt_parameter {
	size_t offset, size;
};

/* Where a kernel has its parameters, in the order of their numbers; total: bytes up to the end of the last. */
struct nt_parameters {
	size_t count, total;
	struct nt_parameter each[];
};

/*
 * A CUfunction or CUkernel of the program, for one set of probes. Of the records of a handle, one for each set that was asked
 * for, the table of functions has the one in force.
 */
struct nt_function {
	struct nt_handle handle; /* first: what nt_handles_find compares */
	struct nt_retired retired;
	struct nt_kernel *kernel;
	uint32_t kernel_id;
	enum neutrino_reason reason; /* PROBED: launches go to the kernel's backend. nt_function_reason */
	struct nt_counters *counters; /* of the kernel: nt_counters_of */
	bool is_kernel;		      /* a CUkernel: one handle for all contexts */
	/* Up to here: all that a launch reads which is not probed, in one line. */
	struct nt_owner *owner;
	const struct nt_set *set;   /* whose twin it runs; NULL: it has none, whatever the set */
	struct nt_function *first;  /* of the records of its handle */
	struct nt_function *more;   /* the next of them; only added to */
	CUcontext context; /* that a CUfunction belongs to */
	/* While it is not ready: the context that a CUkernel is prepared for, and what the program has set of it. */
	CUcontext wanted_in;
	struct nt_setting *settings;
	struct nt_addresses *addresses[NT_FUNCTION_CONTEXTS];
	/* twin.c's: the same sort of handle, or NULL. */
	void *twin;
	void *capped;	/* the twin under a register cap, or NULL */
	struct nt_parameters *parameters; /* graph_layout.c's: by the driver, once it was asked; NULL before */
	/* Verdicts on occupancy by (threads, dynamic shared memory): see twin.c. */
	uint64_t shapes[NT_FUNCTION_SHAPES];
	struct nt_function *next; /* of its owner's */
} __attribute__((aligned(64)));

/*
 * Why launches of a function run the original; PROBED if they go to its twin (copy with probes), NOT_READY if that is
 * still to come. It changes at most once, from NOT_READY. Lock-free.
 */
static inline enum neutrino_reason nt_function_reason(const struct nt_function *function)
{
	return __atomic_load_n(&function->reason, __ATOMIC_ACQUIRE);
}

/*
 * Set why launches of a function run the original; PROBED if they run its twin (copy with probes). What was set up
 * before is visible to whoever reads it.
 */
static inline void nt_function_set_reason(struct nt_function *function, enum neutrino_reason reason)
{
	__atomic_store_n(&function->reason, reason, __ATOMIC_RELEASE);
}

/* The next record of a function's handle, for another set of probes; NULL after the last. Lock-free. */
static inline struct nt_function *nt_function_more(const struct nt_function *function)
{
	return __atomic_load_n(&function->more, __ATOMIC_ACQUIRE);
}

/* The library that the driver made this module of; the module or library itself if it was made of none. */
static inline struct nt_owner *nt_function_library_of(struct nt_owner *owner)
{
	return owner->alias ? owner->alias : owner;
}

/*
 * The image that a module or library has for a set of probes; its twins are asked for when it is made. NULL without memory. In
 * a reading section.
 */
struct nt_image *nt_function_image_for(struct nt_owner *owner, const struct nt_set *set);

extern NT_HIDDEN struct nt_handles nt_function_table;

/*
 * The record of a function by the driver's handle, NULL if the handle is NULL or not known. In a reading section
 * (grace.h), which keeps it from being freed as long as it is used. Lock-free.
 */
static inline struct nt_function *nt_function_find(const void *handle)
{
	return handle ? (struct nt_function *)nt_handles_find(&nt_function_table, handle) : NULL;
}

#endif
