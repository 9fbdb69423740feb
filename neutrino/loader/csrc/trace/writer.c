#include "trace/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"
#include "base/settings.h"
#include "base/thread.h"
#include "trace/files.h"
#include "trace/trace.h"

#define QUEUE_LIMIT (UINT64_C(64) << 20)  /* bytes of lines and files that wait */
#define PIECES_LIMIT (UINT64_C(64) << 20) /* bytes of launches' data that wait */
#define LINE_BYTES 256			  /* at which a small job is counted, with its memory */
#define HELD_LIMIT (UINT64_C(256) << 10)  /* bytes of events that the disk did not take */
#define RETRY_NS UINT64_C(1000000000)
#define IDLE_MS 1000			  /* after which counters are looked at again */

enum job_kind { JOB_LINE, JOB_FILE, JOB_FOLDER, JOB_COPY, JOB_CACHED, JOB_PIECE };

struct job {
	struct job *next;
	enum job_kind kind;
	enum nt_writer_lines lines;
	char *name; /* of a file or folder */
	void *data;
	size_t size; /* of data, in bytes */
};

static struct {
	pthread_mutex_t mutex;
	pthread_cond_t work; /* something is to do */
	pthread_cond_t done; /* something was done */
	struct job *first, *last;
	uint64_t bytes;	       /* of lines and files that wait */
	uint64_t piece_bytes;  /* of data of launches that wait */
	uint64_t rounds;       /* of the thread */
	uint64_t lost;	       /* lines and files for which there was no room */
	bool is_woken, is_busy;
	bool has_thread;
	bool is_ending; /* flush was called, */
	bool is_last;	/* with is_last */
	int off;	/* in a child after fork */
} queue = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* The writer's own: the files of lines. */
static const char *const line_files[] = {"events.jsonl", "event.log", "benchmark.bin"};
static int line_fds[] = {-1, -1, -1};
static off_t cut_to[] = {-1, -1, -1}; /* where a line begins of which a part could not be cut off; -1: there is none */
static uint64_t unwritten; /* lines and files that could not be written since that was last said */
static struct job *held, **held_end = &held; /* events that the disk did not take, oldest first */
static uint64_t held_bytes, held_retry_ns;
static uint64_t all_unwritten;	/* lines and files that are missing for good; for other threads, too */
static bool lacks_event;	/* an event is among them */
static uint64_t lost_said;	/* launches whose results are lost, as the events have it */

static const struct nt_writer_records *records;
static const struct nt_writer_guest *guest;

/*
 * Set another part (neutrino-ctl's requests) that has its work done by the writer's thread, too. Before
 * nt_writer_start.
 */
void nt_writer_invite(const struct nt_writer_guest *its)
{
	guest = its;
}

/* Whether nothing is to be written, in a child that fork has made. */
static bool is_off(void)
{
	return __atomic_load_n(&queue.off, __ATOMIC_ACQUIRE);
}

/*
 * Append a line (or samples) to one of the trace's files. If only a part can be written, it is cut off again. False if
 * it is not written.
 */
static bool write_line(enum nt_writer_lines file, const void *data, size_t size)
{
	struct stat before, after;
	int flags = O_WRONLY | O_CREAT | O_APPEND;
	int fd = line_fds[file] >= 0 ? line_fds[file] : nt_files_open(line_files[file], flags);

	if (fd < 0)
		return false;
	bool is_whole = cut_to[file] < 0 || ftruncate(fd, cut_to[file]) == 0;
	if (is_whole)
		cut_to[file] = -1;
	bool has_size = is_whole && nt_raw_stat(fd, &before) == 0;
	bool written = is_whole && nt_quiet_write_all(fd, data, size);
	if (!written && has_size && nt_raw_stat(fd, &after) == 0 && after.st_size > before.st_size &&
	    ftruncate(fd, before.st_size) != 0)
		cut_to[file] = before.st_size;
	if (nt_files_keep_open())
		line_fds[file] = fd;
	else
		nt_raw_close(fd);
	return written;
}

