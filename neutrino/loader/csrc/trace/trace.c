#include "trace/trace.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/settings.h"
#include "trace/counters.h"
#include "trace/files.h"
#include "trace/launches_file.h"
#include "trace/path.h"
#include "trace/records.h"
#include "trace/results.h"
#include "trace/writer.h"

static const char *failure; /* why the trace could not be started, in words; NULL if it could */

/*
 * Have a file of the trace written atomically. name: relative to the trace directory. data: copied. False if there is
 * no trace, or it cannot be queued.
 */
bool nt_trace_file(const char *name, const void *data, size_t size)
{
	return nt_path_of_trace()[0] && nt_writer_file(name, data, size);
}

/*
 * Have a file copied into the trace, if there is a trace and it can be read. name: in the trace; path: absolute, or
 * NULL for none.
 */
void nt_trace_copy(const char *name, const char *path)
{
	if (nt_path_of_trace()[0] && path)
		nt_writer_copy(name, path);
}

/* Have a folder created in the trace, unless it exists. False if there is no trace, or that cannot be queued. */
bool nt_trace_mkdir(const char *name)
{
	return nt_path_of_trace()[0] && nt_writer_mkdir(name);
}

/* The folder for the trace as nt_trace_parent has it, absolute; "" if it was not called. */
static char parent_folder[PATH_MAX];

/*
 * Set the folder in which the trace directory will be created; it may be relative to the current folder. Without this
 * call it is NEUTRINO_TRACEDIR, which must be absolute.
 */
void nt_trace_parent(const char *folder)
{
	char current[PATH_MAX];

	if (*folder == '/')
		snprintf(parent_folder, sizeof(parent_folder), "%s", folder);
	else if (getcwd(current, sizeof(current)) && strlen(current) + strlen(folder) + 2 <= sizeof(parent_folder))
		stpcpy(stpcpy(stpcpy(parent_folder, current), "/"), folder);
}

/* How many launches have lost their results, after the last try to write their records. */
static uint64_t count_lost(void)
{
	return nt_records_lost(true);
}

static const struct nt_writer_records records = {
	.create = nt_launches_file_create,
	.has_changed = nt_counters_changed,
	.write = nt_launches_file_write,
	.write_piece = nt_results_write,
	.lost = count_lost,
};

/*
 * Start the trace's parts, and its directory, whose path is put into `path` (PATH_MAX bytes). False if that fails:
 * errno is set, and `failure` says why.
 */
static bool start_trace(char *path)
{
	static char reason[256];
	const char *why = NULL;
	if (!nt_records_start() || !nt_counters_start()) {
		errno = ENOMEM;
		failure = "no memory";
		return false;
	}
	if (nt_writer_start(&records, *parent_folder ? parent_folder : nt_settings()->tracedir, path, &why))
		return true;
	int cause = errno;
	snprintf(reason, sizeof(reason), "%s", why ? why : strerror(cause));
	failure = reason;
	errno = cause;
	return false;
}

/*
 * Create the trace directory and its files, once. False, also for all later calls, if that fails. From any thread.
 * errno stays.
 */
bool nt_trace_start(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static enum { UNTRIED, STARTED, FAILED } state;
	static char path[PATH_MAX];
	int cancelling, before = errno;

	/* It waits for a thread, and the program's thread must not be cancelled there. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling);
	nt_lock_take(&mutex);
	if (state == UNTRIED) {
		state = start_trace(path) ? STARTED : FAILED;
		if (state == STARTED)
			nt_path_set(path);
	}
	nt_lock_release(&mutex);
	pthread_setcancelstate(cancelling, NULL);
	errno = before;
	return state == STARTED;
}

/* Why nt_trace_start has failed, in words; "" if it has not. */
const char *nt_trace_failure(void)
{
	return failure ? failure : "";
}

/*
 * Make launch records for the next launches, and have those written that have changed. By the drain thread (it fetches
 * results) only, from time to time.
 */
void nt_trace_round(void)
{
	bool has_changed = nt_records_prepare();

	if (has_changed || nt_counters_changed())
		nt_writer_wake();
}

/*
 * At the end of the process: wait until everything is written, at most so many milliseconds. False if that was too
 * short. is_complete: the results of all launches were fetched.
 */
bool nt_trace_end(unsigned milliseconds, bool is_complete)
{
	int cancelling;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling);
	bool written = nt_writer_flush(nt_clock_now_ns() + (uint64_t)milliseconds * 1000000, is_complete);
	pthread_setcancelstate(cancelling, NULL);
	return written;
}

/* What is missing from the trace, and why. After nt_trace_end. */
void nt_trace_losses(struct nt_losses *ret)
{
	int error = nt_files_failure();

	*ret = (struct nt_losses){
		.launches = count_lost(),
		.others = nt_writer_unwritten(),
		.why = error ? nt_files_words(error) : NULL,
	};
}

/* In the child after fork: discard everything, as the trace is the parent's. */
void nt_trace_child(void)
{
	nt_writer_child();
}
