#include "launch.h"

#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pool.h"
#include "regions.h"
#include "trace.h"

/* A dynamic map gets room beyond what was wanted so far while the launch takes no more of the pool than this part. */
#define NT_SPARE_PART 16

static int ended;

void nt_launch_end(void)
{
	__atomic_store_n(&ended, 1, __ATOMIC_RELEASE);
}

void nt_launch_unknown(void)
{
	static int logged;

	nt_trace_count(0, NEUTRINO_REASON_LAUNCH_FORM);
	if (__atomic_load_n(&logged, __ATOMIC_RELAXED) || !nt_trace_path()[0] ||
	    __atomic_exchange_n(&logged, 1, __ATOMIC_ACQ_REL))
		return;
	struct nt_event event;
	nt_event_begin(&event, "kernel");
	nt_event_number(&event, "id", 0);
	nt_event_number(&event, "image", 0);
	nt_event_string(&event, "name", "(functions that the hook never saw obtained)");
	nt_event_string(&event, "reason", "launch-form");
	nt_event_string(&event, "detail", "");
	nt_event_end(&event);
}

static CUresult run_original(const struct nt_function *function, const struct nt_launch *launch, unsigned reason)
{
	nt_trace_count(function->kernel->id, reason);
	return launch->submit(launch, function->handle.handle, launch->parameters, launch->extra);
}

/* PROBED when the launch may be a twin's: nothing captures, and the context is well. */
static unsigned verdict_on_stream(const struct nt_launch *launch)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = launch->per_thread && nt_driver.cuStreamIsCapturing_ptsz
				  ? nt_driver.cuStreamIsCapturing_ptsz(launch->stream, &status)
				  : nt_driver.cuStreamIsCapturing(launch->stream, &status);

	/* The legacy stream cannot be asked while another captures. */
	if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || (!result && status != CU_STREAM_CAPTURE_STATUS_NONE))
		return NEUTRINO_REASON_GRAPH;
	return result ? NEUTRINO_REASON_REFUSED : NEUTRINO_REASON_PROBED;
}

static const struct nt_addresses *addresses_in(struct nt_function *function, CUcontext context)
{
	for (int i = 0; i < NT_FUNCTION_CONTEXTS; i++) {
		const struct nt_addresses *addresses = __atomic_load_n(&function->addresses[i], __ATOMIC_ACQUIRE);
		if (!addresses)
			return NULL;
		if (__atomic_load_n(&addresses->context, __ATOMIC_ACQUIRE) == context)
			return addresses;
	}
	return NULL;
}

/* The context that the launch runs in: the function's own, or that of the stream, or the current one. */
static CUcontext context_of(const struct nt_function *function, const struct nt_launch *launch)
{
	CUcontext context = NULL;

	if (!function->is_kernel)
		return function->context;
	if ((uintptr_t)launch->stream > (uintptr_t)CU_STREAM_PER_THREAD && nt_driver.cuStreamGetCtx &&
	    nt_driver.cuStreamGetCtx(launch->stream, &context) == CUDA_SUCCESS)
		return context;
	nt_driver.cuCtxGetCurrent(&context);
	return context;
}

/*
 * The first launch in a context that nobody announced: get it ready beside the program, once. Making a pool here could
 * wait for work that waits for the program.
 */
static struct aside {
	CUcontext context;
	int busy;
} asides[64];

static void *prepare(void *argument)
{
	struct aside *aside = argument;
	CUcontext context = __atomic_load_n(&aside->context, __ATOMIC_ACQUIRE), popped;

	if (nt_driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
		nt_registry_prepare_context(context);
		nt_driver.cuCtxPopCurrent_v2(&popped);
	}
	__atomic_store_n(&aside->busy, 0, __ATOMIC_RELEASE);
	return NULL;
}

