#include "control.h"

#include "choice.h"
#include "pool.h"
#include "process.h"
#include "trace.h"
#include "writer.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED const char *neutrino_trace_dir(void)
{
	return nt_trace_path();
}

EXPORTED int neutrino_flush(uint32_t milliseconds)
{
	uint64_t deadline = nt_now_ns() + (uint64_t)milliseconds * 1000000;

	if (nt_process_mode() != NT_TRACING)
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

EXPORTED uint64_t neutrino_now(void)
{
	return nt_now_ns();
}
