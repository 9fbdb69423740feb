/*
 * What a program does that a hook must not disturb: it ends in a signal handler that interrupts malloc, it cancels a thread in
 * a call of the driver, and it watches its descriptors. Prints what it finds, the same with and without a hook.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 48
#define DESCRIPTORS 200

static const char head[] =
	".version 8.0\n.target sm_90\n.address_size 64\n"
	".visible .entry count(.param .u64 counter)\n{\n.reg .b64 %c, %t;\n"
	"ld.param.u64 %c, [counter];\natom.global.add.u64 %t, [%c], 1;\nret;\n}\n// ";

static struct {
	int (*init)(unsigned);
	int (*retain)(void **, int);
	int (*set_current)(void *);
	int (*load)(void **, const void *);
	int (*unload)(void *);
	int (*function)(void **, void *, const char *);
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
	int (*synchronize)(void);
	int (*allocate)(unsigned long long *, size_t);
} driver;
static void *context;
static unsigned long long counter;

static void check(int result, const char *what)
{
	if (!result)
		return;
	printf("%s: error %d\n", what, result);
	exit(9);
}

static void *look_up(void *library, const char *name)
{
	void *found = dlsym(library, name);

	check(!found, name);
	return found;
}

static void load_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	check(!library, "dlopen");
	*(void **)&driver.init = look_up(library, "cuInit");
	*(void **)&driver.retain = look_up(library, "cuDevicePrimaryCtxRetain");
	*(void **)&driver.set_current = look_up(library, "cuCtxSetCurrent");
	*(void **)&driver.load = look_up(library, "cuModuleLoadData");
	*(void **)&driver.unload = look_up(library, "cuModuleUnload");
	*(void **)&driver.function = look_up(library, "cuModuleGetFunction");
	*(void **)&driver.launch = look_up(library, "cuLaunchKernel");
	*(void **)&driver.synchronize = look_up(library, "cuCtxSynchronize");
	*(void **)&driver.allocate = look_up(library, "cuMemAlloc_v2");
}

static void start_driver(void)
{
	check(driver.init(0), "cuInit");
	check(driver.retain(&context, 0), "cuDevicePrimaryCtxRetain");
	check(driver.set_current(context), "cuCtxSetCurrent");
	check(driver.allocate(&counter, 8), "cuMemAlloc");
}

static void find_driver(void)
{
	load_driver();
	start_driver();
}

/* The text of an image with a number, so that no two are the same. */
static void write_image(char text[512], unsigned number)
{
	snprintf(text, 512, "%s%u\n", head, number);
}

static void *load(unsigned number)
{
	char text[512];
	void *module;

	write_image(text, number);
	check(driver.load(&module, text), "cuModuleLoadData");
	return module;
}

static void launch(void *module)
{
	void *function, *parameters[] = {&counter};

	check(driver.function(&function, module, "count"), "cuModuleGetFunction");
	check(driver.launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
	check(driver.synchronize(), "cuCtxSynchronize");
}

static void pause_ms(long milliseconds)
{
	struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};

	nanosleep(&time, NULL);
}

/* --- ends --- */

#define MOST_WAITED 1600 /* times 50 ms */

static void end(int signal)
{
	(void)signal;
	exit(3);
}

static void *volatile kept;

static void *allocate_for_ever(void *unused)
{
	void *blocks[SLOTS] = {0};

	for (unsigned i = 0;; i++) {
		free(blocks[i % SLOTS]);
		kept = blocks[i % SLOTS] = malloc(1500 + i * 6151u % 50000);
	}
	return unused;
}

static void *load_for_ever(void *unused)
{
	for (unsigned i = 0;; i++)
		check(driver.unload(load(1000 + i % 3)), "cuModuleUnload");
	return unused;
}

static void *set_and_run(void *work)
{
	check(driver.set_current(context), "cuCtxSetCurrent");
	return ((void *(*)(void *))(work == (void *)1 ? load_for_ever : allocate_for_ever))(NULL);
}

