/* Queries of kernels and functions: their module or library, parameters and attributes. */
#include "capture.h"
#include "module.h"

/*
 * The function of a handle, which may be a CUkernel (of a library): then it is the kernel's function in the context,
 * whose module is loaded if need be.
 */
CUresult ed_function_of(struct ed_context *context, CUfunction handle, CUfunction *ret)
{
	struct ed_module *module;

	*ret = handle;
	if (ed_object_is(handle, ED_FUNCTION))
		return CUDA_SUCCESS;
	CUkernel kernel = (CUkernel)(void *)handle;
	if (!ed_object_is(kernel, ED_KERNEL)) {
		/* For the message about the use of a destroyed object. */
		if (ed_object_check(handle, ED_FUNCTION))
			ed_object_check(kernel, ED_KERNEL);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	CUresult result = ed_library_module(kernel->library, context, &module);
	*ret = result ? NULL : ed_function_at(module, kernel->number);
	if (!*ret)
		return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
	if (kernel->max_dynamic_shared > (*ret)->max_dynamic_shared)
		(*ret)->max_dynamic_shared = kernel->max_dynamic_shared;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the CUfunction of a library's kernel in the current context. */
API cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	ENTER_CONTEXT_OR_RETURN(context);
	if (!function || !ed_object_check(kernel, ED_KERNEL))
		return function ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	return ed_function_of(context, (CUfunction)(void *)kernel, function);
}

/* Emulated CUDA driver call: the library that a kernel is of. */
API cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
	ENTER_OR_RETURN();
	if (!library || !ed_object_check(kernel, ED_KERNEL))
		return library ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	*library = kernel->library;
	return CUDA_SUCCESS;
}

/* The description (name, parameters, ...) of a library's kernel. */
static const struct ed_description *description_of(CUkernel kernel)
{
	return &kernel->library->described.kernels[kernel->number];
}

