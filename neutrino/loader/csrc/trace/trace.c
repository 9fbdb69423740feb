#include "trace/trace.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/settings.h"
#include "trace/counters.h"
#include "trace/records.h"
#include "trace/writer.h"

static char trace_path[PATH_MAX]; /* "" until the trace has started */
static const char *failure;	  /* why it could not be, in words */

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t nt_now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

uint64_t nt_realtime_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

void nt_sleep_us(long microseconds)
{
	struct timespec pause = {.tv_sec = microseconds / 1000000, .tv_nsec = microseconds % 1000000 * 1000};

	nanosleep(&pause, NULL);
}

/* Other threads see the first byte last. */
static bool has_started(void)
{
	return __atomic_load_n(&trace_path[0], __ATOMIC_ACQUIRE);
}

const char *nt_trace_path(void)
{
	return has_started() ? trace_path : "";
}

bool nt_trace_file(const char *name, const void *data, size_t size)
{
	return has_started() && nt_writer_file(name, data, size);
}

void nt_trace_copy(const char *name, const char *path)
{
	if (has_started() && path)
		nt_writer_copy(name, path);
}

bool nt_trace_mkdir(const char *name)
{
	return has_started() && nt_writer_mkdir(name);
}

void nt_trace_log(const char *format, ...)
{
	enum { LONGEST = 2048 };
	va_list arguments;
	time_t now = time(NULL);
	struct tm local;
	int before = errno;
	char *line = has_started() && localtime_r(&now, &local) ? malloc(LONGEST) : NULL;

	if (!line)
		return;
	size_t used = strftime(line, LONGEST, "%H:%M:%S ", &local);
	va_start(arguments, format);
	int length = vsnprintf(line + used, LONGEST - used - 1, format, arguments);
	va_end(arguments);
	/* length is that of the whole text, of which vsnprintf has stored what fits; one byte is left for the newline. */
	if (length > 0)
		used += (size_t)length < LONGEST - used - 1 ? (size_t)length : LONGEST - used - 2;
	/* Names may have escape sequences, which a terminal would obey. */
	for (size_t i = 0; i < used; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	line[used++] = '\n';
	nt_writer_line(NT_WRITER_LOG, line, used);
	errno = before;
}

void nt_trace_note(const char *format, ...)
{
	char text[1024];
	va_list arguments;
	struct nt_event event;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	nt_event_begin(&event, "note");
	nt_event_string(&event, "text", text);
	nt_event_end(&event);
	nt_trace_log("%s", text);
}

/* The folder for the trace as nt_trace_parent has it, absolute; "" if it was not called. */
static char parent_folder[PATH_MAX];

void nt_trace_parent(const char *folder)
{
	char current[PATH_MAX];

	if (*folder == '/')
		snprintf(parent_folder, sizeof(parent_folder), "%s", folder);
	else if (getcwd(current, sizeof(current)) && strlen(current) + strlen(folder) + 2 <= sizeof(parent_folder))
		stpcpy(stpcpy(stpcpy(parent_folder, current), "/"), folder);
}

/* Start the trace, into path. False if that fails: errno is set. */
static bool start(char *path)
{
	static char reason[256];
	const char *why = NULL;

	if (!nt_records_start() || !nt_counters_start()) {
		errno = ENOMEM;
		failure = "no memory";
		return false;
	}
	if (nt_writer_start(*parent_folder ? parent_folder : nt_settings()->tracedir, path, &why))
		return true;
	int cause = errno;
	snprintf(reason, sizeof(reason), "%s", why ? why : strerror(cause));
	failure = reason;
	errno = cause;
	return false;
}

bool nt_trace_start(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static enum { UNTRIED, STARTED, FAILED } state;
	static char path[PATH_MAX];
	int cancelling, before = errno;

	/* It waits for a thread, and the program's thread must not be cancelled there. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling);
	pthread_mutex_lock(&mutex);
	if (state == UNTRIED) {
		state = start(path) ? STARTED : FAILED;
		if (state == STARTED) {
			strcpy(trace_path + 1, path + 1);
			__atomic_store_n(&trace_path[0], path[0], __ATOMIC_RELEASE);
		}
	}
	pthread_mutex_unlock(&mutex);
	pthread_setcancelstate(cancelling, NULL);
	errno = before;
	return state == STARTED;
}

const char *nt_trace_failure(void)
{
	return failure ? failure : "";
}

void nt_trace_round(void)
{
	bool has_changed = nt_records_prepare();

	if (has_changed || nt_counters_changed())
		nt_writer_wake();
}

bool nt_trace_end(unsigned milliseconds, bool is_complete)
{
	int cancelling;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling);
	bool written = nt_writer_flush(nt_now_ns() + (uint64_t)milliseconds * 1000000, is_complete);
	pthread_setcancelstate(cancelling, NULL);
	return written;
}

void nt_trace_child(void)
{
	nt_writer_child();
}
