/* What the drain thread does with the maps of a graph's replays. All functions run in that thread. */
#ifndef NEUTRINO_REPLAY_H
#define NEUTRINO_REPLAY_H

#include "memory/segment.h"

/*
 * Have the frames of all replays among launches [from, to) of a small segment written. Each kernel of a replay gets a
 * launch record of its own. data: what was copied from the device, from begin bytes of the segment on; NULL if that failed.
 */
void nt_replay_write(const struct nt_segment *segment, uint32_t from, uint32_t to, const uint8_t *data, uint64_t begin);

/* The same for the one replay of a large segment. write: copies one kernel's maps, and has them written. */
typedef void nt_write_frame(void *argument, CUdeviceptr from, struct nt_kernel *kernel, uint64_t launch,
			    const struct neutrino_frame *frame);
void nt_replay_write_large(const struct nt_segment *segment, nt_write_frame *write, void *argument);

/* The replay of a slot is lost with its context. */
void nt_replay_lost(const struct nt_slot *slot);

#endif
