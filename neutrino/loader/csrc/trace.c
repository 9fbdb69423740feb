#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FIRST_RECORDS 32768u		  /* of launches.bin, to begin with */
#define MOST_RECORDS (UINT64_C(1) << 24) /* address space is reserved for these */
#define RECORDS_OFFSET                                                                                                 \
	((uint64_t)NEUTRINO_LAUNCHES_HEADER_SIZE + (uint64_t)NEUTRINO_MAX_KERNELS * NEUTRINO_REASON_SLOTS * 8)

_Static_assert(sizeof(struct neutrino_launch) == 128, "records of 128 bytes tile a page");

static struct {
	char path[PATH_MAX];
	struct neutrino_launches_header *header; /* NULL until the trace has started */
	uint64_t *counters;
	struct neutrino_launch *records;
	uint64_t capacity; /* records mapped; grows only */
} trace;

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t nt_now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

void nt_sleep_us(long microseconds)
{
	struct timespec pause = {.tv_sec = microseconds / 1000000, .tv_nsec = microseconds % 1000000 * 1000};

	nanosleep(&pause, NULL);
}

const char *nt_trace_path(void)
{
	return trace.path;
}

/* The path of a file of the trace. False if it is longer than size. */
static bool trace_file_path(char *ret, size_t size, const char *name)
{
	int length = snprintf(ret, size, "%s/%s", trace.path, name);
	return length > 0 && (size_t)length < size;
}

/*
 * Signals that a write can raise: past RLIMIT_FSIZE, into a pipe without a reader, to the terminal of another process
 * group. They could end the program, although the write is the hook's. So they are blocked in the calling thread during
 * the write, and removed afterwards if they were raised.
 */
struct blocked_signals {
	sigset_t blocked; /* those of these signals that were not pending already */
	sigset_t mask;	  /* the thread's mask before */
};

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

static void unblock_signals(const struct blocked_signals *signals)
{
	const struct timespec no_wait = {0};

	/* Take those that were raised meanwhile, which must not be delivered, until there is none (EAGAIN). */
	while (sigtimedwait(&signals->blocked, NULL, &no_wait) > 0 || errno == EINTR)
		;
	pthread_sigmask(SIG_SETMASK, &signals->mask, NULL);
}

/* Write all bytes to fd, in the calling thread; false if that fails. No signal reaches the program. */
static bool write_all(int fd, const void *data, size_t size)
{
	const char *bytes = data;
	struct blocked_signals signals;

	block_signals(&signals);
	while (size) {
		ssize_t written = write(fd, bytes, size);
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			break;
		bytes += written;
		size -= (size_t)written;
	}
	unblock_signals(&signals);
	return size == 0;
}

int nt_above_stdio(int fd)
{
	if (fd < 0 || fd > 2)
		return fd;
	int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	close(fd);
	return moved;
}

/* open with flags, for a file of the user alone; the descriptor is none of stdin, stdout, stderr. -1 if that fails. */
static int open_above_stdio(const char *path, int flags)
{
	return nt_above_stdio(open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600));
}

void nt_say(const char *format, ...)
{
	char line[PIPE_BUF];
	struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
	va_list arguments;

	va_start(arguments, format);
	int length = vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	/* A write to a full pipe would block the program. If poll reports POLLOUT, at least PIPE_BUF bytes fit. */
	if (length > 0 && length < (int)sizeof(line) && poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT))
		write_all(STDERR_FILENO, line, (size_t)length);
}

bool nt_trace_file(const char *name, const void *data, size_t size)
{
	char path[PATH_MAX], temporary[PATH_MAX];

	if (!trace_file_path(path, sizeof(path), name) ||
	    snprintf(temporary, sizeof(temporary), "%s~", path) >= (int)sizeof(temporary))
		return false;
	int fd = open_above_stdio(temporary, O_WRONLY | O_CREAT | O_TRUNC);
	if (fd < 0)
		return false;
	bool written = write_all(fd, data, size);
	written &= close(fd) == 0;
	if (written && rename(temporary, path) == 0)
		return true;
	unlink(temporary);
	return false;
}

