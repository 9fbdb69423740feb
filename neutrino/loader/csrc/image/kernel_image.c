#include "image/kernel_image.h"

#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "base/errand.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"
#include "base/scope.h"
#include "base/settings.h"
#include "base/sha256.h"
#include "base/trusted.h"
#include "image/entry_fetch.h"
#include "image/sets.h"

/* As in abi/requests.py. */
#define OF_KERNEL "neutrino-kernel "
#define OF_KEPT_KERNEL "neutrino-kept-kernel "

/* Of what owners have of kept images. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* For find_segment: bytes, and whether they are in a segment of a loaded object that nobody can write to. */
struct range {
	uintptr_t begin;
	size_t size;
	bool is_constant;
};

/* Callback of dl_iterate_phdr (argument: struct range): look for the object's segment that has the range. */
static int find_segment(struct dl_phdr_info *object, size_t size, void *argument)
{
	struct range *range = argument;

	(void)size;
	for (unsigned i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
		uintptr_t offset = range->begin - (object->dlpi_addr + segment->p_vaddr);
		if (segment->p_type != PT_LOAD || offset >= segment->p_memsz)
			continue;
		range->is_constant = !(segment->p_flags & PF_W) && range->size <= segment->p_memsz - offset;
		return 1;
	}
	return 0;
}

/*
 * Whether bytes of the program stay as they are while its module is loaded: they are in a loaded library, which cannot go
 * before it has unloaded what it registered, and not in its variables.
 */
static bool is_constant(const struct nt_image_bytes *bytes)
{
	struct range range = {(uintptr_t)bytes->data, bytes->size, false};

	/* A signal handler that calls exit would wait for the dynamic loader's lock. */
	nt_lock_begin_quiet();
	dl_iterate_phdr(find_segment, &range);
	nt_lock_end_quiet();
	return range.is_constant;
}

/*
 * Keep what a module or library was loaded from, if that is needed later: to make twins (copies with probes) for another
 * set of probes, or of single kernels of its machine code.
 */
void nt_kernel_image_keep(struct nt_owner *owner, const struct nt_image_bytes *bytes)
{
	const struct nt_settings *settings = nt_settings();
	const struct nt_image *image = owner->made.image;
	bool may_have_code = image->has_entry || image->reason == NEUTRINO_REASON_NO_PTX;

	if (!(settings->asks_again && image->set) && !(may_have_code && nt_settings_by_kernel(image->arch)))
		return;
	/* Of libraries such as PyTorch's a copy would take gigabytes. */
	owner->is_kept_elsewhere = is_constant(bytes);
	void *copy = owner->is_kept_elsewhere ? NULL : nt_memory_alloc(bytes->size + 1);
	if (!copy && !owner->is_kept_elsewhere)
		return;
	owner->kept = *bytes;
	if (copy) {
		memcpy(copy, bytes->data, bytes->size);
		owner->kept.data = copy;
	}
}

/* Free what nt_kernel_image_keep has kept of a module or library. */
void nt_kernel_image_release(struct nt_owner *owner)
{
	if (!owner->is_kept_elsewhere)
		nt_memory_free((void *)(uintptr_t)owner->kept.data);
}

/*
 * Whether a kernel has no twin (copy with probes) because there is no PTX of the machine code that runs, so that one may be
 * made of that. image: GPU code of the program, that has the kernel.
 */
static bool lacks_text(const struct nt_image *image, const char *name)
{
	if (!image->has_entry)
		return image->reason == NEUTRINO_REASON_NO_PTX;
	if (!nt_image_is_resolved(image) || image->reason != NEUTRINO_REASON_PROBED)
		return false;
	const struct neutrino_twin_kernel *row = nt_entry_find(&image->entry, name);
	return !row || row->reason == NEUTRINO_REASON_NO_PTX || row->reason == NEUTRINO_REASON_VARIANT;
}

/*
 * What is sent to the listener, which makes twins (copies with probes), for one kernel: a line that begins so, with its
 * name, and then these bytes. For nt_memory_free; NULL without memory.
 */
static uint8_t *request_of(const char *begin, const char *name, const void *bytes, size_t count, size_t *size)
{
	size_t length = strlen(begin) + strlen(name) + 1; /* with the line feed */
	uint8_t *data = nt_memory_alloc(length + count + 1);

	if (!data)
		return NULL;
	/* Its NUL is where the bytes begin. */
	snprintf((char *)data, length + 1, "%s%s\n", begin, name);
	memcpy(data + length, bytes, count);
	*size = length + count;
	return data;
}

