#include "image/ranges.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/apart.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/settings.h"
#include "trace/trace.h"

#define MOST_PATTERNS 64u /* bits of a word; the command refuses more */
#define MOST_DOMAINS 1024u
#define DEEPEST 256u /* ranges of a thread in a domain; deeper ones are not chosen */
#define NOT_TRACKED (-2) /* NVTX_NO_PUSH_POP_TRACKING */

/* NEUTRINO_RANGES, as neutrino/run/range_choice.py writes it: patterns, each of a kind, a domain and a name. */
#define BETWEEN_PATTERNS '\036'
#define BETWEEN_PARTS '\037'
#define ANY_TEXT '\001' /* stands for any text, in domains and names */
#define PUSHED_ONLY '/'

struct pattern {
	const char *domain;
	const char *name;
	bool is_pushed_only;
};

struct nt_domain {
	const char *name;
	uint64_t patterns; /* a bit for each that has this domain; 0: none of its ranges is chosen */
	uint64_t started;  /* chosen ranges that are not ended yet */
};

/* The ranges of a thread in a domain. */
struct stack {
	struct stack *next;
	const struct nt_domain *domain;
	uint32_t depth;
	uint64_t chosen[DEEPEST / 64]; /* a bit for each level */
};

struct thread {
	uint64_t open; /* chosen ranges of all its stacks */
	struct stack *stacks;
};

static struct {
	struct pattern patterns[MOST_PATTERNS];
	uint32_t count;
	bool is_for_process; /* what is pushed counts for all threads */
	pthread_key_t key;   /* frees what a thread has */
	bool has_key;
} ranges;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards new domains */
static struct nt_domain domains[MOST_DOMAINS]; /* the first is the default one */
static uint32_t domain_count;
static struct nt_domain other; /* for those that no pattern has */

static uint64_t open_in_process; /* chosen ranges that count for all threads */
static uint64_t last_number;
static int has_arrived, was_any;

static __thread __attribute__((tls_model("initial-exec"))) struct thread *own;

/* Whether a text matches a pattern, in which ANY_TEXT stands for any text, also none. */
static bool matches_pattern(const char *pattern, const char *text)
{
	const char *after_any = NULL, *retry = NULL;

	while (*text) {
		if (*pattern == ANY_TEXT) {
			after_any = ++pattern;
			retry = text;
		} else if (*pattern == *text) {
			pattern++;
			text++;
		} else if (after_any) {
			/* The text that stands for any is longer by one. */
			pattern = after_any;
			text = ++retry;
		} else {
			return false;
		}
	}
	while (*pattern == ANY_TEXT)
		pattern++;
	return !*pattern;
}

