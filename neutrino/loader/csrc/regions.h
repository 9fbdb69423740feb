/*
 * Maps in device memory: all that C knows of map types and levels. A launch's maps lie in regions, one after the other;
 * `region_layout` in Python computes the same.
 */
#ifndef NEUTRINO_REGIONS_H
#define NEUTRINO_REGIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "neutrino_layout.h"

struct nt_region {
	uint64_t records;
	uint64_t records_size;
	uint64_t counts; /* valid when counts_size is not 0 */
	uint64_t counts_size;
};

/* What the regions of a launch depend on beside the maps. */
struct nt_extent {
	uint64_t blocks;
	uint64_t warps;		  /* of all blocks */
	uint32_t threads;	  /* of a block */
	uint32_t warps_per_block;
	uint32_t lanes;		  /* of a warp: the kernel's */
	uint32_t dynamic_cap;	  /* records per slot of maps with a dynamic cap */
};

/* The result of nt_extent_of. */
enum nt_extent_result {
	NT_EXTENT,
	NT_EXTENT_INVALID,   /* no block or no thread, or more threads in a block than any device has */
	NT_EXTENT_TOO_LARGE, /* more warps than 32 bits count */
};

/* Extent of a launch of so many blocks of so many threads; dynamic_cap 0. */
enum nt_extent_result nt_extent_of(const uint32_t grid[3], const uint32_t block[3], uint32_t lanes,
				   struct nt_extent *ret);

/* Whether the map is of a type and level that are known, and its sizes are within bounds. */
bool nt_map_is_valid(const struct neutrino_map *map);

/* Region of one map in a launch, starting at offset; returns the offset after it, UINT64_MAX on overflow. */
uint64_t nt_region_of(const struct neutrino_map *map, const struct nt_extent *extent, uint64_t offset,
		      struct nt_region *ret);

/* Bytes of all maps' regions, UINT64_MAX on overflow. */
uint64_t nt_regions_size(const struct neutrino_map *maps, unsigned count, const struct nt_extent *extent);

/* Write the probe block's header and its rows of the maps, whose regions begin at base; returns where they end. */
uint8_t *nt_regions_describe(const struct neutrino_map *maps, unsigned count, const struct nt_extent *extent,
			     uint64_t base, uint8_t *block);

/* Whether any of the maps has a dynamic cap. */
bool nt_has_dynamic_cap(const struct neutrino_map *maps, unsigned count);

/*
 * Records that the fullest slot of maps with a dynamic cap wanted. data: bytes [begin, begin + size) of the launch's
 * regions, begin a multiple of 4.
 */
uint32_t nt_regions_wanted(const struct neutrino_map *maps, unsigned count, const struct nt_extent *extent,
			   const uint8_t *data, uint64_t begin, uint64_t size);

#endif
