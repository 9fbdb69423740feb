/* Images that the program has loaded, by their bytes: where their twins come from, and the kernels in them. */
#ifndef NEUTRINO_IMAGE_H
#define NEUTRINO_IMAGE_H

#include "entry.h"
#include "image_bytes.h"
#include "kernel.h"

/* Of what is brought in once, by whichever thread comes first. */
enum nt_resolve_state {
	UNRESOLVED,
	RESOLVING,
	RESOLVED,
};

struct nt_image {
	uint32_t id;
	enum nt_image_kind kind;
	size_t size;
	char *source;
	uint8_t key[32];
	char arch[16];
	unsigned reason; /* PROBED: the entry has a reason per kernel */
	char *detail;
	int state;	   /* enum nt_resolve_state */
	bool from_section; /* of the patched file that it lies in; else its twins are the run's */
	void *copy;	   /* of the image's bytes, or of its entry from a section, until resolved */
	size_t copy_size;
	struct nt_entry entry;
	struct nt_kernel *kernels;
	struct nt_image *next;
};

/* Twins come from the sections of patched files, not from the run's probes. Said before anything is loaded. */
void nt_images_use_sections(void);

/* The image of these bytes, made when it is new; NULL without memory. caller: return address of the program's call. */
struct nt_image *nt_image_of(const struct nt_image_bytes *bytes, const char *source, const void *caller);

/* Bring an image's entry in, once; other threads wait for the one that is at it. */
void nt_image_resolve(struct nt_image *image);

/* The kernel of that name in a resolved image, made and logged when it is new; NULL without memory. */
struct nt_kernel *nt_image_kernel(struct nt_image *image, const char *name);

#endif
