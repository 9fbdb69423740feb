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

static bool is_green(CUcontext context)
{
	return ed_object_check(context, ED_CONTEXT) && context->green_of;
}

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

void ed_green_leave(CUcontext context)
{
	int32_t self = (int32_t)syscall(SYS_gettid);

	if (ed_object_is(context, ED_CONTEXT) && context->green_of)
		__atomic_compare_exchange_n(&context->thread, &self, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* --- resources --- */

static struct resource multiprocessors(uint32_t count)
{
	return (struct resource){.type = count ? MULTIPROCESSORS : NONE, .count = count, .least = PARTITION,
				 .alignment = PARTITION};
}

static CUresult get_resource(struct resource *ret, int type, uint32_t count)
{
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != MULTIPROCESSORS)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	*ret = multiprocessors(count);
	return CUDA_SUCCESS;
}

API cuDeviceGetDevResource(CUdevice device, struct resource *resource, int type)
{
	ENTER();
	return device ? CUDA_ERROR_INVALID_DEVICE : get_resource(resource, type, ED_MULTIPROCESSORS);
}

API cuCtxGetDevResource(CUcontext handle, struct resource *resource, int type)
{
	struct ed_context *unused;

	ENTER();
	CUresult result = ed_context_of(handle, &unused);
	if (result)
		return result;
	CUcontext named = handle ? handle : ed_context_handle();
	return get_resource(resource, type, named->green_of ? named->multiprocessors : ED_MULTIPROCESSORS);
}

API cuGreenCtxGetDevResource(CUcontext green, struct resource *resource, int type)
{
	ENTER();
	return is_green(green) ? get_resource(resource, type, green->multiprocessors) : CUDA_ERROR_INVALID_CONTEXT;
}

/* Split multiprocessors into groups of one size. Without groups only their number. */
static CUresult split(struct resource *groups, uint32_t *count, const struct resource *input, struct resource *rest,
		      unsigned flags, unsigned least)
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

API cuDevSmResourceSplitByCount(struct resource *groups, unsigned int *count, const struct resource *input,
				struct resource *rest, unsigned int flags, unsigned int least)
{
	ENTER();
	return split(groups, count, input, rest, flags, least);
}

API cuDevResourceGenerateDesc(uintptr_t *description, const struct resource *resources, unsigned int count)
{
	uint32_t all = 0;

	ENTER();
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

static CUresult create(CUcontext *ret, uintptr_t description, CUdevice device, unsigned flags)
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

API cuGreenCtxCreate(CUcontext *green, uintptr_t description, CUdevice device, unsigned int flags)
{
	ENTER();
	return create(green, description, device, flags);
}

API cuGreenCtxDestroy(CUcontext green)
{
	ENTER();
	if (!is_green(green))
		return green && ed_object_was(green, ED_CONTEXT) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
								 : CUDA_ERROR_INVALID_CONTEXT;
	/* Its streams stay, and answer that the context is destroyed. */
	ed_queue_wait_all(green->green_of);
	ed_object_give(green);
	ed_context_release_primary();
	return CUDA_SUCCESS;
}

API cuCtxFromGreenCtx(CUcontext *context, CUcontext green)
{
	ENTER();
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_green(green))
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = green;
	return CUDA_SUCCESS;
}

API cuGreenCtxGetId(CUcontext green, unsigned long long *id)
{
	ENTER();
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_green(green ? green : ed_context_handle()))
		return CUDA_ERROR_INVALID_CONTEXT;
	*id = __atomic_load_n(&(green ? green : ed_context_handle())->id, __ATOMIC_ACQUIRE);
	return CUDA_SUCCESS;
}

API cuGreenCtxStreamCreate(CUstream *stream, CUcontext green, unsigned int flags, int priority)
{
	ENTER();
	if (!is_green(green))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (flags != CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	return ed_stream_make(green->green_of, green, stream, flags, priority);
}

static CUresult get_green(CUstream stream, CUcontext *ret)
{
	CUcontext handle = ed_context_handle();

	IN_CONTEXT(context);
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

API cuStreamGetGreenCtx(CUstream stream, CUcontext *green)
{
	ENTER();
	return get_green(stream, green);
}
