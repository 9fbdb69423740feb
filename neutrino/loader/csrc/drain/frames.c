#include "drain/frames.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/regions.h"
#include "base/settings.h"
#include "drain/runs.h"
#include "trace/records.h"
#include "trace/trace.h"
#include "trace/writer.h"

static uint64_t launches_lost;

/* The header of the frame (a launch's results in a file) of the launch in a slot of a segment, by its launch record. */
struct neutrino_frame nt_frames_of(const struct nt_slot *slot)
{
	const struct neutrino_launch *launch = nt_records_at(slot->launch);
	struct neutrino_frame frame = {.launch = slot->launch, .size = slot->size};

	memcpy(frame.magic, NEUTRINO_FRAME_MAGIC, sizeof(frame.magic));
	memcpy(frame.grid, launch->grid, sizeof(frame.grid));
	memcpy(frame.block, launch->block, sizeof(frame.block));
	frame.log_units = launch->log_units;
	frame.lanes = launch->lanes;
	return frame;
}

/*
 * The extent (blocks, warps, ...) of a launch by the header of its frame (its results in a file), with the memory for
 * logs that the frame has.
 */
struct nt_extent nt_frames_extent(const struct nt_kernel *kernel, const struct neutrino_frame *frame)
{
	struct nt_extent extent;

	nt_regions_extent(frame->grid, frame->block, kernel->lanes, &extent);
	extent.log_units = frame->log_units;
	return extent;
}

/*
 * Learn from a launch how much memory later launches of the kernel should get for their logs (to which threads append
 * records). wanted: units that this one wanted, of the log that wanted most; in_turn: its warps had no chunks
 * (stretches of a log) of their own; beyond: units that they wanted besides, if they had.
 */
static void learn_log_need(struct nt_kernel *kernel, uint64_t wanted, bool in_turn, uint64_t beyond, uint64_t warps)
{
	uint64_t per_warp = nt_need_per_warp(wanted, warps), before = __atomic_load_n(&kernel->log_wanted, __ATOMIC_RELAXED);

	/* Warps with chunks of their own take more than they want. */
	if (in_turn && wanted > 1 && per_warp > __atomic_load_n(&kernel->log_first, __ATOMIC_RELAXED))
		__atomic_store_n(&kernel->log_first, per_warp, __ATOMIC_RELAXED);
	uint64_t known = nt_need_per_warp(beyond < UINT32_MAX ? beyond : UINT32_MAX, warps) + 1;
	if (!in_turn && known > __atomic_load_n(&kernel->log_beyond, __ATOMIC_RELAXED))
		__atomic_store_n(&kernel->log_beyond, known, __ATOMIC_RELAXED);
	/* One unit stands for none. */
	if (wanted > 1 && per_warp > __atomic_load_n(&kernel->log_per_warp, __ATOMIC_RELAXED))
		__atomic_store_n(&kernel->log_per_warp, per_warp, __ATOMIC_RELAXED);
	if (warps > __atomic_load_n(&kernel->log_warps, __ATOMIC_RELAXED))
		__atomic_store_n(&kernel->log_warps, warps, __ATOMIC_RELAXED);
	__atomic_store_n(&kernel->log_wanted, wanted > before ? wanted : before, __ATOMIC_RELAXED);
}

/*
 * Leave out of a launch's results what its logs (to which threads append records) did not use, and maps (stores of
 * probe results) that have one result for the process. frame: as of all its memory; log_units and size are
 * changed. read: gets a log's control words, with argument. ret gets the ranges that remain, at most
 * NEUTRINO_MAX_MAPS + 1; returns how many, 0 if the control words cannot be read. Learns what later launches need.
 */
unsigned nt_frames_shrink(struct nt_kernel *kernel, struct neutrino_frame *frame, nt_read_control *read, void *argument,
			  struct nt_range *ret)
{
	struct nt_extent extent = nt_frames_extent(kernel, frame);
	bool in_turn = true;
	uint64_t offset = 0, wanted = 1, beyond = 0;

	if (!kernel->log_count && !kernel->run_count) {
		*ret = (struct nt_range){0, frame->size};
		return 1;
	}
	for (uint32_t i = 0; i < kernel->map_count; i++) {
		struct nt_log_control control;
		struct nt_region region;
		offset = nt_regions_region(&kernel->maps[i], &extent, offset, &region);
		if (!nt_regions_is_log(&kernel->maps[i]))
			continue;
		if (!read(argument, region.records, &control))
			return 0;
		uint64_t taken = control.wanted + control.first;
		wanted = taken > wanted ? taken : wanted;
		beyond = control.wanted > beyond ? control.wanted : beyond;
		in_turn &= !control.first;
	}
	/* No launch can have more. 0 stands for not known yet. */
	wanted = wanted < UINT32_MAX ? wanted : UINT32_MAX;
	if (kernel->log_count)
		learn_log_need(kernel, wanted, in_turn, beyond, extent.warps);
	frame->log_units = wanted < extent.log_units ? (uint32_t)wanted : extent.log_units;
	unsigned count = nt_regions_ranges(kernel->maps, kernel->map_count, &extent, frame->log_units, ret);
	frame->size = 0;
	for (unsigned i = 0; i < count; i++)
		frame->size += ret[i].size;
	return count;
}

