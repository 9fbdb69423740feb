#include "entry.h"

#include <string.h>

#include "sha256.h"

_Static_assert(NEUTRINO_LANES == 32, "warps of 32 lanes");

/* count rows of that size at offset lie inside the entry and are aligned. */
static bool rows_fit(size_t entry_size, uint64_t offset, uint64_t count, size_t row)
{
	return offset % 8 == 0 && offset <= entry_size && count <= (entry_size - offset) / row;
}

static bool string_fits(const struct nt_entry *entry, uint64_t offset)
{
	return offset < entry->size && memchr(entry->data + offset, 0, entry->size - offset);
}

static bool kernel_fits(const struct nt_entry *entry, const struct neutrino_twin_kernel *kernel)
{
	if (!kernel->name_offset || !string_fits(entry, kernel->name_offset) ||
	    !string_fits(entry, kernel->twin_offset) || !string_fits(entry, kernel->detail_offset))
		return false;
	if (kernel->reason >= NEUTRINO_REASON_SLOTS || (kernel->reason == 0) != (kernel->twin_offset != 0))
		return false;
	if (kernel->twin_offset && (kernel->image >= entry->header->images || kernel->capped >= entry->header->images))
		return false;
	if (!rows_fit(entry->size, kernel->parameters_offset, kernel->parameters, sizeof(struct neutrino_twin_parameter)) ||
	    !rows_fit(entry->size, kernel->variables_offset, kernel->variables, sizeof(uint64_t)) ||
	    !rows_fit(entry->size, kernel->files_offset, kernel->files, sizeof(struct neutrino_twin_file)))
		return false;
	if (kernel->twin_offset &&
	    kernel->block_size != NEUTRINO_BLOCK_HEADER + NEUTRINO_BLOCK_PER_MAP * entry->header->maps +
					  (uint64_t)NEUTRINO_BLOCK_PER_VARIABLE * kernel->variables)
		return false;
	/* Both go on the stack of the program's thread, and a pointer for each parameter. */
	if (kernel->block_offset > 65536 || kernel->block_size > 65536 || kernel->parameters > kernel->block_offset)
		return false;

	const struct neutrino_twin_parameter *parameters = (const void *)(entry->data + kernel->parameters_offset);
	for (uint32_t i = 0; i < kernel->parameters; i++)
		if (parameters[i].offset > kernel->block_offset ||
		    parameters[i].size > kernel->block_offset - parameters[i].offset)
			return false;
	const uint64_t *variables = (const void *)(entry->data + kernel->variables_offset);
	for (uint32_t i = 0; i < kernel->variables; i++)
		if (!string_fits(entry, variables[i]))
			return false;
	const struct neutrino_twin_file *files = (const void *)(entry->data + kernel->files_offset);
	for (uint32_t i = 0; i < kernel->files; i++) {
		if (!string_fits(entry, files[i].name_offset) || files[i].offset > entry->size ||
		    files[i].size > entry->size - files[i].offset)
			return false;
		/* A name is a name, never a way out of the kernel's folder. */
		const char *name = (const char *)entry->data + files[i].name_offset;
		if (!*name || *name == '.' || strchr(name, '/'))
			return false;
	}
	return true;
}

bool nt_entry_open(const void *data, size_t size, const uint8_t key[32], struct nt_entry *ret)
{
	const struct neutrino_twins_header *header = data;
	const size_t digested = offsetof(struct neutrino_twins_header, digest) + sizeof(header->digest);

	if (size < sizeof(*header) || memcmp(header->magic, NEUTRINO_TWINS_MAGIC, sizeof(header->magic)) != 0 ||
	    header->version != NEUTRINO_TWINS_VERSION || header->reserved != 0 || header->size != size ||
	    memcmp(header->key, key, sizeof(header->key)) != 0)
		return false;

	struct nt_sha256 hash;
	uint8_t digest[32];
	nt_sha256_init(&hash);
	nt_sha256_add(&hash, (const uint8_t *)data + digested, size - digested);
	nt_sha256_finish(&hash, digest);
	if (memcmp(digest, header->digest, sizeof(digest)) != 0)
		return false;

	if (!rows_fit(size, header->maps_offset, header->maps, sizeof(struct neutrino_map)) ||
	    !rows_fit(size, header->kernels_offset, header->kernels, sizeof(struct neutrino_twin_kernel)) ||
	    !rows_fit(size, header->images_offset, header->images, sizeof(struct neutrino_twin_image)) ||
	    header->maps > NEUTRINO_MAX_MAPS)
		return false;

	struct nt_entry entry = {
		.data = data,
		.size = size,
		.header = header,
		.maps = (const void *)((const uint8_t *)data + header->maps_offset),
		.kernels = (const void *)((const uint8_t *)data + header->kernels_offset),
		.images = (const void *)((const uint8_t *)data + header->images_offset),
	};
	for (uint32_t i = 0; i < header->images; i++)
		if (entry.images[i].offset > size || entry.images[i].size > size - entry.images[i].offset)
			return false;
	for (uint32_t i = 0; i < header->maps; i++) {
		const struct neutrino_map *map = &entry.maps[i];
		if (!memchr(map->name, 0, sizeof(map->name)) || map->kind > NEUTRINO_KIND_SUM ||
		    map->level > NEUTRINO_LEVEL_BLOCK || !map->record_size || map->record_size > NEUTRINO_MAX_RECORD ||
		    (map->kind == NEUTRINO_KIND_SUM && map->cap != 1))
			return false;
	}
	for (uint32_t i = 0; i < header->kernels; i++)
		if (!kernel_fits(&entry, &entry.kernels[i]))
			return false;
	*ret = entry;
	return true;
}

