#include "backend.h"

#include "twin.h"

const struct nt_backend nt_backends[NT_BACKENDS] = {
	[NT_BACKEND_TWIN] = {.prepare = nt_twin_prepare, .choose = nt_twin_choose, .submit = nt_twin_submit},
};

/*
 * A launch gets more records per slot than earlier ones needed, as long as its maps then take at most this part (1/16)
 * of the limit.
 */
#define NT_SPARE_PART 16

/*
 * Choose the records per slot (extent->dynamic_cap) of a kernel's maps with a dynamic cap; returns the bytes of all maps'
 * regions. As many as the fullest slot of earlier launches needed, or more if that takes a small part of most; fewer if
 * most bytes cannot hold so many.
 */
static uint64_t choose_cap(const struct nt_kernel *kernel, uint64_t most, struct nt_extent *extent)
{
	uint32_t wanted = __atomic_load_n(&kernel->wanted, __ATOMIC_RELAXED); /* 0: not known yet */

	if (wanted > NEUTRINO_DYNAMIC_MOST)
		wanted = NEUTRINO_DYNAMIC_MOST;
	wanted = (wanted + NEUTRINO_DYNAMIC_STEP - 1) / NEUTRINO_DYNAMIC_STEP * NEUTRINO_DYNAMIC_STEP;
	/* Try with some to spare; only as many as needed, if that would take much of the pool. */
	extent->dynamic_cap = wanted > NEUTRINO_DYNAMIC_FIRST ? wanted : NEUTRINO_DYNAMIC_FIRST;
	uint64_t size = nt_regions_size(kernel->maps, kernel->map_count, extent);
	if (wanted && wanted < extent->dynamic_cap && size > most / NT_SPARE_PART) {
		extent->dynamic_cap = wanted;
		size = nt_regions_size(kernel->maps, kernel->map_count, extent);
	}
	if (size <= most)
		return size;
	/* Bytes grow with the cap, so find the largest that fits by bisection. */
	uint32_t fits = 1, over = extent->dynamic_cap;
	while (fits + 1 < over) {
		extent->dynamic_cap = fits + (over - fits) / 2;
		if (nt_regions_size(kernel->maps, kernel->map_count, extent) <= most)
			fits = extent->dynamic_cap;
		else
			over = extent->dynamic_cap;
	}
	extent->dynamic_cap = fits;
	return nt_regions_size(kernel->maps, kernel->map_count, extent);
}

void nt_attempt_measure(struct nt_attempt *attempt, uint64_t most)
{
	const struct nt_kernel *kernel = attempt->function->kernel;

	attempt->size = kernel->has_dynamic_cap ? choose_cap(kernel, most, &attempt->extent)
						: nt_regions_size(kernel->maps, kernel->map_count, &attempt->extent);
}

unsigned nt_attempt_take_room(struct nt_attempt *attempt)
{
	const struct nt_kernel *kernel = attempt->function->kernel;
	struct nt_extent *extent = &attempt->extent;

	nt_attempt_measure(attempt, nt_pool_most(attempt->pool));
	for (;;) {
		switch (nt_pool_take(attempt->pool, attempt->stream, attempt->size, &attempt->room)) {
		case NT_ROOM:
			attempt->base = attempt->room.address;
			return NEUTRINO_REASON_PROBED;
		case NT_ROOM_TOO_LARGE:
			nt_pool_too_large(attempt->pool, attempt->function->kernel, attempt->size);
			return NEUTRINO_REASON_MAP_SIZE;
		case NT_ROOM_FULL:
			break;
		}
		/* The pool is full at the moment: try with half as many records. */
		if (extent->dynamic_cap <= 1)
			return NEUTRINO_REASON_POOL_FULL;
		extent->dynamic_cap /= 2;
		attempt->size = nt_regions_size(kernel->maps, kernel->map_count, extent);
	}
}
