/*
 * Draining: the maps of complete launches are copied from the device and written to the trace, their segments zeroed and
 * made available again. All functions run in the drain thread, with the pool's context current.
 */
#include <string.h>

#include "base/wake.h"
#include "drain/benchmark.h"
#include "drain/drain.h"
#include "drain/frames.h"
#include "drain/replay.h"
#include "drain/runs.h"
#include "memory/own_memory.h"
#include "trace/trace.h"

/*
 * Whether a slot (a launch in a segment of memory) is of a launch that the driver has refused, so that there is nothing
 * to fetch.
 */
bool nt_drain_is_refused(const struct nt_slot *slot)
{
	return !slot->kernel && !slot->layout;
}

/* Copy size bytes from the device to pool->staging (host memory), and wait for that; false if it fails. */
static bool copy_back(struct nt_pool *pool, CUdeviceptr from, uint64_t size)
{
	return nt_driver.cuMemcpyDtoHAsync_v2(pool->staging, from, size, pool->stream) == CUDA_SUCCESS &&
	       nt_driver.cuStreamSynchronize(pool->stream) == CUDA_SUCCESS;
}

/* Launches of a small segment that are to be drained. */
struct part {
	struct nt_segment *segment;
	uint32_t from, to; /* launches */
	uint64_t begin;	   /* bytes of the segment that they fill: from here */
	uint64_t end;	   /* to here */
	uint64_t staged;   /* where these are in pool->staging */
};

/*
 * Which bytes of a small segment (memory for launches of a stream) the launches [from, to) fill, so that these are
 * copied at once.
 */
static struct part part_of(struct nt_segment *segment, uint32_t from, uint32_t to)
{
	struct part part = {.segment = segment, .from = from, .to = to, .begin = segment->slots[from].offset * UNIT};

	part.end = part.begin;
	for (uint32_t i = from; i < to; i++) {
		const struct nt_slot *slot = &segment->slots[i];
		if (!nt_drain_is_refused(slot) && slot->offset * UNIT + slot->size > part.end)
			part.end = slot->offset * UNIT + slot->size;
	}
	return part;
}

/*
 * Copy parts of segments (results of launches) from the device to host memory, pool->staging, each to part->staged, and
 * wait for all; false if that fails, or with --memusage, where there is nothing. Those of adjacent segments are copied
 * at once: every call of the driver may keep a launch of the program waiting.
 */
static bool copy_parts(struct nt_pool *pool, const struct part *parts, unsigned count)
{
	if (nt_own_memory_is_memusage)
		return false;
	for (unsigned i = 0; i < count;) {
		const struct part *first = &parts[i];
		CUdeviceptr from = first->segment->address + first->begin;
		uint64_t size = first->end - first->begin;
		/* The next one, if it follows on the device as it does in the staging memory. */
		for (i++; i < count; i++) {
			CUdeviceptr next = parts[i].segment->address + parts[i].begin;
			if (next < from || next - from != parts[i].staged - first->staged)
				break;
			size = parts[i].staged + (parts[i].end - parts[i].begin) - first->staged;
		}
		if (size && nt_driver.cuMemcpyDtoHAsync_v2(pool->staging + first->staged, from, size, pool->stream) != CUDA_SUCCESS)
			return false;
	}
	return nt_driver.cuStreamSynchronize(pool->stream) == CUDA_SUCCESS;
}

/*
 * Have the results of a part's launches written, those of one kernel as one piece (one job of the writer). data: what
 * the device had from part->begin on; not copied: they are lost.
 */