/* End an event, and append it to events.jsonl; by the thread that writes the trace's files itself. False if that fails. */
static bool write_event(struct nt_event *event)
{
	char *line = nt_event_line(event);
	bool written = line && write_line(NT_WRITER_EVENTS, line, event->used);

	nt_memory_free(line);
	return written;
}

/* Append a "note" event, "COUNT TEXT". False if that fails. */
static bool write_note(const char *text, uint64_t count)
{
	struct nt_event event;
	char counted[128];

	snprintf(counted, sizeof(counted), "%llu %s", (unsigned long long)count, text);
	nt_event_begin(&event, "note");
	nt_event_string(&event, "text", counted);
	return write_event(&event);
}

/* Note how many events, lines or files could not be written, if any. */
static void say_unwritten(void)
{
	if (unwritten && write_note("events, lines of event.log or files could not be written", unwritten))
		unwritten = 0;
}

/* Note, after the last records, how many launches have lost their results, if any; with the number as a member. */
static void say_lost(void)
{
	uint64_t lost = records->lost();
	int error = nt_files_failure();
	struct nt_event event;
	char text[256];

	if (lost == lost_said)
		return;
	snprintf(text, sizeof(text), "the records of %llu launch%s were lost%s%s", (unsigned long long)lost,
		 lost == 1 ? "" : "es", error ? ": " : "", error ? nt_files_words(error) : "");
	nt_event_begin(&event, "note");
	nt_event_string(&event, "text", text);
	nt_event_number(&event, "lost", lost);
	if (write_event(&event))
		lost_said = lost;
}

/* Free a job of the queue with its data and name. */
static void free_job(struct job *job)
{
	nt_memory_free(job->name);
	nt_memory_free(job->data);
	nt_memory_free(job);
}

/*
 * Write the events that are kept since the disk did not take them; whether none is left. is_ending: try also if that
 * failed a moment ago.
 */
static bool write_held(bool is_ending)
{
	if (held && !is_ending && nt_clock_now_ns() < held_retry_ns)
		return false;
	while (held && write_line(NT_WRITER_EVENTS, held->data, held->size)) {
		struct job *job = held;
		held = job->next;
		held_bytes -= job->size;
		free_job(job);
	}
	if (held)
		held_retry_ns = nt_clock_now_ns() + RETRY_NS;
	else
		held_end = &held;
	return !held;
}

/* Keep an event that could not be written, for a later try; false if too many are kept. */
static bool hold_event(struct job *job)
{
	if (held_bytes + job->size > HELD_LIMIT)
		return false;
	job->next = NULL;
	*held_end = job;
	held_end = &job->next;
	held_bytes += job->size;
	held_retry_ns = nt_clock_now_ns() + RETRY_NS;
	return true;
}

/* Do a job of the queue (write a line, a file, a piece of data ...), and free it unless its event is kept for later. */
static void do_job(struct job *job)
{
	bool is_event = job->kind == JOB_LINE && job->lines == NT_WRITER_EVENTS, written = true;

	errno = 0;

	switch (job->kind) {
	case JOB_LINE:
		written = (!is_event || write_held(false)) && write_line(job->lines, job->data, job->size);
		break;
	case JOB_FILE:
		written = nt_files_write(job->name, job->data, job->size);
		break;
	case JOB_FOLDER:
		written = nt_files_mkdir(job->name);
		break;
	case JOB_COPY:
		written = nt_files_copy(job->name, job->data);
		break;
	case JOB_CACHED:
		/* The trace is complete without it. */
		nt_files_write_cached(job->name, job->data, job->size);
		break;
	case JOB_PIECE:
		records->write_piece(job->data);
		break;
	}
	if (!written)
		nt_files_failed();
	if (!written && is_event && hold_event(job))
		return;
	/* What is missing is noted once the disk accepts data again. */
	if (!written) {
		unwritten++;
		lacks_event |= is_event;
		__atomic_add_fetch(&all_unwritten, 1, __ATOMIC_RELAXED);
	} else if (is_event) {
		say_unwritten();
	}
	free_job(job);
}

