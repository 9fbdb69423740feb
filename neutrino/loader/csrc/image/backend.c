#include "image/backend.h"

#include "base/clock.h"
#include "base/wake.h"
#include "image/twin.h"

const struct nt_backend nt_backend_table[NT_BACKENDS] = {
	[NT_BACKEND_TWIN] = {.prepare = nt_twin_prepare, .choose = nt_twin_choose, .submit = nt_twin_submit},
};

/* The memory of a log is not reduced to less than this, in units. */
#define LOG_LEAST 64u

/* Records of each thread, warp or block for which the logs of a graph's node get memory if their need is not known. */
#define LOG_RECORDS_IN_GRAPH 16

/* How long a launch may wait for room for its logs, and how often that may be in vain before none waits any more. */
#define WAIT_NS UINT64_C(2000000000)
#define WAIT_STEP_US 200
#define WAITS_IN_VAIN 2u

/* Bytes that the maps of a kernel with logs may take in any launch. */
#define LOG_LITTLE (UINT64_C(64) << 10)

/* Units of a warp's first chunk, at most: the kernel counts it in halves of units, in 12 bits. */
#define LOG_FIRST_MOST 1024u

/* Of what warps with chunks of their own are known to want, the part that is left for them besides. */
#define SPARE_OF_OWN 16

/* The greatest number of units. One more has another meaning in the kernel. */
#define LOG_MOST (UINT32_MAX - 1)

/* Of the memory for large launches, when none has any of it: what one gets beside its need. */
#define SHARE_OF_IDLE 4

/*
 * Units that a log of a launch wants at most if each of its warps wants no more than those of any earlier launch did; 0 if
 * that is not known.
 */
static uint64_t log_units_of_warps(const struct nt_attempt *attempt)
{
	const struct nt_kernel *kernel = attempt->function->kernel;
	uint64_t per_warp = __atomic_load_n(&kernel->log_per_warp, __ATOMIC_RELAXED), parts;

	if (!per_warp || __builtin_mul_overflow(per_warp, attempt->extent.warps, &parts))
		return 0;
	return parts / NT_NEED_PARTS + (parts % NT_NEED_PARTS != 0);
}

/*
 * Units that a log of a launch is likely to want: as many as any earlier launch wanted; of one with more warps than any
 * before, as many for each as any earlier one wanted for each, if that is more. 0 if nothing is known.
 */
static uint64_t likely_log_units(const struct nt_attempt *attempt)
{
	const struct nt_kernel *kernel = attempt->function->kernel;
	uint64_t wanted = __atomic_load_n(&kernel->log_wanted, __ATOMIC_RELAXED);

	if (!wanted || attempt->extent.warps <= __atomic_load_n(&kernel->log_warps, __ATOMIC_RELAXED))
		return wanted;
	uint64_t of_warps = log_units_of_warps(attempt);
	return of_warps > wanted ? of_warps : wanted;
}

/*
 * Choose which chunks the warps of a launch have of their own (extent->log_first), and how many units of a log must be
 * left for what they save beyond these (extent->log_beyond): as much again, until a launch with such chunks has shown
 * how much they want.
 */
static void choose_first_chunks(const struct nt_attempt *attempt, struct nt_extent *extent)
{
	const struct nt_kernel *kernel = attempt->function->kernel;
	uint64_t first = (__atomic_load_n(&kernel->log_first, __ATOMIC_RELAXED) + NT_NEED_PARTS - 1) / NT_NEED_PARTS;
	uint64_t known = __atomic_load_n(&kernel->log_beyond, __ATOMIC_RELAXED), beyond;

	/* The nodes of a graph have none. */
	extent->log_first = attempt->cell ? 0 : first < LOG_FIRST_MOST ? (uint32_t)first : LOG_FIRST_MOST;
	uint64_t own = extent->log_first * extent->warps;
	if (!known)
		beyond = own;
	else if (__builtin_mul_overflow(known - 1, extent->warps, &beyond))
		beyond = UINT64_MAX;
	else {
		beyond = (beyond + NT_NEED_PARTS - 1) / NT_NEED_PARTS;
		beyond += (own + beyond) / SPARE_OF_OWN;
	}
	extent->log_beyond = beyond < UINT32_MAX ? (uint32_t)beyond : UINT32_MAX;
}

