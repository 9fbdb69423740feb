#include "image/registry.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/hot.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/quiet.h"
#include "base/scope.h"
#include "base/settings.h"
#include "base/wake.h"
#include "drain/drain.h"
#include "image/attributes.h"
#include "image/backend.h"
#include "image/choice.h"
#include "image/kernel_image.h"
#include "image/prepare.h"
#include "image/requests.h"
#include "image/twin.h"
#include "memory/greens.h"
#include "memory/pool.h"
#include "trace/counters.h"

/*
 * Guards the lists and changes of the tables; look-ups in the tables are lock-free. Never held across a call of the driver
 * or a request to the listener. Records are freed after a grace period, since another thread may be reading them.
 */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nt_owner *owners;
static struct nt_handles owner_table;

/*
 * If the current context is a new one at the address of an old one whose end was not seen, forget what was known of the
 * old one (memory for results, functions), before anything is added for the new one.
 */
static void forget_if_renewed(void)
{
	enum { LIMIT_MS = 1000 };
	CUcontext context = NULL;

	if (nt_driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context)
		nt_pool_context_gone(context, LIMIT_MS);
}

/* Free the record of a function, once no reader can have it any more: nt_grace_retire calls it. */
static void release_function(struct nt_retired *record)
{
	struct nt_function *function = (void *)((char *)record - offsetof(struct nt_function, retired));

	for (int i = 0; i < NT_FUNCTION_CONTEXTS; i++)
		nt_memory_free(function->addresses[i]);
	nt_memory_free(function->parameters);
	nt_attributes_release(function);
	nt_memory_free(function);
}

/* Free the record of a module or library, once no reader can have it any more: nt_grace_retire calls it. */
static void release_owner(struct nt_retired *record)
{
	struct nt_owner *owner = (void *)((char *)record - offsetof(struct nt_owner, retired));

	for (struct nt_made *made = owner->made.next, *next; made; made = next) {
		next = made->next;
		nt_memory_free(made->parts);
		nt_memory_free(made);
	}
	nt_memory_free(owner->made.parts);
	nt_kernel_image_release(owner);
	nt_memory_free(owner);
}

/*
 * Have owners (modules and libraries, linked by next) and their functions freed once no reader can have them. They are
 * out of the tables already.
 */
static void retire_all(struct nt_owner *owner)
{
	while (owner) {
		struct nt_owner *next = owner->next;
		for (struct nt_function *function = owner->functions; function;) {
			struct nt_function *next_function = function->next;
			nt_grace_retire(&function->retired, release_function);
			function = next_function;
		}
		nt_grace_retire(&owner->retired, release_owner);
		owner = next;
	}
	/* The drain thread frees them; a process without probed kernels has none until now. */
	nt_drain_thread_start();
	nt_wake_drain_from(NT_ASLEEP);
}

/*
 * Whether a kernel of the image (GPU code of the program), which the program obtains, has to do without a twin (copy
 * with probes) for now; false if the image's twins are known, which they are after this call if it takes no long wait.
 */
static bool is_deferred(struct nt_image *image)
{
	if (!nt_requests_are_on || !image->has_entry)
		return false;
	return nt_requests_are_by_launch() ? !nt_image_is_resolved(image) : !nt_image_resolve_at_once(image);
}

/*
 * Whether a function's twin (copy with probes) is loaded later, by the thread in the background, instead of by this
 * thread now.
 */
static bool is_later(const struct nt_function *function)
{
	if (!nt_requests_are_on)
		return false;
	enum neutrino_reason reason = nt_prepare_reason(function);
	/* If that thread is loading for the same module, nobody waits for it either. */
	bool is_loading = __atomic_load_n(&nt_function_library_of(function->owner)->users, __ATOMIC_ACQUIRE);
	return reason == NEUTRINO_REASON_NOT_READY ||
	       (reason == NEUTRINO_REASON_PROBED && (nt_requests_are_by_launch() || is_loading));
}

/*
 * A record of a function of the program, in no list yet, whose twin (copy with probes) is not ready; NULL without memory.
 * handle: the driver's; kernel: of the image for the set of probes.
 */
