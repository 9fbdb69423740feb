/*
 * A program that uses patched libraries: `user STEP...`. Steps: +PATH opens a library and works with it, -PATH ends
 * and closes it, =PATH works once more, driver opens the driver itself, fork goes on in a child.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *opened(const char *path, int extra)
{
	void *library = dlopen(path, RTLD_NOW | extra);

	if (!library) {
		printf("%s\n", dlerror());
		exit(5);
	}
	return library;
}

static void work(void *library)
{
	uint64_t (*patched_work)(int);

	*(void **)&patched_work = dlsym(library, "patched_work");
	printf("%llu\n", (unsigned long long)patched_work(20));
}

static void end(void *library)
{
	void (*patched_end)(void);

	*(void **)&patched_end = dlsym(library, "patched_end");
	patched_end();
	dlclose(library);
	dlclose(library);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *step = argv[i];
		if (*step == '+') {
			work(opened(step + 1, 0));
		} else if (*step == '=') {
			work(opened(step + 1, RTLD_NOLOAD));
		} else if (*step == '-') {
			end(opened(step + 1, RTLD_NOLOAD));
		} else if (!strcmp(step, "driver")) {
			opened("libcuda.so.1", RTLD_GLOBAL);
		} else if (!strcmp(step, "fork")) {
			fflush(stdout);
			pid_t child = fork();
			if (child) {
				int status;
				waitpid(child, &status, 0);
				return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
			}
		}
	}
	return 0;
}
