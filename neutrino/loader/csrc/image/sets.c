#include "image/sets.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/lock.h"
#include "base/memory.h"
#include "base/settings.h"
#include "trace/trace.h"

/* Sets are never freed: some hundred bytes each. */
#define MOST_SETS 65536u
#define KEY_DIGITS 64

/* Guards the list and the sockets. Never held across a call of the driver or a request. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nt_set first = {.number = 1, .is_noted = true};
static struct nt_set *last = &first;
static const struct nt_set *now = &first;
uint32_t nt_sets_number = 1;

/* Take the process's first set from its settings, once. */
static void read_first(void)
{
	const struct nt_settings *settings = nt_settings();

	first.key = settings->key;
	first.probe_file = settings->probe_file;
	first.names = settings->probes;
	if (settings->socket && strlen(settings->socket) < sizeof(first.socket))
		strcpy(first.socket, settings->socket);
}

/* Have the first set read. From any thread. */
static void begin(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_first);
}

/* The set of probes in force: functions that are obtained now get its twins (copies with probes). Lock-free, never NULL. */
const struct nt_set *nt_sets_now(void)
{
	begin();
	return __atomic_load_n(&now, __ATOMIC_ACQUIRE);
}

/* The set of probes of that number, NULL if there is none. Takes the mutex. */
const struct nt_set *nt_sets_find(uint32_t number)
{
	begin();
	nt_lock_take(&mutex);
	const struct nt_set *set = &first;
	while (set && set->number != number)
		set = set->next;
	nt_lock_release(&mutex);
	return set;
}

/* Whether a text is a key: 64 lower-case hexadecimal digits. */
static bool is_key(const char *text)
{
	return text && strlen(text) == KEY_DIGITS && strspn(text, "0123456789abcdef") == KEY_DIGITS;
}

/* A new set of probes, in no list yet; NULL without memory. */
static struct nt_set *make(const char *key, const char *probe_file, const char *names)
{
	struct nt_set *set = nt_memory_alloc_zeroed(1, sizeof(*set));

	if (!set)
		return NULL;
	set->key = nt_memory_strdup(key);
	set->probe_file = probe_file ? nt_memory_strdup(probe_file) : NULL;
	set->names = names ? nt_memory_strdup(names) : NULL;
	if (set->key)
		return set;
	nt_memory_free((void *)(uintptr_t)set->probe_file);
	nt_memory_free((void *)(uintptr_t)set->names);
	nt_memory_free(set);
	return NULL;
}

/*
 * The number of the set of probes with that key (NEUTRINO_KEY of its run), which is added if it is new; socket: of the
 * listener that makes its twins (copies with probes), for one that is there already, too. 0 if this process has one set
 * alone, or too many, or if an argument is not valid. Takes the mutex.
 */
uint32_t nt_sets_add(const char *key, const char *socket, const char *probe_file, const char *names)
{
	begin();
	if (!nt_settings()->asks_again || !first.key || !is_key(key) || !socket || strlen(socket) >= NT_SOCKET_PATH)
		return 0;
	struct nt_set *made = make(key, probe_file, names), *set;
	nt_lock_take(&mutex);
	for (set = &first; set && strcmp(set->key, key) != 0; set = set->next)
		;
	bool is_new = !set && made && last->number < MOST_SETS;
	if (is_new) {
		made->number = last->number + 1;
		last = last->next = set = made;
	}
	if (set)
		strcpy(set->socket, socket);
	nt_lock_release(&mutex);
	if (made && !is_new) {
		nt_memory_free((void *)(uintptr_t)made->key);
		nt_memory_free((void *)(uintptr_t)made->probe_file);
		nt_memory_free((void *)(uintptr_t)made->names);
		nt_memory_free(made);
	}
	return set ? set->number : 0;
}

/* Have a set of probes in force from now on. The caller changes what functions run with it. */
void nt_sets_put_in_force(const struct nt_set *set)
{
	__atomic_store_n(&now, set, __ATOMIC_RELEASE);
	__atomic_store_n(&nt_sets_number, set->number, __ATOMIC_RELEASE);
}

/* Copy the path of the socket of a set's listener (which makes its twins); "" if it has none. Takes the mutex. */
void nt_sets_socket(const struct nt_set *set, char ret[NT_SOCKET_PATH])
{
	nt_lock_take(&mutex);
	memcpy(ret, set->socket, NT_SOCKET_PATH);
	nt_lock_release(&mutex);
}

/*
 * Once there is a trace: write an event that describes the set of probes in force, and its probes as the file
 * probe-NUMBER.toml, unless that was done. The first set is described by the process's event.
 */
void nt_sets_note(void)
{
	struct nt_set *set = (struct nt_set *)(uintptr_t)nt_sets_now();
	struct nt_event event;
	char file[32];

	if (!nt_path_of_trace()[0] || __atomic_exchange_n(&set->is_noted, true, __ATOMIC_ACQ_REL))
		return;
	snprintf(file, sizeof(file), "probe-%u.toml", set->number);
	nt_event_begin(&event, "set");
	nt_event_number(&event, "number", set->number);
	nt_event_string(&event, "probes", set->names ? set->names : "");
	nt_event_string(&event, "file", file);
	nt_lines_event(&event);
	nt_trace_copy(file, set->probe_file);
}