struct nt_function *nt_registry_make(struct nt_owner *owner, void *handle, struct nt_kernel *kernel, bool is_kernel)
{
	struct nt_function *function = nt_memory_alloc_aligned(_Alignof(struct nt_function), sizeof(*function));

	if (function)
		*function = (struct nt_function){
			.handle = {handle}, .owner = owner, .kernel = kernel, .kernel_id = kernel->id,
			.counters = nt_counters_of(kernel->id), .is_kernel = is_kernel, .first = function,
			.set = kernel->image->set, .reason = NEUTRINO_REASON_NOT_READY};
	return function;
}

/*
 * Register a function that the program has obtained, and prepare it for launches. Nothing is done if it is known
 * already or its module is unloaded meanwhile. handle: the driver's. In a reading section (what is found in it is not
 * freed). False if another set of probes has come into force meanwhile: then this is to be done again, for that.
 */
static bool add_function(struct nt_owner *owner, void *handle, struct nt_kernel *kernel, bool is_kernel)
{
	struct nt_function *function = nt_registry_make(owner, handle, kernel, is_kernel);

	if (!function)
		return true;
	forget_if_renewed();
	/* Of a CUfunction: its module's context. One from a library's kernel was obtained for the current context. */
	if (!is_kernel && owner->context)
		function->context = owner->context;
	else if (!is_kernel)
		nt_driver.cuCtxGetCurrent(&function->context);
	if (is_later(function)) {
		function->reason = NEUTRINO_REASON_NOT_READY;
		if (is_kernel)
			nt_driver.cuCtxGetCurrent(&function->wanted_in);
	} else {
		function->reason = nt_prepare_function(function, 0);
	}
	bool is_ready = function->reason != NEUTRINO_REASON_NOT_READY;
	nt_lock_take(&mutex);
	/* The driver may have given the handle of a function that is gone to one of another owner, which replaces it. */
	struct nt_function *other = nt_handles_find(&nt_function_table, handle);
	bool is_current = !function->set || function->set == nt_sets_now();
	bool added = is_current && !owner->is_gone && (!other || other->owner != owner) &&
		     nt_handles_put(&nt_function_table, &function->handle);
	if (added) {
		function->next = owner->functions;
		owner->functions = function;
	}
	nt_lock_release(&mutex);
	/* In the reading section of the caller. */
	if (added && !is_ready)
		nt_requests_added(function);
	if (!added)
		release_function(&function->retired);
	return is_current;
}

/*
 * The record of a module or library by the driver's handle; NULL if it is not known, or is of the other sort.
 * Lock-free, in a reading section (what is found in it is not freed).
 */
static struct nt_owner *find_owner(void *handle, bool is_library)
{
	struct nt_owner *owner = handle ? nt_handles_find(&owner_table, handle) : NULL;

	return owner && owner->is_library == is_library ? owner : NULL;
}

/*
 * Register a module or library that the program has loaded from an image (GPU code of the program). bytes: of the image,
 * or NULL; alias: the library that the driver made this module of, or NULL. Takes the mutex.
 */
static void add_owner(void *handle, bool is_library, struct nt_image *image, const struct nt_image_bytes *bytes,
		      struct nt_owner *alias)
{
	struct nt_owner *owner = nt_memory_alloc_zeroed(1, sizeof(*owner));

	if (!owner)
		return;
	owner->handle.handle = handle;
	owner->is_library = is_library;
	owner->made.image = image;
	owner->alias = alias;
	if (bytes)
		nt_kernel_image_keep(owner, bytes);
	if (!is_library) {
		forget_if_renewed();
		nt_driver.cuCtxGetCurrent(&owner->context);
	}
	nt_lock_take(&mutex);
	bool added = !(alias && alias->is_gone) && nt_handles_put(&owner_table, &owner->handle);
	if (added) {
		owner->next = owners;
		owner->link = &owners;
		if (owners)
			owners->link = &owner->next;
		owners = owner;
	}
	if (added && alias) {
		owner->next_alias = alias->aliases;
		owner->alias_link = &alias->aliases;
		if (alias->aliases)
			alias->aliases->alias_link = &owner->next_alias;
		alias->aliases = owner;
	}
	nt_lock_release(&mutex);
	if (!added)
		release_owner(&owner->retired);
}

