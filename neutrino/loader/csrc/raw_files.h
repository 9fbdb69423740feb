/*
 * System calls on descriptors of the writer's own table. A race detector knows descriptors by their numbers alone, and takes
 * equal numbers of two tables for one file; these calls it does not see. Nor is a thread of the program cancelled in them.
 */
#ifndef NEUTRINO_RAW_FILES_H
#define NEUTRINO_RAW_FILES_H

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int nt_raw_openat(int directory, const char *name, int flags, mode_t mode)
{
	return (int)syscall(SYS_openat, directory, name, flags, mode);
}

static inline int nt_raw_open(const char *path, int flags)
{
	return nt_raw_openat(AT_FDCWD, path, flags, 0);
}

static inline int nt_raw_close(int fd)
{
	return (int)syscall(SYS_close, fd);
}

static inline ssize_t nt_raw_read(int fd, void *data, size_t size)
{
	return syscall(SYS_read, fd, data, size);
}

static inline ssize_t nt_raw_pread(int fd, void *data, size_t size, off_t offset)
{
	return syscall(SYS_pread64, fd, data, size, offset);
}

static inline ssize_t nt_raw_write(int fd, const void *data, size_t size)
{
	return syscall(SYS_write, fd, data, size);
}

static inline ssize_t nt_raw_pwrite(int fd, const void *data, size_t size, off_t offset)
{
	return syscall(SYS_pwrite64, fd, data, size, offset);
}

static inline int nt_raw_stat(int fd, struct stat *ret)
{
	return (int)syscall(SYS_newfstatat, fd, "", ret, AT_EMPTY_PATH);
}

#endif
