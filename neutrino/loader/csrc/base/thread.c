#include "base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/apart.h"
#include "base/memory.h"

/* The system's id of the calling thread, asked for once a thread, then remembered. */
uint32_t nt_thread_id(void)
{
	static __thread __attribute__((tls_model("initial-exec"))) uint32_t id;

	if (!id)
		id = (uint32_t)syscall(SYS_gettid);
	return id;
}

/* For run_started: what a thread is to call, its name, or NULL, and its stack if that is of ours. */
struct start {
	void *(*main)(void *);
	void *argument;
	const char *name;
	struct nt_apart_stack *stack;
};

/*
 * Main function of a thread with a name or a stack of ours (argument: its struct start, freed here): the thread names
 * itself, and calls what it is for. To name another thread, glibc opens a file of /proc, which would be in the program's
 * descriptor table.
 */
static void *run_started(void *argument)
{
	struct start start = *(struct start *)argument;

	nt_memory_free(argument);
	if (start.name)
		pthread_setname_np(pthread_self(), start.name);
	void *ret = start.main(start.argument);
	if (start.stack)
		nt_apart_stack_end(start.stack);
	return ret;
}

/* Start a thread that calls start->main(start->argument). False if it cannot be started. */
static bool create(pthread_attr_t *attributes, const struct start *start)
{
	pthread_t thread;

	if (!start->name && !start->stack)
		return pthread_create(&thread, attributes, start->main, start->argument) == 0;
	struct start *copy = nt_memory_alloc(sizeof(*copy));
	if (!copy)
		return false;
	*copy = *start;
	if (pthread_create(&thread, attributes, run_started, copy) == 0)
		return true;
	nt_memory_free(copy);
	return false;
}

/*
 * Start a thread of ours, which nobody waits for, that calls main(argument), with all signals blocked, so that the
 * program's signals go to its own threads. name: a constant, shown by ps and debuggers, at most 15 characters; NULL: the
 * thread may end soon, or names itself. False if it cannot be started.
 */
bool nt_thread_start(void *(*main)(void *), void *argument, const char *name)
{
	struct start start = {main, argument, name, NULL};
	sigset_t all, before;
	pthread_attr_t attributes;

	pthread_attr_init(&attributes);
	if (nt_apart_is())
		start.stack = nt_apart_stack_take(&attributes);
	else
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	bool started = (start.stack || !nt_apart_is()) && create(&attributes, &start);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!started && start.stack)
		nt_apart_stack_give(start.stack);
	pthread_attr_destroy(&attributes);
	return started;
}