static void write_part(const struct part *part, const uint8_t *data, bool copied)
{
	const struct nt_segment *segment = part->segment;
	bool handled[SLOTS] = {false}; /* by the index of the launch */

	for (uint32_t i = part->from; i < part->to; i++) {
		struct nt_kernel *kernel = segment->slots[i].kernel;
		if (handled[i] || !kernel)
			continue;
		/* One piece, with the frames of all launches of this kernel. */
		uint64_t size = 0;
		uint32_t count = 0;
		for (uint32_t j = i; j < part->to; j++) {
			if (segment->slots[j].kernel != kernel)
				continue;
			size += sizeof(struct neutrino_frame) + segment->slots[j].size;
			count++;
		}
		struct nt_piece *piece = copied ? nt_frames_piece(kernel, size, count) : NULL;
		for (uint32_t j = i; j < part->to; j++) {
			const struct nt_slot *slot = &segment->slots[j];
			if (slot->kernel != kernel)
				continue;
			handled[j] = true;
			if (!piece) {
				nt_frames_without_data(kernel, slot->launch, slot->size);
				continue;
			}
			const uint8_t *regions = data + (slot->offset * UNIT - part->begin);
			struct neutrino_frame frame = nt_frames_of(slot);
			nt_frames_add_launch(piece, kernel, slot->launch, &frame, regions);
		}
		if (piece)
			nt_frames_write(piece);
	}
	nt_replay_write(segment, part->from, part->to, copied ? data : NULL, part->begin);
}

/*
 * Fetch the results of launches [from, to) of a small segment (memory for launches of a stream) from the device, and
 * have them written.
 */
static void drain_small(struct nt_pool *pool, struct nt_segment *segment, uint32_t from, uint32_t to)
{
	struct part part = part_of(segment, from, to);

	write_part(&part, pool->staging, part.end == part.begin || copy_parts(pool, &part, 1));
}

/* Where the regions of a launch are on the device. */
struct regions {
	struct nt_pool *pool;
	CUdeviceptr from;
};

/*
 * Read the control words of a log from the device: those at an offset of a launch's memory (argument: struct regions).
 * False if that fails.
 */
static bool read_control(void *argument, uint64_t offset, struct nt_log_control *ret)
{
	const struct regions *regions = argument;

	if (!copy_back(regions->pool, regions->from + offset, sizeof(*ret)))
		return false;
	memcpy(ret, regions->pool->staging, sizeof(*ret));
	return true;
}

/* A launch's data that are not copied back yet. */
struct rest {
	struct nt_range *ranges; /* of its regions */
	unsigned count;
	uint64_t done; /* bytes that were copied, of all ranges */
};

/*
 * Copy the next bytes of a launch's results to pool->staging, as many as fit there; *size gets their number, also if it
 * fails: false.
 */
static bool copy_next(struct regions *regions, struct rest *rest, uint64_t *size)
{
	uint64_t filled = 0;
	bool copied = true;

	while (rest->count && filled < STAGING_SIZE) {
		struct nt_range *range = rest->ranges;
		uint64_t bytes = range->size < STAGING_SIZE - filled ? range->size : STAGING_SIZE - filled;
		copied &= !bytes || nt_driver.cuMemcpyDtoHAsync_v2(regions->pool->staging + filled, regions->from + range->from,
								   bytes, regions->pool->stream) == CUDA_SUCCESS;
		filled += bytes;
		range->from += bytes;
		range->size -= bytes;
		if (!range->size) {
			rest->ranges++;
			rest->count--;
		}
	}
	*size = filled;
	rest->done += filled;
	return nt_driver.cuStreamSynchronize(regions->pool->stream) == CUDA_SUCCESS && copied;
}

/* The parts of a launch's regions that it may have written to; none are known if their number is 0. */
struct written {
	struct nt_range ranges[2 * NEUTRINO_MAX_MAPS + 1];
	unsigned count;
};

/*
 * Copy the maps (stores of probe results) of one launch from the device that have one result for the whole process (at
 * these ranges), and add them to that result.
 */
