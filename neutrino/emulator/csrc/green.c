#include "green.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "event.h"
#include "occupancy.h"
#include "queue.h"
#include "settings.h"
#include "stream.h"

enum { /* CUdevResourceType */
	NONE = 0,
	MULTIPROCESSORS = 1,
};

#define DEFAULT_STREAM 1u    /* CU_GREEN_CTX_DEFAULT_STREAM */
#define IGNORE_COSCHEDULING 1u /* CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING */
#define SPLIT_FLAGS 3u

/* Of an sm_90, by the documentation of cuDevSmResourceSplitByCount. */
#define PARTITION 8u
#define SMALL_PARTITION 2u

/* CUdevResource */
struct resource {
	int type;
	char padding[92];
	uint32_t count, least, alignment;
	char rest[36];
};

_Static_assert(sizeof(struct resource) == 144, "CUdevResource");

/* What cuDevResourceGenerateDesc makes is never destroyed: the handle is the number of multiprocessors, and this. */
#define DESCRIPTION ((uintptr_t)0x67726e0000)

/* Whether a handle is that of a green context (a name for the primary one, with a part of the multiprocessors). */
static bool is_green(CUcontext context)
{
	return ed_object_check(context, ED_CONTEXT) && context->green_of;
}

/*
 * A context becomes the thread's current one. A green context may be current to one thread at a time: a second one is
 * named on stderr, and with the setting strict ends the process.
 */
void ed_green_enter(CUcontext context)
{
	if (!ed_object_is(context, ED_CONTEXT) || !context->green_of)
		return;
	int32_t self = (int32_t)syscall(SYS_gettid);
	int32_t before = __atomic_exchange_n(&context->thread, self, __ATOMIC_ACQ_REL);
	/* A thread that has ended had it current to its end. */
	if (!before || before == self || syscall(SYS_tgkill, getpid(), before, 0) != 0)
		return;
	ed_say("a green context became current to a second thread");
	if (ed_settings()->strict)
		abort();
}

