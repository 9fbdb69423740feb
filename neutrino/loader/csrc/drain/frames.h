/*
 * Frames of the result files: what the drain thread hands to the writer for each launch. All functions run in the drain
 * thread.
 */
#ifndef NEUTRINO_FRAMES_H
#define NEUTRINO_FRAMES_H

#include "base/regions.h"
#include "memory/segment.h"
#include "trace/results.h"

/* The extent of a frame's launch, with the logs' memory that the frame has. */
struct nt_extent nt_frames_extent(const struct nt_kernel *kernel, const struct neutrino_frame *frame);

/* The header of the frame of a slot's launch. */
struct neutrino_frame nt_frames_of(const struct nt_slot *slot);

/* Copy the control words at an offset of a launch's regions; false if that fails. */
typedef bool nt_read_control(void *argument, uint64_t offset, struct nt_log_control *ret);

/*
 * Leave out of a launch's data what its logs did not use, and the maps per run. frame: as of all its regions; log_units and size are changed. ret
 * gets the ranges of the regions that are the frame's data, at most NEUTRINO_MAX_MAPS + 1; returns how many, 0 if the
 * control words cannot be read. Raises the memory that the kernel's logs want to what was wanted in this launch.
 */
unsigned nt_frames_shrink(struct nt_kernel *kernel, struct neutrino_frame *frame, nt_read_control *read, void *argument,
			  struct nt_range *ret);

/* Complete the record of a launch, by its number, whose data are lost. size: bytes of its maps. */
void nt_frames_lost(uint64_t launch, uint64_t size);

/* The same where they could not be copied back; with --memusage, they were measured as planned, and there are none. */
void nt_frames_without_data(struct nt_kernel *kernel, uint64_t launch, uint64_t size);

/* A new piece of a kernel's frames, with room for size bytes and so many launches. NULL without memory. */
struct nt_piece *nt_frames_piece(struct nt_kernel *kernel, uint64_t size, uint32_t launches);

/* Add a launch with all its data to a piece. regions: as on the device. Learns from them what later launches need. */
void nt_frames_add_launch(struct nt_piece *piece, struct nt_kernel *kernel, uint64_t launch, struct neutrino_frame *frame,
			  const uint8_t *regions);

/* Add a launch to a piece, with its frame's header; its data are added next. */
void nt_frames_add(struct nt_piece *piece, uint64_t launch, const struct neutrino_frame *frame);
void nt_frames_add_data(struct nt_piece *piece, const uint8_t *data, uint64_t size);

/* Hand a piece to the writer, which frees it. Waits while too much is queued. */
void nt_frames_write(struct nt_piece *piece);

#endif