/* Lower a count that threads share by 1, unless it is 0. Lock-free. */
static void count_down(uint64_t *count)
{
	uint64_t now = __atomic_load_n(count, __ATOMIC_RELAXED);

	while (now && !__atomic_compare_exchange_n(count, &now, now - 1, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		;
}

/*
 * Called when a thread ends that has pushed ranges (argument: its record): what it has left open is closed, and its
 * record freed.
 */
static void thread_ends(void *argument)
{
	struct thread *thread = argument;

	for (; ranges.is_for_process && thread->open; thread->open--)
		count_down(&open_in_process);
	for (struct stack *stack = thread->stacks, *next; stack; stack = next) {
		next = stack->next;
		nt_memory_free(stack);
	}
	nt_memory_free(thread);
	own = NULL;
}

/* Cut the next part off a text: up to a separator, which becomes NUL, or to its end. *text then begins after it. */
static char *cut_part(char **text, char separator)
{
	char *ret = *text, *end = strchr(ret, separator);

	*text = end ? end + 1 : ret + strlen(ret);
	if (end)
		*end = 0;
	return ret;
}

/* Read the patterns of --range from the settings, once; a process without them chooses no launches by ranges. */
static void read_patterns(void)
{
	const struct nt_settings *settings = nt_settings();
	char *text = settings->ranges ? nt_memory_strdup(settings->ranges) : NULL;

	while (text && *text && ranges.count < MOST_PATTERNS) {
		struct pattern *pattern = &ranges.patterns[ranges.count++];
		char *one = cut_part(&text, BETWEEN_PATTERNS);
		pattern->is_pushed_only = *cut_part(&one, BETWEEN_PARTS) == PUSHED_ONLY;
		pattern->domain = cut_part(&one, BETWEEN_PARTS);
		pattern->name = one;
	}
	if (!ranges.count)
		return;
	ranges.is_for_process = settings->is_range_for_process;
	/* Apart, a key could be one of the program's, too: then what threads have is never freed. */
	ranges.has_key = !nt_apart_is() && pthread_key_create(&ranges.key, thread_ends) == 0;
	other.name = "";
	nt_ranges_domain_named("");
}

/*
 * Whether --range was given, so that launches are chosen by the ranges (named stretches of the program) that they are
 * in. Reads the patterns at the first call.
 */
bool nt_ranges_are_set(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_patterns);
	return ranges.count;
}

/* Whether a launch of this thread is in a range now that --range has chosen. Lock-free. */
bool nt_ranges_are_open(void)
{
	return (own && own->open) || __atomic_load_n(&open_in_process, __ATOMIC_ACQUIRE);
}

/* --- domains --- */

/*
 * The domain (name space of ranges) of that name, "" for NVTX's default one; the same each time. All that no pattern
 * has share one. Never NULL, and never freed.
 */
struct nt_domain *nt_ranges_domain_named(const char *name)
{
	uint64_t patterns = 0;
	struct nt_domain *ret = &other;
	char *copy;

	for (uint32_t i = 0; i < ranges.count; i++)
		patterns |= (uint64_t)matches_pattern(ranges.patterns[i].domain, name) << i;
	/* The default one has the first place, whether it is chosen or not. */
	if (!patterns && *name)
		return ret;
	nt_lock_take(&mutex);
	for (uint32_t i = 0; i < domain_count && ret == &other; i++)
		if (!strcmp(domains[i].name, name))
			ret = &domains[i];
	if (ret == &other && domain_count < MOST_DOMAINS && (copy = nt_memory_strdup(name))) {
		ret = &domains[domain_count];
		ret->name = copy;
		ret->patterns = patterns;
		__atomic_store_n(&domain_count, domain_count + 1, __ATOMIC_RELEASE);
	}
	nt_lock_release(&mutex);
	return ret;
}

/*
 * The domain of a handle from the program, which may be anything: one of nt_ranges_domain_named, the default one for
 * NULL, or for what is no handle one that is never chosen.
 */
struct nt_domain *nt_ranges_domain_of(void *handle)
{
	uint32_t count = __atomic_load_n(&domain_count, __ATOMIC_ACQUIRE);
	uintptr_t offset = (uintptr_t)handle - (uintptr_t)domains;

	if (!handle)
		return count ? &domains[0] : &other;
	return offset % sizeof(domains[0]) == 0 && offset / sizeof(domains[0]) < count ? handle : &other;
}

/* The program needs a domain no more: ranges that were started in it, and not ended, count as ended. */
void nt_ranges_domain_ends(struct nt_domain *domain)
{
	uint64_t started = __atomic_exchange_n(&domain->started, 0, __ATOMIC_ACQ_REL);

	while (started--)
		count_down(&open_in_process);
}

/*
 * Whether --range has chosen ranges of that name in a domain: if the program pushes them (for its thread), and if it
 * starts them (for all threads).
 */
struct nt_chosen_range nt_ranges_chosen(const struct nt_domain *domain, const char *name)
{
	struct nt_chosen_range ret = {false, false};

	for (uint64_t left = domain->patterns; left && !ret.if_started; left &= left - 1) {
		const struct pattern *pattern = &ranges.patterns[__builtin_ctzll(left)];
		if (!matches_pattern(pattern->name, name))
			continue;
		ret.if_pushed = true;
		ret.if_started = !pattern->is_pushed_only;
	}
	return ret;
}

/* --- ranges --- */

/*
 * This thread's stack of pushed ranges in a domain; with make it is made if there is none. NULL if there is none, or
 * without memory.
 */
static struct stack *stack_in(const struct nt_domain *domain, bool make)
{
	struct stack *stack = own ? own->stacks : NULL;

	while (stack && stack->domain != domain)
		stack = stack->next;
	if (stack || !make)
		return stack;
	if (!own) {
		/* Without a key nothing would say that the thread has ended. */
		own = ranges.has_key || nt_apart_is() ? nt_memory_alloc_zeroed(1, sizeof(*own)) : NULL;
		if (!own || (ranges.has_key && pthread_setspecific(ranges.key, own) != 0)) {
			nt_memory_free(own);
			own = NULL;
			return NULL;
		}
	}
	stack = nt_memory_alloc_zeroed(1, sizeof(*stack));
	if (!stack)
		return NULL;
	stack->domain = domain;
	stack->next = own->stacks;
	own->stacks = stack;
	return stack;
}

/* The bit that stands for a level of a stack in its word of 64. */
static uint64_t bit_of(uint32_t level)
{
	return UINT64_C(1) << level % 64;
}

/*
 * Begin a range of this thread inside those that it has pushed already. Returns its level, from 0 on, or NOT_TRACKED if
 * the domain has no chosen ranges or without memory. chosen: of nt_ranges_chosen.
 */
int nt_ranges_push(struct nt_domain *domain, struct nt_chosen_range chosen)
{
	struct stack *stack = domain->patterns ? stack_in(domain, true) : NULL;

	if (!stack)
		return NOT_TRACKED;
	uint32_t level = stack->depth++;
	if (level < DEEPEST && chosen.if_pushed) {
		stack->chosen[level / 64] |= bit_of(level);
		own->open++;
		if (ranges.is_for_process)
			__atomic_add_fetch(&open_in_process, 1, __ATOMIC_ACQ_REL);
		__atomic_store_n(&was_any, 1, __ATOMIC_RELAXED);
	}
	return (int)level;
}

/*
 * End the range that this thread pushed last in a domain. Returns its level, from 0 on, or NOT_TRACKED if there is
 * none.
 */
int nt_ranges_pop(struct nt_domain *domain)
{
	struct stack *stack = domain->patterns ? stack_in(domain, false) : NULL;

	if (!stack || !stack->depth)
		return NOT_TRACKED;
	uint32_t level = --stack->depth;
	if (level < DEEPEST && stack->chosen[level / 64] & bit_of(level)) {
		stack->chosen[level / 64] &= ~bit_of(level);
		own->open--;
		if (ranges.is_for_process)
			count_down(&open_in_process);
	}
	return (int)level;
}

/*
 * Start a range that any thread may end; returns its number for nt_ranges_end. The number holds its domain's place and
 * whether the range is chosen, so that nothing need be kept until it ends.
 */
uint64_t nt_ranges_start(struct nt_domain *domain, struct nt_chosen_range chosen)
{
	uint64_t number = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED) * MOST_DOMAINS;

	if (!chosen.if_started)
		return number * 2;
	__atomic_add_fetch(&domain->started, 1, __ATOMIC_ACQ_REL);
	__atomic_add_fetch(&open_in_process, 1, __ATOMIC_ACQ_REL);
	__atomic_store_n(&was_any, 1, __ATOMIC_RELAXED);
	return (number + (uint64_t)(domain - domains)) * 2 + 1;
}