bool nt_trace_mkdir(const char *name)
{
	char path[PATH_MAX];

	return trace_file_path(path, sizeof(path), name) && (mkdir(path, 0700) == 0 || errno == EEXIST);
}

bool nt_trace_append(const char *name, const struct iovec *parts, int count, uint64_t *offset)
{
	char path[PATH_MAX];
	struct stat before;

	if (!trace_file_path(path, sizeof(path), name))
		return false;
	int fd = open_above_stdio(path, O_WRONLY | O_CREAT | O_APPEND);
	if (fd < 0)
		return false;
	bool written = fstat(fd, &before) == 0;
	for (int i = 0; i < count && written; i++)
		written = write_all(fd, parts[i].iov_base, parts[i].iov_len);
	if (written)
		*offset = (uint64_t)before.st_size;
	else if (ftruncate(fd, before.st_size) != 0)
		nt_trace_log("%s could not be cut back to %lld bytes", name, (long long)before.st_size);
	close(fd);
	return written;
}

void nt_trace_cut(const char *name, uint64_t size)
{
	char path[PATH_MAX];

	if (!trace_file_path(path, sizeof(path), name))
		return;
	int fd = open_above_stdio(path, O_WRONLY);
	if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
		nt_trace_log("%s could not be cut back to %llu bytes", name, (unsigned long long)size);
	if (fd >= 0)
		close(fd);
}

void nt_trace_log(const char *format, ...)
{
	char path[PATH_MAX], line[2048];
	va_list arguments;
	time_t now = time(NULL);
	struct tm local;

	if (!trace.path[0] || !trace_file_path(path, sizeof(path), "event.log") || !localtime_r(&now, &local))
		return;
	size_t used = strftime(line, sizeof(line), "%H:%M:%S ", &local);
	va_start(arguments, format);
	int length = vsnprintf(line + used, sizeof(line) - used - 1, format, arguments);
	va_end(arguments);
	if (length < 0)
		return;
	/* length is that of the whole text, of which vsnprintf has stored what fits; one byte is left for the newline. */
	used += (size_t)length < sizeof(line) - used - 1 ? (size_t)length : sizeof(line) - used - 2;
	line[used++] = '\n';
	int fd = open_above_stdio(path, O_WRONLY | O_CREAT | O_APPEND);
	if (fd < 0)
		return;
	write_all(fd, line, used);
	close(fd);
}

/* Append text to an event, or mark it as cut if it is full. */
static void event_add(struct nt_event *event, const char *text, size_t size)
{
	/* Two bytes stay free for the closing brace and the newline. */
	if (event->cut || size > sizeof(event->text) - event->used - 2) {
		event->cut = true;
		return;
	}
	memcpy(event->text + event->used, text, size);
	event->used += size;
}