/* Emulated CUDA driver call: the mangled name of a library's kernel; valid as long as the library. */
API cuKernelGetName(const char **name, CUkernel kernel)
{
	ENTER_OR_RETURN();
	if (!name || !ed_object_check(kernel, ED_KERNEL))
		return name ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	*name = description_of(kernel)->name;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the mangled name of a function; valid as long as its module. */
API cuFuncGetName(const char **name, CUfunction function)
{
	ENTER_OR_RETURN();
	if (name && ed_device_fault())
		return ed_device_fault();
	if (name && ed_object_is(function, ED_KERNEL)) {
		*name = description_of((CUkernel)(void *)function)->name;
		return CUDA_SUCCESS;
	}
	if (!name || !ed_object_check(function, ED_FUNCTION))
		return name ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	*name = function->kernel->name;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the module that a function is of. */
API cuFuncGetModule(CUmodule *module, CUfunction handle)
{
	CUfunction function;

	ENTER_CONTEXT_OR_RETURN(context);
	if (!module || !handle)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_function_of(context, handle, &function);
	if (!result)
		*module = function->module;
	return result;
}

/* The offset and size of a parameter. size may be NULL. */
static CUresult parameter_of(const struct ed_description *kernel, size_t index, size_t *offset, size_t *size)
{
	if (!offset || index >= kernel->parameter_count)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = kernel->parameters[index].offset;
	if (size)
		*size = kernel->parameters[index].size;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the offset and size of a function's parameter, by its index; size may be NULL. */
API cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
	CUfunction function;

	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_function_of(context, handle, &function);
	return result ? result : parameter_of(function->kernel, index, offset, size);
}

/* Emulated CUDA driver call: the offset and size of a kernel's parameter, by its index; size may be NULL. */
API cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(kernel, ED_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	return parameter_of(description_of(kernel), index, offset, size);
}

/* Emulated CUDA driver call: whether a function is loaded, which it always is. */
API cuFuncIsLoaded(int *state, CUfunction handle)
{
	CUfunction function;

	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_function_of(context, handle, &function);
	if (!result && state)
		*state = 1;
	return state ? result : CUDA_ERROR_INVALID_VALUE;
}

/* Emulated CUDA driver call: load a function; it is loaded, so the handle is only checked. */
API cuFuncLoad(CUfunction handle)
{
	CUfunction function;

	ENTER_CONTEXT_OR_RETURN(context);
	return ed_function_of(context, handle, &function);
}

/* --- attributes --- */

/*
 * What cuFuncGetAttribute and cuKernelGetAttribute do: an attribute of a kernel. dynamic, carveout: what was set for
 * the function: most bytes of dynamic shared memory, and its share of the cache.
 */
static CUresult get_attribute(int *value, int attribute, const struct ed_description *kernel, int dynamic, int carveout)
{
	if (!value || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = (int)kernel->max_threads;
		break;
	case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
		*value = (int)kernel->shared_size;
		break;
	case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
		*value = (int)kernel->local_size;
		break;
	/* There are no registers here. With 32 per thread, registers do not limit the occupancy. */
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*value = 32;
		break;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*value = 90;
		break;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		*value = dynamic;
		break;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES + 1:
		*value = carveout;
		break;
	default:
		*value = 0;
		break;
	}
	return CUDA_SUCCESS;
}

/*
 * What cuFuncSetAttribute and cuKernelSetAttribute do: set an attribute of a kernel: *dynamic (most bytes of dynamic
 * shared memory) or *carveout (its share of the cache). Later attributes are accepted without an effect.
 */
static CUresult set_attribute(int attribute, int value, const struct ed_description *kernel, int32_t *dynamic,
			      int32_t *carveout)
{
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		if (value < 0 || (uint64_t)value + kernel->shared_size > 232448)
			return CUDA_ERROR_INVALID_VALUE;
		*dynamic = value;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES + 1:
		if (value < -1 || value > 100)
			return CUDA_ERROR_INVALID_VALUE;
		*carveout = value;
		return CUDA_SUCCESS;
	default:
		return attribute > CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && attribute < CU_FUNC_ATTRIBUTE_MAX
			       ? CUDA_SUCCESS
			       : CUDA_ERROR_INVALID_VALUE;
	}
}

/* Emulated CUDA driver call: an attribute of a function (CUfunction_attribute). */
API cuFuncGetAttribute(int *value, int attribute, CUfunction handle)
{
	CUfunction function;

	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_function_of(context, handle, &function);
	return result ? result
		      : get_attribute(value, attribute, function->kernel, function->max_dynamic_shared,
				      function->carveout);
}

/* Emulated CUDA driver call: set an attribute of a function (CUfunction_attribute). */
API cuFuncSetAttribute(CUfunction handle, int attribute, int value)
{
	CUfunction function;

	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_function_of(context, handle, &function);
	return result ? result
		      : set_attribute(attribute, value, function->kernel, &function->max_dynamic_shared,
				      &function->carveout);
}

/* Emulated CUDA driver call: an attribute of a library's kernel (CUfunction_attribute) on device 0. */
API cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(kernel, ED_KERNEL) || device)
		return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_HANDLE;
	return get_attribute(value, attribute, description_of(kernel), kernel->max_dynamic_shared, kernel->carveout);
}

/* Emulated CUDA driver call: set an attribute of a library's kernel (CUfunction_attribute) on device 0. */
API cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(kernel, ED_KERNEL) || device)
		return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_HANDLE;
	return set_attribute(attribute, value, description_of(kernel), &kernel->max_dynamic_shared, &kernel->carveout);
}

/* Emulated CUDA driver call: set a function's preference for L1 cache or shared memory; only checked. */
API cuFuncSetCacheConfig(CUfunction handle, int config)
{
	CUfunction function;

	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_function_of(context, handle, &function);
	return config < 0 || config > 3 ? CUDA_ERROR_INVALID_VALUE : result;
}

/* Emulated CUDA driver call: set a function's size of shared memory banks; only checked. */
API cuFuncSetSharedMemConfig(CUfunction handle, int config)
{
	CUfunction function;

	ENTER_CONTEXT_OR_RETURN(context);
	CUresult result = ed_function_of(context, handle, &function);
	return config < 0 || config > 2 ? CUDA_ERROR_INVALID_VALUE : result;
}

/* Emulated CUDA driver call: set a kernel's preference for L1 cache or shared memory; only checked. */
API cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice device)
{
	ENTER_OR_RETURN();
	if (!ed_object_check(kernel, ED_KERNEL) || device)
		return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_HANDLE;
	return config < 0 || config > 3 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
