/*
 * The parts of a pool, for the files that share them: slabs.c gets and returns its device memory, streams.c has its
 * streams, room.c hands segments to them, drain.c takes these back, pool.c makes and ends pools, frames.c writes what was
 * in segments.
 */
#ifndef NEUTRINO_SEGMENT_H
#define NEUTRINO_SEGMENT_H

#include <pthread.h>

#include "base/kernel.h"
#include "memory/pool.h"

#define CONTEXTS 64u			       /* pools, one for each context */
#define SLOTS 512u			       /* launches in a small segment, at most */
#define UNIT ((uint64_t)NEUTRINO_REGION_ALIGN) /* bytes; places in segments are multiples of it */
#define SEGMENT_SIZE (UINT64_C(256) << 10)     /* bytes of a small segment */
#define SLABS 64u			       /* of a pool; device memory for small segments */
#define SLAB_SEGMENTS 64u		       /* of a slab, at most: a bit each in a word */
#define SMALL_MOST (SLABS * SLAB_SEGMENTS)     /* small segments of a pool */
#define AREAS 4u			       /* of a pool; device memory for large launches */
#define CHUNKS 64u			       /* of an area; a run of them is a large segment */
#define SEGMENTS (SMALL_MOST + AREAS * CHUNKS)
#define STAGING_SIZE (UINT64_C(8) << 20)       /* bytes of host memory for copies from the device */
#define POOL_LEAST (UINT64_C(4) << 20)	       /* bytes of device memory */
#define POOL_START (UINT64_C(64) << 20)	       /* a pool begins with this, at most */
#define POOL_DEFAULT_MOST (UINT64_C(1) << 30)

/* Flags beside the count of holders in nt_segment.hold. */
#define HOLD_FULL 0x80000000u /* no more launches come */
#define HOLD_DONE 0x40000000u /* full, and every launch has been submitted: the drain thread's now */
#define HOLD_FINISHING 0x20000000u /* a thread is making it done: it records the event */
#define HOLD_COUNT 0x1fffffffu	   /* threads that add a launch to the segment, or are about to */

/*
 * nt_stream.state: index of its current segment + 1 (0: none; STATE_GONE: the row is not in the table any more); a
 * generation, which changes with the segment, so that a thread notices if it was replaced meanwhile and is back; launches
 * in the segment; units that these use.
 */
#define STATE_UNITS_MASK 0xfffffu
#define STATE_COUNT_SHIFT 20
#define STATE_COUNT_MASK 0xfffu
#define STATE_GENERATION_SHIFT 32
#define STATE_GENERATION_MASK 0xffffu
#define STATE_SEGMENT_SHIFT 48
#define STATE_GONE 0xffffu

/* A launch in a segment. */
struct nt_slot {
	struct nt_kernel *kernel; /* NULL: refused by the driver, nothing to copy */
	struct nt_layout *layout; /* of a replay of a graph, which has many kernels; else NULL */
	uint64_t launch;	  /* its number in launches.bin */
	uint64_t size;		  /* bytes of its maps */
	uint64_t sequence;	  /* of the submission in its stream; 0 until then */
	uint64_t wave;		  /* waits for the whole context that had begun when it was submitted */
	uint32_t offset;	  /* units from the segment's start */
};

/* A stream of the program, in its pool's table. A line of its own, so that threads with streams of their own share none. */
struct nt_stream {
	uint64_t key;	     /* its handle, or the thread of a per-thread default stream */
	uint64_t state;	     /* its current segment: STATE_... */
	uint64_t submitted;  /* launches so far: the sequence of the last one */
	uint64_t watermark;  /* launches up to this sequence are complete */
	uint64_t ticket;     /* once it has left the table: the row is free after this grace period */
	uint32_t next;	     /* number of the next one in its bucket */
	uint32_t next_gone;  /* the same in nt_pool.gone, or among the free rows */
	uint32_t references; /* segments that are its own, and one for the table */
	uint32_t life;	     /* streams that had this row */
} __attribute__((aligned(64)));

#define BUCKETS 16384u	      /* of the table of streams; each begins a list */
#define ROWS_OF_BLOCK 4096u   /* rows of streams that are mapped at once */
#define ROW_BLOCKS 256u	      /* of those, at most: a million streams at the same time */

/* Device memory for the maps of launches in one stream. */
struct nt_segment {
	CUdeviceptr address;
	CUevent event;		  /* made once, recorded whenever the segment is full */
	struct nt_slot *slots;	  /* its launches, in the order in which they took room */
	struct nt_stream *stream; /* that it was last handed to */
	uint64_t chunks;	  /* bits of its area's busy, 0 for a small segment */
	uint32_t hold;		  /* HOLD_... */
	uint32_t count;	  /* launches, valid once full */
	uint32_t drained; /* the drain thread's own: launches copied back */
	bool recorded;	  /* the event follows the last launch */
};

