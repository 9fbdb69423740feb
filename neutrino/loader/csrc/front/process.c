#include "front/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/apart.h"
#include "base/clock.h"
#include "base/driver.h"
#include "base/errand.h"
#include "base/hot.h"
#include "base/lock.h"
#include "base/mode.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"
#include "base/settings.h"
#include "base/thread.h"
#include "base/upcalls.h"
#include "base/wake.h"
#include "drain/benchmark.h"
#include "drain/drain.h"
#include "front/coverage.h"
#include "front/late.h"
#include "front/lifetimes.h"
#include "front/steering.h"
#include "graph/graph_exec.h"
#include "image/background.h"
#include "image/choice.h"
#include "image/entry_fetch.h"
#include "image/image.h"
#include "image/ranges.h"
#include "image/section.h"
#include "image/sets.h"
#include "launch/launch.h"
#include "memory/own_memory.h"
#include "memory/pool.h"
#include "trace/trace.h"

/* Print on stderr, unless --quiet: where the trace is, and how many launches it covers. */
static void say_where(void)
{
	if (nt_settings()->is_quiet)
		return;
	nt_quiet_write_say("neutrino: trace in %s\n", nt_path_of_trace());
	nt_coverage_say(nt_settings()->ranks[0]);
}

/*
 * Note a patched library (neutrino-patch has added probes to it) whose twins (copies with probes) were not used, in the
 * trace and where that helps on stderr.
 */
static void note_unused(const char *library)
{
	nt_lines_note("none of the twins in %s was used: its kernels did not run, or ran through driver functions that were "
		      "looked up before the hook was loaded",
		      library);
#ifdef NEUTRINO_LATE
	if (nt_late_came_after() && !nt_settings()->is_quiet)
		nt_quiet_write_say("neutrino: nothing of %s was recorded; if the driver was in use before it was loaded, use the neutrino "
				   "command\n",
				   library);
#endif
}

static pid_t process;
static bool is_ahead; /* twins come from patched files */

/* Print that the process has called the driver, and has not loaded anything that could be probed. */
static void say_unused(void)
{
#ifndef NEUTRINO_LATE /* which may have come after the images */
	if (nt_settings()->is_quiet)
		return;
	/* No trace: so that the listener does not say that the driver was never called. */
	if (!is_ahead)
		nt_entry_fetch_hello("");
	nt_coverage_say_unused(nt_settings()->ranks[0]);
#endif
}

/*
 * The end of the process, in a thread of ours. The thread that calls exit may have been interrupted anywhere, in malloc or in
 * the driver, with locks that it will not release: it takes none, allocates nothing, and waits for this one only while
 * that makes progress.
 */
static struct {
	uint32_t wanted; /* futex */
	uint32_t missed; /* futex: what NT_END_MISSED asks for is done */
	uint32_t step;	 /* futex: how far it is */
	bool has_thread;
} ending;

/* Bits of what is wanted: a trace of what a late hook has missed; the end. */
enum { END_MISSED = 1, END_ALL = 2 };

#define LAST_STEP UINT32_MAX
#define STEP_LIMIT_MS 1500 /* that a step may take, but for the drain and the last files, which have DRAIN_LIMIT_MS */
#define END_LIMIT_MS 8000  /* all of them */

