#include "image/entry_fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"
#include "base/settings.h"
#include "base/sha256.h"
#include "base/trusted.h"

#define DEFAULT_TIMEOUT_S 120
#define LONGEST_TIMEOUT_S 86400 /* a day */
#define SECOND_NS UINT64_C(1000000000)
#define LARGEST_ENTRY (UINT64_C(1) << 32)
#define LARGEST_BEGUN (UINT64_C(16) << 20)
#define KEY_SIZE 32

/* neutrino_request.kind */
enum { REQUEST_TRACE_BEGINS = 1, REQUEST_MAKE_TWINS = 2, REQUEST_MAKE_AHEAD = 4 };
/* neutrino_reply.status; any other means that a message follows. */
enum { REPLY_ENTRY = 0, REPLY_MAY_BE_CACHED = 2 };

/* The value of a lower-case hexadecimal digit; -1 for any other character. */
static int nibble(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	if (digit >= 'a' && digit <= 'f')
		return digit - 'a' + 10;
	return -1;
}

bool nt_entry_fetch_key(const char *arch, const void *image, size_t size, uint8_t ret[32])
{
	const char *text = nt_settings()->key;
	uint8_t run[KEY_SIZE]; /* the part of the key that all images of this run share */
	struct nt_sha256 hash;

	if (!text || strlen(text) != 2 * KEY_SIZE)
		return false;
	for (int i = 0; i < KEY_SIZE; i++) {
		int high = nibble(text[2 * i]), low = nibble(text[2 * i + 1]);
		if (high < 0 || low < 0)
			return false;
		run[i] = (uint8_t)(high << 4 | low);
	}
	nt_sha256_init(&hash);
	nt_sha256_add(&hash, run, sizeof(run));
	nt_sha256_add(&hash, arch, strlen(arch));
	nt_sha256_add(&hash, image, size);
	nt_sha256_finish(&hash, ret);
	return true;
}

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

/* The path of the cache entry of that key; false without a cache. */
static bool entry_path(const uint8_t key[32], char ret[PATH_MAX])
{
	const char *cache = nt_settings()->cache;
	char hex[2 * KEY_SIZE + 1];

	for (int i = 0; i < KEY_SIZE; i++)
		snprintf(hex + 2 * i, 3, "%02x", key[i]); /* two digits and NUL */
	return cache && snprintf(ret, PATH_MAX, "%s/twins/%.2s/%s.twins", cache, hex, hex) < PATH_MAX;
}

/* Not inlined, so that its path and that of the check are not on the stack at once. */
static __attribute__((noinline)) bool read_entry(const uint8_t key[32], struct nt_entry *ret)
{
	char path[PATH_MAX];
	struct stat status;
	void *data = NULL;

	if (!entry_path(key, path))
		return false;
	int fd = nt_quiet_write_above_stdio(nt_raw_open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
	if (fd < 0)
		return false;
	/* Read, not mapped: if another process truncated a mapped file, the program would get SIGBUS. */
	bool is_valid = nt_raw_stat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
		     status.st_size > 0 && (uint64_t)status.st_size < LARGEST_ENTRY &&
		     (data = malloc((size_t)status.st_size)) && read_all(fd, data, (size_t)status.st_size) &&
		     nt_entry_open(data, (size_t)status.st_size, key, ret);
	nt_raw_close(fd);
	if (!is_valid)
		free(data);
	return is_valid;
}

bool nt_entry_fetch_read(const uint8_t key[32], struct nt_entry *ret)
{
	const char *cache = nt_settings()->cache;

	return cache && nt_trusted_path(cache, true) && read_entry(key, ret);
}

/*
 * Whether the process at the other end of a socket is this user's. Another user may have put a socket in the listener's
 * place: it would get the program's images, and could answer with code for the GPU.
 */
static bool is_own_peer(int fd)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && size == sizeof(peer) && peer.uid == geteuid();
}

