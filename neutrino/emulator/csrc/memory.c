#include "memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "capture.h"
#include "channel.h"
#include "failure.h"
#include "settings.h"
#include "stream.h"

/* Between two pieces there are as many bytes at least that no kernel may touch. */
#define RED_ZONE 256u
#define REMEMBERED 64

enum sort {
	DEVICE,
	MANAGED,
	PINNED,
	VARIABLE,
};

struct piece {
	uint64_t offset, size; /* in its region */
	struct ed_context *context; /* NULL: no context's, as pinned memory that outlives it */
	enum sort sort;
	unsigned flags;
	uint64_t id;
};

/* Pieces in order of their offsets. */
struct region {
	struct piece *pieces;
	size_t count, room;
	uint64_t begin;	 /* offsets before it are not ours to give */
	uint64_t in_use; /* bytes */
	uint64_t freed[REMEMBERED];
	unsigned freed_count;
};

struct registered {
	uint64_t address, size;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct region device_region, host_region;
static struct registered *registered;
static size_t registered_count;
static uint64_t last_id;

uint64_t ed_memory_module_part(void)
{
	return ed_shared.device_size / 8;
}

/* --- regions --- */

static bool is_host_region(const struct region *region)
{
	return region == &host_region;
}

static uint64_t region_size(const struct region *region)
{
	return is_host_region(region) ? ed_shared.host_size : ed_shared.device_size;
}

static uint64_t region_base(const struct region *region)
{
	return is_host_region(region) ? (uint64_t)(uintptr_t)ed_shared.host : ED_DEVICE_BASE;
}

static uint8_t *region_bytes(const struct region *region)
{
	return is_host_region(region) ? ed_shared.host : ed_shared.device;
}

/* The region that an address lies in, NULL for none, and how far in it. */
static struct region *region_of(uint64_t address, uint64_t *offset)
{
	*offset = address - ED_CONSTANT_BASE;
	if (*offset < ED_CONSTANT_SIZE)
		return &device_region;
	*offset = address - ED_DEVICE_BASE;
	if (*offset < ed_shared.device_size)
		return &device_region;
	*offset = address - (uint64_t)(uintptr_t)ed_shared.host;
	return *offset < ed_shared.host_size ? &host_region : NULL;
}

/* How many pieces begin at or before the offset. */
static size_t pieces_until(const struct region *region, uint64_t offset)
{
	size_t low = 0, high = region->count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		if (region->pieces[middle].offset <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The piece that has the byte, or NULL. */
static struct piece *piece_at(const struct region *region, uint64_t offset)
{
	size_t index = pieces_until(region, offset);

	if (!index)
		return NULL;
	struct piece *piece = &region->pieces[index - 1];
	return offset - piece->offset < piece->size ? piece : NULL;
}

static uint64_t round_up(uint64_t value)
{
	return (value + ED_ALIGNMENT - 1) / ED_ALIGNMENT * ED_ALIGNMENT;
}

/* The first offset that may be given out behind the first index pieces. */
static uint64_t place_after(const struct region *region, size_t index)
{
	uint64_t end = index ? region->pieces[index - 1].offset + region->pieces[index - 1].size : 0;

	return round_up((end > region->begin ? end : region->begin) + RED_ZONE);
}

static bool fits(const struct region *region, size_t index, uint64_t offset, uint64_t size)
{
	uint64_t begin = place_after(region, index);
	uint64_t end = index < region->count ? region->pieces[index].offset : region_size(region);

	return offset >= begin && offset <= end && end - offset >= RED_ZONE && size <= end - offset - RED_ZONE;
}

/* Where size bytes fit: what was freed last first, so that addresses come back at once; else the lowest place. */
static bool find_place(struct region *region, uint64_t size, size_t *index, uint64_t *offset)
{
	for (unsigned i = region->freed_count; i-- > 0;) {
		*offset = region->freed[i];
		*index = pieces_until(region, *offset);
		if (!fits(region, *index, *offset, size))
			continue;
		memmove(&region->freed[i], &region->freed[i + 1], (--region->freed_count - i) * sizeof(region->freed[0]));
		return true;
	}
	for (*index = 0; *index <= region->count; ++*index) {
		*offset = place_after(region, *index);
		if (fits(region, *index, *offset, size))
			return true;
	}
	return false;
}

/* With the mutex held, so that what is told stays in order. */
static void tell(enum ed_request kind, uint64_t address, uint64_t size)
{
	uint64_t words[] = {address, size};

	ed_channel_tell(kind, &(struct iovec){words, sizeof(words)}, 1);
}

static bool insert(struct region *region, size_t index, struct piece piece)
{
	if (region->count == region->room) {
		size_t room = region->room ? region->room * 2 : 256;
		struct piece *pieces = realloc(region->pieces, room * sizeof(*pieces));
		if (!pieces)
			return false;
		region->pieces = pieces;
		region->room = room;
	}
	memmove(&region->pieces[index + 1], &region->pieces[index],
		(region->count++ - index) * sizeof(region->pieces[0]));
	piece.id = ++last_id;
	region->pieces[index] = piece;
	if (piece.sort != VARIABLE)
		region->in_use += piece.size;
	return true;
}

static void remove_piece(struct region *region, struct piece *piece)
{
	size_t index = (size_t)(piece - region->pieces);

	if (piece->sort != VARIABLE)
		region->in_use -= piece->size;
	memmove(piece, piece + 1, (--region->count - index) * sizeof(*piece));
}

/* The address of size new bytes, 0 without room. */
static uint64_t take(struct region *region, uint64_t size, struct piece like)
{
	size_t index;
	uint64_t offset, address = 0;

	pthread_mutex_lock(&mutex);
	if (!device_region.begin)
		device_region.begin = ed_memory_module_part();
	if (size <= region_size(region) && find_place(region, size, &index, &offset)) {
		like.offset = offset;
		like.size = size;
		if (insert(region, index, like)) {
			memset(region_bytes(region) + offset, ED_POISON, size);
			address = region_base(region) + offset;
			tell(ED_REQUEST_ALLOW, address, size);
		}
	}
	pthread_mutex_unlock(&mutex);
	return address;
}

/* With the mutex held. */
static void give(struct region *region, struct piece *piece)
{
	tell(ED_REQUEST_FORBID, region_base(region) + piece->offset, piece->size);
	memset(region_bytes(region) + piece->offset, ED_POISON, piece->size);
	if (region->freed_count == REMEMBERED)
		memmove(&region->freed[0], &region->freed[1], --region->freed_count * sizeof(region->freed[0]));
	region->freed[region->freed_count++] = piece->offset;
	remove_piece(region, piece);
}

void ed_memory_add_variable(struct ed_context *context, uint64_t address, uint64_t size)
{
	uint64_t offset;

	pthread_mutex_lock(&mutex);
	if (size && region_of(address, &offset) == &device_region)
		insert(&device_region, pieces_until(&device_region, offset),
		       (struct piece){.offset = offset, .size = size, .context = context, .sort = VARIABLE});
	pthread_mutex_unlock(&mutex);
}

void ed_memory_remove_variable(uint64_t address)
{
	uint64_t offset;

	pthread_mutex_lock(&mutex);
	struct piece *piece =
		region_of(address, &offset) == &device_region ? piece_at(&device_region, offset) : NULL;
	if (piece && piece->offset == offset && piece->sort == VARIABLE)
		remove_piece(&device_region, piece);
	pthread_mutex_unlock(&mutex);
}

/* Free what begins there and is of that sort. */
static CUresult release(uint64_t address, bool is_pinned)
{
	uint64_t offset;
	struct region *region = region_of(address, &offset);
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!region)
		return result;
	pthread_mutex_lock(&mutex);
	struct piece *piece = piece_at(region, offset);
	if (piece && piece->offset == offset && piece->sort != VARIABLE && (piece->sort == PINNED) == is_pinned) {
		give(region, piece);
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

void ed_memory_free_now(uint64_t address)
{
	release(address, false);
}

void ed_memory_forget_context(const struct ed_context *context)
{
	struct region *regions[] = {&device_region, &host_region};

	pthread_mutex_lock(&mutex);
	for (int i = 0; i < 2; i++)
		for (size_t at = regions[i]->count; at-- > 0;)
			if (regions[i]->pieces[at].context == context && regions[i]->pieces[at].sort != VARIABLE)
				give(regions[i], &regions[i]->pieces[at]);
	pthread_mutex_unlock(&mutex);
}

bool ed_memory_is_device(uint64_t address)
{
	uint64_t offset;

	return region_of(address, &offset) == &device_region;
}

bool ed_memory_is_pinned(uint64_t address)
{
	uint64_t offset;
	bool found = region_of(address, &offset) == &host_region;

	pthread_mutex_lock(&mutex);
	for (size_t i = 0; !found && i < registered_count; i++)
		found = address - registered[i].address < registered[i].size;
	pthread_mutex_unlock(&mutex);
	return found;
}

uint8_t *ed_memory_here(uint64_t address)
{
	uint64_t offset;

	return region_of(address, &offset) == &device_region ? ed_shared.device + offset : (uint8_t *)(uintptr_t)address;
}

bool ed_memory_is_valid(uint64_t address, uint64_t size)
{
	uint64_t offset;
	const struct region *region = region_of(address, &offset);

	if (!size)
		return true;
	if (!region)
		return false;
	pthread_mutex_lock(&mutex);
	const struct piece *piece = piece_at(region, offset);
	bool valid = piece && size <= piece->size - (offset - piece->offset);
	pthread_mutex_unlock(&mutex);
	return valid;
}

/* --- device memory --- */

static void be_slow(void)
{
	uint64_t time = ed_failure(ED_FAIL_SLOWALLOC);

	if (time)
		nanosleep(&(struct timespec){(time_t)(time / 1000000000), (long)(time % 1000000000)}, NULL);
}

static CUresult allocate(struct ed_context *context, CUdeviceptr *ret, size_t size, enum sort sort, unsigned flags)
{
	uint64_t failure = ed_failure(ED_FAIL_ALLOC);

	be_slow();
	if (!ret || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if (failure)
		return (CUresult)failure;
	*ret = take(sort == DEVICE ? &device_region : &host_region, size,
		    (struct piece){.context = context, .sort = sort, .flags = flags});
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
	ENTER_CONTEXT(context);
	CUresult result = ed_capture_unsafe();
	return result ? result : allocate(context, address, size, DEVICE, 0);
}

API cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	ENTER_CONTEXT(context);
	CUresult result = ed_capture_unsafe();
	if (result)
		return result;
	if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = (width + 511) / 512 * 512;
	return allocate(context, address, *pitch * height, DEVICE, 0);
}

API cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags)
{
	ENTER_CONTEXT(context);
	CUresult result = ed_capture_unsafe();
	if (result)
		return result;
	return flags < 1 || flags > 2 ? CUDA_ERROR_INVALID_VALUE : allocate(context, address, size, MANAGED, flags);
}

API cuMemFree_v2(CUdeviceptr address)
{
	ENTER_CONTEXT(context);
	CUresult result = ed_capture_unsafe();
	if (result || !address)
		return result;
	if (!ed_memory_is_valid(address, 1))
		return CUDA_ERROR_INVALID_VALUE;
	/* As the driver does: what may still use it ends first. */
	ed_queue_wait_all(context);
	result = release(address, false);
	return result ? result : ed_device_fault();
}

API cuMemGetInfo_v2(size_t *available, size_t *total)
{
	ENTER_CONTEXT(context);
	pthread_mutex_lock(&mutex);
	size_t size = ed_shared.device_size - ed_memory_module_part();
	if (total)
		*total = ed_shared.device_size;
	if (available)
		*available = size - device_region.in_use;
	pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
	ENTER_CONTEXT(context);
	uint64_t offset;
	struct region *region = region_of(address, &offset);
	if (!region)
		return CUDA_ERROR_NOT_FOUND;
	pthread_mutex_lock(&mutex);
	const struct piece *piece = piece_at(region, offset);
	if (piece && base)
		*base = address - (offset - piece->offset);
	if (piece && size)
		*size = piece->size;
	pthread_mutex_unlock(&mutex);
	return piece ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* --- by streams --- */

static void free_in_turn(void *address)
{
	ed_memory_free_now((uint64_t)(uintptr_t)address);
}

static CUresult allocate_async(struct ed_context *context, CUdeviceptr *address, size_t size, CUstream stream,
			       bool per_thread)
{
	struct ed_queue *queue;
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);

	/* Graphs of ours hold no allocations. */
	if (!result)
		result = ed_capture_forbids(queue);
	if (!result)
		result = ed_capture_unsafe();
	if (result || size || !address)
		return result ? result : allocate(context, address, size, DEVICE, 0);
	*address = 0;
	return CUDA_SUCCESS;
}

static CUresult free_async(struct ed_context *context, CUdeviceptr address, CUstream stream, bool per_thread)
{
	struct ed_queue *queue;
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);

	if (!result)
		result = ed_capture_forbids(queue);
	if (result || !address)
		return result;
	if (!ed_memory_is_valid(address, 1))
		return CUDA_ERROR_INVALID_VALUE;
	struct ed_operation operation = {
		.type = CU_GRAPH_NODE_TYPE_HOST,
		.context = queue->context,
		.host = {.function = free_in_turn, .data = (void *)(uintptr_t)address},
	};
	return ed_stream_submit(queue, &operation, NULL);
}

API cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
	ENTER_CONTEXT(context);
	return allocate_async(context, address, size, stream, false);
}

API cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream)
{
	ENTER_CONTEXT(context);
	return allocate_async(context, address, size, stream, true);
}

API cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	ENTER_CONTEXT(context);
	return free_async(context, address, stream, false);
}

API cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
	ENTER_CONTEXT(context);
	return free_async(context, address, stream, true);
}

static CUmemoryPool default_pool(void)
{
	static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
	static CUmemoryPool pool;

	pthread_mutex_lock(&pool_mutex);
	if (!pool)
		pool = ed_object_take(ED_POOL, sizeof(struct ed_object));
	pthread_mutex_unlock(&pool_mutex);
	return pool;
}

API cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	ENTER();
	if (!pool || device)
		return pool ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	*pool = default_pool();
	return CUDA_SUCCESS;
}

API cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	ENTER();
	if (!pool || device)
		return pool ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	*pool = default_pool();
	return CUDA_SUCCESS;
}

API cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
	ENTER_CONTEXT(context);
	if (!ed_object_check(pool, ED_POOL))
		return CUDA_ERROR_INVALID_HANDLE;
	return allocate_async(context, address, size, stream, false);
}

/* Every attribute of a pool is a 64-bit number or, for the first three, an int. */
static uint64_t pool_attributes[16] = {0, 1, 1, 1};

API cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	ENTER();
	if (!ed_object_check(pool, ED_POOL) || attribute < 1 || attribute > 8 || !value)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t given = 0;
	memcpy(&given, value, attribute < 4 ? 4 : 8);
	__atomic_store_n(&pool_attributes[attribute], given, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

API cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	ENTER();
	if (!ed_object_check(pool, ED_POOL) || attribute < 1 || attribute > 8 || !value)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t found = __atomic_load_n(&pool_attributes[attribute], __ATOMIC_RELAXED);
	memcpy(value, &found, attribute < 4 ? 4 : 8);
	return CUDA_SUCCESS;
}

API cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	ENTER();
	(void)keep;
	return ed_object_check(pool, ED_POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* --- pinned memory --- */

static CUresult allocate_host(struct ed_context *context, void **ret, size_t size, unsigned flags)
{
	uint64_t failure = ed_failure(ED_FAIL_HOSTALLOC);

	if (!ret || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	if (failure)
		return (CUresult)failure;
	*ret = NULL;
	if (!size)
		return CUDA_SUCCESS;
	uint64_t address =
		take(&host_region, size, (struct piece){.context = context, .sort = PINNED, .flags = flags});
	*ret = (void *)(uintptr_t)address;
	return address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuMemHostAlloc(void **memory, size_t size, unsigned int flags)
{
	ENTER_CONTEXT(context);
	CUresult result = ed_capture_unsafe();
	return result ? result : allocate_host(context, memory, size, flags);
}

API cuMemAllocHost_v2(void **memory, size_t size)
{
	ENTER_CONTEXT(context);
	CUresult result = ed_capture_unsafe();
	return result ? result : allocate_host(context, memory, size, 0);
}

API cuMemFreeHost(void *memory)
{
	ENTER_CONTEXT(context);
	CUresult result = ed_capture_unsafe();
	if (result || !memory)
		return result;
	ed_queue_wait_all(context);
	return release((uint64_t)(uintptr_t)memory, true);
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory, unsigned int flags)
{
	ENTER_CONTEXT(context);
	if (!address || flags)
		return CUDA_ERROR_INVALID_VALUE;
	/* What the program registered is its own process's memory: kernels cannot go there. */
	if (!ed_memory_is_valid((uint64_t)(uintptr_t)memory, 1))
		return ed_memory_is_pinned((uint64_t)(uintptr_t)memory) ? CUDA_ERROR_NOT_SUPPORTED
									 : CUDA_ERROR_INVALID_VALUE;
	*address = (uint64_t)(uintptr_t)memory;
	return CUDA_SUCCESS;
}

API cuMemHostGetFlags(unsigned int *flags, void *memory)
{
	ENTER_CONTEXT(context);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t offset = (uint64_t)(uintptr_t)memory - (uint64_t)(uintptr_t)ed_shared.host;
	pthread_mutex_lock(&mutex);
	const struct piece *piece = piece_at(&host_region, offset);
	if (piece)
		*flags = piece->flags | 2;
	pthread_mutex_unlock(&mutex);
	return piece ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemHostRegister_v2(void *memory, size_t size, unsigned int flags)
{
	ENTER_CONTEXT(context);
	CUresult result = ed_capture_unsafe();
	if (result)
		return result;
	if (!memory || !size || flags > 15)
		return CUDA_ERROR_INVALID_VALUE;
	if (ed_memory_is_pinned((uint64_t)(uintptr_t)memory))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	pthread_mutex_lock(&mutex);
	struct registered *more = realloc(registered, (registered_count + 1) * sizeof(*registered));
	if (more) {
		registered = more;
		registered[registered_count++] = (struct registered){(uint64_t)(uintptr_t)memory, size};
	}
	pthread_mutex_unlock(&mutex);
	return more ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuMemHostUnregister(void *memory)
{
	ENTER_CONTEXT(context);
	CUresult result = ed_capture_unsafe();
	if (result)
		return result;
	result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	pthread_mutex_lock(&mutex);
	for (size_t i = 0; i < registered_count; i++)
		if (registered[i].address == (uint64_t)(uintptr_t)memory) {
			registered[i] = registered[--registered_count];
			result = CUDA_SUCCESS;
			break;
		}
	pthread_mutex_unlock(&mutex);
	return result;
}

API cuMemAdvise_v2(CUdeviceptr address, size_t size, int advice, uint64_t location)
{
	ENTER_CONTEXT(context);
	(void)advice;
	(void)location;
	return ed_memory_is_valid(address, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, uint64_t location, unsigned int flags, CUstream stream)
{
	ENTER_CONTEXT(context);
	(void)location;
	(void)flags;
	(void)stream;
	return ed_memory_is_valid(address, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- pointers --- */

enum {
	POINTER_CONTEXT = 1,
	POINTER_MEMORY_TYPE,
	POINTER_DEVICE_POINTER,
	POINTER_HOST_POINTER,
	POINTER_SYNC_MEMOPS = 6,
	POINTER_BUFFER_ID,
	POINTER_IS_MANAGED,
	POINTER_DEVICE_ORDINAL,
	POINTER_IPC_CAPABLE,
	POINTER_RANGE_START,
	POINTER_RANGE_SIZE,
	POINTER_MAPPED,
	POINTER_HANDLE_TYPES,
	POINTER_RDMA_CAPABLE,
	POINTER_ACCESS_FLAGS,
	POINTER_MEMPOOL,
};

static CUresult pointer_attribute(void *ret, int attribute, uint64_t address)
{
	uint64_t offset;
	struct region *region = region_of(address, &offset);
	struct piece found = {0};
	bool is_known = false;

	if (region) {
		pthread_mutex_lock(&mutex);
		const struct piece *piece = piece_at(region, offset);
		is_known = piece != NULL;
		if (piece)
			found = *piece;
		pthread_mutex_unlock(&mutex);
	}
	bool on_device = is_known && (found.sort == DEVICE || found.sort == VARIABLE);
	switch (attribute) {
	case POINTER_CONTEXT:
		*(CUcontext *)ret = found.context;
		break;
	case POINTER_MEMORY_TYPE:
		*(unsigned *)ret = found.sort == PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		break;
	case POINTER_DEVICE_POINTER:
		*(CUdeviceptr *)ret = address;
		break;
	case POINTER_HOST_POINTER:
		if (on_device)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)ret = (void *)(uintptr_t)address;
		break;
	case POINTER_BUFFER_ID:
		*(unsigned long long *)ret = found.id;
		break;
	case POINTER_IS_MANAGED:
		*(int *)ret = found.sort == MANAGED;
		break;
	case POINTER_RANGE_START:
		*(CUdeviceptr *)ret = is_known ? address - (offset - found.offset) : 0;
		break;
	case POINTER_RANGE_SIZE:
		*(size_t *)ret = found.size;
		break;
	case POINTER_MAPPED:
		*(int *)ret = is_known;
		break;
	case POINTER_DEVICE_ORDINAL:
		*(int *)ret = 0;
		break;
	case POINTER_SYNC_MEMOPS:
	case POINTER_IPC_CAPABLE:
	case POINTER_RDMA_CAPABLE:
		*(int *)ret = 0;
		break;
	case POINTER_HANDLE_TYPES:
		*(unsigned long long *)ret = 0;
		break;
	case POINTER_ACCESS_FLAGS:
		*(unsigned *)ret = 3;
		break;
	case POINTER_MEMPOOL:
		*(void **)ret = NULL;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
	ENTER_CONTEXT(context);
	return data ? pointer_attribute(data, attribute, address) : CUDA_ERROR_INVALID_VALUE;
}

/* An address that the driver does not know is no error here: its attributes are 0. */
API cuPointerGetAttributes(unsigned int count, int *attributes, void **data, CUdeviceptr address)
{
	ENTER_CONTEXT(context);
	if (!attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		CUresult result = pointer_attribute(data[i], attributes[i], address);
		if (!result || ed_memory_is_valid(address, 1))
			continue;
		if (attributes[i] == POINTER_MEMORY_TYPE)
			*(unsigned *)data[i] = 0;
		if (attributes[i] == POINTER_DEVICE_POINTER)
			*(CUdeviceptr *)data[i] = 0;
		if (attributes[i] == POINTER_DEVICE_ORDINAL)
			*(int *)data[i] = -2;
	}
	return CUDA_SUCCESS;
}

API cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address)
{
	ENTER_CONTEXT(context);
	return value && attribute == POINTER_SYNC_MEMOPS && ed_memory_is_valid(address, 1) ? CUDA_SUCCESS
											   : CUDA_ERROR_INVALID_VALUE;
}
