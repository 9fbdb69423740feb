#include "image/entry.h"

#include <string.h>

#include "base/hash_table.h"
#include "base/memory.h"
#include "base/regions.h"
#include "base/sha256.h"

#define MOST_PARAMETERS_SIZE 65536u /* bytes, at most, of a kernel's parameters, and of its probe block */

/*
 * Whether `count` rows of row_size bytes at an offset are within an entry (a file or buffer of entry_size bytes), and
 * begin at a multiple of 8.
 */
static bool rows_fit(size_t entry_size, uint64_t offset, uint64_t count, size_t row_size)
{
	return offset % 8 == 0 && offset <= entry_size && count <= (entry_size - offset) / row_size;
}

/* Whether a NUL-terminated string begins at an offset and ends within the entry (an image's kernels with probes). */
static bool string_fits(const struct nt_entry *entry, uint64_t offset)
{
	return offset < entry->size && memchr(entry->data + offset, 0, entry->size - offset);
}

/*
 * Whether everything that a kernel's row in an entry (an image's kernels with probes) refers to is within the entry,
 * and its sizes are such that it can be launched. Checks only; an entry comes from a file or another process.
 */
static bool kernel_fits(const struct nt_entry *entry, const struct neutrino_twin_kernel *kernel)
{
	if (!kernel->name_offset || !string_fits(entry, kernel->name_offset) ||
	    !string_fits(entry, kernel->twin_offset) || !string_fits(entry, kernel->detail_offset))
		return false;
	/* A probed kernel has a twin, all others have none (offset 0). */
	if (kernel->reason >= NEUTRINO_REASON_SLOTS ||
	    (kernel->reason == NEUTRINO_REASON_PROBED) != (kernel->twin_offset != 0))
		return false;
	if (kernel->twin_offset && (kernel->image >= entry->header->images || kernel->capped >= entry->header->images))
		return false;
	if (kernel->fewer_blocks > NEUTRINO_FEWER_ALL_FIT)
		return false;
	if (kernel->lanes != 0 && kernel->lanes != 32 && kernel->lanes != 64)
		return false;
	if (!rows_fit(entry->size, kernel->parameters_offset, kernel->parameters, sizeof(struct neutrino_twin_parameter)) ||
	    !rows_fit(entry->size, kernel->variables_offset, kernel->variables, sizeof(uint64_t)) ||
	    !rows_fit(entry->size, kernel->files_offset, kernel->files, sizeof(struct neutrino_twin_file)))
		return false;
	if (kernel->twin_offset &&
	    kernel->block_size != NEUTRINO_BLOCK_HEADER + NEUTRINO_BLOCK_PER_MAP * entry->header->maps +
					  (uint64_t)NEUTRINO_BLOCK_PER_VARIABLE * kernel->variables)
		return false;
	/* A launch puts the parameters, the block, and a pointer for each on the stack of the program's thread. */
	if (kernel->block_offset > MOST_PARAMETERS_SIZE || kernel->block_size > MOST_PARAMETERS_SIZE)
		return false;
	/* The block follows the parameters, each of which has at least a byte. */
	if (kernel->parameters > kernel->block_offset)
		return false;

	const struct neutrino_twin_parameter *parameters = (const void *)(entry->data + kernel->parameters_offset);
	for (uint32_t i = 0; i < kernel->parameters; i++)
		if (parameters[i].offset > kernel->block_offset ||
		    parameters[i].size > kernel->block_offset - parameters[i].offset)
			return false;
	const uint64_t *variables = (const void *)(entry->data + kernel->variables_offset);
	for (uint32_t i = 0; i < kernel->variables; i++)
		if (!variables[i] || !string_fits(entry, variables[i]))
			return false;
	const struct neutrino_twin_file *files = (const void *)(entry->data + kernel->files_offset);
	for (uint32_t i = 0; i < kernel->files; i++) {
		if (!files[i].name_offset || !string_fits(entry, files[i].name_offset) || files[i].offset > entry->size ||
		    files[i].size > entry->size - files[i].offset)
			return false;
		/* A plain name: a path could lead out of the kernel's folder. */
		const char *name = (const char *)entry->data + files[i].name_offset;
		if (!*name || *name == '.' || strchr(name, '/'))
			return false;
	}
	return true;
}

/*
 * Check an entry (the kernels with probes of one image, as the cache holds them): its size, digest, key and every
 * offset; false if anything is wrong. ret refers to data, which must be 8-byte aligned and stay unchanged.
 */