/*
 * Register a module or library that the program has just loaded from an image (GPU code of the program). source: path
 * of its file, NULL if it was in memory. caller: return address of the program's call, by which its library is found.
 */
void nt_registry_loaded(void *handle, bool is_library, const struct nt_image_bytes *bytes, const char *source,
			const void *caller)
{
	CUcontext context = NULL;

	if (!is_library)
		nt_driver.cuCtxGetCurrent(&context);
	struct nt_image *image = nt_image_of(bytes, source, caller, nt_choice_has_image(context));

	if (image)
		add_owner(handle, is_library, image, bytes, NULL);
}

/* Register a module that the driver made of a library for the current context, unless it is known already. */
void nt_registry_alias(CUmodule module, CUlibrary library)
{
	uint32_t *reading = nt_grace_reading_begin();
	struct nt_owner *owner = find_owner(library, true);

	if (owner && !find_owner(module, false))
		add_owner(module, false, owner->made.image, NULL, owner);
	nt_grace_reading_end(reading);
}

/*
 * What nt_registry_obtained does, in the reading section (what is found in it is not freed) that it has begun: find the
 * function's kernel by name, get the image's twins (copies with probes), and register the function. False if it is to be
 * called again, since another set of probes is in force now.
 */
static bool register_obtained(void *owner_handle, bool is_library, void *handle, const char *name)
{
	struct nt_owner *owner = find_owner(owner_handle, is_library);

	if (!owner || !handle)
		return true;
	struct nt_function *function = nt_handles_find(&nt_function_table, handle);
	if (function && nt_function_library_of(function->owner) == nt_function_library_of(owner))
		return true; /* it is registered already */
	/* Functions that look up a name are not in every driver; without a name its kernels run unprobed. */
	if (!name && (is_library ? !nt_driver.cuKernelGetName || nt_driver.cuKernelGetName(&name, handle)
				 : !nt_driver.cuFuncGetName || nt_driver.cuFuncGetName(&name, handle)))
		return true;
	struct nt_image *image = nt_function_image_for(owner, nt_sets_now());
	if (!image)
		return true;
	if (image->has_entry && !is_deferred(image))
		nt_image_resolve(image);
	image = nt_kernel_image_of(owner, image, nt_sets_now(), name);
	if (!is_deferred(image))
		nt_image_resolve(image);
	struct nt_kernel *kernel = nt_image_kernel(image, name);
	return !kernel || add_function(owner, handle, kernel, is_library);
}

/*
 * Register a function that the program has obtained from a module or library, and prepare it for launches: this gets
 * its image's twins (copies with probes), which may take long. name: of the kernel, NULL to ask the driver for it.
 */
void nt_registry_obtained(void *owner_handle, bool is_library, void *handle, const char *name)
{
	uint32_t *reading = nt_grace_reading_begin();

	while (!register_obtained(owner_handle, is_library, handle, name))
		;
	nt_grace_reading_end(reading);
}

/* Register the CUfunction (for one context) that the program has obtained of a CUkernel (for all contexts). */
void nt_registry_function_of(CUkernel kernel, CUfunction handle)
{
	uint32_t *reading = nt_grace_reading_begin();
	bool is_done;

	do {
		struct nt_function *origin = nt_function_find(kernel);
		struct nt_function *known = nt_function_find(handle);
		/* Unless the CUkernel is not registered, or the CUfunction is already. */
		is_done = !origin || !origin->is_kernel || (known && known->kernel == origin->kernel) ||
			  add_function(origin->owner, handle, origin->kernel, false);
	} while (!is_done);
	nt_grace_reading_end(reading);
}

/* Take one module or library and its functions out of all lists and tables, and mark it as gone. Under the lock. */
static void unlist_owner(struct nt_owner *owner)
{
	*owner->link = owner->next;
	if (owner->next)
		owner->next->link = owner->link;
	if (owner->alias_link) {
		*owner->alias_link = owner->next_alias;
		if (owner->next_alias)
			owner->next_alias->alias_link = owner->alias_link;
	}
	owner->is_gone = true;
	nt_handles_remove(&owner_table, &owner->handle);
	for (struct nt_function *function = owner->functions; function; function = function->next)
		nt_handles_remove(&nt_function_table, &function->handle);
}

