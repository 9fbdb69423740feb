/*
 * --benchmark: launches run originals and twins in random order, and how long each takes on the GPU is measured between two
 * events in its stream. In each group (launches of one kernel with one grid, block and dynamic shared memory on one device; the
 * replays of one executable graph) draws come in pairs, one of either kind first. Samples go to benchmark.bin.
 */
#ifndef NEUTRINO_BENCHMARK_H
#define NEUTRINO_BENCHMARK_H

#include <stdbool.h>

#include "base/neutrino_layout.h"
#include "drain/drain.h"

struct nt_group;
struct nt_pair;

/* The trace begins. Once, before anything is recorded. */
void nt_benchmark_start(void);

/* Whether launches are drawn and timed. Set when the trace begins. Lock-free. */
extern int nt_benchmark_set_now;

/*
 * Whether this is a --benchmark run: launches are drawn (the kernel's copy with probes or the original, at random) and timed.
 * Lock-free.
 */
static inline bool nt_benchmark_is_set(void)
{
	return __builtin_expect(__atomic_load_n(&nt_benchmark_set_now, __ATOMIC_RELAXED), 0);
}

/* With --benchmark, make the events of a pool, whose context is current; false if that fails. It allocates. */
bool nt_benchmark_make(const struct nt_pool *pool);
/* Count launches as untimed that were not looked at yet. has_context: whether the context is current; else events are gone. */
void nt_benchmark_unmake(const struct nt_pool *pool, bool has_context);

/* Have the times of all that has ended written. By the drain thread, with the pool's context current. */
struct nt_drained nt_benchmark_drain(const struct nt_pool *pool);

/* --- on the launch path: lock-free, from any thread --- */

/* A launch, or a replay, that is timed. */
struct nt_timing {
	const struct nt_pool *pool;
	/* Set by the caller: kernel, graph, grid, block, shared, stream. */
	struct neutrino_sample sample;
	struct nt_group *group;
	struct nt_pair *pair; /* NULL: there are no events for it */
	bool is_probed;	      /* the twin is to run, else the original */
};

/* Draw what runs. The pool and the sample are set. */
void nt_benchmark_draw(struct nt_timing *timing);

/* Just before and after the launch, on its stream. is_counted: what was drawn has been launched. */
void nt_benchmark_begin(struct nt_timing *timing);
void nt_benchmark_end(struct nt_timing *timing, bool is_counted);

#endif
