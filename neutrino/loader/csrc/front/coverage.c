#include "front/coverage.h"

#include <link.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/driver.h"
#include "base/settings.h"
#include "image/entry_fetch.h"
#include "image/image.h"
#include "memory/own_memory.h"
#include "trace/trace.h"

#define REASONS_SAID 3
/* Kernels that are named, and bytes of a name. */
#define NAMES_SAID 8u
#define NAME_SAID 60

/* Launches and kernels of the process. Chosen: not left out by an option such as -k. */
struct coverage {
	uint64_t chosen;
	uint64_t probed;
	uint64_t left_out;
	uint32_t kernels; /* with chosen launches */
	uint32_t kernels_probed;
	uint64_t unmatched; /* of kernels without an instruction that a probe matches, which is no failure */
	uint64_t by_reason[NEUTRINO_REASON_SLOTS];
};

/* A line, written at once, so that those of several processes do not mix. What does not fit is left out. */
struct text {
	char data[3072]; /* nt_quiet_write_say writes less than PIPE_BUF, 4096 */
	size_t used;
};

/* Append to a text, formatted as by printf; what does not fit as a whole is left out. */
__attribute__((format(printf, 2, 3))) static void append(struct text *text, const char *format, ...)
{
	size_t free = sizeof(text->data) - text->used;
	va_list arguments;

	va_start(arguments, format);
	int length = vsnprintf(text->data + text->used, free, format, arguments);
	va_end(arguments);
	if (length > 0 && (size_t)length < free)
		text->used += (size_t)length;
	text->data[text->used] = 0;
}

/* Add a number as 1,234,567. Not printf's ', which depends on the program's locale. */
static void add_number(struct text *text, uint64_t number)
{
	if (number >= 1000) {
		add_number(text, number / 1000);
		append(text, ",%03u", (unsigned)(number % 1000));
	} else {
		append(text, "%u", (unsigned)number);
	}
}

/* Append "PART of WHOLE WHAT", as "3 of 1,200 launches". */
static void append_share(struct text *text, uint64_t part, uint64_t whole, const char *what)
{
	add_number(text, part);
	append(text, " of ");
	add_number(text, whole);
	append(text, " %s", what);
}

/*
 * Begin a line on stderr: "neutrino: ", with the process's rank if it is one of several. rank: from the environment, or
 * NULL; anything but a number is left out.
 */
static void begin_line(struct text *text, const char *rank)
{
	size_t digits = rank ? strspn(rank, "0123456789") : 0;

	append(text, "neutrino: ");
	if (digits && digits < 10 && !rank[digits])
		append(text, "rank %s: ", rank);
}

/* Add up the process's launches and kernels from the trace's counters: chosen, probed, and by reason. */
static void count_launches(struct coverage *ret)
{
	uint32_t last = nt_image_kernels();

	memset(ret, 0, sizeof(*ret));
	/* Row 0 is for functions whose look-up the hook has not seen; how many there are is unknown. */
	for (uint32_t kernel = 0; kernel <= last; kernel++) {
		uint64_t chosen = 0;
		for (unsigned reason = 0; reason < NEUTRINO_REASON_SLOTS; reason++) {
			uint64_t launches = nt_counters_total(kernel, reason);
			ret->by_reason[reason] += launches;
			chosen += reason == NEUTRINO_REASON_NOT_SELECTED ? 0 : launches;
		}
		ret->chosen += chosen;
		ret->kernels += kernel && chosen;
		ret->kernels_probed += kernel && nt_counters_total(kernel, NEUTRINO_REASON_PROBED);
	}
	ret->probed = ret->by_reason[NEUTRINO_REASON_PROBED];
	ret->left_out = ret->by_reason[NEUTRINO_REASON_NOT_SELECTED];
	ret->unmatched = ret->by_reason[NEUTRINO_REASON_NO_SITE];
	/* These are said apart from what was not probed. */
	ret->by_reason[NEUTRINO_REASON_PROBED] = ret->by_reason[NEUTRINO_REASON_NOT_SELECTED] = 0;
	ret->by_reason[NEUTRINO_REASON_NO_SITE] = 0;
}

/* How many devices the program has, where some are chosen by --device; 0: not known. */
static int device_count;

/* When the trace begins, in a thread of the program: ask the driver for what is said at the end. */
void nt_coverage_begin(void)
{
	if (nt_settings()->devices && nt_driver.cuDeviceGetCount(&device_count) != CUDA_SUCCESS)
		device_count = 0;
}

/* If --device chooses none of the devices that there are, add which these are. */
static void add_devices(struct text *text)
{
	if (device_count < 1 || device_count >= 64 || nt_settings()->devices & ((UINT64_C(1) << device_count) - 1))
		return;
	if (device_count == 1)
		append(text, "; the program has device 0 only");
	else
		append(text, "; the program has devices 0 to %d only", device_count - 1);
}