static void add_to_run(struct regions *regions, struct nt_kernel *kernel, const struct nt_range *ranges, unsigned count)
{
	bool copied = true;

	for (unsigned i = 0; i < count; i++)
		for (uint64_t at = 0, size; copied && at < ranges[i].size; at += size) {
			size = ranges[i].size - at < STAGING_SIZE ? ranges[i].size - at : STAGING_SIZE;
			copied = copy_back(regions->pool, regions->from + ranges[i].from + at, size);
			if (copied)
				nt_runs_add(kernel, i, regions->pool->staging, at, size);
		}
	nt_runs_added(kernel, copied);
}

/*
 * Fetch the results of one large launch from the device in pieces, and have them written. frame: the header of its
 * results, as if all its memory was written. Returns which parts of that the launch may have written to (none known:
 * count 0), to be zeroed.
 */
static struct written write_regions(struct regions *regions, struct nt_kernel *kernel, uint64_t launch,
				    struct neutrino_frame frame)
{
	struct written written, left_over;
	bool begins = true, ends;
	struct nt_range of_run[NEUTRINO_MAX_MAPS];
	struct nt_extent extent = nt_frames_extent(kernel, &frame);
	unsigned of_run_count = nt_runs_ranges(kernel, &extent, of_run);

	written.count = nt_frames_shrink(kernel, &frame, read_control, regions, written.ranges);
	if (!written.count) {
		nt_frames_lost(launch, frame.size);
		return written;
	}
	left_over = written;
	struct rest rest = {left_over.ranges, left_over.count, 0};
	for (unsigned i = 0; i < of_run_count; i++)
		written.ranges[written.count++] = of_run[i];
	add_to_run(regions, kernel, of_run, of_run_count);
	do {
		uint64_t left = frame.size - rest.done, size;
		struct nt_piece *piece =
			nt_frames_piece(kernel, sizeof(frame) + (left < STAGING_SIZE ? left : STAGING_SIZE), 1);
		if (!piece) {
			/* The kernel's next piece cuts off what was written of this one. */
			nt_frames_lost(launch, frame.size);
			return written;
		}
		piece->begins = begins;
		if (begins)
			nt_frames_add(piece, launch, &frame);
		piece->launches[0] = (struct nt_framed){launch, 0, frame.size};
		piece->count = 1;
		if (copy_next(regions, &rest, &size))
			nt_frames_add_data(piece, regions->pool->staging, size);
		else
			piece->failed = true;
		piece->ends = ends = piece->failed || rest.done == frame.size;
		begins = false;
		nt_frames_write(piece);
	} while (!ends);
	return written;
}

/*
 * Callback of nt_replay_write_large: fetch the results of one kernel of a replayed graph from the device, and have them
 * written. argument: the pool (device memory for results).
 */
static void write_large(void *argument, CUdeviceptr from, struct nt_kernel *kernel, uint64_t launch,
			const struct neutrino_frame *frame)
{
	struct regions regions = {argument, from};

	write_regions(&regions, kernel, launch, *frame);
}

/*
 * Fetch the results of the one launch of a large segment (memory for one large launch) from the device, or of all
 * kernels of the one replay (launch of a graph). Returns which parts of the memory were written to, to be zeroed.
 */
static struct written drain_large(struct nt_pool *pool, struct nt_segment *segment)
{
	const struct nt_slot *slot = &segment->slots[0];
	struct written all = {.ranges = {{0, slot->size}}, .count = 1};

	if (nt_drain_is_refused(slot))
		return all;
	if (nt_own_memory_is_memusage && slot->layout) {
		nt_replay_write(segment, 0, 1, NULL, 0);
		return all;
	}
	if (nt_own_memory_is_memusage) {
		nt_frames_without_data(slot->kernel, slot->launch, slot->size);
		return all;
	}
	/* The kernels of a replay are many, and small as a rule: copied at once. */
	if (slot->layout && slot->size <= STAGING_SIZE) {
		nt_replay_write(segment, 0, 1, copy_back(pool, segment->address, slot->size) ? pool->staging : NULL, 0);
		return all;
	}
	if (slot->layout) {
		nt_replay_write_large(segment, write_large, pool);
		return all;
	}
	struct regions regions = {pool, segment->address};
	struct written written = write_regions(&regions, slot->kernel, slot->launch, nt_frames_of(slot));
	return written.count ? written : all;
}