/* Device memory of 64 small segments, or fewer in the first ones of a small pool. */
struct nt_slab {
	CUdeviceptr base; /* 0: none now */
	uint32_t count;	  /* of segments */
	uint64_t free;	  /* a bit for each segment: 1 if it is free */
};

/* Device memory for large launches. */
struct nt_area {
	CUdeviceptr base; /* 0: none now */
	uint64_t chunk_size;
	uint64_t busy; /* a bit for each chunk: 1 if a launch has it; all are 1 while there is no memory */
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

enum nt_flush {
	NT_FLUSH_NONE,
	NT_FLUSH_NOW,
	NT_FLUSH_GENTLY, /* once no stream is captured */
};

/* The pool of a context. */
struct nt_pool {
	/* What the launch path reads, and nothing writes often. */
	CUcontext context;
	uint64_t id; /* of the context, which is another one if the driver has made a new one at its address */
	uint64_t wave;	    /* waits for the whole context that have begun */
	CUdevice device;
	int state;	    /* enum pool_state */
	uint32_t slab_end;  /* after the last slab that has had memory */
	uint32_t small_hint; /* the slab to search first */
	uint64_t most;	    /* bytes of device memory that it may have */
	struct nt_segment *segments; /* SMALL_MOST small ones, then CHUNKS for each area */
	uint32_t *buckets;	     /* of the table of streams */
	struct nt_stream *rows[ROW_BLOCKS];
	struct nt_slab slabs[SLABS];
	struct nt_area areas[AREAS];

	/* What others ask of the drain thread. */
	int flush;	       /* to wait for all launches, and drain them: enum nt_flush */
	int give_back;	       /* to free the device memory that no launch has */
	uint64_t small_wanted; /* launches that found no segment */
	uint64_t large_wanted; /* bytes of the largest launch that found no room */
	uint64_t unknown;      /* bytes for launches whose logs have an unknown need */
	uint64_t unknown_most; /* of one such launch, at most; 0: there was no kernel with logs */
	int expect;	       /* to have memory for large_expected and shared_expected */
	uint64_t large_expected; /* bytes of a launch of each kernel whose need was known when it was obtained */
	uint64_t shared_expected; /* bytes for launches that want more, or whose need is not known */
	uint64_t largest_expected; /* of one launch, the most */
	uint64_t large_refused;  /* bytes for a launch that could not be had, as the program needs the memory; 0: none */
	struct nt_kernel *oversized; /* a kernel with a launch for which there was no room */
	uint64_t oversized_size;     /* bytes of that launch */
	uint64_t oversized_free;     /* bytes that were free then; UINT64_MAX: it is larger than the pool can ever hold */
	bool ending; /* the process ends: keep what the driver will free */

