#include "base/wake.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

int nt_drain_sleep;
static int stopped;

void nt_drain_stop(void)
{
	__atomic_store_n(&stopped, 1, __ATOMIC_RELEASE);
}

bool nt_drain_is_stopped(void)
{
	return __atomic_load_n(&stopped, __ATOMIC_ACQUIRE);
}

void nt_drain_wake(void)
{
	int error = errno;

	if (__atomic_exchange_n(&nt_drain_sleep, NT_AWAKE, __ATOMIC_ACQ_REL) != NT_AWAKE)
		syscall(SYS_futex, &nt_drain_sleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	errno = error;
}
