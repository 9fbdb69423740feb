#include "front/linked.h"

#include <stdint.h>

#include "front/passing.h"
#include "image/links.h"

/*
 * Why machine code that is made with these options of the driver's compiler cannot be probed by way of its PTX; NULL: it
 * can. Those that are allowed choose logs, the device and how much is optimized; the twin's registers follow from the
 * machine code.
 */
static const char *unsupported(unsigned count, const int *options, void *const *values)
{
	for (unsigned i = 0; options && i < count; i++)
		switch (options[i]) {
		case CU_JIT_GENERATE_DEBUG_INFO:
			if (values && values[i])
				return "it was linked with debug information";
			break;
		case CU_JIT_MAX_REGISTERS:
		case CU_JIT_THREADS_PER_BLOCK:
		case CU_JIT_WALL_TIME:
		case CU_JIT_INFO_LOG_BUFFER:
		case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
		case CU_JIT_ERROR_LOG_BUFFER:
		case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
		case CU_JIT_OPTIMIZATION_LEVEL:
		case CU_JIT_TARGET_FROM_CUCONTEXT:
		case CU_JIT_TARGET:
		case CU_JIT_FALLBACK_STRATEGY:
		case CU_JIT_LOG_VERBOSE:
		case CU_JIT_GENERATE_LINE_INFO:
		case CU_JIT_CACHE_MODE:
			break;
		default:
			return "it was linked with an option of the driver's compiler that is not supported";
		}
	return NULL;
}

/* After cuLinkCreate has succeeded: a link begins, whose result the program may load. */
void nt_linked_begins(void *state, unsigned count, const int *options, void *const *values)
{
	if (nt_passing_is_on())
		nt_links_begin(state, unsupported(count, options, values), NULL);
}

/* After cuLinkAddData or cuLinkAddFile, successful or not: a link has an input. data: NULL for a file. */
void nt_linked_gets(void *state, int type, const void *data, size_t size, unsigned count, const int *options,
		    void *const *values)
{
	if (nt_passing_is_on())
		nt_links_add(state, type == CU_JIT_INPUT_PTX ? data : NULL, size, unsupported(count, options, values));
}

/* After cuLinkComplete has succeeded: the PTX that the result was made from is kept. size may be NULL. */
void nt_linked_done(void *state, void *const *cubin, const size_t *size)
{
	if (nt_passing_is_on() && cubin)
		nt_links_done(state, *cubin, size ? *size : SIZE_MAX, "cuLink");
}

/* Before cuLinkDestroy. */
void nt_linked_ends(void *state)
{
	if (nt_passing_is_on())
		nt_links_end(state);
}