/*
 * The index after the last launch of a segment (memory for launches) that is known to be complete since the program has
 * waited for it, without a gap from the first one that is not fetched. count: launches in the segment.
 */
static uint32_t complete_until(const struct nt_pool *pool, const struct nt_segment *segment, uint32_t count)
{
	uint64_t stream_mark = __atomic_load_n(&segment->stream->watermark, __ATOMIC_ACQUIRE);
	uint64_t mark = __atomic_load_n(&pool->watermark, __ATOMIC_ACQUIRE);
	uint32_t until = segment->drained;

	while (until < count) {
		uint64_t submitted = __atomic_load_n(&segment->slots[until].sequence, __ATOMIC_ACQUIRE);
		if (submitted == 0 || (submitted > stream_mark && segment->slots[until].wave >= mark))
			break;
		until++;
	}
	return until;
}

/*
 * Make a segment (memory for launches) available to launches again. is_zeroed false: its memory could not be zeroed,
 * and it is never used again.
 */
static void recycle_segment(struct nt_pool *pool, struct nt_segment *segment, bool is_zeroed)
{
	bool is_small = segment->chunks == 0;

	/* A segment that cannot be zeroed is never used again, and no longer visited by the drain thread. */
	if (!is_zeroed) {
		/* Its launches are settled, and must not be marked as lost when the context ends. */
		for (uint32_t i = 0; i < segment->count; i++)
			segment->slots[i].sequence = 0;
		/* DONE is cleared, so that it is not visited; FINISHING is set, so that no thread finishes it. */
		__atomic_fetch_xor(&segment->hold, HOLD_DONE | HOLD_FINISHING, __ATOMIC_ACQ_REL);
		return;
	}
	for (uint32_t i = 0; i < segment->count; i++)
		segment->slots[i].sequence = 0;
	segment->drained = 0;
	__atomic_fetch_and(&segment->hold, ~(HOLD_FULL | HOLD_DONE), __ATOMIC_ACQ_REL);
	struct nt_stream *stream = segment->stream;
	if (is_small) {
		nt_room_give(pool, segment);
	} else {
		/* Cleared before its chunks are free, since the next launch that takes them sets it. */
		uint64_t chunks = segment->chunks;
		segment->chunks = 0;
		__atomic_fetch_and(&nt_slabs_area(pool, segment)->busy, ~chunks, __ATOMIC_RELEASE);
	}
	nt_streams_release(pool, stream);
	/*
	 * No call announces the end of a thread: its stream leaves the table whenever it is drained, and is added again
	 * when needed.
	 */
	if (nt_segment_is_per_thread(stream))
		nt_streams_retire(pool, stream);
}

/*
 * Whether all launches of a full segment (memory for launches) are complete: by its event, or since the program has
 * waited for them.
 */
static bool is_complete(const struct nt_pool *pool, const struct nt_segment *segment)
{
	return (segment->recorded && nt_driver.cuEventQuery(segment->event) == CUDA_SUCCESS) ||
	       complete_until(pool, segment, segment->count) == segment->count;
}

/*
 * Fetch the results of a full large segment (memory for one large launch), whose launch is complete, zero it and make
 * it available again.
 */
static void drain_full_large(struct nt_pool *pool, struct nt_segment *segment)
{
	struct written written = drain_large(pool, segment);
	bool is_zeroed = true;

	if (nt_own_memory_is_memusage) {
		recycle_segment(pool, segment, true);
		return;
	}
	for (unsigned i = 0; i < written.count; i++)
		is_zeroed &= !written.ranges[i].size ||
			     nt_driver.cuMemsetD8Async(segment->address + written.ranges[i].from, 0, written.ranges[i].size,
						       pool->stream) == CUDA_SUCCESS;
	recycle_segment(pool, segment, nt_driver.cuStreamSynchronize(pool->stream) == CUDA_SUCCESS && is_zeroed);
}

