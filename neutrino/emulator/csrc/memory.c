#include "memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "channel.h"
#include "region.h"
#include "settings.h"

pthread_mutex_t ed_memory_mutex = PTHREAD_MUTEX_INITIALIZER;
struct ed_region ed_device_region, ed_host_region;
struct ed_registered *ed_registered;
size_t ed_registered_count;
static uint64_t last_id;

/*
 * The size of the first part of device memory, where the device process (it runs the kernels) places the modules'
 * variables.
 */
uint64_t ed_memory_module_part(void)
{
	return ed_shared.device_size / 8;
}

/*
 * An allocation of more bytes is LARGE: its beginning, its end and a page in each POISON_STRIDE are poisoned, the others
 * are zero. Touching every page of the large ones would take most of a short program's time.
 */
#define LARGE (UINT64_C(256) << 10)
#define POISON_STRIDE (UINT64_C(64) << 10)
#define PAGE UINT64_C(4096)

/* --- regions --- */

/*
 * Whether a region is that of pinned and managed memory, which host and kernels share by one address; else it is device
 * memory.
 */
bool ed_region_is_host(const struct ed_region *region)
{
	return region == &ed_host_region;
}

/* The bytes of a region of memory, used or not. */
uint64_t ed_region_size(const struct ed_region *region)
{
	return ed_region_is_host(region) ? ed_shared.host_size : ed_shared.device_size;
}

/* The address at which a region of memory begins, as kernels use it. */
uint64_t ed_region_base(const struct ed_region *region)
{
	return ed_region_is_host(region) ? (uint64_t)(uintptr_t)ed_shared.host : ED_DEVICE_BASE;
}

/* Where this process has the bytes of a region of memory. */
static uint8_t *region_bytes(const struct ed_region *region)
{
	return ed_region_is_host(region) ? ed_shared.host : ed_shared.device;
}

/*
 * The region (device memory, or pinned and managed memory) that contains an address, with its offset there; NULL if
 * none does.
 */
struct ed_region *ed_region_of(uint64_t address, uint64_t *offset)
{
	*offset = address - ED_CONSTANT_BASE;
	if (*offset < ED_CONSTANT_SIZE)
		return &ed_device_region;
	*offset = address - ED_DEVICE_BASE;
	if (*offset < ed_shared.device_size)
		return &ed_device_region;
	*offset = address - (uint64_t)(uintptr_t)ed_shared.host;
	return *offset < ed_shared.host_size ? &ed_host_region : NULL;
}

/* The number of pieces (allocations) of a region that begin at or before an offset. */
static size_t pieces_until(const struct ed_region *region, uint64_t offset)
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

/* The piece (an allocation or a variable) of a region that contains an offset, or NULL. With ed_memory_mutex held. */
struct ed_piece *ed_piece_at(const struct ed_region *region, uint64_t offset)
{
	size_t index = pieces_until(region, offset);

	if (!index)
		return NULL;
	struct ed_piece *piece = &region->pieces[index - 1];
	return offset - piece->offset < piece->size ? piece : NULL;
}

/* Round up to a multiple of ED_ALIGNMENT. */
static uint64_t round_up(uint64_t value)
{
	return (value + ED_ALIGNMENT - 1) / ED_ALIGNMENT * ED_ALIGNMENT;
}

/*
 * The first offset that may be allocated after the first `index` pieces of a region, behind a red zone (bytes that
 * nobody may touch).
 */
static uint64_t place_after(const struct ed_region *region, size_t index)
{
	uint64_t end = index ? region->pieces[index - 1].offset + region->pieces[index - 1].size : 0;

	return round_up((end > region->begin ? end : region->begin) + RED_ZONE);
}

/*
 * Whether size bytes at an offset fit between piece (allocation) index - 1 and piece index of a region, with red zones
 * (bytes that nobody may touch) on both sides.
 */
static bool fits(const struct ed_region *region, size_t index, uint64_t offset, uint64_t size)
{
	uint64_t begin = place_after(region, index);
	uint64_t end = index < region->count ? region->pieces[index].offset : ed_region_size(region);

	return offset >= begin && offset <= end && end - offset >= RED_ZONE && size <= end - offset - RED_ZONE;
}

/*
 * Find room for size bytes in a region: the offset and the index of the new piece; false if there is none. Places that
 * were freed lately come first, so that addresses are reused at once and a use after free is likely to show; else the
 * lowest place is taken.
 */