/*
 * Take a module or library, the modules made of it, and their functions out of all lists and tables; returns them,
 * linked by next, for retire_all. NULL if another thread has done so. Under the lock.
 */
static struct nt_owner *unlist_with_aliases(struct nt_owner *gone)
{
	struct nt_owner *taken = NULL;

	if (gone->is_gone)
		return NULL; /* by another thread */
	while (gone->aliases) {
		struct nt_owner *alias = gone->aliases;
		unlist_owner(alias);
		alias->next = taken;
		taken = alias;
	}
	unlist_owner(gone);
	gone->next = taken;
	return gone;
}

/*
 * Just before the program unloads a module or library: forget its functions, and unload its twins (copies with probes).
 */
void nt_registry_unloading(void *handle, bool is_library)
{
	uint32_t *reading = nt_grace_reading_begin();
	struct nt_owner *owner = find_owner(handle, is_library), *taken = NULL;

	if (owner) {
		nt_lock_take(&mutex);
		taken = unlist_with_aliases(owner);
		nt_lock_release(&mutex);
	}
	if (taken) {
		nt_twin_unload_all(owner);
		retire_all(taken);
	}
	nt_grace_reading_end(reading);
}

/*
 * Forget the modules of a context that the program destroys; the driver unloads them with it, our twins (copies with
 * probes) included.
 */
static void forget_owners(CUcontext context)
{
	struct nt_handle_rows *rows = nt_handles_rows(&owner_table);

	for (uint32_t i = 0; rows && i < 1u << rows->bits; i++) {
		struct nt_handle *row = __atomic_load_n(&rows->rows[i], __ATOMIC_ACQUIRE);
		struct nt_owner *owner = (struct nt_owner *)row;
		if (!row || row == &nt_handles_gone || owner->is_library || owner->context != context)
			continue;
		nt_lock_take(&mutex);
		struct nt_owner *taken = unlist_with_aliases(owner);
		nt_lock_release(&mutex);
		retire_all(taken);
	}
}

