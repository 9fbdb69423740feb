/*
 * Launches counted by kernel and reason. Each of grace.h's shards has a copy of the counters; the writer adds the copies up,
 * and writes what has changed to counters.bin.
 */
#ifndef NEUTRINO_COUNTERS_H
#define NEUTRINO_COUNTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/grace.h"
#include "base/neutrino_layout.h"

#define NT_COUNTERS_KERNELS 64u  /* of which the counters are made at once */
#define NT_COUNTERS_PAGES 65536u /* for 4 million kernels */

/* The counters of some kernels: a page. A line takes memory only once something is counted in it. */
struct nt_counters {
	uint64_t counts[NT_SHARDS][NT_COUNTERS_KERNELS][NEUTRINO_REASON_SLOTS];
	uint64_t written[NT_COUNTERS_KERNELS][NEUTRINO_REASON_SLOTS]; /* as they are in the file */
	/*
	 * The writer's: when it last found counts changed. A thread that counts in a shard of its own may find them marked as
	 * changed before its count is visible: so they are added up once more when NT_VISIBLE_NS have passed. Until then they
	 * are due.
	 */
	uint64_t changed_ns;
	bool is_due;
} __attribute__((aligned(64)));

extern NT_HIDDEN struct nt_counters *nt_counters[NT_COUNTERS_PAGES];

/*
 * The bit that stands for a page of counters in nt_shard.changed and nt_shard.used. Pages may share it: then more are
 * looked at than need be.
 */
static inline uint64_t nt_counters_bit(uint32_t page)
{
	return UINT64_C(1) << page % 64;
}

/* Mark a page of a shard as changed, and wake the drain thread if it sleeps. */
void nt_counters_mark(uint32_t shard, uint64_t bit);

/*
 * The page with the launch counters of a kernel, by its id; NULL before the trace has started, or without memory for
 * it.
 */
static inline struct nt_counters *nt_counters_of(uint32_t kernel)
{
	uint32_t page = kernel / NT_COUNTERS_KERNELS;

	return page < NT_COUNTERS_PAGES ? __atomic_load_n(&nt_counters[page], __ATOMIC_ACQUIRE) : NULL;
}

/*
 * After a launch was counted in a shard (a cache line of one or more threads): mark its page as changed for the writer,
 * which takes the marks before it reads the counts.
 */
static inline void nt_counters_counted(uint32_t shard, uint32_t kernel)
{
	uint64_t bit = nt_counters_bit(kernel / NT_COUNTERS_KERNELS);

	if (NT_UNLIKELY(!(__atomic_load_n(&nt_grace_shards[shard].changed, __ATOMIC_SEQ_CST) & bit)))
		nt_counters_mark(shard, bit);
}

/*
 * Count `number` launches of a kernel under a reason, in a thread that has its shard of the counters to itself, so
 * without locked additions. counters: nt_counters_of(kernel), may be NULL.
 */
static inline void nt_counters_count_own(struct nt_counters *counters, uint32_t thread, uint32_t kernel, enum neutrino_reason reason,
					 uint64_t number)
{
	if (NT_UNLIKELY(!counters))
		return;
	uint64_t *count = &counters->counts[thread][kernel % NT_COUNTERS_KERNELS][reason];
	__atomic_store_n(count, __atomic_load_n(count, __ATOMIC_RELAXED) + number, __ATOMIC_RELEASE);
	nt_counters_counted(thread, kernel);
}

/* Make the counters of kernel 0 and the next ones. False without memory. */
bool nt_counters_start(void);

/* Whether something was counted since it was last written. */
bool nt_counters_changed(void);

/* Write what has changed to a file. False if that fails: it is written again next time. By one thread at a time. */
bool nt_counters_write(int fd);

#endif