/* Units that a log of a launch needs for its warps to have chunks of their own; 0 if they get none. */
static uint64_t units_with_first_chunks(const struct nt_extent *extent)
{
	return extent->log_first ? extent->log_first * extent->warps + extent->log_beyond : 0;
}

/*
 * The memory of each log of a launch, in units, that is large and comes while no launch has room of its pool: a part of
 * what is free, which nobody else lacks, since its warps may want more than those of earlier launches. other: bytes of the
 * other maps; enough: the units that it needs.
 */
static uint64_t share_of_idle(const struct nt_attempt *attempt, uint64_t other, uint64_t enough)
{
	uint32_t logs = attempt->function->kernel->log_count;
	uint64_t share = attempt->pool ? nt_room_idle(attempt->pool) / SHARE_OF_IDLE : 0;

	if (share < other + logs * (uint64_t)NEUTRINO_REGION_ALIGN || !nt_room_is_large(other + enough * logs * NEUTRINO_LOG_UNIT))
		return enough;
	share = (share - other - logs * (uint64_t)NEUTRINO_REGION_ALIGN) / logs / NEUTRINO_LOG_UNIT;
	return share > enough ? share : enough;
}

/*
 * Choose the memory of each log of a launch (extent->log_units). most: bytes that all its maps (stores of probe
 * results) may take; size: bytes of the other maps. Returns the bytes of all maps.
 */
static uint64_t choose_log(const struct nt_attempt *attempt, uint64_t most, uint64_t size, struct nt_extent *extent)
{
	const struct nt_kernel *kernel = attempt->function->kernel;
	uint64_t wanted = __atomic_load_n(&kernel->log_wanted, __ATOMIC_RELAXED);
	uint64_t likely = likely_log_units(attempt);

	/* Half of it at most, unless more is needed: a pool grows by as much beside what is in use. Each region is aligned. */
	if (most / 2 / NEUTRINO_LOG_UNIT / kernel->log_count > likely)
		most /= 2;
	uint64_t unknown = attempt->pool ? nt_pool_unknown_most(attempt->pool) : 0;
	if (!wanted && unknown && most > unknown)
		most = unknown;
	uint64_t spare = size < most ? (most - size) / kernel->log_count : 0;
	uint64_t units = spare > NEUTRINO_REGION_ALIGN ? (spare - NEUTRINO_REGION_ALIGN) / NEUTRINO_LOG_UNIT : 0;
	/* The nodes of a graph keep what they get, and replays are many. */
	uint64_t guess = attempt->cell ? nt_regions_log_units(kernel->maps, kernel->map_count, extent, LOG_RECORDS_IN_GRAPH) : units;
	if (!wanted && guess < units)
		units = guess;
	/* Some to spare, and more if it takes little. */
	uint64_t little = size < LOG_LITTLE ? (LOG_LITTLE - size) / kernel->log_count / NEUTRINO_LOG_UNIT : 0;
	/* Not more than a node is likely to need: another one may have no room then. */
	uint64_t in_graph = likely > 2 * wanted ? likely : 2 * wanted;
	uint64_t enough = likely <= little / 2 ? little : attempt->cell ? in_graph : 2 * likely;
	choose_first_chunks(attempt, extent);
	/* The warps' own chunks are rounded up to whole units. */
	uint64_t with_first = units_with_first_chunks(extent);
	if (enough < with_first && with_first / 4 <= likely)
		enough = with_first;
	if (wanted && enough < units)
		enough = share_of_idle(attempt, size, enough);
	if (wanted && enough < units)
		units = enough;
	extent->log_units = units < LOG_MOST ? (uint32_t)units : LOG_MOST;
	return nt_regions_size(kernel->maps, kernel->map_count, extent);
}

/*
 * Set attempt->size, the bytes of memory for a launch's probe results, and how much of them the logs (to which threads
 * append records) get: as much as earlier launches of the kernel needed, for as many warps, and more, less if all would
 * otherwise take more than `most` bytes. Logs of a kernel without an earlier launch get all that is left; in a graph
 * enough for some records of each thread, warp or block.
 */
