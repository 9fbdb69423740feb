#ifndef NEUTRINO_CLOCK_H
#define NEUTRINO_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC, in nanoseconds. */
uint64_t nt_clock_now_ns(void);
/* CLOCK_REALTIME, in nanoseconds. */
uint64_t nt_clock_realtime_ns(void);
void nt_clock_sleep_us(long microseconds);

/*
 * The local time, in seconds since midnight, by the offset of the time zone at the first call. Not localtime, whose lock a
 * thread may hold that has ended the process in a signal handler.
 */
unsigned nt_clock_second_of_day(void);

#endif
