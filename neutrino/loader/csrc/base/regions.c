#include "base/regions.h"

#include <string.h>

/*
 * A map's records lie in slots, as many as its level has in the launch, each with room for cap records and, unless that
 * is 1, a count of them; or in copies, a record of the whole launch in each; or in chunks, which threads take.
 */
struct map_type {
	enum neutrino_map_layout layout;
	uint64_t copies_bytes; /* what the copies may take together; 0: no limit */
	uint32_t counts_one;   /* slots with room for one record count what was saved, too */
	bool takes_per;	       /* whether its results may be those of blocks, warps and so on */
	bool keeps_greatest;   /* words are combined by their maximum, not their sum */
	uint64_t counts_first; /* words with counts before sums of floating-point numbers */
};

static const struct map_type map_types[] = {NEUTRINO_MAP_TYPES};

#define MAP_TYPES (sizeof(map_types) / sizeof(map_types[0]))

/* No region can be that large, so sums of two stay far from overflow. */
#define REGION_LIMIT (UINT64_C(1) << 60)

#define MOST_THREADS 65535u /* of a block: more than any device accepts */

/* The least multiple of alignment, a power of two, that is not below value. */
static uint64_t align_up(uint64_t value, uint64_t alignment)
{
	return (value + alignment - 1) & ~(alignment - 1);
}

/*
 * Compute the sizes of a launch (blocks, warps, threads) from its grid (in blocks) and block (in threads). lanes:
 * threads of a warp. ret->log_units is 0, for the caller to set. NT_EXTENT if that is possible, else why not.
 */
enum nt_extent_result nt_regions_extent(const uint32_t grid[3], const uint32_t block[3], uint32_t lanes,
					struct nt_extent *ret)
{
	uint64_t threads = (uint64_t)block[0] * block[1] * block[2];

	if (threads == 0 || threads > MOST_THREADS)
		return NT_EXTENT_INVALID;
	*ret = (struct nt_extent){.threads = (uint32_t)threads, .lanes = lanes,
				  .warps_per_block = (uint32_t)((threads + lanes - 1) / lanes)};
	if (__builtin_mul_overflow((uint64_t)grid[0] * grid[1], (uint64_t)grid[2], &ret->blocks) ||
	    __builtin_mul_overflow(ret->blocks, (uint64_t)ret->warps_per_block, &ret->warps) || ret->warps > UINT32_MAX)
		return NT_EXTENT_TOO_LARGE;
	return ret->blocks ? NT_EXTENT : NT_EXTENT_INVALID;
}

/*
 * Whether the description of a map (a store that probes write their results to) can be used: its type and level are
 * known, and its sizes are within their limits.
 */
bool nt_regions_is_valid(const struct neutrino_map *map)
{
	if (map->kind >= MAP_TYPES || map->level > NEUTRINO_LEVEL_BLOCK || map->per > NEUTRINO_PER_RUN_OF_FLOATS)
		return false;
	const struct map_type *type = &map_types[map->kind];
	return memchr(map->name, 0, sizeof(map->name)) && (type->takes_per || !map->per) &&
	       (!nt_regions_is_of_run(map) || map->record_size % sizeof(uint64_t) == 0) && map->record_size &&
	       map->record_size <= (type->layout == NEUTRINO_IN_COPIES ? NEUTRINO_MAX_TABLE : NEUTRINO_MAX_RECORD) &&
	       (type->layout == NEUTRINO_IN_SLOTS ? map->cap : map->cap == 1);
}

/*
 * Whether a launch adds to what an earlier one left in the same memory, so that several launches may share it: so it is
 * if no map (a store of probe results) has slots, which a launch writes anew.
 */
bool nt_regions_add_up(const struct neutrino_map *maps, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (map_types[maps[i].kind].layout == NEUTRINO_IN_SLOTS)
			return false;
	return true;
}

/*
 * Whether a map (a store of probe results) is a log that the kernel saves to: one with cap 0 has control words only,
 * which stay zero.
 */
bool nt_regions_is_log(const struct neutrino_map *map)
{
	return map_types[map->kind].layout == NEUTRINO_IN_CHUNKS && map->cap;
}

/*
 * Whether a map (a store of probe results) has one result for the whole process: its values are added up over all
 * launches.
 */
bool nt_regions_is_of_run(const struct neutrino_map *map)
{
	return map->per == NEUTRINO_PER_RUN || map->per == NEUTRINO_PER_RUN_OF_FLOATS;
}

/* From which word of a record on a map that has one result for the process has sums of f64; SIZE_MAX: it has none. */
size_t nt_regions_floats_from(const struct neutrino_map *map)
{
	return map->per == NEUTRINO_PER_RUN_OF_FLOATS ? map_types[map->kind].counts_first : SIZE_MAX;
}