static bool find_place(struct ed_region *region, uint64_t size, size_t *index, uint64_t *offset)
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

/*
 * Tell the device process (it runs the kernels) which memory kernels may access (kind: allow or forbid). With
 * ed_memory_mutex held, so that messages stay in order.
 */
static void tell_device_process(enum ed_request kind, uint64_t address, uint64_t size)
{
	uint64_t words[] = {address, size};

	ed_channel_tell(kind, &(struct iovec){words, sizeof(words)}, 1);
}

/*
 * Insert a piece (an allocation or a variable) into a region's list at an index, which keeps the order. Variables of
 * modules do not count as memory in use. False without memory.
 */
static bool insert_piece(struct ed_region *region, size_t index, struct ed_piece piece)
{
	if (region->count == region->room) {
		size_t room = region->room ? region->room * 2 : 256;
		struct ed_piece *pieces = realloc(region->pieces, room * sizeof(*pieces));
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

/* Remove a piece (an allocation or a variable) from its region's list. Its bytes are not touched. */
static void remove_piece(struct ed_region *region, struct ed_piece *piece)
{
	size_t index = (size_t)(piece - region->pieces);

	if (piece->sort != VARIABLE)
		region->in_use -= piece->size;
	memmove(piece, piece + 1, (--region->count - index) * sizeof(*piece));
}

/*
 * Give the pages of large memory back, which is zero from then on. False if it is small, or the system cannot: nothing
 * has changed then.
 */
static bool discard(uint8_t *bytes, uint64_t size)
{
	uint64_t before = -(uint64_t)(uintptr_t)bytes % PAGE;

	if (size <= LARGE)
		return false;
	uint64_t pages = (size - before) / PAGE * PAGE;
	if (madvise(bytes + before, pages, MADV_REMOVE) != 0)
		return false;
	memset(bytes, 0, before);
	memset(bytes + before + pages, 0, size - before - pages);
	return true;
}

/* Fill memory with poison: all of it, or of what is large a part. What it held is gone. */
void ed_memory_poison(uint8_t *bytes, uint64_t size)
{
	if (!discard(bytes, size)) {
		memset(bytes, ED_POISON, size);
		return;
	}
	memset(bytes, ED_POISON, POISON_STRIDE);
	for (uint64_t at = POISON_STRIDE; at + POISON_STRIDE < size; at += POISON_STRIDE)
		memset(bytes + at, ED_POISON, PAGE);
	memset(bytes + size - POISON_STRIDE, ED_POISON, POISON_STRIDE);
}

/* Fill memory of the device, or of the program itself, with a byte. */
void ed_memory_fill(uint8_t *bytes, uint8_t value, uint64_t size)
{
	uint64_t offset = (uint64_t)(bytes - ed_shared.device);

	if (value || offset >= ed_shared.device_size || !discard(bytes, size))
		memset(bytes, value, size);
}

/*
 * Allocate size bytes in a region, filled with poison, and return their address, 0 without room. like: has the new
 * piece's context, sort and flags.
 */
uint64_t ed_region_take(struct ed_region *region, uint64_t size, struct ed_piece like)
{
	size_t index;
	uint64_t offset, address = 0;

	pthread_mutex_lock(&ed_memory_mutex);
	if (!ed_device_region.begin)
		ed_device_region.begin = ed_memory_module_part();
	if (size <= ed_region_size(region) && find_place(region, size, &index, &offset)) {
		like.offset = offset;
		like.size = size;
		if (insert_piece(region, index, like)) {
			ed_memory_poison(region_bytes(region) + offset, size);
			address = ed_region_base(region) + offset;
			tell_device_process(ED_REQUEST_ALLOW, address, size);
		}
	}
	pthread_mutex_unlock(&ed_memory_mutex);
	return address;
}

/*
 * Free a piece (an allocation) of a region: kernels may not access it any more, its bytes are poisoned, and its place
 * is remembered. With ed_memory_mutex held.
 */
static void free_piece(struct ed_region *region, struct ed_piece *piece)
{
	tell_device_process(ED_REQUEST_FORBID, ed_region_base(region) + piece->offset, piece->size);
	ed_memory_poison(region_bytes(region) + piece->offset, piece->size);
	if (region->freed_count == REMEMBERED)
		memmove(&region->freed[0], &region->freed[1], --region->freed_count * sizeof(region->freed[0]));
	region->freed[region->freed_count++] = piece->offset;
	remove_piece(region, piece);
}

/*
 * Add a variable of a module, which the device process (it runs the kernels) has placed, to the list of memory that may
 * be accessed.
 */
void ed_memory_add_variable(struct ed_context *context, uint64_t address, uint64_t size)
{
	uint64_t offset;

	pthread_mutex_lock(&ed_memory_mutex);
	if (size && ed_region_of(address, &offset) == &ed_device_region)
		insert_piece(&ed_device_region, pieces_until(&ed_device_region, offset),
			     (struct ed_piece){.offset = offset, .size = size, .context = context, .sort = VARIABLE});
	pthread_mutex_unlock(&ed_memory_mutex);
}

/* A module is being unloaded: its variable at that address may not be accessed any more. */
void ed_memory_remove_variable(uint64_t address)
{
	uint64_t offset;

	pthread_mutex_lock(&ed_memory_mutex);
	struct ed_piece *piece =
		ed_region_of(address, &offset) == &ed_device_region ? ed_piece_at(&ed_device_region, offset) : NULL;
	if (piece && piece->offset == offset && piece->sort == VARIABLE)
		remove_piece(&ed_device_region, piece);
	pthread_mutex_unlock(&ed_memory_mutex);
}

/*
 * Free the allocation that begins at an address: pinned memory, or other memory. CUDA_ERROR_INVALID_VALUE if there is
 * none.
 */
CUresult ed_memory_release(uint64_t address, bool is_pinned)
{
	uint64_t offset;
	struct ed_region *region = ed_region_of(address, &offset);
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!region)
		return result;
	pthread_mutex_lock(&ed_memory_mutex);
	struct ed_piece *piece = ed_piece_at(region, offset);
	if (piece && piece->offset == offset && piece->sort != VARIABLE && (piece->sort == PINNED) == is_pinned) {
		free_piece(region, piece);
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&ed_memory_mutex);
	return result;
}

/* Free device or managed memory at an address, if it is allocated; in a stream's turn, where nobody takes an error. */
void ed_memory_free_now(uint64_t address)
{
	ed_memory_release(address, false);
}

/* Free all memory that a context allocated. Variables go with their modules. */
void ed_memory_forget_context(const struct ed_context *context)
{
	struct ed_region *regions[] = {&ed_device_region, &ed_host_region};

	pthread_mutex_lock(&ed_memory_mutex);
	for (int i = 0; i < 2; i++)
		for (size_t at = regions[i]->count; at-- > 0;)
			if (regions[i]->pieces[at].context == context && regions[i]->pieces[at].sort != VARIABLE)
				free_piece(regions[i], &regions[i]->pieces[at]);
	pthread_mutex_unlock(&ed_memory_mutex);
}

/* Whether an address is in device memory, allocated or not. */
bool ed_memory_is_device(uint64_t address)
{
	uint64_t offset;

	return ed_region_of(address, &offset) == &ed_device_region;
}

/*
 * Whether an address is in memory that the driver allocated on the host, or that the program registered: copies from
 * there may be read late.
 */
bool ed_memory_is_pinned(uint64_t address)
{
	uint64_t offset;
	bool found = ed_region_of(address, &offset) == &ed_host_region;

	pthread_mutex_lock(&ed_memory_mutex);
	for (size_t i = 0; !found && i < ed_registered_count; i++)
		found = address - ed_registered[i].address < ed_registered[i].size;
	pthread_mutex_unlock(&ed_memory_mutex);
	return found;
}

/* The pointer with which this process accesses an address of the device, or of the program itself. */
uint8_t *ed_memory_here(uint64_t address)
{
	uint64_t offset;

	return ed_region_of(address, &offset) == &ed_device_region ? ed_shared.device + offset : (uint8_t *)(uintptr_t)address;
}

/* Whether size bytes at an address lie in one allocation or variable. Always true for no bytes. */
bool ed_memory_is_valid(uint64_t address, uint64_t size)
{
	uint64_t offset;
	const struct ed_region *region = ed_region_of(address, &offset);

	if (!size)
		return true;
	if (!region)
		return false;
	pthread_mutex_lock(&ed_memory_mutex);
	const struct ed_piece *piece = ed_piece_at(region, offset);
	bool valid = piece && size <= piece->size - (offset - piece->offset);
	pthread_mutex_unlock(&ed_memory_mutex);
	return valid;
}
