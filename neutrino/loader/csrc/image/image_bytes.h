/* What a program hands to the driver: where an image's bytes end, and whether it can hold text of a target at all. */
#ifndef NEUTRINO_IMAGE_BYTES_H
#define NEUTRINO_IMAGE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum nt_image_kind {
	NT_IMAGE_UNKNOWN,
	NT_IMAGE_FATBIN,
	NT_IMAGE_CUBIN,
	NT_IMAGE_TEXT,
};

struct nt_image_bytes {
	const uint8_t *data; /* of the container itself, without a fatbin wrapper */
	size_t size;
	enum nt_image_kind kind;
	bool has_text; /* or may have: twins are made from it */
};

/*
 * Find out the kind, the size and the start of an image that the driver has accepted. limit: bytes that may be read
 * (SIZE_MAX if only the image's own headers show its size). False if its kind is unknown.
 */
bool nt_image_bytes_measure(const void *image, size_t limit, struct nt_image_bytes *ret);

/* "fatbin", "cubin", "ptx" or "unknown". */
const char *nt_image_bytes_kind(enum nt_image_kind kind);

#endif
