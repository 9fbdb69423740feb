#include "trace/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/errand.h"
#include "base/memory.h"
#include "base/own_table.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"
#include "base/trusted.h"

static struct {
	char path[PATH_MAX];
	dev_t device;
	ino_t inode;
	int folder;	 /* open while the table is the thread's own, else -1 */
	int status;	 /* /proc/thread-self/status, open as long; -1: none */
	int filters;	 /* seccomp filters of the thread at the start */
	bool has_table;
} files = {.folder = -1, .status = -1};

/*
 * Give the writer's thread a descriptor table of its own, so that its files may stay open; where that is not allowed
 * they are opened for each write.
 */
void nt_files_own_table(void)
{
	files.has_table = nt_errand_take_table();
	if (!files.has_table)
		return;
	files.status = nt_own_table_open_filters();
	files.filters = nt_own_table_count_filters(files.status);
}

/* Whether the writer's files may stay open, as its thread has a descriptor table of its own. */
bool nt_files_keep_open(void)
{
	return files.has_table;
}

/*
 * The trace directory, open: the held descriptor, or one that the caller must close. -1 with errno set if that fails, or
 * if the path is no longer the directory that was created.
 */
static int open_directory(void)
{
	struct stat status;

	if (files.folder >= 0)
		return files.folder;
	int fd = nt_quiet_write_above_stdio(nt_raw_open(files.path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
	if (fd < 0)
		return -1;
	if (nt_raw_stat(fd, &status) == 0 && status.st_dev == files.device && status.st_ino == files.inode)
		return fd;
	nt_raw_close(fd);
	errno = ESTALE;
	return -1;
}

/* Close what open_directory has returned, unless it is the descriptor that stays open. errno stays. */
static void close_directory(int fd)
{
	int before = errno;

	if (fd != files.folder)
		nt_raw_close(fd);
	errno = before;
}

/* Create a folder and all that are missing above it, as mkdir -p. path: changed meanwhile, and restored. */
static void create_folders(char *path)
{
	for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		mkdir(path, 0755);
		*slash = '/';
	}
	mkdir(path, 0755);
}

/*
 * Open the folder in which the trace is made. -1 if that fails, or if another user could replace what is made there: then
 * why gets the reason. A link is followed if it is the user's own or the administrator's.
 */
static int open_parent(const char *path, const char **why)
{
	struct stat status = {0};
	int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

	if (lstat(path, &status) == 0 && S_ISLNK(status.st_mode) && status.st_uid != geteuid() && status.st_uid != 0) {
		*why = "it is another user's link";
		errno = EPERM;
		return -1;
	}
	int fd = nt_quiet_write_above_stdio(nt_raw_open(path, S_ISLNK(status.st_mode) ? flags : flags | O_NOFOLLOW));
	if (fd < 0 || nt_raw_stat(fd, &status) != 0)
		return fd;
	/* In a folder with the sticky bit, as /tmp, others cannot rename what is ours. */
	if (status.st_uid != geteuid() && status.st_uid != 0)
		*why = "it belongs to another user; give --tracedir a folder of your own";
	else if ((status.st_mode & (S_IWGRP | S_IWOTH)) && !(status.st_mode & S_ISVTX))
		*why = "others can write there; chmod go-w it, or give --tracedir another folder";
	if (!*why)
		return fd;
	nt_raw_close(fd);
	errno = EPERM;
	return -1;
}

/*
 * Create this process's trace directory in folder, an absolute path. path, of PATH_MAX bytes, gets its path. False if
 * that fails, or others could change what is there: errno is set, and *why gets a reason that errno cannot give, or
 * NULL.
 */
bool nt_files_create(const char *folder, char *path, const char **why)
{
	char parent[PATH_MAX - 64], name[64]; /* parent leaves room for the folder's own name */
	time_t now = time(NULL);
	struct stat status;
	struct tm local;

	*why = NULL;
	errno = EINVAL;
	/* Only an absolute path: the program may have changed its working directory. */
	if (!folder || *folder != '/' || strlen(folder) >= sizeof(parent) || !localtime_r(&now, &local))
		return false;
	strcpy(parent, folder);
	/* Nothing is made where others can change it; who may write to the folder itself is seen when it is open. */
	char *last = strrchr(parent + 1, '/');
	if (last)
		*last = 0;
	bool is_trusted = !last || nt_trusted_path(parent, false);
	if (last)
		*last = '/';
	if (is_trusted)
		create_folders(parent);
	int above = is_trusted ? open_parent(parent, why) : -1;
	/* It may be a link. */
	if (above >= 0 && !nt_trusted_path(parent, false)) {
		nt_raw_close(above);
		above = -1;
		is_trusted = false;
	}
	if (!is_trusted) {
		*why = "a folder above it belongs to another user, or others can write there; give --tracedir another folder";
		errno = EPERM;
	}
	if (above < 0)
		return false;
	bool made = false;
	/* The name may be taken: processes of two containers may have the same pid. */
	for (int attempt = 0; attempt < 100 && !made; attempt++) {
		/* Not strftime's %b, which depends on the program's locale. */
		int used = snprintf(name, sizeof(name), "%.3s%02d_%02d%02d%02d_%d",
				    &"JanFebMarAprMayJunJulAugSepOctNovDec"[3 * local.tm_mon], local.tm_mday, local.tm_hour,
				    local.tm_min, local.tm_sec, (int)getpid());
		if (attempt)
			snprintf(name + used, sizeof(name) - (size_t)used, ".%d", attempt);
		made = mkdirat(above, name, 0700) == 0;
		if (!made && errno != EEXIST)
			break;
	}
	int fd = made ? nt_quiet_write_above_stdio(nt_raw_openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0)) : -1;
	int cause = errno;
	nt_raw_close(above);
	errno = cause;
	if (fd < 0 || nt_raw_stat(fd, &status) != 0)
		return false;
	files.device = status.st_dev;
	files.inode = status.st_ino;
	if (files.has_table)
		files.folder = fd;
	else
		nt_raw_close(fd);
	snprintf(path, PATH_MAX, "%s/%s", parent, name);
	strcpy(files.path, path);
	return true;
}

