#include "base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The system's id of the calling thread, asked for once a thread, then remembered. */
uint32_t nt_thread_id(void)
{
	static __thread __attribute__((tls_model("initial-exec"))) uint32_t id;

	if (!id)
		id = (uint32_t)syscall(SYS_gettid);
	return id;
}

/*
 * Start a detached thread of ours that calls main(argument), with all signals blocked, so that the program's signals go
 * to its own threads. name: shown by ps and debuggers, at most 15 characters; NULL: the thread may end soon, or names
 * itself. False if it cannot be started.
 */
bool nt_thread_start(void *(*main)(void *), void *argument, const char *name)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	pthread_t thread;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	bool started = pthread_create(&thread, &attributes, main, argument) == 0;
	if (started && name)
		pthread_setname_np(thread, name);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return started;
}
