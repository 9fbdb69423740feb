#include "base/wake.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

int nt_wake_drain_depth;
static int stopped;

/*
 * Have the drain thread (ours, which fetches results) make no further call of the driver: the process ends without it.
 */
void nt_wake_stop_drain(void)
{
	__atomic_store_n(&stopped, 1, __ATOMIC_RELEASE);
}

/* Whether the drain thread (it fetches results) must make no further call of the driver (nt_wake_stop_drain). */
bool nt_wake_drain_is_stopped(void)
{
	return __atomic_load_n(&stopped, __ATOMIC_ACQUIRE);
}

/* Wake the drain thread (ours, which fetches results of finished launches) if it sleeps. errno stays. */
void nt_wake_drain(void)
{
	int error = errno;

	if (__atomic_exchange_n(&nt_wake_drain_depth, NT_AWAKE, __ATOMIC_ACQ_REL) != NT_AWAKE)
		syscall(SYS_futex, &nt_wake_drain_depth, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	errno = error;
}
