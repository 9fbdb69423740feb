/*
 * A stand-in for libcuda.so.1 that runs nothing but a handful of kernels it knows by name, on a thread per stream, so
 * that the hook can be tested, under sanitizers too, where there is no GPU. Device memory is host memory.
 *
 * Kernel names: count_pN...  adds 1 to the u64 that the first of N parameters points at
 *               spin_pN...   waits until the u32 that the first parameter points at is not 0
 *               fault_pN...  from then on every call that touches the device fails with 700
 * An image "loads" when it begins with ".version", with "FAKETWIN" or as an ELF file; any name can be obtained from it. A name that
 * ends in __neutrino is a twin: it has the probe block as parameter N, does the original's work and stores one
 * {u64 launch number, u32 warp, u32 7} a warp into map 0.
 *
 * FAKE_OCCUPANCY=1 makes twins fit fewer blocks; FAKE_REFUSE=1 makes their launches fail with an invalid value;
 * FAKE_NO_MEMORY=1 lets no device memory be had; FAKE_SLOW=1 makes cuMemAlloc take its time. A context that is used
 * once it has been destroyed ends the process, as the real driver may.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_abi.h"
#include "neutrino_layout.h"

#define API __attribute__((visibility("default")))

struct function {
	char name[128];
	int parameters;
	int is_twin;
	struct module *module;
};

struct module {
	struct function functions[32];
	int count;
	char variable[64];
	struct module *of_library; /* the module that cuLibraryGetModule gives out */
};

struct work {
	struct function *function; /* NULL: something else below */
	uint32_t warps;
	uint64_t *counter;
	volatile uint32_t *flag;
	uint64_t base;
	uint64_t serial;
	void *to; /* copy */
	const void *from;
	size_t size;
	int fill; /* memset to with 0 */
	struct event *event;
	struct work *next;
};

struct stream {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	struct work *first, *last;
	int busy, capturing, stop;
	struct stream *next_free;
	pthread_t thread;
};

struct event {
	int pending;
};

struct context {
	int alive;
};

static struct context primary = {1}, second;
static int dead; /* a kernel has faulted */
API int fake_kernels_asked; /* calls of cuKernelGetFunction */

#define ALIVE()                                                                                                        \
	do {                                                                                                           \
		if (__atomic_load_n(&dead, __ATOMIC_ACQUIRE))                                                          \
			return 700;                                                                                    \
	} while (0)

static int given(const char *variable)
{
	return getenv(variable) != NULL;
}

static __thread struct context *current;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams[4096];
static int stream_count;
static struct stream *default_stream;
static uint64_t serials;

static void run(struct work *work)
{
	if (work->function && strncmp(work->function->name, "fault", 5) == 0) {
		__atomic_store_n(&dead, 1, __ATOMIC_RELEASE);
	} else if (work->function) {
		if (work->flag) {
			struct timespec pause = {.tv_nsec = 100000};
			while (!__atomic_load_n(work->flag, __ATOMIC_ACQUIRE))
				nanosleep(&pause, NULL);
		} else {
			__atomic_fetch_add(work->counter, 1, __ATOMIC_RELAXED);
		}
		if (work->function->is_twin) {
			for (uint32_t warp = 0; warp < work->warps; warp++) {
				uint64_t *record = (uint64_t *)(uintptr_t)(work->base + warp * 16ul);
				record[0] += work->serial; /* adding shows what was not zeroed */
				record[1] = (uint64_t)7 << 32 | warp;
			}
		}
	} else if (work->fill) {
		memset(work->to, 0, work->size);
	} else if (work->to) {
		memcpy(work->to, work->from, work->size);
	}
	if (work->event)
		__atomic_sub_fetch(&work->event->pending, 1, __ATOMIC_RELEASE);
}

