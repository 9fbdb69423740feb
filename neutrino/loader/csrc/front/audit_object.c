#include "front/audit_object.h"

#include <elf.h>

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

/* The length of a text in bytes, without NUL. This module has no libc. */
size_t nt_audit_object_length(const char *text)
{
	size_t length = 0;

	while (text[length])
		length++;
	return length;
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

/* The symbols of an object, and their names. */
struct symbols {
	const ElfW(Sym) *all;
	const char *names;
};

/* Whether a symbol is a definition of that name. */
static bool is_definition(const struct symbols *symbols, uint32_t index, const char *name)
{
	const ElfW(Sym) *symbol = &symbols->all[index];

	return symbol->st_shndx != SHN_UNDEF && nt_audit_object_is_same(symbols->names + symbol->st_name, name);
}

/* The definition of a name by the GNU hash table, NULL if there is none. */
static const ElfW(Sym) *find_by_gnu_hash(const uint32_t *table, const struct symbols *symbols, const char *name)
{
	uint32_t bucket_count = table[0], first = table[1], bloom_words = table[2];
	const uint32_t *buckets = table + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(*table));
	const uint32_t *chain = buckets + bucket_count;
	uint32_t hash = 5381;

	for (const char *letter = name; *letter; letter++)
		hash = hash * 33 + (unsigned char)*letter;
	uint32_t index = bucket_count ? buckets[hash % bucket_count] : 0;
	for (; index && index >= first; index++) {
		uint32_t value = chain[index - first];
		if ((value | 1) == (hash | 1) && is_definition(symbols, index, name))
			return &symbols->all[index];
		if (value & 1)
			break;
	}
	return NULL;
}

/* The definition of a name by the hash table of System V, NULL if there is none. */
static const ElfW(Sym) *find_by_hash(const uint32_t *table, const struct symbols *symbols, const char *name)
{
	uint32_t bucket_count = table[0];
	const uint32_t *buckets = table + 2, *chain = buckets + bucket_count;
	uint32_t hash = 0;

	for (const char *letter = name; *letter; letter++) {
		hash = (hash << 4) + (unsigned char)*letter;
		hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
	}
	for (uint32_t index = bucket_count ? buckets[hash % bucket_count] : 0; index; index = chain[index])
		if (is_definition(symbols, index, name))
			return &symbols->all[index];
	return NULL;
}

/*
 * The address of a variable or function that an object (program or library) defines under that name, by either hash table:
 * NVRTC and nvJitLink of the first releases of CUDA 12 have that of System V alone. NULL if it does not define it.
 */
const void *nt_audit_object_symbol(const struct link_map *object, const char *name)
{
	uint64_t gnu_at = nt_audit_object_value(object, DT_GNU_HASH), hash_at = nt_audit_object_value(object, DT_HASH);
	uint64_t symbols_at = nt_audit_object_value(object, DT_SYMTAB), strings_at = nt_audit_object_value(object, DT_STRTAB);

	if ((!gnu_at && !hash_at) || !symbols_at || !strings_at)
		return NULL;
	struct symbols symbols = {address_of(object, symbols_at), address_of(object, strings_at)};
	const ElfW(Sym) *found = gnu_at ? find_by_gnu_hash(address_of(object, gnu_at), &symbols, name) :
					  find_by_hash(address_of(object, hash_at), &symbols, name);
	return found ? (const void *)(object->l_addr + found->st_value) : NULL;
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
