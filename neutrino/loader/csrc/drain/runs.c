#include "drain/runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "drain/frames.h"
#include "trace/trace.h"
#include "trace/writer.h"

#define BUSY_NS UINT64_C(1000000000)
#define IDLE_NS UINT64_C(200000000)
#define WORD sizeof(uint64_t)

/* The result of a kernel: of each of its maps per run one record, back to back. Never freed, as kernels are not. */
struct nt_run {
	struct nt_run *next;
	const struct nt_kernel *kernel;
	uint64_t launches;
	uint64_t *words;
	uint64_t *part;	   /* of the launch that is being added */
	double *rests;	   /* of words that are sums of f64: what rounding has taken from them */
	double *part_rests; /* the same of part */
	size_t count;	   /* words */
	bool is_changed;
};

static struct nt_run *runs;
static uint64_t written_ns;

/* The least multiple of alignment, a power of two, that is not below value. */
static uint64_t align_up(uint64_t value, uint64_t alignment)
{
	return (value + alignment - 1) & ~(alignment - 1);
}

/*
 * Where, in a launch's memory, a kernel's maps (stores of probe results) are that have one result for the whole
 * process. ret: room for NEUTRINO_MAX_MAPS. Returns how many.
 */
unsigned nt_runs_ranges(const struct nt_kernel *kernel, const struct nt_extent *extent, struct nt_range *ret)
{
	uint64_t offset = 0;
	unsigned count = 0;

	for (uint32_t i = 0; kernel->run_count && i < kernel->map_count; i++) {
		struct nt_region region;
		offset = nt_regions_region(&kernel->maps[i], extent, offset, &region);
		if (nt_regions_is_of_run(&kernel->maps[i]))
			ret[count++] = (struct nt_range){region.records, region.records_size};
	}
	return count;
}

/* The result of a kernel over all its launches, made at the first one; NULL without memory, which is noted. */
static struct nt_run *run_of(struct nt_kernel *kernel)
{
	if (kernel->run)
		return kernel->run;
	struct nt_run *run = nt_memory_alloc_zeroed(1, sizeof(*run));
	for (uint32_t i = 0; run && i < kernel->map_count; i++)
		if (nt_regions_is_of_run(&kernel->maps[i]))
			run->count += kernel->maps[i].record_size / WORD;
	if (run)
		run->words = nt_memory_alloc_zeroed(4 * run->count, WORD);
	if (!run || !run->words) {
		nt_memory_free(run);
		nt_lines_note("kernel %u %s: no memory for its result of the run: it lacks launches", kernel->id, kernel->name);
		return NULL;
	}
	run->part = run->words + run->count;
	run->rests = (double *)(run->part + run->count);
	run->part_rests = run->rests + run->count;
	run->kernel = kernel;
	run->next = runs;
	return kernel->run = runs = run;
}

/* Combine a word of a result with that of another launch: by their maximum or their sum. */
static void combine_words(uint64_t *word, uint64_t other, bool keeps_greatest)
{
	if (!keeps_greatest)
		*word += other;
	else if (other > *word)
		*word = other;
}

/*
 * Have this thread round to the nearest number and keep subnormal ones, whatever the program does: threads inherit that
 * from those that start them. Returns what was in force, for reset_rounding.
 */
static uint64_t set_rounding(void)
{
#if defined(__x86_64__)
	uint32_t before, usual = 0x1f80;
	__asm__ volatile("stmxcsr %0" : "=m"(before));
	__asm__ volatile("ldmxcsr %0" : : "m"(usual) : "memory");
#elif defined(__aarch64__)
	uint64_t before;
	__asm__ volatile("mrs %0, fpcr\n\tmsr fpcr, xzr" : "=r"(before) : : "memory");
#endif
	return before;
}

static void reset_rounding(uint64_t before)
{
#if defined(__x86_64__)
	uint32_t control = (uint32_t)before;
	__asm__ volatile("ldmxcsr %0" : : "m"(control) : "memory");
#elif defined(__aarch64__)
	__asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory");
#endif
}

/* Add a number to a word that is a sum of f64, and to rest what rounding takes from it. */
static void add_number(uint64_t *word, double *rest, double number)
{
	double sum, total;

	memcpy(&sum, word, WORD);
	total = sum + number;
	/* What the total has of the number. */
	double added = total - sum;
	*rest += (sum - (total - added)) + (number - added);
	memcpy(word, &total, WORD);
}

/* A sum with its rest, which is no number once the sum is infinite or none itself. */
static void round_sum(uint64_t *word, double rest)
{
	double sum;

	memcpy(&sum, word, WORD);
	if (rest == rest)
		sum += rest;
	memcpy(word, &sum, WORD);
}

/*
 * Combine a part of a launch's data with the rest of it. number: of the map (a store of probe results), among those
 * with one result for the process. data: size bytes that are `at` bytes into the map's memory, both multiples of 8.
 */