/* The size (2 to 4) of the multi-byte UTF-8 character at the start of text, by RFC 3629, section 4; 0 if there is none. */
static size_t utf8_size(const unsigned char *text)
{
	/* For first bytes first to last, the second byte must be least to most. */
	static const struct {
		unsigned char first, last, least, most;
		size_t size;
	} rows[] = {
		{ 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 }, { 0xe1, 0xec, 0x80, 0xbf, 3 },
		{ 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 }, { 0xf0, 0xf0, 0x90, 0xbf, 4 },
		{ 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		if (text[0] < rows[i].first || text[0] > rows[i].last)
			continue;
		if (text[1] < rows[i].least || text[1] > rows[i].most)
			return 0;
		for (size_t j = 2; j < rows[i].size; j++) {
			if (text[j] < 0x80 || text[j] > 0xbf)
				return 0;
		}
		return rows[i].size;
	}
	return 0;
}

/* Append a JSON string. Names and paths may have any encoding: bytes that are not UTF-8 are taken as Latin-1. */
static void event_add_quoted(struct nt_event *event, const char *value)
{
	event_add(event, "\"", 1);
	for (const unsigned char *byte = (const unsigned char *)value; *byte; byte++) {
		char escaped[8];
		size_t size = utf8_size(byte);
		if (size) {
			event_add(event, (const char *)byte, size);
			byte += size - 1;
			continue;
		}
		if (*byte == '"' || *byte == '\\')
			event_add(event, escaped, (size_t)snprintf(escaped, sizeof(escaped), "\\%c", *byte));
		else if (*byte < 0x20 || *byte > 0x7e)
			event_add(event, escaped, (size_t)snprintf(escaped, sizeof(escaped), "\\u%04x", *byte));
		else
			event_add(event, (const char *)byte, 1);
	}
	event_add(event, "\"", 1);
}

/* Append a member's key, after a comma unless it is the first. */
static void event_add_key(struct nt_event *event, const char *key)
{
	if (event->used > 1)
		event_add(event, ",", 1);
	event_add_quoted(event, key);
	event_add(event, ":", 1);
}

void nt_event_begin(struct nt_event *event, const char *kind)
{
	event->used = 0;
	event->cut = false;
	event_add(event, "{", 1);
	nt_event_string(event, "event", kind);
	nt_event_number(event, "time_ns", clock_ns(CLOCK_REALTIME));
}

/* End a member that began at offset start. If it did not fit, it is left out as a whole. */
static void event_member_end(struct nt_event *event, size_t start)
{
	if (event->cut)
		event->used = start;
	event->cut = false;
}

void nt_event_string(struct nt_event *event, const char *key, const char *value)
{
	size_t start = event->used;

	event_add_key(event, key);
	event_add_quoted(event, value);
	event_member_end(event, start);
}

void nt_event_number(struct nt_event *event, const char *key, uint64_t value)
{
	char text[24];
	size_t start = event->used;

	event_add_key(event, key);
	event_add(event, text, (size_t)snprintf(text, sizeof(text), "%llu", (unsigned long long)value));
	event_member_end(event, start);
}

void nt_event_real(struct nt_event *event, const char *key, double value)
{
	/* Not %f, which prints the decimal separator of the program's locale. */
	char text[40];
	size_t start = event->used;
	unsigned long long thousandths = value > 0 ? (unsigned long long)(value * 1000 + 0.5) : 0;

	event_add_key(event, key);
	event_add(event, text,
		  (size_t)snprintf(text, sizeof(text), "%llu.%03llu", thousandths / 1000, thousandths % 1000));
	event_member_end(event, start);
}

void nt_event_strings(struct nt_event *event, const char *key, char *const *values, size_t count)
{
	size_t start = event->used;

	event_add_key(event, key);
	event_add(event, "[", 1);
	for (size_t i = 0; i < count; i++) {
		if (i)
			event_add(event, ",", 1);
		event_add_quoted(event, values[i]);
	}
	event_add(event, "]", 1);
	event_member_end(event, start);
}

void nt_event_end(struct nt_event *event)
{
	char path[PATH_MAX];

	event->text[event->used++] = '}';
	event->text[event->used++] = '\n';
	if (!trace.path[0] || !trace_file_path(path, sizeof(path), "events.jsonl"))
		return;
	int fd = open_above_stdio(path, O_WRONLY | O_CREAT | O_APPEND);
	if (fd < 0)
		return;
	write_all(fd, event->text, event->used);
	close(fd);
}

void nt_trace_note(const char *format, ...)
{
	char text[1024];
	va_list arguments;
	struct nt_event event;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	nt_event_begin(&event, "note");
	nt_event_string(&event, "text", text);
	nt_event_end(&event);
	nt_trace_log("%s", text);
}

/* Allocate [from, to) of a file on disk, since a store into a mapped hole of it could raise SIGBUS. False: errno is set. */
static bool allocate_range(int fd, uint64_t from, uint64_t to)
{
	struct blocked_signals signals;
	int error;

	block_signals(&signals);
	do
		error = posix_fallocate(fd, (off_t)from, (off_t)(to - from));
	while (error == EINTR);
	unblock_signals(&signals);
	errno = error;
	return error == 0;
}

/* Create and map launches.bin. Once, under the mutex of nt_trace_start. False if that fails: errno is set, no file left. */
static bool create_launches(const char *path)
{
	uint64_t size = RECORDS_OFFSET + FIRST_RECORDS * sizeof(struct neutrino_launch);
	uint64_t reserved = RECORDS_OFFSET + MOST_RECORDS * sizeof(struct neutrino_launch);
	int fd = open_above_stdio(path, O_RDWR | O_CREAT | O_EXCL);

	if (fd < 0)
		return false;
	/* Address space for the largest size is reserved, so that records never move when the file grows. */
	void *base = allocate_range(fd, 0, size) ? mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
					 : MAP_FAILED;
	if (base == MAP_FAILED || mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		int cause = errno;
		if (base != MAP_FAILED)
			munmap(base, reserved);
		close(fd);
		unlink(path);
		errno = cause;
		return false;
	}
	close(fd);

	struct neutrino_launches_header *header = base;
	*header = (struct neutrino_launches_header){
		.version = NEUTRINO_LAUNCHES_VERSION,
		.record_size = sizeof(struct neutrino_launch),
		.records_offset = RECORDS_OFFSET,
		.records_capacity = FIRST_RECORDS,
		.monotonic_ns = clock_ns(CLOCK_MONOTONIC),
		.realtime_ns = clock_ns(CLOCK_REALTIME),
		.pid = (uint32_t)getpid(),
	};
	memcpy(header->magic, NEUTRINO_LAUNCHES_MAGIC, sizeof(header->magic));
	trace.counters = (uint64_t *)((char *)base + NEUTRINO_LAUNCHES_HEADER_SIZE);
	trace.records = (struct neutrino_launch *)((char *)base + RECORDS_OFFSET);
	__atomic_store_n(&trace.capacity, FIRST_RECORDS, __ATOMIC_RELEASE);
	__atomic_store_n(&trace.header, header, __ATOMIC_RELEASE);
	return true;
}

/* Create a folder and all that are missing above it, as mkdir -p. path: changed meanwhile, and restored. */
static void create_folders(char *path)
{
	for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		mkdir(path, 0777);
		*slash = '/';
	}
	mkdir(path, 0777);
}

