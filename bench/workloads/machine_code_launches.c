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

enum { MAX_KERNELS = 4096, MAX_PARAMETERS = 512, LOG_SIZE = 1 << 20, MODES = 6, PROBED = 4, SUMMED = 5 };
enum { MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, MULTIPROCESSOR_COUNT = 16, MAX_THREADS_PER_BLOCK = 0 };
enum { WARP = 32, MAX_WARPS = 1 << 22, COPIES = 128, COPY_WORDS = 16, SUMS = 5 };

/* A kernel that has twins. count: of its own parameters. files: of its cubins, by mode (0: the program's own). */
typedef struct {
	char *name;
	int count;
	char *files[MODES];
	void *functions[MODES];
} kernel;

/* The probe block of a twin with one map, and a record of block_sched. Both as neutrino/abi has them. */
typedef struct {
	unsigned warps_per_block, warp_capacity, zero, copy_mask;
	unsigned long long cell, records, counts;
} probe_block;
typedef struct {
	unsigned long long start;
	unsigned elapsed, multiprocessor;
} record;

/* What the threads of a launch of a twin with gmem_bytes added up, field by field. */
typedef struct {
	unsigned long long sums[SUMS];
} summed;

/* What a launch of a probed twin recorded. warps: that it had; records: of them with a record. odd: records that cannot
   be. longest: cycles. */
typedef struct {
	unsigned long long warps, records, odd;
	unsigned longest;
} recorded;

static kernel kernels[MAX_KERNELS];
static int kernel_count, mode, timed;
static char *log_text;
static size_t log_used;
static probe_block block;
static record *copies;
static unsigned long long sums_memory;

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

static void note(const char *name, const char *how, double milliseconds, const recorded *found, const summed *added)
{
	if (log_used + strlen(name) + 256 > LOG_SIZE)
		return;
	log_used += (size_t)sprintf(log_text + log_used, "%s\t%s\t%.6f", name, how, milliseconds);
	if (found)
		log_used += (size_t)sprintf(log_text + log_used, "\t%llu\t%llu\t%llu\t%u", found->warps, found->records,
					    found->odd, found->longest);
	for (int i = 0; added && i < SUMS; i++)
		log_used += (size_t)sprintf(log_text + log_used, "\t%llu", added->sums[i]);
	log_used += (size_t)sprintf(log_text + log_used, "\n");
}

/* Read the list of kernels with twins: lines of name, number of parameters, and a file for each mode, separated by tabs. */
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
		for (int i = 1; i < MODES && at; i++)
			one->files[i] = strdup(strsep(&at, "\t"));
	}
	free(line);
	if (file)
		fclose(file);
	return kernel_count;
}

/* How kernels are launched from now on: 0 as they are, 1 to 5 by that file. times: whether each is waited for. */
void machine_code_mode(int new_mode, int times)
{
	mode = new_mode;
	timed = times;
}

/* What was launched since the last call: lines of name, how, milliseconds; of twins with block_sched also how many warps,
   how many records, how many of them cannot be, and the most cycles; of those with gmem_bytes the fields of its map. */
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

/* Prepare memory for the records of a launch, and the probe block. Returns the number of warps, 0 where it cannot be
   recorded. */
static unsigned long long prepare_records(dim3 grid, dim3 threads, void *stream)
{
	int (*allocate)(unsigned long long *, size_t) = driver("cuMemAlloc_v2");
	int (*fill)(unsigned long long, unsigned, size_t, void *) = driver("cuMemsetD32Async");
	unsigned per_block = (threads.x * threads.y * threads.z + WARP - 1) / WARP;
	unsigned long long warps = (unsigned long long)grid.x * grid.y * grid.z * per_block;
	if (!copies)
		copies = malloc(MAX_WARPS * sizeof(*copies));
	if (!copies || !warps || warps > MAX_WARPS || !allocate || !fill)
		return 0;
	if (!block.records && allocate(&block.records, MAX_WARPS * sizeof(*copies)))
		return 0;
	if (fill(block.records, 0, (size_t)warps * (sizeof(*copies) / 4), stream))
		return 0;
	block.warps_per_block = per_block;
	block.warp_capacity = (unsigned)warps;
	return warps;
}

