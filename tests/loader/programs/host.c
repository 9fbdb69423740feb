/*
 * A program of the driver API for the tests: `host SCENARIO`. What it prints, the driver's answers among it, and its
 * status must be the same with and without the hook.
 */
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "host.h"

CUcontext context;
CUmodule module;
CUfunction function;
CUstream stream;
CUdeviceptr counter, flag;
int64_t clock_ahead_s;

/* In place of glibc's, also for the hook: time passes when a scenario says so. */
int clock_gettime(clockid_t clock, struct timespec *ret)
{
	int result = (int)syscall(SYS_clock_gettime, clock, ret);

	if (!result && clock == CLOCK_MONOTONIC)
		ret->tv_sec += __atomic_load_n(&clock_ahead_s, __ATOMIC_RELAXED);
	return result;
}

CUresult count(CUfunction counting, unsigned blocks, unsigned threads, CUstream on)
{
	return launch_at(counting, counter, blocks, threads, on);
}

CUdeviceptr make_counter(void)
{
	static uint64_t made;
	uint64_t start = made++ << 32;
	CUdeviceptr memory = allocate(sizeof(start));

	CHECK(cu.MemcpyHtoD_v2(memory, &start, sizeof(start)));
	return memory;
}

void say_counter(void)
{
	printf("%llu\n", (unsigned long long)value_at(counter));
}

void rest(void)
{
	usleep(60000);
}

int wished(void)
{
	const char *count = getenv("HOST_COUNT");

	return count ? atoi(count) : 1;
}

static void limit_files(rlim_t size)
{
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){size, size});
}

static const struct scenario {
	const char *name;
	void (*run)(void);
	bool is_over; /* the context is gone or in error: nothing can be read back */
} scenarios[] = {
	{"plain", plain, false},
	{"unversioned", plain, false},
	{"small-files", plain, false},
	{"nobody-listens", plain, false},
	{"forgetful", plain, false},
	{"clears-environment", plain, false},
	{"closed", plain, false},
	{"no-descriptors", no_descriptors, false},
	{"sandboxed", sandboxed, false},
	{"other-stderr", other_stderr, false},
	{"emptied", emptied, false},
	{"emptied-last", emptied_last, false},
	{"closes-all", closes_all, true},
	{"little-space", plain, false},
	{"confined", plain, false},
	{"unused", loaded, true},
	{"loaded", loaded, false},
	{"mixture", mixture, false},
	{"many", many, false},
	{"large", large, false},
	{"immense", immense, false},
	{"cut", cut, false},
	{"growing", growing, false},
	{"widening", widening, false},
	{"growing-in-a-row", growing_in_a_row, false},
	{"growing-in-little", growing_in_little, false},
	{"spreading", spreading, false},
	{"crowded", crowded, false},
	{"spread", spread, false},
	{"parameters", parameters, false},
	{"variables", variables, false},
	{"shared-memory", shared_memory, false},
	{"forms", forms, false},
	{"reload", reload, false},
	{"names", names, false},
	{"short-streams", short_streams, false},
	{"many-streams", many_streams, false},
	{"full-streams", full_streams, false},
	{"heirs", heirs, false},
	{"own-streams", own_streams, false},
	{"passing-streams", passing_streams, false},
	{"standing-streams", standing_streams, false},
	{"passing-threads", passing_threads, false},
	{"idle", idle, false},
	{"out-of-memory", out_of_memory, false},
	{"growth", growth, false},
	{"reloads", reloads, false},
	{"spin", spin, false},
	{"endless", endless, true},
	{"primary", primary, false},
	{"destroy", destroy, false},
	{"reset-unseen", reset_unseen, false},
	{"unannounced", unannounced, false},
	{"no-memory", no_memory, false},
	{"fault", fault, true},
	{"misaligned", misaligned, true},
	{"trap", trap, true},
	{"fault-elsewhere", fault_elsewhere, false},
	{"fork-first", plain, false},
	{"fork", fork_and_exit, false},
	{"bare-fork", bare_fork, false},
	{"fork-and-call", fork_and_call, false},
	{"fork-amid", fork_amid, false},
	{"kill", kill_self, true},
	{"parts", parts, false},
	{"parts-at-once", parts_at_once, false},
	{"threads", threads, false},
	{"churn", churn, false},
	{"contexts-and-libraries", contexts_and_libraries, false},
	{"exit-amid", exit_amid, true},
	{"capture", capture, false},
	{"forbidden", forbidden, false},
	{"fork-and-join", fork_and_join, false},
	{"capture-first", capture_first, false},
	{"nodes", nodes, false},
	{"capture-amid", capture_amid, false},
	{"graph-replays", graph_replays, false},
	{"graph-crowd", graph_crowd, false},
	{"graph-small-crowd", graph_small_crowd, false},
	{"graph-streams", graph_streams, false},
	{"graph-changes", graph_changes, false},
	{"graph-threads", graph_threads, false},
	{"sets-change", sets_change, false},
	{"sets-in-graphs", sets_in_graphs, false},
	{"sets-in-set-graphs", sets_in_set_graphs, false},
	{"sets-numbers", sets_numbers, false},
	{"graph-contexts", graph_contexts, false},
	{"graph-many", graph_many, false},
	{"graph-reset", graph_reset, true},
	{"graph-sizes", graph_sizes, false},
	{"graph-short-streams", graph_short_streams, false},
	{"graph-captured-end", graph_captured_end, false},
	{"graph-disabled", graph_disabled, false},
	{"graph-handed", graph_handed, false},
	{"lasting", lasting, false},
};

/* What the scenario needs before the program has asked for anything. */
static void surround(const char *name)
{
	int ends[2];

	/* A process that forks before it uses the driver has a child that may use it too. */
	if (!strcmp(name, "fork-first") && fork())
		wait(NULL);
	if (!strcmp(name, "nobody-listens") && pipe(ends) == 0) {
		dup2(ends[1], 2);
		close(ends[0]);
		close(ends[1]);
	}
	if (!strcmp(name, "forgetful"))
		unsetenv("NEUTRINO_DRIVER");
	if (!strcmp(name, "closed"))
		for (int fd = 0; fd < 3; fd += 2)
			close(fd);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "plain";
	const struct scenario *scenario = scenarios, *end = scenarios + sizeof(scenarios) / sizeof(*scenarios);

	while (scenario < end && strcmp(scenario->name, name))
		scenario++;
	if (scenario == end) {
		fprintf(stderr, "no scenario %s\n", name);
		return 2;
	}
	surround(name);
	read_image();
	find_driver(strcmp(name, "unversioned") ? "libcuda.so.1" : "libcuda.so");
	CHECK(cu.Init(0));
	if (!strcmp(name, "clears-environment"))
		clearenv();
	if (!strcmp(name, "unused"))
		return 0;
	find_launches();
	CHECK(cu.DevicePrimaryCtxRetain(&context, 0));
	CHECK(cu.CtxSetCurrent(context));
	counter = make_counter();
	flag = allocate(8);
	if (!strcmp(name, "small-files") || !strcmp(name, "cut"))
		limit_files(*name == 's' ? 8 << 10 : 12 << 20);
	if (!strcmp(name, "confined"))
		confine();
	if (!strcmp(name, "little-space"))
		little_space();
	module = load();
	function = obtain(module, "count_p2");
	stream = make_stream(0);
	scenario->run();
	if (!scenario->is_over) {
		CHECK(cu.CtxSynchronize());
		say_counter();
	}
	return 0;
}