/* Connect to the listener, before a deadline (nt_clock_now_ns). The descriptor, or -1 if that fails. */
static int connect_listener(uint64_t deadline)
{
	const char *path = nt_settings()->socket;
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (!path || strlen(path) >= sizeof(address.sun_path) || !nt_trusted_path(path, true))
		return -1;
	strcpy(address.sun_path, path);
	int fd = nt_quiet_write_above_stdio(nt_raw_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK));
	if (fd < 0)
		return -1;
	/* EAGAIN: the listener is running, but its queue of connections is full. One cannot poll for that. */
	while (nt_raw_connect(fd, &address, sizeof(address)) != 0) {
		if ((errno != EAGAIN && errno != EINTR) || nt_clock_now_ns() >= deadline) {
			nt_raw_close(fd);
			return -1;
		}
		nt_clock_sleep_us(5000);
	}
	if (!is_own_peer(fd)) {
		nt_raw_close(fd);
		return -1;
	}
	return fd;
}

/*
 * Send size bytes of data, or if not sending receive them into data, before a deadline (nt_clock_now_ns). False if that fails.
 */
static bool transfer(int fd, void *data, size_t size, bool sending, uint64_t deadline)
{
	uint8_t *bytes = data;

	while (size) {
		uint64_t now = nt_clock_now_ns();
		if (now >= deadline)
			return false;
		struct pollfd ready = {.fd = fd, .events = sending ? POLLOUT : POLLIN};
		/* In milliseconds, rounded up: 0 would not wait. */
		int count = nt_raw_poll(&ready, (int)((deadline - now) / 1000000 + 1));
		if (count < 0 && errno != EINTR)
			return false;
		if (count <= 0)
			continue;
		ssize_t moved = sending ? nt_raw_send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT)
					: nt_raw_recv(fd, bytes, size, MSG_DONTWAIT);
		if (moved < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (moved <= 0)
			return false;
		bytes += moved;
		size -= (size_t)moved;
	}
	return true;
}

/* How long the process has waited for entries, in nanoseconds, and whether that was said. */
static uint64_t waited;
static bool was_said;

/* Wait until a socket can be read, or has ended, or for milliseconds; whether it can. */
static bool is_readable(int fd, int milliseconds)
{
	struct pollfd ready = {.fd = fd, .events = POLLIN};

	return nt_raw_poll(&ready, milliseconds) > 0;
}

/*
 * Wait for the first bytes of an answer, before a deadline (nt_clock_now_ns). Once the process has waited for more than a second
 * in all, a line on the terminal says for what.
 */
static void wait_for_answer(int fd, uint64_t deadline)
{
	uint64_t begin = nt_clock_now_ns(), now = begin, before = __atomic_load_n(&waited, __ATOMIC_RELAXED);

	while (now < deadline && !is_readable(fd, 100)) {
		now = nt_clock_now_ns();
		if (before + now - begin < SECOND_NS || __atomic_exchange_n(&was_said, true, __ATOMIC_RELAXED))
			continue;
		if (!nt_settings()->is_quiet && isatty(STDERR_FILENO))
			nt_quiet_write_say("neutrino: adding the probes to this program's kernels; later runs find them in the cache\n");
	}
	__atomic_add_fetch(&waited, nt_clock_now_ns() - begin, __ATOMIC_RELAXED);
}

/* A request of that kind, from this process; its other members are 0. */
static struct neutrino_request request_of(uint32_t kind)
{
	struct neutrino_request request = {.kind = kind, .pid = (uint32_t)getpid()};

	memcpy(request.magic, NEUTRINO_REQUEST_MAGIC, sizeof(request.magic));
	return request;
}

/* NEUTRINO_TIMEOUT, by default DEFAULT_TIMEOUT_S. */
uint64_t nt_entry_fetch_timeout(void)
{
	uint64_t seconds = nt_settings()->timeout;

	return (seconds && seconds < LONGEST_TIMEOUT_S ? seconds : DEFAULT_TIMEOUT_S) * SECOND_NS;
}

