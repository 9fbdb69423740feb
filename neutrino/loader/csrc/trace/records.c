#include "trace/records.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/lock.h"
#include "trace/trace.h"

#define MOST_CHUNKS 32768u    /* in memory: a million records, of 128 MiB */
#define RUNS 65536u	      /* of the table from runs to chunks; a power of two */
#define READY 2048u	      /* chunks that wait for a thread, at most; a power of two */
#define FEWEST_AHEAD 256u     /* fresh chunks that are kept ready, to begin with */
#define BLOCK_CHUNKS 256u     /* chunks that are mapped at once */
#define IDLE_NS 50000000u     /* after which the rest of a chunk is offered to other threads */
#define RECHECK_ROUNDS 32u    /* collections after which submitted records are looked at again */
#define COUNT_BITS 8
#define COUNT_MASK 0xffu
#define ALL_RECORDS UINT32_MAX

_Static_assert(sizeof(struct neutrino_launch) == 128, "records of 128 bytes tile a page");
_Static_assert(CHUNK_RECORDS == 32, "a bit of a mask for each record");

struct chunk {
	/*
	 * The run of numbers << COUNT_BITS | records taken. Taking one is a compare-and-exchange of this word, so that it is
	 * right also for a thread that still has a chunk which others use, or which has become that of a later run.
	 */
	uint64_t word;
	char own_line[56];
	/* The rest is guarded by the mutex, but for records, which is set once. */
	struct neutrino_launch *records;
	uint64_t since_ns;   /* when the number of taken records was last seen to change */
	uint64_t offered;    /* position in ready at which it was last offered */
	uint32_t seen;	     /* records taken, at that time */
	uint32_t submitted;  /* masks: collected as submitted; */
	uint32_t dirty;	     /* changed since then; */
	uint32_t final;	     /* collected in the last state, */
	uint32_t done;	     /* and written so */
	bool is_live;
	char own_lines[15];
} __attribute__((aligned(128)));

