/* An object of this process, as the dynamic loader has it in memory, and what its dynamic section says. */
#ifndef NEUTRINO_OBJECT_H
#define NEUTRINO_OBJECT_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nt_object {
	ElfW(Addr) base;
	const ElfW(Phdr) *segments;
	unsigned count;
	const char *name; /* as the dynamic loader has it: "" for the program */
};

struct nt_dynamic {
	const ElfW(Sym) *symbols;
	const char *strings;
	size_t strings_size;
	const ElfW(Rela) *tables[2]; /* of jump slots, of the others */
	size_t rows[2];
	size_t relative; /* rows at the start of the second that name no symbol */
	const char *soname;
	bool has_rpath;
};

/* The segment that size bytes at an address lie in; NULL: in none, or not wholly. */
const ElfW(Phdr) *nt_object_segment(const struct nt_object *object, uintptr_t address, size_t size);

bool nt_object_holds(const struct nt_object *object, const void *address);

/* False when there is no dynamic section that can be used. */
bool nt_object_read(const struct nt_object *object, struct nt_dynamic *ret);

/* A string of the dynamic section; NULL when it is not in the table whole. */
const char *nt_object_string(const struct nt_dynamic *dynamic, uint64_t offset);

#endif
