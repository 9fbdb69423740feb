#include "image/image.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/driver.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/regions.h"
#include "base/scope.h"
#include "base/settings.h"
#include "image/assess.h"
#include "image/backend.h"
#include "image/choice.h"
#include "image/entry_fetch.h"
#include "image/image_log.h"
#include "image/needs.h"
#include "image/passed.h"
#include "image/passed_file.h"
#include "image/requests.h"
#include "image/section.h"
#include "image/sets.h"
#include "memory/own_memory.h"
#include "trace/trace.h"

/* Guards the lists of images and of their kernels. Never held across a driver call or a request. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nt_hash_table images;
static uint32_t image_count, kernel_count;
static uint32_t incomplete_count; /* kernels whose twins lack probes of the run */
static bool in_sections; /* set by nt_image_use_sections: twins come from patched files */

/* Images and their kernels are never freed: about 1.3 KB each. What a program loads beyond these is one to the hook. */
#ifndef NT_IMAGE_MOST
#define NT_IMAGE_MOST 65536u
#endif
#define FURTHER_KERNELS "(kernels of further images)"

/*
 * Have twins (probed copies of kernels) come from the sections of patched files, not from the run. Before the first
 * image is loaded.
 */
void nt_image_use_sections(void)
{
	in_sections = true;
}

/* Libraries whose licence forbids changing them: listed, never rewritten. */
static const char *const vendor_libraries[] = { NEUTRINO_VENDOR_LIBRARIES };

/*
 * The path of the loaded object (program or library) that contains an address, as the dynamic loader has it; NULL if
 * there is none.
 */
static const char *library_of(const void *address)
{
	Dl_info info = {.dli_fname = NULL};

	/* A signal handler that calls exit would wait for the dynamic loader's lock. */
	nt_lock_begin_quiet();
	bool is_found = address && dladdr(address, &info);
	nt_lock_end_quiet();
	return is_found ? info.dli_fname : NULL;
}

/* Whether a path's file name begins as that of a library whose licence forbids changing it. path may be NULL. */
static bool is_vendor_library(const char *path)
{
	if (!path)
		return false;
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	for (size_t i = 0; i < sizeof(vendor_libraries) / sizeof(vendor_libraries[0]); i++)
		if (strncmp(name, vendor_libraries[i], strlen(vendor_libraries[i])) == 0)
			return true;
	return false;
}

/* Whether an address is in a loaded library whose licence forbids changing it. */
bool nt_image_is_vendors(const void *address)
{
	return is_vendor_library(library_of(address));
}

/* The driver's CUDA version, as 12040 for 12.4; 0 if the driver fails. */
static int driver_version(void)
{
	int version = 0;

	nt_driver.cuDriverGetVersion(&version);
	return version;
}

/* A hash for the table of images: the first bytes of the key, which is a hash itself. */
static uint64_t key_hash(const uint8_t key[32])
{
	uint64_t hash;

	memcpy(&hash, key, sizeof(hash));
	return hash;
}

/* The image (GPU code of the program) with that key, or NULL. Under the mutex. */
static struct nt_image *find_image(const uint8_t key[32])
{
	uint64_t hash = key_hash(key);
	struct nt_hashed *found = nt_hashed_first(&images, hash);

	while (found && memcmp(((struct nt_image *)found)->key, key, 32) != 0)
		found = nt_hashed_next(found->next, hash);
	return (struct nt_image *)found;
}

/*
 * Copy bytes into an image (GPU code of the program): the program may free them, or unload its library, before they are
 * needed. Without memory the image has no copy.
 */
static void copy_bytes(struct nt_image *image, const void *data, size_t size)
{
	image->copy = nt_memory_alloc(size);
	if (!image->copy)
		return;
	memcpy(image->copy, data, size);
	image->copy_size = size;
}

/* Free an image (GPU code of the program) that is in no table. */
static void free_image(struct nt_image *image)
{
	nt_entry_fetch_drop(image->begun);
	nt_memory_free(image->copy);
	nt_memory_free(image->source);
	nt_memory_free(image->detail);
	nt_memory_free(image);
}

