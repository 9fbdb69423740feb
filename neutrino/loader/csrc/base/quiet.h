/*
 * Moments at which a context has nothing to do. The driver loads an image only when all kernels in the context have ended,
 * and until then no launch in it goes on (an H200 with driver 580: cuModuleLoadData, cuKernelGetFunction). A kernel that
 * waits for a later launch would never end. So a thread of ours loads twins only while the context is known to be idle.
 *
 * An event after all work of the context (cuCtxRecordEvent) shows when that has ended, and counts of launches that none
 * has come since. A launch that comes while the image is loaded waits for that, as it would in the driver.
 */
#ifndef NEUTRINO_QUIET_H
#define NEUTRINO_QUIET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/driver.h"
#include "base/grace.h"
#include "base/hot.h"

/* Whether launches are counted: in processes whose twins are loaded by a thread of ours. Set once, before any of them. */
extern NT_HIDDEN bool nt_quiet_counts;

/* Launches that have begun, and that are submitted, of the threads that share a shard. */
struct nt_quiet_shard {
	uint64_t begun, submitted;
} __attribute__((aligned(64)));
extern struct nt_quiet_shard nt_quiet_shards[NT_SHARDS];
extern int nt_quiet_is_loading;

/* Wait until the image that is being loaded is. */
void nt_quiet_wait(void);

/*
 * Before each kernel launch of the program: counts it, and waits while our thread is loading a twin (a kernel's copy
 * with probes), which needs the GPU to be idle. Lock-free while none is loaded; does nothing where twins are not loaded
 * by a thread.
 */
static inline void nt_quiet_launch_begins(void)
{
	if (!nt_quiet_counts)
		return;
	__atomic_fetch_add(&nt_quiet_shards[nt_grace_thread() % NT_SHARDS].begun, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&nt_quiet_is_loading, __ATOMIC_SEQ_CST))
		nt_quiet_wait();
}

/*
 * After each kernel launch of the program was handed to the driver: counts it as submitted, so that another thread can
 * tell that none is half-way.
 */
static inline void nt_quiet_launch_ends(void)
{
	if (nt_quiet_counts)
		__atomic_fetch_add(&nt_quiet_shards[nt_grace_thread() % NT_SHARDS].submitted, 1, __ATOMIC_SEQ_CST);
}

/* Before the program begins to capture a stream: wait until no event is being recorded, which would end the capture. */
void nt_quiet_capture_begins(void);

/* Whether the driver can tell. */
bool nt_quiet_is_supported(void);

/* Record an event after all work of the context; false while a stream is captured, since that would invalidate the capture. */
bool nt_quiet_record(CUcontext context, CUevent event);

/*
 * Wait until the current context is idle, at most that long: then launches wait until nt_quiet_end. False if it was not,
 * or if the program is capturing a stream. By one thread at a time.
 */
bool nt_quiet_begin(CUcontext context, unsigned milliseconds);
void nt_quiet_end(void);

/* In the child after fork: nothing is loaded, and nobody waits. */
void nt_quiet_child(void);

#endif
