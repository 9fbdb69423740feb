/*
 * The trace directory of this process. Files are opened for each write and closed again, so that a program that closes or
 * counts descriptors finds none of the hook's. All functions may be called from any thread.
 */
#ifndef NEUTRINO_TRACE_H
#define NEUTRINO_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "neutrino_layout.h"

/* Create the directory and launches.bin, once. False, also for all later calls, if that fails; then errno is set. */
bool nt_trace_start(void);

/*
 * Set the folder in which the directory will be created; it may be relative to the current folder. Without this call,
 * that is NEUTRINO_TRACEDIR at the time of nt_trace_start, which must be absolute.
 */
void nt_trace_parent(const char *folder);

/* Path of the directory; "" before nt_trace_start has succeeded. */
const char *nt_trace_path(void);

/* A line of events.jsonl under construction: a JSON object. Members that do not fit are left out. */
struct nt_event {
	char text[16384];
	size_t used; /* bytes of text */
	bool cut;    /* the current member does not fit */
};

/* Begin an event of that kind, with the current time; then add members. */
void nt_event_begin(struct nt_event *event, const char *kind);
void nt_event_string(struct nt_event *event, const char *key, const char *value);
void nt_event_number(struct nt_event *event, const char *key, uint64_t value);
void nt_event_real(struct nt_event *event, const char *key, double value);
void nt_event_strings(struct nt_event *event, const char *key, char *const *values, size_t count);
/* Append the object to events.jsonl. */
void nt_event_end(struct nt_event *event);

/* Write a "note" event, and the same line to event.log. */
__attribute__((format(printf, 1, 2))) void nt_trace_note(const char *format, ...);
/* Write a line to event.log. */
__attribute__((format(printf, 1, 2))) void nt_trace_log(const char *format, ...);

/* Write a file of the trace atomically. name: relative to the directory. False if that fails. */
bool nt_trace_file(const char *name, const void *data, size_t size);
/* Create a folder in the trace. True also if it exists. */
bool nt_trace_mkdir(const char *name);

/*
 * Append count parts to a file of the trace; *offset gets their offset in the file. False if not all could be written;
 * then the file is cut back to its former size.
 */
bool nt_trace_append(const char *name, const struct iovec *parts, int count, uint64_t *offset);
/* Truncate a file of the trace to size bytes. */
void nt_trace_cut(const char *name, uint64_t size);

/* Write a line to stderr, if that does not block. */
__attribute__((format(printf, 1, 2))) void nt_say(const char *format, ...);

/*
 * Return fd, or if that is 0, 1 or 2 a duplicate with a higher number, and close fd: the program would take such a
 * descriptor for its stdin, stdout or stderr. -1 if that fails.
 */
int nt_above_stdio(int fd);

/* Take the next free record of launches.bin; NULL if there is none. *index gets its number. Lock-free. */
struct neutrino_launch *nt_trace_launch(uint64_t *index);
/* The record of a number that nt_trace_launch has returned. */
struct neutrino_launch *nt_trace_launch_at(uint64_t index);
/* Count a launch of a kernel, by its id, under a reason (NEUTRINO_REASON_...). Lock-free. */
void nt_trace_count(uint32_t kernel, unsigned reason);
void nt_trace_count_many(uint32_t kernel, unsigned reason, uint64_t launches);
/* How many launches of a kernel were counted under a reason. */
uint64_t nt_trace_counted(uint32_t kernel, unsigned reason);
/* Enlarge launches.bin when it is half full. Called by the drain thread only, from time to time. */
void nt_trace_grow(void);
/* Mark launches.bin as complete: all records were drained at the end of the process. */
void nt_trace_ended(void);

/* CLOCK_MONOTONIC, in nanoseconds. */
uint64_t nt_now_ns(void);
void nt_sleep_us(long microseconds);

#endif
