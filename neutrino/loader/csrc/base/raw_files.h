/*
 * System calls on descriptors of a thread's own table. A race detector knows descriptors by their numbers alone, and takes
 * equal numbers of two tables for one file; these calls it does not see. Nor is a thread of the program cancelled in them.
 */
#ifndef NEUTRINO_RAW_FILES_H
#define NEUTRINO_RAW_FILES_H

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* openat as a plain system call: no cancellation, and unseen by race detectors. The descriptor, or -1 with errno. */
static inline int nt_raw_openat(int directory, const char *name, int flags, mode_t mode)
{
	return (int)syscall(SYS_openat, directory, name, flags, mode);
}

/*
 * open as a plain system call, for files that exist: no cancellation, and unseen by race detectors. The descriptor, or
 * -1 with errno.
 */
static inline int nt_raw_open(const char *path, int flags)
{
	return nt_raw_openat(AT_FDCWD, path, flags, 0);
}

/* close as a plain system call: no cancellation, and unseen by race detectors. */
static inline int nt_raw_close(int fd)
{
	return (int)syscall(SYS_close, fd);
}

/* read as a plain system call: no cancellation, and unseen by race detectors. Bytes, 0 at the end, or -1 with errno. */
static inline ssize_t nt_raw_read(int fd, void *data, size_t size)
{
	return syscall(SYS_read, fd, data, size);
}

/* pread (read at an offset) as a plain system call: no cancellation, and unseen by race detectors. */
static inline ssize_t nt_raw_pread(int fd, void *data, size_t size, off_t offset)
{
	return syscall(SYS_pread64, fd, data, size, offset);
}

/* write as a plain system call: no cancellation, and unseen by race detectors. May write less than size bytes. */
static inline ssize_t nt_raw_write(int fd, const void *data, size_t size)
{
	return syscall(SYS_write, fd, data, size);
}

/*
 * pwrite (write at an offset) as a plain system call: no cancellation, and unseen by race detectors. May write less
 * than size bytes.
 */
static inline ssize_t nt_raw_pwrite(int fd, const void *data, size_t size, off_t offset)
{
	return syscall(SYS_pwrite64, fd, data, size, offset);
}

/* fstat as a plain system call: no cancellation, and unseen by race detectors. 0, or -1 with errno. */
static inline int nt_raw_stat(int fd, struct stat *ret)
{
	return (int)syscall(SYS_newfstatat, fd, "", ret, AT_EMPTY_PATH);
}

/*
 * socket as a plain system call, with the default protocol: no cancellation, and unseen by race detectors. The
 * descriptor, or -1 with errno.
 */
static inline int nt_raw_socket(int domain, int type)
{
	return (int)syscall(SYS_socket, domain, type, 0);
}

/*
 * connect as a plain system call: no cancellation, and unseen by race detectors. 0, or -1 with errno. size: of the
 * address, in bytes.
 */
static inline int nt_raw_connect(int fd, const void *address, socklen_t size)
{
	return (int)syscall(SYS_connect, fd, address, size);
}

/*
 * send on a socket as a plain system call: no cancellation, and unseen by race detectors. Bytes sent, or -1 with errno.
 */
static inline ssize_t nt_raw_send(int fd, const void *data, size_t size, int flags)
{
	return syscall(SYS_sendto, fd, data, size, flags, NULL, 0);
}

/*
 * recv on a socket as a plain system call: no cancellation, and unseen by race detectors. Bytes, 0 at the end, or -1
 * with errno.
 */
static inline ssize_t nt_raw_recv(int fd, void *data, size_t size, int flags)
{
	return syscall(SYS_recvfrom, fd, data, size, flags, NULL, NULL);
}

/*
 * Wait until one descriptor is ready (ppoll as a plain system call), for so many milliseconds at most. 1: ready, 0: the
 * time is over, -1 with errno.
 */
static inline int nt_raw_poll(struct pollfd *ready, int milliseconds)
{
	struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};

	return (int)syscall(SYS_ppoll, ready, 1, &time, NULL, 0);
}

#endif
