/*
 * A program that is restricted after its start: `sandboxed open|unshare` forbids that system call to all of its threads,
 * `sandboxed environment` clears its environment. It then goes on loading and launching.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "program.h"

static int forbid(int number)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof(rules) / sizeof(rules[0]), rules};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	       syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter);
}

static void work(CUdeviceptr counter)
{
	CUfunction function = obtain(load(), "count_p2");

	for (int i = 0; i < 20; i++)
		CHECK(launch_at(function, counter, 2, 96, NULL));
	CHECK(cu.CtxSynchronize());
	printf("%llu\n", (unsigned long long)value_at(counter));
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "", *when = argc > 2 ? argv[2] : "";
	CUcontext context;

	read_image();
	find_driver("libcuda.so.1");
	CHECK(cu.Init(0));
	/* The stand-in has read its settings. */
	if (!strcmp(what, "environment") && !strcmp(when, "before"))
		clearenv();
	find_launches();
	CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
	CHECK(cu.CtxSetCurrent(context));
	CUdeviceptr counter = allocate(sizeof(uint64_t));
	if (strcmp(when, "before"))
		work(counter);
	if (!strcmp(what, "environment"))
		clearenv();
	else
		printf("%d\n", forbid(!strcmp(what, "open") ? SYS_openat : SYS_unshare));
	work(counter);
	/* Another image than before. */
	image[strlen(image) - 1] ^= 1;
	work(counter);
	return 0;
}
