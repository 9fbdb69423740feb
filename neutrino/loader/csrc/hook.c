/*
 * The functions that stand in front of the driver's. Each calls the real one; what it adds beside that never fails the
 * program: on any trouble of ours the program's own kernel runs.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"
#include "hook.h"
#include "image_bytes.h"
#include "launch.h"
#include "pool.h"
#include "registry.h"
#include "section.h"
#include "late.h"
#include "trace.h"
#include "twin.h"
#include "entry_fetch.h"

/* The stub redirects slots in memory to these functions, and stands in front of nobody by their names. */
#ifdef NEUTRINO_LATE
#define EXPORT
#else
#define EXPORT __attribute__((visibility("default")))
/* By this the stub of a patched library knows that there is a hook. */
EXPORT extern const int neutrino_hook;
const int neutrino_hook = 1;
#endif
#define DRAIN_LIMIT_MS 5000

enum mode {
	OFF,	 /* pass everything through */
	READY,	 /* after cuInit, no image yet */
	TRACING, /* the trace directory is there */
	ENDED,
};

static int mode;

static int current_mode(void)
{
	return __atomic_load_n(&mode, __ATOMIC_ACQUIRE);
}

/* Every exported function begins so: without a driver there is nothing to call. */
#define NEED_DRIVER(function)                                                                                          \
	do {                                                                                                           \
		if (!nt_driver_load() || !nt_driver.function)                                                          \
			return CUDA_ERROR_NOT_SUPPORTED;                                                               \
	} while (0)

/* --- life and death --- */

static bool is_set(const char *variable)
{
	const char *value = getenv(variable);

	return value && *value;
}

static void say_where(void)
{
	if (!is_set("NEUTRINO_QUIET"))
		nt_say("neutrino: trace in %s\n", nt_trace_path());
}

static void note_unused(const char *library)
{
	nt_trace_note("none of the twins in %s was used: its kernels did not run, or ran by functions of the driver that "
		      "were looked up before the hook was there",
		      library);
#ifdef NEUTRINO_LATE
	if (nt_late_came_after() && !is_set("NEUTRINO_QUIET"))
		nt_say("neutrino: nothing of %s was recorded; where it runs kernels by a driver in use before it was loaded, "
		       "use the neutrino command\n",
		       library);
#endif
}

static pid_t process;
static bool is_ahead; /* twins come from patched files */

static void at_exit(void)
{
	/* A child made by a bare clone or _Fork comes here without in_child. */
	if (getpid() != process)
		return;
#ifdef NEUTRINO_LATE
	nt_hook_missed();
#endif
	if (__atomic_exchange_n(&mode, ENDED, __ATOMIC_ACQ_REL) != TRACING)
		return;
	struct nt_event event;
	uint64_t begin = nt_now_ns();
	nt_launch_end();
	bool drained = nt_pool_drain_all(DRAIN_LIMIT_MS);
	if (is_ahead)
		nt_section_unused(note_unused);
	if (!drained)
		nt_trace_note("the records of the last launches were not there within %d s", DRAIN_LIMIT_MS / 1000);
	nt_event_begin(&event, "end");
	nt_event_number(&event, "drained", drained);
	nt_event_real(&event, "drain_ms", (double)(nt_now_ns() - begin) / 1e6);
	nt_event_end(&event);
	if (drained)
		nt_trace_ended();
	say_where();
}

/* The parent's threads, contexts and mapped records are not the child's. */
static void in_child(void)
{
	__atomic_store_n(&mode, OFF, __ATOMIC_RELEASE);
	nt_launch_end();
	nt_pool_child();
}

/* Whether to record with what patched files carry. */
static bool ahead_is_wanted(void)
{
#ifdef NEUTRINO_LATE
	return nt_late_is_active();
#else
	return is_set("NEUTRINO_AHEAD");
#endif
}

static void start(void)
{
	/* A run's probes stand in for those that patched files carry. */
	bool run = is_set("NEUTRINO_KEY");

	if (!run && !ahead_is_wanted())
		return;
	if (!run)
		nt_images_use_sections();
	is_ahead = !run;
	process = getpid();
	/* Registered after the driver's own handlers, so run before them. */
	if (atexit(at_exit) != 0 || pthread_atfork(NULL, NULL, in_child) != 0)
		return;
	__atomic_store_n(&mode, READY, __ATOMIC_RELEASE);
}

