#include "drain/benchmark.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mapped.h"
#include "base/memory.h"
#include "base/settings.h"
#include "base/thread.h"
#include "base/wake.h"
#include "trace/writer.h"

#define PAIRS 1024u	   /* of events of a context: launches that can be timed at the same time */
#define GROUPS 16384u	   /* rows of the table */
#define LOOKS 16u	   /* rows that are looked at for a group */
#define FLOORS 33	   /* samples of nothing, in each context */
#define BATCH 128u	   /* samples that are written at once */
#define MOST_UNFINISHED 64 /* events that were asked for in vain in one round */
#define WAITING_STREAMS 16u
#define WAKE_EVERY 128u		  /* launches, after which a drain thread that dozes is woken: long before PAIRS */
#define REFERENCE_MS 4096.0f	  /* after which times between events, of 24 bits, are too coarse */
#define WARM_UP_DRAWS 2u	  /* the first one of each kind */
#define REPLAYS_OF_DRAW 2u	  /* of a graph: the first one after its nodes were changed does not count */

int nt_benchmark_set_now;
static uint64_t seed;

/* Launches that are compared with each other. */
struct nt_group {
	uint64_t key;	  /* of what they have in common; 0: the row is free */
	uint64_t launches; /* that were drawn */
	uint64_t untimed;  /* of those, had no events */
	uint64_t written;  /* the drain thread's own: of untimed, in the file */
	uint32_t kernel, graph;
};
static struct nt_group groups[GROUPS];
static uint64_t untimed_count;	 /* of all groups */
static uint64_t untimed_written; /* the drain thread's own */

enum pair_state { PAIR_UNUSED, PAIR_PENDING };

struct nt_pair {
	CUevent begin, end;
	struct neutrino_sample sample;
	uint32_t next; /* number of the next free one; 0: none */
};

/* The events of a pool's context. */
struct timer {
	struct nt_pair *pairs;	/* PAIRS of them, which stay mapped */
	uint32_t states[PAIRS]; /* enum pair_state: PENDING ones are the drain thread's */
	uint64_t free;		/* the first free pair's number, from 1; above it a count of changes */
	uint64_t launches;
	/* The drain thread's own. */
	CUevent references[2]; /* by which the GPU's times are known, in turns */
	unsigned reference;    /* the one that counts */
	int64_t reference_ns;  /* its time; 0: it was not recorded yet */
	bool has_floor;
	uint32_t next; /* pair to look at first */
};
static struct timer timers[CONTEXTS];

/* The events by which launches in a context are timed; pool: the context's. */
static struct timer *timer_of(const struct nt_pool *pool)
{
	return &timers[pool - nt_pools];
}

/* --- draws --- */

/*
 * A hash of a 64-bit value in which each bit depends on all bits of it: the finalizer of splitmix64 (Steele, Lea,
 * Flood, 2014).
 */
static uint64_t hash_word(uint64_t value)
{
	value += UINT64_C(0x9e3779b97f4a7c15);
	value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
	return value ^ value >> 31;
}

/*
 * A number of what the launches that are compared with each other have in common (kernel, grid, block, ...), never 0.
 * Two groups with the same one would share their draws, no more.
 */
static uint64_t key_of(const struct neutrino_sample *sample)
{
	const uint32_t words[] = {sample->kernel,   sample->graph,    sample->grid[0],	sample->grid[1], sample->grid[2],
				  sample->block[0], sample->block[1], sample->block[2], sample->shared,	 sample->device};
	uint64_t key = seed;

	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		key = hash_word(key ^ words[i]);
	return key ? key : 1;
}

/*
 * The row of the group of launches that are compared with each other, made if it is new. If there are too many groups,
 * some share one. key: key_of(sample). Lock-free.
 */
