#include "base/own_table.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/quiet_write.h"
#include "base/raw_files.h"

#ifndef SYS_close_range
#define SYS_close_range 436 /* Linux 5.9, the same number on all architectures */
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2u
#endif

/* Close all descriptors of the calling thread's own table, which unshare has filled with copies of the program's. */
static void close_copies(void)
{
	DIR *listing = opendir("/proc/thread-self/fd");
	struct dirent *entry;

	if (!listing)
		return;
	while ((entry = readdir(listing))) {
		int fd = atoi(entry->d_name);
		if (entry->d_name[0] != '.' && fd != dirfd(listing))
			nt_raw_close(fd);
	}
	closedir(listing);
}

/*
 * Open the calling thread's status file, for nt_own_table_count_filters; -1 if it cannot be opened. The caller closes
 * it.
 */
int nt_own_table_open_filters(void)
{
	return nt_quiet_write_above_stdio(nt_raw_open("/proc/thread-self/status", O_RDONLY | O_CLOEXEC));
}

/*
 * How many seccomp filters (rules for system calls) the thread has that opened fd by nt_own_table_open_filters; -1 if
 * that is not known, also for fd -1. A new one may kill a thread of ours that opens a file.
 */
int nt_own_table_count_filters(int fd)
{
	char text[4096];
	ssize_t size = fd < 0 ? -1 : nt_raw_pread(fd, text, sizeof(text) - 1, 0);

	if (size <= 0)
		return -1;
	text[size] = 0;
	const char *line = strstr(text, "\nSeccomp_filters:");
	return line ? atoi(line + sizeof("\nSeccomp_filters:") - 1) : -1;
}

/*
 * Give the calling thread a descriptor table of its own, without any of the program's descriptors: neither sees or
 * closes what the other opens. False if the system does not allow it.
 */
bool nt_own_table_unshare(void)
{
	/* close_range copies nothing of the table; containers allow it where they forbid unshare. */
	if (syscall(SYS_close_range, 0u, ~0u, CLOSE_RANGE_UNSHARE) == 0)
		return true;
	if (unshare(CLONE_FILES) != 0)
		return false;
	close_copies();
	return true;
}
