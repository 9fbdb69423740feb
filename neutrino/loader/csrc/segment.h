/*
 * The parts of a pool, for the files that share them: room.c hands segments to streams, drain.c takes them back, pool.c
 * makes and ends them, frames.c writes what was in them.
 */
#ifndef NEUTRINO_SEGMENT_H
#define NEUTRINO_SEGMENT_H

#include "kernel.h"
#include "pool.h"

#define CONTEXTS 64u			       /* pools, one for each context */
#define STREAMS 4096u			       /* of a pool */
#define SLOTS 512u			       /* launches in a small segment, at most */
#define UNIT ((uint64_t)NEUTRINO_REGION_ALIGN) /* bytes; places in segments are multiples of it */
#define SEGMENT_SIZE (UINT64_C(256) << 10)     /* bytes of a small segment */
#define SMALL_MOST 4096u		       /* small segments of a pool */
#define CHUNKS 64u			       /* for large launches; a run of them is a large segment */
#define STAGING_SIZE (UINT64_C(8) << 20)       /* bytes of host memory for copies from the device */
#define POOL_LEAST (UINT64_C(4) << 20)	       /* bytes of device memory */
#define POOL_DEFAULT_MOST (UINT64_C(1) << 30)

/* Flags beside the count of holders in nt_segment.hold. */
#define HOLD_FULL 0x80000000u /* no more launches come */
#define HOLD_DONE 0x40000000u /* full, and every launch has been submitted: the drain thread's now */
#define HOLD_FINISHING 0x20000000u /* a thread is making it done: it records the event */
#define HOLD_COUNT 0x1fffffffu	   /* threads that add a launch to the segment, or are about to */

/*
 * nt_stream.state: index of its current segment + 1 (0: none); a generation, which changes with the segment, so that a
 * thread notices if it was replaced meanwhile and is back; launches in the segment; units that these use.
 */
#define STATE_UNITS_MASK 0xfffffu
#define STATE_COUNT_SHIFT 20
#define STATE_COUNT_MASK 0xfffu
#define STATE_GENERATION_SHIFT 32
#define STATE_GENERATION_MASK 0xffffu
#define STATE_SEGMENT_SHIFT 48

/* A launch in a segment. */
struct nt_slot {
	struct nt_kernel *kernel; /* NULL: refused by the driver, nothing to copy */
	uint64_t launch;	  /* its number in launches.bin */
	uint64_t size;		  /* bytes of its maps */
	uint64_t sequence; /* of the submission; 0 until then */
	uint32_t offset;   /* units from the segment's start */
};

/* A stream of the program. */
struct nt_stream {
	uint64_t key;	    /* its handle, or the thread of a per-thread default stream; 0: none */
	uint64_t state;	    /* its current segment: STATE_... */
	uint64_t watermark; /* submissions up to this number are complete in it */
	uint32_t lives;	    /* streams of the program that were destroyed under this key */
};

/* Device memory for the maps of launches in one stream. */
struct nt_segment {
	CUdeviceptr address;
	CUevent event;		  /* made once, recorded whenever the segment is full */
	struct nt_slot *slots;	  /* its launches, in the order in which they took room */
	struct nt_stream *stream; /* that it was last handed to */
	uint64_t chunks;	  /* bits of nt_pool.chunks_busy, 0 for a small segment */
	uint32_t hold;		  /* HOLD_... */
	uint32_t life;	  /* of the stream, when it took the segment */
	uint32_t count;	  /* launches, valid once full */
	uint32_t drained; /* the drain thread's own: launches copied back */
	bool recorded;	  /* the event follows the last launch */
};

enum pool_state {
	POOL_NONE,	/* of no context */
	POOL_PREPARING, /* one thread allocates it */
	POOL_READY,
	POOL_FAILED,  /* it could not be made, and is not tried again */
	POOL_CLOSING, /* the drain thread has to drain and free it */
	POOL_GONE,    /* its context is gone, and with it the memory: the drain thread has to forget both */
	POOL_CLOSED,
};

/* The pool of a context. */
struct nt_pool {
	CUcontext context;
	uint64_t id; /* of the context, which is another one if the driver has made a new one at its address */
	CUdevice device;
	int state;	  /* enum pool_state */
	int flush;	  /* the drain thread has to wait for all launches, and drain them */
	CUdeviceptr base; /* all of its device memory */
	CUstream stream;  /* ours, non-blocking */
	uint8_t *staging; /* the drain thread's host memory for copies */
	uint64_t small_count;
	uint64_t chunk_size;		      /* bytes of a chunk */
	uint64_t small_free[SMALL_MOST / 64]; /* a bit for each small segment: 1 if it is free */
	uint64_t chunks_busy;		      /* a bit for each chunk: 1 if a launch has it */
	uint64_t watermark;		      /* submissions up to this number are complete in the whole context */
	uint32_t small_hint;		      /* where to search small_free first */
	bool ending; /* the process ends: keep what the driver will free */
	struct nt_segment *segments; /* small ones, then one for each chunk */
	struct nt_slot *slots;
	struct nt_stream *streams;
};

extern struct nt_pool nt_pools[CONTEXTS];

/* Number of launches submitted so far, in this process: the sequence of the last one. */
extern uint64_t nt_submissions;

bool nt_stream_is_per_thread(const struct nt_stream *stream);

/* A stream's state without a segment, which is not equal to any recent state of it. */
uint64_t nt_stream_without_segment(uint64_t state);

/* Mark a segment as full, with count launches. own: see finish_segment in room.c. Lock-free. */
void nt_segment_close(struct nt_segment *segment, uint32_t count, const struct nt_stream *own);

/* Make a small segment available. Lock-free. */
void nt_segment_give(struct nt_pool *pool, struct nt_segment *segment);

/* Raise *value to at least a value. Lock-free. */
static inline void nt_raise_to(uint64_t *value, uint64_t least)
{
	uint64_t before = __atomic_load_n(value, __ATOMIC_RELAXED);

	while (before < least &&
	       !__atomic_compare_exchange_n(value, &before, least, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

/*
 * Free everything of a pool, and clear it. has_context: whether its context is current; if it is gone, so is what the
 * driver has allocated in it.
 */
void nt_pool_unmake(struct nt_pool *pool, bool has_context);

/* Map size bytes of zeroed memory, which takes space only when it is written; NULL if that fails. */
void *nt_map_zeroed(size_t size);

/*
 * Whether the pool's context is still the one that it was made in. What was allocated in one that is gone may be the
 * program's by now. Lock-free.
 */
bool nt_pool_is_current(const struct nt_pool *pool, CUcontext context);

/* Start the drain thread, once; false when there is none. */
bool nt_drain_start(void);

#endif
