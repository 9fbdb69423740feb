#include "front/memory_map.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/quiet_write.h"


/* nt_memory_map on fd, which is /proc/self/maps. False if it cannot be read to its end. */
static bool visit_lines(int fd, bool (*visit)(const struct nt_memory_range *range, void *argument), void *argument)
{
	char text[4096];
	size_t used = 0;

	for (;;) {
		ssize_t count = read(fd, text + used, sizeof(text) - 1 - used);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return count == 0;
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
			if (sscanf(line, "%lx-%lx %4s", &from, &to, flags) == 3) {
				struct nt_memory_range range = {from, to,
								(flags[0] == 'r' ? PROT_READ : 0) |
									(flags[1] == 'w' ? PROT_WRITE : 0) |
									(flags[2] == 'x' ? PROT_EXEC : 0)};
				if (!visit(&range, argument))
					return true;
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
}

bool nt_memory_map(bool (*visit)(const struct nt_memory_range *range, void *argument), void *argument)
{
	bool ret = false;
	int before;

	/*
	 * A thread that is cancelled must not end in open or read: the dynamic loader's lock, which callers hold, would
	 * never be released.
	 */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	int fd = nt_quiet_write_above_stdio(open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
	if (fd >= 0) {
		ret = visit_lines(fd, visit, argument);
		close(fd);
	}
	pthread_setcancelstate(before, NULL);
	return ret;
}
