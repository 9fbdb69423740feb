#include "image/image_bytes.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_KIND_PTX 1
#define FATBIN_KIND_ELF 2
#define FATBIN_FLAG_DEBUG 0x2u /* compiled with -G */
#define FATBIN_FLAG_COMPRESSED (0x2000u | 0x8000u) /* by either of two methods */
#define EM_CUDA 190

/* Offsets of fields, and the least sizes of structures, which NVIDIA does not publish. */
enum {
	WRAPPER_CONTAINER = 8, /* u64: address of the container */
	CONTAINER_HEADER_SIZE = 6, /* u16 */
	CONTAINER_SIZE = 8, /* u64: bytes after the header */
	CONTAINER_LEAST = 16,
	ENTRY_KIND = 0, /* u16 */
	ENTRY_HEADER_SIZE = 4, /* u32 */
	ENTRY_PAYLOAD_SIZE = 8, /* u64 */
	ENTRY_NAME_SIZE = 0x24, /* u32: of the source file's name, without NUL; 0: there is none */
	ENTRY_FLAGS = 0x28, /* u64 */
	ENTRY_LEAST = 0x40,
};

/* Read 16 bits at an address that need not be aligned, little-endian as the processor. */
static uint16_t load16(const uint8_t *data)
{
	uint16_t value;
	memcpy(&value, data, sizeof(value));
	return value;
}

/* Read 32 bits at an address that need not be aligned, little-endian as the processor. */
static uint32_t load32(const uint8_t *data)
{
	uint32_t value;
	memcpy(&value, data, sizeof(value));
	return value;
}

/* Read 64 bits at an address that need not be aligned, little-endian as the processor. */
static uint64_t load64(const uint8_t *data)
{
	uint64_t value;
	memcpy(&value, data, sizeof(value));
	return value;
}

/*
 * Whether a cubin (machine code for a GPU, an ELF file) has the section in which ptxas -lineinfo keeps the PTX, by the
 * section's name.
 */
static bool has_debug_ptx(const uint8_t *data, size_t size)
{
	static const char name[] = ".nv_debug_ptx_txt";
	return memmem(data, size, name, sizeof(name)) != NULL;
}

/*
 * Whether size bytes can be read: within limit, or, if that is SIZE_MAX (an image in memory, whose end only its own
 * headers show), in pages that are mapped. The kernel is asked about these in pieces; if it cannot answer, they are
 * taken to be there.
 */
static bool is_mapped(const uint8_t *data, uint64_t size, size_t limit)
{
	enum { PAGES = 1024 };
	unsigned char unused[PAGES];
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data & ~(page - 1);

	if (limit != SIZE_MAX)
		return size <= limit;
	if (size > UINTPTR_MAX - (uintptr_t)data)
		return false;
	for (uintptr_t end = (uintptr_t)data + size; begin < end; begin += PAGES * page) {
		size_t piece = end - begin < PAGES * page ? end - begin : PAGES * page;
		if (mincore((void *)begin, piece, unused) != 0 && errno == ENOMEM)
			return false;
	}
	return true;
}

/*
 * Measure a cubin (machine code for a GPU, an ELF file): its end is that of its last table or section. False if it is
 * no cubin. limit: bytes that may be read; SIZE_MAX if it is not known, so that additions may overflow.
 */
static bool measure_elf(const uint8_t *data, size_t limit, struct nt_image_bytes *ret)
{
	Elf64_Ehdr header;

	if (limit < sizeof(header))
		return false;
	memcpy(&header, data, sizeof(header));
	if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_CUDA)
		return false;

	/* table: the end of the section header table. */
	uint64_t end = sizeof(header);
	uint64_t table = header.e_shoff + (uint64_t)header.e_shnum * sizeof(Elf64_Shdr);
	if (header.e_phoff > SIZE_MAX / 2)
		return false;
	if (header.e_phnum && header.e_phoff + (uint64_t)header.e_phnum * sizeof(Elf64_Phdr) > end)
		end = header.e_phoff + (uint64_t)header.e_phnum * sizeof(Elf64_Phdr);
	if (header.e_shnum) {
		if (table < header.e_shoff || header.e_shentsize != sizeof(Elf64_Shdr) || !is_mapped(data, table, limit))
			return false;
		if (table > end)
			end = table;
		for (unsigned i = 0; i < header.e_shnum; i++) {
			Elf64_Shdr section;
			memcpy(&section, data + header.e_shoff + i * sizeof(section), sizeof(section));
			uint64_t section_end = section.sh_offset + section.sh_size;
			if (section.sh_type != SHT_NOBITS && section_end > end)
				end = section_end;
			if (section_end < section.sh_offset)
				return false;
		}
	}
	if (!is_mapped(data, end, limit))
		return false;
	*ret = (struct nt_image_bytes){data, end, NT_IMAGE_CUBIN, has_debug_ptx(data, end)};
	return true;
}