/*
 * Whether two records of the map (a store of probe results) are combined word by word by their maximum; else by their
 * sum.
 */
bool nt_regions_keeps_greatest(const struct neutrino_map *map)
{
	return map_types[map->kind].keeps_greatest;
}

/*
 * How many slots a map (a store of probe results) has in a launch of that extent: one for each thread, warp or block,
 * whichever its level is. False on overflow.
 */
static bool slots_of(const struct neutrino_map *map, const struct nt_extent *extent, uint64_t *ret)
{
	*ret = map->level == NEUTRINO_LEVEL_BLOCK ? extent->blocks : extent->warps;
	return map->level != NEUTRINO_LEVEL_THREAD || !__builtin_mul_overflow(*ret, (uint64_t)extent->lanes, ret);
}

/*
 * Units of memory (NEUTRINO_LOG_UNIT bytes) in which each log has room for so many records of each thread, warp or
 * block, whichever its level is. 0 without logs (to which threads append records); REGION_LIMIT if it would be far too
 * much.
 */
uint64_t nt_regions_log_units(const struct neutrino_map *maps, unsigned count, const struct nt_extent *extent,
			      uint32_t records)
{
	uint64_t most = 0, slots;

	for (unsigned i = 0; i < count; i++) {
		if (!nt_regions_is_log(&maps[i]))
			continue;
		if (!slots_of(&maps[i], extent, &slots) || slots > REGION_LIMIT / ((uint64_t)records * NEUTRINO_MAX_RECORD))
			return REGION_LIMIT;
		/* A unit for the headers of chunks, which lanes share as a rule. */
		uint64_t units = slots * (1 + (uint64_t)records * maps[i].record_size / NEUTRINO_LOG_UNIT);
		most = units > most ? units : most;
	}
	return most;
}

/*
 * The number of copies that a record has in a launch with so many warps, a power of 2. Warps add to different copies,
 * so that fewer of them wait for each other.
 */
static uint32_t copies_in(uint64_t warps)
{
	uint32_t copies = NEUTRINO_COPIES_LEAST;

	while (copies < NEUTRINO_COPIES_MOST && (uint64_t)copies * NEUTRINO_WARPS_PER_COPY < warps)
		copies *= 2;
	return copies;
}

/*
 * The bytes of all copies of a record of record_size bytes in a launch with so many warps: fewer copies than copies_in
 * says if the map's type limits their size.
 */
static uint64_t copies_size(const struct map_type *type, uint32_t record_size, uint64_t warps)
{
	uint64_t stride = align_up(record_size, NEUTRINO_COPY_ALIGN);
	uint32_t copies = copies_in(warps);

	while (type->copies_bytes && copies > 1 && copies * stride > type->copies_bytes)
		copies /= 2;
	return copies * stride;
}

/*
 * The bytes of a map's rows: one for each block, warp, thread or multiprocessor (whose result each is), after one that
 * belongs to none. False if that is too much.
 */
static bool rows_size(const struct neutrino_map *map, const struct nt_extent *extent, uint64_t *ret)
{
	bool is_sm = map->per == NEUTRINO_PER_SM;
	uint64_t rows = is_sm ? NEUTRINO_SM_ROWS : map->per == NEUTRINO_PER_BLOCK ? extent->blocks : extent->warps;
	uint64_t stride = align_up(map->record_size, is_sm ? NEUTRINO_COPY_ALIGN : NEUTRINO_ROW_ALIGN);

	/* Warps are counted by 32 bits. */
	if (map->per == NEUTRINO_PER_THREAD)
		rows *= extent->lanes;
	return rows <= REGION_LIMIT && !__builtin_mul_overflow(rows + 1, stride, ret) && *ret <= REGION_LIMIT;
}

/*
 * Compute where the memory of one map (a store of probe results) is in a launch of that extent, if it begins at offset
 * (in bytes): its records and counts. Returns the offset after it, where the next map's begins; UINT64_MAX on overflow.
 */
uint64_t nt_regions_region(const struct neutrino_map *map, const struct nt_extent *extent, uint64_t offset,
			   struct nt_region *ret)
{
	const struct map_type *type = &map_types[map->kind];
	uint64_t records_size, counts_size = 0;

