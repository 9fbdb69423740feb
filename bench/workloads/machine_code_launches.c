/* Launches of a program's kernels by other functions: loaded before it (LD_PRELOAD), for bench.machine_code.

   PyTorch launches its kernels through libcudart, dynamically linked. What is asked for here is: the names of the
   kernels that were launched, with their times, and to launch functions of other cubins in their place. No header of
   CUDA is needed: what is declared here is of its documented interface. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
	unsigned x, y, z;
} dim3;
typedef struct {
	dim3 grid, block;
	size_t shared;
	void *stream;
	void *attributes;
	unsigned attribute_count;
} launch_config;

enum { MAX_KERNELS = 4096, MAX_PARAMETERS = 512, LOG_SIZE = 1 << 20, BLOCK_SIZE = 16 };
enum { MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };

/* A kernel that has twins. count: of its own parameters. files: of its cubins, by mode (0: the program's own). */
typedef struct {
	char *name;
	int count;
	char *files[4];
	void *functions[4];
} kernel;

static kernel kernels[MAX_KERNELS];
static int kernel_count, mode, timed;
static char *log_text;
static size_t log_used;
static unsigned char block[BLOCK_SIZE];

static void *runtime(const char *name)
{
	static const char *const files[] = {"libcudart.so.13", "libcudart.so.12"};
	for (int i = 0; i < 2; i++) {
		void *library = dlopen(files[i], RTLD_LAZY | RTLD_NOLOAD);
		if (library)
			return dlsym(library, name);
	}
	return NULL;
}

static void *driver(const char *name)
{
	static void *library;
	if (!library)
		library = dlopen("libcuda.so.1", RTLD_LAZY);
	return library ? dlsym(library, name) : NULL;
}

static void note(const char *name, const char *how, double milliseconds)
{
	if (log_used + strlen(name) + 128 > LOG_SIZE)
		return;
	log_used += (size_t)sprintf(log_text + log_used, "%s\t%s\t%.6f\n", name, how, milliseconds);
}

/* Read the list of kernels with twins: lines of name, number of parameters, and three files, separated by tabs. */
int machine_code_read(const char *path)
{
	FILE *file = fopen(path, "r");
	char *line = NULL;
	size_t room = 0;
	kernel_count = 0;
	while (file && getline(&line, &room, file) > 0 && kernel_count < MAX_KERNELS) {
		char *at = line;
		kernel *one = &kernels[kernel_count++];
		line[strcspn(line, "\n")] = 0;
		memset(one, 0, sizeof(*one));
		one->name = strdup(strsep(&at, "\t"));
		one->count = at ? atoi(strsep(&at, "\t")) : 0;
		for (int i = 1; i < 4 && at; i++)
			one->files[i] = strdup(strsep(&at, "\t"));
	}
	free(line);
	if (file)
		fclose(file);
	return kernel_count;
}

/* How kernels are launched from now on: 0 as they are, 1 to 3 by that file. times: whether each is waited for. */
void machine_code_mode(int new_mode, int times)
{
	mode = new_mode;
	timed = times;
}

/* What was launched since the last call: lines of name, how, milliseconds. */
const char *machine_code_log(void)
{
	static char *last;
	if (!log_text)
		return "";
	free(last);
	last = strndup(log_text, log_used);
	log_used = 0;
	return last;
}

static void *function_of(kernel *one)
{
	int (*load)(void **, const char *) = driver("cuModuleLoad");
	int (*get)(void **, void *, const char *) = driver("cuModuleGetFunction");
	void *module = NULL;
	if (!one->functions[mode] && load && get && one->files[mode] && *one->files[mode]) {
		int status = load(&module, one->files[mode]);
		if (status || (status = get(&one->functions[mode], module, one->name)))
			fprintf(stderr, "machine_code: %s does not load: %d\n", one->files[mode], status);
	}
	return one->functions[mode];
}

