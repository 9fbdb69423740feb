#include "base/quiet_write.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/raw_files.h"

/*
 * Signals that a write can raise: past RLIMIT_FSIZE, into a pipe without a reader, to the terminal of another process
 * group. They could end the program, although the write is the hook's. So they are blocked in the calling thread during
 * the write, and removed afterwards if they were raised.
 */
struct blocked_signals {
	sigset_t blocked; /* those of these signals that were not pending already */
	sigset_t mask;	  /* the thread's mask before */
};

/*
 * Block, in the calling thread, the signals that a write can raise, so that none of them ends the program. ret: what
 * unblock_signals needs.
 */
static void block_signals(struct blocked_signals *ret)
{
	static const int raised[] = {SIGXFSZ, SIGPIPE, SIGTTOU};
	sigset_t pending;

	sigemptyset(&pending);
	sigpending(&pending);
	sigemptyset(&ret->blocked);
	for (size_t i = 0; i < sizeof(raised) / sizeof(raised[0]); i++)
		if (!sigismember(&pending, raised[i]))
			sigaddset(&ret->blocked, raised[i]);
	pthread_sigmask(SIG_BLOCK, &ret->blocked, &ret->mask);
}

/* After a write: discard the signals that it raised, and restore the thread's signal mask. errno stays. */
static void unblock_signals(const struct blocked_signals *signals)
{
	const struct timespec no_wait = {0};
	int before = errno;

	/* Take those that were raised meanwhile, which must not be delivered, until there is none (EAGAIN). */
	while (sigtimedwait(&signals->blocked, NULL, &no_wait) > 0 || errno == EINTR)
		;
	pthread_sigmask(SIG_SETMASK, &signals->mask, NULL);
	errno = before;
}

/*
 * Write all bytes, with signals blocked: at the file's position if offset is negative, else at that offset. False if
 * not all could be written.
 */
static bool write_at(int fd, const char *bytes, size_t size, off_t offset)
{
	struct blocked_signals signals;

	block_signals(&signals);
	while (size) {
		ssize_t written = offset < 0 ? nt_raw_write(fd, bytes, size) : nt_raw_pwrite(fd, bytes, size, offset);
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			break;
		bytes += written;
		size -= (size_t)written;
		if (offset >= 0)
			offset += written;
	}
	unblock_signals(&signals);
	return size == 0;
}

/* Write all bytes at the file's position, without any signal to the program; false if that fails. */
bool nt_quiet_write_all(int fd, const void *data, size_t size)
{
	return write_at(fd, data, size, -1);
}

/* Write all bytes at an offset of the file, without any signal to the program; false if that fails. */
bool nt_quiet_write_all_at(int fd, const void *data, size_t size, uint64_t offset)
{
	return write_at(fd, data, size, (off_t)offset);
}

/*
 * Have the disk set size bytes aside for an empty file, which gets that size, without any signal to the program; false
 * if that fails.
 */
bool nt_quiet_write_allocate(int fd, uint64_t size)
{
	struct blocked_signals signals;

	block_signals(&signals);
	bool allocated = fallocate(fd, 0, 0, (off_t)size) == 0;
	unblock_signals(&signals);
	return allocated;
}

/*
 * Make sure that a new descriptor is not 0, 1 or 2, which the program would take for its stdin, stdout or stderr:
 * returns fd, or a duplicate with a higher number and closes fd. -1 if fd is negative or that fails.
 */
int nt_quiet_write_above_stdio(int fd)
{
	if (fd < 0 || fd > 2)
		return fd;
	int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	nt_raw_close(fd);
	return moved;
}

/* The file that stderr was at the start. */
static struct {
	dev_t device;
	ino_t file;
	bool is_known;
} standard_error;

/* Remember which file stderr is. Until then, and when it is another one later, nt_quiet_write_say is silent. */
void nt_quiet_write_say_start(void)
{
	struct stat status;

	if (nt_raw_stat(STDERR_FILENO, &status) != 0)
		return;
	standard_error.device = status.st_dev;
	standard_error.file = status.st_ino;
	standard_error.is_known = true;
}

/*
 * Write a line of length bytes to stderr, if it is still the file that it was at the start and takes the line without
 * blocking. Control characters in it become '?', except the last byte.
 */
static void write_line(char line[PIPE_BUF], int length)
{
	struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
	struct stat status;

	/* Paths may have escape sequences, which a terminal would obey. */
	for (int i = 0; i < length - 1 && length < PIPE_BUF; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	/*
	 * A program may have closed its stderr and opened a file of its own under that number. A write to a full pipe would
	 * block the program; if poll reports POLLOUT, at least PIPE_BUF bytes fit.
	 */
	if (length > 0 && length < PIPE_BUF && standard_error.is_known && nt_raw_stat(STDERR_FILENO, &status) == 0 &&
	    status.st_dev == standard_error.device && status.st_ino == standard_error.file &&
	    poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT))
		nt_quiet_write_all(STDERR_FILENO, line, (size_t)length);
}

/*
 * Write a line, formatted as by printf and with its newline, to stderr, if that does not block and stderr is still the
 * program's. Too long a line (PIPE_BUF) is left out. errno stays.
 */
void nt_quiet_write_say(const char *format, ...)
{
	char line[PIPE_BUF];
	va_list arguments;
	int before = errno;

	va_start(arguments, format);
	int length = vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	write_line(line, length);
	errno = before;
}