static struct nt_group *group_of(const struct neutrino_sample *sample, uint64_t key)
{
	for (unsigned i = 0; i < LOOKS; i++) {
		struct nt_group *row = &groups[(key + i) % GROUPS];
		uint64_t found = __atomic_load_n(&row->key, __ATOMIC_RELAXED);
		if (!found && __atomic_compare_exchange_n(&row->key, &found, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			__atomic_store_n(&row->kernel, sample->kernel, __ATOMIC_RELAXED);
			__atomic_store_n(&row->graph, sample->graph, __ATOMIC_RELAXED);
			return row;
		}
		if (found == key)
			return row;
	}
	return &groups[key % GROUPS];
}

/*
 * Draw whether a launch runs its twin (timing->is_probed) or its original: of each two draws in a group of alike
 * launches one of each kind, in random order. The pool (device memory for results) and the sample are set. Lock-free.
 */
void nt_benchmark_draw(struct nt_timing *timing)
{
	struct neutrino_sample *sample = &timing->sample;

	sample->device = (uint32_t)nt_pools_device(timing->pool);
	uint64_t key = key_of(sample);
	timing->group = group_of(sample, key);
	timing->pair = NULL;
	sample->number = __atomic_fetch_add(&timing->group->launches, 1, __ATOMIC_RELAXED);
	uint64_t draw = sample->graph ? sample->number / REPLAYS_OF_DRAW : sample->number;
	/* Of each two draws, the first is probed or the second. */
	timing->is_probed = (draw ^ hash_word(key ^ hash_word(draw / 2))) & 1;
	sample->kind = timing->is_probed ? NEUTRINO_SAMPLE_PROBED : NEUTRINO_SAMPLE_ORIGINAL;
	if (draw < WARM_UP_DRAWS || (sample->graph && sample->number % REPLAYS_OF_DRAW == 0))
		sample->flags |= NEUTRINO_SAMPLE_IS_WARM_UP;
}

/* --- pairs of events --- */

/* Take a free pair of events, for one launch; NULL if there is none. Lock-free. */
static struct nt_pair *take_pair(struct timer *timer)
{
	uint64_t head = __atomic_load_n(&timer->free, __ATOMIC_ACQUIRE), changed;
	uint32_t number;

