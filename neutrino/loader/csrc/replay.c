#include "replay.h"

#include <stdio.h>
#include <string.h>

#include "frames.h"
#include "graph_layout.h"
#include "regions.h"
#include "trace.h"

/* A kernel of a replay whose frame is in nt_frames. */
struct piece {
	struct neutrino_launch *record;
	uint64_t at; /* of the frame in nt_frames */
};

/* Regions are not smaller than this, so there are no more kernels in a small segment. */
#define MOST_PIECES (SEGMENT_SIZE / UNIT)

static struct piece pieces[MOST_PIECES];

/* Begin the launch record of a kernel in a replay; *index gets its number. NULL if there is none. */
static struct neutrino_launch *add_record(const struct nt_slot *slot, size_t number, uint64_t *index)
{
	const struct neutrino_launch *replay = nt_trace_launch_at(slot->launch);
	const struct nt_graph_node *node = &slot->layout->nodes[number];
	struct neutrino_launch *record = nt_trace_launch(index);

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
	record->dynamic_cap = node->dynamic_cap;
	record->lanes = node->kernel->lanes;
	record->graph = slot->layout->graph;
	record->node = (uint32_t)number + 1;
	record->data_size = node->size;
	return record;
}

/* Whether a node's twin has run in each replay. */
static bool has_run(const struct nt_graph_node *node)
{
	return node->reason == NEUTRINO_REASON_PROBED && !node->is_disabled;
}

/* The replay itself is done: its kernels have their own records. */
static void settle_replay(const struct nt_slot *slot, unsigned state)
{
	struct neutrino_launch *record = nt_trace_launch_at(slot->launch);

	record->data_size = slot->size;
	__atomic_store_n(&record->state, state, __ATOMIC_RELEASE);
	__atomic_sub_fetch(&slot->layout->in_flight, 1, __ATOMIC_ACQ_REL);
}

void nt_replay_lost(const struct nt_slot *slot)
{
	settle_replay(slot, NEUTRINO_LAUNCH_LOST);
}

static void settle(struct neutrino_launch *record, bool is_written, uint64_t offset)
{
	record->data_offset = offset;
	__atomic_store_n(&record->state, is_written ? NEUTRINO_LAUNCH_WRITTEN : NEUTRINO_LAUNCH_LOST, __ATOMIC_RELEASE);
}

/* Put the frame of a kernel in a replay at nt_frames + at. data: its regions. Returns the bytes used. */
static uint64_t put_frame(uint64_t at, const struct nt_graph_node *node, uint64_t index, const uint8_t *data)
{
	struct neutrino_frame frame = {.launch = index, .size = node->size, .dynamic_cap = node->dynamic_cap,
				       .lanes = node->kernel->lanes};

	memcpy(frame.magic, NEUTRINO_FRAME_MAGIC, sizeof(frame.magic));
	memcpy(frame.grid, node->grid, sizeof(frame.grid));
	memcpy(frame.block, node->block, sizeof(frame.block));
	memcpy(nt_frames + at, &frame, sizeof(frame));
	if (data)
		memcpy(nt_frames + at + sizeof(frame), data, node->size);
	return sizeof(frame) + (data ? node->size : 0);
}

/*
 * Write the frames of one kernel in all replays of a layout among launches [from, to), by one append. first: the first of
 * the layout's nodes that is this kernel's.
 */
static void write_kernel(const struct nt_segment *segment, uint32_t from, uint32_t to, const struct nt_layout *layout,
			 size_t first, const uint8_t *data, uint64_t begin)
{
	struct nt_kernel *kernel = layout->nodes[first].kernel;
	uint64_t used = 0, place = 0;
	size_t count = 0;

	for (uint32_t i = from; i < to; i++) {
		const struct nt_slot *slot = &segment->slots[i];
		if (slot->layout != layout)
			continue;
		for (size_t j = first; j < layout->count; j++) {
			const struct nt_graph_node *node = &layout->nodes[j];
			uint64_t index;
			if (node->kernel != kernel || !has_run(node))
				continue;
			struct neutrino_launch *record = add_record(slot, j, &index);
			if (!record)
				continue;
			if (!data) {
				settle(record, false, 0);
				continue;
			}
			const uint8_t *regions = data + (slot->offset * UNIT - begin) + node->offset;
			nt_frame_learn(kernel, record, regions, 0, node->size);
			pieces[count++] = (struct piece){record, used};
			used += put_frame(used, node, index, regions);
		}
	}
	bool is_written = count && nt_frames_append(kernel, used, &place);
	for (size_t i = 0; i < count; i++)
		settle(pieces[i].record, is_written, place + pieces[i].at);
}

/* Whether a node is the first of its kernel's that has run. */
static bool is_first(const struct nt_layout *layout, size_t number)
{
	if (!has_run(&layout->nodes[number]))
		return false;
	for (size_t i = 0; i < number; i++)
		if (layout->nodes[i].kernel == layout->nodes[number].kernel && has_run(&layout->nodes[i]))
			return false;
	return true;
}

void nt_replays_write(const struct nt_segment *segment, uint32_t from, uint32_t to, const uint8_t *data, uint64_t begin)
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
			settle_replay(&segment->slots[i], NEUTRINO_LAUNCH_WRITTEN);
}

void nt_replay_write_large(const struct nt_segment *segment, bool (*copy)(void *argument, uint64_t offset, uint64_t size),
			   void *argument, uint8_t *data, uint64_t most)
{
	const struct nt_slot *slot = &segment->slots[0];
	const struct nt_layout *layout = slot->layout;

	for (size_t i = 0; i < layout->count; i++) {
		const struct nt_graph_node *node = &layout->nodes[i];
		uint64_t index, first = 0, offset;
		struct neutrino_launch *record = has_run(node) ? add_record(slot, i, &index) : NULL;
		char name[48];
		if (!record)
			continue;
		snprintf(name, sizeof(name), "result/%u.bin", node->kernel->id);
		bool is_written = true, is_framed = false;
		for (uint64_t done = 0; done < node->size && is_written; done += most) {
			struct iovec part = {data, node->size - done < most ? node->size - done : most};
			is_written = copy(argument, node->offset + done, part.iov_len);
			if (is_written)
				nt_frame_learn(node->kernel, record, data, done, part.iov_len);
			if (is_written && !is_framed)
				is_written = is_framed = nt_frames_append(node->kernel, put_frame(0, node, index, NULL), &first);
			is_written = is_written && nt_trace_append(name, &part, 1, &offset);
		}
		/* After a frame without its data, a reader could not find the next one. */
		if (is_framed && !is_written)
			nt_trace_cut(name, first);
		settle(record, is_written, first);
	}
	settle_replay(slot, NEUTRINO_LAUNCH_WRITTEN);
}
