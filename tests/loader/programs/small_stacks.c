/* Prints how many bytes a thread can use of a stack of 16 KiB, by trying: each size in a process of its own. */
#include <alloca.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_SIZE 16384
#define STEP 128

static void *use(void *argument)
{
	volatile char *room = alloca(*(size_t *)argument);

	for (size_t i = 0; i < *(size_t *)argument; i += 16)
		room[i] = 1;
	return argument;
}

static int is_enough(size_t size)
{
	int status;
	pid_t child = fork();

	if (!child) {
		pthread_attr_t attributes;
		pthread_t thread;
		struct rlimit none = {0, 0};
		setrlimit(RLIMIT_CORE, &none);
		pthread_attr_init(&attributes);
		pthread_attr_setstacksize(&attributes, STACK_SIZE);
		if (pthread_create(&thread, &attributes, use, &size))
			_exit(2);
		pthread_join(thread, NULL);
		_exit(0);
	}
	return waitpid(child, &status, 0) == child && status == 0;
}

int main(void)
{
	size_t size = 0;

	while (size < STACK_SIZE && is_enough(size + STEP))
		size += STEP;
	printf("%zu\n", size);
	return 0;
}