/*
 * Mark the launch of that number as lost, since its results could not be had; noted the first time. size: bytes of its
 * maps (stores of probe results).
 */
void nt_frames_lost(uint64_t launch, uint64_t size)
{
	nt_records_settle(launch, NEUTRINO_LAUNCH_LOST, 0, size, 0);
	if (launches_lost++ == 0)
		nt_lines_note("the data of a launch could not be copied back or written: it is marked lost");
}

/*
 * A launch's results could not be copied back: mark it as lost; or with --memusage, where there never are any, as
 * measured. size: bytes of its maps (stores of probe results).
 */
void nt_frames_without_data(struct nt_kernel *kernel, uint64_t launch, uint64_t size)
{
	if (!nt_settings()->measures_only) {
		nt_frames_lost(launch, size);
		return;
	}
	/* As if nothing was saved: what later launches save is not known either. */
	if (kernel->log_count && !__atomic_load_n(&kernel->log_wanted, __ATOMIC_RELAXED))
		__atomic_store_n(&kernel->log_wanted, 1, __ATOMIC_RELAXED);
	nt_records_settle(launch, NEUTRINO_LAUNCH_MEASURED, 0, size, kernel->set);
}

/*
 * A new piece (results of a kernel's launches, for the writer) with room for size bytes and so many launches. The first
 * one of a kernel has the file's header. NULL without memory.
 */
struct nt_piece *nt_frames_piece(struct nt_kernel *kernel, uint64_t size, uint32_t launches)
{
	uint8_t header[NT_RESULTS_HEADER_MOST];
	uint64_t header_size = kernel->result_started ? 0 : nt_results_header(kernel, header);
	uint64_t room = sizeof(struct nt_piece) + launches * sizeof(struct nt_framed) + header_size + size;
	struct nt_piece *piece = nt_memory_alloc(room);

	if (!piece)
		return NULL;
	struct nt_framed *framed = (struct nt_framed *)(piece + 1);
	*piece = (struct nt_piece){
		.kernel = kernel->id,
		.set = kernel->set,
		.launches = framed,
		.header = (uint8_t *)(framed + launches),
		.header_size = header_size,
		.data = (uint8_t *)(framed + launches) + header_size,
		.room = room,
		.begins = true,
		.ends = true,
	};
	memcpy(piece->header, header, header_size);
	kernel->result_started = true;
	return piece;
}

/* Append data to a piece (results for the writer) that has room for them. */
void nt_frames_add_data(struct nt_piece *piece, const uint8_t *data, uint64_t size)
{
	memcpy(piece->data + piece->size, data, size);
	piece->size += size;
}

/*
 * Add a launch to a piece (results for the writer), with the header of its frame (its results in the file); its data
 * are added next.
 */
void nt_frames_add(struct nt_piece *piece, uint64_t launch, const struct neutrino_frame *frame)
{
	piece->launches[piece->count++] = (struct nt_framed){launch, piece->size, frame->size};
	nt_frames_add_data(piece, (const uint8_t *)frame, sizeof(*frame));
}

/* Read the control words of a log at an offset of a launch's memory, which has been copied to the host. Always true. */
static bool read_control(void *regions, uint64_t offset, struct nt_log_control *ret)
{
	memcpy(ret, (const uint8_t *)regions + offset, sizeof(*ret));
	return true;
}

/*
 * Add a launch with all its results to a piece (a job for the writer). regions: as they were on the device. Learns from
 * them what later launches need, and adds to results of the run. frame, the header of the results, is changed to what
 * is written.
 */
void nt_frames_add_launch(struct nt_piece *piece, struct nt_kernel *kernel, uint64_t launch, struct neutrino_frame *frame,
			  const uint8_t *regions)
{
	struct nt_range ranges[NEUTRINO_MAX_MAPS + 1];
	struct nt_extent extent = nt_frames_extent(kernel, frame);
	unsigned of_run = nt_runs_ranges(kernel, &extent, ranges);

	for (unsigned i = 0; i < of_run; i++)
		nt_runs_add(kernel, i, regions + ranges[i].from, 0, ranges[i].size);
	nt_runs_added(kernel, true);
	unsigned count = nt_frames_shrink(kernel, frame, read_control, (void *)(uintptr_t)regions, ranges);

	nt_frames_add(piece, launch, frame);
	for (unsigned i = 0; i < count; i++)
		nt_frames_add_data(piece, regions + ranges[i].from, ranges[i].size);
}

/* Hand a piece (results for the writer) to the writer, which frees it. Waits while too much is queued. */
void nt_frames_write(struct nt_piece *piece)
{
	if (!nt_writer_piece(piece))
		nt_lines_log("data of launches were lost: no memory");
}
