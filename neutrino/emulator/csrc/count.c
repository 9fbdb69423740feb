#include "count.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "settings.h"

#define SITES 4096u

static const char *const caller_names[ED_CALLERS] = {"program", "hook", "hook-thread"};
static struct ed_counter *counters;
static uint64_t bytes_by[ED_CALLERS];

/* A hash table of return addresses. is_hook: 0 while it is looked up, then 1 for no and 2 for yes. */
static struct {
	const void *address;
	uint32_t is_hook;
} sites[SITES];

/* Whether the file name in a path is this one. */
static bool ends_in(const char *path, const char *name)
{
	const char *slash = strrchr(path, '/');

	return !strcmp(slash ? slash + 1 : path, name);
}

/*
 * Whether an address is in the hook (Neutrino's library between program and driver), which has the driver's file name,
 * as this library has.
 */
static bool look_up(const void *address)
{
	static Dl_info own;
	Dl_info info;

	if (!own.dli_fbase)
		dladdr((void *)look_up, &own);
	return dladdr(address, &info) && info.dli_fname && info.dli_fbase != own.dli_fbase &&
	       (ends_in(info.dli_fname, "libcuda.so.1") || ends_in(info.dli_fname, "libcuda.so"));
}

/*
 * Whether a return address is in the hook (Neutrino's library between program and driver). Looked up once per address,
 * in a hash table without locks.
 */
static bool is_hook(const void *address)
{
	size_t start = ((uintptr_t)address >> 2) % SITES;

	for (size_t i = 0; i < SITES; i++) {
		size_t at = (start + i) % SITES;
		const void *found = __atomic_load_n(&sites[at].address, __ATOMIC_ACQUIRE);
		if (!found && __atomic_compare_exchange_n(&sites[at].address, &found, address, false, __ATOMIC_ACQ_REL,
							  __ATOMIC_ACQUIRE)) {
			bool verdict = look_up(address);
			__atomic_store_n(&sites[at].is_hook, 1u + verdict, __ATOMIC_RELEASE);
			return verdict;
		}
		if (found == address) {
			uint32_t verdict = __atomic_load_n(&sites[at].is_hook, __ATOMIC_ACQUIRE);
			return verdict ? verdict == 2 : look_up(address);
		}
	}
	return look_up(address);
}

/* Whether the calling thread is one of the hook's own, by its name. */
static bool is_hook_thread(void)
{
	static __thread int known; /* 0: not looked up, 1: no, 2: yes */
	char name[16] = "";

	if (known != 2) {
		/* A thread may get its name after its first call here, so no is not final. */
		prctl(PR_GET_NAME, name);
		known = strncmp(name, "neutrino-", 9) ? 1 : 2;
	}
	return known == 2;
}

/* Add a counter to the list when its function is called first; of several threads one does so. */
static void add_counter(struct ed_counter *counter, const char *name)
{
	const char *none = NULL;

	if (!__atomic_compare_exchange_n(&counter->name, &none, name, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return;
	counter->next = __atomic_load_n(&counters, __ATOMIC_ACQUIRE);
	while (!__atomic_compare_exchange_n(&counters, &counter->next, counter, false, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE))
		;
}

/*
 * Who has made a call, by its return address: the program, the hook (Neutrino's library), or the hook on a thread of
 * its own.
 */
static enum ed_caller caller_at(const void *address)
{
	return !is_hook(address) ? ED_PROGRAM : is_hook_thread() ? ED_HOOK_THREAD : ED_HOOK;
}

/* Count bytes of device memory that were allocated, for the count=FILE setting of tests. caller: the return address. */
void ed_count_bytes(uint64_t bytes, const void *caller)
{
	if (ed_settings()->count[0])
		__atomic_fetch_add(&bytes_by[caller_at(caller)], bytes, __ATOMIC_RELAXED);
}

/*
 * Count a call of an entry point, for the count=FILE setting of tests. name: of the entry point; caller: the return
 * address.
 */
void ed_count(struct ed_counter *counter, const char *name, const void *caller)
{
	if (!ed_settings()->count[0])
		return;
	enum ed_caller by = caller_at(caller);
	if (!__atomic_load_n(&counter->name, __ATOMIC_ACQUIRE))
		add_counter(counter, name);
	__atomic_fetch_add(&counter->calls[by], 1, __ATOMIC_RELAXED);
}

static pid_t process;

/* At the end of the process, not of a forked child: write all counters as JSON to the file of count=FILE. */
static void write_counts(void)
{
	if (getpid() != process)
		return;
	FILE *file = fopen(ed_settings()->count, "we");
	if (!file) {
		ed_say("count=%s cannot be written", ed_settings()->count);
		return;
	}
	for (int by = 0; by < ED_CALLERS; by++) {
		const char *separator = "";
		fprintf(file, "%s\"%s\": {", by ? ", " : "{", caller_names[by]);
		for (struct ed_counter *counter = __atomic_load_n(&counters, __ATOMIC_ACQUIRE); counter;
		     counter = counter->next) {
			uint64_t calls = __atomic_load_n(&counter->calls[by], __ATOMIC_RELAXED);
			if (calls) {
				fprintf(file, "%s\"%s\": %llu", separator, counter->name, (unsigned long long)calls);
				separator = ", ";
			}
		}
		fputs("}", file);
	}
	fprintf(file, ", \"bytes\": {");
	for (int by = 0; by < ED_CALLERS; by++)
		fprintf(file, "%s\"%s\": %llu", by ? ", " : "", caller_names[by],
			(unsigned long long)__atomic_load_n(&bytes_by[by], __ATOMIC_RELAXED));
	fputs("}}\n", file);
	fclose(file);
}

/* Have the counters written when the process ends, if count=FILE was set. */
void ed_count_start(void)
{
	process = getpid();
	if (ed_settings()->count[0])
		atexit(write_counts);
}
