#include "module.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "capture.h"
#include "channel.h"
#include "failure.h"
#include "memory.h"
#include "queue.h"
#include "settings.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of functions, kernels and a library's modules */

/* Taken first: modules and libraries come and go under it, for a context that ends walks over all of them. */
static pthread_mutex_t lifetimes = PTHREAD_MUTEX_INITIALIZER;

/* --- images --- */

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define ELF_HEADER 64

struct fatbin_wrapper { /* __fatBinC_Wrapper_t of fatbinary_section.h */
	uint32_t magic, version;
	const void *data;
	void *file;
};

struct fatbin_header {
	uint32_t magic;
	uint16_t version, header_size;
	uint64_t size;
};

/* How many bytes an image in memory has; its first ones say. image becomes what the wrapper points at. */
static size_t measure(const void **image)
{
	uint32_t magic;

	memcpy(&magic, *image, sizeof(magic));
	if (magic == FATBIN_WRAPPER_MAGIC) {
		struct fatbin_wrapper wrapper;
		memcpy(&wrapper, *image, sizeof(wrapper));
		*image = wrapper.data;
		memcpy(&magic, *image, sizeof(magic));
	}
	if (magic == FATBIN_MAGIC) {
		struct fatbin_header header;
		memcpy(&header, *image, sizeof(header));
		return header.header_size + header.size;
	}
	/* Machine code will be refused: what it is can be told from its header. */
	if (!memcmp(*image, "\177ELF", 4))
		return ELF_HEADER;
	return strlen(*image);
}

/* The file's bytes with a zero behind them, NULL with *result when it cannot be read. */
static uint8_t *read_file(const char *path, size_t *size, CUresult *result)
{
	struct stat status;
	uint8_t *data = NULL;
	size_t used = 0;
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	*result = CUDA_ERROR_FILE_NOT_FOUND;
	if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
		*size = (size_t)status.st_size;
		data = calloc(1, *size + sizeof(struct fatbin_wrapper));
		ssize_t got = 1;
		while (data && used < *size && got) {
			got = read(fd, data + used, *size - used);
			if (got < 0 && errno != EINTR)
				break;
			used += got > 0 ? (size_t)got : 0;
		}
		*result = !data ? CUDA_ERROR_OUT_OF_MEMORY : used < *size ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
	}
	if (fd >= 0)
		close(fd);
	if (*result) {
		free(data);
		data = NULL;
	}
	return data;
}

/* --- what the device process says of them --- */

struct cursor {
	uint8_t *at, *end;
	bool failed;
};

static uint64_t read_number(struct cursor *cursor, size_t size)
{
	uint64_t value = 0;

	if (cursor->failed || (size_t)(cursor->end - cursor->at) < size) {
		cursor->failed = true;
		return 0;
	}
	memcpy(&value, cursor->at, size);
	cursor->at += size;
	return value;
}

/* Its length, its bytes, a zero. */
static const char *read_string(struct cursor *cursor)
{
	uint64_t length = read_number(cursor, 4);

	if (cursor->failed || (uint64_t)(cursor->end - cursor->at) < length + 1 || cursor->at[length]) {
		cursor->failed = true;
		return "";
	}
	const char *text = (const char *)cursor->at;
	cursor->at += length + 1;
	return text;
}

static void forget(struct ed_loaded *loaded)
{
	for (uint32_t i = 0; loaded->kernels && i < loaded->kernel_count; i++)
		free(loaded->kernels[i].parameters);
	free(loaded->kernels);
	free(loaded->variables);
	free(loaded->reply);
	*loaded = (struct ed_loaded){0};
}