/* Remove the trace directory again, which is empty, after a start that failed. */
void nt_files_remove_directory(void)
{
	rmdir(files.path);
}

/*
 * Whether a seccomp filter that the program has installed since may kill the process if this thread opens a file. Open
 * files can still be written.
 */
bool nt_files_is_filtered(void)
{
	return files.has_table && nt_own_table_count_filters(files.status) != files.filters;
}

/*
 * Open a file of the trace directory, for the user alone if it is new. flags: as for open. -1 if that fails, or if
 * opening a file could end the program.
 */
int nt_files_open(const char *name, int flags)
{
	if (nt_files_is_filtered()) {
		errno = EPERM;
		return -1;
	}
	int directory = open_directory();
	if (directory < 0)
		return -1;
	int fd = nt_quiet_write_above_stdio(nt_raw_openat(directory, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600));
	close_directory(directory);
	return fd;
}

/* Write a file of the trace directory atomically: whole, or as it was before. False if that fails. */
bool nt_files_write(const char *name, const void *data, size_t size)
{
	char temporary[512];

	if (snprintf(temporary, sizeof(temporary), "%s~", name) >= (int)sizeof(temporary))
		return false;
	int fd = nt_files_open(temporary, O_WRONLY | O_CREAT | O_TRUNC);
	if (fd < 0)
		return false;
	bool written = nt_quiet_write_all(fd, data, size);
	written &= nt_raw_close(fd) == 0;
	int directory = open_directory();
	if (directory < 0)
		return false;
	written = written && renameat(directory, temporary, directory, name) == 0;
	if (!written)
		unlinkat(directory, temporary, 0);
	close_directory(directory);
	return written;
}

