#include "channel.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"
#include "memory.h"
#include "settings.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/* Descriptors in the device process. */
enum {
	SOCKET_FD = 3,
	HOST_PROCESS_FD = 4, /* a pidfd: readable when the host has ended; closed where Linux has no pidfds */
	FIRST_FREE_FD,
	ENOUGH_FDS = 16, /* the interpreter reads a few files at a time */
};

/*
 * What the interpreter runs. An exception that nothing handles is sent to the host as a reply with the id READY_ID. Only
 * neutrino itself is taken from the folder that it is in: a file copy.so or numpy.py there, as in a checkout, would be
 * imported in place of a module of that name. What neutrino needs may still be there, and is found last.
 */
#define PROGRAM                                                                                                        \
	"import os, struct, sys, traceback\n"                                                                          \
	"def last_words(*error):\n"                                                                                    \
	"    body = 'the device process failed: ' + ''.join(traceback.format_exception(*error)).strip()\n"             \
	"    body = body.encode(errors='replace')\n"                                                                   \
	"    os.write(3, struct.pack('<IIQ', 100, len(body), 0) + body)\n"                                             \
	"sys.excepthook = last_words\n"                                                                                \
	"from importlib import machinery, util\n"                                                                      \
	"spec = machinery.PathFinder.find_spec('neutrino', [sys.argv[1]])\n"                                           \
	"sys.modules['neutrino'] = package = util.module_from_spec(spec)\n"                                            \
	"spec.loader.exec_module(package)\n"                                                                           \
	"sys.path.append(sys.argv[1])\n"                                                                               \
	"from neutrino.emulator.server import main\n"                                                                  \
	"main(sys.argv[2:])\n"

#define MAX_ENVIRONMENT 4096 /* variables */
#define READY_ID 0

/* Of every message. A reply has the id of its request. */
struct header {
	uint32_t code; /* of the request, or the status of a reply */
	uint32_t size; /* of what follows, in bytes */
	uint64_t id;
};

/* A thread that waits for the reply with that id. */
struct waiter {
	uint64_t id;
	bool done;
	struct ed_reply *reply;
	struct waiter *next;
};

struct ed_shared ed_shared;

static int channel = -1;
static int *ours; /* in a page that is zero in a forked child */
static pthread_mutex_t send_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static struct waiter *waiters;
static uint64_t last_id;
static bool reading; /* one of the waiting threads reads for all */
static bool broken;
static bool ready;

/* --- shared memory --- */

/*
 * Make a shared memory segment of size bytes, and attach it; *id gets its id, by which the device process (it runs the
 * kernels) attaches it. NULL if that fails. System V segments rather than memory files: a program's limit on the size
 * of files does not apply to them. It is marked for removal at once, and goes with both processes.
 */
static uint8_t *make_segment(uint64_t size, int *id)
{
	*id = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600 | SHM_NORESERVE);
	if (*id < 0)
		return NULL;
	void *memory = shmat(*id, NULL, 0);
	shmctl(*id, IPC_RMID, NULL);
	return memory == (void *)-1 ? NULL : memory;
}

/*
 * Make the shared segments of device memory and of pinned host memory, of the sizes in the settings. Their ids go to
 * ids. False if that fails.
 */
static bool make_shared(int ids[2])
{
	const struct ed_settings *settings = ed_settings();

	ed_shared.device_size = settings->memory;
	ed_shared.host_size = settings->host_memory;
	ed_shared.device = make_segment(settings->memory, &ids[0]);
	ed_shared.host = make_segment(settings->host_memory, &ids[1]);
	return ed_shared.device && ed_shared.host;
}

/* --- starting --- */

/*
 * Move a descriptor to a number from 32 on if possible, so that it is not in the way of numbers that the program
 * chooses itself. Returns the new number, or -1 with errno set; fd is closed then.
 */
static int above_stdio(int fd)
{
	if (fd < 0)
		return fd;
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 32);

	/* The limit on open files may be lower than 32. */
	if (copy < 0 && fd > STDERR_FILENO)
		return fd;
	if (copy < 0)
		copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	int error = errno;
	close(fd);
	errno = error;
	return copy;
}

/*
 * Whether the device process (which runs kernels) inherits an environment variable, "NAME=value": not those that change
 * loading, sanitizers or Python.
 */