/* An image of the program, before it has a record: what that will hold. */
struct found {
	const struct nt_image_bytes *bytes;
	const char *source;
	const char *arch;
	const struct nt_set *set; /* of probes */
	struct nt_section_twins *twins; /* NULL: they do not come from the section of a file */
	/* As of an image. */
	enum nt_image_kind kind;
	size_t size;
	const char *ptx_by;
	bool is_of_kernel;
	struct nt_assessment assessment;
};

/* The record of an image (GPU code of the program) with that key, or NULL. Takes the mutex. */
static struct nt_image *known_image(const uint8_t key[32])
{
	nt_lock_take(&mutex);
	struct nt_image *image = find_image(key);
	nt_lock_release(&mutex);
	return image;
}

/*
 * The record of an image (GPU code of the program) that was found, made if it is new; NULL without memory.
 * found->assessment: whether it has twins (copies with probes), and else why not.
 */
static struct nt_image *record_of(struct found *found)
{
	struct nt_assessment *assessment = &found->assessment;
	bool has_entry = assessment->reason == NEUTRINO_REASON_PROBED, from_section = has_entry && found->twins;
	struct nt_image *image = known_image(assessment->key);

	if (image)
		return image;
	if (__atomic_load_n(&image_count, __ATOMIC_RELAXED) >= NT_IMAGE_MOST) {
		*assessment = (struct nt_assessment){.reason = NEUTRINO_REASON_TABLE_FULL};
		snprintf(assessment->detail, sizeof(assessment->detail), "the process has loaded more than %u different images",
			 NT_IMAGE_MOST);
		memset(assessment->key, 0xff, sizeof(assessment->key));
		has_entry = from_section = false;
		found->source = "";
		image = known_image(assessment->key);
		if (image)
			return image;
	}

	/* Make a new one outside the lock, and list it unless another thread has made the same meanwhile. */
	image = nt_memory_alloc_zeroed(1, sizeof(*image));
	if (!image)
		return NULL;
	image->kind = found->kind;
	image->ptx_by = found->ptx_by;
	image->size = found->size;
	image->source = nt_memory_strdup(found->source);
	image->reason = assessment->reason;
	image->detail = *assessment->detail ? nt_memory_strdup(assessment->detail) : NULL;
	image->has_entry = has_entry;
	image->from_section = from_section;
	image->is_of_kernel = found->is_of_kernel;
	image->set = has_entry ? found->set : NULL;
	memcpy(image->key, assessment->key, sizeof(assessment->key));
	snprintf(image->arch, sizeof(image->arch), "%s", found->arch);
	image->driver_version = driver_version();
	/* The entry itself, or the image from which the entry is to be made. */
	if (from_section)
		copy_bytes(image, found->twins->entry, found->twins->entry_size);
	else if (has_entry) {
		copy_bytes(image, found->bytes->data, found->bytes->size);
		/* Its twins are made while the program goes on, until it obtains a kernel. */
		if (!nt_requests_are_on)
			nt_image_begin(image);
	}
	nt_lock_take(&mutex);
	struct nt_image *other = find_image(assessment->key);
	bool added = !other && nt_hashed_add(&images, &image->by_key, key_hash(image->key));
	if (added)
		image->id = __atomic_add_fetch(&image_count, 1, __ATOMIC_RELAXED); /* read without the mutex, too */
	nt_lock_release(&mutex);
	if (!added) {
		free_image(image);
		return other;
	}
	if (has_entry)
		nt_requests_announce(image);
	return image;
}

/*
 * Decide whether an image (GPU code of the program) can have twins (copies with probes) in a run with probes of its own,
 * and make its record; NULL without memory. If it is a cubin without PTX, which was compiled from PTX in this process, the
 * twins are made from a fatbin of both.
 */