static size_t read_arguments(char *text, size_t size, char *ret[], size_t most)
{
	size_t used = 0, count = 0;
	int fd = nt_above_stdio(open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));

	if (fd < 0)
		return 0;
	ssize_t got;
	while (used < size - 1 && (got = read(fd, text + used, size - 1 - used)) != 0) {
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			break;
		used += (size_t)got;
	}
	close(fd);
	text[used] = 0;
	for (size_t at = 0; at < used && count < most; at += strlen(text + at) + 1)
		ret[count++] = text + at;
	return count;
}

static void copy_into_trace(const char *variable, const char *name)
{
	const char *path = getenv(variable);
	struct stat status;
	char *data;

	if (!path || !*path)
		return;
	int fd = nt_above_stdio(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
	if (fd < 0)
		return;
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size < (1 << 20) && (data = malloc((size_t)status.st_size + 1))) {
		ssize_t got = read(fd, data, (size_t)status.st_size);
		if (got == status.st_size)
			nt_trace_file(name, data, (size_t)got);
		free(data);
	}
	close(fd);
}

static void log_process(void)
{
	static const char *const ranks[] = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"};
	static struct nt_event event;
	static char text[8192], section_names[4096], section_maker[256];
	const char *names = getenv("NEUTRINO_PROBES"), *maker = getenv("NEUTRINO_VERSION");
	char *arguments[64], host[256] = "", executable[4096] = "", folder[4096] = "";
	int version = 0;

	ssize_t length = readlink("/proc/self/exe", executable, sizeof(executable) - 1);
	executable[length > 0 ? length : 0] = 0;
	gethostname(host, sizeof(host) - 1);
	nt_driver.cuDriverGetVersion(&version);
	if (is_ahead) {
		nt_section_names(section_names, sizeof(section_names), section_maker, sizeof(section_maker));
		names = section_names;
		maker = section_maker;
	}
	nt_event_begin(&event, "process");
	nt_event_number(&event, "pid", (uint64_t)getpid());
	nt_event_number(&event, "ppid", (uint64_t)getppid());
	nt_event_string(&event, "host", host);
	nt_event_strings(&event, "argv", arguments, read_arguments(text, sizeof(text), arguments, 64));
	nt_event_string(&event, "executable", executable);
	nt_event_string(&event, "folder", getcwd(folder, sizeof(folder)) ? folder : "");
	nt_event_string(&event, "version", maker ? maker : "");
	nt_event_string(&event, "driver", getenv("NEUTRINO_DRIVER") ? getenv("NEUTRINO_DRIVER") : "");
	nt_event_number(&event, "driver_version", (uint64_t)version);
	nt_event_string(&event, "probes", names ? names : "");
	nt_event_number(&event, "monotonic_ns", nt_now_ns());
	for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
		if (getenv(ranks[i]))
			nt_event_string(&event, ranks[i], getenv(ranks[i]));
	nt_event_end(&event);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* At the first image: no process that never uses the GPU leaves a folder. */
static bool start_trace(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

	if (current_mode() == TRACING)
		return true;
	/* Where cuInit was called before the hook was there. */
	pthread_once(&once, start);
	if (current_mode() != READY)
		return false;
	pthread_mutex_lock(&mutex);
	if (current_mode() == READY) {
		bool made = nt_trace_start();
		if (made) {
			log_process();
			if (!is_ahead) {
				copy_into_trace("NEUTRINO_PROBE_FILE", "probe.toml");
				copy_into_trace("NEUTRINO_READER", "read.py");
				nt_listener_hello(nt_trace_path());
			}
		} else {
			nt_say("neutrino: no trace directory could be made in %s (%s): kernels run unprobed\n",
			       getenv("NEUTRINO_TRACEDIR") ? getenv("NEUTRINO_TRACEDIR") : "(none)", strerror(errno));
		}
		__atomic_store_n(&mode, made ? TRACING : OFF, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&mutex);
	return current_mode() == TRACING;
}

#ifdef NEUTRINO_LATE
static void count_unused(const char *library)
{
	(void)library;
}

void nt_hook_missed(void)
{
	if (current_mode() < TRACING && nt_late_came_after() && nt_section_unused(count_unused))
		start_trace();
}
#endif

EXPORT CUresult cuInit(unsigned int flags)
{
	NEED_DRIVER(cuInit);
	CUresult result = nt_driver.cuInit(flags);
	if (result == CUDA_SUCCESS)
		pthread_once(&once, start);
	return result;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	NEED_DRIVER(cuGetProcAddress);
	CUresult result = nt_driver.cuGetProcAddress(symbol, function, version, flags);
	if (result == CUDA_SUCCESS && function)
		*function = nt_driver_wrapper_of(*function);
	return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
	NEED_DRIVER(cuGetProcAddress_v2);
	CUresult result = nt_driver.cuGetProcAddress_v2(symbol, function, version, flags, status);
	if (result == CUDA_SUCCESS && function)
		*function = nt_driver_wrapper_of(*function);
	return result;
}

/* --- images --- */

static void loaded_data(void *handle, bool is_library, const void *image, const void *caller)
{
	struct nt_image_bytes bytes;

	if (start_trace() && nt_image_measure(image, SIZE_MAX, &bytes))
		nt_registry_loaded(handle, is_library, &bytes, NULL, caller);
}

/*
 * The embedded device runs less than a GPU, and says why. Without this note nothing would tell who reads the trace that
 * the program had kernels.
 */
static void refused(void)
{
	char why[1024];

	if (nt_driver.neutrinoEmbeddedRefusal &&
	    nt_driver.neutrinoEmbeddedRefusal(why, sizeof(why)) == CUDA_SUCCESS && start_trace())
		nt_trace_note("the embedded device did not take an image: %s", why);
}

static void loaded_file(void *handle, bool is_library, const char *path, const void *caller)
{
	struct nt_image_bytes bytes;
	struct stat status;
	uint8_t *data = NULL;
	size_t used = 0;

	if (!start_trace())
		return;
	/* A pipe's bytes have gone to the driver: opening it again would wait for a writer. */
	int fd = nt_above_stdio(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
	if (fd < 0)
		return;
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 && (data = malloc((size_t)status.st_size))) {
		ssize_t got;
		while (used < (size_t)status.st_size &&
		       ((got = read(fd, data + used, (size_t)status.st_size - used)) > 0 || (got < 0 && errno == EINTR)))
			used += got > 0 ? (size_t)got : 0;
		if (nt_image_measure(data, used, &bytes))
			nt_registry_loaded(handle, is_library, &bytes, path, caller);
	}
	free(data);
	close(fd);
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	NEED_DRIVER(cuModuleLoad);
	CUresult result = nt_driver.cuModuleLoad(module, path);
	if (result == CUDA_SUCCESS)
		loaded_file(*module, false, path, __builtin_return_address(0));
	else
		refused();
	return result;
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	NEED_DRIVER(cuModuleLoadData);
	CUresult result = nt_driver.cuModuleLoadData(module, image);
	if (result == CUDA_SUCCESS)
		loaded_data(*module, false, image, __builtin_return_address(0));
	else
		refused();
	return result;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
	NEED_DRIVER(cuModuleLoadDataEx);
	CUresult result = nt_driver.cuModuleLoadDataEx(module, image, count, options, values);
	if (result == CUDA_SUCCESS)
		loaded_data(*module, false, image, __builtin_return_address(0));
	else
		refused();
	return result;
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	NEED_DRIVER(cuModuleLoadFatBinary);
	CUresult result = nt_driver.cuModuleLoadFatBinary(module, image);
	if (result == CUDA_SUCCESS)
		loaded_data(*module, false, image, __builtin_return_address(0));
	else
		refused();
	return result;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *image, int *jit_options, void **jit_values,
				  unsigned int jit_count, int *options, void **values, unsigned int count)
{
	NEED_DRIVER(cuLibraryLoadData);
	CUresult result = nt_driver.cuLibraryLoadData(library, image, jit_options, jit_values, jit_count, options, values,
						      count);
	/* Also of a library that was taken: its image is judged when something of it is asked for. */
	refused();
	if (result == CUDA_SUCCESS)
		loaded_data(*library, true, image, __builtin_return_address(0));
	return result;
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit_options, void **jit_values,
				      unsigned int jit_count, int *options, void **values, unsigned int count)
{
	NEED_DRIVER(cuLibraryLoadFromFile);
	CUresult result = nt_driver.cuLibraryLoadFromFile(library, path, jit_options, jit_values, jit_count, options,
							  values, count);
	/* Also of a library that was taken: its image is judged when something of it is asked for. */
	refused();
	if (result == CUDA_SUCCESS)
		loaded_file(*library, true, path, __builtin_return_address(0));
	return result;
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
	NEED_DRIVER(cuModuleUnload);
	if (current_mode() == TRACING)
		nt_registry_unloading(module, false);
	return nt_driver.cuModuleUnload(module);
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
	NEED_DRIVER(cuLibraryUnload);
	if (current_mode() == TRACING)
		nt_registry_unloading(library, true);
	return nt_driver.cuLibraryUnload(library);
}

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	NEED_DRIVER(cuLibraryGetModule);
	CUresult result = nt_driver.cuLibraryGetModule(module, library);
	if (result == CUDA_SUCCESS && current_mode() == TRACING)
		nt_registry_alias(*module, library);
	return result;
}

/* --- functions --- */

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	NEED_DRIVER(cuModuleGetFunction);
	CUresult result = nt_driver.cuModuleGetFunction(function, module, name);
	if (result == CUDA_SUCCESS && current_mode() == TRACING)
		nt_registry_obtained(module, false, *function, name);
	return result;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	NEED_DRIVER(cuLibraryGetKernel);
	CUresult result = nt_driver.cuLibraryGetKernel(kernel, library, name);
	if (result == CUDA_SUCCESS && current_mode() == TRACING)
		nt_registry_obtained(library, true, *kernel, name);
	return result;
}

EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module)
{
	NEED_DRIVER(cuModuleEnumerateFunctions);
	CUresult result = nt_driver.cuModuleEnumerateFunctions(functions, count, module);
	for (unsigned int i = 0; result == CUDA_SUCCESS && i < count && current_mode() == TRACING; i++)
		nt_registry_obtained(module, false, functions[i], NULL);
	return result;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library)
{
	NEED_DRIVER(cuLibraryEnumerateKernels);
	CUresult result = nt_driver.cuLibraryEnumerateKernels(kernels, count, library);
	for (unsigned int i = 0; result == CUDA_SUCCESS && i < count && current_mode() == TRACING; i++)
		nt_registry_obtained(library, true, kernels[i], NULL);
	return result;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	NEED_DRIVER(cuKernelGetFunction);
	CUresult result = nt_driver.cuKernelGetFunction(function, kernel);
	if (result == CUDA_SUCCESS && current_mode() == TRACING)
		nt_registry_function_of(kernel, *function);
	return result;
}

/* Attributes that the program sets hold for its twins too; whether they take is the program's affair only once. */
#define FOR_TWINS(handle, call)                                                                                        \
	do {                                                                                                           \
		struct nt_function *found = nt_registry_find(handle);                                                  \
		void *const twins[] = {found ? found->twin : NULL, found ? found->capped : NULL};                      \
		for (int each = 0; each < 2; each++) {                                                                 \
			void *twin = twins[each];                                                                      \
			if (twin)                                                                                      \
				call;                                                                                  \
		}                                                                                                      \
		if (found)                                                                                             \
			nt_twin_forget_shapes(found);                                                                \
	} while (0)

EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
	NEED_DRIVER(cuFuncSetAttribute);
	CUresult result = nt_driver.cuFuncSetAttribute(function, attribute, value);
	if (result == CUDA_SUCCESS && current_mode() == TRACING)
		FOR_TWINS(function, nt_driver.cuFuncSetAttribute(twin, attribute, value));
	return result;
}

EXPORT CUresult cuFuncSetCacheConfig(CUfunction function, int config)
{
	NEED_DRIVER(cuFuncSetCacheConfig);
	CUresult result = nt_driver.cuFuncSetCacheConfig(function, config);
	if (result == CUDA_SUCCESS && current_mode() == TRACING)
		FOR_TWINS(function, nt_driver.cuFuncSetCacheConfig(twin, config));
	return result;
}

EXPORT CUresult cuFuncSetSharedMemConfig(CUfunction function, int config)
{
	NEED_DRIVER(cuFuncSetSharedMemConfig);
	CUresult result = nt_driver.cuFuncSetSharedMemConfig(function, config);
	if (result == CUDA_SUCCESS && current_mode() == TRACING)
		FOR_TWINS(function, nt_driver.cuFuncSetSharedMemConfig(twin, config));
	return result;
}

EXPORT CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device)
{
	NEED_DRIVER(cuKernelSetAttribute);
	CUresult result = nt_driver.cuKernelSetAttribute(attribute, value, kernel, device);
	if (result == CUDA_SUCCESS && current_mode() == TRACING)
		FOR_TWINS(kernel, nt_driver.cuKernelSetAttribute(attribute, value, twin, device));
	return result;
}