static void *serve(void *argument)
{
	struct stream *stream = argument;

	pthread_mutex_lock(&stream->mutex);
	for (;;) {
		while (!stream->first && !stream->stop)
			pthread_cond_wait(&stream->changed, &stream->mutex);
		struct work *work = stream->first;
		if (!work)
			break;
		stream->first = work->next;
		stream->busy = 1;
		pthread_mutex_unlock(&stream->mutex);
		run(work);
		free(work);
		pthread_mutex_lock(&stream->mutex);
		stream->busy = 0;
		pthread_cond_broadcast(&stream->changed);
	}
	pthread_mutex_unlock(&stream->mutex);
	return NULL;
}

static struct stream *free_streams;

static struct stream *make_stream(void)
{
	pthread_mutex_lock(&lock);
	struct stream *stream = free_streams;
	if (stream)
		free_streams = stream->next_free;
	pthread_mutex_unlock(&lock);
	if (stream)
		return stream;
	stream = calloc(1, sizeof(*stream));
	pthread_mutex_init(&stream->mutex, NULL);
	pthread_cond_init(&stream->changed, NULL);
	pthread_create(&stream->thread, NULL, serve, stream);
	pthread_mutex_lock(&lock);
	streams[stream_count] = stream;
	__atomic_store_n(&stream_count, stream_count + 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return stream;
}

static struct stream *resolve(CUstream handle)
{
	static __thread struct stream *own;

