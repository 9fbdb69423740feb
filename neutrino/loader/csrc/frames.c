#include "frames.h"

#include <stdio.h>
#include <string.h>

#include "regions.h"
#include "trace.h"

uint8_t *nt_frames;
static uint64_t launches_lost;

/* Write the header of a kernel's result file, with its maps, to ret; returns its size in bytes, padded to 64. */
static uint64_t result_header(struct nt_kernel *kernel, uint8_t *ret)
{
	struct neutrino_result_header header = {
		.version = NEUTRINO_RESULT_VERSION,
		.kernel = kernel->id,
		.maps = kernel->map_count,
		.map_size = sizeof(struct neutrino_map),
	};
	uint64_t size = sizeof(header) + kernel->map_count * sizeof(struct neutrino_map);
	uint64_t padded = (size + 63) / 64 * 64;

	memcpy(header.magic, NEUTRINO_RESULT_MAGIC, sizeof(header.magic));
	memset(ret, 0, padded);
	memcpy(ret, &header, sizeof(header));
	memcpy(ret + sizeof(header), kernel->maps, kernel->map_count * sizeof(struct neutrino_map));
	return padded;
}

struct neutrino_frame nt_frame_of(const struct nt_slot *slot)
{
	const struct neutrino_launch *launch = nt_trace_launch_at(slot->launch);
	struct neutrino_frame frame = {.launch = slot->launch, .size = slot->size};

	memcpy(frame.magic, NEUTRINO_FRAME_MAGIC, sizeof(frame.magic));
	memcpy(frame.grid, launch->grid, sizeof(frame.grid));
	memcpy(frame.block, launch->block, sizeof(frame.block));
	frame.dynamic_cap = launch->dynamic_cap;
	frame.lanes = launch->lanes;
	return frame;
}

void nt_frame_learn(struct nt_kernel *kernel, const struct neutrino_launch *launch, const uint8_t *data, uint64_t begin,
		    uint64_t size)
{
	struct nt_extent extent;
	uint32_t before = __atomic_load_n(&kernel->wanted, __ATOMIC_RELAXED);

	if (!kernel->has_dynamic_cap)
		return;
	nt_extent_of(launch->grid, launch->block, kernel->lanes, &extent);
	extent.dynamic_cap = launch->dynamic_cap;
	uint32_t wanted = nt_regions_wanted(kernel->maps, kernel->map_count, &extent, data, begin, size);
	wanted = wanted > before ? wanted : before;
	/* 0 stands for not known yet. */
	__atomic_store_n(&kernel->wanted, wanted ? wanted : 1, __ATOMIC_RELAXED);
}

void nt_frame_settle(const struct nt_slot *slot, bool written, uint64_t offset)
{
	struct neutrino_launch *launch = nt_trace_launch_at(slot->launch);

	launch->data_offset = offset;
	launch->data_size = slot->size;
	__atomic_store_n(&launch->state, written ? NEUTRINO_LAUNCH_WRITTEN : NEUTRINO_LAUNCH_LOST, __ATOMIC_RELEASE);
	if (!written && launches_lost++ == 0)
		nt_trace_note("the data of a launch could not be copied back or written: it is marked lost");
}

bool nt_frames_append(struct nt_kernel *kernel, uint64_t size, uint64_t *first)
{
	char name[48];
	uint8_t header[sizeof(struct neutrino_result_header) + NEUTRINO_MAX_MAPS * sizeof(struct neutrino_map) + 64];
	uint64_t header_size = kernel->result_started ? 0 : result_header(kernel, header);
	struct iovec parts[] = {{header, header_size}, {nt_frames, size}};

	snprintf(name, sizeof(name), "result/%u.bin", kernel->id);
	if (!nt_trace_append(name, parts, 2, first))
		return false;
	kernel->result_started = true;
	/* Of the first frame, after the file's header if that was written with it. */
	*first += header_size;
	return true;
}