EXPORT CUresult cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice device)
{
	NEED_DRIVER(cuKernelSetCacheConfig);
	CUresult result = nt_driver.cuKernelSetCacheConfig(kernel, config, device);
	if (result == CUDA_SUCCESS && current_mode() == TRACING)
		FOR_TWINS(kernel, nt_driver.cuKernelSetCacheConfig(twin, config, device));
	return result;
}

/* --- launches --- */

/* The function's record when its launches are ours to see; NULL passes the launch through. */
static struct nt_function *seen(CUfunction handle)
{
	if (current_mode() < TRACING)
		return NULL;
	struct nt_function *function = nt_registry_find(handle);
	if (!function)
		nt_launch_unknown();
	return function;
}

static CUresult submit_plain(const struct nt_launch *l, CUfunction function, void **parameters, void **extra)
{
	return (l->per_thread ? nt_driver.cuLaunchKernel_ptsz : nt_driver.cuLaunchKernel)(
		function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared, l->stream,
		parameters, extra);
}

static CUresult submit_config(const struct nt_launch *l, CUfunction function, void **parameters, void **extra)
{
	return (l->per_thread ? nt_driver.cuLaunchKernelEx_ptsz : nt_driver.cuLaunchKernelEx)(l->argument, function,
											     parameters, extra);
}

static CUresult launch_plain(CUfunction handle, const struct nt_launch *launch)
{
	struct nt_function *function = seen(handle);

	return function ? nt_launch(function, launch) : submit_plain(launch, handle, launch->parameters, launch->extra);
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			       unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
			       CUstream stream, void **parameters, void **extra)
{
	NEED_DRIVER(cuLaunchKernel);
	struct nt_launch launch = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, false,
				   parameters,		     extra,			  submit_plain, NULL};
	return launch_plain(function, &launch);
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
				    unsigned int block_x, unsigned int block_y, unsigned int block_z,
				    unsigned int shared, CUstream stream, void **parameters, void **extra)
{
	NEED_DRIVER(cuLaunchKernel_ptsz);
	struct nt_launch launch = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, true,
				   parameters,		     extra,			  submit_plain, NULL};
	return launch_plain(function, &launch);
}

static CUresult launch_config(const CUlaunchConfig *config, CUfunction handle, void **parameters, void **extra,
			      bool per_thread)
{
	struct nt_function *function = config ? seen(handle) : NULL;

	if (!function)
		return (per_thread ? nt_driver.cuLaunchKernelEx_ptsz : nt_driver.cuLaunchKernelEx)(config, handle,
												   parameters, extra);
	struct nt_launch launch = {
		{config->gridDimX, config->gridDimY, config->gridDimZ},
		{config->blockDimX, config->blockDimY, config->blockDimZ},
		config->sharedMemBytes,
		config->hStream,
		per_thread,
		parameters,
		extra,
		submit_config,
		config,
	};
	return nt_launch(function, &launch);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
	NEED_DRIVER(cuLaunchKernelEx);
	return launch_config(config, function, parameters, extra, false);
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
				      void **extra)
{
	NEED_DRIVER(cuLaunchKernelEx_ptsz);
	return launch_config(config, function, parameters, extra, true);
}

/* Forms that run their originals and are listed: a kernel without a twin by its own reason, another by that given. */
static void count_original(CUfunction handle, unsigned reason)
{
	const struct nt_function *function = seen(handle);

	if (function)
		nt_trace_count(function->kernel->id, function->reason ? function->reason : reason);
}