/* Processes that end by exit in a handler of SIGTERM, while they allocate, or load and unload; how many do not end. */
static int end_in_handlers(int count, int loads, int in_thread)
{
	int stuck = 0;

	for (int i = 0; i < count; i++) {
		int ready[2];
		char byte;
		check(pipe(ready), "pipe");
		pid_t child = fork();
		if (!child) {
			pthread_t thread;
			find_driver();
			launch(load(1));
			signal(SIGTERM, end);
			check(write(ready[1], "", 1) != 1, "write");
			if (in_thread) {
				sigset_t own;
				pthread_create(&thread, NULL, set_and_run, (void *)(size_t)loads);
				sigemptyset(&own);
				sigaddset(&own, SIGTERM);
				pthread_sigmask(SIG_BLOCK, &own, NULL);
				for (;;)
					pause();
			}
			set_and_run((void *)(size_t)loads);
		}
		int status = 0, waited = 0;
		check(read(ready[0], &byte, 1) != 1, "read");
		close(ready[0]);
		close(ready[1]);
		pause_ms(20 + i * 7 % 40);
		kill(child, SIGTERM);
		while (!waitpid(child, &status, WNOHANG) && waited++ < MOST_WAITED)
			pause_ms(50);
		if (waited > MOST_WAITED) {
			stuck++;
			kill(child, SIGKILL);
			waitpid(child, &status, 0);
		} else if (!WIFEXITED(status) || WEXITSTATUS(status) != 3) {
			printf("ended with status %x\n", status);
		}
	}
	printf("%d of %d did not end\n", stuck, count);
	return 0;
}

/* --- signals in the dynamic loader, whose lock exit takes --- */

static int (*find_object)(const void *, Dl_info *);
static __thread int is_loading;
static volatile sig_atomic_t is_inside, entered, interrupted;

static void note_signal(int signal)
{
	(void)signal;
	interrupted += is_inside;
}

/* In place of glibc's, also for the hook: a signal comes while the thread is in the driver's call, and in this one. */
int dladdr(const void *address, Dl_info *info)
{
	if (!find_object)
		*(void **)&find_object = look_up(RTLD_NEXT, "dladdr");
	if (is_loading) {
		entered++;
		is_inside = 1;
		raise(SIGTERM);
	}
	int ret = find_object(address, info);
	is_inside = 0;
	return ret;
}

static int interrupt_loader(void)
{
	find_driver();
	signal(SIGTERM, note_signal);
	is_loading = 1;
	for (unsigned i = 0; i < 4; i++)
		load(70 + i);
	is_loading = 0;
	printf("interrupted %d of %d calls\n", (int)interrupted, (int)entered);
	return 0;
}

/* --- cancelled threads --- */

static int returned;

static void *call_cancelled(void *unused)
{
	void *module;
	int type;

	(void)unused;
	check(driver.set_current(context), "cuCtxSetCurrent");
	/* Pending from here on, for the next cancellation point. */
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
	pthread_cancel(pthread_self());
	module = load(3);
	launch(module);
	check(driver.unload(module), "cuModuleUnload");
	__atomic_store_n(&returned, 1, __ATOMIC_RELEASE);
	pthread_testcancel();
	return NULL;
}

static int cancel(int loads_first)
{
	pthread_t thread;
	void *result;

	find_driver();
	if (loads_first)
		launch(load(4));
	pthread_create(&thread, NULL, call_cancelled, NULL);
	pthread_join(thread, &result);
	printf("the calls returned: %d, then the thread was cancelled: %d\n", returned, result == PTHREAD_CANCELED);
	launch(load(5));
	puts("others go on");
	return 0;
}

/* --- descriptors --- */

static char own[DESCRIPTORS];
static int is_over;
static unsigned long seen;

static void look_at(int fd)
{
	if (own[fd] || fcntl(fd, F_GETFD) < 0)
		return;
	/* The first is shown, if it is still there: whoever is at fault is easier to find. */
	char path[64], file[256];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ssize_t size = seen++ ? 0 : readlink(path, file, sizeof(file) - 1);
	if (size > 0)
		printf("descriptor %d: %.*s\n", fd, (int)size, file);
}

/*
 * Look for descriptors that the program has not opened. A new one has the lowest number that is free: those that are looked
 * at most of the time, or what is open for some microseconds alone would hardly ever be seen.
 */
static void *watch(void *unused)
{
	enum { NEXT = 4, ROUNDS = 64 };
	int next[NEXT], count = 0;

	(void)unused;
	for (int fd = 3; fd < DESCRIPTORS && count < NEXT; fd++)
		if (!own[fd])
			next[count++] = fd;
	while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
		for (int i = 0; i < ROUNDS * count; i++)
			look_at(next[i % count]);
		for (int fd = 3; fd < DESCRIPTORS; fd++)
			look_at(fd);
	}
	return NULL;
}

