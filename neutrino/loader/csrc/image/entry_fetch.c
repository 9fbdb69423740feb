#include "image/entry_fetch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/errand.h"
#include "base/memory.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"
#include "base/scope.h"
#include "base/settings.h"
#include "base/sha256.h"
#include "base/trusted.h"
#include "image/cached_file.h"

#define DEFAULT_TIMEOUT_S 120
#define LONGEST_TIMEOUT_S 86400 /* a day */
#define SECOND_NS UINT64_C(1000000000)
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

/*
 * Compute the cache key of an image's twins (copies with probes) for a device: SHA-256 of the key of a set of
 * probes, the architecture (such as "sm_90") and the image. False if the set's key is not 64 hexadecimal digits.
 */
bool nt_entry_fetch_key(const struct nt_set *set, const char *arch, const void *image, size_t size, uint8_t ret[32])
{
	const char *text = set->key;
	uint8_t run[KEY_SIZE]; /* the part of the key that all images of this set share */
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

static const struct nt_cached_file twins_file = {"twins", ".twins", UINT64_C(1) << 32};

/* For read_entry: what nt_entry_fetch_read was asked for, and the answer. */
struct reading {
	const uint8_t *key;
	struct nt_entry *entry;
	bool is_valid;
};

/*
 * Errand of nt_entry_fetch_read (argument: its struct reading): read a cache file and check it. Sets is_valid, and the
 * entry (an image's kernels with probes), whose bytes are never freed.
 */
static void read_entry(void *argument)
{
	struct reading *reading = argument;
	size_t size;
	void *data = nt_cached_file_read(&twins_file, reading->key, &size);

	reading->is_valid = data && nt_entry_open(data, size, reading->key, reading->entry);
	if (!reading->is_valid)
		nt_memory_free(data);
}

/*
 * Read the entry (an image's kernels with probes) of that key from the cache. False if it is missing or not valid. ret
 * refers to memory that is never freed.
 */
bool nt_entry_fetch_read(const uint8_t key[32], struct nt_entry *ret)
{
	struct reading reading = {key, ret, false};

	nt_errand_run(read_entry, &reading);
	return reading.is_valid;
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

/*
 * Connect to the listener of a set of probes, the process of `neutrino` that makes twins (copies with probes), before a deadline
 * (nt_clock_now_ns). Returns the descriptor, the caller's; -1 if that fails or it is not this user's:
 * *why gets the reason, in words.
 */
static int connect_listener(const struct nt_set *set, uint64_t deadline, const char **why)
{
	static const char ended[] = "the helper has ended before it was asked";
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	*why = "the helper is not running";
	_Static_assert(sizeof(address.sun_path) == NT_SOCKET_PATH, "NT_SOCKET_PATH");
	nt_sets_socket(set, address.sun_path);
	if (!address.sun_path[0])
		return -1;
	if (!nt_trusted_path(address.sun_path, true)) {
		bool is_gone = access(address.sun_path, F_OK) != 0 && errno == ENOENT;
		*why = is_gone ? ended : "others can change the folder of the helper's socket";
		return -1;
	}
	NT_CLOSED int fd = nt_quiet_write_above_stdio(nt_raw_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK));
	if (fd < 0) {
		*why = "no socket can be made to reach the helper";
		return -1;
	}
	/* EAGAIN: the listener is running, but its queue of connections is full. One cannot poll for that. */
	while (nt_raw_connect(fd, &address, sizeof(address)) != 0) {
		if ((errno != EAGAIN && errno != EINTR) || nt_clock_now_ns() >= deadline) {
			/* Nobody listens, or the next run has removed what it has left. */
			if (errno == ECONNREFUSED || errno == ENOENT)
				*why = ended;
			return -1;
		}
		nt_clock_sleep_us(5000);
	}
	if (is_own_peer(fd))
		return nt_scope_keep_fd(&fd);
	*why = "the helper's socket is another user's";
	return -1;
}

/*
 * Send size bytes of data through a socket, or (sending false) receive as many into data, before a deadline
 * (nt_clock_now_ns). False if that fails or is not complete by then.
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

/*
 * Wait in a thread of the program until an errand (a function that a helper thread calls) is done, or until a deadline
 * (nt_clock_now_ns; 0: none); returns whether it is. Once the process has waited more than a second in all, one line on
 * the terminal says for what.
 */
static bool wait_for(struct nt_errand *errand, uint64_t deadline)
{
	uint64_t begin = nt_clock_now_ns(), now = begin, before = __atomic_load_n(&waited, __ATOMIC_RELAXED);
	bool is_done;

	while (!(is_done = nt_errand_is_done(errand, 100)) && (!deadline || now < deadline)) {
		now = nt_clock_now_ns();
		if (before + now - begin < SECOND_NS || __atomic_exchange_n(&was_said, true, __ATOMIC_RELAXED))
			continue;
		if (!nt_settings()->is_quiet && isatty(STDERR_FILENO))
			nt_quiet_write_say("neutrino: adding the probes to this program's kernels; later runs find them in the cache\n");
	}
	__atomic_add_fetch(&waited, nt_clock_now_ns() - begin, __ATOMIC_RELAXED);
	return is_done;
}

/*
 * A request to the listener (the process that makes kernels' copies with probes) of that kind, from this process; its
 * other members are 0.
 */
static struct neutrino_request request_of(uint32_t kind)
{
	struct neutrino_request request = {.kind = kind, .pid = (uint32_t)getpid()};

	memcpy(request.magic, NEUTRINO_REQUEST_MAGIC, sizeof(request.magic));
	return request;
}

/*
 * How long the process waits for an entry (an image's kernels with probes), in nanoseconds: NEUTRINO_TIMEOUT, by
 * default two minutes.
 */
uint64_t nt_entry_fetch_timeout(void)
{
	uint64_t seconds = nt_settings()->timeout;

	return (seconds && seconds < LONGEST_TIMEOUT_S ? seconds : DEFAULT_TIMEOUT_S) * SECOND_NS;
}

/*
 * When to stop waiting for an entry (an image's kernels with probes) that is asked for now, on the clock of
 * nt_clock_now_ns.
 */
static uint64_t request_deadline(void)
{
	return nt_clock_now_ns() + nt_entry_fetch_timeout();
}

/*
 * Requests that nobody waits for yet: at most so many at a time, each with a thread. How many there are, and how many that
 * somebody waited for took too long, since one that did not.
 */
#define MOST_BEGUN 64
#define MOST_TIMEOUTS 2
static int begun_count, timeouts;
static int unsent_count; /* those of them that have not been sent */

/*
 * A request to the listener for the twins (copies with probes, which it makes) of an image (GPU code of the program) of
 * size bytes, which follows the request on the socket. kind: whether somebody waits for them or they are made ahead.
 */
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

/* Whether a cache entry (an image's kernels with probes) of that key seems to be there, without reading it. */
static bool seems_cached(const uint8_t key[32])
{
	char path[PATH_MAX];

	return nt_cached_file_path(&twins_file, key, path) && access(path, R_OK) == 0;
}

/*
 * A request for an entry, and the answer, which a thread of ours writes: whoever asked reads it once the errand is done. Of
 * one that nobody waits for yet, that thread keeps the connection, in a table of its own.
 */
struct nt_begun {
	struct nt_errand errand;
	struct neutrino_request request;
	const struct nt_set *set; /* whose listener is asked */
	const void *image;
	void *copy;	   /* of an image that nobody waits for: that is all of it */
	uint64_t deadline; /* nt_clock_now_ns */
	pid_t process;
	struct nt_entry entry;
	bool is_valid, is_cached, is_late;
	char error[256];
};

/*
 * Free a request for an entry (an image's kernels with probes) with all that it has, also an answer that nobody took.
 */
static void free_request(void *argument)
{
	struct nt_begun *begun = argument;

	if (begun->is_valid)
		nt_memory_free((void *)(uintptr_t)begun->entry.data);
	nt_memory_free(begun->copy);
	nt_memory_free(begun);
}

/* Put into a request why there is no answer: that its deadline is over, else the text `otherwise`. */
static void say_late(struct nt_begun *begun, const char *otherwise)
{
	begun->is_late = nt_clock_now_ns() >= begun->deadline;
	snprintf(begun->error, sizeof(begun->error), "%s", begun->is_late ? "the helper took too long" : otherwise);
}

/*
 * Receive the listener's answer to a request from the socket, and put it into the request: an entry (is_valid), that it
 * may be in the cache now (is_cached), or a message in error.
 */
static void receive_entry(int fd, struct nt_begun *begun)
{
	struct neutrino_reply reply;
	uint8_t *data = NULL;

	if (!transfer(fd, &reply, sizeof(reply), false, begun->deadline)) {
		say_late(begun, "the helper exited");
	} else if (memcmp(reply.magic, NEUTRINO_REPLY_MAGIC, sizeof(reply.magic)) != 0 || reply.size >= twins_file.limit ||
		   !(data = nt_memory_alloc(reply.size + 1)) /* with NUL after a message */ ||
		   !transfer(fd, data, reply.size, false, begun->deadline)) {
		snprintf(begun->error, sizeof(begun->error), "the helper's answer is incomplete");
	} else if (reply.status == REPLY_MAY_BE_CACHED) {
		begun->is_cached = true;
	} else if (reply.status != REPLY_ENTRY) {
		data[reply.size] = 0;
		snprintf(begun->error, sizeof(begun->error), "%s", (char *)data);
	} else {
		begun->is_valid = nt_entry_open(data, reply.size, begun->request.key, &begun->entry);
		if (!begun->is_valid)
			snprintf(begun->error, sizeof(begun->error), "the helper's answer is not valid");
	}
	if (!begun->is_valid)
		nt_memory_free(data);
}

/*
 * Wait until the socket has an answer or has ended, the request's deadline is over, or nobody wants the answer any
 * more.
 */
static void wait_until_readable(int fd, const struct nt_begun *begun)
{
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	int pause = 10;

	while (nt_clock_now_ns() < begun->deadline && !nt_errand_is_dropped(&begun->errand) && nt_raw_poll(&ready, pause) <= 0)
		pause = pause < 500 ? 2 * pause : pause;
}

/*
 * Send a request and its image (GPU code of the program) without waiting, since the listener (it puts probes into
 * kernels) waits for all of a request that it has begun to read: true if the socket's buffer takes all at once.
 */
static bool send_at_once(int fd, const struct nt_begun *begun)
{
	int wanted = (int)(begun->request.size + sizeof(begun->request)) * 2, kept = 0;
	socklen_t length = sizeof(kept);
	ssize_t size = sizeof(begun->request), image_size = (ssize_t)begun->request.size;

	return setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof(wanted)) == 0 &&
	       getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kept, &length) == 0 && kept >= wanted &&
	       nt_raw_send(fd, &begun->request, (size_t)size, MSG_NOSIGNAL | MSG_DONTWAIT) == size &&
	       nt_raw_send(fd, begun->image, (size_t)image_size, MSG_NOSIGNAL | MSG_DONTWAIT) == image_size;
}

