#include "front/memory_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/errand.h"
#include "base/memory.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"

/* /proc/self/maps, in memory of nt_memory_alloc. It can change while it is read, by whole lines. */
struct text {
	char *data;
	size_t used;
	bool is_whole;
};

/*
 * Errand (argument: struct text): read /proc/self/maps whole into memory of nt_memory_alloc; is_whole says whether that
 * succeeded.
 */
static void read_maps(void *argument)
{
	enum { STEP = 64 << 10 };
	struct text *text = argument;
	int fd = nt_quiet_write_above_stdio(nt_raw_open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
	ssize_t count = fd < 0 ? -1 : 1;

	while (count > 0) {
		char *larger = nt_memory_realloc(text->data, text->used + STEP + 1);
		if (!larger)
			break;
		text->data = larger;
		do
			count = nt_raw_read(fd, text->data + text->used, STEP);
		while (count < 0 && errno == EINTR);
		text->used += count > 0 ? (size_t)count : 0;
		text->data[text->used] = 0;
	}
	text->is_whole = count == 0;
	if (fd >= 0)
		nt_raw_close(fd);
}

/*
 * Call visit for each mapped range of this process, in the order of addresses, until it returns false. False if the
 * ranges cannot be read. argument: for visit.
 */
bool nt_memory_map(bool (*visit)(const struct nt_memory_range *range, void *argument), void *argument)
{
	struct text text = {NULL, 0, false};
	bool goes_on = true;

	nt_errand_run(read_maps, &text);
	/* Each line begins with "from-to rwxp". */
	for (char *line = text.data, *end; text.is_whole && goes_on && (end = strchr(line, '\n')); line = end + 1) {
		unsigned long from, to;
		char flags[5] = "";
		if (sscanf(line, "%lx-%lx %4s", &from, &to, flags) != 3)
			continue;
		struct nt_memory_range range = {from, to,
						(flags[0] == 'r' ? PROT_READ : 0) | (flags[1] == 'w' ? PROT_WRITE : 0) |
							(flags[2] == 'x' ? PROT_EXEC : 0)};
		goes_on = visit(&range, argument);
	}
	nt_memory_free(text.data);
	return text.is_whole;
}
