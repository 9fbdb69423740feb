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

#include "driver.h"
#include "neutrino_layout.h"

struct nt_kernel;
struct nt_pool;
struct nt_segment;

/* Room for one launch. */
struct nt_room {
	struct nt_segment *segment;
	struct nt_stream *stream;
	uint32_t slot; /* of the segment's launches */
	CUdeviceptr address;
};

enum nt_room_result {
	NT_ROOM,
	NT_ROOM_TOO_LARGE, /* larger than the pool can ever give */
	NT_ROOM_FULL,	   /* nothing free now */
};

/*
 * The pool of the current context, made when it has none. Not on the launch path: allocates. NULL when it could not be
 * made, once and for all for this context.
 */
struct nt_pool *nt_pool_prepare(CUcontext context);

/* The pool of a context if it is ready. Lock-free. */
struct nt_pool *nt_pool_find(CUcontext context);

/* Whether a pool was made for the context, is being made, or could not be. */
bool nt_pool_known(CUcontext context);

/* Bytes of the largest launch that the pool can take. */
uint64_t nt_pool_most(const struct nt_pool *pool);

/* Ordinal of the pool's device. */
CUdevice nt_pool_device(const struct nt_pool *pool);

/* Take size bytes, zeroed, for a launch on stream (default streams by their explicit handles). Lock-free. */
enum nt_room_result nt_pool_take(struct nt_pool *pool, CUstream stream, uint64_t size, struct nt_room *ret);

/* The launch has been submitted (or refused, launched = false): from now on its data may be drained. */
void nt_pool_submitted(const struct nt_room *room, struct nt_kernel *kernel, uint64_t launch, uint64_t size,
		       bool launched);

/*
 * Before and after a call of the program that waits for a stream (every stream of the context when stream is NULL):
 * what had been submitted before is complete after it.
 */
struct nt_watermark {
	struct nt_pool *pool;
	CUstream stream;
	uint64_t moment;
};
void nt_watermark_before(struct nt_watermark *mark, CUcontext context, CUstream stream);
void nt_watermark_after(const struct nt_watermark *mark);

/* The stream goes away: its segment is closed while an event can still be recorded on it. */
void nt_pool_forget_stream(CUcontext context, CUstream stream);

/* The context goes away: drain what has completed, wait for it at most that long, and let go of the pool. */
void nt_pool_forget_context(CUcontext context, unsigned milliseconds);

/* At the end of the process: drain everything, at most that long. False when time ran out. */
bool nt_pool_drain_all(unsigned milliseconds);

/* After fork: nothing of the parent's is ours. */
void nt_pool_child(void);

#endif
