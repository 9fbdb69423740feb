/* What the program has loaded: images, the modules and libraries made of them, and the functions obtained from these. */
#ifndef NEUTRINO_REGISTRY_H
#define NEUTRINO_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "driver.h"
#include "handles.h"
#include "image_bytes.h"
#include "kernel.h"

#define NT_FUNCTION_CONTEXTS 8
#define NT_FUNCTION_SHAPES 16

struct nt_owner;

/* Addresses of the original's module variables in one context. */
struct nt_addresses {
	CUcontext context;
	CUdeviceptr values[];
};

/* A CUfunction or CUkernel of the program. */
struct nt_function {
	struct nt_handle handle; /* first: what nt_handles_find compares */
	struct nt_owner *owner;
	struct nt_kernel *kernel;
	bool is_kernel; /* a CUkernel: one handle for all contexts */
	unsigned reason;
	void *twin;	/* same sort of handle; NULL when reason is not PROBED */
	void *capped;	/* the twin under a register cap, or NULL */
	CUcontext context; /* that a CUfunction belongs to */
	struct nt_addresses *addresses[NT_FUNCTION_CONTEXTS];
	/* Verdicts on occupancy by (threads, dynamic shared memory): see launch.c. */
	uint64_t shapes[NT_FUNCTION_SHAPES];
	struct nt_function *next;
};

/*
 * Twins come from the sections of patched files, not from the run's probes. Said before anything is loaded.
 */
void nt_registry_use_sections(void);

/* The program obtained nothing yet: remember what it loaded. caller: return address of the program's call. */
void nt_registry_loaded(void *handle, bool is_library, const struct nt_image_bytes *bytes, const char *source,
			const void *caller);

/* A module that the driver made of a library for the current context. */
void nt_registry_alias(CUmodule module, CUlibrary library);

/* Just before the real unload: removes every function and the twins. */
void nt_registry_unloading(void *handle, bool is_library);

/* The context goes away with its modules. */
void nt_registry_forget_context(CUcontext context);

/* The program obtained a function; its twin is loaded now. name NULL: asked of the driver. */
void nt_registry_obtained(void *owner_handle, bool is_library, void *handle, const char *name);

/* The program asked for the CUfunction of a CUkernel in the current context. */
void nt_registry_function_of(CUkernel kernel, CUfunction function);

/* The function of that handle, or NULL. Lock-free. */
struct nt_function *nt_registry_find(const void *handle);

/* Make ready, for the current context, everything that a launch there needs. Not on the launch path. */
void nt_registry_prepare_context(CUcontext context);

/* True once any twin has been loaded: contexts are worth preparing. */
bool nt_registry_has_twins(void);

#endif
