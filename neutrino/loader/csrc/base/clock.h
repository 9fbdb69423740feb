#ifndef NEUTRINO_CLOCK_H
#define NEUTRINO_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC, in nanoseconds. */
uint64_t nt_clock_now_ns(void);
/* CLOCK_REALTIME, in nanoseconds. */
uint64_t nt_clock_realtime_ns(void);
void nt_clock_sleep_us(long microseconds);

#endif
