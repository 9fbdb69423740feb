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

/* Make a module of a loaded image, which it owns from then on. context: NULL for none yet. NULL without memory. */
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

/* Load an image of known size as a module of a context. */
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

/* Load an image in memory, whose size is read from its header. */
static CUresult load_data(CUmodule *module, const void *image, unsigned count, const int *options, void **values)
{
	IN_CONTEXT(context);
	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	size_t size = ed_image_measure(&image);
	return load_module(context, module, image, size, count, options, values);
}

API cuModuleLoadData(CUmodule *module, const void *image)
{
	ENTER();
	return load_data(module, image, 0, NULL, NULL);
}

API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
	ENTER();
	return load_data(module, image, count, options, values);
}

API cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	ENTER();
	return load_data(module, image, 0, NULL, NULL);
}

API cuModuleLoad(CUmodule *module, const char *path)
{
	size_t size;
	CUresult result;

	ENTER_CONTEXT(context);
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	uint8_t *image = ed_image_file(path, &size, &result);
	if (image)
		result = load_module(context, module, image, size, 0, NULL, NULL);
	free(image);
	return result;
}

API cuModuleUnload(CUmodule module)
{
	ENTER_CONTEXT(context);
	if (!ed_object_check(module, ED_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	if (module->library)
		return CUDA_ERROR_NOT_PERMITTED;
	CUresult result = ed_capture_unsafe();
	if (result)
		return result;
	ed_queue_wait_all(module->context);
	pthread_mutex_lock(&ed_module_lifetimes);
	ed_module_destroy(module);
	pthread_mutex_unlock(&ed_module_lifetimes);
	return CUDA_SUCCESS;
}

API cuModuleGetLoadingMode(int *mode)
{
	ENTER();
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = 1; /* eager */
	return CUDA_SUCCESS;
}

/* --- functions --- */

#define SHARED_WITHOUT_ASKING 49152 /* bytes per block: more needs cuFuncSetAttribute */

int32_t ed_default_dynamic(const struct ed_description *kernel)
{
	return kernel->shared_size < SHARED_WITHOUT_ASKING ? SHARED_WITHOUT_ASKING - (int32_t)kernel->shared_size : 0;
}

/* The function handle of a kernel of a module, made when first asked for. NULL without memory. */
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

API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	uint32_t number;

	ENTER();
	if (!function || !name || !*name)
		return CUDA_ERROR_INVALID_VALUE;
	/* NVIDIA's driver checks the module before the context. */
	if (!ed_object_check(module, ED_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	IN_CONTEXT(context);
	CUresult result = ed_image_find(&module->loaded, name, &number);
	if (result)
		return result;
	*function = ed_function_at(module, number);
	return *function ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
	ENTER_CONTEXT(context);
	if (!count || !ed_object_check(module, ED_MODULE))
		return count ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	*count = module->loaded.kernel_count;
	return CUDA_SUCCESS;
}

API cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module)
{
	ENTER_CONTEXT(context);
	if (!functions || !ed_object_check(module, ED_MODULE))
		return functions ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < count; i++)
		functions[i] = i < module->loaded.kernel_count ? ed_function_at(module, i) : NULL;
	return CUDA_SUCCESS;
}

API cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
	ENTER_CONTEXT(context);
	if (!name || (!address && !size))
		return CUDA_ERROR_INVALID_VALUE;
	if (!ed_object_check(module, ED_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	return ed_image_variable(&module->loaded, name, address, size);
}

/* --- ends --- */

static bool is_of_context(const void *module, const void *context)
{
	return ((const struct ed_module *)module)->context == context;
}

/* Free a module of a context that ends. A library of it stays: the next context gets a module with fresh variables. */
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

void ed_module_forget_context(struct ed_context *context)
{
	pthread_mutex_lock(&ed_module_lifetimes);
	ed_object_each(ED_MODULE, is_of_context, forget_module, context);
	pthread_mutex_unlock(&ed_module_lifetimes);
}