/* Launch the file's function. Returns the status, -1 where there is none. */
static int launch_twin(const char *name, dim3 grid, dim3 threads, void **arguments, size_t shared, void *stream)
{
	void *parameters[MAX_PARAMETERS + 1];
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		      void **) = driver("cuLaunchKernel");
	int (*set)(void *, int, int) = driver("cuFuncSetAttribute");
	kernel *one = NULL;
	for (int i = 0; i < kernel_count && !one; i++)
		if (!strcmp(kernels[i].name, name))
			one = &kernels[i];
	if (!one || !launch || !set || one->count > MAX_PARAMETERS)
		return -1;
	void *function = function_of(one);
	if (!function)
		return -1;
	for (int i = 0; i < one->count; i++)
		parameters[i] = arguments[i];
	parameters[one->count] = block;
	if (shared > 48 << 10)
		set(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared);
	return launch(function, grid.x, grid.y, grid.z, threads.x, threads.y, threads.z, (unsigned)shared, stream, parameters,
		      NULL);
}

/* Whether the launch was done here; else the caller does it, and its time is not known. */
static int launched(const char *name, dim3 grid, dim3 threads, void **arguments, size_t shared, void *stream,
		    int (*original)(void *), void *call, int *status)
{
	static void *events[2];
	int (*create)(void **, unsigned) = driver("cuEventCreate");
	int (*record)(void *, void *) = driver("cuEventRecord");
	int (*wait)(void *) = driver("cuEventSynchronize");
	int (*elapsed)(float *, void *, void *) = driver("cuEventElapsedTime");
	float milliseconds = 0;
	const char *how = "own";
	if (!log_text)
		log_text = malloc(LOG_SIZE);
	if (!log_text || !name || !create || !record || !wait || !elapsed)
		return 0;
	if (timed && !events[0] && (create(&events[0], 0) || create(&events[1], 0)))
		return 0;
	if (timed)
		record(events[0], stream);
	*status = mode ? launch_twin(name, grid, threads, arguments, shared, stream) : -1;
	if (*status == -1)
		*status = original(call);
	else
		how = *status ? "failed" : "twin";
	if (timed && !record(events[1], stream) && !wait(events[1]))
		elapsed(&milliseconds, events[0], events[1]);
	note(name, how, milliseconds);
	return 1;
}

typedef int launch_function(const void *, dim3, dim3, void **, size_t, void *);
typedef int launch_ex_function(const launch_config *, const void *, void **);
typedef struct {
	launch_function *real;
	launch_ex_function *real_ex;
	const void *function;
	const launch_config *config;
	launch_config own;
	void **arguments;
} call_of;

static int call_again(void *argument)
{
	call_of *call = argument;
	if (call->real_ex)
		return call->real_ex(call->config, call->function, call->arguments);
	return call->real(call->function, call->own.grid, call->own.block, call->arguments, call->own.shared,
			  call->own.stream);
}

static int launch_of(const char *entry, const char *name, call_of *call)
{
	const launch_config *config = call->config ? call->config : &call->own;
	int status = 0;
	if (call->config)
		call->real_ex = (launch_ex_function *)runtime(entry);
	else
		call->real = (launch_function *)runtime(entry);
	if (!call->real && !call->real_ex)
		return 999;
	/* Launches with attributes (clusters, dependencies) stay the program's. */
	if (!config->attribute_count && launched(name, config->grid, config->block, call->arguments, config->shared,
						 config->stream, call_again, call, &status))
		return status;
	return call_again(call);
}

static const char *name_of_symbol(const void *function)
{
	int (*get)(const char **, const void *) = (int (*)(const char **, const void *))runtime("cudaFuncGetName");
	const char *name = NULL;
	return get && !get(&name, function) ? name : NULL;
}

static const char *name_of_kernel(void *handle)
{
	int (*get)(const char **, void *) = driver("cuKernelGetName");
	const char *name = NULL;
	return get && !get(&name, handle) ? name : NULL;
}

int cudaLaunchKernel(const void *function, dim3 grid, dim3 threads, void **arguments, size_t shared, void *stream)
{
	call_of call = {.function = function, .own = {grid, threads, shared, stream, NULL, 0}, .arguments = arguments};
	return launch_of("cudaLaunchKernel", name_of_symbol(function), &call);
}

int __cudaLaunchKernel(void *handle, dim3 grid, dim3 threads, void **arguments, size_t shared, void *stream)
{
	call_of call = {.function = handle, .own = {grid, threads, shared, stream, NULL, 0}, .arguments = arguments};
	return launch_of("__cudaLaunchKernel", name_of_kernel(handle), &call);
}

int cudaLaunchKernelExC(const launch_config *config, const void *function, void **arguments)
{
	call_of call = {.function = function, .config = config, .arguments = arguments};
	return launch_of("cudaLaunchKernelExC", name_of_symbol(function), &call);
}
