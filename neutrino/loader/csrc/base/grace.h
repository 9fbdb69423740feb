/*
 * Grace periods: when memory that readers without a lock may still be reading can be used for something else.
 *
 * A reader begins a reading section before it looks anything up and ends it after its last use of what it found. A writer
 * takes a record out of what is looked up, takes a ticket, and frees the record when the ticket is over: every section that
 * was under way then has ended. Sections may be nested.
 *
 * Each of the first NT_OWN_SHARDS threads counts itself in a line of its own, by plain additions: a launch that is not
 * probed consists of little else, and a locked addition would wait for the stores of the launch before it to the GPU. Since
 * the count of a section may then become visible after the section has looked something up, a period takes NT_VISIBLE_NS
 * at least, a thousand times as long as a CPU keeps a store to itself. Later threads share lines, by locked additions.
 */
#ifndef NEUTRINO_GRACE_H
#define NEUTRINO_GRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hot.h"

#define NT_OWN_SHARDS 64u
#define NT_SHARED_SHARDS 16u
#define NT_SHARDS (NT_OWN_SHARDS + NT_SHARED_SHARDS)
#define NT_VISIBLE_NS UINT64_C(10000000)

struct nt_shard {
	uint32_t readers[2]; /* sections under way, by the period's parity in which they began */
	/* counters.c's: where its threads have counted, since the writer last looked and at all. */
	uint64_t changed, used;
} __attribute__((aligned(64)));

extern NT_HIDDEN struct nt_shard nt_grace_shards[NT_SHARDS];
extern NT_HIDDEN uint32_t nt_grace_parity;
extern NT_HIDDEN __thread uint32_t nt_grace_thread_own __attribute__((tls_model("initial-exec")));

uint32_t nt_grace_thread_new(void);

/*
 * A small number that names the calling thread, from 1 on, given at its first call. Not the system's thread id, which a
 * later thread may get while launches of this one still run.
 */
static inline uint32_t nt_grace_thread(void)
{
	return nt_grace_thread_own ? nt_grace_thread_own : nt_grace_thread_new();
}

/*
 * Whether the thread of that number (nt_grace_thread) has a shard, a cache line with its counts, to itself, so that it
 * counts without locked additions. False for 0, a thread that has no number yet.
 */
static inline bool nt_grace_owns_shard(uint32_t thread)
{
	return thread - 1 < NT_OWN_SHARDS - 1;
}

/* The index, below NT_SHARDS, of the shard in which the thread of that number counts; later threads share theirs. */
static inline uint32_t nt_grace_shard_of(uint32_t thread)
{
	return thread < NT_OWN_SHARDS ? thread : NT_OWN_SHARDS + thread % NT_SHARED_SHARDS;
}

/* How many shards threads use by now: the first ones. */
uint32_t nt_grace_shards_used(void);

/*
 * Begin a reading section (records that are looked up in it are not freed before it ends) in a thread that has its
 * shard to itself: no locked addition. Returns what nt_grace_reading_end_own takes.
 */
static inline uint32_t *nt_grace_reading_begin_own(uint32_t thread)
{
	uint32_t *readers = &nt_grace_shards[thread].readers[__atomic_load_n(&nt_grace_parity, __ATOMIC_RELAXED)];

	__atomic_store_n(readers, __atomic_load_n(readers, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
	/* The compiler moves no look-up before it. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	return readers;
}

/*
 * End a reading section (what is found in it is not freed) that the same thread began by nt_grace_reading_begin_own,
 * which returned `readers`.
 */
static inline void nt_grace_reading_end_own(uint32_t *readers)
{
	__atomic_store_n(readers, __atomic_load_n(readers, __ATOMIC_RELAXED) - 1, __ATOMIC_RELEASE);
}

/*
 * Begin a reading section: records that are looked up in it without a lock are not freed before it ends. Returns what
 * nt_grace_reading_end takes, in the same thread. Sections may be nested. Lock-free.
 */
static inline uint32_t *nt_grace_reading_begin(void)
{
	uint32_t thread = nt_grace_thread();

	if (nt_grace_owns_shard(thread))
		return nt_grace_reading_begin_own(thread);
	uint32_t parity = __atomic_load_n(&nt_grace_parity, __ATOMIC_RELAXED);
	uint32_t *readers = &nt_grace_shards[nt_grace_shard_of(thread)].readers[parity];
	__atomic_fetch_add(readers, 1, __ATOMIC_SEQ_CST);
	return readers;
}

/*
 * End a reading section (what is found in it is not freed): what was looked up in it must not be used any more.
 * readers: as nt_grace_reading_begin returned it, in this thread.
 */
static inline void nt_grace_reading_end(uint32_t *readers)
{
	if (nt_grace_owns_shard(nt_grace_thread_own))
		nt_grace_reading_end_own(readers);
	else
		__atomic_fetch_sub(readers, 1, __ATOMIC_RELEASE);
}

/* A ticket for what the caller has just taken out. From any thread. */
uint64_t nt_grace_ticket(void);
/* Whether every section that was under way when the ticket was taken has ended. From any thread. */
bool nt_grace_is_over(uint64_t ticket);
/* Advance periods as far as that goes without waiting. By the drain thread, from time to time. */
void nt_grace_step(void);
/* Whether a ticket is not over yet. */
bool nt_grace_is_wanted(void);

/* The first member of a record that is freed after a grace period. */
struct nt_retired {
	struct nt_retired *next;
	uint64_t ticket;
	void (*release)(struct nt_retired *record);
};

/* Have a record, which is taken out already, released after a grace period by the drain thread. From any thread. */
void nt_grace_retire(struct nt_retired *record, void (*release)(struct nt_retired *record));
/* Release what can be. By the drain thread, after nt_grace_step. */
void nt_grace_release(void);

#endif
