/*
 * The trace directory of this process. Nothing is kept open: files are opened for each write, so that a program which
 * closes or counts its descriptors meets none of ours.
 */
#ifndef NEUTRINO_TRACE_H
#define NEUTRINO_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "neutrino_layout.h"

/* Make the directory and launches.bin. False, for good, if that fails; errno says why. */
bool nt_trace_start(void);

/*
 * The folder to make it in, which may be relative to the process's present one; else NEUTRINO_TRACEDIR when the trace
 * starts, which must be absolute.
 */
void nt_trace_parent(const char *folder);

/* Path of the directory; "" before nt_trace_start has succeeded. */
const char *nt_trace_path(void);

/* One line of JSON under construction: an object, written whole or not at all. */
struct nt_event {
	char text[16384];
	size_t used;
	bool cut;
};

void nt_event_begin(struct nt_event *event, const char *kind);
void nt_event_string(struct nt_event *event, const char *key, const char *value);
void nt_event_number(struct nt_event *event, const char *key, uint64_t value);
void nt_event_real(struct nt_event *event, const char *key, double value);
void nt_event_strings(struct nt_event *event, const char *key, char *const *values, size_t count);
/* Append the object to events.jsonl. */
void nt_event_end(struct nt_event *event);

/* A "note" event, and the same line in event.log. */
__attribute__((format(printf, 1, 2))) void nt_trace_note(const char *format, ...);
/* A line of event.log. */
__attribute__((format(printf, 1, 2))) void nt_trace_log(const char *format, ...);

/* Write a file of the trace, whole or not at all. name: relative to the directory. */
bool nt_trace_file(const char *name, const void *data, size_t size);
bool nt_trace_mkdir(const char *name);

/* Append to a file of the trace; *offset gets where. False when not all of it could be written (the rest is cut off). */
bool nt_trace_append(const char *name, const struct iovec *parts, int count, uint64_t *offset);
/* Cut a file of the trace off at that size. */
void nt_trace_cut(const char *name, uint64_t size);

/* A line on stderr, if it can be written at once. */
__attribute__((format(printf, 1, 2))) void nt_say(const char *format, ...);

/* The descriptor, or another one for the same file above those of stdio: these mean something to the program. */
int nt_above_stdio(int fd);

/* The next free record of launches.bin, or NULL when there is none. Lock-free; *index gets its number. */
struct neutrino_launch *nt_trace_launch(uint64_t *index);
/* The record of that number. */
struct neutrino_launch *nt_trace_launch_at(uint64_t index);
/* Count a launch of that kernel. Lock-free. */
void nt_trace_count(uint32_t kernel, unsigned reason);
/* Called by the drain thread: make room for more records before they are needed. */
void nt_trace_grow(void);
/* Mark the file as that of a process that drained at its end. */
void nt_trace_ended(void);

uint64_t nt_now_ns(void);
void nt_sleep_us(long microseconds);

#endif