/* Write a file of the cache atomically, for the user alone. path: absolute. False if that fails. */
bool nt_files_write_cached(const char *path, const void *data, size_t size)
{
	char temporary[PATH_MAX];

	if (nt_files_is_filtered() || snprintf(temporary, sizeof(temporary), "%s.%d~", path, getpid()) >= (int)sizeof(temporary))
		return false;
	int fd = nt_quiet_write_above_stdio(
		nt_raw_openat(AT_FDCWD, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
	if (fd < 0)
		return false;
	bool written = nt_quiet_write_all(fd, data, size);
	written &= nt_raw_close(fd) == 0;
	written = written && rename(temporary, path) == 0;
	if (!written)
		unlink(temporary);
	return written;
}

/* Copy a small file at `path` into the trace directory. True also if it is not there; false if it cannot be written. */
bool nt_files_copy(const char *name, const char *path)
{
	enum { LARGEST_COPY = 1 << 20 }; /* bytes; the files that are copied are far smaller */
	struct stat status;
	char *data = NULL;
	bool written = true;

	int fd = nt_quiet_write_above_stdio(nt_raw_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
	if (fd < 0)
		return true;
	if (nt_raw_stat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size < LARGEST_COPY &&
	    (data = nt_memory_alloc((size_t)status.st_size + 1)) && nt_raw_read(fd, data, (size_t)status.st_size) == status.st_size)
		written = nt_files_write(name, data, (size_t)status.st_size);
	nt_memory_free(data);
	nt_raw_close(fd);
	return written;
}

/* Create a folder in the trace directory; true also if it is there. False if that fails. */
bool nt_files_mkdir(const char *name)
{
	int directory = open_directory();

	if (directory < 0)
		return false;
	bool made = mkdirat(directory, name, 0700) == 0 || errno == EEXIST;
	close_directory(directory);
	return made;
}

/* Remove a file of the trace directory. False if that fails. */
bool nt_files_unlink(const char *name)
{
	int directory = open_directory();

	if (directory < 0)
		return false;
	bool gone = unlinkat(directory, name, 0) == 0;
	close_directory(directory);
	return gone;
}

static int failure; /* an errno; 0: none */

/* Whether an errno says that there is no space left for the user. */
static bool is_no_space(int error)
{
	return error == ENOSPC || error == EDQUOT;
}

/* Remember why a write to the trace has failed, by errno; 0 is no reason. That there was no space is kept. */
void nt_files_failed(void)
{
	if (errno && !is_no_space(__atomic_load_n(&failure, __ATOMIC_RELAXED)))
		__atomic_store_n(&failure, errno, __ATOMIC_RELAXED);
}

/* The errno that nt_files_failed has remembered; 0: none. From any thread. */
int nt_files_failure(void)
{
	return __atomic_load_n(&failure, __ATOMIC_RELAXED);
}

/* Why a write has failed, in words, by its errno. */
const char *nt_files_words(int error)
{
	if (error == ENOSPC)
		return "the disk was full";
	return error == EDQUOT ? "the disk quota was used up" : strerror(error);
}

#define RESERVE "reserve"
#define RESERVE_MOST (UINT64_C(1) << 20) /* bytes */
#define RESERVE_PART 64 /* of what is free, at most one part of so many */
static bool has_reserve;

/*
 * Set some space of the disk aside, in a file of the trace directory, which nt_files_release gives back at the end: a
 * full disk that is copied on write takes nothing at all, not even in place of what is there.
 */
void nt_files_reserve(void)
{
	struct statvfs disk;
	int fd = nt_files_open(RESERVE, O_WRONLY | O_CREAT | O_EXCL);

	if (fd < 0)
		return;
	uint64_t size = fstatvfs(fd, &disk) == 0 ? (uint64_t)disk.f_bavail * disk.f_frsize / RESERVE_PART : 0;
	if (size > RESERVE_MOST)
		size = RESERVE_MOST;
	/* Where a file system cannot do that, or the program's limit on the size of files is lower, there is none. */
	has_reserve = size && nt_quiet_write_allocate(fd, size);
	nt_raw_close(fd);
	if (!has_reserve)
		nt_files_unlink(RESERVE);
}

/* Give back the space of the disk that was set aside, for the last files of the trace. */
void nt_files_release(void)
{
	if (has_reserve && !nt_files_is_filtered())
		nt_files_unlink(RESERVE);
	has_reserve = false;
}
