#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernel.h"
#include "regions.h"
#include "trace.h"

#define CONTEXTS 64u
#define STREAMS 4096u
#define SLOTS 512u
#define UNIT ((uint64_t)NEUTRINO_REGION_ALIGN)
#define SEGMENT_SIZE (UINT64_C(256) << 10)
#define SMALL_MOST 4096u
#define CHUNKS 64u
#define STAGING_SIZE (UINT64_C(8) << 20)
#define POOL_LEAST (UINT64_C(4) << 20)
#define POOL_DEFAULT_MOST (UINT64_C(1) << 30)

/* Flags beside the count of holders in nt_segment.hold. */
#define HOLD_FULL 0x80000000u /* no more launches come */
#define HOLD_DONE 0x40000000u /* full, and every launch has been submitted: the drain thread's now */
#define HOLD_FINISHING 0x20000000u
#define HOLD_COUNT 0x1fffffffu

/* nt_stream.state: segment + 1, a generation against ABA, launches in the segment, units used. */
#define STATE_UNITS_BITS 20
#define STATE_COUNT_SHIFT 20
#define STATE_GENERATION_SHIFT 32
#define STATE_SEGMENT_SHIFT 48

struct nt_slot {
	struct nt_kernel *kernel; /* NULL: refused by the driver, nothing to copy */
	uint64_t launch;
	uint64_t size;
	uint64_t sequence; /* of the submission; 0 until then */
	uint32_t offset;   /* units from the segment's start */
};

struct nt_stream {
	uint64_t key; /* 0: none */
	uint64_t state;
	uint64_t watermark;
	uint32_t lives; /* streams of the program that were destroyed under this key */
};

struct nt_segment {
	CUdeviceptr address;
	CUevent event;
	struct nt_slot *slots;
	struct nt_stream *stream;
	uint64_t chunks; /* bits of nt_pool.chunks_busy, 0 for a small segment */
	uint32_t hold;
	uint32_t life;	  /* of the stream, when it took the segment */
	uint32_t count;	  /* launches, valid once full */
	uint32_t drained; /* the drain thread's own: launches copied back */
	bool recorded;	  /* the event stands behind the last launch */
};

enum pool_state {
	POOL_NONE,
	POOL_PREPARING,
	POOL_READY,
	POOL_FAILED,
	POOL_CLOSING,
	POOL_CLOSED,
};

struct nt_pool {
	CUcontext context;
	CUdevice device;
	int state;
	CUdeviceptr base;
	CUstream stream; /* ours, non-blocking */
	uint8_t *staging;
	uint64_t small_count;
	uint64_t chunk_size;
	uint64_t small_free[SMALL_MOST / 64];
	uint64_t chunks_busy;
	uint64_t watermark; /* a synchronisation of the whole context */
	uint32_t small_hint;
	bool ending; /* the process ends: keep what the driver will free */
	struct nt_segment *segments; /* small ones, then one for each chunk */
	struct nt_slot *slots;
	struct nt_stream *streams;
};

static struct nt_pool pools[CONTEXTS];
static uint64_t sequence; /* submissions so far, in this process */
static uint8_t *frames;	  /* the drain thread's buffer of frames to write */
static uint64_t launches_lost;

#define FRAMES_SIZE (SEGMENT_SIZE + SLOTS * sizeof(struct neutrino_frame) + 8192)

/* Not the system's number of it, which a later thread may get while this one's launches still run. */
static uint32_t thread_number(void)
{
	static __thread __attribute__((tls_model("initial-exec"))) uint32_t number;
	static uint32_t last;

	if (!number)
		number = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
	return number;
}

/* --- taking room: the launch path --- */

/* A thread's default stream is another one in each thread; handles are pointers, so their low bits are free. */
static uint64_t stream_key(CUstream handle)
{
	if (handle == CU_STREAM_PER_THREAD)
		return (uint64_t)thread_number() << 3 | 2;
	return (uint64_t)(uintptr_t)handle;
}

static bool is_per_thread(const struct nt_stream *stream)
{
	return (stream->key & 7) == 2;
}

static CUstream stream_handle(const struct nt_stream *stream)
{
	return is_per_thread(stream) ? CU_STREAM_PER_THREAD : (CUstream)(uintptr_t)stream->key;
}

/* Streams are never removed from the table: a new stream at an old address takes its place over. */
static struct nt_stream *find_stream(struct nt_pool *pool, CUstream handle, bool add)
{
	uint64_t key = stream_key(handle);
	uint64_t start = key * UINT64_C(0x9e3779b97f4a7c15) >> 40;

	for (uint64_t i = 0; i < STREAMS; i++) {
		struct nt_stream *stream = &pool->streams[(start + i) % STREAMS];
		uint64_t found = __atomic_load_n(&stream->key, __ATOMIC_ACQUIRE);
		if (found == 0 && !add)
			return NULL;
		if (found == 0 && __atomic_compare_exchange_n(&stream->key, &found, key, false, __ATOMIC_ACQ_REL,
							      __ATOMIC_ACQUIRE))
			return stream;
		if (found == key)
			return stream;
	}
	return NULL;
}

