#include "trace/launches_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/quiet_write.h"
#include "base/raw_files.h"
#include "base/settings.h"
#include "trace/counters.h"
#include "trace/files.h"
#include "trace/records.h"
#include "trace/results.h"
#include "trace/trace.h"

#define BATCH 512u		    /* records that are collected at once */
#define MOST_BATCHES 256u	    /* in one round: other files are to be written, too */
#define RETRY_NS 1000000000u
#define RECORDS_SHARE(limit) ((limit) / 4) /* of the limit of the trace's size */

static struct neutrino_launches_header header;
static struct neutrino_launches_header written_header;
static int launches_fd = -1, counters_fd = -1;
static bool has_removal_failed;
static uint64_t retry_ns; /* when to write again after a failure */

/*
 * The descriptor of a file of the trace: `held` if it stays open, else it is opened for writing, and done_with closes
 * it. -1 if that fails.
 */
static int open_file(const char *name, int held)
{
	return held >= 0 ? held : nt_files_open(name, O_WRONLY);
}

/* Close what open_file has returned, unless it stays open (held). */
static void done_with(int fd, int held)
{
	if (fd >= 0 && fd != held)
		nt_raw_close(fd);
}

/* Create launches.bin and counters.bin in the trace directory. False if that fails: errno is set. */
bool nt_launches_file_create(void)
{
	header = (struct neutrino_launches_header){
		.version = NEUTRINO_LAUNCHES_VERSION,
		.record_size = sizeof(struct neutrino_launch),
		.records_offset = NEUTRINO_LAUNCHES_HEADER_SIZE,
		.monotonic_ns = nt_clock_now_ns(),
		.realtime_ns = nt_clock_realtime_ns(),
		.pid = (uint32_t)getpid(),
	};
	memcpy(header.magic, NEUTRINO_LAUNCHES_MAGIC, sizeof(header.magic));
	/* The whole space of the header, so that it can be written again when the disk is full. */
	static char space[NEUTRINO_LAUNCHES_HEADER_SIZE];
	memcpy(space, &header, sizeof(header));
	written_header = header;
	int launches = nt_files_open("launches.bin", O_WRONLY | O_CREAT | O_EXCL);
	int counters = launches < 0 ? -1 : nt_files_open("counters.bin", O_WRONLY | O_CREAT | O_EXCL);
	bool created = counters >= 0 && nt_quiet_write_all_at(launches, space, sizeof(space), 0);
	if (created && nt_files_keep_open()) {
		launches_fd = launches;
		counters_fd = counters;
		return true;
	}
	int cause = errno;
	done_with(launches, -1);
	done_with(counters, -1);
	errno = cause;
	return created;
}

/*
 * Write collected launch records to launches.bin, neighbours at once, and note how many there are. False if that fails.
 */
static bool write_records(int fd, const struct nt_changed *changed, uint32_t count)
{
	struct neutrino_launch neighbours[CHUNK_RECORDS];
	uint64_t used = header.records_used;

	for (uint32_t i = 0, length; i < count; i += length) {
		for (length = 0; length < CHUNK_RECORDS && i + length < count; length++) {
			if (changed[i + length].index != changed[i].index + length)
				break;
			neighbours[length] = changed[i + length].record;
		}
		if (changed[i].index + length > used)
			used = changed[i].index + length;
		/* A record that was removed before its data came stays removed. */
		if (changed[i].index < header.records_first)
			continue;
		if (!nt_quiet_write_all_at(fd, neighbours, length * sizeof(*neighbours),
					   header.records_offset + changed[i].index * sizeof(*neighbours)))
			return false;
	}
	header.records_used = used;
	return true;
}

/*
 * Free the disk space of the oldest launch records, if they take more than their share of --max-trace-size. fd: of
 * launches.bin.
 */
static void keep_limit(int fd)
{
	uint64_t most = RECORDS_SHARE(nt_settings()->max_trace_size) / sizeof(struct neutrino_launch);
	uint64_t count = header.records_used - header.records_first;

	if (!most || count <= most || has_removal_failed || nt_settings()->measures_only)
		return;
	/* Down to three quarters, by whole pages of 32 records, so that it is seldom. */
	uint64_t first = (header.records_used - most / 4 * 3) / CHUNK_RECORDS * CHUNK_RECORDS;
	if (first <= header.records_first)
		return;
	/* The file's size stays: a record is where its number says. */
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		      (off_t)(header.records_offset + header.records_first * sizeof(struct neutrino_launch)),
		      (off_t)((first - header.records_first) * sizeof(struct neutrino_launch))) == 0) {
		header.records_first = first;
	} else {
		has_removal_failed = true;
		nt_lines_note("--max-trace-size: the file system cannot free a part of launches.bin, which grows on");
	}
}

/*
 * Make launches.bin as long as its header says, if something has cut it off: records that are gone then read as EMPTY.
 */
static void restore_size(int fd)
{
	uint64_t size = header.records_offset + header.records_used * sizeof(struct neutrino_launch);
	struct stat status;

	if (nt_raw_stat(fd, &status) == 0 && (uint64_t)status.st_size < size && ftruncate(fd, (off_t)size) != 0)
		nt_lines_log("launches.bin was cut off");
}

/* Write the launch counters that have changed to counters.bin. False if that fails. */
static bool write_counters(void)
{
	int fd = open_file("counters.bin", counters_fd);
	bool written = fd >= 0 && nt_counters_write(fd);

	if (!written)
		nt_files_failed();
	done_with(fd, counters_fd);
	return written;
}

/* Write the header of launches.bin if it has changed, or always: something may have cut it off. fd -1 is ignored. */
static void write_header(int fd, bool always)
{
	if (fd >= 0 && (always || memcmp(&header, &written_header, sizeof(header)) != 0) &&
	    nt_quiet_write_all_at(fd, &header, sizeof(header), 0))
		written_header = header;
}

/*
 * Write launch records and counters that have changed. is_last: all of them, and that the trace is complete if they
 * are written; has_events: and its events.
 */
void nt_launches_file_write(bool is_last, bool has_events)
{
	static struct nt_changed changed[BATCH];
	uint32_t count;
	bool written = true;

	/* A full disk takes nothing a millisecond later either. */
	if (!is_last && nt_clock_now_ns() < retry_ns)
		return;
	int fd = open_file("launches.bin", launches_fd);
	/* A disk that is copied on write may have space for little more: first what says most. */
	if (is_last) {
		write_counters();
		write_header(fd, true);
	}
	for (uint32_t i = 0; (is_last || i < MOST_BATCHES) && written && (count = nt_records_collect(changed, BATCH, is_last));
	     i++) {
		written = fd >= 0 && write_records(fd, changed, count);
		if (!written)
			nt_files_failed();
		nt_records_collected(changed, count, written);
	}
	if (fd >= 0)
		keep_limit(fd);
	header.data_removed = nt_results_removed();
	written &= write_counters();
	/* Last: the header says how many records there are. */
	header.ended = is_last && written && has_events;
	write_header(fd, is_last);
	if (fd >= 0 && is_last)
		restore_size(fd);
	done_with(fd, launches_fd);
	retry_ns = written ? 0 : nt_clock_now_ns() + RETRY_NS;
}
