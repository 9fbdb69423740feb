#include "front/audit_object.h"

#include <elf.h>
#include <stddef.h>

/* Whether a text begins with a prefix. This module has no libc. */
bool nt_audit_object_begins(const char *text, const char *prefix)
{
	while (*prefix)
		if (*text++ != *prefix++)
			return false;
	return true;
}

/* Whether two texts are equal. This module has no libc. */
bool nt_audit_object_is_same(const char *a, const char *b)
{
	return nt_audit_object_begins(a, b) && nt_audit_object_begins(b, a);
}

/* The address that an entry of an object's dynamic section has: some versions of the loader relocate these in place. */
static const void *address_of(const struct link_map *object, uint64_t value)
{
	return (const void *)(uintptr_t)(value < object->l_addr ? value + object->l_addr : value);
}

/* The value of the first entry with that tag in an object's dynamic section; 0 if it has none. */
uint64_t nt_audit_object_value(const struct link_map *object, int64_t tag)
{
	for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == tag)
			return entry->d_un.d_val;
	return 0;
}

/*
 * The address of a variable or function that an object (program or library) defines under that name, found in its GNU hash
 * table; NULL if it does not define it.
 */
const void *nt_audit_object_symbol(const struct link_map *object, const char *name)
{
	uint64_t hash_at = nt_audit_object_value(object, DT_GNU_HASH), symbols_at = nt_audit_object_value(object, DT_SYMTAB);
	uint64_t strings_at = nt_audit_object_value(object, DT_STRTAB);
	uint32_t hash = 5381;

	if (!hash_at || !symbols_at || !strings_at)
		return NULL;
	const uint32_t *table = address_of(object, hash_at);
	const ElfW(Sym) *symbols = address_of(object, symbols_at);
	const char *strings = address_of(object, strings_at);
	uint32_t bucket_count = table[0], first = table[1], bloom_words = table[2];
	const uint32_t *buckets = table + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(*table));
	const uint32_t *chain = buckets + bucket_count;

	for (const char *letter = name; *letter; letter++)
		hash = hash * 33 + (unsigned char)*letter;
	uint32_t index = bucket_count ? buckets[hash % bucket_count] : 0;
	for (; index && index >= first; index++) {
		uint32_t value = chain[index - first];
		if ((value | 1) == (hash | 1) && nt_audit_object_is_same(strings + symbols[index].st_name, name))
			return (const void *)(object->l_addr + symbols[index].st_value);
		if (value & 1)
			break;
	}
	return NULL;
}

/* The part of a path after its last slash. */
const char *nt_audit_object_base(const char *path)
{
	const char *ret = path;

	for (; *path; path++)
		if (*path == '/')
			ret = path + 1;
	return ret;
}

/* Whether an object (program or library) depends on a library whose name, without folder, begins so. */
bool nt_audit_object_needs(const struct link_map *object, const char *prefix)
{
	uint64_t strings_at = object->l_ld ? nt_audit_object_value(object, DT_STRTAB) : 0;

	if (!strings_at)
		return false;
	const char *strings = address_of(object, strings_at);
	for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == DT_NEEDED && nt_audit_object_begins(nt_audit_object_base(strings + entry->d_un.d_val), prefix))
			return true;
	return false;
}