#define MOST_PARTS (STAGING_SIZE / SEGMENT_SIZE)

/* Full small segments, complete, by ascending address. They are drained together. */
struct batch {
	struct part parts[MOST_PARTS];
	unsigned count;
};

/* Zero the device memory of a batch's segments, adjacent ones at once; false if that fails. */
static bool zero_batch(struct nt_pool *pool, const struct batch *batch)
{
	if (nt_own_memory_is_memusage)
		return true;
	for (unsigned i = 0; i < batch->count;) {
		CUdeviceptr from = batch->parts[i].segment->address;
		uint64_t size = 0;
		while (i < batch->count && batch->parts[i].segment->address == from + size) {
			size += SEGMENT_SIZE;
			i++;
		}
		if (nt_driver.cuMemsetD8Async(from, 0, size, pool->stream) != CUDA_SUCCESS)
			return false;
	}
	return nt_driver.cuStreamSynchronize(pool->stream) == CUDA_SUCCESS;
}

/*
 * Fetch the results of a batch's segments, zero them, make them available again, and empty the batch. False if the
 * context is another one by now: then nothing is touched.
 */
static bool drain_batch(struct nt_pool *pool, CUcontext context, struct batch *batch)
{
	if (!batch->count)
		return true;
	/* Checked before they are zeroed: the memory may be the program's by now. */
	if (!nt_pools_is_current(pool, context))
		return false;
	bool copied = copy_parts(pool, batch->parts, batch->count);
	for (unsigned i = 0; i < batch->count; i++)
		if (batch->parts[i].from < batch->parts[i].to)
			write_part(&batch->parts[i], pool->staging + batch->parts[i].staged, copied);
	bool is_zeroed = zero_batch(pool, batch);
	for (unsigned i = 0; i < batch->count; i++)
		recycle_segment(pool, batch->parts[i].segment, is_zeroed);
	batch->count = 0;
	return true;
}

/*
 * Add a full small segment (memory for launches of a stream), whose launches are complete, to a batch that has room for
 * it.
 */
static void add_to_batch(struct batch *batch, struct nt_segment *segment)
{
	struct part *part = &batch->parts[batch->count];

	/* Perhaps all was drained while the segment was open. */
	*part = segment->drained < segment->count ? part_of(segment, segment->drained, segment->count)
						  : (struct part){.segment = segment};
	part->staged = batch->count * SEGMENT_SIZE + part->begin;
	batch->count++;
}

/*
 * Fetch the results of the complete launches of a segment that a stream still fills. all_complete: all that were
 * submitted are. is_short: the pool (device memory for results) has few free segments, so that a segment without other
 * launches is taken from the stream.
 */
static struct nt_drained drain_open(struct nt_pool *pool, struct nt_segment *segment, bool all_complete, bool is_short)
{
	struct nt_stream *stream = __atomic_load_n(&segment->stream, __ATOMIC_ACQUIRE);
	uint64_t state = __atomic_load_n(&stream->state, __ATOMIC_ACQUIRE);
	uint64_t number = state >> STATE_SEGMENT_SHIFT;
	uint32_t count = (uint32_t)(state >> STATE_COUNT_SHIFT) & STATE_COUNT_MASK;

