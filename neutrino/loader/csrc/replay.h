/* What the drain thread does with the maps of a graph's replays. All functions run in that thread. */
#ifndef NEUTRINO_REPLAY_H
#define NEUTRINO_REPLAY_H

#include "segment.h"

/*
 * Write the frames of all replays among launches [from, to) of a small segment. Each kernel of a replay gets a launch
 * record of its own, in which its frame's place is. data: what was copied from the device, from begin bytes of the
 * segment on; NULL if that failed.
 */
void nt_replays_write(const struct nt_segment *segment, uint32_t from, uint32_t to, const uint8_t *data, uint64_t begin);

/*
 * The same for the one replay of a large segment. copy: brings size bytes from an offset in the segment to data, false if
 * that fails; argument: for copy. most: bytes that it can copy at once.
 */
void nt_replay_write_large(const struct nt_segment *segment, bool (*copy)(void *argument, uint64_t offset, uint64_t size),
			   void *argument, uint8_t *data, uint64_t most);

/* The replay of a slot is lost with its context. */
void nt_replay_lost(const struct nt_slot *slot);

#endif
