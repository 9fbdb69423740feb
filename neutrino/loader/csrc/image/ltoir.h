/*
 * LTO IR: what a compiler makes for optimization at link time instead of machine code. What one link (nvJitLink's) is made
 * from is copied: its options, but for those of its logs and of caching, and its inputs in their order.
 */
#ifndef NEUTRINO_LTOIR_H
#define NEUTRINO_LTOIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NT_LTOIR_MOST_OPTIONS 64u

struct nt_ltoir_input {
	struct nt_ltoir_input *next;
	size_t size;
	char data[];
};

struct nt_ltoir {
	const char *why; /* nothing can be made of it: a text that is never freed; NULL: it can */
	uint32_t options_count, inputs_count;
	size_t size; /* bytes of all inputs */
	struct nt_ltoir_input *first, *last;
	const char *options[NT_LTOIR_MOST_OPTIONS]; /* into texts */
	char *texts;
};

/* Whether data, of size bytes, is LTO IR. */
bool nt_ltoir_is(const void *data, size_t size);

/* Of a link with these options, without inputs yet. NULL without memory. */
struct nt_ltoir *nt_ltoir_create(uint32_t count, const char *const *options);

/* Copy an input. Where it cannot be kept, no input is kept any more, and ltoir->why says so. */
void nt_ltoir_add(struct nt_ltoir *ltoir, const void *data, size_t size);

/* Free it with its inputs. ltoir may be NULL. */
void nt_ltoir_free(struct nt_ltoir *ltoir);

#endif
