#include "drain/replay.h"

#include <string.h>

#include "base/clock.h"
#include "drain/frames.h"
#include "drain/layout.h"
#include "trace/records.h"
#include "trace/trace.h"

/* How often the drain thread makes records when there are none, a millisecond apart: the writer frees them. */
#define MOST_ROUNDS 5000

/*
 * Take a free launch record; waits seconds for one if need be, as the writer (the thread that writes the trace) frees
 * them. NULL if there is none. *index gets its number.
 */
static struct neutrino_launch *take_record(uint64_t *index)
{
	struct neutrino_launch *record;

	for (int i = 0; !(record = nt_records_take(index)) && i < MOST_ROUNDS; i++) {
		nt_trace_round();
		if (i)
			nt_clock_sleep_us(1000);
	}
	return record;
}

/*
 * Make the launch record of one kernel in a graph's replay (launch). slot: the replay; number: of the kernel's node.
 * *index gets the record's number. NULL if there is none.
 */
static struct neutrino_launch *add_record(const struct nt_slot *slot, size_t number, uint64_t *index)
{
	const struct neutrino_launch *replay = nt_records_at(slot->launch);
	const struct nt_graph_node *node = &slot->layout->nodes[number];
	struct neutrino_launch *record = take_record(index);

	if (!record)
		return NULL;
	record->kernel = node->kernel->id;
	record->context = replay->context;
	record->stream = replay->stream;
	record->submit_ns = replay->submit_ns;
	memcpy(record->grid, node->grid, sizeof(record->grid));
	memcpy(record->block, node->block, sizeof(record->block));
	record->shared = node->shared;
	record->device = replay->device;
	record->thread = replay->thread;
	record->variant = node->variant;
	record->log_units = node->log_units;
	record->lanes = node->kernel->lanes;
	record->graph = slot->layout->graph;
	record->node = (uint32_t)number + 1;
	__atomic_store_n(&record->state, NEUTRINO_LAUNCH_SUBMITTED, __ATOMIC_RELEASE);
	return record;
}

/* Whether the twin (copy with probes) of a graph's node runs, and is recorded, in each replay (launch) of the graph. */
static bool has_run(const struct nt_graph_node *node)
{
	return node->reason == NEUTRINO_REASON_PROBED && !node->is_disabled && !node->is_left_out;
}

/*
 * Complete the record of a replay (launch of a graph) itself; its kernels have their own. Its layout (what its kernel
 * nodes run) may be freed after the last one.
 */
static void settle_replay(const struct nt_slot *slot, bool is_written)
{
	nt_records_settle(slot->launch, is_written ? NEUTRINO_LAUNCH_WRITTEN : NEUTRINO_LAUNCH_LOST, 0, slot->size, 0);
	__atomic_sub_fetch(&slot->layout->in_flight, 1, __ATOMIC_ACQ_REL);
}

/* The results of a replay (launch of a graph) are lost with its context: complete its record. */
void nt_replay_lost(const struct nt_slot *slot)
{
	settle_replay(slot, false);
}

/*
 * The header of the frame (a launch's results in a file) of a node in a replay (launch of a graph). launch: number of
 * its record.
 */
static struct neutrino_frame frame_of(const struct nt_graph_node *node, uint64_t launch)
{
	struct neutrino_frame frame = {.launch = launch, .size = node->size, .lanes = node->kernel->lanes,
				       .log_units = node->log_units};

	memcpy(frame.magic, NEUTRINO_FRAME_MAGIC, sizeof(frame.magic));
	memcpy(frame.grid, node->grid, sizeof(frame.grid));
	memcpy(frame.block, node->block, sizeof(frame.block));
	return frame;
}

/*
 * Have the results of one kernel written, of all replays (launches) of a graph with that layout (what its nodes run)
 * among the launches [from, to), as one job of the writer. first: the first of the layout's nodes that is this
 * kernel's. data: what was copied from the device, from `begin` bytes of the segment (memory for launches) on; NULL:
 * they are lost.
 */
