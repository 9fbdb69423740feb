/*
 * Failures on request: NEUTRINO_EMBEDDED's fail=POINT[@N[+]][=VALUE],… makes the Nth passage of that point (with '+':
 * and all after it; without '@': every one) fail with the driver's error VALUE, or with the point's own.
 *
 *   alloc, hostalloc   device and pinned memory: 2, out of memory
 *   load               modules and libraries: 200
 *   stream, event      their creation: 2
 *   copy               copies and fills: 719
 *   launch, twinlaunch launches, and those of kernels whose names end in __neutrino: 1 (719 and other errors that a
 *                      context does not survive come back from all calls after it)
 *   write              cuStreamWriteValue32 and 64: 801
 *   occupancy          VALUE is the divisor by which blocks a multiprocessor of __neutrino kernels are fewer: 2
 *   slowalloc          VALUE is a time (300ms, 20us) that an allocation of device memory takes
 */
#ifndef ED_FAILURE_H
#define ED_FAILURE_H

#include "abi.h"

enum ed_point {
	ED_FAIL_ALLOC,
	ED_FAIL_HOSTALLOC,
	ED_FAIL_LOAD,
	ED_FAIL_STREAM,
	ED_FAIL_EVENT,
	ED_FAIL_COPY,
	ED_FAIL_LAUNCH,
	ED_FAIL_TWINLAUNCH,
	ED_FAIL_WRITE,
	ED_FAIL_OCCUPANCY,
	ED_FAIL_SLOWALLOC,
	ED_FAIL_POINTS,
};

/* Count a passage of a point. Returns the value with which it must fail, 0 if it must not. */
uint64_t ed_failure(enum ed_point point);

#endif
