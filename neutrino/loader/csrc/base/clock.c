#include "base/clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* What a clock of the system shows, in nanoseconds. */
static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* CLOCK_MONOTONIC in nanoseconds: for durations and deadlines. */
uint64_t nt_clock_now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

/* CLOCK_REALTIME in nanoseconds since 1970. */
uint64_t nt_clock_realtime_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

/* Sleep so many microseconds. A signal may end it early. */
void nt_clock_sleep_us(long microseconds)
{
	struct timespec pause = {.tv_sec = microseconds / 1000000, .tv_nsec = microseconds % 1000000 * 1000};

	/* Not nanosleep, in which a thread of the program could be cancelled. */
	syscall(SYS_nanosleep, &pause, NULL);
}

/*
 * The local time in seconds since midnight, by the time zone's offset at the first call. Not localtime each time: a
 * thread that has ended the process in a signal handler may hold its lock.
 */
unsigned nt_clock_second_of_day(void)
{
	enum { DAY_S = 86400 };
	static int64_t offset_s;
	static int is_known;
	int64_t now = (int64_t)(nt_clock_realtime_ns() / 1000000000);

	if (!__atomic_load_n(&is_known, __ATOMIC_ACQUIRE)) {
		time_t moment = (time_t)now;
		struct tm local;
		if (localtime_r(&moment, &local))
			__atomic_store_n(&offset_s, local.tm_gmtoff, __ATOMIC_RELAXED);
		__atomic_store_n(&is_known, 1, __ATOMIC_RELEASE);
	}
	return (unsigned)((now + __atomic_load_n(&offset_s, __ATOMIC_RELAXED)) % DAY_S);
}
