#include "base/grace.h"

#include <stddef.h>

#include "base/clock.h"
#include "base/hot.h"

struct nt_shard nt_grace_shards[NT_SHARDS];
NT_HOT uint32_t nt_grace_parity;
__thread uint32_t nt_grace_thread_own;

/* Periods: wanted by tickets, begun, and over. */
static uint64_t wanted, begun, over;
static uint64_t begun_ns;
static bool turned; /* the period under way has changed the parity, and waits for the sections that began before */

static uint32_t last_thread;

/* Give the calling thread its number: the next one, from 1 on. Once a thread. */
uint32_t nt_grace_thread_new(void)
{
	nt_grace_thread_own = __atomic_add_fetch(&last_thread, 1, __ATOMIC_SEQ_CST);
	return nt_grace_thread_own;
}

/*
 * How many shards (cache lines in which threads count) are in use by now: those from 0 on, so that no more need be
 * looked at.
 */
uint32_t nt_grace_shards_used(void)
{
	uint32_t last = __atomic_load_n(&last_thread, __ATOMIC_SEQ_CST);

	return last < NT_OWN_SHARDS ? last + 1 : NT_SHARDS;
}

/*
 * A ticket for a record that the caller has just taken out of a table: once nt_grace_is_over(ticket), no reader can
 * have it, and it may be freed. From any thread.
 */
uint64_t nt_grace_ticket(void)
{
	/*
	 * The next period to begin: the one under way may have checked the readers before one began that still has the
	 * record.
	 */
	uint64_t ticket = __atomic_load_n(&begun, __ATOMIC_SEQ_CST) + 1;
	uint64_t before = __atomic_load_n(&wanted, __ATOMIC_RELAXED);

	while (before < ticket && !__atomic_compare_exchange_n(&wanted, &before, ticket, true, __ATOMIC_SEQ_CST,
							       __ATOMIC_RELAXED))
		;
	return ticket;
}

/*
 * Whether every reading section (what is found in it is not freed) that was under way when the ticket was taken has
 * ended: what was taken out before may be freed. From any thread.
 */
bool nt_grace_is_over(uint64_t ticket)
{
	return __atomic_load_n(&over, __ATOMIC_ACQUIRE) >= ticket;
}

/* Whether anybody has a ticket that is not over, so that nt_grace_step has to be called again. */
bool nt_grace_is_wanted(void)
{
	return __atomic_load_n(&over, __ATOMIC_ACQUIRE) < __atomic_load_n(&wanted, __ATOMIC_ACQUIRE);
}

/*
 * Whether no reading section (what is found in it is not freed) of a parity (0 or 1: sections count themselves by the
 * one in force when they begin) is under way, apart from those that began less than NT_VISIBLE_NS ago, whose counts may
 * not be visible yet.
 */
static bool is_quiet(uint32_t parity)
{
	for (unsigned i = 0; i < NT_SHARDS; i++)
		if (__atomic_load_n(&nt_grace_shards[i].readers[parity], __ATOMIC_ACQUIRE))
			return false;
	return true;
}

/*
 * Advance grace periods (after which what was taken out of tables may be freed) as far as that goes without waiting. By
 * the drain thread only, from time to time. A period ends when both parities have been quiet since NT_VISIBLE_NS after
 * its beginning: first the one that new sections do not take, for readers that looked up the parity long ago; then the
 * parities change places, and it waits for the other, which from then on only such readers take.
 */
void nt_grace_step(void)
{
	uint32_t parity = __atomic_load_n(&nt_grace_parity, __ATOMIC_RELAXED);

	if (begun == over) {
		if (__atomic_load_n(&wanted, __ATOMIC_SEQ_CST) <= over)
			return;
		__atomic_store_n(&begun, begun + 1, __ATOMIC_SEQ_CST);
		begun_ns = nt_clock_now_ns();
		turned = false;
	}
	if (nt_clock_now_ns() - begun_ns < NT_VISIBLE_NS || !is_quiet(parity ^ 1))
		return;
	if (!turned) {
		__atomic_store_n(&nt_grace_parity, parity ^ 1, __ATOMIC_SEQ_CST);
		turned = true;
		if (!is_quiet(parity))
			return;
	}
	__atomic_store_n(&over, begun, __ATOMIC_RELEASE);
}

static struct nt_retired *retired; /* added by any thread */
static struct nt_retired *waiting; /* the drain thread's own: those whose tickets may be over */

/*
 * Have release(record) called by the drain thread (it fetches results) once no reader can have the record any more. The
 * caller has taken it out of its table already. From any thread, lock-free.
 */
void nt_grace_retire(struct nt_retired *record, void (*release)(struct nt_retired *record))
{
	record->release = release;
	record->ticket = nt_grace_ticket();
	record->next = __atomic_load_n(&retired, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&retired, &record->next, record, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

/*
 * Call the release functions of retired records whose grace period (until no reader can have it) is over. By the drain
 * thread (it fetches results) only, after nt_grace_step.
 */
void nt_grace_release(void)
{
	struct nt_retired *added = __atomic_exchange_n(&retired, NULL, __ATOMIC_ACQUIRE);

	static uint64_t seen;
	uint64_t now = __atomic_load_n(&over, __ATOMIC_ACQUIRE);

	while (added) {
		struct nt_retired *next = added->next;
		added->next = waiting;
		waiting = added;
		added = next;
	}
	/* Unless a period has ended since the last visit, no more tickets are over than then. */
	if (now == seen)
		return;
	seen = now;
	for (struct nt_retired **link = &waiting; *link;) {
		struct nt_retired *record = *link;
		if (!nt_grace_is_over(record->ticket)) {
			link = &record->next;
			continue;
		}
		*link = record->next;
		record->release(record);
	}
}