static bool describe(struct ed_reply *reply, struct ed_loaded *ret)
{
	struct cursor cursor = {reply->data, reply->data + reply->size, false};

	*ret = (struct ed_loaded){.reply = reply->data};
	ret->number = read_number(&cursor, 8);
	ret->kernel_count = (uint32_t)read_number(&cursor, 4);
	ret->kernels = calloc(ret->kernel_count + 1, sizeof(*ret->kernels));
	for (uint32_t i = 0; ret->kernels && i < ret->kernel_count && !cursor.failed; i++) {
		struct ed_description *kernel = &ret->kernels[i];
		kernel->number = i;
		kernel->name = read_string(&cursor);
		kernel->parameter_size = (uint32_t)read_number(&cursor, 4);
		kernel->shared_size = (uint32_t)read_number(&cursor, 4);
		kernel->local_size = (uint32_t)read_number(&cursor, 4);
		kernel->max_threads = (uint32_t)read_number(&cursor, 4);
		for (int j = 0; j < 3; j++)
			kernel->required[j] = (uint32_t)read_number(&cursor, 4);
		kernel->parameter_count = (uint32_t)read_number(&cursor, 4);
		kernel->parameters = calloc(kernel->parameter_count + 1, sizeof(*kernel->parameters));
		for (uint32_t j = 0; kernel->parameters && j < kernel->parameter_count; j++) {
			kernel->parameters[j].offset = (uint32_t)read_number(&cursor, 4);
			kernel->parameters[j].size = (uint32_t)read_number(&cursor, 4);
		}
		cursor.failed |= !kernel->parameters;
	}
	ret->variable_count = (uint32_t)read_number(&cursor, 4);
	ret->variables = calloc(ret->variable_count + 1, sizeof(*ret->variables));
	for (uint32_t i = 0; ret->variables && i < ret->variable_count && !cursor.failed; i++) {
		ret->variables[i].name = read_string(&cursor);
		ret->variables[i].address = read_number(&cursor, 8);
		ret->variables[i].size = read_number(&cursor, 8);
	}
	if (cursor.failed || !ret->kernels || !ret->variables) {
		forget(ret);
		return false;
	}
	return true;
}


/* Where the program wants to read what a compiler would say: the sizes become those of the text. */
static void write_log(unsigned count, const int *options, void **values, int buffer_option, const char *text)
{
	char *buffer = NULL;
	size_t size = 0;

	for (unsigned i = 0; options && values && i < count; i++) {
		if (options[i] == buffer_option)
			buffer = values[i];
		if (options[i] == buffer_option + 1)
			size = (size_t)(uint32_t)(uintptr_t)values[i];
	}
	if (buffer && size)
		snprintf(buffer, size, "%s", text);
	for (unsigned i = 0; options && values && i < count; i++)
		if (options[i] == buffer_option + 1)
			values[i] = (void *)(uintptr_t)(buffer && size ? strlen(buffer) : 0);
}

/* Why this thread's last image was refused; empty when it was not. */
static __thread char refusal[1024];

/* For the hook, which puts it into the trace. CUDA_ERROR_NOT_FOUND when nothing was refused. */
API neutrinoEmbeddedRefusal(char *text, size_t size)
{
	if (!refusal[0])
		return CUDA_ERROR_NOT_FOUND;
	snprintf(text, size, "%s", refusal);
	refusal[0] = 0;
	return CUDA_SUCCESS;
}

static CUresult load(const void *image, size_t size, unsigned count, const int *options, void **values,
		     struct ed_loaded *ret)
{
	struct ed_reply reply;
	uint64_t failure = ed_failure(ED_FAIL_LOAD);