	if ((uintptr_t)handle == 2 && !own)
		own = make_stream();
	return (uintptr_t)handle > 2 ? handle : (uintptr_t)handle == 2 ? own : default_stream;
}

static CUstream per_thread(CUstream handle)
{
	return handle ? handle : (CUstream)2;
}

static void use(struct context *context)
{
	if (context && !__atomic_load_n(&context->alive, __ATOMIC_ACQUIRE)) {
		fprintf(stderr, "a destroyed context was used\n");
		abort();
	}
}

static void submit(CUstream handle, struct work work)
{
	struct stream *stream = resolve(handle);
	struct work *copy = malloc(sizeof(*copy));

	*copy = work;
	copy->next = NULL;
	pthread_mutex_lock(&stream->mutex);
	if (stream->first)
		stream->last->next = copy;
	else
		stream->first = copy;
	stream->last = copy;
	pthread_cond_broadcast(&stream->changed);
	pthread_mutex_unlock(&stream->mutex);
}

static void wait_for(struct stream *stream)
{
	pthread_mutex_lock(&stream->mutex);
	while (stream->first || stream->busy)
		pthread_cond_wait(&stream->changed, &stream->mutex);
	pthread_mutex_unlock(&stream->mutex);
}

API CUresult cuInit(unsigned int flags)
{
	(void)flags;
	if (!default_stream)
		default_stream = make_stream();
	return 0;
}
API CUresult cuDriverGetVersion(int *version) { *version = 13000; return 0; }
API CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return ordinal ? 101 : 0; }
API CUresult cuDeviceGetCount(int *count) { *count = 1; return 0; }
API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	(void)device;
	*value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
	return 0;
}
API CUresult cuDeviceGetName(char *name, int size, CUdevice device) { (void)device; snprintf(name, (size_t)size, "Fake GPU"); return 0; }
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { (void)device; *bytes = (size_t)4 << 30; return 0; }
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { (void)device; primary.alive = 1; *context = &primary; return 0; }
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { (void)device; return 0; }
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { (void)device; return 0; }
API CUresult cuCtxGetCurrent(CUcontext *context) { *context = current; return 0; }
API CUresult cuCtxSetCurrent(CUcontext context) { current = context; return 0; }
API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	(void)flags; (void)device;
	__atomic_store_n(&second.alive, 1, __ATOMIC_RELEASE);
	*context = current = &second;
	return 0;
}
API CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return current ? 0 : 201; }
API CUresult cuCtxPushCurrent_v2(CUcontext context) { use(context); current = context; return 0; }
API CUresult cuCtxPopCurrent_v2(CUcontext *context) { *context = current; current = NULL; return 0; }
API CUresult cuCtxDestroy_v2(CUcontext context) { __atomic_store_n(&((struct context *)context)->alive, 0, __ATOMIC_RELEASE); return 0; }
API CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }
API CUresult cuCtxSynchronize(void)
{
	for (int i = 0; i < __atomic_load_n(&stream_count, __ATOMIC_ACQUIRE); i++)
		wait_for(streams[i]);
	ALIVE();
	return 0;
}
API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
	struct timespec pause = {.tv_nsec = 300000000};
	void *memory = given("FAKE_NO_MEMORY") ? NULL : malloc(size);
	if (given("FAKE_SLOW"))
		nanosleep(&pause, NULL);
	use(current);
	if (memory)
		memset(memory, 0xa5, size);
	*pointer = (uintptr_t)memory;
	return memory ? 0 : 2;
}
API CUresult cuMemFree_v2(CUdeviceptr pointer) { free((void *)(uintptr_t)pointer); return 0; }
API CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned int flags) { (void)flags; *pointer = malloc(size); return 0; }
API CUresult cuMemFreeHost(void *pointer) { free(pointer); return 0; }
API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream)
{
	(void)value;
	ALIVE();
	submit(stream, (struct work){.fill = 1, .to = (void *)(uintptr_t)to, .size = size});
	return 0;
}
API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
	ALIVE();
	submit(stream, (struct work){.to = to, .from = (void *)(uintptr_t)from, .size = size});
	return 0;
}
API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) { (void)flags; *stream = make_stream(); return 0; }
/* The work that is left runs on; the next stream gets this one's address. */
API CUresult cuStreamDestroy_v2(CUstream handle)
{
	struct stream *stream = handle;
	pthread_mutex_lock(&lock);
	stream->next_free = free_streams;
	free_streams = stream;
	pthread_mutex_unlock(&lock);
	return 0;
}
API CUresult cuStreamSynchronize(CUstream stream) { wait_for(resolve(stream)); ALIVE(); return 0; }
API CUresult cuStreamSynchronize_ptsz(CUstream stream) { return cuStreamSynchronize(per_thread(stream)); }
API CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) { *status = resolve(per_thread(stream))->capturing; return 0; }
API CUresult cuStreamIsCapturing(CUstream stream, int *status) { *status = resolve(stream)->capturing; return 0; }
API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) { (void)mode; ((struct stream *)stream)->capturing = 1; return 0; }
API CUresult cuStreamEndCapture(CUstream stream, void **graph) { *graph = NULL; ((struct stream *)stream)->capturing = 0; return 0; }
API CUresult cuThreadExchangeStreamCaptureMode(int *mode) { *mode = 0; return 0; }
API CUresult cuEventCreate(CUevent *event, unsigned int flags) { (void)flags; *event = calloc(1, sizeof(struct event)); return 0; }
API CUresult cuEventDestroy_v2(CUevent event) { free(event); return 0; }
API CUresult cuEventRecord(CUevent event, CUstream stream)
{
	ALIVE();
	__atomic_add_fetch(&((struct event *)event)->pending, 1, __ATOMIC_ACQ_REL);
	submit(stream, (struct work){.event = event});
	return 0;
}
API CUresult cuEventQuery(CUevent event)
{
	ALIVE();
	return __atomic_load_n(&((struct event *)event)->pending, __ATOMIC_ACQUIRE) ? CUDA_ERROR_NOT_READY : 0;
}

static CUresult load(void **ret, const void *image)
{
	if (strncmp(image, ".version", 8) != 0 && strncmp(image, "FAKETWIN", 8) != 0 && memcmp(image, "\177ELF", 4) != 0)
		return 200;
	*ret = calloc(1, sizeof(struct module));
	return 0;
}