/* The folder for the trace as nt_trace_parent has it, absolute; "" if it was not called. */
static char parent_folder[PATH_MAX];

void nt_trace_parent(const char *folder)
{
	char current[PATH_MAX];

	if (*folder == '/')
		snprintf(parent_folder, sizeof(parent_folder), "%s", folder);
	else if (getcwd(current, sizeof(current)) && strlen(current) + strlen(folder) + 2 <= sizeof(parent_folder))
		stpcpy(stpcpy(stpcpy(parent_folder, current), "/"), folder);
}

/* Create a folder for the trace, named by date, time and pid; path gets its path. False if that fails: errno is set. */
static bool create_trace_folder(char *path)
{
	char parent[PATH_MAX - 64], stamp[64]; /* parent leaves room for the folder's own name */
	const char *folder = *parent_folder ? parent_folder : getenv("NEUTRINO_TRACEDIR");
	time_t now = time(NULL);
	struct tm local;

	errno = EINVAL;
	/* Only an absolute path: the program may have changed its working directory. */
	if (!folder || *folder != '/' || strlen(folder) >= sizeof(parent) || !localtime_r(&now, &local))
		return false;
	/* Not strftime's %b, which depends on the program's locale. */
	snprintf(stamp, sizeof(stamp), "%.3s%02d_%02d%02d%02d", &"JanFebMarAprMayJunJulAugSepOctNovDec"[3 * local.tm_mon],
		 local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec);
	strcpy(parent, folder);
	create_folders(parent);
	/* The name may be taken: processes of two containers may have the same pid. */
	for (int attempt = 0; attempt < 100; attempt++) {
		int length = attempt ? snprintf(path, PATH_MAX, "%s/%s_%d.%d", parent, stamp, (int)getpid(), attempt)
				     : snprintf(path, PATH_MAX, "%s/%s_%d", parent, stamp, (int)getpid());
		if (length < PATH_MAX && mkdir(path, 0700) == 0)
			return true;
		if (errno != EEXIST)
			return false;
	}
	return false;
}