	if (offset > REGION_LIMIT)
		return UINT64_MAX;
	if (nt_regions_is_of_run(map) && extent->in_frame) {
		records_size = 0;
	} else if (map->per && !nt_regions_is_of_run(map)) {
		if (!rows_size(map, extent, &records_size))
			return UINT64_MAX;
	} else if (type->layout == NEUTRINO_IN_COPIES) {
		records_size = copies_size(type, map->record_size, extent->warps);
	} else if (type->layout == NEUTRINO_IN_CHUNKS) {
		records_size = NEUTRINO_LOG_CONTROL + (uint64_t)map->cap * extent->log_units * NEUTRINO_LOG_UNIT;
	} else {
		uint64_t slots, records;
		if (!slots_of(map, extent, &slots) || slots > REGION_LIMIT ||
		    __builtin_mul_overflow(slots, (uint64_t)map->cap, &records) ||
		    __builtin_mul_overflow(records, (uint64_t)map->record_size, &records_size) ||
		    records_size > REGION_LIMIT)
			return UINT64_MAX;
		if (map->cap != 1 || type->counts_one)
			counts_size = slots * sizeof(uint32_t);
	}
	ret->records = offset;
	ret->records_size = records_size;
	offset = align_up(offset + records_size, NEUTRINO_REGION_ALIGN);
	ret->counts = offset;
	ret->counts_size = counts_size;
	return align_up(offset + counts_size, NEUTRINO_REGION_ALIGN);
}

/*
 * The bytes of device memory that all maps (stores of probe results) of a kernel take in a launch of that
 * extent; UINT64_MAX on overflow.
 */
uint64_t nt_regions_size(const struct neutrino_map *maps, unsigned count, const struct nt_extent *extent)
{
	uint64_t offset = 0;
	struct nt_region region;

	for (unsigned i = 0; i < count && offset != UINT64_MAX; i++)
		offset = nt_regions_region(&maps[i], extent, offset, &region);
	return offset;
}

/*
 * Write the head of the probe block (the parameter by which a kernel's copy with probes finds its maps, the stores of
 * results) and a row for each map, whose memory begins at base: a device address, or with a cell (its device address,
 * else 0) what must be added to the cell's value to have one. Returns the address in block after them.
 */
uint8_t *nt_regions_describe(const struct neutrino_map *maps, unsigned count, const struct nt_extent *extent,
			     uint64_t base, uint64_t cell, uint8_t *block)
{
	uint64_t offset = 0;
	/* copy_mask: a warp's number under it is the copy that it adds to, as copies_in is a power of 2. */
	const struct {
		uint32_t warps_per_block, warp_capacity, zero, copy_mask;
		uint64_t cell;
	} header = {
		extent->warps_per_block, (uint32_t)extent->warps, 0, copies_in(extent->warps) - 1, cell,
	};

	_Static_assert(sizeof(header) == NEUTRINO_BLOCK_HEADER, "the probe block's header");
	/* Only where there is room for what they save beyond. */
	uint32_t first = extent->log_first * extent->warps + extent->log_beyond <= extent->log_units ? extent->log_first : 0;

	memcpy(block, &header, sizeof(header));
	block += sizeof(header);
	for (unsigned i = 0; i < count; i++) {
		struct nt_region region;
		offset = nt_regions_region(&maps[i], extent, offset, &region);
		uint64_t row[NEUTRINO_BLOCK_PER_MAP / 8] = {base + region.records,
							    region.counts_size ? base + region.counts : 0};
		if (nt_regions_is_log(&maps[i]))
			row[1] = extent->log_units | (uint64_t)first << 32;
		memcpy(block, row, sizeof(row));
		block += sizeof(row);
	}
	return block;
}

/*
 * Which parts of a launch's memory are to be copied if each log (a map to which threads append records) keeps only its
 * first `units`, at most extent->log_units: ranges in ascending order, without maps that have one result for the
 * process. Back to back they are the memory of an extent with so many units that is in_frame. ret has room for count +
 * 1; returns how many, from 1 on.
 */
unsigned nt_regions_ranges(const struct neutrino_map *maps, unsigned count, const struct nt_extent *extent,
			   uint32_t units, struct nt_range *ret)
{
	uint64_t offset = 0, kept_offset = 0, begin = 0, kept_begin = 0;
	struct nt_extent kept = *extent;
	unsigned ranges = 0;

	kept.log_units = units;
	kept.in_frame = true;
	for (unsigned i = 0; i < count; i++) {
		struct nt_region region;
		/* A map per run is left out: a range ends before it, and the next one begins after it. */
		if (nt_regions_is_of_run(&maps[i]) && kept_offset > kept_begin)
			ret[ranges++] = (struct nt_range){begin, kept_offset - kept_begin};
		offset = nt_regions_region(&maps[i], extent, offset, &region);
		kept_offset = nt_regions_region(&maps[i], &kept, kept_offset, &region);
		if (nt_regions_is_of_run(&maps[i])) {
			begin = offset;
			kept_begin = kept_offset;
			continue;
		}
		/* A range ends with a log, after which the next map is further away. */
		if (!nt_regions_is_log(&maps[i]) && i + 1 < count)
			continue;
		ret[ranges++] = (struct nt_range){begin, kept_offset - kept_begin};
		begin = offset;
		kept_begin = kept_offset;
	}
	/* Also where all maps are per run. */
	if (!ranges)
		ret[ranges++] = (struct nt_range){0, 0};
	return ranges;
}
