#include "front/control.h"

#include "base/captures.h"
#include "base/clock.h"
#include "base/mode.h"
#include "base/settings.h"
#include "graph/graph.h"
#include "image/change.h"
#include "image/choice.h"
#include "image/ranges.h"
#include "image/sets.h"
#include "memory/pool.h"
#include "trace/trace.h"
#include "trace/writer.h"

#define EXPORTED __attribute__((visibility("default")))

/* For programs: the folder of this process's trace; "" before there is one. */
EXPORTED const char *neutrino_trace_dir(void)
{
	return nt_path_of_trace();
}

/*
 * For programs: wait for all launches that were submitted so far, and until their records are written, so many
 * milliseconds at most. 1 if they are in the trace; 0 if not, or if there is no trace.
 */
EXPORTED int neutrino_flush(uint32_t milliseconds)
{
	uint64_t deadline = nt_clock_now_ns() + (uint64_t)milliseconds * 1000000;

	if (nt_mode_of_process() != NT_TRACING)
		return 0;
	/* To wait for the GPU would invalidate the capture of a stream. */
	bool all = !nt_captures_are_any() && nt_pool_flush_all(milliseconds);
	/* Also counters, and records of launches without data. */
	nt_writer_wake();
	return nt_writer_flush(deadline, false) && all;
}

/*
 * For programs: switch recording on or off, in a process whose NEUTRINO_SWITCHED is set (then it is off at first).
 * Launches that are not recorded run their original code, and count as not-selected.
 */
EXPORTED void neutrino_record(int is_on)
{
	nt_choice_switch(is_on);
}

/*
 * The domain (name space) that ranges of neutrino.range() are in, found by its name once. Only where --range was given.
 */
static struct nt_domain *own_domain(void)
{
	static struct nt_domain *own;
	struct nt_domain *ret = __atomic_load_n(&own, __ATOMIC_ACQUIRE);

	if (!ret) {
		ret = nt_ranges_domain_named("neutrino");
		__atomic_store_n(&own, ret, __ATOMIC_RELEASE);
	}
	return ret;
}

/*
 * For programs: begin a range of that name in this thread, in the domain "neutrino", by which --range may choose
 * launches. Without --range nothing happens.
 */
EXPORTED void neutrino_range_push(const char *name)
{
	if (nt_ranges_are_set())
		nt_ranges_push(own_domain(), nt_ranges_chosen(own_domain(), name));
}

/*
 * For programs: end the range that this thread has begun last by neutrino_range_push. Without --range nothing happens.
 */
EXPORTED void neutrino_range_pop(void)
{
	if (nt_ranges_are_set())
		nt_ranges_pop(own_domain());
}

/*
 * For programs: make a set of probes known, in a process whose NEUTRINO_ASKS is set. Returns its number, from 2, or that
 * of the set which has this key already; 0 if it cannot be had. The texts are as in the environment of a run.
 */
EXPORTED uint32_t neutrino_set(const char *key, const char *socket, const char *probe_file, const char *names)
{
	return nt_sets_add(key, socket, probe_file, names);
}

/*
 * For programs: have launches run the twins (copies with probes) of the set of probes of that number from now on, and
 * wait until these are made and loaded. 0, or why that is not so (front/control.h).
 */
EXPORTED int neutrino_use(uint32_t number)
{
	const struct nt_settings *settings = nt_settings();
	const struct nt_set *set = nt_sets_find(number);
	enum nt_mode mode = nt_mode_of_process();

	/* Whose twins a thread of ours loads, or are only measured, are of one set. */
	if (!set || !settings->asks_again || settings->hot || settings->waits_for_none || settings->measures_only || mode == NT_ENDED)
		return 4;
	switch (nt_change_to(set)) {
	case NT_CHANGED:
		nt_sets_note();
		if (mode == NT_TRACING)
			nt_graph_expect_set();
		return 0;
	case NT_CHANGE_BUSY:
		return 1;
	case NT_CHANGE_CAPTURED:
		return 2;
	case NT_CHANGE_FAILED:
		break;
	}
	return 3;
}

/* For programs: CLOCK_MONOTONIC in nanoseconds, the clock of launch records. */
EXPORTED uint64_t neutrino_now(void)
{
	return nt_clock_now_ns();
}
