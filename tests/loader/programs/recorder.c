/*
 * The trace's files without a driver: `recorder THREADS LAUNCHES KERNELS`. Each thread records so many launches, of all
 * kernels in turn; a thread as the drain thread hands their data to the writer.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "drain/frames.h"
#include "trace/trace.h"

#define MOST_THREADS 16
#define WAITING 65536 /* launches of a thread that are not drained; a power of two */
#define MAPS_SIZE 64  /* bytes of a launch's data */

static struct nt_kernel *kernels;
static uint32_t kernel_count;
static uint64_t launches;
static struct {
	uint64_t taken, drained;
	struct nt_slot slots[WAITING];
} threads[MOST_THREADS];

static void *launch(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument, index;

	for (uint64_t i = 0; i < launches; i++) {
		struct nt_kernel *kernel = &kernels[i / 64 % kernel_count];
		nt_counters_count(kernel->id, NEUTRINO_REASON_PROBED);
		/* As many as a pool would hold. */
		while (threads[thread].taken - __atomic_load_n(&threads[thread].drained, __ATOMIC_ACQUIRE) == WAITING)
			nt_clock_sleep_us(100);
		struct neutrino_launch *record;
		/* A program would launch its original instead. */
		while (!(record = nt_records_take(&index)))
			nt_clock_sleep_us(100);
		record->kernel = kernel->id;
		record->submit_ns = i;
		record->thread = (uint32_t)thread;
		record->grid[0] = record->grid[1] = record->grid[2] = 1;
		record->block[0] = record->block[1] = record->block[2] = 1;
		__atomic_store_n(&record->state, NEUTRINO_LAUNCH_SUBMITTED, __ATOMIC_RELEASE);
		threads[thread].slots[threads[thread].taken % WAITING] =
			(struct nt_slot){.kernel = kernel, .launch = index, .size = MAPS_SIZE};
		__atomic_store_n(&threads[thread].taken, threads[thread].taken + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* Hand what a thread has launched to the writer, a piece for each run of a kernel. */
static bool drain(unsigned thread)
{
	static uint8_t data[MAPS_SIZE];
	uint64_t taken = __atomic_load_n(&threads[thread].taken, __ATOMIC_ACQUIRE), from = threads[thread].drained;

	for (uint64_t i = from; i < taken;) {
		struct nt_kernel *kernel = threads[thread].slots[i % WAITING].kernel;
		uint32_t count = 0;
		while (i + count < taken && threads[thread].slots[(i + count) % WAITING].kernel == kernel && count < 256)
			count++;
		struct nt_piece *piece = nt_frames_piece(kernel, count * (sizeof(struct neutrino_frame) + MAPS_SIZE), count);
		for (uint32_t j = 0; j < count; j++) {
			const struct nt_slot *slot = &threads[thread].slots[(i + j) % WAITING];
			struct neutrino_frame frame = nt_frames_of(slot);
			nt_frames_add(piece, slot->launch, &frame);
			nt_frames_add_data(piece, data, MAPS_SIZE);
		}
		nt_frames_write(piece);
		i += count;
	}
	__atomic_store_n(&threads[thread].drained, taken, __ATOMIC_RELEASE);
	return taken != from;
}

int main(int argc, char **argv)
{
	unsigned count = argc == 4 ? (unsigned)atoi(argv[1]) : 0;
	pthread_t started[MOST_THREADS];

	if (!count || count > MOST_THREADS)
		return 2;
	launches = strtoull(argv[2], NULL, 10);
	kernel_count = (uint32_t)atoi(argv[3]);
	kernels = calloc(kernel_count, sizeof(*kernels));
	if (!nt_trace_start())
		return 3;
	for (uint32_t i = 0; i < kernel_count; i++) {
		static const struct neutrino_map none;
		kernels[i].id = i + 1;
		kernels[i].maps = &none;
		nt_counters_make(i + 1);
	}
	for (unsigned i = 0; i < count; i++)
		pthread_create(&started[i], NULL, launch, (void *)(uintptr_t)i);
	for (uint64_t drained = 0; drained < count * launches;) {
		bool worked = false;
		nt_trace_round();
		for (unsigned i = 0; i < count; i++)
			worked |= drain(i);
		if (!worked)
			nt_clock_sleep_us(500);
		drained = 0;
		for (unsigned i = 0; i < count; i++)
			drained += threads[i].drained;
	}
	for (unsigned i = 0; i < count; i++)
		pthread_join(started[i], NULL);
	bool complete = nt_trace_end(60000, true);
	return complete ? 0 : 4;
}