	if (number != (uint64_t)(segment - pool->segments) + 1)
		return (struct nt_drained){0}; /* free, or about to be closed */
	/* The index after the last complete launch. A launch without a sequence is not submitted yet. */
	uint32_t until = segment->drained;
	if (all_complete)
		while (until < count && __atomic_load_n(&segment->slots[until].sequence, __ATOMIC_ACQUIRE))
			until++;
	else
		until = complete_until(pool, segment, count);
	bool worked = until > segment->drained;
	if (worked)
		drain_small(pool, segment, segment->drained, until);
	segment->drained = until;
	/*
	 * If all is drained, close the segment so that it can be recycled: of a per-thread default stream always, since
	 * it ends with its thread, which no call announces; of others if the pool is short of segments.
	 */
	if (until == count && (is_short || nt_segment_is_per_thread(stream)) &&
	    __atomic_compare_exchange_n(&stream->state, &state, nt_streams_without_segment(state), false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE)) {
		nt_segment_close(segment, count, NULL);
		return (struct nt_drained){.worked = true, .in_flight = true};
	}
	return (struct nt_drained){.is_sparse = worked, .in_flight = until < count};
}

/*
 * Fetch the results of all launches of a pool (device memory for results) that are complete, have them written, and
 * make their memory available again. all_complete: every submitted launch is known to be complete. Returns what was
 * found. By the drain thread (it fetches results), with the pool's context current.
 */
struct nt_drained nt_drain_pool(struct nt_pool *pool, bool all_complete)
{
	struct nt_drained drained = nt_benchmark_is_set() ? nt_benchmark_drain(pool) : (struct nt_drained){0};
	struct batch batch = {.count = 0};
	bool is_short = nt_slabs_run_short(pool);
	CUcontext context = __atomic_load_n(&pool->context, __ATOMIC_ACQUIRE);
	uint32_t small_end = pool->slab_end * SLAB_SEGMENTS;

	for (uint32_t i = 0; i < SEGMENTS && !nt_wake_drain_is_stopped(); i = i + 1 == small_end ? SMALL_MOST : i + 1) {
		struct nt_segment *segment = &pool->segments[i];
		uint32_t hold = __atomic_load_n(&segment->hold, __ATOMIC_ACQUIRE);
		bool is_open = !(hold & (HOLD_FULL | HOLD_DONE | HOLD_FINISHING));
		if (is_open && i < SMALL_MOST && __atomic_load_n(&segment->stream, __ATOMIC_ACQUIRE)) {
			struct nt_drained open = drain_open(pool, segment, all_complete, is_short);
			drained.worked |= open.worked;
			drained.in_flight |= open.in_flight;
			drained.is_sparse |= open.is_sparse;
		}
		if (is_open)
			continue;
		/* Whoever still holds it, or finishes it, wakes this thread. One that could not be zeroed is not used again. */
		if (!(hold & HOLD_DONE))
			continue;
		if (!all_complete && !is_complete(pool, segment)) {
			drained.in_flight = true;
			continue;
		}
		drained.worked = true;
		if (!segment->chunks) {
			add_to_batch(&batch, segment);
			if (batch.count == MOST_PARTS && !drain_batch(pool, context, &batch))
				return drained;
			continue;
		}
		/* As in drain_batch. */
		if (!nt_pools_is_current(pool, context))
			return drained;
		drain_full_large(pool, segment);
	}
	if (!nt_wake_drain_is_stopped())
		drain_batch(pool, context, &batch);
	return drained;
}

/*
 * Mark all launches of a pool (device memory for results) as lost whose results were not fetched yet: these are gone
 * with their context.
 */
void nt_drain_lose_all(struct nt_pool *pool)
{
	bool lost = false;

	for (uint32_t i = 0; i < SEGMENTS; i++) {
		struct nt_segment *segment = &pool->segments[i];
		uint32_t count = !segment->slots ? 0 : i >= SMALL_MOST ? segment->chunks != 0 : SLOTS;
		for (uint32_t j = segment->drained; j < count; j++) {
			const struct nt_slot *slot = &segment->slots[j];
			if (!__atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE) || nt_drain_is_refused(slot))
				continue;
			if (slot->layout)
				nt_replay_lost(slot);
			else
				nt_frames_lost(slot->launch, slot->size);
			lost = true;
		}
	}
	if (lost)
		nt_lines_note("a context was reset by a call that the hook did not see: its last records are lost");
}