void nt_runs_add(struct nt_kernel *kernel, unsigned number, const uint8_t *data, uint64_t at, uint64_t size)
{
	struct nt_run *run = run_of(kernel);
	const struct neutrino_map *map = kernel->maps;
	uint64_t first = 0;

	if (!run)
		return;
	for (;; map++) {
		if (!nt_regions_is_of_run(map))
			continue;
		if (!number--)
			break;
		first += map->record_size / WORD;
	}
	/* The launch has copies of the record, each in cache lines of its own. */
	uint64_t record = map->record_size / WORD, stride = align_up(map->record_size, NEUTRINO_COPY_ALIGN) / WORD;
	bool keeps_greatest = nt_regions_keeps_greatest(map);
	size_t floats_from = nt_regions_floats_from(map);
	uint64_t place = at / WORD % stride, rounding = set_rounding();
	for (uint64_t i = 0; i < size / WORD; i++, place = place + 1 == stride ? 0 : place + 1) {
		uint64_t word;
		if (place >= record)
			continue;
		memcpy(&word, data + i * WORD, WORD);
		if (place < floats_from) {
			combine_words(&run->part[first + place], word, keeps_greatest);
			continue;
		}
		double number_there;
		memcpy(&number_there, &word, WORD);
		add_number(&run->part[first + place], &run->part_rests[first + place], number_there);
	}
	reset_rounding(rounding);
}

/*
 * A launch's data are complete: add them to its kernel's result for the process, or forget them if some could not be
 * copied.
 */
void nt_runs_added(struct nt_kernel *kernel, bool is_complete)
{
	struct nt_run *run = kernel->run;
	uint64_t at = 0;

	if (!run)
		return;
	uint64_t rounding = set_rounding();
	for (uint32_t i = 0; is_complete && i < kernel->map_count; i++) {
		const struct neutrino_map *map = &kernel->maps[i];
		if (!nt_regions_is_of_run(map))
			continue;
		size_t floats_from = nt_regions_floats_from(map);
		for (uint64_t place = 0; place < map->record_size / WORD; place++, at++) {
			if (place < floats_from) {
				combine_words(&run->words[at], run->part[at], nt_regions_keeps_greatest(map));
				continue;
			}
			double sum;
			memcpy(&sum, &run->part[at], WORD);
			add_number(&run->words[at], &run->rests[at], sum);
			if (run->part_rests[at] == run->part_rests[at])
				add_number(&run->words[at], &run->rests[at], run->part_rests[at]);
		}
	}
	reset_rounding(rounding);
	memset(run->part, 0, run->count * WORD);
	memset(run->part_rests, 0, run->count * WORD);
	run->launches += is_complete;
	run->is_changed |= is_complete;
}

/*
 * Write a kernel's result for the process: the header of its result file, then a frame (a launch's results) with one
 * record of each such map (a store of probe results). False without memory, or room in the writer's queue.
 */
static bool write_run(const struct nt_run *run)
{
	uint8_t header[NT_RESULTS_HEADER_MOST];
	uint64_t header_size = nt_results_header(run->kernel, header), at = 0, size = 0;
	struct neutrino_frame frame = {.launch = run->launches, .lanes = run->kernel->lanes};
	char name[64];

	memcpy(frame.magic, NEUTRINO_FRAME_MAGIC, sizeof(frame.magic));
	for (uint32_t i = 0; i < run->kernel->map_count; i++)
		if (nt_regions_is_of_run(&run->kernel->maps[i]))
			frame.size += align_up(run->kernel->maps[i].record_size, NEUTRINO_REGION_ALIGN);
	uint8_t *data = nt_memory_alloc_zeroed(1, header_size + sizeof(frame) + frame.size);
	if (!data)
		return false;
	uint64_t rounding = set_rounding();
	memcpy(data, header, header_size);
	memcpy(data + header_size, &frame, sizeof(frame));
	for (uint32_t i = 0; i < run->kernel->map_count; i++) {
		const struct neutrino_map *map = &run->kernel->maps[i];
		if (!nt_regions_is_of_run(map))
			continue;
		memcpy(data + header_size + sizeof(frame) + size, run->words + at, map->record_size);
		uint64_t *written_words = (uint64_t *)(void *)(data + header_size + sizeof(frame) + size);
		for (uint64_t place = nt_regions_floats_from(map); place < map->record_size / WORD; place++)
			round_sum(&written_words[place], run->rests[at + place]);
		at += map->record_size / WORD;
		size += align_up(map->record_size, NEUTRINO_REGION_ALIGN);
	}
	reset_rounding(rounding);
	snprintf(name, sizeof(name), "result/%u.run", run->kernel->id);
	bool written = nt_writer_file(name, data, header_size + sizeof(frame) + frame.size);
	nt_memory_free(data);
	return written;
}

/*
 * Write the results for the process that have changed: at once if a context or the process ends, else if the last time
 * is a second ago, or less once nothing is fetched any more.
 */
void nt_runs_write(enum nt_runs_when when)
{
	uint64_t now = runs ? nt_clock_now_ns() : 0;

	if (!runs || (when != NT_RUNS_ENDING && now - written_ns < (when == NT_RUNS_BUSY ? BUSY_NS : IDLE_NS)))
		return;
	for (struct nt_run *run = runs; run; run = run->next) {
		if (!run->is_changed)
			continue;
		written_ns = now;
		run->is_changed = !write_run(run);
	}
}
