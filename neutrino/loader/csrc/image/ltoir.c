#include "image/ltoir.h"

#include <string.h>

#include "base/memory.h"

/* Limits: bytes of a link's options; its inputs and their bytes; bytes of the inputs of all links that are in progress. */
#define MOST_OPTION_BYTES 16384u
#ifndef NT_LTOIR_MOST_INPUTS
#define NT_LTOIR_MOST_INPUTS 256u
#endif
#ifndef NT_LTOIR_MOST_BYTES
#define NT_LTOIR_MOST_BYTES ((size_t)64 << 20)
#endif
#ifndef NT_LTOIR_MOST_BYTES_OF_ALL
#define NT_LTOIR_MOST_BYTES_OF_ALL ((size_t)256 << 20)
#endif

static size_t size_of_all; /* bytes of the inputs of all links */

/* Whether data, of size bytes, is LTO IR (of a compiler, for a later link), by its first four bytes. */
bool nt_ltoir_is(const void *data, size_t size)
{
	static const uint8_t magic[] = {0xed, 0x43, 0x4e, 0x7f};

	return data && size > sizeof(magic) && !memcmp(data, magic, sizeof(magic));
}

/* Whether a text begins with a prefix. */
static bool begins(const char *text, const char *prefix)
{
	return !strncmp(text, prefix, strlen(prefix));
}

/* Whether an option changes nothing of the code, but what the link says of itself, or where it looks for its result. */
static bool is_dropped(const char *option)
{
	return !strcmp(option, "-time") || !strcmp(option, "-verbose") || !strcmp(option, "-no-cache");
}

/*
 * Whether a link with that option can be done again for its PTX, without any other effect: options of nvJitLink.h that
 * choose the architecture, and what is optimized and how.
 */
static bool is_supported(const char *option)
{
	static const char *const whole[] = {
		"-lto", "-dlto", "-lineinfo", "-optimize-unused-variables", "-O0", "-O1", "-O2", "-O3",
	};
	static const char *const with_value[] = {
		"-arch=sm_", "-maxrregcount=", "-ftz=", "-prec-div=", "-prec-sqrt=", "-fma=", "-kernels-used=",
		"-variables-used=", "-Xptxas=", "-split-compile=", "-split-compile-extended=",
	};

	for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++)
		if (!strcmp(option, whole[i]))
			return true;
	for (size_t i = 0; i < sizeof(with_value) / sizeof(with_value[0]); i++)
		if (begins(option, with_value[i]))
			return true;
	return false;
}

/* Copy the options of a link. Returns why nothing can be made of its inputs, a text that is never freed, or NULL. */
static const char *copy_options(struct nt_ltoir *ltoir, uint32_t count, const char *const *options)
{
	static const char too_many[] = "it was linked from LTO IR with more options than are kept";
	size_t size = 0;

	if (count > NT_LTOIR_MOST_OPTIONS)
		return too_many;
	for (uint32_t i = 0; i < count; i++) {
		if (!options[i])
			return "it was linked from LTO IR with an option that is not supported";
		if (!is_dropped(options[i]) && !is_supported(options[i]))
			return "it was linked from LTO IR with an option that is not supported";
		size += strlen(options[i]) + 1;
		if (size > MOST_OPTION_BYTES)
			return too_many;
	}
	ltoir->texts = nt_memory_alloc(size + 1);
	if (!ltoir->texts)
		return "its LTO IR could not be kept";
	char *to = ltoir->texts;
	for (uint32_t i = 0; i < count; i++) {
		if (is_dropped(options[i]))
			continue;
		ltoir->options[ltoir->options_count++] = to;
		to = stpcpy(to, options[i]) + 1;
	}
	return NULL;
}

/*
 * Make room for the LTO IR (input of optimization at link time) of a link that begins with these options. NULL without
 * memory.
 */
struct nt_ltoir *nt_ltoir_create(uint32_t count, const char *const *options)
{
	struct nt_ltoir *ret = nt_memory_alloc_zeroed(1, sizeof(*ret));

	if (ret)
		ret->why = copy_options(ret, count, options);
	return ret;
}

/* Free the inputs. */
static void drop_inputs(struct nt_ltoir *ltoir)
{
	while (ltoir->first) {
		struct nt_ltoir_input *next = ltoir->first->next;
		nt_memory_free(ltoir->first);
		ltoir->first = next;
	}
	__atomic_fetch_sub(&size_of_all, ltoir->size, __ATOMIC_RELAXED);
	ltoir->last = NULL;
	ltoir->inputs_count = 0;
	ltoir->size = 0;
}

/* Get memory for an input of size bytes, within the limits. NULL if there is none. */
static struct nt_ltoir_input *make_room(struct nt_ltoir *ltoir, size_t size)
{
	if (ltoir->inputs_count >= NT_LTOIR_MOST_INPUTS || size > NT_LTOIR_MOST_BYTES - ltoir->size)
		return NULL;
	bool has_room = __atomic_add_fetch(&size_of_all, size, __ATOMIC_RELAXED) <= NT_LTOIR_MOST_BYTES_OF_ALL;
	struct nt_ltoir_input *ret = has_room ? nt_memory_alloc(sizeof(*ret) + size) : NULL;
	if (!ret)
		__atomic_fetch_sub(&size_of_all, size, __ATOMIC_RELAXED);
	return ret;
}

/*
 * A link gets LTO IR (input of optimization at link time): copy it, of size bytes. Where it cannot be kept, no input of this
 * link is kept any more.
 */
void nt_ltoir_add(struct nt_ltoir *ltoir, const void *data, size_t size)
{
	struct nt_ltoir_input *input = ltoir->why ? NULL : make_room(ltoir, size);

	if (!input) {
		drop_inputs(ltoir);
		if (!ltoir->why)
			ltoir->why = "its LTO IR could not be kept";
		return;
	}
	input->next = NULL;
	input->size = size;
	memcpy(input->data, data, size);
	if (ltoir->last)
		ltoir->last->next = input;
	else
		ltoir->first = input;
	ltoir->last = input;
	ltoir->inputs_count++;
	ltoir->size += size;
}

/* Free the LTO IR (input of optimization at link time) of a link, with its inputs. It may be NULL. */
void nt_ltoir_free(struct nt_ltoir *ltoir)
{
	if (!ltoir)
		return;
	drop_inputs(ltoir);
	nt_memory_free(ltoir->texts);
	nt_memory_free(ltoir);
}