/* The digest of what a module or library was loaded from: computed once, for all of its kernels. */
static const uint8_t *digest_of(struct nt_owner *owner)
{
	NT_LOCKED(&mutex);
	if (!owner->is_kept_known) {
		struct nt_sha256 hash;
		nt_sha256_init(&hash);
		nt_sha256_add(&hash, owner->kept.data, owner->kept.size);
		nt_sha256_finish(&hash, owner->kept_digest);
		owner->is_kept_known = true;
	}
	return owner->kept_digest;
}

/* For write_image: where, what, and whether it is there. */
struct writing {
	char path[PATH_MAX], temporary[PATH_MAX];
	const struct nt_image_bytes *bytes;
	bool is_done;
};

/*
 * Errand of is_shared (argument: its struct writing): write an image (GPU code of the program) into a file, unless it is
 * there.
 */
static void write_image(void *argument)
{
	struct writing *writing = argument;

	writing->is_done = access(writing->path, R_OK) == 0;
	if (writing->is_done)
		return;
	int fd = nt_quiet_write_above_stdio(
		nt_raw_openat(AT_FDCWD, writing->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
	if (fd < 0)
		return;
	bool is_written = nt_quiet_write_all(fd, writing->bytes->data, writing->bytes->size);
	nt_raw_close(fd);
	/* Others read it as soon as it has its name. */
	writing->is_done = is_written && rename(writing->temporary, writing->path) == 0;
	if (!writing->is_done)
		unlink(writing->temporary);
}

/*
 * Whether the listener of a set of probes can read what a module or library was loaded from, in a file beside its socket:
 * written once, for all kernels.
 */
static bool is_shared(struct nt_owner *owner, const struct nt_set *set, const uint8_t digest[32])
{
	static unsigned count;
	char socket[NT_SOCKET_PATH], hex[65];
	struct writing writing = {.bytes = &owner->kept};

	if (__atomic_load_n(&owner->kept_for, __ATOMIC_ACQUIRE) == set)
		return true;
	nt_sets_socket(set, socket);
	char *end = strrchr(socket, '/');
	if (!end || !nt_trusted_path(socket, true))
		return false;
	for (int i = 0; i < 32; i++)
		snprintf(hex + 2 * i, 3, "%02x", digest[i]);
	int folder = (int)(end - socket);
	snprintf(writing.path, sizeof(writing.path), "%.*s/%s", folder, socket, hex);
	snprintf(writing.temporary, sizeof(writing.temporary), "%.*s/.%d-%u.part", folder, socket, getpid(),
		 __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED));
	if (nt_errand_run(write_image, &writing) && writing.is_done)
		__atomic_store_n(&owner->kept_for, set, __ATOMIC_RELEASE);
	return writing.is_done;
}

/* Have a module or library have room for the twins (copies with probes) of an image. False without memory. Lock-free. */
static bool add_made(struct nt_owner *owner, struct nt_image *image)
{
	struct nt_made *made = &owner->made, *fresh = NULL, *next;

	for (; made->image != image; made = next) {
		next = __atomic_load_n(&made->next, __ATOMIC_ACQUIRE);
		if (next)
			continue;
		fresh = fresh ? fresh : nt_memory_alloc_zeroed(1, sizeof(*fresh));
		if (!fresh)
			return false;
		fresh->image = image;
		if (__atomic_compare_exchange_n(&made->next, &next, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return true;
		/* Another thread was first, perhaps with another image: next is that. */
	}
	nt_memory_free(fresh);
	return true;
}

/*
 * The image of one kernel of a module or library for a set of probes: the image (GPU code of the program) that has it, or, if
 * twins (copies with probes) of machine code are made and there is no PTX of the kernel's, one of this kernel alone.
 */
struct nt_image *nt_kernel_image_of(struct nt_owner *owner, struct nt_image *image, const struct nt_set *set, const char *name)
{
	owner = nt_function_library_of(owner);
	if (!nt_settings_by_kernel(image->arch) || !owner->kept.data || !lacks_text(image, name))
		return image;
	const uint8_t *digest = digest_of(owner);
	size_t size = 0;
	uint8_t key[32];
	uint8_t *data = request_of(OF_KEPT_KERNEL, name, digest, 32, &size);
	/* What is in the cache is not asked for. */
	bool is_enough = data && nt_entry_fetch_key(set, image->arch, data, size, key) &&
			 (nt_entry_fetch_is_near(NULL, key, 0) || is_shared(owner, set, digest));
	if (!is_enough) {
		nt_memory_free(data);
		data = request_of(OF_KERNEL, name, owner->kept.data, owner->kept.size, &size);
	}
	NT_FREED uint8_t *request = data;
	if (!data)
		return image;
	struct nt_image_bytes bytes = {data, size, image->kind, true};
	struct nt_image *own = nt_image_of_set(image, &bytes, set, true);
	/* Not one without an entry, as when there are too many images. */
	return own && own->is_of_kernel && own->has_entry && add_made(owner, own) ? own : image;
}