/*
 * own: the stream that the caller's thread launches on, or is about to destroy. Only there can an event be recorded: the
 * program may destroy any other stream meanwhile. A segment without an event waits for a watermark.
 */
static void finish_segment(struct nt_segment *segment, const struct nt_stream *own)
{
	segment->recorded = segment->stream == own &&
			    nt_driver.cuEventRecord(segment->event, stream_handle(own)) == CUDA_SUCCESS;
	/* One step: the segment may be recycled as soon as it is done. */
	__atomic_fetch_xor(&segment->hold, HOLD_FINISHING | HOLD_DONE, __ATOMIC_RELEASE);
}

/* Of all that see the count at zero, one finishes. */
static void finish_if_last(struct nt_segment *segment, uint32_t hold, const struct nt_stream *own)
{
	while ((hold & HOLD_FULL) && !(hold & (HOLD_DONE | HOLD_FINISHING | HOLD_COUNT))) {
		if (!__atomic_compare_exchange_n(&segment->hold, &hold, hold | HOLD_FINISHING, false, __ATOMIC_ACQ_REL,
						 __ATOMIC_ACQUIRE))
			continue;
		finish_segment(segment, own);
		return;
	}
}

static void release_segment(struct nt_segment *segment, const struct nt_stream *own)
{
	finish_if_last(segment, __atomic_sub_fetch(&segment->hold, 1, __ATOMIC_ACQ_REL), own);
}

static void close_segment(struct nt_segment *segment, uint32_t count, const struct nt_stream *own)
{
	__atomic_store_n(&segment->count, count, __ATOMIC_RELEASE);
	finish_if_last(segment, __atomic_or_fetch(&segment->hold, HOLD_FULL, __ATOMIC_ACQ_REL), own);
}

/* A state without a segment, not equal to any state before it. */
static uint64_t without_segment(uint64_t state)
{
	return (((state >> STATE_GENERATION_SHIFT) + 1) & 0xffff) << STATE_GENERATION_SHIFT;
}

static struct nt_segment *take_small(struct nt_pool *pool)
{
	uint32_t words = (uint32_t)((pool->small_count + 63) / 64);
	uint32_t hint = __atomic_load_n(&pool->small_hint, __ATOMIC_RELAXED);

	for (uint32_t i = 0; i < words; i++) {
		uint64_t *word = &pool->small_free[(hint + i) % words];
		uint64_t bits = __atomic_load_n(word, __ATOMIC_ACQUIRE);
		while (bits) {
			int bit = __builtin_ctzll(bits);
			if (__atomic_compare_exchange_n(word, &bits, bits & ~(UINT64_C(1) << bit), false,
							__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
				__atomic_store_n(&pool->small_hint, (hint + i) % words, __ATOMIC_RELAXED);
				return &pool->segments[(hint + i) % words * 64 + (uint32_t)bit];
			}
		}
	}
	return NULL;
}

static void give_small(struct nt_pool *pool, struct nt_segment *segment)
{
	uint64_t index = (uint64_t)(segment - pool->segments);

	__atomic_fetch_or(&pool->small_free[index / 64], UINT64_C(1) << index % 64, __ATOMIC_RELEASE);
}

static enum nt_room_result take_large(struct nt_pool *pool, CUstream handle, uint64_t size, struct nt_room *ret)
{
	if (size > nt_pool_most(pool))
		return NT_ROOM_TOO_LARGE;
	uint64_t chunks = (size + pool->chunk_size - 1) / pool->chunk_size;
	struct nt_stream *stream = find_stream(pool, handle, true);
	if (!stream)
		return NT_ROOM_FULL;
	uint64_t run = chunks == 64 ? ~UINT64_C(0) : (UINT64_C(1) << chunks) - 1;
	uint64_t busy = __atomic_load_n(&pool->chunks_busy, __ATOMIC_ACQUIRE);
	for (unsigned first = 0; first + chunks <= CHUNKS;) {
		if (busy & run << first) {
			first++;
			continue;
		}
		if (!__atomic_compare_exchange_n(&pool->chunks_busy, &busy, busy | run << first, false,
						 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			first = 0;
			continue;
		}
		struct nt_segment *segment = &pool->segments[pool->small_count + first];
		segment->chunks = run << first;
		segment->stream = stream;
		segment->life = __atomic_load_n(&stream->lives, __ATOMIC_ACQUIRE);
		segment->count = 1;
		segment->slots[0] = (struct nt_slot){.size = size};
		__atomic_store_n(&segment->hold, HOLD_FULL | 1, __ATOMIC_RELEASE);
		*ret = (struct nt_room){segment, stream, 0, segment->address};
		return NT_ROOM;
	}
	return NT_ROOM_FULL;
}

enum nt_room_result nt_pool_take(struct nt_pool *pool, CUstream handle, uint64_t size, struct nt_room *ret)
{
	if (size > SEGMENT_SIZE)
		return take_large(pool, handle, size, ret);

