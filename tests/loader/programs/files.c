/* Scenarios in which the program does to its files and limits what daemons and sandboxes do. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "host.h"

static void launch_20(void)
{
	for (int i = 0; i < 20; i++) {
		CHECK(count(function, 1, 32, stream));
		CHECK(cu.StreamSynchronize(stream));
	}
}

/* No thread can open a file any more. */
void no_descriptors(void)
{
	CHECK(count(function, 1, 32, stream));
	CHECK(cu.StreamSynchronize(stream));
	written();
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3});
	launch_20();
}

/* Install a filter with that answer to two system calls. */
static long filter(unsigned answer, int first, int second)
{
	struct sock_filter rows[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)first, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)second, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, answer),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(rows) / sizeof(*rows), rows};

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

/* A container that forbids tables of descriptors of one's own. */
void confine(void)
{
	if (filter(SECCOMP_RET_ERRNO | 1, SYS_close_range, SYS_unshare) != 0)
		exit(9);
}

/* A thread that opens a file ends the process. */
void sandboxed(void)
{
	CHECK(count(function, 1, 32, stream));
	CHECK(cu.StreamSynchronize(stream));
	written();
	printf("filter: %ld\n", filter(SECCOMP_RET_KILL_PROCESS, SYS_openat, SYS_openat));
	launch_20();
	/* Of a kernel whose file is not open yet. */
	CHECK(launch_at(obtain(module, "count_p0"), counter, 1, 32, stream));
	CHECK(cu.StreamSynchronize(stream));
}

/* The file that stderr's number has now is the program's own. */
void other_stderr(void)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s.own", getenv("HOST_IMAGE"));
	launch_20();
	close(2);
	if (open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600) != 2 || write(2, "own\n", 4) != 4)
		exit(9);
}

/* A cleaner empties the files of the trace, after a launch. */
void emptied_last(void)
{
	const char *names[] = {"launches.bin", "counters.bin", "event.log"};
	char path[4096];

	CHECK(count(function, 1, 32, stream));
	CHECK(cu.StreamSynchronize(stream));
	written();
	for (int i = 0; i < 3 && getenv("NEUTRINO_TRACEDIR"); i++) {
		trace_file(path, sizeof(path), getenv("NEUTRINO_TRACEDIR"), names[i]);
		if (truncate(path, 0) != 0)
			exit(9);
	}
}

/* And more launches follow. */
void emptied(void)
{
	emptied_last();
	launch_20();
}

static int stop;

static void *launch_on(void *unused)
{
	(void)unused;
	CHECK(cu.CtxSetCurrent(context));
	CUstream own = make_stream(CU_STREAM_NON_BLOCKING);
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		CHECK(count(function, 1, 32, own));
		CHECK(cu.StreamSynchronize(own));
	}
	return NULL;
}

/* The program closes every descriptor that is not its own or the driver's, again and again, and counts on the numbers. */
void closes_all(void)
{
	enum { MOST = 64, ROUNDS = 20000 };
	bool keep[MOST];
	int wrong = 0, foreign = 0;
	pthread_t thread;

	for (int fd = 0; fd < MOST; fd++)
		keep[fd] = fcntl(fd, F_GETFD) >= 0;
	pthread_create(&thread, NULL, launch_on, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		for (int fd = 0; fd < MOST; fd++)
			if (!keep[fd] && close(fd) == 0)
				foreign++;
		int first = open("/dev/null", O_RDONLY);
		close(first);
		int second = open("/dev/null", O_RDONLY);
		close(second);
		wrong += first != second;
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	printf("other numbers than expected: %d; descriptors of others: %d\n", wrong, foreign);
	/* How often the thread has launched is not the same each time. */
	exit(0);
}

/* Address space in KiB. */
static long address_space(void)
{
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%ld", &pages) != 1)
		exit(9);
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Half a gigabyte more than at the start is all that there is. */
void little_space(void)
{
	rlim_t limit = (rlim_t)(address_space() + (512 << 10)) << 10;

	setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit});
}
