#include "front/cached_pointers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/driver.h"
#include "base/memory.h"
#include "front/hook.h"

/* Pages of which one call finds out whether they are in memory. */
enum { PAGES = 1024 };

/* Callback of nt_memory_map (argument: the search): keep a range that can be read and written. False without memory. */
static bool keep_range(const struct nt_memory_range *range, void *argument)
{
	struct nt_cached_pointers *search = argument;
	int needed = PROT_READ | PROT_WRITE;

	if ((range->protection & needed) != needed)
		return true;
	if (search->count == search->capacity) {
		size_t capacity = search->capacity ? 2 * search->capacity : 256;
		struct nt_memory_range *rows = nt_memory_realloc(search->writable, capacity * sizeof(*rows));
		if (!rows)
			return false;
		search->writable = rows;
		search->capacity = capacity;
	}
	search->writable[search->count++] = *range;
	return true;
}

/*
 * Prepare a search for pointers to the driver's functions that objects keep in their data: lists the process's writable
 * memory. False without memory, or if that cannot be read. Ends with nt_cached_pointers_end.
 */
bool nt_cached_pointers_begin(struct nt_cached_pointers *ret)
{
	*ret = (struct nt_cached_pointers){.lowest = UINTPTR_MAX};
#define NT_WIDEN(name, parameters, ...)                                                                                \
	if (nt_driver.name) {                                                                                          \
		uintptr_t address = (uintptr_t)*(void **)&nt_driver.name;                                              \
		ret->lowest = address < ret->lowest ? address : ret->lowest;                                           \
		ret->highest = address > ret->highest ? address : ret->highest;                                        \
	}
	NT_DRIVER_INTERCEPTED(NT_WIDEN)
#undef NT_WIDEN
	if (nt_memory_map(keep_range, ret))
		return true;
	nt_cached_pointers_end(ret);
	return false;
}

/* Free what nt_cached_pointers_begin has allocated. */
void nt_cached_pointers_end(struct nt_cached_pointers *search)
{
	nt_memory_free(search->writable);
	*search = (struct nt_cached_pointers){0};
}

/*
 * Replace pointers to the driver's functions, in the words of memory from `from` to `to`, by our functions that wrap
 * them. Not for sanitizers: it reads other objects' variables and what lies between them, while the program's threads
 * may write there.
 */
__attribute__((no_sanitize("address", "thread", "undefined"))) static void
redirect_words(const struct nt_cached_pointers *search, uintptr_t from, uintptr_t to)
{
	for (void **slot = (void **)from; (uintptr_t)slot < to; slot++) {
		void *real = __atomic_load_n(slot, __ATOMIC_RELAXED);
		if ((uintptr_t)real < search->lowest || (uintptr_t)real > search->highest)
			continue;
		void *ours = nt_hook_wrapper_of(real);
		/* If the program has changed it meanwhile, it has looked up something else. */
		if (ours != real)
			__atomic_compare_exchange_n(slot, &real, ours, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
	}
}

/*
 * Replace pointers to the driver's functions in whole pages from `from` to `to`; pages that were never written are left
 * out, so that they take no memory now.
 */
static void redirect_pages(const struct nt_cached_pointers *search, uintptr_t from, uintptr_t to, uintptr_t page_size)
{
	unsigned char resident[PAGES];

	for (uintptr_t start = from, end; start < to; start = end) {
		end = to - start > PAGES * page_size ? start + PAGES * page_size : to;
		if (mincore((void *)start, end - start, resident) != 0)
			memset(resident, 1, sizeof(resident));
		for (uintptr_t page = start; page < end; page += page_size)
			if (resident[(page - start) / page_size] & 1)
				redirect_words(search, page, page + page_size);
	}
}

/*
 * Replace the pointers to the driver's functions that an object (program or library) keeps in its writable data by our
 * functions that wrap them. The caller holds the dynamic loader's lock.
 */
void nt_cached_pointers_redirect(const struct nt_cached_pointers *search, const struct nt_object *object)
{
	uintptr_t page_size = (uintptr_t)sysconf(_SC_PAGESIZE);

	for (unsigned i = 0; i < object->count; i++) {
		const ElfW(Phdr) *segment = &object->segments[i];
		if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_W))
			continue;
		/* The dynamic loader maps whole pages, and leaves nothing else in the first and the last one. */
		uintptr_t from = (object->base + segment->p_vaddr) & -page_size;
		uintptr_t to = (object->base + segment->p_vaddr + segment->p_memsz + page_size - 1) & -page_size;
		for (size_t j = 0; j < search->count && search->writable[j].from < to; j++) {
			const struct nt_memory_range *range = &search->writable[j];
			if (range->to > from)
				redirect_pages(search, range->from > from ? range->from : from,
					       range->to < to ? range->to : to, page_size);
		}
	}
}
