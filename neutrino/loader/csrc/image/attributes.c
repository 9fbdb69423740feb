#include "image/attributes.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/lock.h"
#include "base/memory.h"
#include "base/settings.h"
#include "image/twin.h"

/* Guards the settings of all functions, and the step from NOT_READY on. Never held across a call of the driver. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/*
 * Repeat a call of the program, which has set something of a function, for the function's twins (its copies with
 * probes). Errors are ignored: the program's own call has succeeded.
 */
static void apply_setting(const struct nt_function *function, const struct nt_setting *setting)
{
	void *const twins[] = {function->twin, function->capped};

	for (int i = 0; i < 2; i++) {
		if (!twins[i])
			continue;
		switch (setting->call) {
		case NT_SET_ATTRIBUTE:
			nt_driver.cuFuncSetAttribute(twins[i], setting->attribute, setting->value);
			break;
		case NT_SET_CACHE:
			nt_driver.cuFuncSetCacheConfig(twins[i], setting->value);
			break;
		case NT_SET_SHARED:
			nt_driver.cuFuncSetSharedMemConfig(twins[i], setting->value);
			break;
		case NT_SET_KERNEL_ATTRIBUTE:
			nt_driver.cuKernelSetAttribute(setting->attribute, setting->value, twins[i], setting->device);
			break;
		case NT_SET_KERNEL_CACHE:
			nt_driver.cuKernelSetCacheConfig(twins[i], setting->value, setting->device);
			break;
		}
	}
}

/* The last of a function's kept settings that is of the same thing as another; NULL if there is none. Under the mutex. */
static struct nt_setting *find_same(const struct nt_function *function, const struct nt_setting *setting)
{
	struct nt_setting *found = NULL;

	for (struct nt_setting *kept = function->settings; kept; kept = kept->next)
		if (kept->call == setting->call && kept->attribute == setting->attribute && kept->device == setting->device)
			found = kept;
	return found;
}

/* Add a setting after those that are kept of a function. Under the mutex. */
static void append(struct nt_function *function, struct nt_setting *setting)
{
	struct nt_setting **link = &function->settings;

	while (*link)
		link = &(*link)->next;
	*link = setting;
}

/*
 * Keep a setting of the program for a function whose twin (its copy with probes) is not ready, to repeat it once that
 * is; or for one that may get twins of other probes. Returns whether the twin is not ready, and the setting is kept for it:
 * not without memory. Takes the mutex.
 */
static bool keep_setting(struct nt_function *function, const struct nt_setting *setting)
{
	struct nt_setting *kept = NULL;

	if (nt_function_reason(function) != NEUTRINO_REASON_NOT_READY && !nt_settings()->asks_again)
		return false;
	kept = nt_memory_alloc(sizeof(*kept));
	if (!kept)
		return false;
	*kept = *setting;
	kept->next = NULL;
	nt_lock_take(&mutex);
	bool is_waiting = nt_function_reason(function) == NEUTRINO_REASON_NOT_READY;
	/* What is repeated at the moment must not change. */
	struct nt_setting *same = is_waiting ? NULL : find_same(function, setting);
	bool is_new = is_waiting || (!same && nt_settings()->asks_again);
	if (same)
		same->value = setting->value;
	else if (is_new)
		append(function, kept);
	nt_lock_release(&mutex);
	if (!is_new)
		nt_memory_free(kept);
	return is_waiting;
}

/*
 * The program has set something of the function with that handle: do the same to its twins (copies with probes) of all
 * sets of probes, or keep it until they are ready. Handles that are not known are ignored.
 */
void nt_attributes_set(const void *handle, struct nt_setting setting)
{
	uint32_t *reading = nt_grace_reading_begin();
	struct nt_function *function = nt_function_find(handle);

	for (function = function ? function->first : NULL; function; function = nt_function_more(function)) {
		if (keep_setting(function, &setting))
			continue;
		if (nt_function_reason(function) != NEUTRINO_REASON_NOT_READY)
			apply_setting(function, &setting);
		nt_twin_forget_shapes(function);
	}
	nt_grace_reading_end(reading);
}

/*
 * Have a function that is not ready begin with what the program has set of another one, of the same handle. By the one
 * thread that makes it ready. False without memory.
 */
bool nt_attributes_copy(const struct nt_function *from, struct nt_function *to)
{
	struct nt_setting *copied = NULL, **link = &copied;
	bool has_memory = true;

	nt_lock_take(&mutex);
	for (const struct nt_setting *kept = from->settings; kept && has_memory; kept = kept->next) {
		*link = nt_memory_alloc(sizeof(**link));
		has_memory = *link;
		if (!has_memory)
			break;
		**link = *kept;
		(*link)->next = NULL;
		link = &(*link)->next;
	}
	/* Before what was set since it was listed. */
	*link = to->settings;
	to->settings = copied;
	nt_lock_release(&mutex);
	return has_memory;
}

/*
 * A function's twins (copies with probes) are loaded now: set of them what the program has set of it so far, and give
 * it its reason, from which on launches run them. By the one thread that makes it ready.
 */
void nt_attributes_publish(struct nt_function *function, enum neutrino_reason reason)
{
	const struct nt_setting *last = NULL, *next;

	for (;;) {
		nt_lock_take(&mutex);
		next = last ? last->next : function->settings;
		if (!next)
			nt_function_set_reason(function, reason);
		nt_lock_release(&mutex);
		if (!next)
			return;
		if (reason == NEUTRINO_REASON_PROBED)
			apply_setting(function, next);
		last = next;
	}
}

/* Free the settings kept for a function that nobody uses any more. */
void nt_attributes_release(struct nt_function *function)
{
	while (function->settings) {
		struct nt_setting *next = function->settings->next;
		nt_memory_free(function->settings);
		function->settings = next;
	}
}