	do {
		number = (uint32_t)head;
		if (!number)
			return NULL;
		/* That of another thread's, if it was taken meanwhile: then the count has changed. */
		uint32_t next = __atomic_load_n(&timer->pairs[number - 1].next, __ATOMIC_RELAXED);
		changed = ((head >> 32) + 1) << 32 | next;
	} while (!__atomic_compare_exchange_n(&timer->free, &head, changed, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
	return &timer->pairs[number - 1];
}

/* Put a pair of events among the free ones. Lock-free. */
static void give_pair(struct timer *timer, struct nt_pair *pair)
{
	uint64_t head = __atomic_load_n(&timer->free, __ATOMIC_RELAXED), changed;

	do {
		__atomic_store_n(&pair->next, (uint32_t)head, __ATOMIC_RELAXED);
		changed = ((head >> 32) + 1) << 32 | (uint32_t)(pair - timer->pairs + 1);
	} while (!__atomic_compare_exchange_n(&timer->free, &head, changed, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

/* Count a launch of a group that could not be timed, for want of events. */
static void count_untimed(struct nt_group *group)
{
	__atomic_fetch_add(&group->untimed, 1, __ATOMIC_RELAXED);
	/* After the group's, as the drain thread reads them. */
	__atomic_fetch_add(&untimed_count, 1, __ATOMIC_RELEASE);
}

/* The stream that a timed launch is in. */
static CUstream stream_of(const struct neutrino_sample *sample)
{
	return (CUstream)(uintptr_t)sample->stream;
}

/*
 * Just before a timed launch, on its stream: record the first event. timing->pair is NULL if there is none for it.
 * Lock-free.
 */
void nt_benchmark_begin(struct nt_timing *timing)
{
	struct timer *timer = timer_of(timing->pool);

	timing->sample.context = (uint64_t)(uintptr_t)timing->pool->context;
	timing->sample.thread = nt_thread_id();
	timing->sample.submit_ns = nt_clock_now_ns();
	timing->pair = take_pair(timer);
	if (timing->pair && nt_driver.cuEventRecord(timing->pair->begin, stream_of(&timing->sample)) != CUDA_SUCCESS) {
		give_pair(timer, timing->pair);
		timing->pair = NULL;
	}
}

/*
 * Just after a timed launch, on its stream: record the second event, so that the drain thread (it fetches results) can
 * fetch the time. is_counted: what was drawn has been launched; else the time is not wanted. Lock-free.
 */
void nt_benchmark_end(struct nt_timing *timing, bool is_counted)
{
	struct timer *timer = timer_of(timing->pool);
	struct nt_pair *pair = timing->pair;
	bool is_recorded = pair && is_counted &&
			   nt_driver.cuEventRecord(pair->end, stream_of(&timing->sample)) == CUDA_SUCCESS;

	if (is_recorded) {
		pair->sample = timing->sample;
		__atomic_store_n(&timer->states[pair - timer->pairs], PAIR_PENDING, __ATOMIC_RELEASE);
	} else if (pair) {
		give_pair(timer, pair);
	}
	if (is_counted && !is_recorded)
		count_untimed(timing->group);
	bool is_round = __atomic_fetch_add(&timer->launches, 1, __ATOMIC_RELAXED) % WAKE_EVERY == 0;
	nt_wake_drain_from(is_round || !pair ? NT_DOZING : NT_ASLEEP);
}

/* --- samples, in the drain thread --- */

/* Samples that are to be written. */
struct batch {
	struct neutrino_sample *samples; /* of malloc, BATCH of them; NULL while there are none */
	uint32_t count;
};

/*
 * Hand the samples (times of launches) of a batch to the writer (the thread that writes the trace), and empty the
 * batch.
 */
static void write_batch(struct batch *batch)
{
	if (batch->samples)
		nt_writer_line(NT_WRITER_SAMPLES, (char *)batch->samples, batch->count * sizeof(*batch->samples));
	*batch = (struct batch){NULL, 0};
}

/*
 * Add a sample (the time of a launch) to a batch, which is written when it is full. False, and the sample is lost,
 * without memory.
 */
static bool add_sample(struct batch *batch, const struct neutrino_sample *sample)
{
	if (!batch->samples)
		batch->samples = nt_memory_alloc(BATCH * sizeof(*batch->samples));
	if (!batch->samples)
		return false;
	batch->samples[batch->count++] = *sample;
	if (batch->count == BATCH)
		write_batch(batch);
	return true;
}

/* Nanoseconds between two events that are past; false if the driver does not say. */
static bool time_between(CUevent begin, CUevent end, int64_t *ret)
{
	float milliseconds;

	if (nt_driver.cuEventElapsedTime(&milliseconds, begin, end) != CUDA_SUCCESS)
		return false;
	*ret = (int64_t)((double)milliseconds * 1e6 + (milliseconds < 0 ? -0.5 : 0.5));
	return true;
}

/* Record an event on our own stream in the pool's context, and wait until it is past; false if that fails. */
static bool record_and_wait(const struct nt_pool *pool, CUevent event)
{
	return nt_driver.cuEventRecord(event, pool->stream) == CUDA_SUCCESS &&
	       nt_driver.cuStreamSynchronize(pool->stream) == CUDA_SUCCESS;
}

/* Let the other reference event count from now on, before the times since this one become too coarse for a float. */
static void renew_reference(const struct nt_pool *pool, struct timer *timer)
{
	CUevent next = timer->references[!timer->reference];
	int64_t since;

	if (!record_and_wait(pool, next) || !time_between(timer->references[timer->reference], next, &since))
		return;
	timer->reference_ns += since;
	timer->reference = !timer->reference;
}

/*
 * Make sure that there is a reference event whose time on the CPU's clock is known; false if that fails. Here, since
 * the program's thread that makes the pool (device memory for results) must not wait for the GPU.
 */
static bool have_reference(const struct nt_pool *pool, struct timer *timer)
{
	if (!timer->reference_ns && record_and_wait(pool, timer->references[timer->reference]))
		timer->reference_ns = (int64_t)nt_clock_now_ns();
	return timer->reference_ns;
}

/*
 * Put the begin and the duration of a launch into its sample, in nanoseconds, by its two events, which are past; false
 * if the driver does not say.
 */
static bool complete_sample(const struct nt_pool *pool, struct timer *timer, struct nt_pair *pair)
{
	int64_t since, elapsed;

	if (!have_reference(pool, timer) || !time_between(pair->begin, pair->end, &elapsed) || elapsed < 0 ||
	    !time_between(timer->references[timer->reference], pair->begin, &since))
		return false;
	pair->sample.begin_ns = (uint64_t)(timer->reference_ns + since);
	pair->sample.elapsed_ns = (uint64_t)elapsed;
	if ((double)since > (double)REFERENCE_MS * 1e6)
		renew_reference(pool, timer);
	return true;
}

/*
 * Measure what two events show with nothing between them, FLOORS times, while the program runs: no launch can be seen
 * to take less. If there are no free events, in a later round.
 */
static void add_floor(const struct nt_pool *pool, struct timer *timer, struct batch *batch)
{
	struct nt_pair *pair = take_pair(timer);

	if (!pair)
		return; /* in the next round */
	timer->has_floor = true;
	for (uint64_t i = 0; i < FLOORS; i++) {
		pair->sample = (struct neutrino_sample){
			.kind = NEUTRINO_SAMPLE_FLOOR,
			.kernel = NEUTRINO_NO_KERNEL,
			.number = i,
			.submit_ns = nt_clock_now_ns(),
			.context = (uint64_t)(uintptr_t)pool->context,
			.stream = (uint64_t)(uintptr_t)pool->stream,
			.device = (uint32_t)nt_pools_device(pool),
		};
		if (nt_driver.cuEventRecord(pair->begin, pool->stream) == CUDA_SUCCESS &&
		    record_and_wait(pool, pair->end) && complete_sample(pool, timer, pair))
			add_sample(batch, &pair->sample);
	}
	give_pair(timer, pair);
}

/* Write how many launches of each group were not timed since that was last written. */
static void write_untimed(struct batch *batch)
{
	uint64_t count = __atomic_load_n(&untimed_count, __ATOMIC_ACQUIRE);

	if (count == untimed_written)
		return;
	untimed_written = count;
	for (uint32_t i = 0; i < GROUPS; i++) {
		struct nt_group *group = &groups[i];
		uint64_t untimed = __atomic_load_n(&group->untimed, __ATOMIC_RELAXED);
		struct neutrino_sample sample = {
			.kind = NEUTRINO_SAMPLE_UNTIMED,
			.kernel = __atomic_load_n(&group->kernel, __ATOMIC_RELAXED),
			.graph = __atomic_load_n(&group->graph, __ATOMIC_RELAXED),
			.number = untimed - group->written,
			.submit_ns = nt_clock_now_ns(),
		};
		if (sample.number && add_sample(batch, &sample))
			group->written = untimed;
	}
}

/* Streams in which a launch has not ended: later ones in them have not either. */
struct waiting {
	uint64_t streams[WAITING_STREAMS], since[WAITING_STREAMS]; /* handles; when they were submitted */
	unsigned count;
};

/* Whether a launch comes after one in the same stream that has not ended, and so has not ended either. */
static bool is_behind(const struct waiting *waiting, const struct neutrino_sample *sample)
{
	for (unsigned i = 0; i < waiting->count; i++)
		if (waiting->streams[i] == sample->stream && sample->submit_ns > waiting->since[i])
			return true;
	return false;
}

/* Note that a launch has not ended, for is_behind. */
static void note_waiting(struct waiting *waiting, const struct neutrino_sample *sample)
{
	/* The default stream of a thread has one handle for all threads. */
	if (waiting->count == WAITING_STREAMS || stream_of(sample) == CU_STREAM_PER_THREAD)
		return;
	waiting->streams[waiting->count] = sample->stream;
	waiting->since[waiting->count++] = sample->submit_ns;
}

/* Give back a pair of events whose launch cannot be timed after all, which is counted. */
static void drop_pair(struct timer *timer, struct nt_pair *pair)
{
	count_untimed(group_of(&pair->sample, key_of(&pair->sample)));
	__atomic_store_n(&timer->states[pair - timer->pairs], PAIR_UNUSED, __ATOMIC_RELAXED);
	give_pair(timer, pair);
}

/*
 * Have the times of all timed launches written that have ended. Returns whether any had, and whether some have not. By
 * the drain thread (it fetches results), with the pool's context current.
 */
struct nt_drained nt_benchmark_drain(const struct nt_pool *pool)
{
	struct timer *timer = timer_of(pool);
	struct nt_drained drained = {0};
	struct batch batch = {NULL, 0};
	struct waiting waiting = {.count = 0};
	uint32_t first = timer->next, unfinished = 0;

	for (uint32_t i = 0; i < PAIRS && timer->pairs && !nt_wake_drain_is_stopped(); i++) {
		uint32_t number = (first + i) % PAIRS;
		struct nt_pair *pair = &timer->pairs[number];
		if (__atomic_load_n(&timer->states[number], __ATOMIC_ACQUIRE) != PAIR_PENDING)
			continue;
		if (is_behind(&waiting, &pair->sample)) {
			drained.in_flight = true;
			continue;
		}
		CUresult result = nt_driver.cuEventQuery(pair->end);
		if (result == CUDA_ERROR_NOT_READY) {
			drained.in_flight = true;
			note_waiting(&waiting, &pair->sample);
			/* The driver's locks are the program's, too: the rest in the next round. */
			timer->next = number + 1;
			if (++unfinished == MOST_UNFINISHED)
				break;
			continue;
		}
		drained.worked = true;
		if (result != CUDA_SUCCESS || !complete_sample(pool, timer, pair) || !add_sample(&batch, &pair->sample)) {
			drop_pair(timer, pair);
			continue;
		}
		__atomic_store_n(&timer->states[number], PAIR_UNUSED, __ATOMIC_RELAXED);
		give_pair(timer, pair);
	}
	if (drained.worked && !timer->has_floor && !nt_wake_drain_is_stopped())
		add_floor(pool, timer, &batch);
	write_untimed(&batch);
	write_batch(&batch);
	return drained;
}

/* --- start, contexts --- */

/*
 * The trace begins: if --benchmark was given, begin its file, and have launches drawn and timed from now on. Once,
 * before anything is recorded.
 */
void nt_benchmark_start(void)
{
	struct neutrino_benchmark_header header = {
		.version = NEUTRINO_BENCHMARK_VERSION,
		.record_size = sizeof(struct neutrino_sample),
		.seed = nt_settings()->benchmark,
		.monotonic_ns = nt_clock_now_ns(),
	};
	static_assert(sizeof(header) == sizeof(struct neutrino_sample), "the file is an array");

	if (!header.seed || !nt_driver.cuEventElapsedTime)
		return;
	char *data = nt_memory_alloc(sizeof(header));
	if (!data)
		return;
	seed = header.seed;
	memcpy(header.magic, NEUTRINO_BENCHMARK_MAGIC, sizeof(header.magic));
	memcpy(data, &header, sizeof(header));
	nt_writer_line(NT_WRITER_SAMPLES, data, sizeof(header));
	__atomic_store_n(&nt_benchmark_set_now, 1, __ATOMIC_RELEASE);
}

/*
 * In a --benchmark run, make the events to time launches in a pool's context, which is current; false if that fails. It
 * allocates.
 */
bool nt_benchmark_make(const struct nt_pool *pool)
{
	struct timer *timer = timer_of(pool);

	if (!nt_benchmark_is_set())
		return true;
	timer->has_floor = false;
	timer->next = 0;
	if (!timer->pairs)
		timer->pairs = nt_map_zeroed(PAIRS * sizeof(*timer->pairs));
	if (!timer->pairs)
		return false;
	for (unsigned i = 0; i < 2; i++)
		if (nt_driver.cuEventCreate(&timer->references[i], 0) != CUDA_SUCCESS)
			return false;
	timer->reference = 0;
	timer->reference_ns = 0;
	for (uint32_t i = 0; i < PAIRS; i++) {
		struct nt_pair *pair = &timer->pairs[i];
		if (nt_driver.cuEventCreate(&pair->begin, 0) != CUDA_SUCCESS ||
		    nt_driver.cuEventCreate(&pair->end, 0) != CUDA_SUCCESS)
			return false;
		give_pair(timer, pair);
	}
	return true;
}

/* Destroy an event, if there is one, unless it went with its context. */
static void end_event(CUevent *event, bool has_context)
{
	if (*event && has_context)
		nt_driver.cuEventDestroy_v2(*event);
	*event = NULL;
}

/*
 * Before a pool (device memory for results) ends: count launches as untimed whose times were not fetched yet, and
 * destroy the events. has_context: whether the context is current; else the events are gone with it.
 */
void nt_benchmark_unmake(const struct nt_pool *pool, bool has_context)
{
	struct timer *timer = timer_of(pool);

	if (!nt_benchmark_is_set())
		return;
	for (uint32_t i = 0; i < PAIRS && timer->pairs; i++) {
		if (__atomic_load_n(&timer->states[i], __ATOMIC_ACQUIRE) == PAIR_PENDING)
			drop_pair(timer, &timer->pairs[i]);
		end_event(&timer->pairs[i].begin, has_context);
		end_event(&timer->pairs[i].end, has_context);
	}
	for (unsigned i = 0; i < 2; i++)
		end_event(&timer->references[i], has_context);
	/* The count of changes goes on. */
	__atomic_and_fetch(&timer->free, UINT64_C(0xffffffff) << 32, __ATOMIC_RELEASE);
}
