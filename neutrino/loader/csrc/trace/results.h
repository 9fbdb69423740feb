/*
 * The result files of the trace (result/ID.bin): a header with the kernel's maps, then a frame for each launch. With a
 * limit of the trace's size they are written in parts, of which the oldest are removed. Everything here is done by the
 * writer.
 */
#ifndef NEUTRINO_RESULTS_H
#define NEUTRINO_RESULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/kernel.h"

/* A launch whose frame is in a piece. */
struct nt_framed {
	uint64_t launch; /* its number */
	uint64_t at;	 /* of the frame, from the start of the piece's data */
	uint64_t size;	 /* bytes of its maps */
};

/*
 * Frames of a kernel's launches; or a part of a frame, of a launch too large for one piece: then the first of its pieces
 * has begins, the last ends, and names the launch. One allocation: launches, header and data lie after it.
 */
struct nt_piece {
	uint32_t kernel; /* its id */
	uint32_t count;	 /* launches */
	uint32_t set;	 /* number of its probes */
	struct nt_framed *launches;
	uint8_t *header; /* of the file; header_size 0: known from an earlier piece of the kernel */
	uint64_t header_size;
	uint8_t *data;
	uint64_t size;
	uint64_t room; /* bytes of the allocation */
	bool begins, ends;
	bool failed; /* data could not be copied back: the launch is lost */
};

/* Write the header of a kernel's result file, with its maps, to ret; returns its size in bytes, padded to 64. Any thread. */
#define NT_RESULTS_HEADER_MOST \
	(sizeof(struct neutrino_result_header) + NEUTRINO_MAX_MAPS * sizeof(struct neutrino_map) + 64)
uint64_t nt_results_header(const struct nt_kernel *kernel, uint8_t *ret);

/* Write a piece, and settle the records of its launches. */
void nt_results_write(const struct nt_piece *piece);

/* Bytes of the result files that were removed so far. */
uint64_t nt_results_removed(void);

#endif