void nt_backend_measure(struct nt_attempt *attempt, uint64_t most)
{
	const struct nt_kernel *kernel = attempt->function->kernel;

	/* It may have been measured before. */
	attempt->extent.log_units = attempt->extent.log_first = attempt->extent.log_beyond = 0;
	attempt->size = nt_regions_size(kernel->maps, kernel->map_count, &attempt->extent);
	if (kernel->log_count)
		attempt->size = choose_log(attempt, most, attempt->size, &attempt->extent);
}

/*
 * Make the logs (to which threads append records) of a launch smaller until it takes at most half of the pool's free
 * memory: their need is not known, and other launches come before this one's results are fetched. The pool is asked to
 * grow all the same.
 */
static void leave_half(struct nt_attempt *attempt)
{
	const struct nt_kernel *kernel = attempt->function->kernel;
	uint64_t free_bytes = nt_room_free_large(attempt->pool), before = attempt->size;

	while (attempt->size > free_bytes / 2 && attempt->extent.log_units > LOG_LEAST) {
		attempt->extent.log_units /= 2;
		attempt->size = nt_regions_size(kernel->maps, kernel->map_count, &attempt->extent);
	}
	if (attempt->size < before)
		nt_room_want_large(attempt->pool, before);
}

/*
 * Have the pool (device memory for results in one context) get enough memory for a kernel that the program has just
 * obtained, if earlier launches have shown how much its logs (to which threads append records) need. pool may be NULL.
 * Not on the launch path.
 */
void nt_backend_expect(struct nt_kernel *kernel, struct nt_pool *pool)
{
	uint64_t wanted = __atomic_load_n(&kernel->log_wanted, __ATOMIC_RELAXED);

	if (!pool || !kernel->log_count)
		return;
	/* Known needs may grow, too. */
	uint64_t unknown = nt_pool_has_logs(pool);
	/* As choose_log takes it, and some more: what the other maps need depends on the launch. */
	uint64_t most = nt_slabs_most(pool) / 2, size = 2 * wanted * kernel->log_count * NEUTRINO_LOG_UNIT;
	size += size / 8;
	if (!wanted || nt_room_is_large(size))
		nt_pool_expect(pool, kernel, size < most ? size : most, unknown);
}

/*
 * Give each log of a launch so many units of memory, and compute the bytes of all its maps (stores of probe results)
 * anew.
 */
static void set_log_units(struct nt_attempt *attempt, uint64_t units)
{
	const struct nt_kernel *kernel = attempt->function->kernel;

	attempt->extent.log_units = (uint32_t)units;
	attempt->size = nt_regions_size(kernel->maps, kernel->map_count, &attempt->extent);
}

/*
 * Whether the pool can have room for a launch whose logs get at least so many units each. Where it can, lowers the units
 * asked for to what the pool can have.
 */
static bool is_reached(struct nt_attempt *attempt, uint64_t least)
{
	uint64_t asked = attempt->extent.log_units, units = asked;

	if (least > units)
		return false;
	/* More than the pool can have is not asked for. */
	while (units > least && !nt_room_reaches(attempt->pool, attempt->size)) {
		units = units / 2 > least ? units / 2 : least;
		set_log_units(attempt, units);
	}
	if (nt_room_reaches(attempt->pool, attempt->size))
		return true;
	set_log_units(attempt, asked);
	return false;
}

/*
 * The least units that each log of a launch may get. As many as any earlier launch wanted, or as many for each of its
 * warps as any earlier one wanted for each, whichever is less: a launch that finds no room for it is not probed, and
 * counted, rather than probed in part. While it may wait, what it is likely to want, if that is more, and as much as its
 * warps need for chunks of their own: where they take all chunks in turn, they wait for each other. Less if the pool
 * cannot hold it. May lower the units asked for to what the pool can have.
 */
