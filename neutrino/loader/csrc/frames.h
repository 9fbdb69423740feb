/*
 * The result files of the trace (result/ID.bin): a header with the kernel's maps, then a frame for each launch. All
 * functions run in the drain thread.
 */
#ifndef NEUTRINO_FRAMES_H
#define NEUTRINO_FRAMES_H

#include "segment.h"

/* The buffer of frames to write; large enough for those of a small segment, in which no maps take less than a unit. */
extern uint8_t *nt_frames;
#define FRAMES_SIZE (SEGMENT_SIZE + SEGMENT_SIZE / UNIT * sizeof(struct neutrino_frame) + 8192)

/* The header of the frame of a slot's launch. */
struct neutrino_frame nt_frame_of(const struct nt_slot *slot);

/*
 * Raise the kernel's wanted records to what slots of maps with a dynamic cap counted in this launch, from which the caps of
 * later launches are chosen. data: bytes [begin, begin + size) of the launch's regions, begin a multiple of 4.
 */
void nt_frame_learn(struct nt_kernel *kernel, const struct neutrino_launch *launch, const uint8_t *data, uint64_t begin,
		    uint64_t size);

/* Complete the record of a slot's launch: its frame was written at that offset of the file, or its data is lost. */
void nt_frame_settle(const struct nt_slot *slot, bool written, uint64_t offset);

/*
 * Append size bytes of nt_frames to the kernel's file, after a header if it is new. *first gets their offset. False if
 * that fails.
 */
bool nt_frames_append(struct nt_kernel *kernel, uint64_t size, uint64_t *first);

#endif