bool nt_entry_open(const void *data, size_t size, const uint8_t key[32], struct nt_entry *ret)
{
	const struct neutrino_twins_header *header = data;
	/* The digest covers all that follows it. */
	const size_t digest_end = offsetof(struct neutrino_twins_header, digest) + sizeof(header->digest);

	if (size < sizeof(*header) || memcmp(header->magic, NEUTRINO_TWINS_MAGIC, sizeof(header->magic)) != 0 ||
	    header->version != NEUTRINO_TWINS_VERSION || header->reserved != 0 || header->size != size ||
	    memcmp(header->key, key, sizeof(header->key)) != 0)
		return false;

	struct nt_sha256 hash;
	uint8_t digest[32];
	nt_sha256_init(&hash);
	nt_sha256_add(&hash, (const uint8_t *)data + digest_end, size - digest_end);
	nt_sha256_finish(&hash, digest);
	if (memcmp(digest, header->digest, sizeof(digest)) != 0)
		return false;

	if (!rows_fit(size, header->maps_offset, header->maps, sizeof(struct neutrino_map)) ||
	    !rows_fit(size, header->kernels_offset, header->kernels, sizeof(struct neutrino_twin_kernel)) ||
	    !rows_fit(size, header->images_offset, header->images, sizeof(struct neutrino_twin_image)) ||
	    header->maps > NEUTRINO_MAX_MAPS || header->unused_logs > 1)
		return false;
	uint64_t kernels_end = header->kernels_offset + header->kernels * sizeof(struct neutrino_twin_kernel);
	if (header->unused_logs && !rows_fit(size, kernels_end, header->kernels, sizeof(uint64_t)))
		return false;

	struct nt_entry entry = {
		.data = data,
		.size = size,
		.header = header,
		.maps = (const void *)((const uint8_t *)data + header->maps_offset),
		.kernels = (const void *)((const uint8_t *)data + header->kernels_offset),
		.images = (const void *)((const uint8_t *)data + header->images_offset),
		.unused_logs = header->unused_logs ? (const void *)((const uint8_t *)data + kernels_end) : NULL,
	};
	uint64_t logs = 0;
	for (uint32_t i = 0; i < header->images; i++)
		if (entry.images[i].offset > size || entry.images[i].size > size - entry.images[i].offset)
			return false;
	for (uint32_t i = 0; i < header->maps; i++) {
		if (!nt_regions_is_valid(&entry.maps[i]))
			return false;
		logs |= (uint64_t)nt_regions_is_log(&entry.maps[i]) << i;
	}
	for (uint32_t i = 0; i < header->kernels; i++)
		if (!kernel_fits(&entry, &entry.kernels[i]) || (entry.unused_logs && entry.unused_logs[i] & ~logs))
			return false;
	*ret = entry;
	return true;
}

/*
 * The mangled name of the kernel in that row of an entry (an image's kernels with probes), NUL-terminated; it is a part
 * of the entry.
 */
static const char *name_of(const struct nt_entry *entry, uint32_t row)
{
	return (const char *)entry->data + entry->kernels[row].name_offset;
}

/*
 * Build a hash index of an entry's kernels by name, so that nt_entry_find need not search them all. Without memory
 * there is none, and the search goes on as before.
 */
void nt_entry_index(struct nt_entry *entry)
{
	uint32_t bits = 4;

	while (bits < 31 && 1u << bits < 2 * (uint64_t)entry->header->kernels)
		bits++;
	uint32_t *index = nt_memory_alloc_zeroed((size_t)1 << bits, sizeof(*index)), mask = (1u << bits) - 1;
	if (!index)
		return;
	for (uint32_t row = 0; row < entry->header->kernels; row++) {
		uint32_t i = (uint32_t)nt_hash_text(name_of(entry, row)) & mask;
		while (index[i])
			i = (i + 1) & mask;
		index[i] = row + 1;
	}
	entry->index = index;
	entry->index_bits = bits;
}

/*
 * The row of the kernel with that mangled name in an entry (an image's kernels with probes), NULL if it has none. By
 * the index if there is one.
 */
const struct neutrino_twin_kernel *nt_entry_find(const struct nt_entry *entry, const char *name)
{
	uint32_t mask = (1u << entry->index_bits) - 1;

	if (entry->index) {
		/* At most half of the index is filled. Of two rows with one name the first is found, as by the search. */
		for (uint32_t i = (uint32_t)nt_hash_text(name) & mask; entry->index[i]; i = (i + 1) & mask) {
			NT_COUNT_STEP();
			if (strcmp(name_of(entry, entry->index[i] - 1), name) == 0)
				return &entry->kernels[entry->index[i] - 1];
		}
		return NULL;
	}
	for (uint32_t i = 0; i < entry->header->kernels; i++)
		if (strcmp((const char *)entry->data + entry->kernels[i].name_offset, name) == 0)
			return &entry->kernels[i];
	return NULL;
}

/*
 * Copy an entry's maps (stores that probes write to) as a kernel's twin (copy with probes) has them: logs (to which
 * threads append records) that it never saves to have cap 0. For nt_memory_free; NULL without memory.
 */
struct neutrino_map *nt_entry_maps(const struct nt_entry *entry, const struct neutrino_twin_kernel *kernel)
{
	uint64_t unused = entry->unused_logs ? entry->unused_logs[kernel - entry->kernels] : 0;
	size_t size = entry->header->maps * sizeof(struct neutrino_map);
	struct neutrino_map *maps = nt_memory_alloc(size + 1);

	if (!maps)
		return NULL;
	memcpy(maps, entry->maps, size);
	for (uint32_t i = 0; i < entry->header->maps; i++)
		if (unused >> i & 1)
			maps[i].cap = 0;
	return maps;
}

/*
 * Whether the image of that index in an entry (an image's kernels with probes) has the twin of any kernel; twins
 * (copies with probes) with fewer registers (under a register cap) do not count.
 */
bool nt_entry_has_twins(const struct nt_entry *entry, uint32_t image)
{
	for (uint32_t i = 0; i < entry->header->kernels; i++)
		if (entry->kernels[i].twin_offset && entry->kernels[i].image == image)
			return true;
	return false;
}

/*
 * The NUL-terminated string at an offset of an entry (an image's kernels with probes), a part of it; NULL for offset 0.
 */
const char *nt_entry_string(const struct nt_entry *entry, uint64_t offset)
{
	return offset ? (const char *)entry->data + offset : NULL;
}
