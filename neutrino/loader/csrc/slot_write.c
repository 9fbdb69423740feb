#include "slot_write.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trace.h"

/*
 * The protection of a page as PROT_ flags, read from fd, which is /proc/self/maps; -1 if the page is not listed.
 */
static int read_protection(int fd, uintptr_t page)
{
	char text[4096];
	size_t used = 0;

	for (;;) {
		ssize_t count = read(fd, text + used, sizeof(text) - 1 - used);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			break;
		used += (size_t)count;
		text[used] = 0;
		/*
		 * Parse the complete lines, which begin with "from-to rwxp"; the start of an incomplete one is moved to the
		 * front. A line longer than the buffer is parsed by its beginning; its continuation does not parse.
		 */
		char *line = text, *end;
		while ((end = strchr(line, '\n')) || used == sizeof(text) - 1) {
			unsigned long from, to;
			char flags[5] = "";
			if (sscanf(line, "%lx-%lx %4s", &from, &to, flags) == 3 && page >= from && page < to) {
				return (flags[0] == 'r' ? PROT_READ : 0) | (flags[1] == 'w' ? PROT_WRITE : 0) |
				       (flags[2] == 'x' ? PROT_EXEC : 0);
			}
			if (!end) {
				line = text + used;
				break;
			}
			line = end + 1;
		}
		used -= (size_t)(line - text);
		memmove(text, line, used);
	}
	return -1;
}

/* The protection of a page of this process as PROT_ flags; -1 if it cannot be found out. */
static int protection_of(uintptr_t page)
{
	int ret = -1, before;

	/*
	 * A thread that is cancelled must not end in open or read: the dynamic loader's lock, which it holds, would never
	 * be released.
	 */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	int fd = nt_above_stdio(open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
	if (fd >= 0) {
		ret = read_protection(fd, page);
		close(fd);
	}
	pthread_setcancelstate(before, NULL);
	return ret;
}

/* Whether the dynamic loader has made an address read-only after relocation (RELRO). */
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
