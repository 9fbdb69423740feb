/* Libraries: their modules in each context, their kernels. */
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "image.h"
#include "memory.h"
#include "module.h"
#include "queue.h"

/*
 * The library's module in a context: one that has no context yet if there is one; else the image is loaded again. With
 * ed_module_lifetimes held.
 */
static CUresult find_or_load(struct ed_library *library, struct ed_context *context, struct ed_module **ret)
{
	struct ed_module *unclaimed = NULL;
	struct ed_loaded loaded;

	pthread_mutex_lock(&ed_module_mutex);
	for (*ret = library->modules; *ret && (*ret)->context != context; *ret = (*ret)->next_of_library)
		if (!(*ret)->context)
			unclaimed = *ret;
	if (!*ret && unclaimed) {
		ed_module_settle(unclaimed, context);
		*ret = unclaimed;
	}
	pthread_mutex_unlock(&ed_module_mutex);
	if (*ret)
		return CUDA_SUCCESS;
	CUresult result = ed_image_load(library->image, library->size, 0, NULL, NULL, &loaded);
	struct ed_module *module = result ? NULL : ed_module_make(NULL, &loaded);
	if (!module)
		return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&ed_module_mutex);
	module->library = library;
	module->next_of_library = library->modules;
	library->modules = module;
	pthread_mutex_unlock(&ed_module_mutex);
	/* The new module has no context yet: the next round uses it, unless another thread was faster. */
	return find_or_load(library, context, ret);
}

/* The library's module in a context, loaded if need be, or the error with which its image was refused. */
CUresult ed_library_module(struct ed_library *library, struct ed_context *context, struct ed_module **ret)
{
	if (library->refused)
		return library->refused;
	pthread_mutex_lock(&ed_module_lifetimes);
	CUresult result = find_or_load(library, context, ret);
	pthread_mutex_unlock(&ed_module_lifetimes);
	return result;
}

/* Whether an error says that the image is at fault. */
static bool is_of_image(CUresult result)
{
	return result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_NO_BINARY_FOR_GPU ||
	       result == CUDA_ERROR_INVALID_PTX || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

/*
 * Make a library whose image was refused. As NVIDIA's driver does, the error is returned when something of it is used.
 */
static CUresult refused_library(CUlibrary *ret, CUresult error)
{
	struct ed_library *library = ed_object_take(ED_LIBRARY, sizeof(*library));

	if (!library)
		return CUDA_ERROR_OUT_OF_MEMORY;
	library->refused = error;
	*ret = library;
	return CUDA_SUCCESS;
}

/*
 * Load an image of size bytes as a library, with a copy of it, since each context gets a module of its own. options,
 * values: count JIT options.
 */
static CUresult load_library(CUlibrary *ret, const void *image, size_t size, const int *options, void **values,
			     unsigned count)
{
	struct ed_loaded loaded, described = {0};
	CUresult result = ed_image_load(image, size, count, options, values, &loaded);

	if (is_of_image(result) && ed_image_was_refused())
		return refused_library(ret, result);
	if (result)
		return result;
	uint8_t *copy = malloc(size + 1);
	CUkernel *kernels = calloc(loaded.kernel_count + 1, sizeof(*kernels));
	pthread_mutex_lock(&ed_module_lifetimes);
	bool is_copied = copy && kernels && ed_image_copy(&loaded, &described);
	struct ed_library *library = is_copied ? ed_object_take(ED_LIBRARY, sizeof(*library)) : NULL;
	struct ed_module *module = library ? ed_module_make(NULL, &loaded) : NULL;
	if (!module) {
		free(copy);
		free(kernels);
		ed_image_forget(&described);
		if (library)
			ed_object_give(library);
		else
			ed_image_unload(&loaded);
		pthread_mutex_unlock(&ed_module_lifetimes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memcpy(copy, image, size);
	copy[size] = 0;
	module->library = library;
	library->image = copy;
	library->size = size;
	library->described = described;
	library->kernels = kernels;
	library->modules = module;
	pthread_mutex_unlock(&ed_module_lifetimes);
	*ret = library;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: load an image in memory as a library, for all contexts. Library options are ignored. */
API cuLibraryLoadData(CUlibrary *library, const void *image, int *jit_options, void **jit_values,
		      unsigned int jit_count, int *options, void **values, unsigned int count)
{
	ENTER_OR_RETURN();
	(void)options;
	(void)values;
	(void)count;
	if (!library || !image)
		return CUDA_ERROR_INVALID_VALUE;
	size_t size = ed_image_measure(&image);
	return load_library(library, image, size, jit_options, jit_values, jit_count);
}

/* Emulated CUDA driver call: load an image in a file as a library, for all contexts. Library options are ignored. */
API cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit_options, void **jit_values,
			  unsigned int jit_count, int *options, void **values, unsigned int count)
{
	size_t size;
	CUresult result;

	ENTER_OR_RETURN();
	(void)options;
	(void)values;
	(void)count;
	if (!library)
		return CUDA_ERROR_INVALID_VALUE;
	uint8_t *image = ed_image_file(path, &size, &result);
	if (image)
		result = load_library(library, image, size, jit_options, jit_values, jit_count);
	free(image);
	return result;
}

/* Wait for all work of the contexts that have a module of the library. No lock is held, since it may take long. */
static void wait_for_users(const struct ed_library *library)
{
	struct ed_context *contexts[64];
	unsigned count = 0;

	pthread_mutex_lock(&ed_module_lifetimes);
	for (const struct ed_module *module = library->modules; module && count < 64; module = module->next_of_library)
		if (module->context)
			contexts[count++] = module->context;
	pthread_mutex_unlock(&ed_module_lifetimes);
	while (count)
		ed_queue_wait_all(contexts[--count]);
}

/* Emulated CUDA driver call: unload a library with its modules in all contexts, after their work has ended. */
API cuLibraryUnload(CUlibrary library)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(library, ED_LIBRARY))
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = ed_capture_refuses_unsafe();
	if (result)
		return result;
	wait_for_users(library);
	pthread_mutex_lock(&ed_module_lifetimes);
	pthread_mutex_lock(&ed_module_mutex);
	struct ed_module *module = library->modules;
	library->modules = NULL;
	CUkernel *kernels = library->kernels;
	uint32_t count = library->described.kernel_count;
	pthread_mutex_unlock(&ed_module_mutex);
	while (module) {
		struct ed_module *next = module->next_of_library;
		ed_module_destroy(module);
		module = next;
	}
	for (uint32_t i = 0; i < count; i++)
		if (kernels[i])
			ed_object_give(kernels[i]);
	free(kernels);
	free(library->image);
	ed_image_forget(&library->described);
	ed_object_give(library);
	pthread_mutex_unlock(&ed_module_lifetimes);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the library's module in the current context, loaded if need be. */
API cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!module || !ed_object_check(library, ED_LIBRARY))
		return module ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	return ed_library_module(library, context, module);
}