static struct nt_image *image_by_run(struct found *found)
{
	struct nt_passed passed = nt_passed_find(found->bytes, found->arch);
	if (!passed.by && found->bytes->kind == NT_IMAGE_CUBIN && !found->bytes->has_text) {
		/* It may be from a file, into which an earlier run has put it. */
		nt_passed_file_keep(found->bytes);
		passed = nt_passed_find(found->bytes, found->arch);
	}
	NT_FREED uint8_t *fatbin = passed.fatbin;
	struct nt_image_bytes both = {fatbin, passed.size, NT_IMAGE_FATBIN, true};

	if (fatbin) {
		found->bytes = &both;
		found->ptx_by = passed.by;
	}
	nt_assess_by_run(found->bytes, found->set, found->arch, found->is_of_kernel, &found->assessment);
	if (found->assessment.reason == NEUTRINO_REASON_NO_PTX && passed.why)
		snprintf(found->assessment.detail, sizeof(found->assessment.detail), "made by %s in this process: %s", passed.by,
			 passed.why);
	if (found->assessment.reason != NEUTRINO_REASON_PROBED)
		nt_assess_identity(found->bytes, found->assessment.key);
	return record_of(found);
}

/*
 * The record of an image (GPU code of the program) with these bytes, made if it is new; NULL without memory. source:
 * path of the file that the driver loaded, NULL if the program gave it bytes in memory. caller: return address of the
 * program's call. may_be_chosen: whether any launch of its kernels can be; else it needs no twins (copies with probes).
 */
struct nt_image *nt_image_of(const struct nt_image_bytes *bytes, const char *source, const void *caller,
			     bool may_be_chosen)
{
	const char *library = source ? NULL : library_of(bytes->data);
	const char *caller_library = source ? NULL : library_of(caller);
	const char *shown = source ? source : library ? library : caller_library ? caller_library : "";
	struct nt_section_twins twins;
	char arch[NT_DRIVER_ARCH] = "";
	struct found found = {.bytes = bytes, .source = shown, .arch = arch, .set = nt_sets_now(), .kind = bytes->kind,
			      .size = bytes->size, .twins = in_sections ? &twins : NULL, .assessment = {.reason = NEUTRINO_REASON_PROBED}};
	CUdevice device;

	if (nt_driver_arch(arch, &device))
		nt_image_log_device(device, arch);
	if (is_vendor_library(source ? source : library) || is_vendor_library(caller_library))
		found.assessment.reason = NEUTRINO_REASON_VENDOR;
	else if (nt_settings()->is_other_rank || !may_be_chosen)
		found.assessment.reason = NEUTRINO_REASON_NOT_SELECTED;
	else if (in_sections)
		nt_assess_by_section(bytes, source, arch, &twins, &found.assessment);
	else
		return image_by_run(&found);
	/* Images are listed by key: without an entry, by an identity in its place. */
	if (found.assessment.reason != NEUTRINO_REASON_PROBED)
		nt_assess_identity(bytes, found.assessment.key);
	else if (in_sections)
		nt_section_use(&twins);
	return record_of(&found);
}

/*
 * The record that an image (GPU code of the program) has for a set of probes, made if it is new; NULL without memory.
 * image: its record for another set, with an entry; bytes: as they were for that. is_of_kernel: they are those by which
 * the entry of one kernel alone is asked for.
 */
struct nt_image *nt_image_of_set(const struct nt_image *image, const struct nt_image_bytes *bytes, const struct nt_set *set,
				 bool is_of_kernel)
{
	struct found found = {.bytes = bytes, .source = image->source ? image->source : "", .arch = image->arch, .set = set,
			      .kind = image->kind, .size = image->size, .is_of_kernel = is_of_kernel,
			      .assessment = {.reason = NEUTRINO_REASON_PROBED}};

	return image_by_run(&found);
}

/*
 * Have an image's twins (copies with probes) made while the caller goes on, unless that was asked for, or another
 * thread is getting them. By one thread.
 */
