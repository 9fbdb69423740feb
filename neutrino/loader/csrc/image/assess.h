/* Whether an image can have an entry (twins), by its bytes, and the key of that. */
#ifndef NEUTRINO_ASSESS_H
#define NEUTRINO_ASSESS_H

#include "image/image_bytes.h"
#include "image/section.h"
#include "image/sets.h"

/* What is known of an image before its entry is read. */
struct nt_assessment {
	enum neutrino_reason reason; /* PROBED: there may be an entry with this key; else why the image has no twins */
	uint8_t key[32];
	char detail[NT_SECTION_PATH + 128];
};

/*
 * Look for an image's twins in the .neutrino section of the loaded file that contains it. is_file: whether the bytes were
 * read from a file by the hook, and so are in no loaded object. *twins is set if ret->reason is PROBED.
 */
void nt_assess_by_section(const struct nt_image_bytes *bytes, bool is_file, const char *arch,
			  struct nt_section_twins *twins, struct nt_assessment *ret);

/*
 * Compute the cache key of an image in a run with probes of its own, by a set of them, if it can have an entry. is_of_kernel:
 * the bytes ask for the entry of one kernel (kernel_image.c).
 */
void nt_assess_by_run(const struct nt_image_bytes *bytes, const struct nt_set *set, const char *arch, bool is_of_kernel,
		      struct nt_assessment *ret);

/*
 * An identity for an image without an entry, by which it is found again: the hash of its size and its first
 * IDENTITY_BYTES, which takes less time than hashing all of it. If two images had the same, the trace would show them as
 * one, but no twin would be used for a wrong kernel.
 */
void nt_assess_identity(const struct nt_image_bytes *bytes, uint8_t ret[32]);

#endif