static void count_other_form(CUfunction handle)
{
	count_original(handle, NEUTRINO_REASON_LAUNCH_FORM);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
					  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
					  unsigned int block_z, unsigned int shared, CUstream stream, void **parameters)
{
	NEED_DRIVER(cuLaunchCooperativeKernel);
	count_other_form(function);
	return nt_driver.cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
						   stream, parameters);
}

EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
					       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
					       unsigned int block_z, unsigned int shared, CUstream stream,
					       void **parameters)
{
	NEED_DRIVER(cuLaunchCooperativeKernel_ptsz);
	count_other_form(function);
	return nt_driver.cuLaunchCooperativeKernel_ptsz(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
							shared, stream, parameters);
}

EXPORT CUresult cuLaunch(CUfunction function)
{
	NEED_DRIVER(cuLaunch);
	count_other_form(function);
	return nt_driver.cuLaunch(function);
}

EXPORT CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	NEED_DRIVER(cuLaunchGrid);
	count_other_form(function);
	return nt_driver.cuLaunchGrid(function, width, height);
}

EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	NEED_DRIVER(cuLaunchGridAsync);
	count_other_form(function);
	return nt_driver.cuLaunchGridAsync(function, width, height, stream);
}

/* --- graph nodes: one count for each node made, since replays are the driver's --- */

/* CUDA_KERNEL_NODE_PARAMS begins with the CUfunction; where that is NULL in its v2, the CUkernel at offset 56 counts. */
static void count_node(const void *kernel_parameters, bool is_v2, CUresult result)
{
	CUfunction function;

	if (result != CUDA_SUCCESS || !kernel_parameters)
		return;
	memcpy(&function, kernel_parameters, sizeof(function));
	if (!function && is_v2)
		memcpy(&function, (const char *)kernel_parameters + 56, sizeof(function));
	count_original(function, NEUTRINO_REASON_GRAPH);
}

/* CUgraphNodeParams: the type (0: a kernel), three reserved words, then the parameters of that type. */
static void count_any_node(const void *parameters, CUresult result)
{
	int type;

	if (!parameters)
		return;
	memcpy(&type, parameters, sizeof(type));
	if (type == 0)
		count_node((const char *)parameters + 16, true, result);
}

EXPORT CUresult cuGraphAddKernelNode(void **node, void *graph, const void *const *dependencies, size_t count,
				     const void *parameters)
{
	NEED_DRIVER(cuGraphAddKernelNode);
	CUresult result = nt_driver.cuGraphAddKernelNode(node, graph, dependencies, count, parameters);
	count_node(parameters, false, result);
	return result;
}

EXPORT CUresult cuGraphAddKernelNode_v2(void **node, void *graph, const void *const *dependencies, size_t count,
					const void *parameters)
{
	NEED_DRIVER(cuGraphAddKernelNode_v2);
	CUresult result = nt_driver.cuGraphAddKernelNode_v2(node, graph, dependencies, count, parameters);
	count_node(parameters, true, result);
	return result;
}

EXPORT CUresult cuGraphAddNode(void **node, void *graph, const void *const *dependencies, size_t count,
			       const void *parameters)
{
	NEED_DRIVER(cuGraphAddNode);
	CUresult result = nt_driver.cuGraphAddNode(node, graph, dependencies, count, parameters);
	count_any_node(parameters, result);
	return result;
}

EXPORT CUresult cuGraphAddNode_v2(void **node, void *graph, const void *const *dependencies, const void *const *edges,
				  size_t count, const void *parameters)
{
	NEED_DRIVER(cuGraphAddNode_v2);
	CUresult result = nt_driver.cuGraphAddNode_v2(node, graph, dependencies, edges, count, parameters);
	count_any_node(parameters, result);
	return result;
}

/* --- waits, streams, contexts --- */