/* Wait for a launch, and read what it recorded of so many warps. */
static recorded read_records(unsigned long long warps, void *stream)
{
	int (*wait)(void *) = driver("cuStreamSynchronize");
	int (*copy)(void *, unsigned long long, size_t) = driver("cuMemcpyDtoH_v2");
	int (*attribute)(int *, int, int) = driver("cuDeviceGetAttribute");
	recorded found = {.warps = warps};
	int multiprocessors = 0;
	if (!wait || !copy || !attribute || wait(stream) || attribute(&multiprocessors, MULTIPROCESSOR_COUNT, 0) ||
	    copy(copies, block.records, (size_t)warps * sizeof(*copies)))
		return found;
	for (unsigned long long i = 0; i < warps; i++) {
		if (!copies[i].start && !copies[i].elapsed)
			continue;
		found.records++;
		if (!copies[i].start || !copies[i].elapsed || copies[i].multiprocessor >= (unsigned)multiprocessors)
			found.odd++;
		if (copies[i].elapsed > found.longest)
			found.longest = copies[i].elapsed;
	}
	return found;
}

/* Prepare memory for the sums of a launch, and the probe block. Returns 0 where they cannot be kept. */
static int prepare_sums(void *stream)
{
	int (*allocate)(unsigned long long *, size_t) = driver("cuMemAlloc_v2");
	int (*fill)(unsigned long long, unsigned, size_t, void *) = driver("cuMemsetD32Async");
	size_t size = COPIES * COPY_WORDS * sizeof(unsigned long long);
	if (!allocate || !fill || (!sums_memory && allocate(&sums_memory, size)))
		return 0;
	return !fill(sums_memory, 0, size / 4, stream);
}

/* Wait for a launch, and add up the copies of its sums. */
static summed read_sums(void *stream)
{
	static unsigned long long words[COPIES * COPY_WORDS];
	int (*wait)(void *) = driver("cuStreamSynchronize");
	int (*copy)(void *, unsigned long long, size_t) = driver("cuMemcpyDtoH_v2");
	summed found = {{0}};
	if (!wait || !copy || wait(stream) || copy(words, sums_memory, sizeof(words)))
		return found;
	for (int i = 0; i < COPIES; i++)
		for (int field = 0; field < SUMS; field++)
			found.sums[field] += words[i * COPY_WORDS + field];
	return found;
}

/* Launch the file's function. Returns the status, -1 where there is none. */
static int launch_twin(const char *name, dim3 grid, dim3 threads, void **arguments, size_t shared, void *stream)
{
	void *parameters[MAX_PARAMETERS + 1];
	probe_block of_sums = {.copy_mask = COPIES - 1, .records = sums_memory};
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		      void **) = driver("cuLaunchKernel");
	int (*set)(void *, int, int) = driver("cuFuncSetAttribute");
	int (*get)(int *, int, void *) = driver("cuFuncGetAttribute");
	kernel *one = NULL;
	int most = 0;
	for (int i = 0; i < kernel_count && !one; i++)
		if (!strcmp(kernels[i].name, name))
			one = &kernels[i];
	if (!one || !launch || !set || one->count > MAX_PARAMETERS)
		return -1;
	void *function = function_of(one);
	if (!function)
		return -1;
	/* With more registers a block may have fewer threads; then it stays the program's. */
	if (mode >= PROBED &&
	    (!get || get(&most, MAX_THREADS_PER_BLOCK, function) || threads.x * threads.y * threads.z > (unsigned)most))
		return -1;
	for (int i = 0; i < one->count; i++)
		parameters[i] = arguments[i];
	parameters[one->count] = mode == SUMMED ? &of_sums : &block;
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
	int (*mark)(void *, void *) = driver("cuEventRecord");
	int (*wait)(void *) = driver("cuEventSynchronize");
	int (*elapsed)(float *, void *, void *) = driver("cuEventElapsedTime");
	float milliseconds = 0;
	const char *how = "own";
	unsigned long long warps = 0;
	recorded found;
	summed added;
	int is_probed = 0, is_summed = 0;
	if (!log_text)
		log_text = malloc(LOG_SIZE);
	if (!log_text || !name || !create || !mark || !wait || !elapsed)
		return 0;
	if (timed && !events[0] && (create(&events[0], 0) || create(&events[1], 0)))
		return 0;
	if (mode == PROBED)
		warps = prepare_records(grid, threads, stream);
	if (mode == SUMMED)
		warps = (unsigned long long)prepare_sums(stream);
	if (timed)
		mark(events[0], stream);
	*status = mode && (mode < PROBED || warps) ? launch_twin(name, grid, threads, arguments, shared, stream) : -1;
	if (*status == -1)
		*status = original(call);
	else
		how = *status ? "failed" : "twin";
	if (timed && !mark(events[1], stream) && !wait(events[1]))
		elapsed(&milliseconds, events[0], events[1]);
	if (mode == PROBED && !strcmp(how, "twin")) {
		found = read_records(warps, stream);
		is_probed = 1;
	}
	if (mode == SUMMED && !strcmp(how, "twin")) {
		added = read_sums(stream);
		is_summed = 1;
	}
	note(name, how, milliseconds, is_probed ? &found : NULL, is_summed ? &added : NULL);
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
