#include "image/function.h"

#include "base/memory.h"

#include "base/hot.h"

NT_HOT struct nt_handles nt_function_table;

/*
 * The image (GPU code of the program) that a module or library has for a set of probes, whose twins (copies with probes)
 * are asked for when it is made. NULL without memory. In a reading section (what is found in it is not freed).
 */
struct nt_image *nt_function_image_for(struct nt_owner *owner, const struct nt_set *set)
{
	owner = nt_function_library_of(owner);
	struct nt_made *made = &owner->made, *fresh, *next = NULL;

	/* One that has no twins has none of any set. */
	if (!made->image->set)
		return made->image;
	/* Images of single kernels have a set, too. */
	for (; made->image->set != set || made->image->is_of_kernel; made = next) {
		next = __atomic_load_n(&made->next, __ATOMIC_ACQUIRE);
		if (next)
			continue;
		fresh = owner->kept.data ? nt_memory_alloc_zeroed(1, sizeof(*fresh)) : NULL;
		if (fresh)
			fresh->image = nt_image_of_set(owner->made.image, &owner->kept, set, false);
		/* Not one without twins, as when there are too many images. */
		if (!fresh || !fresh->image || fresh->image->set != set) {
			nt_memory_free(fresh);
			return NULL;
		}
		if (__atomic_compare_exchange_n(&made->next, &next, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			next = fresh;
		else
			nt_memory_free(fresh); /* another thread was first, perhaps for another set */
	}
	return made->image;
}
