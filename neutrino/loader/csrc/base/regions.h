/*
 * Maps in device memory: sizes and places, which depend on map types and levels. A launch's maps are in regions, one after
 * the other; `region_layout` in Python computes the same. All functions are pure.
 */
#ifndef NEUTRINO_REGIONS_H
#define NEUTRINO_REGIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/neutrino_layout.h"

/* The region of one map: offsets and sizes in bytes. */
struct nt_region {
	uint64_t records;
	uint64_t records_size;
	uint64_t counts; /* valid when counts_size is not 0 */
	uint64_t counts_size;
};

/* The size of a launch, by which the sizes of its regions are computed. */
struct nt_extent {
	uint64_t blocks;
	uint64_t warps;		  /* of all blocks */
	uint32_t threads;	  /* of a block */
	uint32_t warps_per_block;
	uint32_t lanes;		  /* of a warp: the kernel's */
	uint32_t log_units;	  /* NEUTRINO_LOG_UNIT bytes each, of every log with cap 1 */
	bool in_frame;		  /* as in the trace, where launches have nothing of the maps per run */
	uint32_t log_first;	  /* units that each warp's first chunk has of every log; 0: chunks are taken in turn */
	uint32_t log_beyond;	  /* units of every log that are left for more chunks, or no warp has a first one of its own */
};

/* The control words at the start of a log's region. */
struct nt_log_control {
	uint64_t wanted; /* units that were taken, or would have been if there were as many */
	uint64_t lost;	 /* records */
	uint64_t first;	 /* units of all warps' first chunks, which come on top */
};

/* A part of a launch's regions, in bytes from where they begin. */
struct nt_range {
	uint64_t from;
	uint64_t size;
};

/* The result of nt_regions_extent. */
enum nt_extent_result {
	NT_EXTENT,
	NT_EXTENT_INVALID,   /* no block or no thread, or more threads in a block than any device has */
	NT_EXTENT_TOO_LARGE, /* more warps than 32 bits count */
};

/* Compute the extent of a launch from its grid (blocks) and block (threads); log_units is 0. lanes: of a warp. */
enum nt_extent_result nt_regions_extent(const uint32_t grid[3], const uint32_t block[3], uint32_t lanes,
					struct nt_extent *ret);

/* Whether a map's type and level are known, and its sizes are within their limits. */
bool nt_regions_is_valid(const struct neutrino_map *map);

/* Compute the region of a map that starts at offset; returns the offset after it, UINT64_MAX on overflow. */
uint64_t nt_regions_region(const struct neutrino_map *map, const struct nt_extent *extent, uint64_t offset,
			   struct nt_region *ret);

/* The bytes of all maps' regions, UINT64_MAX on overflow. */
uint64_t nt_regions_size(const struct neutrino_map *maps, unsigned count, const struct nt_extent *extent);

/*
 * Write the probe block's header and a row for each map, whose regions begin at base: a device address, or with a cell
 * (its device address, else 0) what must be added to the cell's value to have one. Returns the address in block after
 * them.
 */
uint8_t *nt_regions_describe(const struct neutrino_map *maps, unsigned count, const struct nt_extent *extent,
			     uint64_t base, uint64_t cell, uint8_t *block);

/* Whether a launch adds to what an earlier one left in the same regions, so that their order and number do not matter. */
bool nt_regions_add_up(const struct neutrino_map *maps, unsigned count);

/* Whether a map is a log that the kernel saves to: one with cap 0 has control words only, which stay zero. */
bool nt_regions_is_log(const struct neutrino_map *map);

/* Whether a map's values are added up over all launches of the process. */
bool nt_regions_is_of_run(const struct neutrino_map *map);

/* From which word of a record on a map of the run has sums of floating-point numbers, f64; SIZE_MAX: it has none. */
size_t nt_regions_floats_from(const struct neutrino_map *map);

/* Whether the words of its record are combined by their maximum; else they are added. */
bool nt_regions_keeps_greatest(const struct neutrino_map *map);

/* Units of memory in which each log has room for so many records of each thread, warp or block, whichever its level is. */
uint64_t nt_regions_log_units(const struct neutrino_map *maps, unsigned count, const struct nt_extent *extent,
			      uint32_t records);

/*
 * What is left of a launch's regions if each log keeps the first units that it has, at most extent->log_units: ranges in
 * ascending order, which back to back are the regions of an extent with so many units that is in_frame: without the maps per
 * run. Returns how many, from 1 to count + 1.
 */
unsigned nt_regions_ranges(const struct neutrino_map *maps, unsigned count, const struct nt_extent *extent,
			   uint32_t units, struct nt_range *ret);

#endif