const struct neutrino_twin_kernel *nt_entry_find(const struct nt_entry *entry, const char *name)
{
	for (uint32_t i = 0; i < entry->header->kernels; i++)
		if (strcmp((const char *)entry->data + entry->kernels[i].name_offset, name) == 0)
			return &entry->kernels[i];
	return NULL;
}

bool nt_entry_has_twins(const struct nt_entry *entry, uint32_t image)
{
	for (uint32_t i = 0; i < entry->header->kernels; i++)
		if (entry->kernels[i].twin_offset && entry->kernels[i].image == image)
			return true;
	return false;
}

const char *nt_entry_string(const struct nt_entry *entry, uint64_t offset)
{
	return offset ? (const char *)entry->data + offset : NULL;
}

static uint64_t align_up(uint64_t value, uint64_t alignment)
{
	return (value + alignment - 1) / alignment * alignment;
}

/* No region can be that large, so sums of two stay far from overflow. */
#define REGION_LIMIT (UINT64_C(1) << 60)

static bool is_dynamic(const struct neutrino_map *map)
{
	return map->kind == NEUTRINO_KIND_ARRAY && map->cap == NEUTRINO_DYNAMIC_CAP;
}

bool nt_has_dynamic_cap(const struct neutrino_map *maps, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (is_dynamic(&maps[i]))
			return true;
	return false;
}

/* Slots of a map in a launch; false on overflow. */
static bool slots_of(const struct neutrino_map *map, const struct nt_extent *extent, uint64_t *ret)
{
	*ret = map->level == NEUTRINO_LEVEL_BLOCK ? extent->blocks : extent->warps;
	return map->level != NEUTRINO_LEVEL_THREAD || !__builtin_mul_overflow(*ret, (uint64_t)NEUTRINO_LANES, ret);
}

uint32_t nt_sum_copies(uint64_t warps)
{
	uint32_t copies = NEUTRINO_SUM_COPIES_LEAST;

	while (copies < NEUTRINO_SUM_COPIES_MOST && (uint64_t)copies * NEUTRINO_SUM_WARPS_PER_COPY < warps)
		copies *= 2;
	return copies;
}

uint64_t nt_region_of(const struct neutrino_map *map, const struct nt_extent *extent, uint64_t offset,
		      struct nt_region *ret)
{
	uint64_t records_size, counts_size = 0;

	if (offset > REGION_LIMIT)
		return UINT64_MAX;
	if (map->kind == NEUTRINO_KIND_SUM) {
		records_size = nt_sum_copies(extent->warps) * align_up(map->record_size, NEUTRINO_SUM_ALIGN);
	} else {
		uint64_t slots, records;
		uint64_t cap = is_dynamic(map) ? extent->dynamic_cap : map->cap;
		if (!slots_of(map, extent, &slots) || slots > REGION_LIMIT ||
		    __builtin_mul_overflow(slots, cap, &records) ||
		    __builtin_mul_overflow(records, (uint64_t)map->record_size, &records_size) ||
		    records_size > REGION_LIMIT)
			return UINT64_MAX;
		if (map->cap != 1)
			counts_size = slots * 4;
	}
	ret->records = offset;
	ret->records_size = records_size;
	offset = align_up(offset + records_size, NEUTRINO_REGION_ALIGN);
	ret->counts = offset;
	ret->counts_size = counts_size;
	return align_up(offset + counts_size, NEUTRINO_REGION_ALIGN);
}

uint64_t nt_regions_size(const struct neutrino_map *maps, unsigned count, const struct nt_extent *extent)
{
	uint64_t offset = 0;
	struct nt_region region;

	for (unsigned i = 0; i < count && offset != UINT64_MAX; i++)
		offset = nt_region_of(&maps[i], extent, offset, &region);
	return offset;
}