	refusal[0] = 0;
	if (failure)
		return (CUresult)failure;
	ed_channel_call(ED_REQUEST_LOAD, &(struct iovec){(void *)(uintptr_t)image, size}, 1, &reply);
	/* The sizes' options come behind those of the buffers. */
	write_log(count, options, values, CU_JIT_INFO_LOG_BUFFER, "");
	write_log(count, options, values, CU_JIT_ERROR_LOG_BUFFER, reply.status ? (const char *)reply.data : "");
	if (reply.status) {
		snprintf(refusal, sizeof(refusal), "%s", (const char *)reply.data);
		ed_say("%s", refusal);
		free(reply.data);
		return reply.status;
	}
	return describe(&reply, ret) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static void unload(struct ed_loaded *loaded)
{
	struct ed_reply reply;

	for (uint32_t i = 0; i < loaded->variable_count; i++)
		ed_memory_remove_variable(loaded->variables[i].address);
	ed_channel_call(ED_REQUEST_UNLOAD, &(struct iovec){&loaded->number, sizeof(loaded->number)}, 1, &reply);
	free(reply.data);
	forget(loaded);
}

/* --- modules --- */

static void settle_in(struct ed_module *module, struct ed_context *context)
{
	module->context = context;
	for (uint32_t i = 0; i < module->loaded.variable_count; i++)
		ed_memory_add_variable(context, module->loaded.variables[i].address, module->loaded.variables[i].size);
}

/* A module of what was loaded, which it owns from then on; NULL without memory. */
static struct ed_module *make_module(struct ed_context *context, struct ed_loaded *loaded)
{
	CUfunction *functions = calloc(loaded->kernel_count + 1, sizeof(CUfunction));
	struct ed_module *module = functions ? ed_object_take(ED_MODULE, sizeof(*module)) : NULL;