bool nt_trace_start(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static enum { UNTRIED, STARTED, FAILED } state;
	char path[PATH_MAX];

	pthread_mutex_lock(&mutex);
	errno = EINVAL;
	if (state == UNTRIED) {
		state = create_trace_folder(path) ? STARTED : FAILED;
		if (state == STARTED) {
			char launches[PATH_MAX + 16];
			snprintf(launches, sizeof(launches), "%s/launches.bin", path);
			if (create_launches(launches)) {
				strcpy(trace.path, path);
			} else {
				int cause = errno;
				rmdir(path);
				errno = cause;
				state = FAILED;
			}
		}
		if (state == STARTED && !(nt_trace_mkdir("kernel") && nt_trace_mkdir("result")))
			nt_trace_log("the folders kernel and result could not be made: %s", strerror(errno));
	}
	pthread_mutex_unlock(&mutex);
	return state == STARTED;
}

struct neutrino_launch *nt_trace_launch(uint64_t *index)
{
	struct neutrino_launches_header *header = __atomic_load_n(&trace.header, __ATOMIC_ACQUIRE);

	if (!header)
		return NULL;
	uint64_t capacity = __atomic_load_n(&trace.capacity, __ATOMIC_ACQUIRE);
	uint64_t used = __atomic_load_n(&header->records_used, __ATOMIC_RELAXED);
	do {
		if (used >= capacity)
			return NULL;
	} while (!__atomic_compare_exchange_n(&header->records_used, &used, used + 1, true, __ATOMIC_RELAXED,
					      __ATOMIC_RELAXED));
	*index = used;
	return &trace.records[used];
}

struct neutrino_launch *nt_trace_launch_at(uint64_t index)
{
	return &trace.records[index];
}

/* The counter of a kernel's launches with a reason. Kernels beyond the table share the last row. */
static uint64_t *counter_of(uint32_t kernel, unsigned reason)
{
	if (kernel >= NEUTRINO_MAX_KERNELS)
		kernel = NEUTRINO_MAX_KERNELS - 1;
	return &trace.counters[(uint64_t)kernel * NEUTRINO_REASON_SLOTS + reason];
}

void nt_trace_count_many(uint32_t kernel, unsigned reason, uint64_t launches)
{
	if (__atomic_load_n(&trace.header, __ATOMIC_ACQUIRE))
		__atomic_fetch_add(counter_of(kernel, reason), launches, __ATOMIC_RELAXED);
}

void nt_trace_count(uint32_t kernel, unsigned reason)
{
	nt_trace_count_many(kernel, reason, 1);
}

uint64_t nt_trace_counted(uint32_t kernel, unsigned reason)
{
	return __atomic_load_n(&trace.header, __ATOMIC_ACQUIRE) ? __atomic_load_n(counter_of(kernel, reason), __ATOMIC_RELAXED) : 0;
}

void nt_trace_grow(void)
{
	struct neutrino_launches_header *header = __atomic_load_n(&trace.header, __ATOMIC_ACQUIRE);
	char path[PATH_MAX];

	if (!header || !trace_file_path(path, sizeof(path), "launches.bin"))
		return;
	uint64_t capacity = trace.capacity;
	if (__atomic_load_n(&header->records_used, __ATOMIC_RELAXED) < capacity / 2 || capacity >= MOST_RECORDS)
		return;
	/* Map the next part of the reserved range, and double the capacity. */
	uint64_t from = RECORDS_OFFSET + capacity * sizeof(struct neutrino_launch);
	uint64_t to = RECORDS_OFFSET + 2 * capacity * sizeof(struct neutrino_launch);
	int fd = open_above_stdio(path, O_RDWR);
	if (fd < 0)
		return;
	if (allocate_range(fd, from, to) && mmap((char *)header + from, to - from, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
					 fd, (off_t)from) != MAP_FAILED) {
		header->records_capacity = 2 * capacity;
		__atomic_store_n(&trace.capacity, 2 * capacity, __ATOMIC_RELEASE);
	}
	close(fd);
}

void nt_trace_ended(void)
{
	struct neutrino_launches_header *header = __atomic_load_n(&trace.header, __ATOMIC_ACQUIRE);

	if (header)
		__atomic_store_n(&header->ended, 1, __ATOMIC_RELEASE);
}
