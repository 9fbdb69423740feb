#include "front/control.h"

#include "base/clock.h"
#include "base/mode.h"
#include "image/choice.h"
#include "image/ranges.h"
#include "memory/pool.h"
#include "trace/trace.h"
#include "trace/writer.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED const char *neutrino_trace_dir(void)
{
	return nt_path_of_trace();
}

EXPORTED int neutrino_flush(uint32_t milliseconds)
{
	uint64_t deadline = nt_clock_now_ns() + (uint64_t)milliseconds * 1000000;

	if (nt_mode_of_process() != NT_TRACING)
		return 0;
	bool all = nt_pool_flush_all(milliseconds);
	/* Also counters, and records of launches without data. */
	nt_writer_wake();
	return nt_writer_flush(deadline, false) && all;
}

EXPORTED void neutrino_record(int is_on)
{
	nt_choice_switch(is_on);
}

/* The domain of neutrino.range(); only where there are ranges. */
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

EXPORTED void neutrino_range_push(const char *name)
{
	if (nt_ranges_are_set())
		nt_ranges_push(own_domain(), nt_ranges_chosen(own_domain(), name));
}

EXPORTED void neutrino_range_pop(void)
{
	if (nt_ranges_are_set())
		nt_ranges_pop(own_domain());
}

EXPORTED uint64_t neutrino_now(void)
{
	return nt_clock_now_ns();
}
