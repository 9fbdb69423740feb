/* What the program has loaded: modules and libraries made of images, and the functions obtained from these. */
#ifndef NEUTRINO_REGISTRY_H
#define NEUTRINO_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "image/function.h"
#include "image/sets.h"

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

/* Prepare all CUkernels for launches in a context, which is current. Not on the launch path. */
void nt_registry_prepare_context(CUcontext context);

/* --- changes of the set of probes: for change.c. In a reading section --- */

/* The functions in force for other sets without a ready record for this one: a list for nt_memory_free. False without memory. */
bool nt_registry_unready_for(const struct nt_set *set, struct nt_function ***ret, size_t *count);

/* A record that is not ready and in no list; NULL without memory. */
struct nt_function *nt_registry_make(struct nt_owner *owner, void *handle, struct nt_kernel *kernel, bool is_kernel);

/* List it beside a function in force of the same handle. False, and it is freed, if that is gone. */
bool nt_registry_add_record(struct nt_function *function, struct nt_function *record);

/* Between these two, twins of the set's record that is not ready may be loaded. NULL: the function is gone, or it is ready. */
struct nt_function *nt_registry_hold(struct nt_function *function, const struct nt_set *set);
void nt_registry_let_go(struct nt_function *record);

/* Have all functions run the twins of a set. False, and nothing changes, if those of one are not ready. */
bool nt_registry_put_in_force(const struct nt_set *set);

#endif