/*
 * Errand of nt_entry_fetch_begin: ask the listener for twins (copies with probes, which it makes) that nobody waits for
 * yet, and keep the answer in the request. In a thread with a descriptor table of its own.
 */
static void ask_ahead(void *argument)
{
	struct nt_begun *begun = argument;
	const char *why;
	int fd = connect_listener(begun->set, 0, &why);
	bool sent = fd >= 0 && send_at_once(fd, begun);

	__atomic_sub_fetch(&unsent_count, 1, __ATOMIC_RELEASE);
	nt_memory_free(begun->copy);
	begun->copy = NULL;
	if (sent)
		wait_until_readable(fd, begun);
	if (sent && !nt_errand_is_dropped(&begun->errand))
		receive_entry(fd, begun);
	/* Whoever waits for it asks again. */
	begun->is_cached |= !sent;
	if (fd >= 0)
		nt_raw_close(fd);
	__atomic_sub_fetch(&begun_count, 1, __ATOMIC_RELAXED);
}

/*
 * Errand of nt_entry_fetch_request: ask the listener for twins (copies with probes, which it makes), and wait for them
 * until the request's deadline. In a thread with a descriptor table of its own.
 */
static void ask_and_wait(void *argument)
{
	struct nt_begun *begun = argument;
	const char *why;
	int fd = connect_listener(begun->set, begun->deadline, &why);

	if (fd < 0) {
		say_late(begun, why);
		return;
	}
	if (transfer(fd, &begun->request, sizeof(begun->request), true, begun->deadline) &&
	    transfer(fd, (void *)(uintptr_t)begun->image, begun->request.size, true, begun->deadline))
		receive_entry(fd, begun);
	else
		say_late(begun, "the helper exited");
	nt_raw_close(fd);
}