	struct nt_stream *stream = find_stream(pool, handle, true);
	if (!stream)
		return NT_ROOM_FULL;
	uint64_t units = (size + UNIT - 1) / UNIT;
	uint64_t state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);
	for (;;) {
		uint32_t number = (uint32_t)(state >> STATE_SEGMENT_SHIFT);
		uint32_t count = (uint32_t)(state >> STATE_COUNT_SHIFT) & 0xfff;
		uint64_t used = state & ((1u << STATE_UNITS_BITS) - 1);
		struct nt_segment *current = number ? &pool->segments[number - 1] : NULL;
		if (current && count < SLOTS && used + units <= SEGMENT_SIZE / UNIT) {
			/* Held first: between the look and the exchange the segment may have gone to another stream. */
			__atomic_fetch_add(&current->hold, 1, __ATOMIC_ACQ_REL);
			if (__atomic_compare_exchange_n(&stream->state, &state,
							state + (UINT64_C(1) << STATE_COUNT_SHIFT) + units, false,
							__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
				current->slots[count].offset = (uint32_t)used;
				*ret = (struct nt_room){current, stream, count, current->address + used * UNIT};
				return NT_ROOM;
			}
			release_segment(current, stream);
			continue;
		}
		struct nt_segment *next = take_small(pool);
		if (!next) {
			/* Closed though none follows: only a closed segment ever comes back. */
			if (current && __atomic_compare_exchange_n(&stream->state, &state, without_segment(state), false,
								   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
				close_segment(current, count, stream);
			return NT_ROOM_FULL;
		}
		__atomic_store_n(&next->stream, stream, __ATOMIC_RELEASE);
		next->life = __atomic_load_n(&stream->lives, __ATOMIC_ACQUIRE);
		__atomic_fetch_add(&next->hold, 1, __ATOMIC_ACQ_REL);
		uint64_t generation = (state >> STATE_GENERATION_SHIFT) + 1;
		uint64_t replaced = (uint64_t)(next - pool->segments + 1) << STATE_SEGMENT_SHIFT |
				    (generation & 0xffff) << STATE_GENERATION_SHIFT |
				    UINT64_C(1) << STATE_COUNT_SHIFT | units;
		if (__atomic_compare_exchange_n(&stream->state, &state, replaced, false, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE)) {
			if (current)
				close_segment(current, count, stream);
			next->slots[0].offset = 0;
			*ret = (struct nt_room){next, stream, 0, next->address};
			return NT_ROOM;
		}
		release_segment(next, stream);
		give_small(pool, next);
	}
}

void nt_pool_submitted(const struct nt_room *room, struct nt_kernel *kernel, uint64_t launch, uint64_t size,
		       bool launched)
{
	struct nt_slot *slot = &room->segment->slots[room->slot];

	slot->kernel = launched ? kernel : NULL;
	slot->launch = launch;
	slot->size = size;
	__atomic_store_n(&slot->sequence, __atomic_add_fetch(&sequence, 1, __ATOMIC_ACQ_REL), __ATOMIC_RELEASE);
	release_segment(room->segment, room->stream);
}

/* --- pools --- */

struct nt_pool *nt_pool_find(CUcontext context)
{
	for (unsigned i = 0; i < CONTEXTS; i++) {
		CUcontext found = __atomic_load_n(&pools[i].context, __ATOMIC_ACQUIRE);
		if (found == context)
			return __atomic_load_n(&pools[i].state, __ATOMIC_ACQUIRE) == POOL_READY ? &pools[i] : NULL;
	}
	return NULL;
}

uint64_t nt_pool_most(const struct nt_pool *pool)
{
	return CHUNKS * pool->chunk_size;
}

CUdevice nt_pool_device(const struct nt_pool *pool)
{
	return pool->device;
}

static uint64_t wanted_size(CUdevice device)
{
	const char *given = getenv("NEUTRINO_POOL");
	size_t total = 0;
	char *end;

	if (nt_driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS)
		return POOL_LEAST;
	if (given && *given) {
		unsigned long long bytes = strtoull(given, &end, 10);
		/* Half is left to the program, whatever was asked for. */
		if (!*end && bytes >= POOL_LEAST)
			return bytes < total / 2 ? bytes : total / 2;
	}
	uint64_t size = total / 64;
	return size > POOL_DEFAULT_MOST ? POOL_DEFAULT_MOST : size < POOL_LEAST ? POOL_LEAST : size;
}

static void *map_zeroed(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return memory == MAP_FAILED ? NULL : memory;
}

/* has_context: it is current. Without it what the driver gave has gone with it. */
static void unmake_pool(struct nt_pool *pool, bool has_context)
{
	uint64_t segments = pool->small_count + CHUNKS;

	for (uint64_t i = 0; has_context && pool->segments && i < segments; i++)
		if (pool->segments[i].event)
			nt_driver.cuEventDestroy_v2(pool->segments[i].event);
	if (has_context && pool->stream)
		nt_driver.cuStreamDestroy_v2(pool->stream);
	if (has_context && pool->staging)
		nt_driver.cuMemFreeHost(pool->staging);
	if (has_context && pool->base)
		nt_driver.cuMemFree_v2(pool->base);
	if (pool->segments)
		munmap(pool->segments, segments * sizeof(struct nt_segment));
	if (pool->slots)
		munmap(pool->slots, (pool->small_count * SLOTS + CHUNKS) * sizeof(struct nt_slot));
	if (pool->streams)
		munmap(pool->streams, STREAMS * sizeof(struct nt_stream));
	pool->base = 0;
	pool->stream = NULL;
	pool->staging = NULL;
	pool->segments = NULL;
	pool->slots = NULL;
	pool->streams = NULL;
	memset(pool->small_free, 0, sizeof(pool->small_free));
	pool->chunks_busy = 0;
	pool->watermark = 0;
}

static bool make_pool(struct nt_pool *pool)
{
	if (nt_driver.cuCtxGetDevice(&pool->device) != CUDA_SUCCESS)
		return false;
	uint64_t size = wanted_size(pool->device);
	while (nt_driver.cuMemAlloc_v2(&pool->base, size) != CUDA_SUCCESS) {
		size /= 2;
		if (size < POOL_LEAST)
			return false;
	}
	pool->small_count = size / 2 / SEGMENT_SIZE;
	if (pool->small_count > SMALL_MOST)
		pool->small_count = SMALL_MOST;
	uint64_t small_size = pool->small_count * SEGMENT_SIZE;
	pool->chunk_size = (size - small_size) / CHUNKS / UNIT * UNIT;

	uint64_t segments = pool->small_count + CHUNKS;
	void *staging = NULL;
	pool->segments = map_zeroed(segments * sizeof(struct nt_segment));
	pool->slots = map_zeroed((pool->small_count * SLOTS + CHUNKS) * sizeof(struct nt_slot));
	pool->streams = map_zeroed(STREAMS * sizeof(struct nt_stream));
	if (!pool->segments || !pool->slots || !pool->streams ||
	    nt_driver.cuMemHostAlloc(&staging, STAGING_SIZE, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS)
		return false;
	pool->staging = staging;
	if (nt_driver.cuStreamCreate(&pool->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
	    nt_driver.cuMemsetD8Async(pool->base, 0, size, pool->stream) != CUDA_SUCCESS)
		return false;
	for (uint64_t i = 0; i < segments; i++) {
		struct nt_segment *segment = &pool->segments[i];
		bool is_small = i < pool->small_count;
		segment->address = is_small ? pool->base + i * SEGMENT_SIZE
					    : pool->base + small_size + (i - pool->small_count) * pool->chunk_size;
		segment->slots = is_small ? pool->slots + i * SLOTS
					  : pool->slots + pool->small_count * SLOTS + (i - pool->small_count);
		if (nt_driver.cuEventCreate(&segment->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
			return false;
	}
	if (nt_driver.cuStreamSynchronize(pool->stream) != CUDA_SUCCESS)
		return false;
	for (uint64_t i = 0; i < pool->small_count; i++)
		pool->small_free[i / 64] |= UINT64_C(1) << i % 64;
	return true;
}

static bool start_drain(void);

/* The pool of that context in any state, or NULL. */
static struct nt_pool *known_pool(CUcontext context)
{
	for (unsigned i = 0; i < CONTEXTS; i++)
		if (__atomic_load_n(&pools[i].context, __ATOMIC_ACQUIRE) == context)
			return &pools[i];
	return NULL;
}

bool nt_pool_known(CUcontext context)
{
	return known_pool(context) != NULL;
}

/* Claim a pool for the context, or find the one that has it. */
static struct nt_pool *claim_pool(CUcontext context, bool *claimed)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	struct nt_pool *pool;

	pthread_mutex_lock(&mutex);
	pool = known_pool(context);
	*claimed = false;
	for (unsigned i = 0; i < CONTEXTS && !pool; i++) {
		/* Closed without a context: nobody waited for its end. */
		int state = __atomic_load_n(&pools[i].state, __ATOMIC_ACQUIRE);
		if (state != POOL_NONE &&
		    (state != POOL_CLOSED || __atomic_load_n(&pools[i].context, __ATOMIC_ACQUIRE)))
			continue;
		pool = &pools[i];
		__atomic_store_n(&pool->state, POOL_PREPARING, __ATOMIC_RELEASE);
		__atomic_store_n(&pool->context, context, __ATOMIC_RELEASE);
		*claimed = true;
	}
	pthread_mutex_unlock(&mutex);
	return pool;
}

struct nt_pool *nt_pool_prepare(CUcontext context)
{
	bool claimed;

	if (!context)
		return NULL;
	struct nt_pool *pool = nt_pool_find(context);
	if (pool)
		return pool;
	pool = claim_pool(context, &claimed);
	if (!pool)
		return NULL;
	if (claimed) {
		int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
		nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
		bool made = start_drain() && make_pool(pool);
		if (!made)
			unmake_pool(pool, true);
		nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
		__atomic_store_n(&pool->state, made ? POOL_READY : POOL_FAILED, __ATOMIC_RELEASE);
		if (!made)
			nt_trace_note("no memory for maps, or no thread to drain them, in context %p: its kernels run unprobed", context);
	}
	/* Another thread is at it: it takes milliseconds. */
	for (int i = 0; i < 1000 && __atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) == POOL_PREPARING; i++)
		nt_sleep_us(100);
	return nt_pool_find(context);
}

/* --- the drain thread --- */

static bool refused(const struct nt_slot *slot)
{
	return slot->kernel == NULL;
}

static uint64_t result_header(struct nt_kernel *kernel, uint8_t *ret)
{
	struct neutrino_result_header header = {
		.version = NEUTRINO_FORMAT_VERSION,
		.kernel = kernel->id,
		.maps = kernel->map_count,
		.map_size = sizeof(struct neutrino_map),
	};
	uint64_t size = sizeof(header) + kernel->map_count * sizeof(struct neutrino_map);
	uint64_t padded = (size + 63) / 64 * 64;

	memcpy(header.magic, NEUTRINO_RESULT_MAGIC, sizeof(header.magic));
	memset(ret, 0, padded);
	memcpy(ret, &header, sizeof(header));
	memcpy(ret + sizeof(header), kernel->maps, kernel->map_count * sizeof(struct neutrino_map));
	return padded;
}

static struct neutrino_frame frame_of(const struct nt_slot *slot)
{
	const struct neutrino_launch *launch = nt_trace_launch_at(slot->launch);
	struct neutrino_frame frame = {.launch = slot->launch, .size = slot->size};

	memcpy(frame.magic, NEUTRINO_FRAME_MAGIC, sizeof(frame.magic));
	memcpy(frame.grid, launch->grid, sizeof(frame.grid));
	memcpy(frame.block, launch->block, sizeof(frame.block));
	frame.dynamic_cap = launch->dynamic_cap;
	return frame;
}

/*
 * What the slots of dynamic maps counted, for the caps of later launches. data: bytes [begin, begin + size) of the
 * launch's regions, begin a multiple of 4.
 */
static void learn_wanted(const struct nt_slot *slot, const uint8_t *data, uint64_t begin, uint64_t size)
{
	const struct neutrino_launch *launch = nt_trace_launch_at(slot->launch);
	struct nt_kernel *kernel = slot->kernel;
	struct nt_extent extent;
	uint32_t before = __atomic_load_n(&kernel->wanted, __ATOMIC_RELAXED);

	nt_extent_of(launch->grid, launch->block, kernel->lanes, &extent);
	extent.dynamic_cap = launch->dynamic_cap;
	uint32_t wanted = nt_regions_wanted(kernel->maps, kernel->map_count, &extent, data, begin, size);
	wanted = wanted > before ? wanted : before;
	/* That it wanted nothing is known, too. */
	__atomic_store_n(&kernel->wanted, wanted ? wanted : 1, __ATOMIC_RELAXED);
}

static void settle(const struct nt_slot *slot, bool written, uint64_t offset)
{
	struct neutrino_launch *launch = nt_trace_launch_at(slot->launch);

	launch->data_offset = offset;
	launch->data_size = slot->size;
	__atomic_store_n(&launch->state, written ? NEUTRINO_LAUNCH_WRITTEN : NEUTRINO_LAUNCH_LOST, __ATOMIC_RELEASE);
	if (!written && launches_lost++ == 0)
		nt_trace_note("the data of a launch could not be copied back or written: it is marked lost");
}

static bool copy_back(struct nt_pool *pool, CUdeviceptr from, uint64_t size)
{
	return nt_driver.cuMemcpyDtoHAsync_v2(pool->staging, from, size, pool->stream) == CUDA_SUCCESS &&
	       nt_driver.cuStreamSynchronize(pool->stream) == CUDA_SUCCESS;
}

/* Append a header (the first time) and what is in frames to the kernel's file. */
static bool append_frames(struct nt_kernel *kernel, uint64_t size, uint64_t *first)
{
	char name[48];
	uint8_t header[sizeof(struct neutrino_result_header) + NEUTRINO_MAX_MAPS * sizeof(struct neutrino_map) + 64];
	uint64_t header_size = kernel->result_started ? 0 : result_header(kernel, header);
	struct iovec parts[] = {{header, header_size}, {frames, size}};

	snprintf(name, sizeof(name), "result/%u.bin", kernel->id);
	if (!nt_trace_append(name, parts, 2, first))
		return false;
	kernel->result_started = true;
	*first += header_size;
	return true;
}

/* Launches [from, to) of a small segment, copied back in one piece and written kernel by kernel. */
static void drain_small(struct nt_pool *pool, struct nt_segment *segment, uint32_t from, uint32_t to)
{
	uint64_t begin = segment->slots[from].offset * UNIT;
	uint64_t end = begin;
	bool handled[SLOTS] = {false};

	for (uint32_t i = from; i < to; i++) {
		const struct nt_slot *slot = &segment->slots[i];
		if (!refused(slot) && slot->offset * UNIT + slot->size > end)
			end = slot->offset * UNIT + slot->size;
	}
	bool copied = end == begin || copy_back(pool, segment->address + begin, end - begin);
	for (uint32_t i = from; i < to; i++) {
		struct nt_kernel *kernel = segment->slots[i].kernel;
		if (handled[i] || refused(&segment->slots[i]))
			continue;
		uint64_t used = 0, first = 0;
		for (uint32_t j = i; j < to; j++) {
			const struct nt_slot *slot = &segment->slots[j];
			if (slot->kernel != kernel)
				continue;
			struct neutrino_frame frame = frame_of(slot);
			memcpy(frames + used, &frame, sizeof(frame));
			const uint8_t *data = pool->staging + (slot->offset * UNIT - begin);
			memcpy(frames + used + sizeof(frame), data, slot->size);
			if (copied && kernel->has_dynamic_cap)
				learn_wanted(slot, data, 0, slot->size);
			used += sizeof(frame) + slot->size;
		}
		bool written = copied && append_frames(kernel, used, &first);
		used = 0;
		for (uint32_t j = i; j < to; j++) {
			const struct nt_slot *slot = &segment->slots[j];
			if (slot->kernel != kernel)
				continue;
			handled[j] = true;
			settle(slot, written, first + used);
			used += sizeof(struct neutrino_frame) + slot->size;
		}
	}
}

static void drain_large(struct nt_pool *pool, struct nt_segment *segment)
{
	const struct nt_slot *slot = &segment->slots[0];
	uint64_t first = 0, done = 0;
	bool written = true, framed = false;
	char name[48];

	if (refused(slot))
		return;
	struct neutrino_frame frame = frame_of(slot);
	memcpy(frames, &frame, sizeof(frame));
	snprintf(name, sizeof(name), "result/%u.bin", slot->kernel->id);
	while (done < slot->size && written) {
		uint64_t piece = slot->size - done < STAGING_SIZE ? slot->size - done : STAGING_SIZE;
		uint64_t offset;
		struct iovec part = {pool->staging, piece};
		written = copy_back(pool, segment->address + done, piece);
		if (written && slot->kernel->has_dynamic_cap)
			learn_wanted(slot, pool->staging, done, piece);
		if (written && done == 0)
			written = framed = append_frames(slot->kernel, sizeof(frame), &first);
		if (written)
			written = nt_trace_append(name, &part, 1, &offset);
		done += piece;
	}
	/* A frame without its data would hide those behind it from a reader that goes from frame to frame. */
	if (framed && !written)
		nt_trace_cut(name, first);
	settle(slot, written, first);
}

/* How many launches of a segment, from the first one not yet drained, are complete by the watermarks. */
static uint32_t complete_until(const struct nt_pool *pool, const struct nt_segment *segment, uint32_t count)
{
	const struct nt_stream *stream = segment->stream;
	uint64_t stream_mark = __atomic_load_n(&stream->watermark, __ATOMIC_ACQUIRE);
	uint64_t mark = __atomic_load_n(&pool->watermark, __ATOMIC_ACQUIRE);
	uint32_t until = segment->drained;

	/* Read after the watermark: waiting for a stream says nothing of one that was destroyed before at its address. */
	if (stream_mark > mark && __atomic_load_n(&stream->lives, __ATOMIC_ACQUIRE) == segment->life)
		mark = stream_mark;

	while (until < count) {
		uint64_t submitted = __atomic_load_n(&segment->slots[until].sequence, __ATOMIC_ACQUIRE);
		if (submitted == 0 || submitted > mark)
			break;
		until++;
	}
	return until;
}

/* Everything of the segment has been copied: zero it and list it again. */
static void recycle(struct nt_pool *pool, struct nt_segment *segment)
{
	bool is_small = segment->chunks == 0;
	uint64_t size = is_small ? SEGMENT_SIZE : segment->slots[0].size;

	/* A segment that cannot be zeroed is never used again, nor looked at. */
	if (nt_driver.cuMemsetD8Async(segment->address, 0, size, pool->stream) != CUDA_SUCCESS ||
	    nt_driver.cuStreamSynchronize(pool->stream) != CUDA_SUCCESS) {
		__atomic_fetch_xor(&segment->hold, HOLD_DONE | HOLD_FINISHING, __ATOMIC_ACQ_REL);
		return;
	}
	for (uint32_t i = 0; i < segment->count; i++)
		segment->slots[i].sequence = 0;
	segment->drained = 0;
	__atomic_fetch_and(&segment->hold, ~(HOLD_FULL | HOLD_DONE), __ATOMIC_ACQ_REL);
	if (is_small) {
		give_small(pool, segment);
	} else {
		uint64_t chunks = segment->chunks;
		segment->chunks = 0;
		__atomic_fetch_and(&pool->chunks_busy, ~chunks, __ATOMIC_RELEASE);
	}
}

static bool drain_full(struct nt_pool *pool, struct nt_segment *segment, bool all_complete)
{
	if (!all_complete) {
		CUresult status = segment->recorded ? nt_driver.cuEventQuery(segment->event) : CUDA_ERROR_NOT_READY;
		if (status != CUDA_SUCCESS && complete_until(pool, segment, segment->count) < segment->count)
			return false;
	}
	if (segment->chunks)
		drain_large(pool, segment);
	else if (segment->drained < segment->count)
		drain_small(pool, segment, segment->drained, segment->count);
	recycle(pool, segment);
	return true;
}

static bool drain_open(struct nt_pool *pool, struct nt_stream *stream, bool all_complete, bool is_short)
{
	uint64_t state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);
	uint32_t number = (uint32_t)(state >> STATE_SEGMENT_SHIFT);
	uint32_t count = (uint32_t)(state >> STATE_COUNT_SHIFT) & 0xfff;

	if (!number)
		return false;
	struct nt_segment *segment = &pool->segments[number - 1];
	uint32_t until = segment->drained;
	if (all_complete)
		while (until < count && __atomic_load_n(&segment->slots[until].sequence, __ATOMIC_ACQUIRE))
			until++;
	else
		until = complete_until(pool, segment, count);
	bool worked = until > segment->drained;
	if (worked)
		drain_small(pool, segment, segment->drained, until);
	segment->drained = until;
	/*
	 * A thread's default stream ends with the thread, and no call tells: its segment may not be left to it. Nor may
	 * streams keep segments that others lack.
	 */
	if (until == count && (is_short || is_per_thread(stream)) &&
	    __atomic_compare_exchange_n(&stream->state, &state, without_segment(state), false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE)) {
		close_segment(segment, count, NULL);
		worked = true;
	}
	return worked;
}

/* Fewer than a quarter of the small segments are free. */
static bool runs_short(const struct nt_pool *pool)
{
	uint64_t count = 0;

	for (uint64_t i = 0; i < (pool->small_count + 63) / 64; i++)
		count += (uint64_t)__builtin_popcountll(__atomic_load_n(&pool->small_free[i], __ATOMIC_RELAXED));
	return count < pool->small_count / 4;
}

static bool drain_pool(struct nt_pool *pool, bool all_complete)
{
	bool worked = false, is_short = runs_short(pool);

	for (uint64_t i = 0; i < pool->small_count + CHUNKS; i++) {
		struct nt_segment *segment = &pool->segments[i];
		if (__atomic_load_n(&segment->hold, __ATOMIC_ACQUIRE) & HOLD_DONE)
			worked |= drain_full(pool, segment, all_complete);
	}
	for (unsigned i = 0; i < STREAMS; i++)
		if (__atomic_load_n(&pool->streams[i].key, __ATOMIC_ACQUIRE))
			worked |= drain_open(pool, &pool->streams[i], all_complete, is_short);
	return worked;
}

static void raise_to(uint64_t *value, uint64_t least)
{
	uint64_t before = __atomic_load_n(value, __ATOMIC_RELAXED);

	while (before < least &&
	       !__atomic_compare_exchange_n(value, &before, least, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

static void close_pool(struct nt_pool *pool)
{
	uint64_t moment = __atomic_load_n(&sequence, __ATOMIC_ACQUIRE);
	/* What has been submitted is waited for; a kernel that never ends is cut off by the waiting caller's limit. */
	bool complete = nt_driver.cuCtxSynchronize() == CUDA_SUCCESS;

	if (complete)
		raise_to(&pool->watermark, moment);
	else
		nt_trace_note("the context ended with an error: records of its last launches are lost");
	/* Of a context in error everything is taken, to be marked lost where it cannot be copied. */
	drain_pool(pool, !complete);
	if (!__atomic_load_n(&pool->ending, __ATOMIC_ACQUIRE))
		unmake_pool(pool, true);
}

static void *drain(void *unused)
{
	long pause = 1000;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	(void)unused;
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	for (;;) {
		bool worked = false;
		for (unsigned i = 0; i < CONTEXTS; i++) {
			struct nt_pool *pool = &pools[i];
			int state = __atomic_load_n(&pool->state, __ATOMIC_ACQUIRE);
			CUcontext popped;
			if (state != POOL_READY && state != POOL_CLOSING)
				continue;
			if (nt_driver.cuCtxPushCurrent_v2(__atomic_load_n(&pool->context, __ATOMIC_ACQUIRE)) ==
			    CUDA_SUCCESS) {
				if (state == POOL_CLOSING)
					close_pool(pool);
				else
					worked |= drain_pool(pool, false);
				nt_driver.cuCtxPopCurrent_v2(&popped);
			} else if (state == POOL_CLOSING && !__atomic_load_n(&pool->ending, __ATOMIC_ACQUIRE)) {
				unmake_pool(pool, false);
			}
			if (state == POOL_CLOSING)
				__atomic_store_n(&pool->state, POOL_CLOSED, __ATOMIC_RELEASE);
		}
		nt_trace_grow();
		pause = worked ? 1000 : pause < 8000 ? pause + 500 : 8000;
		nt_sleep_us(pause);
	}
	return NULL;
}

static bool start_drain(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static bool started;
	sigset_t all, before;
	pthread_t thread;
	pthread_attr_t attributes;

	pthread_mutex_lock(&mutex);
	if (!frames)
		frames = map_zeroed(FRAMES_SIZE);
	if (!started && frames) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		pthread_attr_init(&attributes);
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
		started = pthread_create(&thread, &attributes, drain, NULL) == 0;
		if (started)
			pthread_setname_np(thread, "neutrino-drain");
		pthread_attr_destroy(&attributes);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	pthread_mutex_unlock(&mutex);
	return started;
}

/* --- what the program does beside launching --- */

void nt_watermark_before(struct nt_watermark *mark, CUcontext context, CUstream stream)
{
	mark->pool = nt_pool_find(context);
	mark->stream = stream;
	mark->moment = __atomic_load_n(&sequence, __ATOMIC_ACQUIRE);
}

void nt_watermark_after(const struct nt_watermark *mark)
{
	if (!mark->pool)
		return;
	if (!mark->stream) {
		raise_to(&mark->pool->watermark, mark->moment);
		return;
	}
	struct nt_stream *stream = find_stream(mark->pool, mark->stream, false);
	if (stream)
		raise_to(&stream->watermark, mark->moment);
}

void nt_pool_forget_stream(CUcontext context, CUstream handle)
{
	struct nt_pool *pool = nt_pool_find(context);
	struct nt_stream *stream = pool ? find_stream(pool, handle, false) : NULL;
	int capturing = CU_STREAM_CAPTURE_STATUS_NONE;

	if (!stream)
		return;
	uint64_t state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);
	while (!__atomic_compare_exchange_n(&stream->state, &state, without_segment(state), false, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE))
		;
	__atomic_add_fetch(&stream->lives, 1, __ATOMIC_RELEASE);
	uint32_t number = (uint32_t)(state >> STATE_SEGMENT_SHIFT);
	if (!number)
		return;
	/* In a capture the event would become a part of the program's graph. */
	bool recordable = nt_driver.cuStreamIsCapturing(handle, &capturing) == CUDA_SUCCESS &&
			  capturing == CU_STREAM_CAPTURE_STATUS_NONE;
	close_segment(&pool->segments[number - 1], (uint32_t)(state >> STATE_COUNT_SHIFT) & 0xfff,
		      recordable ? stream : NULL);
}

/* Wait until the pool is in another state. */
static bool wait_out(struct nt_pool *pool, enum pool_state state, unsigned milliseconds)
{
	uint64_t until = nt_now_ns() + (uint64_t)milliseconds * 1000000;

	while (__atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) == (int)state) {
		if (nt_now_ns() >= until)
			return false;
		nt_sleep_us(200);
	}
	return true;
}

void nt_pool_forget_context(CUcontext context, unsigned milliseconds)
{
	struct nt_pool *pool = known_pool(context);
	int ready = POOL_READY;

	if (!pool)
		return;
	wait_out(pool, POOL_PREPARING, milliseconds);
	__atomic_compare_exchange_n(&pool->state, &ready, POOL_CLOSING, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	bool closed = wait_out(pool, POOL_CLOSING, milliseconds);
	/* Launches that found the pool before it closed are over: the program destroys the context they would run in. */
	__atomic_store_n(&pool->context, NULL, __ATOMIC_RELEASE);
	if (closed)
		__atomic_store_n(&pool->state, POOL_NONE, __ATOMIC_RELEASE);
	else
		nt_trace_note("a context went away before its records could be copied back");
}

bool nt_pool_drain_all(unsigned milliseconds)
{
	uint64_t until = nt_now_ns() + (uint64_t)milliseconds * 1000000;
	bool drained = true;

	for (unsigned i = 0; i < CONTEXTS; i++) {
		int ready = POOL_READY;
		__atomic_store_n(&pools[i].ending, true, __ATOMIC_RELEASE);
		__atomic_compare_exchange_n(&pools[i].state, &ready, POOL_CLOSING, false, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE);
	}
	for (unsigned i = 0; i < CONTEXTS; i++) {
		uint64_t now = nt_now_ns();
		drained &= wait_out(&pools[i], POOL_CLOSING, now < until ? (unsigned)((until - now) / 1000000) : 0);
	}
	return drained;
}

void nt_pool_child(void)
{
	for (unsigned i = 0; i < CONTEXTS; i++) {
		pools[i].context = NULL;
		pools[i].state = POOL_FAILED;
	}
}