static int watch_descriptors(void)
{
	pthread_t thread;

	/* The dynamic loader opens libraries in the program's table, with and without a hook. */
	load_driver();
	for (int fd = 3; fd < DESCRIPTORS; fd++)
		own[fd] = fcntl(fd, F_GETFD) >= 0;
	pthread_create(&thread, NULL, watch, NULL);
	start_driver();
	for (unsigned i = 0; i < 12; i++)
		launch(load(10 + i % 6));
	__atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	printf("descriptors that the program has not opened: %lu\n", seen);
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* The names of the process's other threads, in order; how many. unnamed: how many have the program's name still. */
static size_t find_threads(char names[64][32], size_t *unnamed)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	size_t count = 0;

	check(!tasks, "opendir");
	*unnamed = 0;
	while ((entry = readdir(tasks)) && count < 64) {
		char path[300];
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		FILE *file = *entry->d_name == '.' || atoi(entry->d_name) == getpid() ? NULL : fopen(path, "r");
		int is_read = file && fgets(names[count], sizeof(names[0]), file);
		if (is_read && !strcmp(names[count], "harmless\n"))
			++*unnamed;
		else
			count += (size_t)is_read;
		if (file)
			fclose(file);
	}
	closedir(tasks);
	qsort(names, count, sizeof(names[0]), compare_names);
	return count;
}

static void print_threads(void)
{
	static char names[64][32];
	size_t count = 0, unnamed = 1;

	/* One that has begun just now has not named itself. */
	for (int i = 0; i < 200 && unnamed; i++) {
		count = find_threads(names, &unnamed);
		if (unnamed)
			pause_ms(50);
	}
	for (size_t i = 0; i < count; i++)
		if (!i || strcmp(names[i], names[i - 1]))
			printf("thread %s", names[i]);
	if (unnamed)
		printf("threads without a name: %zu\n", unnamed);
}

/* While the program's table has room for no descriptor more. */
static int fill_descriptors(void)
{
	struct rlimit limit = {64, 64};
	int file, last = -1;

	load_driver();
	check(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
	while ((file = open("/dev/null", O_RDONLY)) >= 0)
		last = file;
	start_driver();
	for (unsigned i = 0; i < 6; i++)
		launch(load(30 + i));
	close(last);
	close(last - 1);
	print_threads();
	return 0;
}

/* As daemons do: close all that was not there before, and open a file or a socket of its own. */
static int reuse_descriptors(int is_socket)
{
	int pair[2] = {-1, -1}, file;
	void *module, *function;
	struct timespec begin, now;

	find_driver();
	for (int fd = 3; fd < DESCRIPTORS; fd++)
		own[fd] = fcntl(fd, F_GETFD) >= 0;
	module = load(50 + (unsigned)is_socket);
	for (int fd = 3; fd < DESCRIPTORS; fd++)
		if (!own[fd])
			close(fd);
	if (is_socket)
		check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
	file = is_socket ? pair[0] : open("/dev/null", O_WRONLY);
	if (is_socket && write(pair[1], "0123456789", 10) != 10)
		return 1;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	check(driver.function(&function, module, "count"), "cuModuleGetFunction");
	clock_gettime(CLOCK_MONOTONIC, &now);
	char text[16] = "";
	if (is_socket)
		printf("read %zd bytes of its own\n", read(pair[0], text, sizeof(text)));
	printf("its own descriptor is %s\n", fcntl(file, F_GETFD) >= 0 ? "open" : "closed");
	launch(module);
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	setvbuf(stdout, NULL, _IONBF, 0);
	if (!strcmp(what, "end"))
		return end_in_handlers(argc > 3 ? atoi(argv[3]) : 6, !strcmp(argv[2], "loads"), !strcmp(argv[2], "thread"));
	if (!strcmp(what, "interrupt"))
		return interrupt_loader();
	if (!strcmp(what, "cancel"))
		return cancel(argc > 2);
	if (!strcmp(what, "watch"))
		return watch_descriptors();
	if (!strcmp(what, "fill"))
		return fill_descriptors();
	if (!strcmp(what, "reuse"))
		return reuse_descriptors(argc > 2);
	return 2;
}
