/* What the program has loaded: modules and libraries made of images, and the functions obtained from these. */
#ifndef NEUTRINO_REGISTRY_H
#define NEUTRINO_REGISTRY_H

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
struct nt_setting;

/* A module or a library of the program. */
struct nt_owner {
	struct nt_handle handle; /* first: what nt_handles_find compares */
	struct nt_retired retired;
	bool is_library;
	bool is_gone; /* unloaded: no function is added to it any more */
	struct nt_image *image;
	CUcontext context;	/* that a module belongs to */
	struct nt_owner *alias; /* a module made of this library */
	struct nt_part *parts;	/* twin.c's: by image of the entry; NULL while no kernel with a twin was obtained */
	int load_noted;		/* that a part would not load: said once */
	int users; /* threads that prepare contexts for its functions: it is not unloaded under them */
	struct nt_function *functions;
	struct nt_owner *aliases; /* modules made of this library */
	/* Lists: all owners, and the aliases of one library; with what points at this one in each. */
	struct nt_owner *next, **link, *next_alias, **alias_link;
};

/* Addresses of the original's module variables in one context. */
struct nt_addresses {
	CUcontext context;
	CUdeviceptr values[];
};

/* A CUfunction or CUkernel of the program. */
struct nt_function {
	struct nt_handle handle; /* first: what nt_handles_find compares */
	struct nt_retired retired;
	struct nt_kernel *kernel;
	uint32_t kernel_id;
	unsigned reason; /* PROBED: launches go to the kernel's backend. nt_function_reason */
	struct nt_counters *counters; /* of the kernel: nt_counters_of */
	bool is_kernel;		      /* a CUkernel: one handle for all contexts */
	/* Up to here: all that a launch reads which is not probed, in one line. */
	struct nt_owner *owner;
	CUcontext context; /* that a CUfunction belongs to */
	/* While it is not ready: the context that a CUkernel is prepared for, and what the program has set of it. */
	CUcontext wanted_in;
	struct nt_setting *settings;
	struct nt_addresses *addresses[NT_FUNCTION_CONTEXTS];
	/* twin.c's: the same sort of handle, or NULL. */
	void *twin;
	void *capped;	/* the twin under a register cap, or NULL */
	/* Verdicts on occupancy by (threads, dynamic shared memory): see twin.c. */
	uint64_t shapes[NT_FUNCTION_SHAPES];
	struct nt_function *next;
} __attribute__((aligned(64)));

/* Lock-free. It changes at most once, from NOT_READY. */
static inline unsigned nt_function_reason(const struct nt_function *function)
{
	return __atomic_load_n(&function->reason, __ATOMIC_ACQUIRE);
}

static inline void nt_function_set_reason(struct nt_function *function, unsigned reason)
{
	__atomic_store_n(&function->reason, reason, __ATOMIC_RELEASE);
}

/* The library that a module was made of; else the owner itself. */
struct nt_owner *nt_owner_library(struct nt_owner *owner);

/*
 * Register a module or library that the program has just loaded from an image. source: path of its file, NULL if it was in
 * memory. caller: return address of the program's call.
 */
void nt_registry_loaded(void *handle, bool is_library, const struct nt_image_bytes *bytes, const char *source,
			const void *caller);

/* Register a module that the driver made of a library for the current context. */
void nt_registry_alias(CUmodule module, CUlibrary library);

/* Just before the program unloads a module or library: remove its functions, and unload its twins. */
void nt_registry_unloading(void *handle, bool is_library);

/* Just before the program destroys a context: remove its modules and functions. */
void nt_registry_forget_context(CUcontext context);

/*
 * Register a function that the program has obtained, and prepare it for launches: this gets its image's twins, which may
 * take long. name: NULL to ask the driver for it.
 */
void nt_registry_obtained(void *owner_handle, bool is_library, void *handle, const char *name);

/* Register the CUfunction of a CUkernel that the program has obtained for the current context. */
void nt_registry_function_of(CUkernel kernel, CUfunction function);

/*
 * Prepare the functions of a kernel that are not ready, now that its image is resolved. False if a context was not idle for
 * so long: then this is to be called again. By one thread at a time, in which no context is current.
 */
bool nt_registry_make_ready(struct nt_kernel *kernel, unsigned milliseconds);

extern NT_HIDDEN struct nt_handles nt_function_table;

/*
 * The function of that handle, or NULL. In a reading section (grace.h), which lasts as long as it is used: it is freed some
 * time after its module was unloaded. Lock-free.
 */
static inline struct nt_function *nt_registry_find(const void *handle)
{
	return handle ? (struct nt_function *)nt_handles_find(&nt_function_table, handle) : NULL;
}

/* Prepare all CUkernels for launches in a context, which is current. Not on the launch path. */
void nt_registry_prepare_context(CUcontext context);

/* Whether any function is probed; if not, contexts need not be prepared. Lock-free. */
bool nt_registry_has_probed(void);

#endif
