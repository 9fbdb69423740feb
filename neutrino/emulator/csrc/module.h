/* Modules and libraries, made of images, and their functions and kernels. */
#ifndef ED_MODULE_H
#define ED_MODULE_H

#include <pthread.h>

#include "context.h"
#include "image.h"

struct ed_module {
	struct ed_object object;
	struct ed_context *context;
	struct ed_library *library; /* whose part in the context it is, or NULL */
	struct ed_loaded loaded;
	CUfunction *functions; /* by number, NULL until asked for */
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
	struct ed_module *modules; /* one for each context that has asked; the first may have none yet */
	CUkernel *kernels;
	CUresult refused; /* what its image is refused with, and it has nothing of the above; else 0 */
};

struct ed_kernel {
	struct ed_object object;
	struct ed_library *library;
	uint32_t number;
	int32_t max_dynamic_shared, carveout;
};

/* Of functions, kernels and a library's modules. */
extern pthread_mutex_t ed_module_mutex;

/* Taken first: modules and libraries come and go under it, for a context that ends walks over all of them. */
extern pthread_mutex_t ed_module_lifetimes;

/* A module of what was loaded, which it owns from then on; NULL without memory. */
struct ed_module *ed_module_make(struct ed_context *context, struct ed_loaded *loaded);
void ed_module_destroy(struct ed_module *module);

/* From now on the module is the context's, and so are its variables. */
void ed_module_settle(struct ed_module *module, struct ed_context *context);

/* Dynamic shared memory that a kernel may have without asking, bytes of a block. */
int32_t ed_default_dynamic(const struct ed_description *kernel);

/* The function of that number, NULL without memory. */
CUfunction ed_function_at(struct ed_module *module, uint32_t number);

/* A library's module in the context, loaded if need be. */
CUresult ed_library_module(struct ed_library *library, struct ed_context *context, struct ed_module **ret);

/* The function that a launch's handle means in the context: a CUfunction or a CUkernel. */
CUresult ed_function_of(struct ed_context *context, CUfunction handle, CUfunction *ret);

void ed_module_forget_context(struct ed_context *context);

#endif
