/*
 * Device memory for the maps of launches in flight.
 *
 * A pool belongs to one context. It has small segments, each handed to one stream at a time and filled by many
 * launches, and large chunks, of which a launch that fills more than a segment takes a run. A full segment gets an
 * event after its last launch; once that has completed, the drain thread copies the segment back, zeroes it and lists
 * it again. Taking room is lock-free and calls nothing but, for a full segment, cuEventRecord on a ready-made event.
 */
#ifndef NEUTRINO_POOL_H
#define NEUTRINO_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/driver.h"
#include "base/neutrino_layout.h"

struct nt_kernel;
struct nt_layout;
struct nt_pool;
struct nt_segment;

/* Room for one launch. */
struct nt_room {
	struct nt_segment *segment;
	struct nt_stream *stream;
	struct nt_pool *pool;
	uint32_t slot; /* of the segment's launches */
	CUdeviceptr address;
};

enum nt_room_result {
	NT_ROOM,
	NT_ROOM_TOO_LARGE, /* larger than the pool can ever give */
	NT_ROOM_FULL,	   /* nothing free now */
};

/*
 * The pool of a context, which is current; it is made if there is none. NULL if it could not be made, also for all later
 * calls with this context. Not on the launch path: it allocates, and may wait for another thread.
 */
struct nt_pool *nt_pool_prepare(CUcontext context);

/*
 * The pool of a context if it is ready. If the driver has since made a new context at the address, the old one's pool is
 * given up, and it is NULL. Lock-free.
 */
struct nt_pool *nt_pools_find(CUcontext context);

/* Contexts whose pools are ready, at most so many: how many. Lock-free. */
unsigned nt_pools_contexts(CUcontext *ret, unsigned most);

/* Whether a pool was made for the context, is being made, or could not be. */
bool nt_pools_has(CUcontext context);

/* Bytes of the largest launch that the pool can take. */
uint64_t nt_slabs_most(const struct nt_pool *pool);

/*
 * Bytes of memory for large launches that are free now, in one piece at best; in a piece of which no launch has any; and
 * once others have ended. Lock-free.
 */
uint64_t nt_room_free_large(const struct nt_pool *pool);
uint64_t nt_room_idle(const struct nt_pool *pool);
uint64_t nt_room_largest(const struct nt_pool *pool);

/* Whether a launch of so many bytes is a large one. */
bool nt_room_is_large(uint64_t size);

/* Ask the drain thread for memory for large launches of so many bytes. Lock-free. */
void nt_room_want_large(struct nt_pool *pool, uint64_t size);

/*
 * A kernel was obtained one launch of which takes size bytes: have memory for it beside what was expected before, and
 * shared bytes beside, which such kernels share; and wait for that, once for each kernel. Not on the launch path.
 */
void nt_pool_expect(struct nt_pool *pool, struct nt_kernel *kernel, uint64_t size, uint64_t shared);

/*
 * A kernel with logs was obtained: unless a limit was set, let the pool have half of the memory that is free in its
 * context, which is current. Returns for how many bytes there should be room if no kernel's need is known. Not on the launch
 * path.
 */
uint64_t nt_pool_has_logs(struct nt_pool *pool);

/* Bytes of a launch whose logs have an unknown need, at most; 0: not known. Lock-free. */
uint64_t nt_pool_unknown_most(const struct nt_pool *pool);

/* Whether a launch of size bytes can find room once others have ended, as far as is known. Lock-free. */
bool nt_room_reaches(const struct nt_pool *pool, uint64_t size);

/* A launch of a kernel needs more than the pool can ever give, or is_full: has free. The trace notes it once. Lock-free. */
void nt_pool_too_large(struct nt_pool *pool, struct nt_kernel *kernel, uint64_t size, bool is_full);

/* Ordinal of the pool's device. */
CUdevice nt_pools_device(const struct nt_pool *pool);

/*
 * Take size zeroed bytes for a launch on a stream (default streams by their explicit handles). After NT_ROOM the caller
 * must call nt_room_submitted. Lock-free.
 */
enum nt_room_result nt_room_take(struct nt_pool *pool, CUstream stream, uint64_t size, struct nt_room *ret);

/*
 * Record that a launch was submitted, or with launched = false that it was not; then its maps may be drained. It is of a
 * kernel, or a replay of a graph with that layout; the other is NULL. launch: its number in launches.bin. size: bytes of its maps. Lock-free.
 */
void nt_room_submitted(const struct nt_room *room, struct nt_kernel *kernel, struct nt_layout *layout, uint64_t launch,
		       uint64_t size, bool launched);

/*
 * Called before and after a call of the program that waits for a stream (all streams of the context if stream is NULL):
 * launches that were submitted before it are complete after it. moment: the stream's submissions, or the context's waits,
 * before the call.
 */
struct nt_watermark {
	struct nt_pool *pool;
	uint64_t id; /* of the pool's context */
	CUstream handle;
	struct nt_stream *stream;
	uint32_t life; /* of its row */
	uint64_t moment;
};
void nt_streams_watermark_before(struct nt_watermark *mark, CUcontext context, CUstream stream);
void nt_streams_watermark_after(const struct nt_watermark *mark, CUcontext context);

/* Close a stream's segment just before the program destroys the stream, while an event can be recorded on it. */
void nt_streams_forget(CUcontext context, CUstream stream);

/*
 * Just before the program destroys a context: have its pool drained and freed by the drain thread, and wait for that at
 * most that long.
 */
void nt_pool_forget_context(CUcontext context, unsigned milliseconds);

/*
 * Just before the program may destroy a context: have its launches waited for and drained by the drain thread, and wait
 * for that at most that long. Its pool stays.
 */
void nt_pool_flush(CUcontext context, unsigned milliseconds);
/* The same in all contexts; false if it takes longer. */
bool nt_pool_flush_all(unsigned milliseconds);

/*
 * The same in all contexts, without a wait: it is done when nt_pool_are_all_flushed. A capture of the program, which a wait for
 * a context would end, comes first.
 */
void nt_pool_flush_gently(void);
bool nt_pool_are_all_flushed(void);

/* Bytes of device memory of all pools. */
uint64_t nt_pool_size_all(void);

/*
 * After the driver has refused the program memory: have what no launch uses of the pools on the current device freed, and
 * wait for that at most that long for each. Whether anything was.
 */
bool nt_pool_give_back(unsigned milliseconds);

/* If the driver has destroyed the context: give up its pool, and wait at most that long for the drain thread to do so. */
void nt_pool_context_gone(CUcontext context, unsigned milliseconds);

/* At the end of the process: have all pools drained, and wait at most that long. False if that was too short. */
bool nt_pool_drain_all(unsigned milliseconds);

/* In the child after fork: discard all pools, which belong to the parent's contexts. */
void nt_pool_child(void);

#endif