/*
 * End a range by the number of nt_ranges_start; the program must not end it twice. Does nothing if it was not chosen,
 * or its domain has ended.
 */
void nt_ranges_end(uint64_t number)
{
	uint64_t *started = &domains[number / 2 % MOST_DOMAINS].started;
	uint64_t now = __atomic_load_n(started, __ATOMIC_RELAXED);

	if (number % 2 == 0)
		return;
	/* Not if its domain has ended, and the range with it. */
	while (now && !__atomic_compare_exchange_n(started, &now, now - 1, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		;
	if (now)
		count_down(&open_in_process);
}

/* --- notes --- */

/* The program calls NVTX (marks for profilers), and its calls arrive here: for the note at the end. */
void nt_ranges_arrive(void)
{
	__atomic_store_n(&has_arrived, 1, __ATOMIC_RELAXED);
}

/*
 * When the trace begins: if --range was given and NVTX will not call this library, since another tool is set in its
 * place, say so in the trace and on stderr.
 */
void nt_ranges_note_begin(void)
{
	const struct nt_settings *settings = nt_settings();
	const char *now = settings->injection;

	if (!nt_ranges_are_set() || (now && settings->own_injection && !strcmp(now, settings->own_injection)))
		return;
	nt_lines_note("NVTX_INJECTION64_PATH is %s, so NVTX does not call Neutrino: --range chooses none of its ranges",
		      now ? now : "not set any more");
	if (!settings->is_quiet)
		nt_quiet_write_say("neutrino: NVTX_INJECTION64_PATH is %s: --range chooses no NVTX range; run COMMAND without that tool\n",
				   now ? now : "not set any more");
}

/* At the end of the process: if --range was given and no chosen range was ever entered, note it in the trace. */
void nt_ranges_note_end(void)
{
	if (nt_ranges_are_set() && !__atomic_load_n(&was_any, __ATOMIC_RELAXED))
		nt_lines_note("--range: the process %s",
			      __atomic_load_n(&has_arrived, __ATOMIC_RELAXED) ? "was in none of these ranges"
									      : "has never marked a range by NVTX");
}