/* Whether -k chooses none of the kernels that were launched: then say so, and which these are. */
static bool add_kernels(struct text *text)
{
	const char *names[NAMES_SAID];
	bool are_unselected;
	uint32_t count = nt_settings()->kernels ? nt_image_launched(names, NAMES_SAID, &are_unselected) : 0;

	if (!count || !are_unselected)
		return false;
	append(text, "%s; launched: ", nt_settings()->kernels);
	for (uint32_t i = 0; i < count && i < NAMES_SAID; i++)
		append(text, "%s%.*s%s", i ? ", " : "", NAME_SAID, names[i], strlen(names[i]) > NAME_SAID ? "..." : "");
	if (count > NAMES_SAID)
		append(text, " and %u more", count - NAMES_SAID);
	return true;
}

/*
 * Add how many launches and kernels were probed. Coverage.sentence of neutrino/tracing/coverage.py says the same, but for
 * which devices and kernels there are where --device or -k has chosen none.
 */
static void add_share(struct text *text, const struct coverage *coverage)
{
	const char *nothing = nt_own_memory_is_memusage ? "nothing would be probed: " : "nothing was probed: ";

	if (!coverage->chosen) {
		append(text, "%s", nothing);
		if (coverage->left_out && add_kernels(text))
			return;
		if (coverage->left_out) {
			append(text, "none of ");
			add_number(text, coverage->left_out);
			const char *choice = nt_settings()->choice;
			append(text, " launches was chosen (%s)", choice ? choice : NEUTRINO_CHOICE_OPTIONS);
			add_devices(text);
		} else {
			append(text, "no launch of a kernel was seen");
		}
		return;
	}
	if (!coverage->probed)
		append(text, "%s", nothing);
	append_share(text, coverage->probed, coverage->chosen, "launches");
	if (coverage->probed) {
		/* Rounded down: 100 only if nothing is missing. In whole numbers: 29 / 100.0 * 100 is less than 29. */
		unsigned percent = (unsigned)(coverage->probed > UINT64_MAX / 100
						      ? coverage->probed / (coverage->chosen / 100)
						      : coverage->probed * 100 / coverage->chosen);
		append(text, " %sprobed (%s%u %%)", nt_own_memory_is_memusage ? "would be " : "", percent ? "" : "under ",
		       percent ? percent : 1);
	}
	append(text, ", ");
	append_share(text, coverage->kernels_probed, coverage->kernels, "kernels");
	if (coverage->left_out) {
		append(text, "; not chosen: ");
		add_number(text, coverage->left_out);
		append(text, " more");
	}
}

/* Append why the helper has made no twins (copies with probes), in one line; remedy: what helps if it took too long. */
static void add_failure(struct text *text, const char *failure, const char *remedy)
{
	enum { LONGEST = 160 };
	bool is_late = strstr(failure, "took too long");

	append(text, " (");
	for (size_t i = 0; failure[i] && failure[i] != '\n' && i < LONGEST; i++)
		append(text, "%c", (unsigned char)failure[i] < 0x20 || failure[i] == 0x7f ? '?' : failure[i]);
	append(text, "%s%s)", is_late && remedy ? ": " : "", is_late && remedy ? remedy : "");
}

/*
 * Append what was not probed: the reasons with most launches, whose counts are set to 0. with_remedies: with what each
 * means and what helps.
 */
static void add_reasons(struct text *text, struct coverage *coverage, bool with_remedies)
{
	static const char *const words[NEUTRINO_REASON_SLOTS] = {NEUTRINO_REASON_WORDS};
	static const char *const texts[NEUTRINO_REASON_SLOTS] = {NEUTRINO_REASON_TEXTS};
	static const char *const remedies[NEUTRINO_REASON_SLOTS] = {NEUTRINO_REASON_REMEDIES};
	uint64_t rest = coverage->chosen - coverage->probed - coverage->unmatched;

	if (coverage->unmatched) {
		append(text, "no instruction matches in the kernels of ");
		add_number(text, coverage->unmatched);
		append(text, " launch%s", coverage->unmatched == 1 ? "" : "es");
		if (!rest)
			return;
		append(text, "; ");
	}
	append(text, nt_own_memory_is_memusage ? "would not be: " : "not probed: ");
	for (int said = 0; rest && said < REASONS_SAID; said++) {
		unsigned most = 0;
		for (unsigned reason = 1; reason < NEUTRINO_REASON_SLOTS; reason++)
			if (coverage->by_reason[reason] > coverage->by_reason[most])
				most = reason;
		append(text, "%s", said ? "; " : "");
		add_number(text, coverage->by_reason[most]);
		append(text, " %s", words[most] ? words[most] : "unknown");
		if (with_remedies && most == NEUTRINO_REASON_HELPER && nt_entry_fetch_failure())
			add_failure(text, nt_entry_fetch_failure(), remedies[most]);
		else if (with_remedies && texts[most])
			append(text, " (%s%s%s)", texts[most], remedies[most] ? ": " : "",
			       remedies[most] ? remedies[most] : "");
		rest -= coverage->by_reason[most];
		coverage->by_reason[most] = 0;
	}
	if (rest) {
		append(text, "; ");
		add_number(text, rest);
		append(text, " for other reasons");
	}
	append(text, "; see neutrino-report TRACE --why");
}

