/* A loaded object of this process (program or shared library), and the contents of its dynamic section. */
#ifndef NEUTRINO_OBJECT_H
#define NEUTRINO_OBJECT_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nt_object {
	ElfW(Addr) base; /* load address: what is added to addresses in the file */
	const ElfW(Phdr) *segments;
	unsigned count;	  /* of segments */
	const char *name; /* as the dynamic loader has it: "" for the program */
};

struct nt_dynamic {
	const ElfW(Sym) *symbols;
	const char *strings;
	size_t strings_size;
	const ElfW(Rela) *tables[2]; /* relocations: of jump slots (DT_JMPREL), and all others (DT_RELA) */
	size_t rows[2];		     /* of each table */
	size_t relative;	     /* rows at the start of the second table that name no symbol */
	const char *soname;
	bool has_rpath;
};

/* The loaded segment that contains size bytes at an address; NULL if none contains all of them. */
const ElfW(Phdr) *nt_object_segment(const struct nt_object *object, uintptr_t address, size_t size);

/* Whether an address is in a loaded segment of the object. */
bool nt_object_holds(const struct nt_object *object, const void *address);

/* Read the dynamic section; false if there is none that can be used. Every pointer in ret is within the object. */
bool nt_object_read(const struct nt_object *object, struct nt_dynamic *ret);

/* The string at an offset in the dynamic string table; NULL if it does not end within the table. */
const char *nt_object_string(const struct nt_dynamic *dynamic, uint64_t offset);

#endif
