#include "base/settings.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"



static struct nt_settings settings;

/* A copy of a variable, which the program may change; NULL if it is not set, or empty, or without memory. Never freed. */
static const char *text_of(const char *variable)
{
	const char *value = getenv(variable);

	return value && *value ? nt_memory_strdup(value) : NULL;
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

/* Whether a variable has that value. */
static bool is_equal(const char *variable, const char *wanted)
{
	const char *value = getenv(variable);

	return value && !strcmp(value, wanted);
}

/*
 * Whether a list of numbers, separated by commas, lacks this process's rank in the run (0 if no launcher has given it
 * one), so that it is not to be probed. A list that is NULL or empty lacks none.
 */
static bool lacks_rank(const char *list)
{
	static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"};
	uint64_t rank = 0;

	if (!list || !*list)
		return false;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (is_set(names[i])) {
			rank = number_of(names[i]);
			break;
		}
	while (*list) {
		char *end;
		if (strtoull(list, &end, 10) == rank && end != list)
			return false;
		if (end == list || *end != ',')
			break;
		list = end + 1;
	}
	return true;
}

/* Set the range of launches from a text begin:end; without one, or with another text, it is all of them. */
static void read_launches(const char *range)
{
	char *colon, *end;

	settings.launches_end = UINT64_MAX;
	if (!range || *range < '0' || *range > '9')
		return;
	unsigned long long first = strtoull(range, &colon, 10);
	if (*colon != ':')
		return;
	unsigned long long last = strtoull(colon + 1, &end, 10);
	if (*end)
		return;
	settings.launches_begin = first;
	if (colon[1])
		settings.launches_end = last;
}

/* The devices of a list of ordinals, separated by commas, as bits. */
static uint64_t devices_of(const char *list)
{
	uint64_t ret = 0;

	while (list && *list >= '0' && *list <= '9') {
		char *end;
		unsigned long long device = strtoull(list, &end, 10);
		if (device < 64)
			ret |= UINT64_C(1) << device;
		list = *end == ',' ? end + 1 : end;
	}
	return ret;
}

/* Fill `settings` from the environment variables, once; texts are copied, and never freed. */
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
		.run = text_of("NEUTRINO_RUN"),
		.probes = text_of("NEUTRINO_PROBES"),
		.version = text_of("NEUTRINO_VERSION"),
		.pool = number_of("NEUTRINO_POOL"),
		.timeout = number_of("NEUTRINO_TIMEOUT"),
		.max_trace_size = number_of("NEUTRINO_MAX_TRACE_SIZE"),
		.every = number_of("NEUTRINO_EVERY"),
		.devices = devices_of(getenv("NEUTRINO_ONLY_DEVICES")),
		.benchmark = number_of("NEUTRINO_BENCHMARK"),
		.is_switched = is_set("NEUTRINO_SWITCHED"),
		.choice = text_of("NEUTRINO_CHOICE"),
		.kernels = text_of("NEUTRINO_KERNELS"),
		.ranges = text_of("NEUTRINO_RANGES"),
		.is_range_for_process = is_equal("NEUTRINO_RANGE_SCOPE", "process"),
		.own_injection = text_of("NEUTRINO_NVTX"),
		.injection = text_of("NVTX_INJECTION64_PATH"),
		.duration_ms = number_of("NEUTRINO_DURATION"),
		.hot = number_of("NEUTRINO_HOT"),
		.measures_only = is_set("NEUTRINO_MEMUSAGE"),
		.waits_for_none = is_set("NEUTRINO_NO_WAIT"),
		.takes_code = is_equal("NEUTRINO_MACHINE_CODE", "1"),
		.code_by_kernel = is_equal("NEUTRINO_MACHINE_CODE", "kernels") || is_equal("NEUTRINO_MACHINE_CODE", "only"),
		.code_archs = text_of("NEUTRINO_CODE_ARCHS"),
		.is_code_only = is_equal("NEUTRINO_MACHINE_CODE", "only"),
		.asks_again = is_set("NEUTRINO_ASKS"),
		.is_ahead = is_set("NEUTRINO_AHEAD"),
		.is_quiet = is_set("NEUTRINO_QUIET"),
		.hides_arguments = is_set("NEUTRINO_NO_ARGV"),
		.is_other_rank = lacks_rank(getenv("NEUTRINO_ONLY_RANKS")),
	};
	read_launches(getenv("NEUTRINO_LAUNCHES"));
	/* They would say that nothing was probed. */
	settings.is_quiet |= settings.is_other_rank;
	for (int i = 0; i < NT_RANK_COUNT; i++)
		settings.ranks[i] = text_of(ranks[i]);
}

/* The settings as the environment had them at the first call, which reads them. From any thread; valid for ever. */
const struct nt_settings *nt_settings(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_environment);
	return &settings;
}

/*
 * Whether kernels without PTX may have twins (copies with probes) on a device of that architecture: whether the list of those,
 * separated by spaces, has it.
 */
bool nt_settings_by_kernel(const char *arch)
{
	const char *list = nt_settings()->code_archs, *found = list;
	size_t length = strlen(arch);

	if (!nt_settings()->code_by_kernel || !list)
		return nt_settings()->code_by_kernel;
	while (length && (found = strstr(found, arch))) {
		if ((found == list || found[-1] == ' ') && (!found[length] || found[length] == ' '))
			return true;
		found += length;
	}
	return false;
}