/* Forget what a function of a library has in a context that is destroyed. */
static void forget_function(struct nt_function *function, CUcontext context)
{
	CUcontext wanted = context;

	/* Its library may still list it. */
	if (!function->is_kernel && function->context == context)
		nt_function_set_reason(function, NEUTRINO_REASON_CONTEXT);
	__atomic_compare_exchange_n(&function->wanted_in, &wanted, NULL, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	for (int j = 0; j < NT_FUNCTION_CONTEXTS; j++) {
		struct nt_addresses *addresses = __atomic_load_n(&function->addresses[j], __ATOMIC_ACQUIRE);
		/* Not freed, since a launch may be reading it; NULL equals no context. */
		if (addresses && __atomic_load_n(&addresses->context, __ATOMIC_ACQUIRE) == context)
			__atomic_store_n(&addresses->context, NULL, __ATOMIC_RELEASE);
	}
}

/*
 * Forget what functions of libraries, which outlive a context, have in it: their CUfunctions for it, and stored
 * addresses.
 */
static void forget_functions(CUcontext context)
{
	struct nt_handle_rows *rows = nt_handles_rows(&nt_function_table);

	for (uint32_t i = 0; rows && i < 1u << rows->bits; i++) {
		struct nt_handle *row = __atomic_load_n(&rows->rows[i], __ATOMIC_ACQUIRE);
		struct nt_function *function = (struct nt_function *)row;
		if (!row || row == &nt_handles_gone)
			continue;
		if (!function->is_kernel && function->context == context) {
			nt_lock_take(&mutex);
			nt_handles_remove(&nt_function_table, row);
			nt_lock_release(&mutex);
		}
		/* Of all sets of probes. */
		for (function = function->first; function; function = nt_function_more(function))
			forget_function(function, context);
	}
}

/*
 * A context is destroyed: forget its modules and functions. The tables are walked without the lock: what is added
 * meanwhile is not of the context that goes.
 */
void nt_registry_forget_context(CUcontext context)
{
	uint32_t *reading = nt_grace_reading_begin();

	forget_owners(context);
	forget_functions(context);
	nt_grace_reading_end(reading);
}

/*
 * Prepare all CUkernels with twins (copies with probes) for launches in a context, which is current; and its memory for
 * results. Not on the launch path.
 */
void nt_registry_prepare_context(CUcontext context)
{
	struct nt_function **list = NULL;
	size_t count = 0, capacity = 0;
	uint32_t *reading = nt_grace_reading_begin();

	/* Collect the functions under the lock, and prepare them without it, since that calls the driver. */
	nt_lock_take(&mutex);
	for (struct nt_owner *owner = owners; owner; owner = owner->next)
		for (struct nt_function *function = owner->functions; function; function = function->next) {
			if (!function->is_kernel || nt_function_reason(function) != NEUTRINO_REASON_PROBED)
				continue;
			if (count == capacity) {
				size_t larger = capacity ? 2 * capacity : 64;
				struct nt_function **moved = nt_memory_realloc(list, larger * sizeof(*list));
				if (!moved)
					break; /* the others run unprobed in this context */
				list = moved;
				capacity = larger;
			}
			list[count++] = function;
			/* Keeps the twins loaded until they are prepared. */
			__atomic_add_fetch(&nt_function_library_of(owner)->users, 1, __ATOMIC_ACQ_REL);
		}
	nt_lock_release(&mutex);

	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	for (size_t i = 0; i < count; i++) {
		struct nt_owner *owner = nt_function_library_of(list[i]->owner);
		list[i]->kernel->backend->prepare(list[i], context);
		__atomic_sub_fetch(&owner->users, 1, __ATOMIC_ACQ_REL);
	}
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	struct nt_pool *pool = nt_pool_prepare(context);
	for (size_t i = 0; i < count; i++)
		nt_backend_expect(list[i]->kernel, pool);
	nt_grace_reading_end(reading);
	nt_memory_free(list);
}

/*
 * The next function of the kernel whose twin (copy with probes) is not loaded yet, after so many that are skipped; NULL
 * if there is none. Its module is marked as in use, so that its twins stay loaded; the caller ends that. Takes the
 * mutex.
 */
static struct nt_function *take_unready(const struct nt_kernel *kernel, unsigned skipped)
{
	struct nt_function *found = NULL;

	nt_lock_take(&mutex);
	for (struct nt_owner *owner = owners; owner && !found; owner = owner->next) {
		if (owner->made.image != kernel->image && !owner->made.next)
			continue;
		for (struct nt_function *function = owner->functions; function && !found; function = function->next)
			if (function->kernel == kernel && nt_function_reason(function) == NEUTRINO_REASON_NOT_READY &&
			    !skipped--)
				found = function;
	}
	if (found)
		__atomic_add_fetch(&nt_function_library_of(found->owner)->users, 1, __ATOMIC_ACQ_REL);
	nt_lock_release(&mutex);
	return found;
}

/*
 * Load the twins (copies with probes) of a kernel's functions that are not ready, now that they have been made. False
 * if a context was not idle within so many milliseconds: then this is to be called again. By one thread at a time, in
 * which no context is current.
 */
bool nt_registry_make_ready(struct nt_kernel *kernel, unsigned milliseconds)
{
	uint32_t *reading = nt_grace_reading_begin();
	struct nt_function *function;
	unsigned skipped = 0;

	while ((function = take_unready(kernel, skipped))) {
		struct nt_owner *owner = nt_function_library_of(function->owner);
		enum neutrino_reason reason = nt_prepare_function(function, milliseconds);
		if (reason == NEUTRINO_REASON_NOT_READY)
			skipped++;
		else
			nt_attributes_publish(function, reason);
		__atomic_sub_fetch(&owner->users, 1, __ATOMIC_ACQ_REL);
	}
	nt_grace_reading_end(reading);
	return !skipped;
}

/* --- changes of the set of probes: for change.c --- */

/* The record of a function's handle for a set of probes; NULL if it has none. Lock-free. */
static struct nt_function *record_for(const struct nt_function *function, const struct nt_set *set)
{
	struct nt_function *record = function->first;

	while (record && record->set != set)
		record = nt_function_more(record);
	return record;
}

/* Whether the function is in the table: launches of its handle find it. Under the mutex. */
static bool is_in_force(struct nt_function *function)
{
	return nt_handles_find(&nt_function_table, function->handle.handle) == function;
}

/* Whether a function runs another set's twin, though it may have one of this set. Under the mutex. */
static bool is_of_other(struct nt_function *function, const struct nt_set *set)
{
	return function->set && function->set != set && is_in_force(function);
}

/*
 * The functions that are in force for other sets of probes than this and have no record for this that is ready: their
 * number, and a list of them for nt_memory_free. False without memory. In a reading section, in which they stay valid.
 */
bool nt_registry_unready_for(const struct nt_set *set, struct nt_function ***ret, size_t *count)
{
	size_t capacity = 0;

	*ret = NULL;
	*count = 0;
	NT_LOCKED(&mutex);
	for (struct nt_owner *owner = owners; owner; owner = owner->next)
		for (struct nt_function *function = owner->functions; function; function = function->next) {
			if (!is_of_other(function, set))
				continue;
			const struct nt_function *record = record_for(function, set);
			if (record && nt_function_reason(record) != NEUTRINO_REASON_NOT_READY)
				continue;
			if (*count == capacity) {
				capacity = capacity ? 2 * capacity : 64;
				struct nt_function **moved = nt_memory_realloc(*ret, capacity * sizeof(*moved));
				if (!moved)
					return false;
				*ret = moved;
			}
			(*ret)[(*count)++] = function;
		}
	return true;
}

/*
 * List a record, made by nt_registry_make for the handle of a function that is in force, beside that; false if the function
 * is gone, and the record is freed.
 */
bool nt_registry_add_record(struct nt_function *function, struct nt_function *record)
{
	struct nt_function *last = function->first;

	nt_lock_take(&mutex);
	bool added = is_in_force(function);
	if (added) {
		record->first = function->first;
		record->context = function->context;
		record->next = function->owner->functions;
		function->owner->functions = record;
		while (last->more)
			last = last->more;
		__atomic_store_n(&last->more, record, __ATOMIC_RELEASE);
	}
	nt_lock_release(&mutex);
	if (!added)
		release_function(&record->retired);
	return added;
}

/*
 * The record of a function that is in force for another set of probes, if it is not ready and the function is not gone: its
 * twins (copies with probes) stay loaded until nt_registry_let_go. NULL otherwise.
 */
struct nt_function *nt_registry_hold(struct nt_function *function, const struct nt_set *set)
{
	NT_LOCKED(&mutex);
	struct nt_function *record = is_in_force(function) ? record_for(function, set) : NULL;
	if (!record || nt_function_reason(record) != NEUTRINO_REASON_NOT_READY)
		return NULL;
	__atomic_add_fetch(&nt_function_library_of(function->owner)->users, 1, __ATOMIC_ACQ_REL);
	return record;
}

/* End what nt_registry_hold has begun. */
void nt_registry_let_go(struct nt_function *record)
{
	__atomic_sub_fetch(&nt_function_library_of(record->owner)->users, 1, __ATOMIC_ACQ_REL);
}

/*
 * Have all functions run the twins (copies with probes) of a set of probes from now on, if those are ready of all of them;
 * else nothing changes, and the result is false. Launches in other threads run either set's.
 */
bool nt_registry_put_in_force(const struct nt_set *set)
{
	NT_LOCKED(&mutex);
	for (int step = 0; step < 2; step++)
		for (struct nt_owner *owner = owners; owner; owner = owner->next)
			for (struct nt_function *function = owner->functions; function; function = function->next) {
				if (!is_of_other(function, set))
					continue;
				struct nt_function *record = record_for(function, set);
				bool is_ready = record && nt_function_reason(record) != NEUTRINO_REASON_NOT_READY;
				if (step == 0 && !is_ready)
					return false;
				/* In place of the other: that takes no memory but where the table is due to grow. */
				if (step == 1 && is_ready)
					nt_handles_put(&nt_function_table, &record->handle);
			}
	nt_sets_put_in_force(set);
	return true;
}
