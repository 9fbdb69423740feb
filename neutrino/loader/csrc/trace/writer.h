/*
 * The thread that writes the files of the trace, and the queue of what it has to write. It makes no driver calls. The
 * program's threads never wait for it, except once at its start and at the end of the process; the drain thread waits when
 * it has queued much data of launches. Where no thread can be made, the caller writes.
 */
#ifndef NEUTRINO_WRITER_H
#define NEUTRINO_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "trace/results.h"

/* NT_WRITER_SAMPLES: some of benchmark.bin. */
enum nt_writer_lines { NT_WRITER_EVENTS, NT_WRITER_LOG, NT_WRITER_SAMPLES };

/*
 * What else the thread does, for another part of the hook. start: once the trace directory is there. next_look: milliseconds
 * until look is to be called again, which returns whether all that there is must be written now; written: that is done.
 */
struct nt_writer_guest {
	void (*start)(void);
	unsigned (*next_look)(void);
	bool (*look)(void);
	void (*written)(bool is_last);
};

/* Before nt_writer_start. */
void nt_writer_invite(const struct nt_writer_guest *guest);

/*
 * The files of records: what else the thread writes. create: once the trace directory is there; false, with errno, if that
 * fails. has_changed: whether something is to be written that wakes nobody. write: what has changed, with is_last all of it;
 * has_events: no event of the trace is missing. write_piece: data of launches. lost: launches whose results are lost, after
 * the last write.
 */
struct nt_writer_records {
	bool (*create)(void);
	bool (*has_changed)(void);
	void (*write)(bool is_last, bool has_events);
	void (*write_piece)(const struct nt_piece *piece);
	uint64_t (*lost)(void);
};

/*
 * Start the thread and have it create the trace directory in folder. path, of PATH_MAX bytes, gets its path. False if that
 * fails: errno is set, and why gets a reason that errno cannot give, or NULL. Called once.
 */
bool nt_writer_start(const struct nt_writer_records *records, const char *folder, char *path, const char **why);

/* Append a line to events.jsonl or event.log, or samples to benchmark.bin. text: of malloc, freed by the writer. */
void nt_writer_line(enum nt_writer_lines file, char *text, size_t size);

/* Write a file atomically, from a copy of the data, or create a folder. False if the queue is full. */
bool nt_writer_file(const char *name, const void *data, size_t size);
bool nt_writer_mkdir(const char *name);

/* Write a file of the cache atomically. path: absolute. data: copied. Nothing happens if that fails. */
void nt_writer_cached(const char *path, const void *data, size_t size);

/* Copy a file into the trace, if it can be read. */
void nt_writer_copy(const char *name, const char *path);

/* Write data of launches; false without memory. Waits while too much of it is queued: for the drain thread. */
bool nt_writer_piece(struct nt_piece *piece);

/* Have changed records and counters written. */
void nt_writer_wake(void);

/*
 * Wait until all that was queued, and all records and counters, are written; false if that takes longer. is_last: nothing
 * follows, so that the trace is complete if that is done.
 */
bool nt_writer_flush(uint64_t deadline_ns, bool is_last);

/* How many events, lines and files could not be written so far, of those that are still missing. */
uint64_t nt_writer_unwritten(void);

/* In the child after fork: discard everything. */
void nt_writer_child(void);

#endif
