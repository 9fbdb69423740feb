#include "base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/memory.h"

/* The system's id of the calling thread, asked for once a thread, then remembered. */
uint32_t nt_thread_id(void)
{
	static __thread __attribute__((tls_model("initial-exec"))) uint32_t id;

	if (!id)
		id = (uint32_t)syscall(SYS_gettid);
	return id;
}

/* For run_named: what a thread is to call, and its name. */
struct named {
	void *(*main)(void *);
	void *argument;
	const char *name;
};

/*
 * Main function of a thread with a name (argument: its struct named, freed here): the thread names itself, and calls what
 * it is for. To name another thread, glibc opens a file of /proc, which would be in the program's descriptor table.
 */
static void *run_named(void *argument)
{
	struct named named = *(struct named *)argument;

	nt_memory_free(argument);
	pthread_setname_np(pthread_self(), named.name);
	return named.main(named.argument);
}

/*
 * Start a detached thread of ours that calls main(argument), with all signals blocked, so that the program's signals go
 * to its own threads. name: a constant, shown by ps and debuggers, at most 15 characters; NULL: the thread may end soon,
 * or names itself. False if it cannot be started.
 */
bool nt_thread_start(void *(*main)(void *), void *argument, const char *name)
{
	struct named *named = name ? nt_memory_alloc(sizeof(*named)) : NULL;
	sigset_t all, before;
	pthread_attr_t attributes;
	pthread_t thread;

	if (name && !named)
		return false;
	if (named)
		*named = (struct named){main, argument, name};
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	bool started = pthread_create(&thread, &attributes, named ? run_named : main, named ? (void *)named : argument) == 0;
	if (!started)
		nt_memory_free(named);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return started;
}
