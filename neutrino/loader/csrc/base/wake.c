#include "base/wake.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

int nt_wake_depth;
static int stopped;

void nt_wake_stop(void)
{
	__atomic_store_n(&stopped, 1, __ATOMIC_RELEASE);
}

bool nt_wake_is_stopped(void)
{
	return __atomic_load_n(&stopped, __ATOMIC_ACQUIRE);
}

void nt_wake_up(void)
{
	int error = errno;

	if (__atomic_exchange_n(&nt_wake_depth, NT_AWAKE, __ATOMIC_ACQ_REL) != NT_AWAKE)
		syscall(SYS_futex, &nt_wake_depth, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	errno = error;
}
