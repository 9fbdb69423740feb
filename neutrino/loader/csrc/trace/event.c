#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "trace/trace.h"

/* Append text to an event, or mark it as cut if it is full. */
static void event_add(struct nt_event *event, const char *text, size_t size)
{
	/* Two bytes stay free for the closing brace and the newline. */
	if (event->cut || !event->text || size > NT_EVENT_SIZE - event->used - 2) {
		event->cut = true;
		return;
	}
	memcpy(event->text + event->used, text, size);
	event->used += size;
}

/* The size (2 to 4) of the multi-byte UTF-8 character at the start of text, by RFC 3629, section 4; 0 if there is none. */
static size_t utf8_size(const unsigned char *text)
{
	/* For first bytes first to last, the second byte must be least to most. */
	static const struct {
		unsigned char first, last, least, most;
		size_t size;
	} rows[] = {
		{ 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 }, { 0xe1, 0xec, 0x80, 0xbf, 3 },
		{ 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 }, { 0xf0, 0xf0, 0x90, 0xbf, 4 },
		{ 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		if (text[0] < rows[i].first || text[0] > rows[i].last)
			continue;
		if (text[1] < rows[i].least || text[1] > rows[i].most)
			return 0;
		for (size_t j = 2; j < rows[i].size; j++) {
			if (text[j] < 0x80 || text[j] > 0xbf)
				return 0;
		}
		return rows[i].size;
	}
	return 0;
}

/*
 * Where the next string of an event must end at the latest: at half of what is left, so that a long one leaves room for
 * those after it.
 */
static size_t event_half(const struct nt_event *event)
{
	return event->used + (NT_EVENT_SIZE - event->used) / 2;
}

/*
 * Append a JSON string to an event that ends before offset `end`; a longer one is cut, and says of how many bytes.
 * Names and paths may have any encoding: bytes that are not UTF-8 are taken as Latin-1.
 */
static void event_add_quoted(struct nt_event *event, const char *value, size_t end)
{
	char escaped[8], mark[40];
	size_t mark_size = sizeof(mark) + 1;

	event_add(event, "\"", 1);
	for (const unsigned char *byte = (const unsigned char *)value; *byte; byte++) {
		size_t size = utf8_size(byte);
		const char *text = size ? (const char *)byte : escaped;
		if (event->used + sizeof(escaped) + mark_size > end) {
			event_add(event, mark, (size_t)snprintf(mark, sizeof(mark), "... (of %zu bytes)", strlen(value)));
			break;
		}
		if (size) {
			event_add(event, text, size);
			byte += size - 1;
			continue;
		}
		if (*byte == '"' || *byte == '\\')
			size = (size_t)snprintf(escaped, sizeof(escaped), "\\%c", *byte);
		else if (*byte < 0x20 || *byte > 0x7e)
			size = (size_t)snprintf(escaped, sizeof(escaped), "\\u%04x", *byte);
		else
			text = (const char *)byte, size = 1;
		event_add(event, text, size);
	}
	event_add(event, "\"", 1);
}

/* Append a member's key to an event's JSON object, after a comma unless it is the first. */
static void event_add_key(struct nt_event *event, const char *key)
{
	if (event->used > 1)
		event_add(event, ",", 1);
	event_add_quoted(event, key, NT_EVENT_SIZE);
	event_add(event, ":", 1);
}

/*
 * Begin an event of that kind, a line of events.jsonl, with the current time; then members are added, and
 * nt_lines_event writes it. errno stays.
 */
void nt_event_begin(struct nt_event *event, const char *kind)
{
	int before = errno;

	/* Not on the stack, which may be small in a thread of the program. Without memory the event is lost. */
	event->text = nt_path_of_trace()[0] ? nt_memory_alloc(NT_EVENT_SIZE) : NULL;
	event->used = 0;
	event->cut = false;
	errno = before;
	event_add(event, "{", 1);
	nt_event_string(event, "event", kind);
	nt_event_number(event, "time_ns", nt_clock_realtime_ns());
}

/* End a member of an event that began at offset start. If it did not fit, it is left out as a whole. */
static void event_member_end(struct nt_event *event, size_t start)
{
	if (event->cut)
		event->used = start;
	event->cut = false;
}

/* Add a member with a string to an event; a long one is cut. */
void nt_event_string(struct nt_event *event, const char *key, const char *value)
{
	size_t start = event->used;

	event_add_key(event, key);
	event_add_quoted(event, value, event_half(event));
	event_member_end(event, start);
}

/* Add a member with a whole number to an event. */
void nt_event_number(struct nt_event *event, const char *key, uint64_t value)
{
	char text[24];
	size_t start = event->used;

	event_add_key(event, key);
	event_add(event, text, (size_t)snprintf(text, sizeof(text), "%llu", (unsigned long long)value));
	event_member_end(event, start);
}

/* Add a member with a number to an event, with three decimals; a negative one becomes 0. */
void nt_event_real(struct nt_event *event, const char *key, double value)
{
	/* Not %f, which prints the decimal separator of the program's locale. */
	char text[40];
	size_t start = event->used;
	unsigned long long thousandths = value > 0 ? (unsigned long long)(value * 1000 + 0.5) : 0;

	event_add_key(event, key);
	event_add(event, text,
		  (size_t)snprintf(text, sizeof(text), "%llu.%03llu", thousandths / 1000, thousandths % 1000));
	event_member_end(event, start);
}

/* Add a member with a list of `count` strings to an event; the list ends early if they do not fit. */
void nt_event_strings(struct nt_event *event, const char *key, char *const *values, size_t count)
{
	enum { LEAST_ROOM = 128 }; /* for a string that is cut */
	size_t start = event->used, end = event_half(event);

	event_add_key(event, key);
	event_add(event, "[", 1);
	for (size_t i = 0; i < count && event->used + LEAST_ROOM < end; i++) {
		if (i)
			event_add(event, ",", 1);
		event_add_quoted(event, values[i], end);
	}
	event_add(event, "]", 1);
	event_member_end(event, start);
}

/* End an event; returns its line of `used` bytes, which becomes the caller's, of nt_memory_alloc; NULL if it is lost. */
char *nt_event_line(struct nt_event *event)
{
	char *line = event->text;

	if (line) {
		line[event->used++] = '}';
		line[event->used++] = '\n';
	}
	event->text = NULL;
	return line;
}
