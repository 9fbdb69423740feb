#include "trace/counters.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/quiet_write.h"
#include "base/wake.h"
#include "trace/trace.h"

struct nt_counters *nt_counters[NT_COUNTERS_PAGES];
static uint32_t page_count;
static uint32_t is_any_due; /* of the pages */

/*
 * Make the launch counters of a kernel (by its id), before its first launch; it allocates. Without memory the kernel's
 * launches are not counted.
 */
void nt_counters_make(uint32_t kernel)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	uint32_t number = kernel / NT_COUNTERS_KERNELS;

	if (number >= NT_COUNTERS_PAGES || __atomic_load_n(&nt_counters[number], __ATOMIC_ACQUIRE))
		return;
	nt_lock_take(&mutex);
	if (!nt_counters[number]) {
		struct nt_counters *page = mmap(NULL, sizeof(struct nt_counters), PROT_READ | PROT_WRITE,
					 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (page != MAP_FAILED) {
			__atomic_store_n(&nt_counters[number], page, __ATOMIC_RELEASE);
			if (number >= page_count)
				__atomic_store_n(&page_count, number + 1, __ATOMIC_RELEASE);
		}
	}
	nt_lock_release(&mutex);
}

/* Make the counters of kernel 0 and the next ones. False without memory. */
bool nt_counters_start(void)
{
	nt_counters_make(0);
	return nt_counters[0];
}

/*
 * Mark a page's bit as changed in a shard, and wake the drain thread (it fetches results) if it sleeps, so that the
 * counts get written.
 */
void nt_counters_mark(uint32_t shard, uint64_t bit)
{
	__atomic_fetch_or(&nt_grace_shards[shard].used, bit, __ATOMIC_RELAXED);
	__atomic_fetch_or(&nt_grace_shards[shard].changed, bit, __ATOMIC_SEQ_CST);
	/* A launch that is not probed wakes nobody else. */
	nt_wake_drain_from(NT_ASLEEP);
}

/*
 * Count `number` launches of a kernel (by its id) under the reason why they ran the original, or PROBED. From any
 * thread, lock-free.
 */
void nt_counters_count_many(uint32_t kernel, enum neutrino_reason reason, uint64_t number)
{
	struct nt_counters *counters = nt_counters_of(kernel);
	uint32_t thread = nt_grace_thread(), shard = nt_grace_shard_of(thread);

	if (nt_grace_owns_shard(thread)) {
		nt_counters_count_own(counters, thread, kernel, reason, number);
	} else if (counters) {
		__atomic_fetch_add(&counters->counts[shard][kernel % NT_COUNTERS_KERNELS][reason], number, __ATOMIC_SEQ_CST);
		nt_counters_counted(shard, kernel);
	}
}

/*
 * Count one launch of a kernel (by its id) under the reason why it ran the original, or PROBED. From any thread,
 * lock-free.
 */
void nt_counters_count(uint32_t kernel, enum neutrino_reason reason)
{
	nt_counters_count_many(kernel, reason, 1);
}

/* Whether launches were counted since the counters were last written. */
bool nt_counters_changed(void)
{
	uint32_t shards = nt_grace_shards_used();

	for (uint32_t i = 0; i < shards; i++)
		if (__atomic_load_n(&nt_grace_shards[i].changed, __ATOMIC_RELAXED))
			return true;
	return __atomic_load_n(&is_any_due, __ATOMIC_RELAXED);
}

/*
 * Add up a kernel's counters over all shards (copies by threads). kernel: its place in the page; bit: the page's.
 * Whether the sums differ from those in the file.
 */
static bool add_up(struct nt_counters *page, uint64_t bit, uint32_t kernel, uint64_t ret[NEUTRINO_REASON_SLOTS])
{
	uint32_t shards = nt_grace_shards_used();

	memset(ret, 0, NEUTRINO_REASON_SLOTS * sizeof(*ret));
	for (uint32_t i = 0; i < shards; i++) {
		if (!(__atomic_load_n(&nt_grace_shards[i].used, __ATOMIC_RELAXED) & bit))
			continue;
		for (uint32_t j = 0; j < NEUTRINO_REASON_SLOTS; j++)
			ret[j] += __atomic_load_n(&page->counts[i][kernel][j], __ATOMIC_ACQUIRE);
	}
	return memcmp(ret, page->written[kernel], NEUTRINO_REASON_SLOTS * sizeof(*ret)) != 0;
}

/* How many launches of a kernel (by its id) were counted under a reason, in all threads. */
uint64_t nt_counters_total(uint32_t kernel, enum neutrino_reason reason)
{
	const struct nt_counters *page = nt_counters_of(kernel);
	uint64_t bit = nt_counters_bit(kernel / NT_COUNTERS_KERNELS), ret = 0;
	uint32_t shards = nt_grace_shards_used();

	for (uint32_t i = 0; page && i < shards; i++)
		if (__atomic_load_n(&nt_grace_shards[i].used, __ATOMIC_RELAXED) & bit)
			ret += __atomic_load_n(&page->counts[i][kernel % NT_COUNTERS_KERNELS][reason], __ATOMIC_RELAXED);
	return ret;
}

/* Write the counters of a page's kernels that have changed to the file. number: of the page. False if that fails. */
static bool write_page(int fd, struct nt_counters *page, uint32_t number)
{
	uint64_t first_kernel = (uint64_t)number * NT_COUNTERS_KERNELS;
	uint64_t row[NEUTRINO_REASON_SLOTS];

	for (uint32_t i = 0; i < NT_COUNTERS_KERNELS; i++) {
		if (!add_up(page, nt_counters_bit(number), i, row))
			continue;
		if (!nt_quiet_write_all_at(fd, row, sizeof(row), (first_kernel + i) * sizeof(row)))
			return false;
		memcpy(page->written[i], row, sizeof(row));
	}
	return true;
}

/* Take the marks of pages in which something was counted since the last time: a bit for each (nt_counters_bit). */
static uint64_t take_changed(void)
{
	uint32_t shards = nt_grace_shards_used();
	uint64_t ret = 0;

	for (uint32_t i = 0; i < shards; i++)
		if (__atomic_load_n(&nt_grace_shards[i].changed, __ATOMIC_RELAXED))
			ret |= __atomic_exchange_n(&nt_grace_shards[i].changed, 0, __ATOMIC_SEQ_CST);
	return ret;
}

/*
 * Write the counters that have changed to a file (counters.bin). False if that fails: they are written again next time.
 * By one thread at a time.
 */
bool nt_counters_write(int fd)
{
	uint32_t count = __atomic_load_n(&page_count, __ATOMIC_ACQUIRE);
	uint64_t now = nt_clock_now_ns(), changed = take_changed();
	bool written = true, is_due = false;

	for (uint32_t i = 0; i < count; i++) {
		struct nt_counters *page = __atomic_load_n(&nt_counters[i], __ATOMIC_ACQUIRE);
		if (!page || (!(changed & nt_counters_bit(i)) && !page->is_due))
			continue;
		if (changed & nt_counters_bit(i))
			page->changed_ns = now;
		page->is_due = now - page->changed_ns < NT_VISIBLE_NS;
		if (!write_page(fd, page, i)) {
			page->is_due = true; /* again later */
			written = false;
		}
		is_due |= page->is_due;
	}
	__atomic_store_n(&is_any_due, is_due, __ATOMIC_RELAXED);
	return written;
}