	if (!module) {
		free(functions);
		unload(loaded);
		return NULL;
	}
	module->loaded = *loaded;
	module->functions = functions;
	if (context)
		settle_in(module, context);
	return module;
}

static void destroy_module(struct ed_module *module)
{
	struct ed_loaded loaded = module->loaded;
	CUfunction *functions = module->functions;

	for (uint32_t i = 0; i < loaded.kernel_count; i++)
		if (functions[i])
			ed_object_give(functions[i]);
	free(functions);
	ed_object_give(module);
	unload(&loaded);
}

static CUresult load_module(struct ed_context *context, CUmodule *ret, const void *image, size_t size, unsigned count,
			    const int *options, void **values)
{
	struct ed_loaded loaded;
	CUresult result = load(image, size, count, options, values, &loaded);

	if (result)
		return result;
	pthread_mutex_lock(&lifetimes);
	*ret = make_module(context, &loaded);
	pthread_mutex_unlock(&lifetimes);
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult load_data(CUmodule *module, const void *image, unsigned count, const int *options, void **values)
{
	IN_CONTEXT(context);
	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	size_t size = measure(&image);
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
	uint8_t *image = read_file(path, &size, &result);
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
	pthread_mutex_lock(&lifetimes);
	destroy_module(module);
	pthread_mutex_unlock(&lifetimes);
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

#define SHARED_WITHOUT_ASKING 49152 /* bytes a block */

static int32_t default_dynamic(const struct ed_description *kernel)
{
	return kernel->shared_size < SHARED_WITHOUT_ASKING ? SHARED_WITHOUT_ASKING - (int32_t)kernel->shared_size : 0;
}

static CUfunction function_at(struct ed_module *module, uint32_t number)
{
	pthread_mutex_lock(&mutex);
	CUfunction function = module->functions[number];
	if (!function) {
		function = ed_object_take(ED_FUNCTION, sizeof(*function));
		if (function) {
			function->module = module;
			function->kernel = &module->loaded.kernels[number];
			function->max_dynamic_shared = default_dynamic(function->kernel);
			function->carveout = -1;
			module->functions[number] = function;
		}
	}
	pthread_mutex_unlock(&mutex);
	return function;
}

static CUresult find(const struct ed_loaded *loaded, const char *name, uint32_t *ret)
{
	for (*ret = 0; *ret < loaded->kernel_count; ++*ret)
		if (!strcmp(loaded->kernels[*ret].name, name))
			return CUDA_SUCCESS;
	return CUDA_ERROR_NOT_FOUND;
}

static CUresult find_variable(const struct ed_loaded *loaded, const char *name, CUdeviceptr *address, size_t *size)
{
	for (uint32_t i = 0; i < loaded->variable_count; i++) {
		if (strcmp(loaded->variables[i].name, name) != 0)
			continue;
		if (address)
			*address = loaded->variables[i].address;
		if (size)
			*size = loaded->variables[i].size;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	uint32_t number;

	ENTER();
	if (!function || !name || !*name)
		return CUDA_ERROR_INVALID_VALUE;
	/* The driver looks at the module before it asks for a context. */
	if (!ed_object_check(module, ED_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	IN_CONTEXT(context);
	CUresult result = find(&module->loaded, name, &number);
	if (result)
		return result;
	*function = function_at(module, number);
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
		functions[i] = i < module->loaded.kernel_count ? function_at(module, i) : NULL;
	return CUDA_SUCCESS;
}

API cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
	ENTER_CONTEXT(context);
	if (!name || (!address && !size))
		return CUDA_ERROR_INVALID_VALUE;
	if (!ed_object_check(module, ED_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	return find_variable(&module->loaded, name, address, size);
}

/* --- libraries --- */

/* The library's module in the context: loaded again for every context after the first. Under lifetimes. */
static CUresult find_or_load(struct ed_library *library, struct ed_context *context, struct ed_module **ret)
{
	struct ed_module *unclaimed = NULL;
	struct ed_loaded loaded;

	pthread_mutex_lock(&mutex);
	for (*ret = library->modules; *ret && (*ret)->context != context; *ret = (*ret)->next_of_library)
		if (!(*ret)->context)
			unclaimed = *ret;
	if (!*ret && unclaimed) {
		settle_in(unclaimed, context);
		*ret = unclaimed;
	}
	pthread_mutex_unlock(&mutex);
	if (*ret)
		return CUDA_SUCCESS;
	CUresult result = load(library->image, library->size, 0, NULL, NULL, &loaded);
	struct ed_module *module = result ? NULL : make_module(NULL, &loaded);
	if (!module)
		return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&mutex);
	module->library = library;
	module->next_of_library = library->modules;
	library->modules = module;
	pthread_mutex_unlock(&mutex);
	/* Another thread may have been faster: then this one waits unclaimed for the next context. */
	return find_or_load(library, context, ret);
}

static CUresult module_in(struct ed_library *library, struct ed_context *context, struct ed_module **ret)
{
	if (library->refused)
		return library->refused;
	pthread_mutex_lock(&lifetimes);
	CUresult result = find_or_load(library, context, ret);
	pthread_mutex_unlock(&lifetimes);
	return result;
}

static bool is_of_image(CUresult result)
{
	return result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_NO_BINARY_FOR_GPU ||
	       result == CUDA_ERROR_INVALID_PTX || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

/* The driver looks into a library's image when something of it is asked for: then the error comes. */
static CUresult refused_library(CUlibrary *ret, CUresult error)
{
	struct ed_library *library = ed_object_take(ED_LIBRARY, sizeof(*library));

	if (!library)
		return CUDA_ERROR_OUT_OF_MEMORY;
	library->refused = error;
	*ret = library;
	return CUDA_SUCCESS;
}

static CUresult load_library(CUlibrary *ret, const void *image, size_t size, const int *options, void **values,
			     unsigned count)
{
	struct ed_loaded loaded;
	CUresult result = load(image, size, count, options, values, &loaded);

	if (is_of_image(result) && refusal[0])
		return refused_library(ret, result);
	if (result)
		return result;
	uint8_t *copy = malloc(size + 1);
	CUkernel *kernels = calloc(loaded.kernel_count + 1, sizeof(*kernels));
	pthread_mutex_lock(&lifetimes);
	struct ed_library *library = copy && kernels ? ed_object_take(ED_LIBRARY, sizeof(*library)) : NULL;
	struct ed_module *module = library ? make_module(NULL, &loaded) : NULL;
	if (!module) {
		free(copy);
		free(kernels);
		if (library)
			ed_object_give(library);
		else
			unload(&loaded);
		pthread_mutex_unlock(&lifetimes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memcpy(copy, image, size);
	copy[size] = 0;
	module->library = library;
	library->image = copy;
	library->size = size;
	library->kernels = kernels;
	library->modules = module;
	pthread_mutex_unlock(&lifetimes);
	*ret = library;
	return CUDA_SUCCESS;
}

API cuLibraryLoadData(CUlibrary *library, const void *image, int *jit_options, void **jit_values,
		      unsigned int jit_count, int *options, void **values, unsigned int count)
{
	ENTER();
	(void)options;
	(void)values;
	(void)count;
	if (!library || !image)
		return CUDA_ERROR_INVALID_VALUE;
	size_t size = measure(&image);
	return load_library(library, image, size, jit_options, jit_values, jit_count);
}

API cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit_options, void **jit_values,
			  unsigned int jit_count, int *options, void **values, unsigned int count)
{
	size_t size;
	CUresult result;

	ENTER();
	(void)options;
	(void)values;
	(void)count;
	if (!library)
		return CUDA_ERROR_INVALID_VALUE;
	uint8_t *image = read_file(path, &size, &result);
	if (image)
		result = load_library(library, image, size, jit_options, jit_values, jit_count);
	free(image);
	return result;
}

/* Every context that has a module of the library; the lock is not held meanwhile, since a kernel may wait for others. */
static void wait_for_users(const struct ed_library *library)
{
	struct ed_context *contexts[64];
	unsigned count = 0;

	pthread_mutex_lock(&lifetimes);
	for (const struct ed_module *module = library->modules; module && count < 64; module = module->next_of_library)
		if (module->context)
			contexts[count++] = module->context;
	pthread_mutex_unlock(&lifetimes);
	while (count)
		ed_queue_wait_all(contexts[--count]);
}

API cuLibraryUnload(CUlibrary library)
{
	ENTER();
	if (!ed_object_check(library, ED_LIBRARY))
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = ed_capture_unsafe();
	if (result)
		return result;
	wait_for_users(library);
	pthread_mutex_lock(&lifetimes);
	pthread_mutex_lock(&mutex);
	struct ed_module *module = library->modules;
	library->modules = NULL;
	CUkernel *kernels = library->kernels;
	uint32_t count = module ? module->loaded.kernel_count : 0;
	pthread_mutex_unlock(&mutex);
	while (module) {
		struct ed_module *next = module->next_of_library;
		destroy_module(module);
		module = next;
	}
	for (uint32_t i = 0; i < count; i++)
		if (kernels[i])
			ed_object_give(kernels[i]);
	free(kernels);
	free(library->image);
	ed_object_give(library);
	pthread_mutex_unlock(&lifetimes);
	return CUDA_SUCCESS;
}

API cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	ENTER_CONTEXT(context);
	if (!module || !ed_object_check(library, ED_LIBRARY))
		return module ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	return module_in(library, context, module);
}

static CUkernel kernel_at(struct ed_library *library, uint32_t number)
{
	pthread_mutex_lock(&mutex);
	CUkernel kernel = library->kernels[number];
	if (!kernel) {
		kernel = ed_object_take(ED_KERNEL, sizeof(*kernel));
		if (kernel) {
			kernel->library = library;
			kernel->number = number;
			kernel->max_dynamic_shared = default_dynamic(&library->modules->loaded.kernels[number]);
			kernel->carveout = -1;
			library->kernels[number] = kernel;
		}
	}
	pthread_mutex_unlock(&mutex);
	return kernel;
}

API cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	uint32_t number;

	ENTER();
	if (!kernel || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!ed_object_check(library, ED_LIBRARY))
		return CUDA_ERROR_INVALID_HANDLE;
	if (library->refused)
		return library->refused;
	CUresult result = find(&library->modules->loaded, name, &number);
	if (result)
		return result;
	*kernel = kernel_at(library, number);
	return *kernel ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
	ENTER();
	if (!count || !ed_object_check(library, ED_LIBRARY))
		return count ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	if (library->refused)
		return library->refused;
	*count = library->modules->loaded.kernel_count;
	return CUDA_SUCCESS;
}

API cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library)
{
	ENTER();
	if (!kernels || !ed_object_check(library, ED_LIBRARY))
		return kernels ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	if (library->refused)
		return library->refused;
	for (uint32_t i = 0; i < count; i++)
		kernels[i] = i < library->modules->loaded.kernel_count ? kernel_at(library, i) : NULL;
	return CUDA_SUCCESS;
}

API cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
	struct ed_module *module;

	ENTER_CONTEXT(context);
	if (!name || (!address && !size))
		return CUDA_ERROR_INVALID_VALUE;
	if (!ed_object_check(library, ED_LIBRARY))
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = module_in(library, context, &module);
	return result ? result : find_variable(&module->loaded, name, address, size);
}

API cuLibraryGetManaged(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
	ENTER_CONTEXT(context);
	(void)address;
	(void)size;
	(void)name;
	return ed_object_check(library, ED_LIBRARY) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

API cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name)
{
	ENTER_CONTEXT(context);
	(void)function;
	(void)name;
	return ed_object_check(library, ED_LIBRARY) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

CUresult ed_function_of(struct ed_context *context, CUfunction handle, CUfunction *ret)
{
	struct ed_module *module;

	*ret = handle;
	if (ed_object_is(handle, ED_FUNCTION))
		return CUDA_SUCCESS;
	CUkernel kernel = (CUkernel)(void *)handle;
	if (!ed_object_is(kernel, ED_KERNEL)) {
		/* For the line that names what it was. */
		if (ed_object_check(handle, ED_FUNCTION))
			ed_object_check(kernel, ED_KERNEL);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	CUresult result = module_in(kernel->library, context, &module);
	*ret = result ? NULL : function_at(module, kernel->number);
	if (!*ret)
		return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
	if (kernel->max_dynamic_shared > (*ret)->max_dynamic_shared)
		(*ret)->max_dynamic_shared = kernel->max_dynamic_shared;
	return CUDA_SUCCESS;
}

API cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	ENTER_CONTEXT(context);
	if (!function || !ed_object_check(kernel, ED_KERNEL))
		return function ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	return ed_function_of(context, (CUfunction)(void *)kernel, function);
}

API cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
	ENTER();
	if (!library || !ed_object_check(kernel, ED_KERNEL))
		return library ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	*library = kernel->library;
	return CUDA_SUCCESS;
}

static const struct ed_description *description_of(CUkernel kernel)
{
	return &kernel->library->modules->loaded.kernels[kernel->number];
}

API cuKernelGetName(const char **name, CUkernel kernel)
{
	ENTER();
	if (!name || !ed_object_check(kernel, ED_KERNEL))
		return name ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	*name = description_of(kernel)->name;
	return CUDA_SUCCESS;
}

API cuFuncGetName(const char **name, CUfunction function)
{
	ENTER();
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

API cuFuncGetModule(CUmodule *module, CUfunction handle)
{
	CUfunction function;

	ENTER_CONTEXT(context);
	if (!module || !handle)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_function_of(context, handle, &function);
	if (!result)
		*module = function->module;
	return result;
}

static CUresult parameter_of(const struct ed_description *kernel, size_t index, size_t *offset, size_t *size)
{
	if (!offset || index >= kernel->parameter_count)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = kernel->parameters[index].offset;
	if (size)
		*size = kernel->parameters[index].size;
	return CUDA_SUCCESS;
}

API cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
	CUfunction function;

	ENTER_CONTEXT(context);
	CUresult result = ed_function_of(context, handle, &function);
	return result ? result : parameter_of(function->kernel, index, offset, size);
}

API cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
	ENTER();
	if (!ed_object_check(kernel, ED_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	return parameter_of(description_of(kernel), index, offset, size);
}

API cuFuncIsLoaded(int *state, CUfunction handle)
{
	CUfunction function;

	ENTER_CONTEXT(context);
	CUresult result = ed_function_of(context, handle, &function);
	if (!result && state)
		*state = 1;
	return state ? result : CUDA_ERROR_INVALID_VALUE;
}

API cuFuncLoad(CUfunction handle)
{
	CUfunction function;

	ENTER_CONTEXT(context);
	return ed_function_of(context, handle, &function);
}

/* --- attributes --- */

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
	/* There are no registers to count: a number that leaves occupancy to threads and shared memory. */
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

API cuFuncGetAttribute(int *value, int attribute, CUfunction handle)
{
	CUfunction function;

	ENTER_CONTEXT(context);
	CUresult result = ed_function_of(context, handle, &function);
	return result ? result
		      : get_attribute(value, attribute, function->kernel, function->max_dynamic_shared,
				      function->carveout);
}

API cuFuncSetAttribute(CUfunction handle, int attribute, int value)
{
	CUfunction function;

	ENTER_CONTEXT(context);
	CUresult result = ed_function_of(context, handle, &function);
	return result ? result
		      : set_attribute(attribute, value, function->kernel, &function->max_dynamic_shared,
				      &function->carveout);
}

API cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device)
{
	ENTER();
	if (!ed_object_check(kernel, ED_KERNEL) || device)
		return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_HANDLE;
	return get_attribute(value, attribute, description_of(kernel), kernel->max_dynamic_shared, kernel->carveout);
}

API cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device)
{
	ENTER();
	if (!ed_object_check(kernel, ED_KERNEL) || device)
		return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_HANDLE;
	return set_attribute(attribute, value, description_of(kernel), &kernel->max_dynamic_shared, &kernel->carveout);
}

API cuFuncSetCacheConfig(CUfunction handle, int config)
{
	CUfunction function;

	ENTER_CONTEXT(context);
	CUresult result = ed_function_of(context, handle, &function);
	return config < 0 || config > 3 ? CUDA_ERROR_INVALID_VALUE : result;
}

API cuFuncSetSharedMemConfig(CUfunction handle, int config)
{
	CUfunction function;

	ENTER_CONTEXT(context);
	CUresult result = ed_function_of(context, handle, &function);
	return config < 0 || config > 2 ? CUDA_ERROR_INVALID_VALUE : result;
}

API cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice device)
{
	ENTER();
	if (!ed_object_check(kernel, ED_KERNEL) || device)
		return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_HANDLE;
	return config < 0 || config > 3 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* --- ends --- */

static bool is_of_context(const void *module, const void *context)
{
	return ((const struct ed_module *)module)->context == context;
}

static void forget_module(void *object)
{
	struct ed_module *module = object;

	if (module->library) {
		/* Fresh variables for whoever asks next: the library itself stays. */
		struct ed_loaded loaded;
		struct ed_library *library = module->library;
		pthread_mutex_lock(&mutex);
		struct ed_module **link = &library->modules;
		while (*link != module)
			link = &(*link)->next_of_library;
		bool is_last = library->modules == module && !module->next_of_library;
		if (!is_last)
			*link = module->next_of_library;
		pthread_mutex_unlock(&mutex);
		if (is_last) {
			if (load(library->image, library->size, 0, NULL, NULL, &loaded))
				return;
			struct ed_module *fresh = make_module(NULL, &loaded);
			if (!fresh)
				return;
			pthread_mutex_lock(&mutex);
			fresh->library = library;
			library->modules = fresh;
			pthread_mutex_unlock(&mutex);
		}
	}
	destroy_module(module);
}

void ed_module_forget_context(struct ed_context *context)
{
	pthread_mutex_lock(&lifetimes);
	ed_object_each(ED_MODULE, is_of_context, forget_module, context);
	pthread_mutex_unlock(&lifetimes);
}