static bool is_inherited(const char *variable)
{
	static const char *const dropped[] = {"LD_PRELOAD=", "LD_AUDIT=", "NEUTRINO_", "ASAN_OPTIONS=", "TSAN_OPTIONS=",
					      "UBSAN_OPTIONS=", "PYTHON"};

	for (size_t i = 0; i < sizeof(dropped) / sizeof(dropped[0]); i++)
		if (!strncmp(variable, dropped[i], strlen(dropped[i])))
			return false;
	return true;
}

/* Give a descriptor the number `target`, so that it stays open over exec. */
static void move_descriptor(int fd, int target)
{
	if (fd == target)
		fcntl(fd, F_SETFD, 0);
	else
		dup2(fd, target);
}

/*
 * In the child process: become the device process, which runs kernels: default signal handling, /dev/null for stdio,
 * the socket and the host's pidfd at fixed numbers, no other descriptors, then exec. Only calls that are safe between
 * fork and exec. If the interpreter cannot be started, a message on the socket says so.
 */
static _Noreturn void become_device(int socket, int host_process, char *const *arguments, char *const *environment)
{
	struct sigaction plain = {.sa_handler = SIG_DFL};
	sigset_t none;

	setsid();
	/* The parent of this one ends at once, so that the host never has to wait for it. */
	if (syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) != 0)
		_exit(0);
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	for (int number = 1; number < NSIG; number++)
		sigaction(number, &plain, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	int null = open("/dev/null", O_RDWR);
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	if (host_process == SOCKET_FD)
		host_process = fcntl(host_process, F_DUPFD, FIRST_FREE_FD);
	move_descriptor(socket, SOCKET_FD);
	if (host_process >= 0)
		move_descriptor(host_process, HOST_PROCESS_FD);
	else
		close(HOST_PROCESS_FD);
	if (syscall(SYS_close_range, FIRST_FREE_FD, ~0u, 0) != 0)
		for (int fd = FIRST_FREE_FD; fd < 65536; fd++)
			close(fd);
	if (chdir("/") != 0)
		_exit(1);
	execvpe(arguments[0], arguments, environment);
	static const char text[] = "the interpreter named by python= cannot be started";
	struct header header = {CUDA_ERROR_NO_DEVICE, sizeof(text) - 1, READY_ID};
	if (write(SOCKET_FD, &header, sizeof(header)) < 0 || write(SOCKET_FD, text, sizeof(text) - 1) < 0)
		_exit(1);
	_exit(1);
}

/*
 * Start the device process (which runs kernels) with the Python interpreter of the settings. socket, host_process: its
 * descriptors; the latter may be negative. ids: of the shared segments. Everything is prepared before the fork: the
 * child must not allocate.
 */
