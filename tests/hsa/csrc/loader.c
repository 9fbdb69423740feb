/* The loader of code objects: as ROCr's, it takes all segments as one span, and symbols from .symtab if there is one. It
   is strict: what hardware or ROCr relies on is checked, and a code object without it is not loaded. */
#include "stand_in.h"

#include <elf.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DESCRIPTOR_SIZE = 64, CODE_ALIGNMENT = 256 };

struct reader {
	const char *data;
	size_t size;
};

struct executable {
	char *base;
	const char *elf;
	size_t size;
};

struct symbol {
	struct executable *executable;
	const Elf64_Sym *row;
	const char *name;
};

static char problem[256];

const char *hsa_stand_in_problem(void) { return problem; }

#define REFUSE(...) (snprintf(problem, sizeof problem, __VA_ARGS__), HSA_STATUS_ERROR_INVALID_CODE_OBJECT)

hsa_status_t hsa_code_object_reader_create_from_memory(const void *data, size_t size, hsa_code_object_reader_t *reader)
{
	struct reader *made = malloc(sizeof *made);
	if (!made)
		return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
	*made = (struct reader){data, size};
	reader->handle = (uint64_t)made;
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_code_object_reader_destroy(hsa_code_object_reader_t reader)
{
	free((void *)reader.handle);
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_executable_create_alt(hsa_profile_t profile, hsa_default_float_rounding_mode_t mode, const char *options, hsa_executable_t *executable)
{
	executable->handle = (uint64_t)calloc(1, sizeof(struct executable));
	return executable->handle ? HSA_STATUS_SUCCESS : HSA_STATUS_ERROR_OUT_OF_RESOURCES;
}

hsa_status_t hsa_executable_destroy(hsa_executable_t executable) { return HSA_STATUS_SUCCESS; }

static const Elf64_Phdr *segments(const char *elf) { return (const void *)(elf + ((const Elf64_Ehdr *)elf)->e_phoff); }

static const Elf64_Shdr *sections(const char *elf) { return (const void *)(elf + ((const Elf64_Ehdr *)elf)->e_shoff); }

/* The loaded segment that has an address; NULL without one. */
static const Elf64_Phdr *segment_of(const char *elf, uint64_t address, uint64_t size)
{
	const Elf64_Ehdr *header = (const void *)elf;
	for (const Elf64_Phdr *row = segments(elf); row < segments(elf) + header->e_phnum; row++)
		if (row->p_type == PT_LOAD && address >= row->p_vaddr && address + size <= row->p_vaddr + row->p_memsz)
			return row;
	return NULL;
}

/* The table of symbols that ROCr reads. */
static const Elf64_Shdr *symbol_table(const char *elf)
{
	const Elf64_Ehdr *header = (const void *)elf;
	for (unsigned type = SHT_SYMTAB; type; type = type == SHT_SYMTAB ? SHT_DYNSYM : 0)
		for (const Elf64_Shdr *row = sections(elf); row < sections(elf) + header->e_shnum; row++)
			if (row->sh_type == type)
				return row;
	return NULL;
}

static bool is_descriptor(const char *name)
{
	size_t length = strlen(name);
	return length > 3 && !strcmp(name + length - 3, ".kd");
}

static hsa_status_t check_segments(const char *elf, size_t size)
{
	const Elf64_Ehdr *header = (const void *)elf;
	const Elf64_Phdr *previous = NULL;
	if (size < sizeof *header || header->e_phoff + (uint64_t)header->e_phnum * sizeof(Elf64_Phdr) > size
	    || header->e_shoff + (uint64_t)header->e_shnum * sizeof(Elf64_Shdr) > size)
		return REFUSE("the header tables leave the file");
	for (const Elf64_Phdr *row = segments(elf); row < segments(elf) + header->e_phnum; row++) {
		if (row->p_offset + row->p_filesz > size)
			return REFUSE("segment %ld leaves the file", (long)(row - segments(elf)));
		if ((row->p_type == PT_NOTE || row->p_type == PT_DYNAMIC || row->p_type == PT_PHDR)) {
			const Elf64_Phdr *load = segment_of(elf, row->p_vaddr, row->p_memsz);
			if (!load || row->p_vaddr - load->p_vaddr != row->p_offset - load->p_offset)
				return REFUSE("segment %ld is not loaded from where it is", (long)(row - segments(elf)));
		}
		if (row->p_type != PT_LOAD)
			continue;
		if (row->p_align > 1 && (row->p_vaddr - row->p_offset) % row->p_align)
			return REFUSE("segment %ld is not aligned", (long)(row - segments(elf)));
		if (previous && row->p_vaddr < previous->p_vaddr + previous->p_memsz)
			return REFUSE("segment %ld is over the one before", (long)(row - segments(elf)));
		previous = row;
	}
	return HSA_STATUS_SUCCESS;
}

static hsa_status_t check_symbols(const char *elf, size_t size)
{
	const Elf64_Shdr *table = symbol_table(elf);
	if (!table || table->sh_offset + table->sh_size > size)
		return REFUSE("there are no symbols");
	const Elf64_Shdr *strings = sections(elf) + table->sh_link;
	const Elf64_Sym *rows = (const void *)(elf + table->sh_offset);
	for (size_t index = 0; index < table->sh_size / sizeof *rows; index++) {
		if (rows[index].st_name >= strings->sh_size)
			return REFUSE("symbol %zu has no name", index);
		const char *name = elf + strings->sh_offset + rows[index].st_name;
		if (!is_descriptor(name))
			continue;
		const Elf64_Phdr *load = segment_of(elf, rows[index].st_value, DESCRIPTOR_SIZE);
		if (!load || rows[index].st_size != DESCRIPTOR_SIZE || rows[index].st_value % DESCRIPTOR_SIZE)
			return REFUSE("%s is no descriptor", name);
		int64_t entry;
		memcpy(&entry, elf + load->p_offset + rows[index].st_value - load->p_vaddr + 16, sizeof entry);
		const Elf64_Phdr *code = segment_of(elf, rows[index].st_value + entry, 4);
		if (!code || !(code->p_flags & PF_X) || (rows[index].st_value + entry) % CODE_ALIGNMENT)
			return REFUSE("%s has no code", name);
	}
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_executable_load_agent_code_object(hsa_executable_t handle, hsa_agent_t agent, hsa_code_object_reader_t reader, const char *options, hsa_loaded_code_object_t *loaded)
{
	struct executable *executable = (struct executable *)handle.handle;
	const struct reader *read = (const struct reader *)reader.handle;
	const Elf64_Ehdr *header = (const void *)read->data;
	size_t end = 0;
	problem[0] = 0;
	hsa_status_t status = check_segments(read->data, read->size);
	if (status == HSA_STATUS_SUCCESS)
		status = check_symbols(read->data, read->size);
	if (status != HSA_STATUS_SUCCESS)
		return status;
	for (int index = 0; index < header->e_phnum; index++) {
		const Elf64_Phdr *row = segments(read->data) + index;
		if (row->p_type == PT_LOAD && row->p_vaddr + row->p_memsz > end)
			end = row->p_vaddr + row->p_memsz;
	}
	executable->base = stand_in_allocate(end);
	/* What is given here need not stay. */
	char *copy = malloc(read->size);
	if (!executable->base || !copy)
		return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
	memcpy(copy, read->data, read->size);
	for (int index = 0; index < header->e_phnum; index++) {
		const Elf64_Phdr *row = segments(read->data) + index;
		if (row->p_type == PT_LOAD)
			memcpy(executable->base + row->p_vaddr, read->data + row->p_offset, row->p_filesz);
	}
	executable->elf = copy;
	executable->size = read->size;
	if (loaded)
		loaded->handle = handle.handle;
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_executable_agent_global_variable_define(hsa_executable_t executable, hsa_agent_t agent, const char *name, void *address)
{
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_executable_freeze(hsa_executable_t executable, const char *options) { return HSA_STATUS_SUCCESS; }

hsa_status_t hsa_executable_get_symbol_by_name(hsa_executable_t handle, const char *name, const hsa_agent_t *agent, hsa_executable_symbol_t *symbol)
{
	struct executable *executable = (struct executable *)handle.handle;
	const Elf64_Shdr *table = symbol_table(executable->elf);
	const char *names = executable->elf + sections(executable->elf)[table->sh_link].sh_offset;
	const Elf64_Sym *rows = (const void *)(executable->elf + table->sh_offset);
	for (size_t index = 0; index < table->sh_size / sizeof *rows; index++)
		if (rows[index].st_shndx != SHN_UNDEF && !strcmp(names + rows[index].st_name, name)) {
			struct symbol *made = malloc(sizeof *made);
			if (!made)
				return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
			*made = (struct symbol){executable, rows + index, names + rows[index].st_name};
			symbol->handle = (uint64_t)made;
			return HSA_STATUS_SUCCESS;
		}
	snprintf(problem, sizeof problem, "there is no symbol %s", name);
	return HSA_STATUS_ERROR_INVALID_SYMBOL_NAME;
}

hsa_status_t hsa_executable_symbol_get_info(hsa_executable_symbol_t handle, hsa_executable_symbol_info_t attribute, void *value)
{
	const struct symbol *symbol = (const struct symbol *)handle.handle;
	const char *memory = symbol->executable->base + symbol->row->st_value;
	uint32_t sizes[3] = {0};
	if (is_descriptor(symbol->name))
		memcpy(sizes, memory, sizeof sizes);
	switch ((int)attribute) {
	case HSA_EXECUTABLE_SYMBOL_INFO_TYPE:
		*(uint32_t *)value = is_descriptor(symbol->name) ? HSA_SYMBOL_KIND_KERNEL : HSA_SYMBOL_KIND_VARIABLE;
		break;
	case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_OBJECT:
	case HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_ADDRESS:
		*(uint64_t *)value = (uint64_t)memory;
		break;
	case HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_SIZE:
		*(uint32_t *)value = (uint32_t)symbol->row->st_size;
		break;
	case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_GROUP_SEGMENT_SIZE:
		*(uint32_t *)value = sizes[0];
		break;
	case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_PRIVATE_SEGMENT_SIZE:
		*(uint32_t *)value = sizes[1];
		break;
	case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_SIZE:
		*(uint32_t *)value = sizes[2];
		break;
	case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_ALIGNMENT:
		*(uint32_t *)value = 16;
		break;
	default:
		*(uint32_t *)value = 0;
	}
	return HSA_STATUS_SUCCESS;
}

static hsa_status_t query_host_address(const void *device, const void **host)
{
	*host = device;
	return HSA_STATUS_SUCCESS;
}

static hsa_status_t query_segments(hsa_ven_amd_loader_segment_descriptor_t *descriptors, size_t *count)
{
	*count = 0;
	return HSA_STATUS_SUCCESS;
}

static hsa_status_t query_executable(const void *device, hsa_executable_t *executable)
{
	executable->handle = 0;
	return HSA_STATUS_ERROR;
}

static hsa_status_t iterate_code_objects(hsa_executable_t executable, hsa_status_t (*callback)(hsa_executable_t, hsa_loaded_code_object_t, void *), void *data)
{
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_system_get_major_extension_table(uint16_t extension, uint16_t major, size_t size, void *table)
{
	const hsa_ven_amd_loader_1_01_pfn_t functions = {
		.hsa_ven_amd_loader_query_host_address = query_host_address,
		.hsa_ven_amd_loader_query_segment_descriptors = query_segments,
		.hsa_ven_amd_loader_query_executable = query_executable,
		.hsa_ven_amd_loader_executable_iterate_loaded_code_objects = iterate_code_objects,
	};
	memset(table, 0, size);
	if (extension == HSA_EXTENSION_AMD_LOADER)
		memcpy(table, &functions, size < sizeof functions ? size : sizeof functions);
	return HSA_STATUS_SUCCESS;
}
