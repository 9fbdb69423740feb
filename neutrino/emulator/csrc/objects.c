#include "objects.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "settings.h"

#define PLACES 65536u
#define PLACE_SIZE ((size_t)ED_OBJECT_SIZE)

struct table {
	uint8_t *places;
	struct ed_object *first_free;
	uint32_t used;
};

static struct table tables[ED_KINDS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static const char *const names[ED_KINDS] = {
	[ED_CONTEXT] = "context", [ED_MODULE] = "module", [ED_LIBRARY] = "library", [ED_KERNEL] = "kernel",
	[ED_FUNCTION] = "function", [ED_STREAM] = "stream", [ED_EVENT] = "event", [ED_GRAPH] = "graph",
	[ED_NODE] = "graph node", [ED_EXEC] = "executable graph", [ED_POOL] = "memory pool",
};

/* The state of a living object of a kind. The number after it, an even one, is the state of a destroyed one. */
static uint32_t alive(enum ed_kind kind)
{
	return (uint32_t)kind * 2 + 1;
}

/*
 * Make an object of a kind, of size bytes, zeroed, at the place that was freed last; NULL when all places are taken.
 * Places are never unmapped, so that handles can be checked.
 */
void *ed_object_take(enum ed_kind kind, size_t size)
{
	struct table *table = &tables[kind];
	struct ed_object *object = NULL;

	if (size > PLACE_SIZE)
		return NULL;
	pthread_mutex_lock(&mutex);
	if (!table->places) {
		void *memory = mmap(NULL, PLACES * PLACE_SIZE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (memory != MAP_FAILED)
			__atomic_store_n(&table->places, memory, __ATOMIC_RELEASE);
	}
	if (table->first_free) {
		object = table->first_free;
		table->first_free = object->next_free;
	} else if (table->places && table->used < PLACES) {
		object = (struct ed_object *)(table->places + table->used++ * PLACE_SIZE);
	}
	if (object) {
		memset(object + 1, 0, size - sizeof(*object));
		object->next_free = NULL;
		__atomic_store_n(&object->state, alive(kind), __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&mutex);
	return object;
}

/* Destroy an object. Its place is free for another one of the same kind; its content stays until then. */
void ed_object_give(void *handle)
{
	struct ed_object *object = handle;

	pthread_mutex_lock(&mutex);
	struct table *table = &tables[(object->state - 1) / 2];
	__atomic_store_n(&object->state, object->state + 1, __ATOMIC_RELEASE);
	object->next_free = table->first_free;
	table->first_free = object;
	pthread_mutex_unlock(&mutex);
}

/* The state of an object, 0 if the handle is not the address of a place for objects of that kind. */
static uint32_t state_of(const void *handle, enum ed_kind kind)
{
	const uint8_t *places = __atomic_load_n(&tables[kind].places, __ATOMIC_ACQUIRE);
	uintptr_t offset = (uintptr_t)handle - (uintptr_t)places;

	if (!places || offset >= PLACES * PLACE_SIZE || offset % PLACE_SIZE)
		return 0;
	return __atomic_load_n(&((const struct ed_object *)handle)->state, __ATOMIC_ACQUIRE);
}

/* Whether a handle is a living object of that kind; nothing is said about a destroyed one. */
bool ed_object_is(const void *handle, enum ed_kind kind)
{
	return state_of(handle, kind) == alive(kind);
}

/* Whether a handle was an object of that kind, and is destroyed. */
bool ed_object_was(const void *handle, enum ed_kind kind)
{
	return state_of(handle, kind) == alive(kind) + 1;
}

/*
 * Whether a handle is a living object of a kind. The use of a destroyed one is said on stderr, and with the setting
 * strict ends the process.
 */
bool ed_object_check(const void *handle, enum ed_kind kind)
{
	uint32_t state = state_of(handle, kind);

	if (state == alive(kind))
		return true;
	if (state == alive(kind) + 1) {
		ed_say("a destroyed %s was used", names[kind]);
		if (ed_settings()->strict)
			abort();
	}
	return false;
}

/*
 * Call each() for every living object of a kind that is_wanted(object, argument), which is asked under the lock of all
 * objects. The lock is not held in each(), so that it may destroy the object.
 */
void ed_object_each(enum ed_kind kind, bool (*is_wanted)(const void *object, const void *argument),
		    void (*each)(void *object), const void *argument)
{
	uint32_t i = 0, used;

	do {
		void *wanted = NULL;
		pthread_mutex_lock(&mutex);
		used = tables[kind].used;
		for (; i < used && !wanted; i++) {
			void *object = tables[kind].places + i * PLACE_SIZE;
			if (ed_object_is(object, kind) && is_wanted(object, argument))
				wanted = object;
		}
		pthread_mutex_unlock(&mutex);
		if (wanted)
			each(wanted);
	} while (i < used);
}
