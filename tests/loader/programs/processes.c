/* Scenarios of processes: children, and how the process itself ends. */
#include <signal.h>
#include <sys/wait.h>

#include "host.h"

/* The process ends while a kernel waits for ever. */
void endless(void)
{
	CHECK(launch_at(obtain(module, "spin_p1"), flag, 1, 32, make_stream(CU_STREAM_NON_BLOCKING)));
	exit(5);
}

static void wait_for(pid_t child)
{
	int status;

	waitpid(child, &status, 0);
	printf("child: %s %d\n", WIFEXITED(status) ? "status" : "signal",
	       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

void fork_and_exit(void)
{
	CHECK(count(function, 1, 32, stream));
	fflush(stdout);
	pid_t child = fork();
	if (child == 0)
		exit(3);
	wait_for(child);
	for (int i = 0; i < 3; i++)
		CHECK(count(function, 1, 32, stream));
}

void bare_fork(void)
{
	CHECK(count(function, 1, 32, stream));
	fflush(stdout);
	pid_t child = _Fork();
	if (child == 0)
		exit(3);
	wait_for(child);
}

/* What a child gets from a driver that its parent had initialized. */
void fork_and_call(void)
{
	int capturing = 0;
	CUcontext none = NULL;
	CUmodule loaded;
	CUfunction obtained;

	CHECK(count(function, 1, 32, stream));
	CHECK(cu.CtxSynchronize());
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		TELL(cu.Init(0));
		TELL(count(function, 1, 32, stream));
		TELL(cu.StreamIsCapturing(stream, &capturing));
		TELL(cu.StreamSynchronize(stream));
		TELL(cu.CtxSynchronize());
		TELL(cu.ModuleLoadData(&loaded, image));
		TELL(cu.ModuleGetFunction(&obtained, module, "count_p2"));
		TELL(cu.CtxSetCurrent(context));
		TELL(cu.DevicePrimaryCtxRetain(&none, 0));
		TELL(cu.StreamDestroy_v2(stream));
		TELL(cu.ModuleUnload(module));
		fflush(stdout);
		exit(4);
	}
	wait_for(child);
	CHECK(count(function, 1, 32, stream));
}

static volatile int stopping;

static void *launch_until_stopped(void *number)
{
	CUstream own;

	CHECK(cu.CtxSetCurrent(context));
	own = make_stream((intptr_t)number % 2 ? CU_STREAM_NON_BLOCKING : 0);
	for (int i = 1; !__atomic_load_n(&stopping, __ATOMIC_ACQUIRE); i++) {
		CHECK(count(function, 2, 32, own));
		usleep(500);
		if (i % 20 == 0)
			CHECK(cu.StreamSynchronize(own));
	}
	return NULL;
}

/* Children come and go while other threads launch. */
void fork_amid(void)
{
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, launch_until_stopped, (void *)(intptr_t)i);
	for (int i = 0; i < 6; i++) {
		usleep(20000);
		pid_t child = fork();
		if (child == 0 && i % 2)
			_exit(7);
		if (child == 0)
			execl("/bin/sh", "sh", "-c", "exit 7", (char *)NULL);
		wait_for(child);
	}
	__atomic_store_n(&stopping, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	/* How often this one was raised is a matter of time. */
	counter = make_counter();
}

void kill_self(void)
{
	for (int i = 0; i < 100; i++)
		CHECK(count(function, 1, 32, stream));
	CHECK(cu.StreamSynchronize(stream));
	written();
	raise(SIGKILL);
}

void exit_amid(void)
{
	pthread_t thread;

	for (int i = 0; i < 3; i++)
		pthread_create(&thread, NULL, launch_until_stopped, (void *)(intptr_t)i);
	usleep(200000);
	exit(4);
}
