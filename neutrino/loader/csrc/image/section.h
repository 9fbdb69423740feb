/*
 * The .neutrino section of a patched file, found in memory: in the loaded object that contains an image.
 *
 * Pointers into it are valid only as long as the image is, that is during the program's call that loads the image: the
 * object may be unloaded afterwards. All functions may be called from any thread.
 */
#ifndef NEUTRINO_SECTION_H
#define NEUTRINO_SECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/neutrino_layout.h"
#include "image/image_bytes.h"

#define NT_SECTION_PATH 1024 /* longer paths are truncated in events */

enum nt_section_answer {
	NT_SECTION_NONE,    /* the image is in no patched file */
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
 * Find the entry of an image for a device of that architecture ("sm_90"). embedded: whether that is the embedded device
 * instead of a GPU. Unless the answer is NONE, ret->library is the path of the object.
 */
enum nt_section_answer nt_section_find(const struct nt_image_bytes *image, const char *arch, bool embedded,
				       struct nt_section_twins *ret);

/*
 * Record in the trace that twins of a section are used: the library's event and its probes, once. Only right after
 * nt_section_find, with its result.
 */
void nt_section_use(const struct nt_section_twins *twins);

/*
 * The names of the probes in the sections of all loaded objects, each once, separated by spaces, and the version of
 * Neutrino that wrote the first section.
 */
void nt_section_names(char *names, size_t names_size, char *maker, size_t maker_size);

/* Call each with the path of every loaded patched object whose twins were not used. Returns their number. */
unsigned nt_section_unused(void (*each)(const char *library));

#endif