/* The CUkernel of the kernel of that number in a library, made when first asked for. NULL without memory. */
static CUkernel kernel_at(struct ed_library *library, uint32_t number)
{
	pthread_mutex_lock(&ed_module_mutex);
	CUkernel kernel = library->kernels[number];
	if (!kernel) {
		kernel = ed_object_take(ED_KERNEL, sizeof(*kernel));
		if (kernel) {
			kernel->library = library;
			kernel->number = number;
			kernel->max_dynamic_shared = ed_default_dynamic(&library->described.kernels[number]);
			kernel->carveout = -1;
			library->kernels[number] = kernel;
		}
	}
	pthread_mutex_unlock(&ed_module_mutex);
	return kernel;
}

/* Emulated CUDA driver call: the kernel of that name in a library. */
API cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	uint32_t number;

	ENTER_OR_RETURN();
	if (!kernel || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!ed_object_check(library, ED_LIBRARY))
		return CUDA_ERROR_INVALID_HANDLE;
	if (library->refused)
		return library->refused;
	CUresult result = ed_image_find(&library->described, name, &number);
	if (result)
		return result;
	*kernel = kernel_at(library, number);
	return *kernel ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Emulated CUDA driver call: how many kernels a library has. */
API cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
	ENTER_OR_RETURN();
	if (!count || !ed_object_check(library, ED_LIBRARY))
		return count ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	if (library->refused)
		return library->refused;
	*count = library->described.kernel_count;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the first `count` kernels of a library, padded with NULL. */
API cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library)
{
	ENTER_OR_RETURN();
	if (!kernels || !ed_object_check(library, ED_LIBRARY))
		return kernels ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	if (library->refused)
		return library->refused;
	for (uint32_t i = 0; i < count; i++)
		kernels[i] = i < library->described.kernel_count ? kernel_at(library, i) : NULL;
	return CUDA_SUCCESS;
}

/*
 * Emulated CUDA driver call: the address and size of a library's variable in the current context; one of both may be
 * NULL.
 */
API cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
	struct ed_module *module;

	ENTER_CONTEXT_OR_RETURN(context);
	if (!name || (!address && !size))
		return CUDA_ERROR_INVALID_VALUE;
	if (!ed_object_check(library, ED_LIBRARY))
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = ed_library_module(library, context, &module);
	return result ? result : ed_image_variable(&module->loaded, name, address, size);
}

/* Emulated CUDA driver call: a library's managed variable; there are none here, so it is not found. */
API cuLibraryGetManaged(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
	ENTER_CONTEXT_OR_RETURN(context);
	(void)address;
	(void)size;
	(void)name;
	return ed_object_check(library, ED_LIBRARY) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

/*
 * Emulated CUDA driver call: a library's function with one address for host and device; there are none here, so it is
 * not found.
 */
API cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name)
{
	ENTER_CONTEXT_OR_RETURN(context);
	(void)function;
	(void)name;
	return ed_object_check(library, ED_LIBRARY) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}