/*
 * Whether a cubin in a fatbin can hold PTX; of a compressed one by the header of its entry: nvcc names the source file
 * there if it has line information (-lineinfo, -G), without which ptxas keeps no PTX; libnvfatbin always does.
 */
static bool may_have_debug_ptx(const uint8_t *entry, uint64_t header_size, uint64_t payload_size)
{
	uint64_t flags = load64(entry + ENTRY_FLAGS);

	if (flags & FATBIN_FLAG_COMPRESSED)
		return (flags & FATBIN_FLAG_DEBUG) || load32(entry + ENTRY_NAME_SIZE);
	return has_debug_ptx(entry + header_size, payload_size);
}

/*
 * Measure a fatbin container (several images in one) by its header, and look for PTX in its entries. limit: bytes that
 * may be read, or SIZE_MAX. False if it is damaged.
 */
static bool measure_fatbin(const uint8_t *data, size_t limit, struct nt_image_bytes *ret)
{
	if (limit < CONTAINER_LEAST)
		return false;
	uint64_t header_size = load16(data + CONTAINER_HEADER_SIZE), size = load64(data + CONTAINER_SIZE);
	if (header_size < CONTAINER_LEAST || header_size > limit || size > limit - header_size ||
	    !is_mapped(data, header_size + size, limit))
		return false;

	bool has_text = false;
	size_t end = header_size + size;
	for (size_t offset = header_size; offset + ENTRY_LEAST <= end;) {
		const uint8_t *entry = data + offset;
		uint64_t entry_header = load32(entry + ENTRY_HEADER_SIZE), payload = load64(entry + ENTRY_PAYLOAD_SIZE);
		/* A damaged entry: the driver has loaded the image all the same, so what was found before it counts. */
		if (entry_header < ENTRY_LEAST || entry_header > end - offset || payload > end - offset - entry_header)
			break;
		unsigned kind = load16(entry + ENTRY_KIND);
		has_text |= kind == FATBIN_KIND_PTX ||
			   (kind == FATBIN_KIND_ELF && may_have_debug_ptx(entry, entry_header, payload));
		offset += entry_header + payload;
	}
	*ret = (struct nt_image_bytes){data, end, NT_IMAGE_FATBIN, has_text};
	return true;
}

/* Measure PTX text, which ends with NUL or at limit. False if it is not PTX. */
static bool measure_ptx(const uint8_t *data, size_t limit, struct nt_image_bytes *ret)
{
	size_t size = limit == SIZE_MAX ? strlen((const char *)data) : strnlen((const char *)data, limit);

	static const char directive[] = ".version"; /* which every PTX text has */

	if (!size || !memmem(data, size, directive, strlen(directive)))
		return false;
	*ret = (struct nt_image_bytes){data, size, NT_IMAGE_TEXT, true};
	return true;
}

/*
 * Find out the kind, the size and the start of an image (GPU code) that the driver has accepted. limit: bytes that may
 * be read (SIZE_MAX if only the image's own headers show its size). False if its kind is unknown.
 */
bool nt_image_bytes_measure(const void *image, size_t limit, struct nt_image_bytes *ret)
{
	const uint8_t *data = image;

	if (limit < sizeof(uint32_t)) /* of a magic */
		return false;
	if (memcmp(data, ELFMAG, SELFMAG) == 0)
		return measure_elf(data, limit, ret);
	/* A wrapper holds an address, so it can only be in memory; what it points at has no known limit either. */
	if (load32(data) == FATBIN_WRAPPER_MAGIC && limit == SIZE_MAX) {
		const uint8_t *container = (const uint8_t *)(uintptr_t)load64(data + WRAPPER_CONTAINER);
		if (!container || load32(container) != FATBIN_MAGIC)
			return false;
		return measure_fatbin(container, limit, ret);
	}
	if (load32(data) == FATBIN_MAGIC)
		return measure_fatbin(data, limit, ret);
	return measure_ptx(data, limit, ret);
}

/* The name of a kind of image (GPU code of the program): "fatbin", "cubin", "ptx" or "unknown". */
const char *nt_image_bytes_kind(enum nt_image_kind kind)
{
	switch (kind) {
	case NT_IMAGE_FATBIN:
		return "fatbin";
	case NT_IMAGE_CUBIN:
		return "cubin";
	case NT_IMAGE_TEXT:
		return "ptx";
	case NT_IMAGE_UNKNOWN:
		break;
	}
	return "unknown";
}