	uint64_t watermark; /* launches with a wave below this are complete */
	uint64_t free_rows; /* of streams: the first one's number, and a count of changes above it */
	uint32_t row_blocks, rows_used; /* rows_used: streams in the table, and rows that wait for a grace period */
	pthread_mutex_t streams_mutex; /* for all that takes rows out of the table; not for the launch path */
	uint32_t gone;		       /* rows that left the table */
	uint32_t waiting, waiting_last; /* the drain thread's own: those that wait for a grace period, oldest first */
	CUstream stream;    /* ours, non-blocking */
	uint8_t *staging;   /* the drain thread's host memory for copies */
	uint64_t size;	    /* bytes of device memory now */
	uint64_t grow_after; /* nanoseconds; the program lacked memory, so not before */
	CUevent mark;	     /* the drain thread's own: after all launches of the waves up to mark_wave */
	uint64_t mark_wave;  /* 0: the event is not recorded */
	uint64_t stale_since; /* nanoseconds; nothing was drained since, and launches are in flight. 0: neither */
};

extern struct nt_pool nt_pools[CONTEXTS];

/*
 * The key of a stream in the table: its handle, or for a per-thread default stream the thread's number, marked by
 * PER_THREAD in the low bits. These are 0 in handles, which are pointers, and 1 in CU_STREAM_LEGACY.
 */
#define KEY_MARK_BITS 3
#define KEY_MARK_MASK 7u
#define PER_THREAD 2u

/* Whether a stream is the default stream of one thread. */
static inline bool nt_segment_is_per_thread(const struct nt_stream *stream)
{
	return (stream->key & KEY_MARK_MASK) == PER_THREAD;
}

/* The driver's handle of a stream; for the default stream of a thread the one that stands for the calling thread's. */
static inline CUstream nt_segment_handle(const struct nt_stream *stream)
{
	return nt_segment_is_per_thread(stream) ? CU_STREAM_PER_THREAD : (CUstream)(uintptr_t)stream->key;
}

/* --- streams.c --- */

/*
 * The stream of a handle. add: whether to add it if it is missing. NULL if it is missing, or there is no free row. In a
 * reading section, lock-free.
 */
struct nt_stream *nt_streams_find(struct nt_pool *pool, CUstream handle, bool add);

/* Give up a segment's reference, or the table's: the last one frees the row after a grace period. Lock-free. */
void nt_streams_release(struct nt_pool *pool, struct nt_stream *stream);

/* Take a stream that has no segment out of the table, unless a launch comes meanwhile. By the drain thread. */
void nt_streams_retire(struct nt_pool *pool, struct nt_stream *stream);

/* A stream's state without a segment, which is not equal to any recent state of it. */
uint64_t nt_streams_without_segment(uint64_t state);

/* Map rows, of which there are enough for some streams more; false without memory. */
bool nt_streams_make(struct nt_pool *pool);
/* By the drain thread: free rows after their grace period, and map more if few are free. */
void nt_streams_tend(struct nt_pool *pool);
void nt_streams_unmake(struct nt_pool *pool);

/* Whether a stream's row has left the table of streams, by its state. */
static inline bool nt_state_is_gone(uint64_t state)
{
	return state >> STATE_SEGMENT_SHIFT == STATE_GONE;
}

/* --- slabs.c: in the pool's context, by the thread that makes the pool and then by the drain thread --- */

/* Get the device memory that a pool begins with; false if there is none. */
bool nt_slabs_make(struct nt_pool *pool);
/* Get more where launches lack it and the program does not. */
void nt_slabs_grow(struct nt_pool *pool);
/* Whether fewer than a quarter of the small segments are free. */
bool nt_slabs_run_short(const struct nt_pool *pool);
/* Free what no launch has. */
void nt_slabs_give_back(struct nt_pool *pool);
void nt_slabs_unmake(struct nt_pool *pool, bool has_context);
/* Bytes of large launches that the pool may ever have room for. */
uint64_t nt_slabs_large_most(const struct nt_pool *pool);
/* The area of a large segment. */
struct nt_area *nt_slabs_area(struct nt_pool *pool, const struct nt_segment *segment);

/* --- segment.c --- */

/*
 * Whether a segment (device memory for launches of one stream) is full and no thread is about to add a launch to it,
 * nor has anybody finished it: then the caller must. hold: its count of holders and flags.
 */
static inline bool nt_segment_is_last(uint32_t hold)
{
	return (hold & HOLD_FULL) && !(hold & (HOLD_DONE | HOLD_FINISHING | HOLD_COUNT));
}

/*
 * Finish a segment if it is full and nobody holds it: hand it over to the drain thread. hold: its value as the caller has
 * seen it. If several threads see that, one of them finishes it. own: the stream that the calling thread launches on, or is
 * about to destroy; NULL if there is none. An event can be recorded only there, since the program may destroy any other
 * stream at the same time. A segment without an event is complete when a watermark shows it. Lock-free.
 */
void nt_segment_finish(struct nt_segment *segment, uint32_t hold, const struct nt_stream *own);

/* Mark a segment as full, with count launches. own: as in nt_segment_finish. Lock-free. */
void nt_segment_close(struct nt_segment *segment, uint32_t count, const struct nt_stream *own);

/*
 * Give up a hold on a segment (piece of device memory for launches): the caller's launch in it has been submitted, or
 * takes none. own: the stream that the calling thread launches on, NULL if there is none. Lock-free.
 */
static inline void nt_segment_release(struct nt_segment *segment, const struct nt_stream *own)
{
	uint32_t hold = __atomic_sub_fetch(&segment->hold, 1, __ATOMIC_ACQ_REL);

	if (nt_segment_is_last(hold))
		nt_segment_finish(segment, hold, own);
}

/* --- room.c --- */

/* Make a small segment available. Lock-free. */
void nt_room_give(struct nt_pool *pool, struct nt_segment *segment);

/* Set *value to the greater one of itself and `least`. Lock-free. */
static inline void nt_raise_to(uint64_t *value, uint64_t least)
{
	uint64_t before = __atomic_load_n(value, __ATOMIC_RELAXED);

	while (before < least &&
	       !__atomic_compare_exchange_n(value, &before, least, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

/* --- pools.c --- */

/* The pool of a context in any state, or NULL. Lock-free. */
struct nt_pool *nt_pools_known(CUcontext context);

/* A context's number, which no other of the process ever has; 0 if the driver has none, ~0 if the context is gone. */
uint64_t nt_pools_id_of(CUcontext context);

/*
 * Whether the pool's context is still the one that it was made in. What was allocated in one that is gone may be the
 * program's by now. Lock-free.
 */
bool nt_pools_is_current(const struct nt_pool *pool, CUcontext context);

/* --- pool.c --- */

/*
 * Free everything of a pool, and clear it. has_context: whether its context is current; if it is gone, so is what the
 * driver has allocated in it.
 */
void nt_pool_unmake(struct nt_pool *pool, bool has_context);

#endif
