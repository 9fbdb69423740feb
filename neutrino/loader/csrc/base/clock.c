#include "base/clock.h"

#include <time.h>

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t nt_clock_now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

uint64_t nt_clock_realtime_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

void nt_clock_sleep_us(long microseconds)
{
	struct timespec pause = {.tv_sec = microseconds / 1000000, .tv_nsec = microseconds % 1000000 * 1000};

	nanosleep(&pause, NULL);
}