/* How many events, lines and files are missing from the trace for good; after nt_writer_flush, from any thread. */
uint64_t nt_writer_unwritten(void)
{
	return __atomic_load_n(&all_unwritten, __ATOMIC_RELAXED);
}

/* The bytes that a job takes in the queue, by which its length is limited. */
static uint64_t room_of(const struct job *job)
{
	return job->kind == JOB_PIECE ? ((const struct nt_piece *)job->data)->room : job->size + LINE_BYTES;
}

/* Which count of the queue's bytes a job belongs to: that of launches' data, or that of all else. */
static uint64_t *counter_of(const struct job *job)
{
	return job->kind == JOB_PIECE ? &queue.piece_bytes : &queue.bytes;
}

/*
 * Do all jobs of a list, then write records and counters that have changed. lost: jobs for which there was no room. In
 * the writer's thread, or in one that writes for itself.
 */
static void do_jobs(struct job *jobs, uint64_t lost, bool is_ending, bool is_last)
{
	__atomic_add_fetch(&all_unwritten, lost, __ATOMIC_RELAXED);
	if (lost)
		write_note("events, lines of event.log or files were lost: the disk was too slow", lost);
	while (jobs) {
		struct job *job = jobs;
		uint64_t room = room_of(job);
		uint64_t *counter = counter_of(job);
		jobs = job->next;
		do_job(job);
		nt_lock_take(&queue.mutex);
		*counter -= room;
		pthread_cond_broadcast(&queue.done);
		nt_lock_release(&queue.mutex);
	}
	if (is_ending) {
		nt_files_release();
		write_held(true);
		say_unwritten();
	}
	records->write(is_last, !held && !lacks_event);
	if (is_last)
		say_lost();
	if (guest)
		guest->written(is_last);
}

/* For write_files: what nt_writer_start was asked for, and the answer. */
struct start {
	const char *folder;
	char *path;
	const char **why;
	int error;
	enum { STARTING, STARTED, FAILED } state;
};

/* Create the trace directory and the files in it that stay open. False if that fails: errno is set. */
static bool open_trace(const struct start *start)
{
	if (!nt_files_create(start->folder, start->path, start->why))
		return false;
	if (!records->create()) {
		int cause = errno;
		nt_files_unlink("launches.bin");
		nt_files_unlink("counters.bin");
		nt_files_remove_directory();
		errno = cause;
		return false;
	}
	nt_files_mkdir("kernel");
	nt_files_mkdir("result");
	nt_files_reserve();
	/* Kept open from now on: the program may forbid itself to open files. */
	for (int i = 0; i < (nt_settings()->benchmark ? 3 : 2) && nt_files_keep_open(); i++)
		line_fds[i] = nt_files_open(line_files[i], O_WRONLY | O_CREAT | O_APPEND);
	if (guest)
		guest->start();
	return true;
}

/* Whether the writer (the thread that writes the trace's files) has something to do. Under the mutex. */
static bool has_work(void)
{
	return queue.first || queue.is_woken;
}

/*
 * Wait until the writer (the thread that writes the trace's files) has something to do, for its guest too. Under the
 * mutex, which is released meanwhile. Launches that run originals are only counted, and wake nobody: so counters are
 * looked at from time to time.
 */
static void wait_for_work(void)
{
	bool is_asked;

	do {
		struct timespec until;
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += (long)(guest ? guest->next_look() : IDLE_MS) * 1000000;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		if (!has_work() && pthread_cond_timedwait(&queue.work, &queue.mutex, &until) == ETIMEDOUT)
			queue.is_woken |= records->has_changed();
		nt_lock_release(&queue.mutex);
		is_asked = guest && guest->look();
		nt_lock_take(&queue.mutex);
	} while (!has_work() && !is_asked);
}

/*
 * Main function of the writer's thread: opens the trace, then does the jobs of the queue as they come. argument: struct
 * start, which gets the result.
 */
