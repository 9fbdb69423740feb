#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "trace/trace.h"
#include "trace/writer.h"

/* End an event, and have the writer (the thread that writes the trace's files) append it to events.jsonl. */
void nt_lines_event(struct nt_event *event)
{
	char *line = nt_event_line(event);

	if (line)
		nt_writer_line(NT_WRITER_EVENTS, line, event->used);
}

/*
 * Write a line with the time of day to event.log, formatted as by printf. Control characters become '?'; a long line is
 * cut. errno stays.
 */
void nt_lines_log(const char *format, ...)
{
	enum { LONGEST = 2048 };
	va_list arguments;
	int before = errno;
	char *line = nt_path_of_trace()[0] ? nt_memory_alloc(LONGEST) : NULL;

	if (!line)
		return;
	unsigned second = nt_clock_second_of_day();
	size_t used = (size_t)snprintf(line, LONGEST, "%02u:%02u:%02u ", second / 3600, second / 60 % 60, second % 60);
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

/* Write a "note" event to events.jsonl, formatted as by printf, and the same line to event.log. */
void nt_lines_note(const char *format, ...)
{
	char text[1024];
	va_list arguments;
	struct nt_event event;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	nt_event_begin(&event, "note");
	nt_event_string(&event, "text", text);
	nt_lines_event(&event);
	nt_lines_log("%s", text);
}