/*
 * Ask the listener (a process of `neutrino`) of a set of probes to make an image's twins (copies with probes), and do not wait. Returns
 * the request, for nt_entry_fetch_request or nt_entry_fetch_drop; NULL if they are in the cache already, or have to be
 * asked for when they are needed. The image is copied.
 */
struct nt_begun *nt_entry_fetch_begin(const struct nt_set *set, const uint8_t key[32], const char *arch, int driver_version, const void *image, size_t size)
{
	struct nt_begun *begun;

	if (size > LARGEST_BEGUN || seems_cached(key) || __atomic_load_n(&timeouts, __ATOMIC_RELAXED) >= MOST_TIMEOUTS)
		return NULL;
	if (__atomic_add_fetch(&begun_count, 1, __ATOMIC_RELAXED) > MOST_BEGUN || !(begun = nt_memory_alloc_zeroed(1, sizeof(*begun)))) {
		__atomic_sub_fetch(&begun_count, 1, __ATOMIC_RELAXED);
		return NULL;
	}
	begun->errand = (struct nt_errand){.run = ask_ahead, .release = free_request, .argument = begun};
	begun->set = set;
	begun->request = twins_request(REQUEST_MAKE_AHEAD, key, arch, driver_version, size);
	begun->process = getpid();
	begun->deadline = request_deadline();
	begun->image = begun->copy = nt_memory_alloc(size + 1);
	if (begun->copy) {
		memcpy(begun->copy, image, size);
		__atomic_add_fetch(&unsent_count, 1, __ATOMIC_RELAXED);
		if (nt_errand_start(&begun->errand))
			return begun;
		__atomic_sub_fetch(&unsent_count, 1, __ATOMIC_RELAXED);
	}
	free_request(begun);
	__atomic_sub_fetch(&begun_count, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* Whether a request of nt_entry_fetch_begin has not been sent to the listener yet. Lock-free. */
bool nt_entry_fetch_is_unsent(void)
{
	return __atomic_load_n(&unsent_count, __ATOMIC_ACQUIRE) > 0;
}

/*
 * Whether an image's twins (copies with probes) could be had without a wait: the request has been answered, for which
 * this waits so many milliseconds at most, or (begun NULL: not asked for yet) a cache file of that key exists.
 */
bool nt_entry_fetch_is_near(struct nt_begun *begun, const uint8_t key[32], unsigned milliseconds)
{
	return begun ? nt_errand_is_done(&begun->errand, milliseconds) : seems_cached(key);
}

/*
 * Give up a request of nt_entry_fetch_begin whose answer nobody wants; it is freed. NULL is ignored, and so is one that
 * the parent made before a fork.
 */
void nt_entry_fetch_drop(struct nt_begun *begun)
{
	/* After a fork, the thread that has it is the parent's. */
	if (begun && begun->process == getpid())
		nt_errand_drop(&begun->errand);
}

/*
 * Move the answer out of a request whose errand (a function that a helper thread calls) is done: into *ret, the
 * caller's, or as a message into error. False if there is no entry (an image's kernels with probes).
 */
static bool take_answer(struct nt_begun *begun, struct nt_entry *ret, char *error, size_t error_size)
{
	bool is_valid = begun->is_valid;

	if (is_valid)
		*ret = begun->entry;
	else
		snprintf(error, error_size, "%s", begun->error);
	begun->is_valid = false; /* it is the caller's now */
	return is_valid;
}

/* Why the first entry could not be had; NULL if all could. */
static const char *first_failure;

/* Why the first image got no twins (copies with probes) from the helper that makes them; NULL if none had to go without. */
const char *nt_entry_fetch_failure(void)
{
	return __atomic_load_n(&first_failure, __ATOMIC_ACQUIRE);
}

/* Keep a message, if it is the first, for what is said at the process's end. */
static void keep_failure(const char *error)
{
	const char *none = NULL;
	char *copy = nt_entry_fetch_failure() ? NULL : nt_memory_strdup(error);

	if (copy && !__atomic_compare_exchange_n(&first_failure, &none, copy, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		nt_memory_free(copy);
}

/*
 * Get an image's twins (copies with probes) from the listener (a process of `neutrino`), and wait for them,
 * NEUTRINO_TIMEOUT seconds at most; not at all once two requests in a row took longer. begun: an earlier request of
 * nt_entry_fetch_begin, used up here, or NULL. False with a message in error if that fails. ret refers to memory that
 * is never freed.
 */
bool nt_entry_fetch_request(struct nt_begun *begun, const struct nt_set *set, const uint8_t key[32], const char *arch,
			    int driver_version, const void *image, size_t size, struct nt_entry *ret, char *error, size_t error_size)
{
	struct nt_begun again = {.request = twins_request(REQUEST_MAKE_TWINS, key, arch, driver_version, size),
				 .set = set, .image = image, .deadline = request_deadline()};
	bool is_valid = false, is_cached = true, is_late = false, was_begun = begun;

	again.errand = (struct nt_errand){.run = ask_and_wait, .argument = &again};
	if (__atomic_load_n(&timeouts, __ATOMIC_RELAXED) >= MOST_TIMEOUTS) {
		nt_entry_fetch_drop(begun);
		snprintf(error, error_size, "the helper took too long for others, and is not waited for any more");
		keep_failure(error);
		return false;
	}
	if (begun && wait_for(&begun->errand, again.deadline)) {
		is_cached = begun->is_cached || !nt_errand_has_run(&begun->errand);
		is_valid = !is_cached && take_answer(begun, ret, error, error_size);
		/* Its own deadline is earlier than that of whoever waits for it. */
		is_late = begun->is_late;
		free_request(begun);
	} else if (begun) {
		snprintf(error, error_size, "the helper took too long");
		nt_entry_fetch_drop(begun);
		is_cached = false;
	}
	/* Where nothing can be written to the cache, it is asked for again. */
	if (is_cached && was_begun)
		is_valid = nt_entry_fetch_read(key, ret);
	if (is_cached && !is_valid) {
		/* It has a deadline, and the image and what is on this stack are used until then. */
		if (nt_errand_start(&again.errand))
			wait_for(&again.errand, 0);
		if (!nt_errand_has_run(&again.errand) && !nt_errand_run(ask_and_wait, &again))
			snprintf(again.error, sizeof(again.error), "a seccomp filter of the program may forbid to ask the helper");
		is_valid = take_answer(&again, ret, error, error_size);
	}
	if (is_late || nt_clock_now_ns() >= again.deadline)
		__atomic_add_fetch(&timeouts, 1, __ATOMIC_RELAXED);
	else
		__atomic_store_n(&timeouts, 0, __ATOMIC_RELAXED);
	if (!is_valid)
		keep_failure(error);
	return is_valid;
}

/*
 * Errand of nt_entry_fetch_hello: send the trace's path (the argument) to the listener (it puts probes into kernels),
 * within a second.
 */
static void say_hello(void *argument)
{
	const char *trace = argument;
	struct neutrino_request request = request_of(REQUEST_TRACE_BEGINS);
	/* At most a second: the program waits for this. */
	uint64_t deadline = nt_clock_now_ns() + SECOND_NS;
	const char *why;
	/* Scripts of the probes are the first set's alone. */
	int fd = connect_listener(nt_sets_find(1), deadline, &why);

	if (fd < 0)
		return;
	request.size = strlen(trace);
	if (transfer(fd, &request, sizeof(request), true, deadline))
		transfer(fd, (void *)(uintptr_t)trace, request.size, true, deadline);
	nt_raw_close(fd);
}

/*
 * Tell the listener (the process that puts probes into kernels) that this process has begun a trace at that path, so
 * that it keeps running until this process has ended.
 */
void nt_entry_fetch_hello(const char *trace)
{
	nt_errand_run(say_hello, (void *)(uintptr_t)trace);
}
