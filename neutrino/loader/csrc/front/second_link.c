#include "front/second_link.h"

#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/scope.h"

enum { NVJITLINK_INPUT_LTOIR = 3 }; /* nvJitLinkInputType of nvJitLink.h */
/* Bytes of PTX, at most: more is not kept. */
#define MOST_BYTES ((size_t)64 << 20)

/*
 * Floating point of the calling thread: how it rounds, which exceptions have occurred, and which of them end the program.
 * fegetenv of libm would do the same; the hook needs no libm.
 */
struct floating {
#if defined(__x86_64__)
	uint32_t sse, x87[7];
#elif defined(__aarch64__)
	uint64_t control, status;
#endif
};

/* Keep the calling thread's, and have no exception end the program. It rounds as in the first link. */
static struct floating floating_begin(void)
{
	struct floating ret;

#if defined(__x86_64__)
	__asm__ volatile("stmxcsr %0\n\tfnstenv %1" : "=m"(ret.sse), "=m"(ret.x87)); /* fnstenv masks those of the x87 */
	uint32_t masked = ret.sse | 0x1f80;
	__asm__ volatile("ldmxcsr %0" : : "m"(masked));
#elif defined(__aarch64__)
	__asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(ret.control), "=r"(ret.status));
	__asm__ volatile("msr fpcr, %0" : : "r"(ret.control & ~UINT64_C(0x9f00)));
#endif
	return ret;
}

/* Set what floating_begin has kept. */
static void floating_end(const struct floating *floating)
{
#if defined(__x86_64__)
	__asm__ volatile("ldmxcsr %0\n\tfldenv %1" : : "m"(floating->sse), "m"(floating->x87));
#elif defined(__aarch64__)
	__asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(floating->control), "r"(floating->status));
#endif
}

/* Add the inputs to a link, in their order, and complete it. False if a call fails. */
static bool complete(void *handle, const struct nt_ltoir *ltoir, const struct neutrino_nvjitlink *library)
{
	for (const struct nt_ltoir_input *input = ltoir->first; input; input = input->next)
		if (library->add_data(handle, NVJITLINK_INPUT_LTOIR, input->data, input->size, NULL))
			return false;
	return !library->complete(handle);
}

/* The PTX of a completed link, as for nt_second_link_ptx. */
static char *read_ptx(void *handle, const struct neutrino_nvjitlink *library, size_t *size)
{
	if (library->get_ptx_size(handle, size) || !*size || *size > MOST_BYTES)
		return NULL;
	NT_FREED char *text = nt_memory_alloc(*size);
	if (!text || library->get_ptx(handle, text))
		return NULL;
	return nt_scope_keep(&text);
}

/*
 * Link LTO IR (input of optimization at link time) with options. Returns its PTX as nt_second_link_ptx does. *is_created:
 * whether the library took the options.
 */
static char *link_with(const struct nt_ltoir *ltoir, const struct neutrino_nvjitlink *library, const char **options,
		       uint32_t count, bool *is_created, size_t *size)
{
	void *handle = NULL;
	char *ret = NULL;

	*is_created = !library->create(&handle, count, options);
	if (*is_created && complete(handle, ltoir, library))
		ret = read_ptx(handle, library, size);
	/* After an error, too, it may be there, with the log. */
	if (handle)
		library->destroy(&handle);
	return ret;
}

/*
 * Link LTO IR (input of optimization at link time) a second time, by the library that the program has linked it with, for
 * its PTX: memory of nt_memory_alloc, the caller's, of *size bytes; NULL if there is none.
 */
char *nt_second_link_ptx(const struct nt_ltoir *ltoir, const struct neutrino_nvjitlink *library, size_t *size)
{
	const char *options[NT_LTOIR_MOST_OPTIONS + 2];
	uint32_t count = ltoir->options_count;
	bool is_created;

	if (!library->create || !library->add_data || !library->complete || !library->get_ptx_size ||
	    !library->get_ptx || !library->destroy)
		return NULL;
	for (uint32_t i = 0; i < count; i++)
		options[i] = ltoir->options[i];
	options[count++] = "-ptx";
	/* Otherwise it asks the driver for its cache of files, which is the program's. */
	options[count++] = "-no-cache";
	NT_SCOPE_END(floating_end) struct floating kept = floating_begin();
	char *ret = link_with(ltoir, library, options, count, &is_created, size);
	/* Releases before 12.5 know no such option. */
	return is_created ? ret : link_with(ltoir, library, options, count - 1, &is_created, size);
}