/* A context is the thread's current one no more: if it is a green one, another thread may have it. */
void ed_green_leave(CUcontext context)
{
	int32_t self = (int32_t)syscall(SYS_gettid);

	if (ed_object_is(context, ED_CONTEXT) && context->green_of)
		__atomic_compare_exchange_n(&context->thread, &self, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* --- resources --- */

/* A resource (CUdevResource) of so many multiprocessors; of no type if there are none. */
static struct resource multiprocessors(uint32_t count)
{
	return (struct resource){.type = count ? MULTIPROCESSORS : NONE, .count = count, .least = PARTITION,
				 .alignment = PARTITION};
}

/*
 * What the forms of cuDeviceGetDevResource do: the multiprocessors of a device or context. type: must be that of
 * multiprocessors.
 */
static CUresult get_resource(struct resource *ret, int type, uint32_t count)
{
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != MULTIPROCESSORS)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	*ret = multiprocessors(count);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the multiprocessors of the device as a resource, of which green contexts get parts. */
API cuDeviceGetDevResource(CUdevice device, struct resource *resource, int type)
{
	ENTER_OR_RETURN();
	return device ? CUDA_ERROR_INVALID_DEVICE : get_resource(resource, type, ED_MULTIPROCESSORS);
}

/* Emulated CUDA driver call: the multiprocessors of a context (NULL: the current one) as a resource. */
API cuCtxGetDevResource(CUcontext handle, struct resource *resource, int type)
{
	struct ed_context *unused;

	ENTER_OR_RETURN();
	CUresult result = ed_context_of(handle, &unused);
	if (result)
		return result;
	CUcontext named = handle ? handle : ed_context_handle();
	return get_resource(resource, type, named->green_of ? named->multiprocessors : ED_MULTIPROCESSORS);
}

/* Emulated CUDA driver call: the multiprocessors of a green context as a resource. */
API cuGreenCtxGetDevResource(CUcontext green, struct resource *resource, int type)
{
	ENTER_OR_RETURN();
	return is_green(green) ? get_resource(resource, type, green->multiprocessors) : CUDA_ERROR_INVALID_CONTEXT;
}

/*
 * What cuDevSmResourceSplitByCount does: split multiprocessors into groups of one size, at least `least`; *count is how
 * many groups are wanted, then made. Without groups only their number. rest: what is left, or NULL.
 */
static CUresult split_multiprocessors(struct resource *groups, uint32_t *count, const struct resource *input,
				      struct resource *rest, unsigned flags, unsigned least)
{
	uint32_t unit = flags & IGNORE_COSCHEDULING ? SMALL_PARTITION : PARTITION;

	if (!count || !input || flags > SPLIT_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	if (input->type != MULTIPROCESSORS)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	if (least > input->count)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	uint32_t size = (least + unit - 1) / unit * unit;
	size = size ? size : unit;
	uint32_t most = input->count / size, made = groups && *count < most ? *count : most;
	for (uint32_t i = 0; groups && i < made; i++)
		groups[i] = multiprocessors(size);
	if (rest)
		*rest = multiprocessors(input->count - made * size);
	*count = made;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: split multiprocessors into groups of one size, for green contexts. */
API cuDevSmResourceSplitByCount(struct resource *groups, unsigned int *count, const struct resource *input,
				struct resource *rest, unsigned int flags, unsigned int least)
{
	ENTER_OR_RETURN();
	return split_multiprocessors(groups, count, input, rest, flags, least);
}

/* Emulated CUDA driver call: a description of `count` groups of multiprocessors, by which a green context is made. */
API cuDevResourceGenerateDesc(uintptr_t *description, const struct resource *resources, unsigned int count)
{
	uint32_t all = 0;

	ENTER_OR_RETURN();
	if (!description || !resources || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		if (resources[i].type != MULTIPROCESSORS)
			return CUDA_ERROR_INVALID_RESOURCE_TYPE;
		all += resources[i].count;
	}
	if (all > ED_MULTIPROCESSORS)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	*description = DESCRIPTION + all;
	return CUDA_SUCCESS;
}

/* --- contexts --- */

/*
 * What cuGreenCtxCreate does: make a green context (a name for the primary one, with a part of the multiprocessors).
 * description: of cuDevResourceGenerateDesc, 0 for the whole device.
 */
static CUresult create_green(CUcontext *ret, uintptr_t description, CUdevice device, unsigned flags)
{
	CUcontext primary;

	/* No description is one of the whole device. */
	description = description ? description : DESCRIPTION + ED_MULTIPROCESSORS;
	if (!ret || flags != DEFAULT_STREAM || description <= DESCRIPTION ||
	    description > DESCRIPTION + ED_MULTIPROCESSORS)
		return CUDA_ERROR_INVALID_VALUE;
	if (device)
		return CUDA_ERROR_INVALID_DEVICE;
	CUresult result = ed_context_retain_primary(&primary);
	if (result)
		return result;
	*ret = ed_context_make_green(primary);
	if (!*ret) {
		ed_context_release_primary();
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	(*ret)->multiprocessors = (uint32_t)(description - DESCRIPTION);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: make a green context, which has a part of the multiprocessors. */
API cuGreenCtxCreate(CUcontext *green, uintptr_t description, CUdevice device, unsigned int flags)
{
	ENTER_OR_RETURN();
	return create_green(green, description, device, flags);
}

/* Emulated CUDA driver call: destroy a green context; its streams stay, and answer that it is destroyed. */
API cuGreenCtxDestroy(CUcontext green)
{
	ENTER_OR_RETURN();
	if (!is_green(green))
		return green && ed_object_was(green, ED_CONTEXT) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
								 : CUDA_ERROR_INVALID_CONTEXT;
	/* Its streams stay, and answer that the context is destroyed. */
	ed_queue_wait_all(green->green_of);
	ed_object_give(green);
	ed_context_release_primary();
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the CUcontext of a green context, which is the same handle here. */
API cuCtxFromGreenCtx(CUcontext *context, CUcontext green)
{
	ENTER_OR_RETURN();
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_green(green))
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = green;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the id of a green context (NULL: the current one), which no other context ever has. */
API cuGreenCtxGetId(CUcontext green, unsigned long long *id)
{
	ENTER_OR_RETURN();
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_green(green ? green : ed_context_handle()))
		return CUDA_ERROR_INVALID_CONTEXT;
	*id = __atomic_load_n(&(green ? green : ed_context_handle())->id, __ATOMIC_ACQUIRE);
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: make a stream of a green context. */
API cuGreenCtxStreamCreate(CUstream *stream, CUcontext green, unsigned int flags, int priority)
{
	ENTER_OR_RETURN();
	if (!is_green(green))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (flags != CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	return ed_stream_make(green->green_of, green, stream, flags, priority);
}

/*
 * What cuStreamGetGreenCtx does: the green context of a stream, NULL if it is of none. A default stream is of the
 * thread's current context.
 */
static CUresult get_green(CUstream stream, CUcontext *ret)
{
	CUcontext handle = ed_context_handle();

	GET_CONTEXT_OR_RETURN(context);
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD) {
		*ret = is_green(handle) ? handle : NULL;
		return CUDA_SUCCESS;
	}
	if (!ed_object_check(stream, ED_STREAM))
		return CUDA_ERROR_INVALID_HANDLE;
	*ret = stream->green;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the green context of a stream, NULL if it is of none. */
API cuStreamGetGreenCtx(CUstream stream, CUcontext *green)
{
	ENTER_OR_RETURN();
	return get_green(stream, green);
}
