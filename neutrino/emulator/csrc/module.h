/* Modules and libraries: images that the device process has read, and the kernels and variables in them. */
#ifndef ED_MODULE_H
#define ED_MODULE_H

#include "abi.h"
#include "context.h"

struct ed_parameter {
	uint32_t offset, size;
};

/* One kernel of an image, as the device process described it. */
struct ed_description {
	const char *name;
	uint32_t number;
	uint32_t parameter_count;
	uint32_t parameter_size; /* of the whole buffer */
	uint32_t shared_size, local_size;
	uint32_t max_threads;
	uint32_t required[3]; /* the only block that it is launched with; 0: any */
	struct ed_parameter *parameters;
};

struct ed_variable {
	const char *name;
	uint64_t address, size;
};

/* What one loading of an image gave. */
struct ed_loaded {
	uint64_t number; /* the device process's */
	uint32_t kernel_count, variable_count;
	struct ed_description *kernels;
	struct ed_variable *variables;
	uint8_t *reply; /* the names lie in it */
};

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

/* The function that a launch's handle means in the context: a CUfunction or a CUkernel. */
CUresult ed_function_of(struct ed_context *context, CUfunction handle, CUfunction *ret);

void ed_module_forget_context(struct ed_context *context);

#endif
