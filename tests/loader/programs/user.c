/*
 * A program that uses patched libraries: `user STEP...`. Steps: +PATH opens a library and works with it, -PATH ends
 * and closes it, =PATH works once more, ?PATH only opens it, @PATH opens and closes it in threads while they look up
 * things, *PATH opens a runtime and lets it look the driver up, driver opens the driver itself, fork goes on in a child,
 * folder changes to another, !PATH opens a library in a namespace of its own, works with it and closes it.
 */
#include <dlfcn.h>
#include <pthread.h>
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

/* The runtime that libraries share: program.c as a library of its own. */
static void begin_runtime(void *library)
{
	int (*begin)(void);

	*(void **)&begin = dlsym(library, "begin_runtime");
	if (begin())
		exit(4);
}

static void *come_and_go(void *path)
{
	for (int i = 0; i < 100; i++) {
		void *library = opened(path, RTLD_LOCAL);
		if (!dlsym(library, "who") || dlsym(library, "nobody"))
			exit(3);
		if (!dlsym(RTLD_DEFAULT, "malloc"))
			exit(3);
		dlclose(library);
	}
	return NULL;
}

static void work_in_threads(const char *path)
{
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, come_and_go, (void *)(uintptr_t)path);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
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

static void work_apart(const char *path)
{
	void *library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);

	if (!library) {
		printf("%s\n", dlerror());
		exit(5);
	}
	work(library);
	/* It has a libc and so an output of its own. */
	int (*flush)(FILE *);
	*(void **)&flush = dlsym(library, "fflush");
	flush(NULL);
	void (*patched_end)(void);
	*(void **)&patched_end = dlsym(library, "patched_end");
	patched_end();
	printf("closed: %d\n", dlclose(library));
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
		} else if (*step == '!') {
			work_apart(step + 1);
		} else if (*step == '?') {
			opened(step + 1, 0);
		} else if (*step == '@') {
			work_in_threads(step + 1);
		} else if (*step == '*') {
			begin_runtime(opened(step + 1, RTLD_GLOBAL));
		} else if (!strcmp(step, "folder")) {
			if (chdir("/"))
				return 2;
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
