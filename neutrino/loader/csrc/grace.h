/*
 * Grace periods: when memory that readers without a lock may still be reading can be used for something else.
 *
 * A reader begins a reading section before it looks anything up and ends it after its last use of what it found. Each
 * thread counts itself in a line of its own (of NT_SHARDS, by its number), so sections of different threads share none.
 * A writer takes a record out of what is looked up, takes a ticket, and frees the record when the ticket is over: every
 * section that was under way then has ended. Sections may be nested.
 */
#ifndef NEUTRINO_GRACE_H
#define NEUTRINO_GRACE_H

#include <stdbool.h>
#include <stdint.h>

#define NT_SHARDS 64u

struct nt_shard {
	uint32_t readers[2]; /* threads in a section, by the period's parity in which they began */
} __attribute__((aligned(64)));

extern struct nt_shard nt_shards[NT_SHARDS];
extern uint32_t nt_grace_parity;
extern __thread uint32_t nt_thread_number_own __attribute__((tls_model("initial-exec")));

uint32_t nt_thread_number_new(void);

/*
 * A number of the calling thread. Not the system's thread id, which a later thread may get while launches of this one
 * still run.
 */
static inline uint32_t nt_thread_number(void)
{
	return nt_thread_number_own ? nt_thread_number_own : nt_thread_number_new();
}

/* Begin a reading section; returns what ends it. Lock-free. */
static inline uint32_t *nt_reading_begin(void)
{
	struct nt_shard *shard = &nt_shards[nt_thread_number() % NT_SHARDS];
	uint32_t *readers = &shard->readers[__atomic_load_n(&nt_grace_parity, __ATOMIC_RELAXED)];

	__atomic_fetch_add(readers, 1, __ATOMIC_SEQ_CST);
	return readers;
}

static inline void nt_reading_end(uint32_t *readers)
{
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
void nt_retire(struct nt_retired *record, void (*release)(struct nt_retired *record));
/* Release what can be. By the drain thread, after nt_grace_step. */
void nt_retired_release(void);

#endif
