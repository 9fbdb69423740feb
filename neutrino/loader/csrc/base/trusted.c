#include "base/trusted.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_LINKS 40 /* as many as Linux follows */

/* lstat as a plain system call: of a symbolic link itself. 0, or -1 with errno. */
static int stat_link(const char *path, struct stat *ret)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, path, ret, AT_SYMLINK_NOFOLLOW);
}

/*
 * Whether other users can change a file, or what is in a folder (one with the sticky bit does not count). groups:
 * whether write permission of the group counts, too.
 */
static bool is_open(const struct stat *status, bool groups)
{
	mode_t writable = status->st_mode & (groups ? S_IWGRP | S_IWOTH : S_IWOTH);

	return writable && !(S_ISDIR(status->st_mode) && (status->st_mode & S_ISVTX));
}

/*
 * Whether no other user can change what an absolute path leads to: each folder from / on, each link, and what links
 * lead to, belongs to root, to this process's user or to the owner of /, and nobody else can write to it, but for
 * folders with the sticky bit. What does not exist does not count. groups: false if write permission of the group is no
 * fault.
 */
bool nt_trusted_path(const char *path, bool groups)
{
	/* What was examined, without links and .., up to end; what was not, from rest on. A slash is before rest. */
	char walk[PATH_MAX];
	size_t end = 0, rest = 0;
	unsigned links = 0;
	struct stat root, status;

	if (*path != '/' || strlen(path) >= sizeof(walk) || stat_link("/", &root) != 0 || is_open(&root, groups))
		return false;
	strcpy(walk, path);
	for (;;) {
		rest += strspn(walk + rest, "/");
		size_t size = strcspn(walk + rest, "/");
		if (!size)
			return true;
		if (size == 1 && walk[rest] == '.') {
			rest += size;
			continue;
		}
		if (size == 2 && !strncmp(walk + rest, "..", 2)) {
			rest += size;
			while (end && walk[--end] != '/')
				;
			continue;
		}
		walk[end] = '/';
		memmove(walk + end + 1, walk + rest, size);
		rest += size;
		size_t next = end + 1 + size;
		char after = walk[next];
		walk[next] = 0;
		/* It is not there, or this process may not look at it, and so not use it either. */
		if (stat_link(walk, &status) != 0)
			return true;
		if (status.st_uid != 0 && status.st_uid != geteuid() && status.st_uid != root.st_uid)
			return false;
		if (!S_ISLNK(status.st_mode)) {
			if (is_open(&status, groups))
				return false;
			walk[next] = after;
			end = next;
			continue;
		}
		/* What the link leads to goes before the rest. */
		if (next == rest)
			walk[next] = after;
		size_t left = strlen(walk + rest) + 1, tail = sizeof(walk) - left;
		memmove(walk + tail, walk + rest, left);
		walk[next] = 0;
		long length = tail > next + 1 ? syscall(SYS_readlinkat, AT_FDCWD, walk, walk + next + 1, tail - next - 1) : -1;
		if (length <= 0 || (size_t)length == tail - next - 1 || ++links > MOST_LINKS)
			return false;
		rest = next + 1;
		memmove(walk + rest + length, walk + tail, left);
		end = walk[rest] == '/' ? 0 : end;
	}
}