static void *write_files(void *argument)
{
	struct start *start = argument;

	nt_lock_without_signals();
	nt_files_own_table();
	bool opened = open_trace(start);
	nt_lock_take(&queue.mutex);
	start->error = errno;
	start->state = opened ? STARTED : FAILED;
	pthread_cond_broadcast(&queue.done);
	while (opened) {
		wait_for_work();
		struct job *jobs = queue.first;
		uint64_t lost = queue.lost;
		bool is_ending = queue.is_ending, is_last = queue.is_last;
		queue.first = queue.last = NULL;
		queue.lost = 0;
		queue.is_woken = false;
		queue.is_busy = true;
		nt_lock_release(&queue.mutex);
		do_jobs(jobs, lost, is_ending, is_last);
		nt_lock_take(&queue.mutex);
		queue.is_busy = false;
		queue.rounds++;
		pthread_cond_broadcast(&queue.done);
	}
	nt_lock_release(&queue.mutex);
	return NULL;
}

/*
 * Start the writer's thread, and have it create the trace directory in folder; waits for that. path, of PATH_MAX bytes,
 * gets its path. False if that fails: errno is set, and *why gets a reason that errno cannot give, or NULL. Called
 * once.
 */
bool nt_writer_start(const struct nt_writer_records *its, const char *folder, char *path, const char **why)
{
	/* Static: a thread that is cancelled while it waits leaves it. */
	static struct start start;
	pthread_condattr_t clock;

	records = its;
	start = (struct start){.folder = folder, .path = path, .why = why};
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&queue.work, &clock);
	pthread_cond_init(&queue.done, &clock);
	pthread_condattr_destroy(&clock);
	queue.has_thread = nt_thread_start(write_files, &start, "neutrino-write");
	if (!queue.has_thread)
		return open_trace(&start);
	nt_lock_take(&queue.mutex);
	while (start.state == STARTING)
		pthread_cond_wait(&queue.done, &queue.mutex);
	nt_lock_release(&queue.mutex);
	errno = start.error;
	return start.state == STARTED;
}

/* Do a job in the calling thread, where no writer's thread could be started; NULL: only what has changed. */
static void run_here(struct job *job)
{
	/* Recursive, since what fails is noted. */
	static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

	nt_lock_take(&mutex);
	do_jobs(job, 0, queue.is_ending, queue.is_last);
	nt_lock_release(&mutex);
}

/*
 * Queue a job for the writer's thread. False if there is no room: then it is freed and counted as lost. Data of
 * launches wait for room instead. errno stays.
 */
static bool enqueue(struct job *job)
{
	uint64_t *counter = counter_of(job), room = room_of(job);
	bool waits = job->kind == JOB_PIECE, taken = false;
	int before = errno;

	job->next = NULL;
	nt_lock_take(&queue.mutex);
	/* A job that alone exceeds the limit has room when nothing else waits. */
	while (waits && queue.has_thread && *counter && *counter + room > PIECES_LIMIT)
		pthread_cond_wait(&queue.done, &queue.mutex);
	taken = waits || !queue.has_thread || *counter + room <= QUEUE_LIMIT;
	if (taken)
		*counter += room;
	else
		queue.lost++;
	if (taken && queue.has_thread) {
		if (queue.last)
			queue.last->next = job;
		else
			queue.first = job;
		queue.last = job;
		pthread_cond_signal(&queue.work);
	}
	nt_lock_release(&queue.mutex);
	if (taken && !queue.has_thread)
		run_here(job);
	if (!taken)
		free_job(job);
	errno = before;
	return taken;
}

/*
 * Make a job of these and queue it. data: of nt_memory_alloc, freed also if that fails. name: copied, or NULL. False
 * without memory or room.
 */
static bool enqueue_new(enum job_kind kind, enum nt_writer_lines lines, const char *name, void *data, size_t size)
{
	struct job *job = is_off() ? NULL : nt_memory_alloc_zeroed(1, sizeof(*job));
	char *copy = name && job ? nt_memory_strdup(name) : NULL;

	if (!job || (name && !copy)) {
		nt_memory_free(job);
		nt_memory_free(copy);
		nt_memory_free(data);
		return false;
	}
	*job = (struct job){.kind = kind, .lines = lines, .name = copy, .data = data, .size = size};
	return enqueue(job);
}

