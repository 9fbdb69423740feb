/*
 * The trace directory of this process. What is to be written goes to the writer's queue (writer.h). All functions may be
 * called from any thread; they leave errno alone.
 */
#ifndef NEUTRINO_TRACE_H
#define NEUTRINO_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/neutrino_layout.h"
#include "base/quiet_write.h"

/* Create the directory and its files, once. False, also for all later calls, if that fails. */
bool nt_trace_start(void);

/* Why nt_trace_start has failed, in words. */
const char *nt_trace_failure(void);

/*
 * Set the folder in which the directory will be created; it may be relative to the current folder. Without this call,
 * that is NEUTRINO_TRACEDIR at the time of nt_trace_start, which must be absolute.
 */
void nt_trace_parent(const char *folder);

/* Path of the directory; "" before nt_trace_start has succeeded. */
const char *nt_path_of_trace(void);

/*
 * A line of events.jsonl under construction: a JSON object. Strings that are too long are cut, lists of strings end early, and
 * members that do not fit all the same are left out.
 */
#define NT_EVENT_SIZE 65024u
struct nt_event {
	char *text;  /* of NT_EVENT_SIZE bytes; NULL: the event is lost */
	size_t used; /* bytes of text */
	bool cut;    /* the current member does not fit */
};

/* Begin an event of that kind, with the current time; then add members. */
void nt_event_begin(struct nt_event *event, const char *kind);
void nt_event_string(struct nt_event *event, const char *key, const char *value);
void nt_event_number(struct nt_event *event, const char *key, uint64_t value);
void nt_event_real(struct nt_event *event, const char *key, double value);
void nt_event_strings(struct nt_event *event, const char *key, char *const *values, size_t count);
/* End the object, and return its line of `used` bytes, which becomes the caller's; NULL if the event is lost. */
char *nt_event_line(struct nt_event *event);
/* End the object, and have it appended to events.jsonl. */
void nt_lines_event(struct nt_event *event);

/* Write a "note" event, and the same line to event.log. */
__attribute__((format(printf, 1, 2))) void nt_lines_note(const char *format, ...);
/* Write a line to event.log. */
__attribute__((format(printf, 1, 2))) void nt_lines_log(const char *format, ...);

/* Write a file of the trace atomically. name: relative to the directory. data: copied. False if it cannot be queued. */
bool nt_trace_file(const char *name, const void *data, size_t size);
/* Copy a file into the trace. path: absolute, or NULL. Nothing happens if it cannot be read. */
void nt_trace_copy(const char *name, const char *path);
/* Create a folder in the trace, unless it exists. False if that cannot be queued. */
bool nt_trace_mkdir(const char *name);

/* Take a free launch record; NULL if there is none. *index gets its number in launches.bin. Lock-free. */
struct neutrino_launch *nt_records_take(uint64_t *index);
/* The record of a number that nt_records_take has returned, until it is settled. */
struct neutrino_launch *nt_records_at(uint64_t index);
/* Count a launch of a kernel, by its id, under a reason (NEUTRINO_REASON_...). Lock-free. */
void nt_counters_count(uint32_t kernel, enum neutrino_reason reason);
/* The same for many launches at once. */
void nt_counters_count_many(uint32_t kernel, enum neutrino_reason reason, uint64_t number);
/* How many launches of a kernel were counted under a reason. */
uint64_t nt_counters_total(uint32_t kernel, enum neutrino_reason reason);
/* Make the counters of a kernel. Before its first launch; it allocates. */
void nt_counters_make(uint32_t kernel);
/*
 * Make records for the next launches, and have those written that have changed. Called by the drain thread only, from time
 * to time.
 */
void nt_trace_round(void);
/*
 * At the end of the process: wait until everything is written, at most that long. False if that was too short. is_complete:
 * all records were drained.
 */
bool nt_trace_end(unsigned milliseconds, bool is_complete);
/*
 * After nt_trace_end: what is missing from the trace. launches: whose results are lost; others: events, lines of event.log
 * and files; why: the cause in words, NULL if no write has failed.
 */
struct nt_losses {
	uint64_t launches, others;
	const char *why;
};
void nt_trace_losses(struct nt_losses *ret);
/* In the child after fork: discard everything. */
void nt_trace_child(void);

#endif