static CUresult obtain(void **ret, struct module *module, const char *name)
{
	const char *parameters = strstr(name, "_p");

	for (int i = 0; i < module->count; i++)
		if (strcmp(module->functions[i].name, name) == 0) {
			*ret = &module->functions[i];
			return 0;
		}
	if (!parameters || module->count == 32)
		return 500;
	struct function *function = &module->functions[module->count++];
	snprintf(function->name, sizeof(function->name), "%s", name);
	function->parameters = atoi(parameters + 2);
	function->is_twin = strstr(name, "__neutrino") != NULL;
	function->module = module;
	*ret = function;
	return 0;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image) { return load(module, image); }
API CUresult cuModuleUnload(CUmodule module) { memset(module, 0, sizeof(struct module)); free(module); return 0; }
API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) { return obtain(function, module, name); }
API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
	(void)name;
	*address = (uintptr_t)((struct module *)module)->variable;
	*size = 64;
	return 0;
}
API CUresult cuLibraryLoadData(CUlibrary *library, const void *image, int *a, void **b, unsigned int c, int *d, void **e, unsigned int f)
{
	(void)a; (void)b; (void)c; (void)d; (void)e; (void)f;
	return load(library, image);
}
API CUresult cuLibraryUnload(CUlibrary library) { free(((struct module *)library)->of_library); return cuModuleUnload(library); }
API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary handle)
{
	struct module *library = handle;
	if (!library->of_library)
		library->of_library = calloc(1, sizeof(struct module));
	*module = library->of_library;
	return 0;
}
API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) { return obtain(kernel, library, name); }
API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
	return cuModuleGetGlobal_v2(address, size, library, name);
}
API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	__atomic_add_fetch(&fake_kernels_asked, 1, __ATOMIC_RELAXED);
	*function = kernel;
	return 0;
}
API CUresult cuKernelGetName(const char **name, CUkernel kernel) { *name = ((struct function *)kernel)->name; return 0; }
API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) { (void)function; (void)attribute; (void)value; return 0; }
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared)
{
	(void)threads; (void)shared;
	*blocks = ((struct function *)function)->is_twin && getenv("FAKE_OCCUPANCY") ? 1 : 2;
	return 0;
}

API CUresult cuLaunchKernel(CUfunction handle, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
			    unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters,
			    void **extra)
{
	struct function *function = handle;
	struct work work = {.function = function};
	const unsigned char *packed = extra ? extra[1] : NULL;

	(void)shared;
	ALIVE();
	if (!gx || !gy || !gz || !bx || !by || !bz)
		return 1;
	if (function->is_twin && getenv("FAKE_REFUSE"))
		return 1;
	if (resolve(stream)->capturing)
		return 0;
	void *first;
	memcpy(&first, packed ? (const void *)packed : parameters[0], sizeof(first));
	if (strncmp(function->name, "spin", 4) == 0)
		work.flag = first;
	else
		work.counter = first;
	if (function->is_twin) {
		uint32_t warps = gx * gy * gz * ((bx * by * bz + 31) / 32);
		unsigned char block[NEUTRINO_BLOCK_HEADER + NEUTRINO_BLOCK_PER_MAP];
		memcpy(block, packed ? packed + 8 * function->parameters : parameters[function->parameters], sizeof(block));
		memcpy(&work.warps, block + 4, 4);
		memcpy(&work.base, block + NEUTRINO_BLOCK_HEADER, 8);
		if (work.warps != warps)
			return 999;
	}
	work.serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
	submit(stream, work);
	return 0;
}

API CUresult cuLaunchKernel_ptsz(CUfunction handle, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
				 unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,
				 void **parameters, void **extra)
{
	return cuLaunchKernel(handle, gx, gy, gz, bx, by, bz, shared, per_thread(stream), parameters, extra);
}

API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
	(void)version; (void)flags; (void)status;
	*function = strcmp(symbol, "cuLaunchKernel") == 0 ? (void *)cuLaunchKernel : NULL;
	return *function ? 0 : 500;
}
