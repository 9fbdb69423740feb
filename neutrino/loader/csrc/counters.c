#include "counters.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "drain.h"
#include "grace.h"
#include "neutrino_layout.h"
#include "quiet_write.h"
#include "trace.h"

#define SHARDS 16u
#define PAGE_KERNELS 64u  /* of which the counters are made at once */
#define MOST_PAGES 65536u /* for 4 million kernels */

struct shard {
	uint64_t counts[PAGE_KERNELS][NEUTRINO_REASON_SLOTS];
	uint32_t is_changed; /* since it was last added up */
	uint32_t is_used;
	char own_line[56];
} __attribute__((aligned(64)));

/* The counters of some kernels. A line takes memory only once something is counted in it. */
struct page {
	struct shard shards[SHARDS];
	uint64_t written[PAGE_KERNELS][NEUTRINO_REASON_SLOTS]; /* as they are in the file */
};

static struct page *pages[MOST_PAGES];
static uint32_t page_count;

void nt_trace_kernel(uint32_t kernel)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	uint32_t number = kernel / PAGE_KERNELS;

	if (number >= MOST_PAGES || __atomic_load_n(&pages[number], __ATOMIC_ACQUIRE))
		return;
	pthread_mutex_lock(&mutex);
	if (!pages[number]) {
		struct page *page = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE,
					 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (page != MAP_FAILED) {
			__atomic_store_n(&pages[number], page, __ATOMIC_RELEASE);
			if (number >= page_count)
				__atomic_store_n(&page_count, number + 1, __ATOMIC_RELEASE);
		}
	}
	pthread_mutex_unlock(&mutex);
}

bool nt_counters_start(void)
{
	nt_trace_kernel(0);
	return pages[0];
}

void nt_trace_count_many(uint32_t kernel, unsigned reason, uint64_t number)
{
	struct page *page = kernel / PAGE_KERNELS < MOST_PAGES
				    ? __atomic_load_n(&pages[kernel / PAGE_KERNELS], __ATOMIC_ACQUIRE)
				    : NULL;

	/* Before the trace has started there is none. Without memory for it, the kernel is not counted. */
	if (!page)
		return;
	struct shard *shard = &page->shards[nt_thread_number() % SHARDS];
	__atomic_fetch_add(&shard->counts[kernel % PAGE_KERNELS][reason], number, __ATOMIC_SEQ_CST);
	/* After the count. The writer clears it before it reads the counts, so that none is missed. */
	if (!__atomic_load_n(&shard->is_changed, __ATOMIC_SEQ_CST)) {
		__atomic_store_n(&shard->is_used, 1, __ATOMIC_RELAXED);
		__atomic_store_n(&shard->is_changed, 1, __ATOMIC_SEQ_CST);
		/* A launch that is not probed wakes nobody else. */
		nt_drain_wake_from(NT_ASLEEP);
	}
}

void nt_trace_count(uint32_t kernel, unsigned reason)
{
	nt_trace_count_many(kernel, reason, 1);
}

bool nt_counters_changed(void)
{
	uint32_t count = __atomic_load_n(&page_count, __ATOMIC_ACQUIRE);

	for (uint32_t i = 0; i < count; i++) {
		const struct page *page = __atomic_load_n(&pages[i], __ATOMIC_ACQUIRE);
		for (uint32_t j = 0; page && j < SHARDS; j++)
			if (__atomic_load_n(&page->shards[j].is_changed, __ATOMIC_RELAXED))
				return true;
	}
	return false;
}

/* Add up a kernel's counters of all shards. Whether they differ from those in the file. */
static bool add_up(struct page *page, uint32_t kernel, uint64_t ret[NEUTRINO_REASON_SLOTS])
{
	memset(ret, 0, NEUTRINO_REASON_SLOTS * sizeof(*ret));
	for (uint32_t i = 0; i < SHARDS; i++) {
		if (!__atomic_load_n(&page->shards[i].is_used, __ATOMIC_RELAXED))
			continue;
		for (uint32_t j = 0; j < NEUTRINO_REASON_SLOTS; j++)
			ret[j] += __atomic_load_n(&page->shards[i].counts[kernel][j], __ATOMIC_RELAXED);
	}
	return memcmp(ret, page->written[kernel], NEUTRINO_REASON_SLOTS * sizeof(*ret)) != 0;
}

uint64_t nt_trace_counted(uint32_t kernel, unsigned reason)
{
	const struct page *page = kernel / PAGE_KERNELS < MOST_PAGES
					  ? __atomic_load_n(&pages[kernel / PAGE_KERNELS], __ATOMIC_ACQUIRE)
					  : NULL;
	uint64_t ret = 0;

	for (uint32_t i = 0; page && i < SHARDS; i++)
		ret += __atomic_load_n(&page->shards[i].counts[kernel % PAGE_KERNELS][reason], __ATOMIC_RELAXED);
	return ret;
}

/* Write the counters of a page's kernels that have changed. */
static bool write_page(int fd, struct page *page, uint64_t first_kernel)
{
	uint64_t row[NEUTRINO_REASON_SLOTS];

	for (uint32_t i = 0; i < PAGE_KERNELS; i++) {
		if (!add_up(page, i, row))
			continue;
		if (!nt_pwrite_all(fd, row, sizeof(row), (first_kernel + i) * sizeof(row)))
			return false;
		memcpy(page->written[i], row, sizeof(row));
	}
	return true;
}

bool nt_counters_write(int fd)
{
	uint32_t count = __atomic_load_n(&page_count, __ATOMIC_ACQUIRE);
	bool written = true;

	for (uint32_t i = 0; i < count; i++) {
		struct page *page = __atomic_load_n(&pages[i], __ATOMIC_ACQUIRE);
		bool is_changed = false;
		for (uint32_t j = 0; page && j < SHARDS; j++)
			is_changed |= __atomic_exchange_n(&page->shards[j].is_changed, 0, __ATOMIC_SEQ_CST);
		if (!is_changed || write_page(fd, page, (uint64_t)i * PAGE_KERNELS))
			continue;
		/* Try again later. Not is_used: no count is in this shard. */
		__atomic_store_n(&page->shards[0].is_changed, 1, __ATOMIC_SEQ_CST);
		written = false;
	}
	return written;
}
