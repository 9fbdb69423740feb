/*
 * Events with texts that a program chose: `events PATTERN COUNT`. One event has a name of COUNT times PATTERN, one many such
 * texts, and one a list of 64 of them.
 */
#include <stdlib.h>
#include <string.h>

#include "trace/trace.h"

int main(int argc, char **argv)
{
	struct nt_event event;
	char *list[64];
	size_t size = argc == 3 ? strlen(argv[1]) : 0, count = size ? strtoul(argv[2], NULL, 10) : 0;
	char *text = calloc(count + 1, size + 1);

	for (size_t i = 0; i < count; i++)
		memcpy(text + i * size, argv[1], size);
	for (size_t i = 0; i < 64; i++)
		list[i] = text;
	if (!size || !nt_trace_start())
		return 2;
	nt_event_begin(&event, "one");
	nt_event_string(&event, "name", text);
	nt_event_string(&event, "after", "after");
	nt_event_number(&event, "number", 7);
	nt_lines_event(&event);
	nt_event_begin(&event, "many");
	nt_event_string(&event, "a", text);
	nt_event_string(&event, "b", text);
	nt_event_string(&event, "c", text);
	nt_event_string(&event, "d", text);
	nt_event_number(&event, "number", 7);
	nt_lines_event(&event);
	nt_event_begin(&event, "list");
	nt_event_strings(&event, "list", list, 64);
	nt_event_string(&event, "after", "after");
	nt_event_number(&event, "number", 7);
	nt_lines_event(&event);
	return nt_trace_end(60000, true) ? 0 : 3;
}