/*
 * Have a line appended to events.jsonl or event.log, or samples to benchmark.bin. text: of nt_memory_alloc, freed by
 * the writer (the thread that writes the trace's files).
 */
void nt_writer_line(enum nt_writer_lines file, char *text, size_t size)
{
	char *fitting = nt_memory_realloc(text, size);

	enqueue_new(JOB_LINE, file, NULL, fitting ? fitting : text, size);
}

/*
 * Have a file of the trace written atomically, from a copy of the data. False if the queue is full, or without memory.
 */
bool nt_writer_file(const char *name, const void *data, size_t size)
{
	void *copy = nt_memory_alloc(size + 1);

	if (!copy)
		return false;
	memcpy(copy, data, size);
	return enqueue_new(JOB_FILE, NT_WRITER_EVENTS, name, copy, size);
}

/* Have a file of the cache written atomically. path: absolute. data: copied. Nothing happens if that fails. */
void nt_writer_cached(const char *path, const void *data, size_t size)
{
	void *copy = nt_memory_alloc(size + 1);

	if (!copy)
		return;
	memcpy(copy, data, size);
	enqueue_new(JOB_CACHED, NT_WRITER_EVENTS, path, copy, size);
}

/* Have a folder of the trace created. False if the queue is full, or without memory. */
bool nt_writer_mkdir(const char *name)
{
	return enqueue_new(JOB_FOLDER, NT_WRITER_EVENTS, name, NULL, 0);
}

/* Have a file at `path` copied into the trace, if it can be read. */
void nt_writer_copy(const char *name, const char *path)
{
	char *copy = nt_memory_strdup(path);

	if (copy)
		enqueue_new(JOB_COPY, NT_WRITER_EVENTS, name, copy, strlen(path));
}

/*
 * Have a piece (some launches' results) written, which becomes the writer's; false without memory. Waits while too much
 * of it is queued: for the drain thread (it fetches results).
 */
bool nt_writer_piece(struct nt_piece *piece)
{
	return enqueue_new(JOB_PIECE, NT_WRITER_EVENTS, NULL, piece, piece->room);
}

/* Have launch records and counters written that have changed. */
void nt_writer_wake(void)
{
	if (is_off())
		return;
	if (!queue.has_thread) {
		run_here(NULL);
		return;
	}
	nt_lock_take(&queue.mutex);
	queue.is_woken = true;
	pthread_cond_signal(&queue.work);
	nt_lock_release(&queue.mutex);
}

/*
 * Wait until all that was queued, and all records and counters, are written; false if that is not so by the deadline
 * (nt_clock_now_ns). is_last: nothing follows, so that the trace is complete then.
 */
bool nt_writer_flush(uint64_t deadline_ns, bool is_last)
{
	struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
				 .tv_nsec = (long)(deadline_ns % 1000000000u)};
	bool in_time = true;

	if (is_off())
		return false;
	nt_lock_take(&queue.mutex);
	queue.is_ending = true;
	queue.is_last |= is_last;
	/* A round that begins now writes everything; one that runs may have passed some of it. */
	uint64_t wanted = queue.rounds + (queue.is_busy ? 2 : 1);
	queue.is_woken = true;
	pthread_cond_signal(&queue.work);
	/* It may have queued notes of its own. */
	while (queue.has_thread && in_time && (queue.rounds < wanted || queue.first || queue.is_busy))
		in_time = pthread_cond_timedwait(&queue.done, &queue.mutex, &until) != ETIMEDOUT;
	nt_lock_release(&queue.mutex);
	if (!queue.has_thread)
		run_here(NULL);
	return in_time;
}

/* In the child after fork: write nothing any more. */
void nt_writer_child(void)
{
	__atomic_store_n(&queue.off, 1, __ATOMIC_RELEASE);
}
