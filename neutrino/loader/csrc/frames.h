/* The data of launches as files of the trace have it: a frame for each launch, after a header with the maps. */
#ifndef NEUTRINO_FRAMES_H
#define NEUTRINO_FRAMES_H

#include "segment.h"

/* The drain thread's buffer of frames to write; holds those of a small segment. */
extern uint8_t *nt_frames;
#define FRAMES_SIZE (SEGMENT_SIZE + SLOTS * sizeof(struct neutrino_frame) + 8192)

/* The frame of a slot's launch. */
struct neutrino_frame nt_frame_of(const struct nt_slot *slot);

/*
 * What the slots of dynamic maps counted, for the caps of later launches. data: bytes [begin, begin + size) of the
 * launch's regions, begin a multiple of 4.
 */
void nt_frame_learn(const struct nt_slot *slot, const uint8_t *data, uint64_t begin, uint64_t size);

/* The slot's launch is over: its frame is written at that offset, or its data is lost. */
void nt_frame_settle(const struct nt_slot *slot, bool written, uint64_t offset);

/* Append a header (the first time) and what is in nt_frames to the kernel's file. */
bool nt_frames_append(struct nt_kernel *kernel, uint64_t size, uint64_t *first);

#endif