/* When to stop waiting for an entry (nt_clock_now_ns). */
static uint64_t request_deadline(void)
{
	return nt_clock_now_ns() + nt_entry_fetch_timeout();
}

/*
 * Requests that nobody waits for yet: at most so many at a time, each with one descriptor of the program's. How many
 * there are, and how many that somebody waited for took too long, since one that did not.
 */
#define MOST_BEGUN 64
#define MOST_TIMEOUTS 2
static int begun, timeouts;

/* A request, of that kind, for the twins of an image. */
static struct neutrino_request twins_request(uint32_t kind, const uint8_t key[32], const char *arch, int driver_version,
					     size_t size)
{
	struct neutrino_request request = request_of(kind);

	memcpy(request.key, key, sizeof(request.key));
	snprintf(request.arch, sizeof(request.arch), "%s", arch);
	request.driver_version = (uint32_t)driver_version;
	request.size = size;
	return request;
}

/* Whether a cache entry of that key seems to be there, without reading it. */
static bool seems_cached(const uint8_t key[32])
{
	char path[PATH_MAX];

	return entry_path(key, path) && access(path, R_OK) == 0;
}

/* Send data as far as the socket takes it at once; whether that was all. */
static bool send_at_once(int fd, const void *data, size_t size)
{
	return nt_raw_send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size;
}

int nt_entry_fetch_begin(const uint8_t key[32], const char *arch, int driver_version, const void *image, size_t size)
{
	struct neutrino_request request = twins_request(REQUEST_MAKE_AHEAD, key, arch, driver_version, size);
	struct rlimit limit;
	int wanted = (int)(size + sizeof(request)) * 2, kept = 0;
	socklen_t length = sizeof(kept);

	if (size > LARGEST_BEGUN || seems_cached(key) || __atomic_load_n(&timeouts, __ATOMIC_RELAXED) >= MOST_TIMEOUTS)
		return -1;
	if (__atomic_add_fetch(&begun, 1, __ATOMIC_RELAXED) > MOST_BEGUN) {
		__atomic_sub_fetch(&begun, 1, __ATOMIC_RELAXED);
		return -1;
	}
	int fd = connect_listener(0);
	/* The program's descriptors must not run out, so half of them are left alone. */
	bool has_room = fd >= 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd < limit.rlim_cur / 2;
	/* Whoever reads a request waits for all of it, so that all of it must fit at once. */
	bool fits = has_room && setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof(wanted)) == 0 &&
		    getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kept, &length) == 0 && kept >= wanted;
	if (fits && send_at_once(fd, &request, sizeof(request)) && send_at_once(fd, image, size))
		return fd;
	__atomic_sub_fetch(&begun, 1, __ATOMIC_RELAXED);
	if (fd >= 0)
		nt_raw_close(fd);
	return -1;
}

bool nt_entry_fetch_is_near(int fd, const uint8_t key[32], unsigned milliseconds)
{
	return fd >= 0 ? is_readable(fd, (int)milliseconds) : seems_cached(key);
}

void nt_entry_fetch_drop(int fd)
{
	if (fd < 0)
		return;
	__atomic_sub_fetch(&begun, 1, __ATOMIC_RELAXED);
	nt_raw_close(fd);
}

/*
 * Receive the answer to a request for an entry, before a deadline (nt_clock_now_ns). As nt_entry_fetch_request; *is_cached: set if it
 * is no entry, since that may be in the cache.
 */