/* Tell the thread that waits in exit that the end of the trace has come one step further. */
static void next_step(void)
{
	__atomic_add_fetch(&ending.step, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &ending.step, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/*
 * End the trace: fetch the results of all launches, write what is left, and say where the trace is. In the thread that
 * does the end.
 */
static void end_trace(void)
{
#ifdef NEUTRINO_LATE
	nt_process_missed();
#endif
	/* Without a trace there is nothing to end. */
	int mode = __atomic_exchange_n(&nt_mode_now, NT_ENDED, __ATOMIC_ACQ_REL);
	if (mode == NT_READY)
		say_unused();
	if (mode != NT_TRACING)
		return;
	struct nt_event event;
	uint64_t begin = nt_clock_now_ns();
	nt_launch_end();
	nt_background_end();
	next_step();
	bool drained = nt_pool_drain_all(DRAIN_LIMIT_MS);
	next_step();
	nt_graph_exec_count_all();
	if (!nt_own_memory_is_memusage)
		nt_image_keep_needs();
	if (is_ahead)
		nt_section_unused(note_unused);
	/* The driver's own handlers run next, and the drain thread must not be in the driver then. */
	if (!drained)
		nt_wake_stop_drain();
	if (!drained)
		nt_lines_note("the records of the last launches did not arrive within %d s", DRAIN_LIMIT_MS / 1000);
	nt_ranges_note_end();
	nt_own_memory_log();
	nt_event_begin(&event, "end");
	nt_event_number(&event, "drained", drained);
	nt_event_real(&event, "drain_ms", (double)(nt_clock_now_ns() - begin) / 1e6);
	nt_lines_event(&event);
	next_step();
	bool is_written = nt_trace_end(DRAIN_LIMIT_MS, drained);
	next_step();
	if (is_written) {
		say_where();
		/* Also with --quiet. */
		nt_coverage_say_losses(nt_settings()->ranks[0]);
	} else {
		nt_quiet_write_say("neutrino: the trace in %s could not be written in time: it is not complete\n", nt_path_of_trace());
	}
}

/* Main function of the thread that ends the trace: waits until the process ends, then does all that is left. */
static void *wait_for_end(void *unused)
{
	(void)unused;
	nt_lock_without_signals();
	pthread_setname_np(pthread_self(), "neutrino-end");
	uint32_t seen = 0;
	while (!((seen = __atomic_load_n(&ending.wanted, __ATOMIC_ACQUIRE)) & END_ALL)) {
#ifdef NEUTRINO_LATE
		if (seen && !ending.missed) {
			nt_process_missed();
			__atomic_store_n(&ending.missed, 1, __ATOMIC_RELEASE);
			syscall(SYS_futex, &ending.missed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
		}
#endif
		syscall(SYS_futex, &ending.wanted, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
	}
	end_trace();
	__atomic_store_n(&ending.step, LAST_STEP, __ATOMIC_RELEASE);
	syscall(SYS_futex, &ending.step, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	return NULL;
}

/*
 * After fork, in the child: the threads that a late hook (Neutrino's library for processes that run already) starts
 * before the program uses the driver are the parent's. The child may be recorded itself, and starts its own then.
 */
static void forget_threads(void)
{
	memset(&ending, 0, sizeof(ending));
	nt_errand_forget_threads();
}

/* Start the thread that does what is left at the end of the process, if there is none. */
void nt_process_prepare_end(void)
{
	static bool is_registered; /* also in children */

	if (ending.has_thread)
		return;
	/* Before in_child, which allows fewer threads. */
	if (!is_registered)
		is_registered = nt_apart_at_fork(forget_threads);
	if (!is_registered)
		return;
	ending.has_thread = nt_thread_start(wait_for_end, NULL, NULL);
}

/* Have the thread that ends the trace do something: a bit of END_.... */
static void ask_end_thread(uint32_t bit)
{
	__atomic_fetch_or(&ending.wanted, bit, __ATOMIC_RELEASE);
	syscall(SYS_futex, &ending.wanted, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/*
 * Wait, in exit, while the thread that ends the trace makes progress; whether it is done. False once a step takes too
 * long, or all of them END_LIMIT_MS.
 */
static bool wait_for_last_step(void)
{
	uint32_t step = __atomic_load_n(&ending.step, __ATOMIC_ACQUIRE), now = step;
	uint64_t end_limit = nt_clock_now_ns() + END_LIMIT_MS * UINT64_C(1000000);

	while (step != LAST_STEP) {
		/* Steps 1 and 3 are the drain and the last files. */
		unsigned limit = (step & 1 ? DRAIN_LIMIT_MS : 0) + STEP_LIMIT_MS;
		uint64_t until = nt_clock_now_ns() + limit * UINT64_C(1000000);
		if (until > end_limit)
			until = end_limit;
		while ((now = __atomic_load_n(&ending.step, __ATOMIC_ACQUIRE)) == step) {
			uint64_t moment = nt_clock_now_ns(), left = moment < until ? until - moment : 0;
			struct timespec time = {(time_t)(left / 1000000000), (long)(left % 1000000000)};
			if (!left)
				return false;
			syscall(SYS_futex, &ending.step, FUTEX_WAIT_PRIVATE, step, &time, NULL, 0);
		}
		step = now;
	}
	return true;
}

/* At the program's normal end, in the thread that calls exit: have the trace ended, and wait for that. */
static void at_exit(void)
{
	/* A child made by clone or _Fork has not run in_child; the trace is its parent's. */
	if (getpid() != process)
		return;
	if (!ending.has_thread) {
		/* No thread could be started. */
		end_trace();
		return;
	}
	ask_end_thread(END_ALL);
	if (wait_for_last_step())
		return;
	/* Neither thread must be in the driver when its own handlers run. */
	nt_wake_stop_drain();
	nt_quiet_write_say("neutrino: the trace in %s could not be completed: the program ended where nothing more can be done\n",
			   nt_path_of_trace());
}

/*
 * After fork, in the child: record nothing. The drain thread (it fetches results), the contexts and the trace are the
 * parent's.
 */
static void in_child(void)
{
	__atomic_store_n(&nt_mode_now, NT_OFF, __ATOMIC_RELEASE);
	nt_launch_end();
	nt_errand_child();
	nt_background_child();
	nt_trace_child();
	nt_pool_child();
}

/* Whether to record with the twins (copies with probes) in patched files (neutrino-patch has added probes to them). */
static bool is_ahead_enabled(void)
{
#ifdef NEUTRINO_LATE
	return nt_late_is_active();
#else
	return nt_settings()->is_ahead;
#endif
}

/* Decide whether this process is recorded, and prepare its end. Runs once, at the first cuInit, or the first image. */
static void decide_recording(void)
{
	/* NEUTRINO_KEY: this is a run with probes of its own, which replace those of patched files. */
	bool has_run = nt_settings()->key;

	if (!has_run && !is_ahead_enabled())
		return;
	nt_upcalls = (struct nt_upcalls){
		.drain_start = nt_drain_thread_start,
		.pool_made = nt_benchmark_make,
		.pool_ends = nt_benchmark_unmake,
		.context_gone = nt_lifetimes_context_gone,
		.round_done = nt_graph_exec_count_all,
		.background_start = nt_background_start,
	};
	if (!has_run)
		nt_image_use_sections();
	is_ahead = !has_run;
	process = getpid();
	nt_quiet_write_say_start();
	nt_own_memory_begin();
	/* In time: a thread that is started at the end would need the program's allocator. */
	nt_process_prepare_end();
	nt_errand_prepare();
	/* Registered after the driver's own handlers, so that at_exit runs before them, while the driver still works. */
	if (atexit(at_exit) != 0 || !nt_apart_at_fork(in_child))
		return;
	__atomic_store_n(&nt_mode_now, NT_READY, __ATOMIC_RELEASE);
}

/* For read_command_line: where to, and how much there is. */
struct arguments {
	char *text;
	size_t size, used;
};

/* Errand (argument: struct arguments): read /proc/self/cmdline into a text, as far as it fits. */
static void read_command_line(void *argument)
{
	struct arguments *arguments = argument;
	int fd = nt_quiet_write_above_stdio(nt_raw_open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
	ssize_t part = 1;

	while (fd >= 0 && arguments->used < arguments->size && part) {
		part = nt_raw_read(fd, arguments->text + arguments->used, arguments->size - arguments->used);
		if (part < 0 && errno != EINTR)
			break;
		arguments->used += part > 0 ? (size_t)part : 0;
	}
	if (fd >= 0)
		nt_raw_close(fd);
}

/*
 * Read the arguments of this process into text, of size bytes, and point ret at the first ones. Returns how many, at
 * most `most`.
 */
static size_t read_arguments(char *text, size_t size, char *ret[], size_t most)
{
	struct arguments arguments = {text, size - 1, 0};
	size_t count = 0;

	nt_errand_run(read_command_line, &arguments);
	size_t used = arguments.used;
	text[used] = 0;
	/* Each argument ends with NUL. */
	for (size_t start = 0; start < used && count < most; start += strlen(text + start) + 1)
		ret[count++] = text + start;
	return count;
}

/* Write the event that describes this process. Called once, under the mutex of nt_process_trace. */
static void log_process(void)
{
	static const char *const ranks[NT_RANK_COUNT] = {NT_RANKS};
	const struct nt_settings *settings = nt_settings();
	/* Static because they are large for the stack of a thread of the program. */
	static struct nt_event event;
	static char text[8192], section_names[4096], section_maker[256];
	const char *names = settings->probes, *maker = settings->version;
	char *arguments[64], host[256] = "", executable[4096] = "", folder[4096] = "";
	int version = 0;

	ssize_t length = readlink("/proc/self/exe", executable, sizeof(executable) - 1);
	executable[length > 0 ? length : 0] = 0;
	gethostname(host, sizeof(host) - 1);
	nt_driver.cuDriverGetVersion(&version);
	if (is_ahead) {
		nt_section_names(section_names, sizeof(section_names), section_maker, sizeof(section_maker));
		names = section_names;
		maker = section_maker;
	}
	nt_event_begin(&event, "process");
	nt_event_number(&event, "pid", (uint64_t)getpid());
	nt_event_number(&event, "ppid", (uint64_t)getppid());
	nt_event_string(&event, "host", host);
	nt_event_strings(&event, "argv", arguments, read_arguments(text, sizeof(text), arguments, settings->hides_arguments ? 1 : 64));
	nt_event_string(&event, "executable", executable);
	nt_event_string(&event, "folder", getcwd(folder, sizeof(folder)) ? folder : "");
	nt_event_string(&event, "version", maker ? maker : "");
	nt_event_string(&event, "driver", settings->driver ? settings->driver : "");
	nt_event_number(&event, "driver_version", (uint64_t)version);
	nt_event_string(&event, "probes", names ? names : "");
	nt_event_number(&event, "monotonic_ns", nt_clock_now_ns());
	if (settings->run)
		nt_event_string(&event, "run", settings->run);
	if (settings->choice)
		nt_event_string(&event, "choice", settings->choice);
	if (nt_own_memory_is_memusage)
		nt_event_number(&event, "memusage", 1);
	if (settings->max_trace_size)
		nt_event_number(&event, "max_trace_size", settings->max_trace_size);
	for (int i = 0; i < NT_RANK_COUNT; i++)
		if (settings->ranks[i])
			nt_event_string(&event, ranks[i], settings->ranks[i]);
	nt_lines_event(&event);
}

static bool has_started;

/* Decide whether this process is recorded. After the program's first call of the driver; from any thread, done once. */
void nt_process_start(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, decide_recording);
	if (!__atomic_load_n(&has_started, __ATOMIC_RELAXED))
		__atomic_store_n(&has_started, true, __ATOMIC_RELEASE);
}

/* Whether it was decided whether this process is recorded: not before the program's first call of the driver. */
bool nt_process_has_started(void)
{
	return __atomic_load_n(&has_started, __ATOMIC_ACQUIRE);
}

/*
 * Start the trace if that has not been done; whether there is one. Called at the first image that the program loads, so
 * that a process that never uses the GPU leaves no folder. From any thread.
 */
bool nt_process_trace(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

	if (nt_mode_of_process() == NT_TRACING)
		return true;
	/* If cuInit was called before the hook was loaded, this has not been done. */
	nt_process_start();
	if (nt_mode_of_process() != NT_READY)
		return false;
	/* One thread starts the trace, the others wait for it. */
	nt_lock_take(&mutex);
	if (nt_mode_of_process() == NT_READY) {
		nt_writer_invite(&nt_steering);
		/* Without a file nothing begins. */
		nt_errand_accept_filters();
		bool started = nt_trace_start();
		if (started) {
			nt_choice_begin();
			nt_coverage_begin();
			nt_benchmark_start();
			nt_background_begin();
			log_process();
			nt_sets_note();
			nt_ranges_note_begin();
			if (!is_ahead) {
				nt_trace_copy("probe.toml", nt_settings()->probe_file);
				nt_trace_copy("read.py", nt_settings()->reader);
				nt_entry_fetch_hello(nt_path_of_trace());
			}
		} else {
			nt_quiet_write_say("neutrino: no trace directory could be made in %s (%s): kernels run unprobed\n",
					   nt_settings()->tracedir ? nt_settings()->tracedir : "(none)", nt_trace_failure());
		}
		__atomic_store_n(&nt_mode_now, started ? NT_TRACING : NT_OFF, __ATOMIC_RELEASE);
	}
	nt_lock_release(&mutex);
	return nt_mode_of_process() == NT_TRACING;
}

#ifndef NEUTRINO_LATE
static pid_t loaded_in;

/* Runs when this library is loaded: what is needed at the end if the process never calls it. */
__attribute__((constructor)) static void prepare_end(void)
{
	loaded_in = getpid();
	nt_quiet_write_say_start();
}

/*
 * At the end of a process that has loaded the hook (Neutrino's library in the process) and never called it: print a
 * line if it has used the driver all the same. A tool such as a profiler, which looks the driver's functions up for the
 * program, may leave the hook out.
 */
__attribute__((destructor)) static void say_missed(void)
{
	int devices;

	if (process || getpid() != loaded_in || !nt_driver_known() || !nt_driver.cuDeviceGetCount)
		return;
	const struct nt_settings *settings = nt_settings();
	if (settings->is_quiet || !(settings->key || settings->is_ahead))
		return;
	if (nt_driver.cuDeviceGetCount(&devices) == CUDA_ERROR_NOT_INITIALIZED)
		return;
	if (settings->key)
		nt_entry_fetch_hello("");
	nt_coverage_say_missed(settings->ranks[0]);
}
#endif

#ifdef NEUTRINO_LATE
/*
 * In the thread that calls exit, where this library came late: have the other thread start a trace that says what was
 * missed, and wait for that, STEP_LIMIT_MS at most.
 */
void nt_process_end_missed(void)
{
	const struct timespec limit = {STEP_LIMIT_MS / 1000, STEP_LIMIT_MS % 1000 * 1000000L};

	if (!ending.has_thread || nt_mode_of_process() >= NT_TRACING)
		return;
	ask_end_thread(END_MISSED);
	if (!__atomic_load_n(&ending.missed, __ATOMIC_ACQUIRE))
		syscall(SYS_futex, &ending.missed, FUTEX_WAIT_PRIVATE, 0, &limit, NULL, 0);
}

/* Callback of nt_section_unused, of which only the number is needed: does nothing. */
static void count_unused(const char *library)
{
	(void)library;
}

/*
 * At the end of the process: if the driver was used before this library was loaded, and so nothing was recorded, start
 * a trace that says so.
 */
void nt_process_missed(void)
{
	if (nt_mode_of_process() < NT_TRACING && nt_late_came_after() && nt_section_unused(count_unused))
		nt_process_trace();
}
#endif
