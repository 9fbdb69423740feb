/*
 * Loads many modules, which differ by a comment: many COUNT WHEN. WHEN: "each" obtains a module's kernel right after the
 * module is loaded, "later" all kernels after all modules, "never" none, "child" none, and a forked child ends.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/driver.h"

#define DECLARE(name, parameters, ...) CUresult name parameters;
NT_DRIVER_INTERCEPTED(DECLARE)

#define CHECK(expression)                                                                                              \
	do {                                                                                                           \
		CUresult check_result = (expression);                                                                  \
		if (check_result) {                                                                                    \
			printf("%s: error %d\n", #expression, check_result);                                           \
			exit(9);                                                                                       \
		}                                                                                                      \
	} while (0)
#define MOST 256

static int is_loaded;

/*
 * In place of glibc's, also for the hook: CLOCK_MONOTONIC stands until all images are loaded, so that no limit of what was
 * asked for meanwhile is over before, however slow the machine is.
 */
int clock_gettime(clockid_t clock, struct timespec *ret)
{
	static struct timespec start;
	static int has_start;

	if (clock != CLOCK_MONOTONIC || __atomic_load_n(&is_loaded, __ATOMIC_ACQUIRE))
		return (int)syscall(SYS_clock_gettime, clock, ret);
	if (!__atomic_load_n(&has_start, __ATOMIC_ACQUIRE)) {
		/* By main, before there are other threads. */
		syscall(SYS_clock_gettime, clock, &start);
		__atomic_store_n(&has_start, 1, __ATOMIC_RELEASE);
	}
	*ret = start;
	return 0;
}

int main(int argc, char **argv)
{
	static char text[1 << 20], image[(1 << 20) + 64];
	static CUmodule modules[MOST];
	CUcontext context;
	CUfunction function;
	FILE *file = fopen(getenv("HOST_IMAGE"), "r");
	int count = argc > 2 ? atoi(argv[1]) : 0, obtained = 0;
	struct timespec start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	if (!file || count < 1 || count > MOST)
		return 9;
	text[fread(text, 1, sizeof(text) - 1, file)] = 0;
	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuCtxSetCurrent(context));
	for (int i = 0; i < count; i++) {
		snprintf(image, sizeof(image), "%s\n// %d\n", text, i);
		CHECK(cuModuleLoadData(&modules[i], image));
		if (strcmp(argv[2], "each") == 0) {
			CHECK(cuModuleGetFunction(&function, modules[i], "count_p2"));
			obtained++;
		}
	}
	__atomic_store_n(&is_loaded, 1, __ATOMIC_RELEASE);
	if (strcmp(argv[2], "child") == 0) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		waitpid(child, NULL, 0);
	}
	for (int i = 0; i < count && (strcmp(argv[2], "later") == 0 || strcmp(argv[2], "child") == 0); i++) {
		CHECK(cuModuleGetFunction(&function, modules[i], "count_p2"));
		obtained++;
	}
	printf("%d\n", obtained);
	return 0;
}
