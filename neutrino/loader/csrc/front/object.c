#include "front/object.h"

#include <string.h>

/* The loaded segment of an object that contains size bytes at an address; NULL if none contains all of them. */
const ElfW(Phdr) *nt_object_segment(const struct nt_object *object, uintptr_t address, size_t size)
{
	for (unsigned i = 0; i < object->count; i++) {
		const ElfW(Phdr) *segment = &object->segments[i];
		uintptr_t offset = address - (object->base + segment->p_vaddr);
		if (segment->p_type == PT_LOAD && offset < segment->p_memsz && size <= segment->p_memsz - offset)
			return segment;
	}
	return NULL;
}

/* Whether an address is in a loaded segment of the object. */
bool nt_object_holds(const struct nt_object *object, const void *address)
{
	return nt_object_segment(object, (uintptr_t)address, 1);
}

/*
 * The address of a table of size bytes, by a value of the dynamic section; NULL if it is not in the object. The dynamic
 * loader adds the load address to these values in memory, but not if the section is read-only.
 */
static const void *pointer_of(const struct nt_object *object, uint64_t value, size_t size)
{
	if (nt_object_segment(object, value, size))
		return (const void *)value;
	if (nt_object_segment(object, object->base + value, size))
		return (const void *)(object->base + value);
	return NULL;
}

/* The rows of the dynamic section, and their number in *count; NULL without one. */
static const ElfW(Dyn) *dynamic_of(const struct nt_object *object, size_t *count)
{
	for (unsigned i = 0; i < object->count; i++) {
		const ElfW(Phdr) *segment = &object->segments[i];
		uintptr_t start = object->base + segment->p_vaddr;
		if (segment->p_type != PT_DYNAMIC || !nt_object_segment(object, start, segment->p_memsz) ||
		    start % sizeof(uint64_t))
			continue;
		*count = segment->p_memsz / sizeof(ElfW(Dyn));
		return (const ElfW(Dyn) *)start;
	}
	return NULL;
}

/* The string at an offset in an object's dynamic string table; NULL if it does not end within the table. */
const char *nt_object_string(const struct nt_dynamic *dynamic, uint64_t offset)
{
	if (!dynamic->strings || offset >= dynamic->strings_size ||
	    !memchr(dynamic->strings + offset, 0, dynamic->strings_size - offset))
		return NULL;
	return dynamic->strings + offset;
}

/*
 * Read a loaded object's dynamic section: its symbols, strings and relocations. False if there is none that can be
 * used. Every pointer in ret is within the object.
 */
bool nt_object_read(const struct nt_object *object, struct nt_dynamic *ret)
{
	enum { TAGS = DT_JMPREL + 1 }; /* the tags below this are all that is needed, except for DT_RELACOUNT */
	uint64_t values[TAGS] = {0}, relative = 0; /* values: by tag; relative: that of DT_RELACOUNT */
	size_t count;
	const ElfW(Dyn) *rows = dynamic_of(object, &count);

	if (!rows)
		return false;
	*ret = (struct nt_dynamic){0};
	for (size_t i = 0; i < count && rows[i].d_tag != DT_NULL; i++) {
		if (rows[i].d_tag > 0 && rows[i].d_tag < TAGS)
			values[rows[i].d_tag] = rows[i].d_un.d_val;
		ret->has_rpath |= rows[i].d_tag == DT_RPATH;
		if (rows[i].d_tag == DT_RELACOUNT)
			relative = rows[i].d_un.d_val;
	}
	ret->strings_size = values[DT_STRSZ];
	ret->strings = pointer_of(object, values[DT_STRTAB], ret->strings_size);
	ret->symbols = pointer_of(object, values[DT_SYMTAB], sizeof(ElfW(Sym)));
	if (values[DT_SONAME])
		ret->soname = nt_object_string(ret, values[DT_SONAME]);
	/* Table 0: jump slots; table 1: all other relocations. Only with addends (RELA), as this processor has them. */
	if (values[DT_PLTRELSZ] && values[DT_PLTREL] == DT_RELA) {
		ret->tables[0] = pointer_of(object, values[DT_JMPREL], values[DT_PLTRELSZ]);
		ret->rows[0] = ret->tables[0] ? values[DT_PLTRELSZ] / sizeof(ElfW(Rela)) : 0;
	}
	if (values[DT_RELASZ]) {
		ret->tables[1] = pointer_of(object, values[DT_RELA], values[DT_RELASZ]);
		ret->rows[1] = ret->tables[1] ? values[DT_RELASZ] / sizeof(ElfW(Rela)) : 0;
		ret->relative = relative < ret->rows[1] ? relative : ret->rows[1];
	}
	return ret->strings && ret->symbols;
}
