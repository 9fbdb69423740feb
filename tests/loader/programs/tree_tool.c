/*
 * A library as tools load into each process of a program (LD_PRELOAD) to follow it, such as Compute Sanitizer's
 * libTreeLauncherTargetInjection.so: it asks the tool before each fork by a descriptor of its own, and ends the process if
 * the tool does not answer; has itself loaded into each program that is executed; and hides LD_PRELOAD meanwhile.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern char **environ;
static char preload[4096];
static int tool[2] = {-1, -1};

__attribute__((constructor)) static void begin(void)
{
	const char *value = getenv("LD_PRELOAD");

	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", value ? value : "");
	if (getenv("TREE_TOOL_HIDES"))
		unsetenv("LD_PRELOAD");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, tool) != 0)
		_exit(254);
}

pid_t fork(void)
{
	pid_t (*real)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
	char answer;

	if (write(tool[0], "?", 1) != 1 || read(tool[1], &answer, 1) != 1)
		_exit(255);
	return real();
}

int execve(const char *path, char *const argv[], char *const envp[])
{
	int (*real)(const char *, char *const[], char *const[]) =
		(int (*)(const char *, char *const[], char *const[]))dlsym(RTLD_NEXT, "execve");
	size_t count = 0, kept = 0;

	while (envp && envp[count])
		count++;
	char *with[count + 2];
	for (size_t i = 0; i < count; i++)
		if (strncmp(envp[i], "LD_PRELOAD=", 11) != 0)
			with[kept++] = envp[i];
	with[kept++] = preload;
	with[kept] = NULL;
	return real(path, argv, with);
}