static CUresult synchronize_stream(CUresult (*real)(CUstream), CUstream stream, bool per_thread)
{
	struct nt_watermark mark;
	CUcontext context = NULL;

	if (current_mode() != TRACING || nt_driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
		return real(stream);
	nt_watermark_before(&mark, context,
			    stream ? stream : per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY);
	CUresult result = real(stream);
	if (result == CUDA_SUCCESS)
		nt_watermark_after(&mark);
	return result;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
	NEED_DRIVER(cuStreamSynchronize);
	return synchronize_stream(nt_driver.cuStreamSynchronize, stream, false);
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	NEED_DRIVER(cuStreamSynchronize_ptsz);
	return synchronize_stream(nt_driver.cuStreamSynchronize_ptsz, stream, true);
}

EXPORT CUresult cuCtxSynchronize(void)
{
	struct nt_watermark mark;
	CUcontext context = NULL;

	NEED_DRIVER(cuCtxSynchronize);
	if (current_mode() != TRACING || nt_driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
		return nt_driver.cuCtxSynchronize();
	nt_watermark_before(&mark, context, NULL);
	CUresult result = nt_driver.cuCtxSynchronize();
	if (result == CUDA_SUCCESS)
		nt_watermark_after(&mark);
	return result;
}

static void forget_stream(CUstream stream)
{
	CUcontext context = NULL;

	if (current_mode() != TRACING || (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD)
		return;
	if ((nt_driver.cuStreamGetCtx && nt_driver.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS) ||
	    nt_driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS)
		nt_pool_forget_stream(context, stream);
}

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
	NEED_DRIVER(cuStreamDestroy);
	forget_stream(stream);
	return nt_driver.cuStreamDestroy(stream);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
	NEED_DRIVER(cuStreamDestroy_v2);
	forget_stream(stream);
	return nt_driver.cuStreamDestroy_v2(stream);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
	NEED_DRIVER(cuCtxSetCurrent);
	CUresult result = nt_driver.cuCtxSetCurrent(context);
	if (result == CUDA_SUCCESS && context && current_mode() == TRACING && nt_registry_has_probed() &&
	    !nt_pool_known(context))
		nt_registry_prepare_context(context);
	return result;
}

static void forget_context(CUcontext context)
{
	if (current_mode() != TRACING || !context)
		return;
	nt_launch_forget_context(context, DRAIN_LIMIT_MS);
	nt_pool_forget_context(context, DRAIN_LIMIT_MS);
	nt_registry_forget_context(context);
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
	NEED_DRIVER(cuCtxDestroy);
	forget_context(context);
	return nt_driver.cuCtxDestroy(context);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
	NEED_DRIVER(cuCtxDestroy_v2);
	forget_context(context);
	return nt_driver.cuCtxDestroy_v2(context);
}

/* Primary contexts by device, as the program retained them. */
#define DEVICES 64
static CUcontext primary_contexts[DEVICES];
static int primary_counts[DEVICES];

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	NEED_DRIVER(cuDevicePrimaryCtxRetain);
	CUresult result = nt_driver.cuDevicePrimaryCtxRetain(context, device);
	if (result == CUDA_SUCCESS && device >= 0 && device < DEVICES) {
		__atomic_store_n(&primary_contexts[device], *context, __ATOMIC_RELEASE);
		__atomic_fetch_add(&primary_counts[device], 1, __ATOMIC_ACQ_REL);
	}
	return result;
}

static void release_primary(CUdevice device)
{
	if (device < 0 || device >= DEVICES)
		return;
	/* A release too many, which the driver refuses, must not be counted. */
	int count = __atomic_load_n(&primary_counts[device], __ATOMIC_ACQUIRE);
	while (count > 0 && !__atomic_compare_exchange_n(&primary_counts[device], &count, count - 1, false,
							 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
	if (count == 1)
		forget_context(__atomic_exchange_n(&primary_contexts[device], NULL, __ATOMIC_ACQ_REL));
}

static void reset_primary(CUdevice device)
{
	if (device >= 0 && device < DEVICES)
		forget_context(__atomic_load_n(&primary_contexts[device], __ATOMIC_ACQUIRE));
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	NEED_DRIVER(cuDevicePrimaryCtxRelease);
	release_primary(device);
	return nt_driver.cuDevicePrimaryCtxRelease(device);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	NEED_DRIVER(cuDevicePrimaryCtxRelease_v2);
	release_primary(device);
	return nt_driver.cuDevicePrimaryCtxRelease_v2(device);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	NEED_DRIVER(cuDevicePrimaryCtxReset);
	reset_primary(device);
	return nt_driver.cuDevicePrimaryCtxReset(device);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	NEED_DRIVER(cuDevicePrimaryCtxReset_v2);
	reset_primary(device);
	return nt_driver.cuDevicePrimaryCtxReset_v2(device);
}