static void spawn(int socket, int host_process, const int ids[2])
{
	static char *environment[MAX_ENVIRONMENT + 4];
	static char values[5][4200];
	const struct ed_settings *settings = ed_settings();
	size_t count = 0;
	sigset_t all, before;

	for (char **variable = environ; variable && *variable && count < MAX_ENVIRONMENT; variable++)
		if (is_inherited(*variable))
			environment[count++] = *variable;
	/* No threads of NumPy's: the machine has other users. */
	environment[count++] = "OPENBLAS_NUM_THREADS=1";
	environment[count++] = "OMP_NUM_THREADS=1";
	environment[count] = NULL;
	snprintf(values[0], sizeof(values[0]), "%s", settings->root);
	snprintf(values[1], sizeof(values[1]), "%d:%llu:%llu:%llu:%llu", ids[0], (unsigned long long)ED_DEVICE_BASE,
		 (unsigned long long)ed_shared.device_size, (unsigned long long)ED_CONSTANT_SIZE,
		 (unsigned long long)ed_memory_module_part());
	snprintf(values[2], sizeof(values[2]), "%d:%llu:%llu", ids[1], (unsigned long long)(uintptr_t)ed_shared.host,
		 (unsigned long long)ed_shared.host_size);
	snprintf(values[3], sizeof(values[3]), "%s", settings->seed);
	snprintf(values[4], sizeof(values[4]), "%llu", (unsigned long long)settings->steps);
	/* -I: Python ignores the environment, and imports nothing from the working directory. */
	char *arguments[] = {
		(char *)settings->python,
		"-I",
		"-c",
		PROGRAM,
		values[0],
		values[1],
		values[2],
		values[3],
		values[4],
		NULL,
	};
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	/* No exit signal: neither a SIGCHLD handler of the program nor its waitpid notices the child. */
	long child = syscall(SYS_clone, 0, NULL, NULL, NULL, NULL);
	if (child == 0)
		become_device(socket, host_process, arguments, environment);
	if (child > 0)
		while (waitpid((pid_t)child, NULL, __WCLONE) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/*
 * Start the device process (which runs kernels): shared memory, a socket, the process. Does not wait until it is ready.
 * False, with a line on stderr, if that fails.
 */
bool ed_channel_start(void)
{
	int ids[2], ends[2];
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max < ENOUGH_FDS) {
		ed_say("a limit of %llu open files is too low for the device process, which needs %d",
		       (unsigned long long)limit.rlim_max, ENOUGH_FDS);
		return false;
	}
	ours = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (ours == MAP_FAILED || madvise(ours, 4096, MADV_WIPEONFORK) != 0 || !make_shared(ids) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
		ed_say("no shared memory or socket for the device process: %s", strerror(errno));
		return false;
	}
	*ours = 1;
	channel = above_stdio(ends[0]);
	int device_end = above_stdio(ends[1]);
	if (channel < 0 || device_end < 0) {
		ed_say("no descriptor left for the device process: %s", strerror(errno));
		return false;
	}
	int host_process = above_stdio((int)syscall(SYS_pidfd_open, getpid(), 0));
	spawn(device_end, host_process, ids);
	close(device_end);
	if (host_process >= 0)
		close(host_process);
	return true;
}

/* Whether this process started the device process (it runs the kernels), and is not a fork of one that did. */
bool ed_channel_is_ours(void)
{
	return ours && ours != MAP_FAILED && *ours;
}

/* --- requests and replies --- */

/*
 * Send all bytes of the parts to the device process (it runs the kernels); the parts are changed on the way. False at
 * an error.
 */
static bool send_all(struct iovec *parts, int count)
{
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};

	while (message.msg_iovlen) {
		ssize_t sent = sendmsg(channel, &message, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return false;
		while (message.msg_iovlen && (size_t)sent >= message.msg_iov->iov_len) {
			sent -= (ssize_t)message.msg_iov->iov_len;
			message.msg_iov++;
			message.msg_iovlen--;
		}
		if (message.msg_iovlen) {
			message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + sent;
			message.msg_iov->iov_len -= (size_t)sent;
		}
	}
	return true;
}

/*
 * Receive exactly size bytes from the device process (it runs the kernels). False at the end of the socket or an error.
 */
static bool receive_all(void *to, size_t size)
{
	size_t used = 0;

	while (used < size) {
		ssize_t received = recv(channel, (char *)to + used, size - used, 0);
		if (received < 0 && errno == EINTR)
			continue;
		if (received <= 0)
			return false;
		used += (size_t)received;
	}
	return true;
}

/*
 * Receive one message from the device process (it runs the kernels). data: its body, with a zero byte after it, to be
 * freed by the caller. False at the end of the socket, an error, or without memory.
 */
static bool receive_message(struct header *header, uint8_t **data)
{
	if (!receive_all(header, sizeof(*header)))
		return false;
	*data = calloc(1, (size_t)header->size + 1);
	if (*data && receive_all(*data, header->size))
		return true;
	free(*data);
	return false;
}

/* Make a reply an error with that status and a copy of the text. */
static void make_error(struct ed_reply *reply, int status, const char *text)
{
	reply->status = status;
	reply->data = (uint8_t *)strdup(text);
	reply->size = strlen(text);
}

/*
 * The socket to the device process (it runs the kernels) is of no use any more: every waiting thread gets an error.
 * Under the mutex.
 */
static void fail_all_waiters(void)
{
	if (!broken)
		ed_say("the device process has ended");
	broken = true;
	for (struct waiter *waiter = waiters; waiter; waiter = waiter->next) {
		if (waiter->done)
			continue;
		make_error(waiter->reply, CUDA_ERROR_UNKNOWN, "the device process has ended");
		waiter->done = true;
	}
	pthread_cond_broadcast(&arrived);
}

/*
 * Wait until the waiter's reply has arrived, then remove the waiter. One waiting thread reads the socket for all; it
 * gives the mutex back while it reads. Under the mutex.
 */
static void wait_for(struct waiter *waiter)
{
	while (!waiter->done) {
		if (broken) {
			fail_all_waiters();
			break;
		}
		if (reading) {
			pthread_cond_wait(&arrived, &mutex);
			continue;
		}
		struct header header;
		uint8_t *data = NULL;
		reading = true;
		pthread_mutex_unlock(&mutex);
		bool received = receive_message(&header, &data);
		pthread_mutex_lock(&mutex);
		reading = false;
		if (!received) {
			fail_all_waiters();
			break;
		}
		struct waiter *recipient = waiters;
		while (recipient && recipient->id != header.id)
			recipient = recipient->next;
		if (recipient) {
			*recipient->reply = (struct ed_reply){(int)header.code, header.size, data};
			recipient->done = true;
		} else {
			/* A message with that id after the first one is the text of an exception. */
			if (header.id == READY_ID)
				ed_say("%s", (const char *)data);
			free(data);
		}
		/* Also if the reply was this thread's own: another thread must read next. */
		pthread_cond_broadcast(&arrived);
	}
	for (struct waiter **link = &waiters; *link; link = &(*link)->next)
		if (*link == waiter) {
			*link = waiter->next;
			break;
		}
}

/*
 * Wait for the device process's first message, which says whether it is ready: the first caller for the message, others
 * for the first caller. False, with an error as the reply, if it is not. Under the mutex.
 */
static bool wait_ready(struct ed_reply *ret)
{
	static bool asked;
	static struct ed_reply reply;
	static struct waiter waiter = {.id = READY_ID, .reply = &reply};

	if (!asked) {
		asked = true;
		waiter.next = waiters;
		waiters = &waiter;
		wait_for(&waiter);
		ready = reply.status == CUDA_SUCCESS;
		if (!ready && !broken)
			ed_say("%s", (const char *)reply.data);
		waiter.done = true;
		pthread_cond_broadcast(&arrived);
	}
	while (!waiter.done)
		pthread_cond_wait(&arrived, &mutex);
	if (!ready)
		make_error(ret, CUDA_ERROR_NO_DEVICE, "there is no device process");
	return ready;
}

/*
 * Send a header and `count` parts (7 at most) of a body to the device process (it runs the kernels) as one message, not
 * interleaved with messages of other threads. header->size must be 0. False at an error.
 */
static bool send_message(struct header *header, const struct iovec *parts, int count)
{
	struct iovec all[8] = {{header, sizeof(*header)}};

	for (int i = 0; i < count; i++) {
		all[i + 1] = parts[i];
		header->size += (uint32_t)parts[i].iov_len;
	}
	pthread_mutex_lock(&send_mutex);
	bool sent = send_all(all, count + 1);
	pthread_mutex_unlock(&send_mutex);
	return sent;
}

/* Send the device process (it runs the kernels) a request that has no reply. It is handled before any later request. */
void ed_channel_tell(enum ed_request kind, const struct iovec *parts, int count)
{
	struct header header = {.code = kind};

	/* If the process is not ready yet, the socket buffers the message. */
	send_message(&header, parts, count);
}

/*
 * Send the device process (which runs kernels) a request, and wait for the reply; after an error ret->data, the
 * caller's to free, is a line of text. Any number of threads may do so at once.
 */
void ed_channel_call(enum ed_request kind, const struct iovec *parts, int count, struct ed_reply *ret)
{
	struct waiter waiter = {.reply = ret};
	struct header header = {.code = kind};

	pthread_mutex_lock(&mutex);
	if (!ready && !wait_ready(ret)) {
		pthread_mutex_unlock(&mutex);
		return;
	}
	header.id = waiter.id = ++last_id;
	waiter.next = waiters;
	waiters = &waiter;
	pthread_mutex_unlock(&mutex);
	bool sent = send_message(&header, parts, count);
	pthread_mutex_lock(&mutex);
	if (!sent)
		fail_all_waiters();
	wait_for(&waiter);
	pthread_mutex_unlock(&mutex);
}
