#include "image/change.h"

#include <stdbool.h>

#include "base/captures.h"
#include "base/clock.h"
#include "base/grace.h"
#include "base/memory.h"
#include "image/attributes.h"
#include "image/background.h"
#include "image/backend.h"
#include "image/choice.h"
#include "image/kernel_image.h"
#include "image/prepare.h"
#include "image/registry.h"
#include "memory/greens.h"
#include "memory/pool.h"
#include "trace/trace.h"

/* How often functions are looked for that other threads of the program have obtained meanwhile. */
#define MOST_ROUNDS 64
/* How long a context's end may keep us out of the driver. */
#define ENTER_LIMIT_NS UINT64_C(30000000000)

/* Begin to call the driver; false if a context is being destroyed for too long. nt_background_leave ends it. */
static bool enter(void)
{
	uint64_t until = nt_clock_now_ns() + ENTER_LIMIT_NS;

	while (!nt_background_enter()) {
		if (nt_clock_now_ns() >= until)
			return false;
		nt_clock_sleep_us(1000);
	}
	return true;
}

/*
 * Make a function that is in force for another set of probes a record for this one, whose twin (copy with probes) is not
 * loaded yet. Waits until it is made. False without memory.
 */
static bool make_record(struct nt_function *function, const struct nt_set *set)
{
	struct nt_image *image = nt_function_image_for(function->owner, set);
	struct nt_kernel *kernel = NULL;

	if (image) {
		if (image->has_entry)
			nt_image_resolve(image);
		image = nt_kernel_image_of(function->owner, image, set, function->kernel->name);
		nt_image_resolve(image);
		kernel = nt_image_kernel(image, function->kernel->name);
	}
	/* Without an image or a kernel it is one that has no twin. */
	struct nt_function *record = nt_registry_make(function->owner, function->handle.handle, kernel ? kernel : function->kernel,
						      function->is_kernel);
	if (!record)
		return false;
	record->set = set;
	if (!kernel)
		nt_function_set_reason(record, NEUTRINO_REASON_LOAD);
	if (nt_registry_add_record(function, record) && kernel)
		return nt_attributes_copy(function, record);
	return true;
}

/*
 * Prepare a CUkernel, which is prepared in the current context, for all other contexts that have memory for results, as
 * it would have been when these were made.
 */
static void prepare_elsewhere(struct nt_function *record)
{
	CUcontext contexts[NT_FUNCTION_CONTEXTS], current = NULL, popped;
	unsigned count = nt_pools_contexts(contexts, NT_FUNCTION_CONTEXTS);

	nt_driver.cuCtxGetCurrent(&current);
	for (unsigned i = 0; i < count; i++) {
		if (contexts[i] == current || nt_greens_has(contexts[i]) || !nt_choice_has_context(contexts[i]) ||
		    nt_driver.cuCtxPushCurrent_v2(contexts[i]) != CUDA_SUCCESS)
			continue;
		record->kernel->backend->prepare(record, contexts[i]);
		nt_backend_expect(record->kernel, nt_pools_find(contexts[i]));
		nt_driver.cuCtxPopCurrent_v2(&popped);
	}
}

/* Load the twin (copy with probes) of a function's record for a set, unless that was done, or the function is gone. */
static void make_ready(struct nt_function *function, const struct nt_set *set)
{
	/* No context ends from here on. */
	bool has_entered = enter();
	struct nt_function *record = nt_registry_hold(function, set);

	if (record) {
		enum neutrino_reason reason = has_entered ? nt_prepare_function(record, 0) : NEUTRINO_REASON_LOAD;
		/* Its image is resolved. */
		if (reason == NEUTRINO_REASON_NOT_READY)
			reason = NEUTRINO_REASON_LOAD;
		if (reason == NEUTRINO_REASON_PROBED && record->is_kernel)
			prepare_elsewhere(record);
		nt_attributes_publish(record, reason);
		nt_registry_let_go(record);
	}
	if (has_entered)
		nt_background_leave();
}

/*
 * Make twins (copies with probes) of a set ready for all functions that have others now; false without memory. In a
 * reading section (what is found in it is not freed).
 */
static bool make_all_ready(const struct nt_set *set)
{
	struct nt_function **list;
	size_t count;
	bool has_memory = nt_registry_unready_for(set, &list, &count);

	/* First all are asked for, so that they are made side by side. */
	for (size_t i = 0; i < count && has_memory; i++)
		nt_function_image_for(list[i]->owner, set);
	for (size_t i = 0; i < count && has_memory; i++) {
		struct nt_function *record = list[i]->first;
		while (record && record->set != set)
			record = nt_function_more(record);
		has_memory = record || make_record(list[i], set);
	}
	for (size_t i = 0; i < count && has_memory; i++)
		make_ready(list[i], set);
	nt_memory_free(list);
	return has_memory;
}

/*
 * Put a set of probes in force: every function gets its twins (copies with probes) of that set, which are made and loaded
 * if they are new. Waits for the listener as a program does that obtains kernels. In a thread of the program.
 */
enum nt_changed_to nt_change_to(const struct nt_set *set)
{
	static bool is_changing;
	enum nt_changed_to ret = NT_CHANGE_FAILED;

	if (nt_captures_are_any())
		return NT_CHANGE_CAPTURED;
	if (__atomic_exchange_n(&is_changing, true, __ATOMIC_ACQ_REL))
		return NT_CHANGE_BUSY;
	uint32_t *reading = nt_grace_reading_begin();
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	for (int i = 0; i < MOST_ROUNDS && ret != NT_CHANGED; i++) {
		if (nt_registry_put_in_force(set))
			ret = NT_CHANGED;
		else if (!make_all_ready(set))
			break;
	}
	nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	nt_grace_reading_end(reading);
	__atomic_store_n(&is_changing, false, __ATOMIC_RELEASE);
	return ret;
}
