/* Modules and libraries, which are loaded from images, and their functions and kernels. */
#ifndef ED_MODULE_H
#define ED_MODULE_H

#include <pthread.h>

#include "context.h"
#include "image.h"

struct ed_module {
	struct ed_object object;
	struct ed_context *context;
	struct ed_library *library; /* that it is the module of in its context, or NULL */
	struct ed_loaded loaded;
	CUfunction *functions; /* by number; NULL until asked for */
	struct ed_module *next_of_library;
};

struct ed_function {
	struct ed_object object;
	struct ed_module *module;
	struct ed_description *kernel;
	int32_t max_dynamic_shared, carveout, cache_config;
};

struct ed_library {
	struct ed_object object;
	uint8_t *image;
	size_t size;
	struct ed_module *modules; /* one for each context that uses the library; the first may have no context yet */
	struct ed_loaded described; /* its kernels, for as long as the library: modules go with their contexts */
	CUkernel *kernels;	    /* by number; NULL until asked for */
	CUresult refused; /* the error with which its image was refused, then all members above are empty; else 0 */
};

_Static_assert(sizeof(struct ed_library) <= ED_OBJECT_SIZE, "a library fits its place");

struct ed_kernel {
	struct ed_object object;
	struct ed_library *library;
	uint32_t number;
	int32_t max_dynamic_shared, carveout;
};

/* Guards functions, kernels and the lists of libraries' modules. */
extern pthread_mutex_t ed_module_mutex;

/* Taken first. Held while modules and libraries are made or freed, since a context that ends visits all of them. */
extern pthread_mutex_t ed_module_lifetimes;

/* Make a module of a loaded image, which it owns from then on; NULL without memory. */
struct ed_module *ed_module_make(struct ed_context *context, struct ed_loaded *loaded);
void ed_module_destroy(struct ed_module *module);

/* Give a module, with its variables, to a context. */
void ed_module_settle(struct ed_module *module, struct ed_context *context);

/* Dynamic shared memory, in bytes per block, that a kernel may use without cuFuncSetAttribute. */
int32_t ed_default_dynamic(const struct ed_description *kernel);

/* The function of that number, NULL without memory. */
CUfunction ed_function_at(struct ed_module *module, uint32_t number);

/* A library's module in the context, loaded if need be. */
CUresult ed_library_module(struct ed_library *library, struct ed_context *context, struct ed_module **ret);

/* The function in the context that a handle, a CUfunction or a CUkernel, stands for. */
CUresult ed_function_of(struct ed_context *context, CUfunction handle, CUfunction *ret);

void ed_module_forget_context(struct ed_context *context);

#endif
