#include "module.h"

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "image.h"
#include "memory.h"

pthread_mutex_t ed_module_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t ed_module_lifetimes = PTHREAD_MUTEX_INITIALIZER;

/* --- modules --- */

/* Make a module that of a context: its variables become valid memory of the context. */
void ed_module_settle(struct ed_module *module, struct ed_context *context)
{
	module->context = context;
	for (uint32_t i = 0; i < module->loaded.variable_count; i++)
		ed_memory_add_variable(context, module->loaded.variables[i].address, module->loaded.variables[i].size);
}

/*
 * Make a module of a loaded image, which it owns from then on. context: NULL for none yet. NULL without memory, and the
 * image is unloaded.
 */
struct ed_module *ed_module_make(struct ed_context *context, struct ed_loaded *loaded)
{
	CUfunction *functions = calloc(loaded->kernel_count + 1, sizeof(CUfunction));
	struct ed_module *module = functions ? ed_object_take(ED_MODULE, sizeof(*module)) : NULL;

	if (!module) {
		free(functions);
		ed_image_unload(loaded);
		return NULL;
	}
	module->loaded = *loaded;
	module->functions = functions;
	if (context)
		ed_module_settle(module, context);
	return module;
}

/* Free a module with its functions, and unload its image. */
void ed_module_destroy(struct ed_module *module)
{
	struct ed_loaded loaded = module->loaded;
	CUfunction *functions = module->functions;

	for (uint32_t i = 0; i < loaded.kernel_count; i++)
		if (functions[i])
			ed_object_give(functions[i]);
	free(functions);
	ed_object_give(module);
	ed_image_unload(&loaded);
}

/* Load an image of size bytes as a module of a context. options, values: count JIT options. */
static CUresult load_module(struct ed_context *context, CUmodule *ret, const void *image, size_t size, unsigned count,
			    const int *options, void **values)
{
	struct ed_loaded loaded;
	CUresult result = ed_image_load(image, size, count, options, values, &loaded);

	if (result)
		return result;
	pthread_mutex_lock(&ed_module_lifetimes);
	*ret = ed_module_make(context, &loaded);
	pthread_mutex_unlock(&ed_module_lifetimes);
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Load an image in memory, whose size is read from its header, as a module of the current context. options, values:
 * count JIT options.
 */
static CUresult load_data(CUmodule *module, const void *image, unsigned count, const int *options, void **values)
{
	GET_CONTEXT_OR_RETURN(context);
	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	size_t size = ed_image_measure(&image);
	return load_module(context, module, image, size, count, options, values);
}

/* Emulated CUDA driver call: load an image in memory as a module of the current context. */
API cuModuleLoadData(CUmodule *module, const void *image)
{
	ENTER_OR_RETURN();
	return load_data(module, image, 0, NULL, NULL);
}

/* Emulated CUDA driver call: load an image in memory as a module of the current context, with `count` JIT options. */
API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
	ENTER_OR_RETURN();
	return load_data(module, image, count, options, values);
}

/* Emulated CUDA driver call: load a fatbin in memory as a module of the current context. */
API cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	ENTER_OR_RETURN();
	return load_data(module, image, 0, NULL, NULL);
}

/* Emulated CUDA driver call: load an image in a file as a module of the current context. */
API cuModuleLoad(CUmodule *module, const char *path)
{
	size_t size;
	CUresult result;

	ENTER_CONTEXT_OR_RETURN(context);
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	uint8_t *image = ed_image_file(path, &size, &result);
	if (image)
		result = load_module(context, module, image, size, 0, NULL, NULL);
	free(image);
	return result;
}