/*
 * Print on stderr how many launches were probed, and why the others were not. rank: the process's rank if it is one of
 * several, for which it prints one line only; NULL if it has none.
 */
void nt_coverage_say(const char *rank)
{
	struct text text = {.used = 0};
	struct coverage coverage;
	uint32_t incomplete = nt_image_incomplete();

	count_launches(&coverage);
	begin_line(&text, rank);
	bool has_rank = text.data[sizeof("neutrino: ") - 1];
	if (nt_own_memory_is_memusage)
		append(&text, "--memusage: ");
	add_share(&text, &coverage);
	if (incomplete)
		append(&text, "; without some of the probes: %u kernel%s, see neutrino-report TRACE --why", incomplete,
		       incomplete == 1 ? "" : "s");
	if (coverage.probed < coverage.chosen) {
		if (has_rank) {
			append(&text, "; ");
		} else {
			nt_quiet_write_say("%s\n", text.data);
			text.used = 0;
			begin_line(&text, rank);
		}
		add_reasons(&text, &coverage, !has_rank);
	}
	nt_quiet_write_say("%s\n", text.data);
}

/*
 * Print on stderr what is missing from the trace, and why, if anything is: launches whose results are lost, and other
 * parts. rank: as text, NULL if it has none.
 */
void nt_coverage_say_losses(const char *rank)
{
	struct text text = {.used = 0};
	struct coverage coverage;
	struct nt_losses losses;

	nt_trace_losses(&losses);
	if (!losses.launches && !losses.others)
		return;
	begin_line(&text, rank);
	if (losses.launches) {
		count_launches(&coverage);
		append(&text, "the records of ");
		append_share(&text, losses.launches, coverage.probed, "probed launches were lost");
	}
	if (losses.others) {
		append(&text, "%s", losses.launches ? ", and " : "");
		add_number(&text, losses.others);
		append(&text, " %s of the trace could not be written",
		       losses.others == 1 ? "event, log line or file" : "events, log lines or files");
	}
	if (losses.why)
		append(&text, ": %s", losses.why);
	nt_quiet_write_say("%s\n", text.data);
}

/*
 * Print on stderr that this process has called the driver and has loaded no GPU code. rank: as text, NULL if it has
 * none.
 */
void nt_coverage_say_unused(const char *rank)
{
	struct text text = {.used = 0};

	begin_line(&text, rank);
	nt_quiet_write_say("%snothing was recorded: process %d called the CUDA driver and loaded no GPU code\n", text.data, (int)getpid());
}

/* Tools that call the driver for the program, by the libraries that they load into it. */
static const struct tool {
	const char *library;
	const char *name;
} tools[] = {
	{"libcuda-injection.so", "Nsight Compute"},
};

/* Callback of dl_iterate_phdr: stop at an object of one of these tools, and set a const char * to its name. */
static int find_tool(struct dl_phdr_info *object, size_t size, void *ret)
{
	const char *base = object->dlpi_name ? strrchr(object->dlpi_name, '/') : NULL;

	(void)size;
	for (size_t i = 0; base && i < sizeof(tools) / sizeof(tools[0]); i++)
		if (strcmp(base + 1, tools[i].library) == 0) {
			*(const char **)ret = tools[i].name;
			return 1;
		}
	return 0;
}

/*
 * Print on stderr that this process has used the GPU driver past Neutrino, and which tool may be the cause. rank: as
 * text, NULL if it has none.
 */
void nt_coverage_say_missed(const char *rank)
{
	struct text text = {.used = 0};
	const char *tool = NULL;

	begin_line(&text, rank);
	append(&text, "nothing was recorded: process %d used the GPU, but ", (int)getpid());
	if (dl_iterate_phdr(find_tool, &tool))
		append(&text, "%s calls the driver in its place: run it without that tool", tool);
	else
		append(&text, "did not call the CUDA driver through Neutrino");
	nt_quiet_write_say("%s\n", text.data);
}
