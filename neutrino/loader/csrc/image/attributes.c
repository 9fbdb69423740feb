#include "image/attributes.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/lock.h"
#include "base/memory.h"
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

/*
 * Keep a setting of the program for a function whose twin (its copy with probes) is not ready, to repeat it once that
 * is; false if it is ready, or without memory. Takes the mutex.
 */
static bool keep_setting(struct nt_function *function, const struct nt_setting *setting)
{
	struct nt_setting *kept = NULL, **link;

	if (nt_function_reason(function) != NEUTRINO_REASON_NOT_READY || !(kept = nt_memory_alloc(sizeof(*kept))))
		return false;
	*kept = *setting;
	kept->next = NULL;
	nt_lock_take(&mutex);
	bool is_waiting = nt_function_reason(function) == NEUTRINO_REASON_NOT_READY;
	for (link = &function->settings; is_waiting && *link; link = &(*link)->next)
		;
	if (is_waiting)
		*link = kept;
	nt_lock_release(&mutex);
	if (!is_waiting)
		nt_memory_free(kept);
	return is_waiting;
}

/*
 * The program has set something of the function with that handle: do the same to its twins (copies with probes), or
 * keep it until they are ready. Handles that are not known are ignored.
 */
void nt_attributes_set(const void *handle, struct nt_setting setting)
{
	uint32_t *reading = nt_grace_reading_begin();
	struct nt_function *function = nt_function_find(handle);

	if (function && !keep_setting(function, &setting)) {
		if (nt_function_reason(function) != NEUTRINO_REASON_NOT_READY)
			apply_setting(function, &setting);
		nt_twin_forget_shapes(function);
	}
	nt_grace_reading_end(reading);
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
