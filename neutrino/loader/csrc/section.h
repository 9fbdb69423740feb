/*
 * The .neutrino section of a patched file, found in memory: of the loaded object that an image lies in.
 *
 * What is found stays valid as long as the image does, that is while the program's call that loads it lasts: the object
 * holds both.
 */
#ifndef NEUTRINO_SECTION_H
#define NEUTRINO_SECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "image_bytes.h"
#include "neutrino_layout.h"

#define NT_SECTION_PATH 1024 /* longer paths are truncated in events */

enum nt_section_answer {
	NT_SECTION_NONE,    /* the image lies in no patched file */
	NT_SECTION_UNSOUND, /* its file has a section that cannot be used */
	NT_SECTION_OTHER_VERSION, /* ... because another version of Neutrino wrote it */
	NT_SECTION_OTHER,   /* its file is patched, but has no twins of this image for this device */
	NT_SECTION_FOUND,
};

struct nt_section_twins {
	const struct neutrino_section_header *section;
	char library[NT_SECTION_PATH];
	uint8_t key[32]; /* of the entry */
	const uint8_t *entry;
	size_t entry_size;
};

/*
 * The entry for an image on a device of that architecture ("sm_90"); embedded: the embedded device in place of a GPU.
 * Unless the answer is NONE, ret->library is the path of the object.
 */
enum nt_section_answer nt_section_find(const struct nt_image_bytes *image, const char *arch, bool embedded,
				       struct nt_section_twins *ret);

/*
 * Twins of that section are used: what they were made from goes into the trace, once. Only what nt_section_find has
 * just found.
 */
void nt_section_use(const struct nt_section_twins *twins);

/* Names of the probes in all loaded objects' sections, each once, and the version that wrote the first of them. */
void nt_section_names(char *names, size_t names_size, char *maker, size_t maker_size);

/*
 * Call each with the path of every patched object that is loaded now, none of whose twins was used. Returns how many
 * there are.
 */
unsigned nt_section_unused(void (*each)(const char *library));

#endif