static struct chunk chunks[MOST_CHUNKS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint32_t chunk_count;	     /* chunks that have memory */
static uint32_t free_chunks[MOST_CHUNKS], free_count;
static uint64_t next_run;
static uint32_t ahead = FEWEST_AHEAD;
static uint32_t recheck;
static uint64_t lost_launches; /* settled as LOST */

/* Index of the chunk of a run, by the run modulo RUNS, plus 1; 0: none. Without a lock for readers. */
static uint32_t chunk_of_run[RUNS];

/* Chunks for threads to take: positions [head, tail) modulo READY. The threads move the head, the drain thread the tail. */
static uint32_t ready[READY];
static struct {
	uint64_t head __attribute__((aligned(64)));
	uint64_t tail __attribute__((aligned(64)));
	int started;
} line;

/* The next chunk (of 32 launch records) that is ready for a thread to use; NULL if there is none. Lock-free. */
static struct chunk *take_chunk(void)
{
	uint64_t head = __atomic_load_n(&line.head, __ATOMIC_ACQUIRE);
	uint32_t chunk;

	do {
		if (head == __atomic_load_n(&line.tail, __ATOMIC_ACQUIRE))
			return NULL;
		chunk = __atomic_load_n(&ready[head % READY], __ATOMIC_RELAXED);
	} while (!__atomic_compare_exchange_n(&line.head, &head, head + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
	return &chunks[chunk];
}

/*
 * Take a free launch record; NULL if there is none. *index gets its number in launches.bin. On the launch path,
 * lock-free.
 */
struct neutrino_launch *nt_records_take(uint64_t *index)
{
	static __thread __attribute__((tls_model("initial-exec"))) struct chunk *own;

	if (!__atomic_load_n(&line.started, __ATOMIC_ACQUIRE))
		return NULL;
	if (!own)
		own = take_chunk();
	while (own) {
		uint64_t word = __atomic_load_n(&own->word, __ATOMIC_ACQUIRE);
		while ((word & COUNT_MASK) < CHUNK_RECORDS) {
			if (!__atomic_compare_exchange_n(&own->word, &word, word + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
				continue;
			*index = (word >> COUNT_BITS) * CHUNK_RECORDS + (word & COUNT_MASK);
			return &own->records[word & COUNT_MASK];
		}
		own = take_chunk();
	}
	return NULL;
}

/* Which run of 32 consecutive record numbers a chunk (32 launch records) holds: its first number is that times 32. */
static uint64_t run_of(const struct chunk *chunk)
{
	return __atomic_load_n(&chunk->word, __ATOMIC_RELAXED) >> COUNT_BITS;
}

/*
 * The chunk in memory that holds the record of that number; NULL if all its records were settled, and it is used for
 * others.
 */
static struct chunk *chunk_at(uint64_t index)
{
	uint64_t run = index / CHUNK_RECORDS;
	uint32_t number = __atomic_load_n(&chunk_of_run[run % RUNS], __ATOMIC_ACQUIRE);

	return number && run_of(&chunks[number - 1]) == run ? &chunks[number - 1] : NULL;
}

/*
 * The launch record of a number that nt_records_take has returned, until it is settled; after that a dummy, never NULL.
 */
struct neutrino_launch *nt_records_at(uint64_t index)
{
	static struct neutrino_launch none;
	struct chunk *chunk = chunk_at(index);

	return chunk ? &chunk->records[index % CHUNK_RECORDS] : &none;
}

/* Offer the free records of a chunk (32 launch records) to threads. Under the mutex; there must be room in the line. */
static void offer_chunk(struct chunk *chunk)
{
	uint64_t tail = line.tail;

	chunk->offered = tail;
	__atomic_store_n(&ready[tail % READY], (uint32_t)(chunk - chunks), __ATOMIC_RELAXED);
	__atomic_store_n(&line.tail, tail + 1, __ATOMIC_RELEASE);
}

/*
 * The index of a chunk (32 launch records) that is not in use, mapping more memory if need be; MOST_CHUNKS if there is
 * none. Under the mutex.
 */
static uint32_t free_chunk(void)
{
	if (free_count)
		return free_chunks[--free_count];
	if (chunk_count == MOST_CHUNKS)
		return MOST_CHUNKS;
	size_t size = BLOCK_CHUNKS * CHUNK_RECORDS * sizeof(struct neutrino_launch);
	struct neutrino_launch *block =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (block == MAP_FAILED)
		return MOST_CHUNKS;
	for (uint32_t i = 0; i < BLOCK_CHUNKS; i++) {
		chunks[chunk_count + i].records = block + i * CHUNK_RECORDS;
		/* The first ones last, so that they are used first. */
		free_chunks[free_count++] = chunk_count + BLOCK_CHUNKS - 1 - i;
	}
	chunk_count += BLOCK_CHUNKS;
	return free_chunks[--free_count];
}

/*
 * Give a free chunk (32 launch records) the next run of record numbers, and offer it to threads. False without a free
 * chunk. Under the mutex.
 */
static bool prepare_chunk(uint64_t now)
{
	/* A launch that never ends keeps its chunk: its place in the table is passed over, and so are 32 numbers. */
	for (uint32_t tries = 0; __atomic_load_n(&chunk_of_run[next_run % RUNS], __ATOMIC_RELAXED); tries++) {
		if (tries == RUNS)
			return false;
		next_run++;
	}
	uint32_t number = free_chunk();
	if (number == MOST_CHUNKS)
		return false;
	struct chunk *chunk = &chunks[number];
	memset(chunk->records, 0, CHUNK_RECORDS * sizeof(*chunk->records));
	chunk->seen = chunk->submitted = chunk->dirty = chunk->final = chunk->done = 0;
	chunk->since_ns = now;
	chunk->is_live = true;
	__atomic_store_n(&chunk_of_run[next_run % RUNS], number + 1, __ATOMIC_RELEASE);
	__atomic_store_n(&chunk->word, next_run << COUNT_BITS, __ATOMIC_RELEASE);
	next_run++;
	offer_chunk(chunk);
	return true;
}

/* How many records of a chunk (32 launch records) threads have taken so far. */
static uint32_t records_taken(const struct chunk *chunk)
{
	return (uint32_t)(__atomic_load_n(&chunk->word, __ATOMIC_ACQUIRE) & COUNT_MASK);
}

/* A mask with a bit for each of the first `count` records of a chunk (32 launch records). */
static uint32_t mask_of(uint32_t count)
{
	return count >= CHUNK_RECORDS ? ALL_RECORDS : (UINT32_C(1) << count) - 1;
}

/*
 * Have enough chunks of launch records ready for the next launches. Returns whether records have changed since they
 * were last collected for writing. By the drain thread (it fetches results), from time to time.
 */
bool nt_records_prepare(void)
{
	uint64_t now = nt_clock_now_ns();
	bool changed = false;

	nt_lock_take(&mutex);
	uint64_t head = __atomic_load_n(&line.head, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < chunk_count; i++) {
		struct chunk *chunk = &chunks[i];
		if (!chunk->is_live)
			continue;
		uint32_t count = records_taken(chunk);
		changed |= (mask_of(count) & ~chunk->submitted) || chunk->dirty;
		/* What a thread left that has ended, or launches no more, is offered to others. */
		if (count != chunk->seen) {
			chunk->seen = count;
			chunk->since_ns = now;
		} else if (count && count < CHUNK_RECORDS && chunk->offered < head && now - chunk->since_ns > IDLE_NS &&
			   line.tail - head < READY - 1) {
			chunk->since_ns = now;
			offer_chunk(chunk);
		}
	}
	/* Twice as many ahead if the last ones did not suffice. */
	if (head == line.tail && ahead < READY / 2)
		ahead *= 2;
	while (line.tail - head < ahead && prepare_chunk(now))
		;
	nt_lock_release(&mutex);
	return changed;
}

/* Make the first chunks of launch records. False without memory. Called once, before any record is taken. */
bool nt_records_start(void)
{
	nt_records_prepare();
	__atomic_store_n(&line.started, 1, __ATOMIC_RELEASE);
	return line.tail != 0;
}

/*
 * Give a launch record its last state: WRITTEN if its data begins at an offset of the kernel's data, LOST or MEASURED
 * without data. size: bytes of its results; set: number of the probes that ran. Takes the mutex.
 */
void nt_records_settle(uint64_t index, enum neutrino_launch_state state, uint64_t offset, uint64_t size, uint32_t set)
{
	nt_lock_take(&mutex);
	struct chunk *chunk = chunk_at(index);
	if (chunk) {
		struct neutrino_launch *launch = &chunk->records[index % CHUNK_RECORDS];
		launch->data_offset = offset;
		launch->data_size = size;
		launch->set = set;
		__atomic_store_n(&launch->state, state, __ATOMIC_RELEASE);
		lost_launches += state == NEUTRINO_LAUNCH_LOST;
		chunk->dirty |= UINT32_C(1) << index % CHUNK_RECORDS;
	}
	nt_lock_release(&mutex);
}

/*
 * How many launches have lost their results so far: those that were settled as LOST; and with is_end, after the last try
 * to write records, those whose data are written while the file does not say so. Takes the mutex.
 */
uint64_t nt_records_lost(bool is_end)
{
	nt_lock_take(&mutex);
	uint64_t lost = lost_launches;
	for (uint32_t i = 0; is_end && i < chunk_count; i++) {
		const struct chunk *chunk = &chunks[i];
		uint32_t open = chunk->is_live ? mask_of(records_taken(chunk)) & ~chunk->done : 0;
		for (; open; open &= open - 1) {
			uint32_t state = __atomic_load_n(&chunk->records[__builtin_ctz(open)].state, __ATOMIC_ACQUIRE);
			lost += state == NEUTRINO_LAUNCH_WRITTEN || state == NEUTRINO_LAUNCH_MEASURED;
		}
	}
	nt_lock_release(&mutex);
	return lost;
}

/*
 * Copy the record of that number (0 to 31) of a chunk (32 launch records), if it has a state; false if it has none yet.
 */
static bool copy_record(const struct chunk *chunk, uint32_t number, struct nt_changed *ret)
{
	const struct neutrino_launch *record = &chunk->records[number];
	uint32_t state = __atomic_load_n(&record->state, __ATOMIC_ACQUIRE);

	if (state == NEUTRINO_LAUNCH_EMPTY)
		return false;
	/* Without the state, which the launching thread may still change. */
	memcpy((char *)&ret->record + sizeof(state), (const char *)record + sizeof(state), sizeof(*record) - sizeof(state));
	ret->record.state = state;
	ret->chunk = (uint32_t)(chunk - chunks);
	ret->index = run_of(chunk) * CHUNK_RECORDS + number;
	return true;
}

/*
 * Mark those launch records of a chunk as changed that were collected for writing as submitted, and that the driver has
 * refused since. Under the mutex.
 */
static void find_refused(struct chunk *chunk)
{
	uint32_t open = chunk->submitted & ~chunk->final & ~chunk->dirty;

	for (; open; open &= open - 1) {
		uint32_t number = (uint32_t)__builtin_ctz(open);
		if (__atomic_load_n(&chunk->records[number].state, __ATOMIC_ACQUIRE) == NEUTRINO_LAUNCH_FALLBACK)
			chunk->dirty |= UINT32_C(1) << number;
	}
}

/*
 * Copy launch records that were submitted or settled since they were last collected, at most `most`, by ascending
 * number within a chunk. is_last: look at all, also for those that the driver has refused meanwhile. Returns how many.
 */
uint32_t nt_records_collect(struct nt_changed *ret, uint32_t most, bool is_last)
{
	uint32_t count = 0;

	nt_lock_take(&mutex);
	bool rechecks = is_last || ++recheck % RECHECK_ROUNDS == 0;
	for (uint32_t i = 0; i < chunk_count && count + CHUNK_RECORDS <= most; i++) {
		struct chunk *chunk = &chunks[i];
		if (!chunk->is_live)
			continue;
		if (rechecks)
			find_refused(chunk);
		uint32_t wanted = (mask_of(records_taken(chunk)) & ~chunk->submitted) | chunk->dirty;
		for (; wanted; wanted &= wanted - 1) {
			uint32_t number = (uint32_t)__builtin_ctz(wanted);
			if (!copy_record(chunk, number, &ret[count]))
				continue;
			chunk->submitted |= UINT32_C(1) << number;
			chunk->dirty &= ~(UINT32_C(1) << number);
			if (ret[count].record.state != NEUTRINO_LAUNCH_SUBMITTED)
				chunk->final |= UINT32_C(1) << number;
			count++;
		}
	}
	nt_lock_release(&mutex);
	return count;
}

/*
 * Say whether collected records were written: those that were not are collected again; a chunk whose records all have
 * their last state in the file becomes free.
 */
void nt_records_collected(const struct nt_changed *changed, uint32_t count, bool written)
{
	nt_lock_take(&mutex);
	for (uint32_t i = 0; i < count; i++) {
		struct chunk *chunk = &chunks[changed[i].chunk];
		uint32_t bit = UINT32_C(1) << changed[i].index % CHUNK_RECORDS;
		if (!written) {
			chunk->dirty |= bit;
			chunk->final &= ~bit;
		} else if (changed[i].record.state != NEUTRINO_LAUNCH_SUBMITTED) {
			chunk->done |= bit;
		}
		/* All numbers were taken, and all records have their last state in the file. */
		if (chunk->done == ALL_RECORDS && chunk->is_live) {
			chunk->is_live = false;
			__atomic_store_n(&chunk_of_run[run_of(chunk) % RUNS], 0, __ATOMIC_RELEASE);
			free_chunks[free_count++] = changed[i].chunk;
			/* Some stay in memory for the next launches. */
			if (free_count > READY)
				madvise(chunk->records, CHUNK_RECORDS * sizeof(*chunk->records), MADV_DONTNEED);
		}
	}
	nt_lock_release(&mutex);
}