static uint64_t least_log_units(struct nt_attempt *attempt, bool may_wait)
{
	const struct nt_kernel *kernel = attempt->function->kernel;
	uint64_t wanted = __atomic_load_n(&kernel->log_wanted, __ATOMIC_RELAXED), of_warps = log_units_of_warps(attempt);
	uint64_t likely = likely_log_units(attempt), with_first = units_with_first_chunks(&attempt->extent);

	/* Where it is not known what they want beyond such chunks, that is far more. */
	if (may_wait && likely < with_first && with_first - with_first / 4 <= likely && is_reached(attempt, with_first))
		return with_first;
	if (may_wait && likely > wanted && likely >= LOG_LEAST && is_reached(attempt, likely))
		return likely;
	if (of_warps && of_warps < wanted)
		wanted = of_warps;
	return wanted >= LOG_LEAST && is_reached(attempt, wanted) ? wanted : LOG_LEAST;
}

/*
 * Take memory from the pool for all results of a launch (attempt->room, ->base, ->size), which is measured. If the pool
 * has not enough at the moment, logs (to which threads append records) get less, but at least so many units. PROBED, or
 * the reason why there is none. Lock-free.
 */
static enum neutrino_reason try_room(struct nt_attempt *attempt, uint64_t least)
{
	for (;;) {
		switch (nt_room_take(attempt->pool, attempt->stream, attempt->size, &attempt->room)) {
		case NT_ROOM:
			attempt->base = attempt->room.address;
			return NEUTRINO_REASON_PROBED;
		case NT_ROOM_TOO_LARGE:
			nt_pool_too_large(attempt->pool, attempt->function->kernel, attempt->size, false);
			return NEUTRINO_REASON_MAP_SIZE;
		case NT_ROOM_FULL:
			break;
		}
		/* The pool is full at the moment: try with half the memory for logs. */
		uint64_t units = attempt->extent.log_units;
		if (units <= least)
			return NEUTRINO_REASON_POOL_FULL;
		set_log_units(attempt, units / 2 > least ? units / 2 : least);
	}
}

/*
 * Choose how much memory the logs of a launch (to which threads append records) are to have, and take it from the pool,
 * as try_room does. may_wait: else logs whose need is not known, or only known of each warp, get little while earlier
 * launches have most of the pool. Lock-free.
 */
static enum neutrino_reason measure_and_try(struct nt_attempt *attempt, bool may_wait)
{
	const struct nt_kernel *kernel = attempt->function->kernel;
	uint64_t least = LOG_LEAST;

	nt_backend_measure(attempt, nt_slabs_most(attempt->pool));
	if (kernel->log_count && !__atomic_load_n(&kernel->log_wanted, __ATOMIC_RELAXED)) {
		if (may_wait && nt_room_free_large(attempt->pool) < nt_room_largest(attempt->pool) / 4)
			return NEUTRINO_REASON_POOL_FULL;
		leave_half(attempt);
	} else if (kernel->log_count)
		least = least_log_units(attempt, may_wait);
	return try_room(attempt, least);
}

/*
 * Take memory from the pool for all results of a launch (attempt->room, ->base, ->size). If the pool has not enough at
 * the moment, logs (to which threads append records) get less, but not below what is known to be needed: then the launch
 * waits until the drain thread has fetched the results of earlier ones, or made the pool larger. An earlier launch may
 * itself wait for this one, so that has an end. PROBED, or the reason why there is none. Lock-free.
 */
enum neutrino_reason nt_backend_take_room(struct nt_attempt *attempt)
{
	static uint32_t in_vain;
	struct nt_kernel *kernel = attempt->function->kernel;
	bool may_wait = kernel->log_count && __atomic_load_n(&in_vain, __ATOMIC_RELAXED) < WAITS_IN_VAIN;
	enum neutrino_reason reason = measure_and_try(attempt, may_wait);

	if (reason != NEUTRINO_REASON_POOL_FULL || !kernel->log_count)
		return reason;
	for (uint64_t until = nt_clock_now_ns() + WAIT_NS; may_wait && reason == NEUTRINO_REASON_POOL_FULL;) {
		nt_wake_drain_from(NT_DOZING);
		nt_clock_sleep_us(WAIT_STEP_US);
		may_wait = nt_clock_now_ns() < until;
		reason = measure_and_try(attempt, may_wait);
		if (!may_wait)
			__atomic_fetch_add(&in_vain, 1, __ATOMIC_RELAXED);
	}
	if (reason == NEUTRINO_REASON_POOL_FULL)
		nt_pool_too_large(attempt->pool, kernel, attempt->size, true);
	return reason;
}
