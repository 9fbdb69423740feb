#include "settings.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct nt_settings settings;

/* A copy of a variable, which the program may change; NULL if it is not set, or empty, or without memory. Never freed. */
static const char *text_of(const char *variable)
{
	const char *value = getenv(variable);

	return value && *value ? strdup(value) : NULL;
}

/* A variable that is a number; 0 if it is none. */
static uint64_t number_of(const char *variable)
{
	const char *value = getenv(variable);
	char *end;

	if (!value || *value < '0' || *value > '9')
		return 0;
	unsigned long long number = strtoull(value, &end, 10);
	return *end ? 0 : number;
}

/* Whether a variable is set and not empty. */
static bool is_set(const char *variable)
{
	const char *value = getenv(variable);

	return value && *value;
}

static void read_environment(void)
{
	static const char *const ranks[NT_RANK_COUNT] = {NT_RANKS};

	settings = (struct nt_settings){
		.key = text_of("NEUTRINO_KEY"),
		.cache = text_of("NEUTRINO_CACHE"),
		.socket = text_of("NEUTRINO_SOCKET"),
		.driver = text_of("NEUTRINO_DRIVER"),
		.tracedir = text_of("NEUTRINO_TRACEDIR"),
		.probe_file = text_of("NEUTRINO_PROBE_FILE"),
		.reader = text_of("NEUTRINO_READER"),
		.probes = text_of("NEUTRINO_PROBES"),
		.version = text_of("NEUTRINO_VERSION"),
		.pool = number_of("NEUTRINO_POOL"),
		.timeout = number_of("NEUTRINO_TIMEOUT"),
		.max_trace_size = number_of("NEUTRINO_MAX_TRACE_SIZE"),
		.is_ahead = is_set("NEUTRINO_AHEAD"),
		.is_quiet = is_set("NEUTRINO_QUIET"),
		.hides_arguments = is_set("NEUTRINO_NO_ARGV"),
		.wants_results = is_set("NEUTRINO_RESULTS"),
	};
	for (int i = 0; i < NT_RANK_COUNT; i++)
		settings.ranks[i] = text_of(ranks[i]);
}

const struct nt_settings *nt_settings(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_environment);
	return &settings;
}