static void write_kernel(const struct nt_segment *segment, uint32_t from, uint32_t to, const struct nt_layout *layout,
			 size_t first, const uint8_t *data, uint64_t begin)
{
	struct nt_kernel *kernel = layout->nodes[first].kernel;
	struct nt_piece *piece = NULL;
	uint64_t size = 0;
	uint32_t replays = 0, frames = 0;

	for (uint32_t i = from; i < to; i++)
		replays += segment->slots[i].layout == layout;
	for (size_t i = first; i < layout->count; i++)
		if (layout->nodes[i].kernel == kernel && has_run(&layout->nodes[i])) {
			size += sizeof(struct neutrino_frame) + layout->nodes[i].size;
			frames++;
		}
	if (data)
		piece = nt_frames_piece(kernel, replays * size, replays * frames);
	for (uint32_t i = from; i < to; i++) {
		const struct nt_slot *slot = &segment->slots[i];
		if (slot->layout != layout)
			continue;
		for (size_t j = first; j < layout->count; j++) {
			const struct nt_graph_node *node = &layout->nodes[j];
			uint64_t launch;
			if (node->kernel != kernel || !has_run(node))
				continue;
			if (!add_record(slot, j, &launch))
				continue;
			if (!piece) {
				nt_frames_without_data(kernel, launch, node->size);
				continue;
			}
			const uint8_t *regions = data + (slot->offset * UNIT - begin) + node->offset;
			struct neutrino_frame frame = frame_of(node, launch);
			nt_frames_add_launch(piece, kernel, launch, &frame, regions);
		}
	}
	if (piece)
		nt_frames_write(piece);
}

/* Whether a node is the first of its kernel's nodes that has run. */
static bool is_first(const struct nt_layout *layout, size_t number)
{
	if (!has_run(&layout->nodes[number]))
		return false;
	for (size_t i = 0; i < number; i++)
		if (layout->nodes[i].kernel == layout->nodes[number].kernel && has_run(&layout->nodes[i]))
			return false;
	return true;
}

/*
 * Have the results of all graph replays among the launches [from, to) of a small segment (memory for launches of a
 * stream) written; each kernel gets a launch record of its own. data: what was copied from the device, from `begin`
 * bytes of the segment on; NULL if that failed.
 */
void nt_replay_write(const struct nt_segment *segment, uint32_t from, uint32_t to, const uint8_t *data, uint64_t begin)
{
	for (uint32_t i = from; i < to; i++) {
		const struct nt_layout *layout = segment->slots[i].layout;
		bool is_new = layout;
		for (uint32_t j = from; j < i && is_new; j++)
			is_new = segment->slots[j].layout != layout;
		for (size_t j = 0; is_new && j < layout->count; j++)
			if (is_first(layout, j))
				write_kernel(segment, from, to, layout, j, data, begin);
	}
	/* Last: then the layout may be freed. */
	for (uint32_t i = from; i < to; i++)
		if (segment->slots[i].layout)
			settle_replay(&segment->slots[i], true);
}

/*
 * Have the results of the one replay (launch of a graph) in a large segment (memory for one large launch) written,
 * kernel by kernel: write() fetches one's from the device; argument: for it.
 */
void nt_replay_write_large(const struct nt_segment *segment, nt_write_frame *write, void *argument)
{
	const struct nt_slot *slot = &segment->slots[0];
	const struct nt_layout *layout = slot->layout;

	for (size_t i = 0; i < layout->count; i++) {
		const struct nt_graph_node *node = &layout->nodes[i];
		uint64_t launch;
		if (!has_run(node) || !add_record(slot, i, &launch))
			continue;
		struct neutrino_frame frame = frame_of(node, launch);
		write(argument, segment->address + node->offset, node->kernel, launch, &frame);
	}
	settle_replay(slot, true);
}