void nt_image_begin(struct nt_image *image)
{
	int unresolved = UNRESOLVED;

	/* Meanwhile no other thread resolves it, and frees the copy. */
	if (image->begun_pid || image->from_section ||
	    !__atomic_compare_exchange_n(&image->state, &unresolved, RESOLVING, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return;
	if (image->copy) {
		image->begun_pid = getpid();
		image->begun_ns = nt_clock_now_ns();
		image->begun = nt_entry_fetch_begin(image->set, image->key, image->arch, image->driver_version, image->copy, image->copy_size);
	}
	__atomic_store_n(&image->state, UNRESOLVED, __ATOMIC_RELEASE);
}

/* Give up what nt_image_begin has begun. By the same thread. */
void nt_image_drop(struct nt_image *image)
{
	nt_entry_fetch_drop(image->begun);
	image->begun = NULL;
}

/*
 * Whether getting an image's twins (copies with probes) takes no wait for the process that makes them, as far as is
 * known: what was begun is waited for so many milliseconds at most. True as well when that has taken NEUTRINO_TIMEOUT.
 */
bool nt_image_is_answered(struct nt_image *image, unsigned milliseconds)
{
	return image->from_section || nt_entry_fetch_is_near(image->begun, image->key, milliseconds) ||
	       (image->begun && nt_clock_now_ns() - image->begun_ns > nt_entry_fetch_timeout());
}

/*
 * Use the copy of an entry (the copies with probes of an image's kernels) from a patched file, if it is valid; else the
 * image gets a reason. By the one thread that resolves the image.
 */
static void open_copied_entry(struct nt_image *image)
{
	if (image->copy && nt_entry_open(image->copy, image->copy_size, image->key, &image->entry)) {
		image->copy = NULL; /* it belongs to the entry now */
		return;
	}
	/* Another file may have the same twins undamaged: its image must not find this one by its key. */
	nt_lock_take(&mutex);
	memset(image->key, 0, sizeof(image->key));
	nt_lock_release(&mutex);
	image->reason = NEUTRINO_REASON_NOT_PATCHED;
	image->detail = nt_memory_strdup(image->copy ? "the twins in its file are damaged; patch it again" : "not enough memory for its twins");
}

/*
 * Get the entry (the kernels with probes) of an image (GPU code of the program), in a run with probes of its own, from
 * the cache or from the process that puts probes into kernels, and wait for that. Without one the image gets a reason.
 * Returns whether it was in the cache. By the one thread that resolves the image.
 */
static bool fetch_entry(struct nt_image *image)
{
	char error[512] = "";
	struct nt_begun *begun = image->begun;

	/* After a fork, the answer is for the parent. */
	if (image->begun_pid != getpid())
		begun = NULL;
	if (!begun && nt_entry_fetch_read(image->key, &image->entry))
		return true;
	image->begun = NULL;
	if (!image->copy || !nt_entry_fetch_request(begun, image->set, image->key, image->arch, image->driver_version, image->copy,
						     image->copy_size, &image->entry, error, sizeof(error))) {
		image->reason = NEUTRINO_REASON_HELPER;
		image->detail = nt_memory_strdup(error);
	}
	return false;
}

/*
 * Have an image (GPU code of the program) go without twins (copies with probes), because nothing is probed any more. By
 * the one thread that resolves the image.
 */
static void resolve_without_twins(struct nt_image *image)
{
	image->reason = NEUTRINO_REASON_NOT_SELECTED;
	nt_image_drop(image);
}

/*
 * The last step of resolving an image (getting its twins): log it, and let other threads use it. cached: whether its
 * twins were in the cache; begin: since when it was resolved, in nanoseconds. By the same thread.
 */
static void finish_resolving(struct nt_image *image, bool cached, uint64_t begin)
{
	if (image->reason == NEUTRINO_REASON_PROBED)
		nt_entry_index(&image->entry);
	/* The image's bytes, if these were copied, are not needed any more. */
	nt_memory_free(image->copy);
	image->copy = NULL;
	nt_image_log_image(image, cached, (double)(nt_clock_now_ns() - begin) / 1e6);
	__atomic_store_n(&image->state, RESOLVED, __ATOMIC_RELEASE);
}

/*
 * Get an image's twins (copies with probes) if that takes no wait: from the section of its file, or the cache. Returns
 * whether the image is resolved now.
 */
bool nt_image_resolve_at_once(struct nt_image *image)
{
	int unresolved = UNRESOLVED;
	uint64_t begin = nt_clock_now_ns();
	struct nt_entry entry;

	if (image->from_section)
		nt_image_resolve(image);
	if (nt_image_is_resolved(image) || !nt_entry_fetch_read(image->key, &entry))
		return nt_image_is_resolved(image);
	if (!__atomic_compare_exchange_n(&image->state, &unresolved, RESOLVING, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE)) {
		/* By another thread, which may wait for the listener. */
		nt_memory_free((void *)(uintptr_t)entry.data);
		return nt_image_is_resolved(image);
	}
	image->entry = entry;
	finish_resolving(image, true, begin);
	return true;
}

/*
 * Get an image's twins (copies with probes), once. Takes long if they have to be made; other threads wait for the
 * first.
 */
void nt_image_resolve(struct nt_image *image)
{
	int unresolved = UNRESOLVED;
	uint64_t begin = nt_clock_now_ns();
	bool cached = true;

	/* Another thread resolves it, or has done so: wait. */
	if (!__atomic_compare_exchange_n(&image->state, &unresolved, RESOLVING, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE)) {
		while (__atomic_load_n(&image->state, __ATOMIC_ACQUIRE) == RESOLVING)
			nt_clock_sleep_us(500);
		return;
	}
	/* Twins that no launch can have are not waited for. */
	if (image->reason == NEUTRINO_REASON_PROBED && nt_choice_has_ended())
		resolve_without_twins(image);
	else if (image->from_section)
		open_copied_entry(image);
	else if (image->reason == NEUTRINO_REASON_PROBED)
		cached = fetch_entry(image);
	finish_resolving(image, cached, begin);
}

/*
 * Write the files of a kernel, its event, and a line for event.log into the trace, and count it if its twin (copy with
 * probes) lacks some of the probes. detail: what the kernel's reason alone does not say, or NULL.
 */
static void log_kernel(const struct nt_image *image, const struct nt_kernel *kernel, const char *detail)
{
	nt_image_log_kernel(image, kernel, detail);
	if (kernel->reason == NEUTRINO_REASON_PROBED && detail && *detail)
		__atomic_add_fetch(&incomplete_count, 1, __ATOMIC_RELAXED);
}

/* The kernel of that name in an image (GPU code of the program), or NULL. Under the mutex. */
static struct nt_kernel *find_kernel(const struct nt_image *image, const char *name)
{
	uint64_t hash = nt_hash_text(name);
	struct nt_hashed *found = nt_hashed_first(&image->kernels, hash);

	while (found && strcmp(((struct nt_kernel *)found)->name, name) != 0)
		found = nt_hashed_next(found->next, hash);
	return (struct nt_kernel *)found;
}

/*
 * Set what launches of a kernel need, by the entry (the kernels with probes) of its image (GPU code of the program),
 * which is resolved. Returns the kernel's reason, and in *detail what that does not say, or NULL. Without memory it is
 * PROBED without maps (stores of probe results).
 */
static enum neutrino_reason describe_kernel(const struct nt_image *image, struct nt_kernel *kernel, const char **detail)
{
	const struct nt_entry *entry = &image->entry;

	*detail = image->detail;
	if (image->reason != NEUTRINO_REASON_PROBED)
		return image->reason;
	kernel->twin = nt_entry_find(entry, kernel->name);
	*detail = kernel->twin ? nt_entry_string(entry, kernel->twin->detail_offset)
			       : "the image's PTX has no kernel of this name";
	enum neutrino_reason reason = kernel->twin ? kernel->twin->reason : NEUTRINO_REASON_NO_PTX;
	if (reason != NEUTRINO_REASON_PROBED)
		return reason;
	kernel->backend = &nt_backend_table[NT_BACKEND_TWIN];
	kernel->maps = nt_entry_maps(entry, kernel->twin);
	kernel->map_count = entry->header->maps;
	for (uint32_t i = 0; kernel->maps && i < kernel->map_count; i++) {
		kernel->log_count += nt_regions_is_log(&kernel->maps[i]);
		kernel->run_count += nt_regions_is_of_run(&kernel->maps[i]);
	}
	if (kernel->log_count) {
		struct nt_need kept = nt_needs_of(image->key, kernel->name);
		/* nt_image_keep_needs reads them. */
		nt_lock_take(&mutex);
		kernel->log_kept = kept;
		kernel->log_wanted = kept.units;
		kernel->log_per_warp = kept.per_warp;
		nt_lock_release(&mutex);
	}
	kernel->parameters = (const void *)(entry->data + kernel->twin->parameters_offset);
	kernel->parameter_count = kernel->twin->parameters;
	kernel->block_offset = kernel->twin->block_offset;
	kernel->block_size = kernel->twin->block_size;
	kernel->variable_count = kernel->twin->variables;
	kernel->lanes = kernel->twin->lanes ? kernel->twin->lanes : NEUTRINO_LANES;
	return reason;
}

/*
 * The record of the kernel of that name in an image (GPU code of the program), made and logged if it is new: not ready
 * if its image is not resolved. NULL without memory.
 */
struct nt_kernel *nt_image_kernel(struct nt_image *image, const char *name)
{
	const char *detail = NULL;
	/* One with an entry is of another reason, which changes meanwhile. */
	if (!image->has_entry && image->reason == NEUTRINO_REASON_TABLE_FULL)
		name = FURTHER_KERNELS;

	nt_lock_take(&mutex);
	struct nt_kernel *kernel = find_kernel(image, name);
	nt_lock_release(&mutex);
	if (kernel)
		return kernel;

	/* Make a new one outside the lock, and list it unless another thread has made the same meanwhile. */
	kernel = nt_memory_alloc_zeroed(1, sizeof(*kernel));
	if (!kernel)
		return NULL;
	/* Without memory for these, and for its maps, the kernel is not listed. */
	kernel->name = nt_memory_strdup(name);
	kernel->image = image;
	kernel->set = image->set ? image->set->number : 0;
	kernel->reason = NEUTRINO_REASON_NOT_READY;
	if (kernel->name && (!image->has_entry || nt_image_is_resolved(image)))
		kernel->reason = describe_kernel(image, kernel, &detail);
	bool has_memory = kernel->name && (kernel->maps || kernel->reason != NEUTRINO_REASON_PROBED);
	nt_lock_take(&mutex);
	struct nt_kernel *other = kernel->name ? find_kernel(image, name) : NULL;
	bool added = !other && has_memory &&
		     nt_hashed_add(&image->kernels, &kernel->by_name, nt_hash_text(kernel->name));
	bool is_ready = kernel->reason != NEUTRINO_REASON_NOT_READY;
	if (added) {
		kernel->id = __atomic_add_fetch(&kernel_count, 1, __ATOMIC_RELAXED);
		nt_counters_make(kernel->id);
		/*
		 * Once it is listed, another thread may request its twin, and nt_image_complete sets its reason and logs it
		 * again: after this, since whoever finds it has had the mutex.
		 */
		if (!is_ready)
			log_kernel(image, kernel, detail);
	}
	nt_lock_release(&mutex);
	if (!added) {
		nt_memory_free((void *)kernel->maps);
		nt_memory_free(kernel->name);
		nt_memory_free(kernel);
		return other;
	}
	/* Outside the mutex: its files may be large. */
	if (is_ready)
		log_kernel(image, kernel, detail);
	return kernel;
}

/*
 * The image (GPU code of the program) is resolved: set what is known of a kernel that was obtained before, and log it
 * again. By one thread.
 */
void nt_image_complete(struct nt_kernel *kernel)
{
	const char *detail;

	if (kernel->reason != NEUTRINO_REASON_NOT_READY)
		return;
	enum neutrino_reason reason = describe_kernel(kernel->image, kernel, &detail);
	/* Without memory. */
	if (reason == NEUTRINO_REASON_PROBED && !kernel->maps)
		reason = NEUTRINO_REASON_LOAD;
	__atomic_store_n(&kernel->reason, reason, __ATOMIC_RELEASE);
	log_kernel(kernel->image, kernel, detail);
}

/*
 * What memory the logs (to which threads append records) of an image's kernels wanted, where that is more than the
 * cache has: `most` rows at most; returns how many. ret may be NULL. Under the mutex.
 */
static uint32_t needs_of(const struct nt_image *image, struct nt_need *ret, uint32_t most)
{
	uint32_t count = 0;

	for (uint32_t i = 0; image->kernels.buckets && i < 1u << image->kernels.bits; i++)
		for (struct nt_hashed *record = image->kernels.buckets[i]; record; record = record->next) {
			const struct nt_kernel *kernel = (const struct nt_kernel *)record;
			uint64_t wanted = __atomic_load_n(&kernel->log_wanted, __ATOMIC_RELAXED);
			uint64_t per_warp = __atomic_load_n(&kernel->log_per_warp, __ATOMIC_RELAXED);
			bool is_kept = wanted <= kernel->log_kept.units && per_warp <= kernel->log_kept.per_warp;
			if (is_kept || count == most)
				continue;
			if (ret)
				ret[count] = (struct nt_need){nt_hash_text(kernel->name), wanted, per_warp};
			count++;
		}
	return count;
}

/*
 * Keep in the cache, for later processes, what memory the logs (to which threads append records) of all images' kernels
 * wanted, where it is more than is kept there.
 */
void nt_image_keep_needs(void)
{
	nt_lock_take(&mutex);
	for (uint32_t i = 0; images.buckets && i < 1u << images.bits; i++)
		for (struct nt_hashed *record = images.buckets[i]; record; record = record->next) {
			const struct nt_image *image = (const struct nt_image *)record;
			uint32_t most = needs_of(image, NULL, UINT32_MAX);
			struct nt_need *needs = most ? nt_memory_alloc(most * sizeof(*needs)) : NULL;
			if (!needs)
				continue;
			/* The drain thread may have learnt more since. */
			nt_needs_keep(image->key, needs, needs_of(image, needs, most));
			nt_memory_free(needs);
		}
	nt_lock_release(&mutex);
}

/*
 * Write the names of kernels that were launched to ret, of `most` at most, each once; returns how many there are.
 * *are_unselected: whether all of them have no twin (copy with probes) because -k or --filter has not chosen them.
 */
uint32_t nt_image_launched(const char **ret, uint32_t most, bool *are_unselected)
{
	uint32_t count = 0;

	*are_unselected = true;
	nt_lock_take(&mutex);
	for (uint32_t i = 0; images.buckets && i < 1u << images.bits; i++)
		for (const struct nt_hashed *record = images.buckets[i]; record; record = record->next) {
			const struct nt_image *image = (const struct nt_image *)record;
			for (uint32_t j = 0; image->kernels.buckets && j < 1u << image->kernels.bits; j++)
				for (const struct nt_hashed *row = image->kernels.buckets[j]; row; row = row->next) {
					const struct nt_kernel *kernel = (const struct nt_kernel *)row;
					bool is_known = false;
					if (!nt_counters_total(kernel->id, NEUTRINO_REASON_NOT_SELECTED))
						continue;
					*are_unselected &= image->reason == NEUTRINO_REASON_PROBED &&
							   nt_kernel_reason(kernel) == NEUTRINO_REASON_NOT_SELECTED;
					for (uint32_t k = 0; k < count && k < most; k++)
						is_known |= strcmp(ret[k], kernel->name) == 0;
					if (!is_known && count < most)
						ret[count] = kernel->name;
					count += !is_known;
				}
		}
	nt_lock_release(&mutex);
	return count;
}

/* How many kernels there are in all images: their ids are 1 to this number. */
uint32_t nt_image_kernels(void)
{
	return __atomic_load_n(&kernel_count, __ATOMIC_RELAXED);
}

/* How many kernels have twins (copies with probes) without some of the run's probes. */
uint32_t nt_image_incomplete(void)
{
	return __atomic_load_n(&incomplete_count, __ATOMIC_RELAXED);
}