/* Emulated CUDA driver call: unload a module, after all work of its context. Not one of a library. */
API cuModuleUnload(CUmodule module)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!ed_object_check(module, ED_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	if (module->library)
		return CUDA_ERROR_NOT_PERMITTED;
	CUresult result = ed_capture_refuses_unsafe();
	if (result)
		return result;
	ed_queue_wait_all(module->context);
	pthread_mutex_lock(&ed_module_lifetimes);
	ed_module_destroy(module);
	pthread_mutex_unlock(&ed_module_lifetimes);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: whether kernels are loaded when they are needed; here always at once (eager). */
API cuModuleGetLoadingMode(int *mode)
{
	ENTER_OR_RETURN();
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = 1; /* eager */
	return CUDA_SUCCESS;
}

/* --- functions --- */

#define SHARED_WITHOUT_ASKING 49152 /* bytes per block: more needs cuFuncSetAttribute */

/* Dynamic shared memory, in bytes per block, that a kernel may use without cuFuncSetAttribute. */
int32_t ed_default_dynamic(const struct ed_description *kernel)
{
	return kernel->shared_size < SHARED_WITHOUT_ASKING ? SHARED_WITHOUT_ASKING - (int32_t)kernel->shared_size : 0;
}

/* The CUfunction of the kernel of that number in a module, made when first asked for. NULL without memory. */
CUfunction ed_function_at(struct ed_module *module, uint32_t number)
{
	pthread_mutex_lock(&ed_module_mutex);
	CUfunction function = module->functions[number];
	if (!function) {
		function = ed_object_take(ED_FUNCTION, sizeof(*function));
		if (function) {
			function->module = module;
			function->kernel = &module->loaded.kernels[number];
			function->max_dynamic_shared = ed_default_dynamic(function->kernel);
			function->carveout = -1;
			module->functions[number] = function;
		}
	}
	pthread_mutex_unlock(&ed_module_mutex);
	return function;
}

/* Emulated CUDA driver call: the function of that name in a module. */
API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	uint32_t number;

	ENTER_OR_RETURN();
	if (!function || !name || !*name)
		return CUDA_ERROR_INVALID_VALUE;
	/* NVIDIA's driver checks the module before the context. */
	if (!ed_object_check(module, ED_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	GET_CONTEXT_OR_RETURN(context);
	CUresult result = ed_image_find(&module->loaded, name, &number);
	if (result)
		return result;
	*function = ed_function_at(module, number);
	return *function ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Emulated CUDA driver call: how many functions a module has. */
API cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!count || !ed_object_check(module, ED_MODULE))
		return count ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	*count = module->loaded.kernel_count;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the first `count` functions of a module, padded with NULL. */
API cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!functions || !ed_object_check(module, ED_MODULE))
		return functions ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < count; i++)
		functions[i] = i < module->loaded.kernel_count ? ed_function_at(module, i) : NULL;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the address and size of a module's variable; one of both may be NULL. */
API cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!name || (!address && !size))
		return CUDA_ERROR_INVALID_VALUE;
	if (!ed_object_check(module, ED_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	return ed_image_variable(&module->loaded, name, address, size);
}

/* --- ends --- */

/* Whether a module belongs to a context; for ed_object_each. */
static bool is_of_context(const void *module, const void *context)
{
	return ((const struct ed_module *)module)->context == context;
}

/*
 * Free a module of a context that ends; for ed_object_each. A library of it stays: the next context gets a module with
 * fresh variables.
 */
static void forget_module(void *object)
{
	struct ed_module *module = object;

	if (module->library) {
		pthread_mutex_lock(&ed_module_mutex);
		struct ed_module **link = &module->library->modules;
		while (*link != module)
			link = &(*link)->next_of_library;
		*link = module->next_of_library;
		pthread_mutex_unlock(&ed_module_mutex);
	}
	ed_module_destroy(module);
}

/* Free all modules of a context that is destroyed. */
void ed_module_forget_context(struct ed_context *context)
{
	pthread_mutex_lock(&ed_module_lifetimes);
	ed_object_each(ED_MODULE, is_of_context, forget_module, context);
	pthread_mutex_unlock(&ed_module_lifetimes);
}
