#include "image/cached_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"
#include "base/scope.h"
#include "base/settings.h"
#include "base/trusted.h"

#define KEY_SIZE 32

/* Read exactly size bytes; false if there are fewer, or on an error. */
static bool read_all(int fd, void *data, size_t size)
{
	uint8_t *bytes = data;

	while (size) {
		ssize_t count = nt_raw_read(fd, bytes, size);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return false;
		bytes += count;
		size -= (size_t)count;
	}
	return true;
}

/* The path of the cache's file of that kind and key; false if no cache is set, or the path is too long. */
bool nt_cached_file_path(const struct nt_cached_file *kind, const uint8_t key[32], char ret[PATH_MAX])
{
	const char *cache = nt_settings()->cache;
	char hex[2 * KEY_SIZE + 1];

	for (int i = 0; i < KEY_SIZE; i++)
		snprintf(hex + 2 * i, 3, "%02x", key[i]); /* two digits and NUL */
	return cache && snprintf(ret, PATH_MAX, "%s/%s/%.2s/%s%s", cache, kind->folder, hex, hex, kind->ending) < PATH_MAX;
}

/*
 * Read the cache's file of that kind and key, in an errand (a function that a helper thread calls). Returns memory of
 * nt_memory_alloc, the caller's, of *size bytes; NULL if there is none, or another user could have written it.
 */
void *nt_cached_file_read(const struct nt_cached_file *kind, const uint8_t key[32], size_t *size)
{
	char path[PATH_MAX];
	struct stat status;

	if (!nt_cached_file_path(kind, key, path) || !nt_trusted_path(nt_settings()->cache, true))
		return NULL;
	NT_CLOSED int fd = nt_quiet_write_above_stdio(nt_raw_open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
	if (fd < 0 || nt_raw_stat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
	    status.st_size <= 0 || (uint64_t)status.st_size >= kind->limit)
		return NULL;
	/* Read, not mapped: if another process truncated a mapped file, the program would get SIGBUS. */
	NT_FREED void *data = nt_memory_alloc((size_t)status.st_size);
	if (!data || !read_all(fd, data, (size_t)status.st_size))
		return NULL;
	*size = (size_t)status.st_size;
	return nt_scope_keep(&data);
}