static void prepare_aside(CUcontext context)
{
	struct aside *aside = NULL;
	sigset_t all, before;
	pthread_attr_t attributes;
	pthread_t thread;

	if (!context)
		return;
	for (int i = 0; i < 64 && !aside; i++) {
		CUcontext none = NULL;
		if (__atomic_compare_exchange_n(&asides[i].context, &none, context, false, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			aside = &asides[i];
		else if (none == context)
			return;
	}
	if (!aside)
		return;
	__atomic_store_n(&aside->busy, 1, __ATOMIC_RELEASE);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attributes, prepare, aside) != 0) {
		__atomic_store_n(&aside->busy, 0, __ATOMIC_RELEASE);
		nt_trace_note("context %p could not be prepared: its kernels run unprobed", context);
	}
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void nt_launch_forget_context(CUcontext context, unsigned milliseconds)
{
	uint64_t until = nt_now_ns() + (uint64_t)milliseconds * 1000000;

	for (int i = 0; i < 64; i++) {
		if (__atomic_load_n(&asides[i].context, __ATOMIC_ACQUIRE) != context)
			continue;
		while (__atomic_load_n(&asides[i].busy, __ATOMIC_ACQUIRE) && nt_now_ns() < until)
			nt_sleep_us(200);
		__atomic_store_n(&asides[i].context, NULL, __ATOMIC_RELEASE);
	}
}

/*
 * Verdicts on occupancy, one word each: threads in bits 0-15, dynamic shared memory in 16-47, verdict in 48-51. Rows
 * are only added; when all are taken, the verdict is asked for at each launch.
 */
enum shape_verdict {
	SHAPE_TWIN = 1,
	SHAPE_CAPPED,
	SHAPE_ORIGINAL,
};

static enum shape_verdict judge_shape(const struct nt_function *function, int threads, unsigned shared)
{
	int original = 0, twin = 0, capped = 0;

	if (nt_driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&original, function->handle.handle, threads, shared) !=
	    CUDA_SUCCESS)
		return SHAPE_ORIGINAL;
	if (nt_driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&twin, function->twin, threads, shared) ==
		    CUDA_SUCCESS &&
	    twin >= original)
		return SHAPE_TWIN;
	if (function->capped &&
	    nt_driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&capped, function->capped, threads, shared) ==
		    CUDA_SUCCESS &&
	    capped >= original)
		return SHAPE_CAPPED;
	return SHAPE_ORIGINAL;
}

static enum shape_verdict shape_of(struct nt_function *function, uint64_t threads, unsigned shared)
{
	uint64_t shape = (threads & 0xffff) | (uint64_t)shared << 16;

