#include "front/passing.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/front.h"
#include "base/mode.h"
#include "base/scope.h"
#include "base/settings.h"
#include "front/process.h"
#include "front/second_link.h"
#include "image/image.h"
#include "image/image_bytes.h"
#include "image/links.h"
#include "image/ltoir.h"
#include "image/passed.h"

/* nvJitLinkInputType of nvJitLink.h; ANY: it finds out by itself. */
enum { NVJITLINK_INPUT_PTX = 2, NVJITLINK_INPUT_LTOIR = 3, NVJITLINK_INPUT_ANY = 10 };
/* Bytes of what a library says that it has made, at most: more is not looked at. */
#define MOST_BYTES ((size_t)1 << 30)

/*
 * Whether PTX that passes through this process is kept: it is recorded, with probes of the run, or that is not decided
 * yet. The settings are not read before that. Not in a child of the process, whose threads may have had locks.
 */
bool nt_passing_is_on(void)
{
	static pid_t first;
	pid_t known = 0, own = getpid();

	if (!__atomic_compare_exchange_n(&first, &known, own, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) && known != own)
		return false;
	if (!nt_process_has_started())
		return true;
	enum nt_mode mode = nt_mode_of_process();
	return (mode == NT_READY || mode == NT_TRACING) && nt_settings()->key;
}

#ifndef NEUTRINO_LATE
/*
 * The program's call goes on as without us: errno is kept, and the thread is not cancelled meanwhile, since it may have a
 * lock.
 */
struct calm {
	int error, cancelling;
};

/* For CALM only: keep errno, and have the thread not cancelled. */
static struct calm calm_begin(void)
{
	struct calm ret = {.error = errno};

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &ret.cancelling);
	return ret;
}

/* For CALM only: called by the compiler at the end of the scope. */
static void calm_end(const struct calm *calm)
{
	pthread_setcancelstate(calm->cancelling, NULL);
	errno = calm->error;
}

#define CALM() NT_SCOPE_END(calm_end) struct calm kept_calm = calm_begin()

/*
 * NVRTC has given the program a cubin (machine code for a GPU): keep the PTX that the same compilation has made. nvrtc: the
 * functions of the same library. caller: in the code of the program.
 */
static void compiled(void *program, const char *cubin, const struct neutrino_nvrtc *nvrtc, const void *caller)
{
	size_t cubin_size = 0, size = 0;
	CALM();

	/* A vendor's library compiles kernels of its own, which are left alone. */
	if (!nt_passing_is_on() || nt_image_is_vendors(caller))
		return;
	if (nvrtc->get_cubin_size(program, &cubin_size) || !cubin_size || cubin_size > MOST_BYTES)
		return;
	if (nvrtc->get_ptx_size(program, &size) || size > MOST_BYTES)
		size = 0;
	NT_FREED char *text = size ? nt_memory_alloc(size) : NULL;
	bool has_text = text && !nvrtc->get_ptx(program, text);
	nt_passed_keep(cubin, cubin_size, has_text ? text : NULL, size, "NVRTC", "NVRTC has no PTX of it");
}

/* nvJitLinkCreate has succeeded: a link with these options begins. */
static void link_begins(void *handle, uint32_t count, const char *const *options)
{
	CALM();

	if (nt_passing_is_on())
		nt_links_begin(handle, NULL, nt_ltoir_create(count, options));
}

/* nvJitLinkAddData or nvJitLinkAddFile is about to be called: a link gets an input. data: NULL for a file. */
static void link_gets(void *handle, int type, const void *data, size_t size)
{
	struct nt_image_bytes bytes;
	CALM();

	if (!nt_passing_is_on())
		return;
	bool is_text = data && (type == NVJITLINK_INPUT_PTX ||
				(type == NVJITLINK_INPUT_ANY && nt_image_bytes_measure(data, size, &bytes) &&
				 bytes.kind == NT_IMAGE_TEXT));
	if (nt_ltoir_is(data, size) && (type == NVJITLINK_INPUT_LTOIR || type == NVJITLINK_INPUT_ANY))
		nt_links_add_ltoir(handle, data, size);
	else
		nt_links_add(handle, is_text ? data : NULL, size, NULL);
}

/*
 * The inputs of a link that has succeeded are LTO IR (for optimization at link time): link them once more, for the PTX that
 * the machine code was made from. In this thread, as nvJitLink was called by it just now.
 */
static void link_again(void *handle, const struct neutrino_nvjitlink *library)
{
	struct nt_ltoir *ltoir = nt_links_take_ltoir(handle);
	size_t size = 0;

	if (!ltoir)
		return;
	char *text = nt_second_link_ptx(ltoir, library, &size);
	nt_ltoir_free(ltoir);
	nt_links_give_ptx(handle, text, size, "nvJitLink gave no PTX of its LTO IR");
}

/*
 * nvJitLinkGetLinkedCubin has succeeded: keep the PTX that the cubin (machine code for a GPU) was made from. library: the
 * functions of the same library. caller: in the code of the program.
 */
static void linked(void *handle, const void *cubin, const struct neutrino_nvjitlink *library, const void *caller)
{
	size_t size = 0;
	CALM();

	if (!nt_passing_is_on() || nt_image_is_vendors(caller) || library->get_cubin_size(handle, &size) || !size ||
	    size > MOST_BYTES)
		return;
	if (nt_passed_is_wanted(cubin, size))
		link_again(handle, library);
	nt_links_done(handle, cubin, size, "nvJitLink");
}

/* nvJitLinkDestroy is about to be called. */
static void link_ends(void *handle)
{
	CALM();

	if (nt_passing_is_on())
		nt_links_end(handle);
}

/* What the auditing module calls. It finds this by its name. */
__attribute__((visibility("default"))) extern const struct neutrino_passing neutrino_passing;
const struct neutrino_passing neutrino_passing = {
	.magic = NEUTRINO_PASSING_MAGIC,
	.compiled = compiled,
	.link_begins = link_begins,
	.link_gets = link_gets,
	.linked = linked,
	.link_ends = link_ends,
};

/*
 * Runs when this library is loaded: tell the auditing module that it is there, and relocated. A name that the module
 * knows; without it there is nothing of that name.
 */
__attribute__((constructor)) static void tell_module(void)
{
	int error = errno;
	void *found = dlopen(NT_FRONT_PASSING, RTLD_LAZY | RTLD_NOLOAD);

	if (found)
		dlclose(found);
	else
		dlerror();
	errno = error;
}
#endif
