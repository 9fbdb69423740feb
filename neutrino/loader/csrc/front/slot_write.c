#include "front/slot_write.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "front/memory_map.h"

struct page {
	uintptr_t address;
	int protection; /* the result */
};

/* Callback of nt_memory_map (argument: struct page): set the page's protection if it is in this range, and stop. */
static bool find_page(const struct nt_memory_range *range, void *argument)
{
	struct page *page = argument;

	if (page->address < range->from || page->address >= range->to)
		return true;
	page->protection = range->protection;
	return false;
}

/* The protection of a page of this process as PROT_ flags; -1 if it cannot be found out. */
static int protection_of(uintptr_t address)
{
	struct page page = {address, -1};

	nt_memory_map(find_page, &page);
	return page.protection;
}

/* Whether an address is in memory of an object that the dynamic loader has made read-only after relocation (RELRO). */
static bool is_in_relro(const struct nt_object *object, uintptr_t address, uintptr_t page_size)
{
	for (unsigned i = 0; i < object->count; i++) {
		const ElfW(Phdr) *segment = &object->segments[i];
		/* Rounded as the dynamic loader does. */
		uintptr_t start = (object->base + segment->p_vaddr) & -page_size;
		uintptr_t end = (object->base + segment->p_vaddr + segment->p_memsz) & -page_size;
		if (segment->p_type == PT_GNU_RELRO && address >= start && address < end)
			return true;
	}
	return false;
}

/*
 * Write a pointer into a slot of an object (through which it calls a function of another one); its page is made
 * writable meanwhile. By one store of 8 bytes, since other threads may be calling through it. False if that cannot be
 * done. The caller holds the dynamic loader's lock.
 */
bool nt_slot_write(const struct nt_object *object, void **slot, void *value)
{
	uintptr_t page_size = (uintptr_t)sysconf(_SC_PAGESIZE), page = (uintptr_t)slot & -page_size;
	const ElfW(Phdr) *segment = nt_object_segment(object, (uintptr_t)slot, sizeof(*slot));
	int before = PROT_READ | PROT_WRITE;

	if (!segment || !(segment->p_flags & PF_W))
		return false;
	/* Outside of it a writable segment is writable, which need not be looked up. */
	if (is_in_relro(object, (uintptr_t)slot, page_size)) {
		before = protection_of(page);
		if (before < 0)
			before = PROT_READ; /* as the dynamic loader leaves it */
	}
	if (!(before & PROT_WRITE) && mprotect((void *)page, page_size, before | PROT_WRITE) != 0)
		return false;
	__atomic_store_n(slot, value, __ATOMIC_RELEASE);
	if (!(before & PROT_WRITE))
		mprotect((void *)page, page_size, before);
	return true;
}