static bool receive_entry(int fd, const uint8_t key[32], uint64_t deadline, bool *is_cached, struct nt_entry *ret,
			  char *error, size_t error_size)
{
	struct neutrino_reply reply;
	uint8_t *data = NULL;
	bool is_valid = false;

	*is_cached = false;
	wait_for_answer(fd, deadline);
	if (!transfer(fd, &reply, sizeof(reply), false, deadline)) {
		snprintf(error, error_size, nt_clock_now_ns() >= deadline ? "the helper took too long" : "the helper exited");
	} else if (memcmp(reply.magic, NEUTRINO_REPLY_MAGIC, sizeof(reply.magic)) != 0 || reply.size >= LARGEST_ENTRY ||
		   !(data = malloc(reply.size + 1)) /* with NUL after a message */ || !transfer(fd, data, reply.size, false, deadline)) {
		snprintf(error, error_size, "the helper's answer is incomplete");
	} else if (reply.status == REPLY_MAY_BE_CACHED) {
		*is_cached = true;
	} else if (reply.status != REPLY_ENTRY) {
		data[reply.size] = 0;
		snprintf(error, error_size, "%s", (char *)data);
	} else {
		is_valid = nt_entry_open(data, reply.size, key, ret);
		if (!is_valid)
			snprintf(error, error_size, "the helper's answer is not valid");
	}
	if (!is_valid)
		free(data);
	return is_valid;
}

/* nt_entry_fetch_request of an entry that nobody has asked for, before a deadline (nt_clock_now_ns). */
static bool request_entry(const struct neutrino_request *request, const void *image, uint64_t deadline,
			  struct nt_entry *ret, char *error, size_t error_size)
{
	int fd = connect_listener(deadline);
	bool is_valid = false, is_cached;

	if (fd < 0) {
		snprintf(error, error_size,
			 nt_clock_now_ns() >= deadline ? "the helper took too long" : "the helper is not running");
		return false;
	}
	if (!transfer(fd, (void *)(uintptr_t)request, sizeof(*request), true, deadline) ||
	    !transfer(fd, (void *)(uintptr_t)image, request->size, true, deadline))
		snprintf(error, error_size, nt_clock_now_ns() >= deadline ? "the helper took too long" : "the helper exited");
	else
		is_valid = receive_entry(fd, request->key, deadline, &is_cached, ret, error, error_size);
	nt_raw_close(fd);
	return is_valid;
}

bool nt_entry_fetch_request(int begun_fd, const uint8_t key[32], const char *arch, int driver_version, const void *image,
			    size_t size, struct nt_entry *ret, char *error, size_t error_size)
{
	struct neutrino_request request = twins_request(REQUEST_MAKE_TWINS, key, arch, driver_version, size);
	uint64_t deadline = request_deadline();
	bool is_valid = false, is_cached = true;

	if (__atomic_load_n(&timeouts, __ATOMIC_RELAXED) >= MOST_TIMEOUTS) {
		nt_entry_fetch_drop(begun_fd);
		snprintf(error, error_size, "the helper took too long for others, and is not waited for any more");
		return false;
	}
	if (begun_fd >= 0) {
		is_valid = receive_entry(begun_fd, key, deadline, &is_cached, ret, error, error_size);
		nt_entry_fetch_drop(begun_fd);
	}
	/* Where nothing can be written to the cache, it is asked for again. */
	if (is_cached)
		is_valid = (begun_fd >= 0 && nt_entry_fetch_read(key, ret)) ||
			   request_entry(&request, image, deadline, ret, error, error_size);
	if (nt_clock_now_ns() >= deadline)
		__atomic_add_fetch(&timeouts, 1, __ATOMIC_RELAXED);
	else
		__atomic_store_n(&timeouts, 0, __ATOMIC_RELAXED);
	return is_valid;
}

void nt_entry_fetch_hello(const char *trace)
{
	struct neutrino_request request = request_of(REQUEST_TRACE_BEGINS);
	/* At most a second: the program waits for this. */
	uint64_t deadline = nt_clock_now_ns() + SECOND_NS;
	int fd = connect_listener(deadline);

	if (fd < 0)
		return;
	request.size = strlen(trace);
	if (transfer(fd, &request, sizeof(request), true, deadline))
		transfer(fd, (void *)(uintptr_t)trace, request.size, true, deadline);
	nt_raw_close(fd);
}