	for (int i = 0; i < NT_FUNCTION_SHAPES; i++) {
		uint64_t row = __atomic_load_n(&function->shapes[i], __ATOMIC_ACQUIRE);
		if (row && (row & ((UINT64_C(1) << 48) - 1)) == shape)
			return (enum shape_verdict)(row >> 48);
		if (row)
			continue;
		enum shape_verdict verdict = judge_shape(function, (int)threads, shared);
		uint64_t none = 0;
		__atomic_compare_exchange_n(&function->shapes[i], &none, shape | (uint64_t)verdict << 48, false,
					    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
		return verdict;
	}
	return judge_shape(function, (int)threads, shared);
}

void nt_launch_forget_shapes(struct nt_function *function)
{
	for (int i = 0; i < NT_FUNCTION_SHAPES; i++)
		__atomic_store_n(&function->shapes[i], 0, __ATOMIC_RELEASE);
}

static uint32_t thread_id(void)
{
	static __thread __attribute__((tls_model("initial-exec"))) uint32_t id;

	if (!id)
		id = (uint32_t)syscall(SYS_gettid);
	return id;
}

/* The default stream's own name, so that its segments can be told from other threads'. */
static CUstream explicit_stream(const struct nt_launch *launch)
{
	if (launch->stream)
		return launch->stream;
	return launch->per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

static void fill_block(uint8_t *block, const struct nt_kernel *kernel, const struct nt_extent *extent,
		       CUdeviceptr base, const struct nt_addresses *addresses)
{
	uint8_t *variables = nt_regions_describe(kernel->maps, kernel->map_count, extent, base, block);

	memcpy(variables, addresses->values, kernel->variable_count * sizeof(addresses->values[0]));
}

/*
 * Records a slot for the kernel's dynamic maps, and the bytes of the regions then. All that earlier launches wanted, or
 * more where that is a small part of the pool; as much as the pool can ever hold where it cannot hold that.
 */
static uint64_t choose_cap(const struct nt_kernel *kernel, const struct nt_pool *pool, struct nt_extent *extent)
{
	uint32_t wanted = __atomic_load_n(&kernel->wanted, __ATOMIC_RELAXED);
	uint64_t most = nt_pool_most(pool);

	if (wanted > NEUTRINO_DYNAMIC_MOST)
		wanted = NEUTRINO_DYNAMIC_MOST;
	wanted = (wanted + NEUTRINO_DYNAMIC_STEP - 1) / NEUTRINO_DYNAMIC_STEP * NEUTRINO_DYNAMIC_STEP;
	extent->dynamic_cap = wanted > NEUTRINO_DYNAMIC_FIRST ? wanted : NEUTRINO_DYNAMIC_FIRST;
	uint64_t size = nt_regions_size(kernel->maps, kernel->map_count, extent);
	if (wanted && wanted < extent->dynamic_cap && size > most / NT_SPARE_PART) {
		extent->dynamic_cap = wanted;
		size = nt_regions_size(kernel->maps, kernel->map_count, extent);
	}
	if (size <= most)
		return size;
	/* Bytes grow with the cap: the largest that fits. */
	uint32_t fits = 1, over = extent->dynamic_cap;
	while (fits + 1 < over) {
		extent->dynamic_cap = fits + (over - fits) / 2;
		if (nt_regions_size(kernel->maps, kernel->map_count, extent) <= most)
			fits = extent->dynamic_cap;
		else
			over = extent->dynamic_cap;
	}
	extent->dynamic_cap = fits;
	return nt_regions_size(kernel->maps, kernel->map_count, extent);
}

/* Room for the launch's maps; with fewer records a slot where the pool has no more at the moment. */
static enum nt_room_result take_room(struct nt_pool *pool, const struct nt_kernel *kernel, CUstream stream,
				     struct nt_extent *extent, uint64_t *size, struct nt_room *ret)
{
	*size = kernel->has_dynamic_cap ? choose_cap(kernel, pool, extent)
					: nt_regions_size(kernel->maps, kernel->map_count, extent);
	for (;;) {
		enum nt_room_result result = nt_pool_take(pool, stream, *size, ret);
		if (result != NT_ROOM_FULL || extent->dynamic_cap <= 1)
			return result;
		extent->dynamic_cap /= 2;
		*size = nt_regions_size(kernel->maps, kernel->map_count, extent);
	}
}

/* Bytes up to the end of the program's last parameter. */
static size_t parameters_size(const struct nt_kernel *kernel)
{
	size_t size = 0;

	for (uint32_t i = 0; i < kernel->parameter_count; i++)
		if (kernel->parameters[i].offset + kernel->parameters[i].size > size)
			size = kernel->parameters[i].offset + kernel->parameters[i].size;
	return size;
}

/* Submit with the probe block behind the program's parameters, in the form that the program used. */
static CUresult submit_twin(const struct nt_launch *launch, const struct nt_kernel *kernel, CUfunction twin, void *block)
{
	if (launch->extra) {
		const void *buffer = NULL;
		size_t size = 0, twin_size = kernel->block_offset + kernel->block_size;
		for (void **key = launch->extra; *key != CU_LAUNCH_PARAM_END; key += 2) {
			if (*key == CU_LAUNCH_PARAM_BUFFER_POINTER)
				buffer = key[1];
			else if (*key == CU_LAUNCH_PARAM_BUFFER_SIZE)
				size = *(size_t *)key[1];
		}
		/* What the driver may refuse of the original is for it to judge. */
		if (launch->parameters || (!buffer && size) || size != parameters_size(kernel))
			return CUDA_ERROR_INVALID_VALUE;
		uint8_t *packed = alloca(twin_size);
		memset(packed, 0, twin_size);
		memcpy(packed, buffer, size < kernel->block_offset ? size : kernel->block_offset);
		memcpy(packed + kernel->block_offset, block, kernel->block_size);
		void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &twin_size,
				 CU_LAUNCH_PARAM_END};
		return launch->submit(launch, twin, NULL, extra);
	}
	if (kernel->parameter_count && !launch->parameters)
		return CUDA_ERROR_INVALID_VALUE;
	void **parameters = alloca((kernel->parameter_count + 1) * sizeof(*parameters));
	if (kernel->parameter_count)
		memcpy(parameters, launch->parameters, kernel->parameter_count * sizeof(*parameters));
	parameters[kernel->parameter_count] = block;
	return launch->submit(launch, twin, parameters, NULL);
}

/* Errors that can be the twin's fault: then the original has its own try. Any other belongs to the program. */
static bool is_twins_fault(CUresult result)
{
	return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES ||
	       result == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

CUresult nt_launch(struct nt_function *function, const struct nt_launch *launch)
{
	struct nt_kernel *kernel = function->kernel;

	if (__atomic_load_n(&ended, __ATOMIC_ACQUIRE))
		return run_original(function, launch, NEUTRINO_REASON_ENDING);
	if (function->reason != NEUTRINO_REASON_PROBED)
		return run_original(function, launch, function->reason);
	unsigned stream_verdict = verdict_on_stream(launch);
	if (stream_verdict != NEUTRINO_REASON_PROBED)
		return run_original(function, launch, stream_verdict);

	struct nt_extent extent;
	switch (nt_extent_of(launch->grid, launch->block, kernel->lanes, &extent)) {
	case NT_EXTENT:
		break;
	case NT_EXTENT_INVALID: /* the driver will refuse it: there is nothing to probe */
		return run_original(function, launch, NEUTRINO_REASON_REFUSED);
	case NT_EXTENT_TOO_LARGE:
		return run_original(function, launch, NEUTRINO_REASON_MAP_SIZE);
	}

	CUcontext context = context_of(function, launch);
	struct nt_pool *pool = nt_pool_find(context);
	const struct nt_addresses *addresses = addresses_in(function, context);
	if (!pool || !addresses) {
		prepare_aside(context);
		return run_original(function, launch, NEUTRINO_REASON_CONTEXT);
	}
	enum shape_verdict verdict = shape_of(function, extent.threads, launch->shared);
	if (verdict == SHAPE_ORIGINAL)
		return run_original(function, launch, NEUTRINO_REASON_OCCUPANCY);

	uint64_t size;
	struct nt_room room;
	switch (take_room(pool, kernel, explicit_stream(launch), &extent, &size, &room)) {
	case NT_ROOM:
		break;
	case NT_ROOM_TOO_LARGE:
		return run_original(function, launch, NEUTRINO_REASON_MAP_SIZE);
	case NT_ROOM_FULL:
	case NT_ROOM_NO_POOL:
		return run_original(function, launch, NEUTRINO_REASON_POOL_FULL);
	}
	uint64_t index;
	struct neutrino_launch *record = nt_trace_launch(&index);
	if (!record) {
		nt_pool_submitted(&room, kernel, 0, size, false);
		return run_original(function, launch, NEUTRINO_REASON_TABLE_FULL);
	}
	record->kernel = kernel->id;
	record->context = (uint64_t)(uintptr_t)context;
	record->stream = (uint64_t)(uintptr_t)launch->stream;
	record->submit_ns = nt_now_ns();
	memcpy(record->grid, launch->grid, sizeof(record->grid));
	memcpy(record->block, launch->block, sizeof(record->block));
	record->shared = launch->shared;
	record->device = (uint32_t)nt_pool_device(pool);
	record->thread = thread_id();
	record->variant = verdict == SHAPE_CAPPED;
	record->dynamic_cap = extent.dynamic_cap;
	__atomic_store_n(&record->state, NEUTRINO_LAUNCH_SUBMITTED, __ATOMIC_RELEASE);

	uint8_t *block = alloca(kernel->block_size);
	fill_block(block, kernel, &extent, room.address, addresses);
	CUresult result =
		submit_twin(launch, kernel, verdict == SHAPE_CAPPED ? function->capped : function->twin, block);
	if (result == CUDA_SUCCESS) {
		nt_pool_submitted(&room, kernel, index, size, true);
		nt_trace_count(kernel->id, NEUTRINO_REASON_PROBED);
		return result;
	}
	__atomic_store_n(&record->state, NEUTRINO_LAUNCH_FALLBACK, __ATOMIC_RELEASE);
	nt_pool_submitted(&room, kernel, index, size, false);
	if (!is_twins_fault(result)) {
		nt_trace_count(kernel->id, NEUTRINO_REASON_REFUSED);
		return result;
	}
	return run_original(function, launch, NEUTRINO_REASON_REFUSED);
}
