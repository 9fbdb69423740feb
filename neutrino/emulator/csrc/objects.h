/*
 * Handles. Objects of a kind lie in a table of their own that is never unmapped; a destroyed object's place is the next
 * that is given out, so that whoever keeps a stale handle meets another object under it.
 */
#ifndef ED_OBJECTS_H
#define ED_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ed_kind {
	ED_CONTEXT,
	ED_MODULE,
	ED_LIBRARY,
	ED_KERNEL,
	ED_FUNCTION,
	ED_STREAM,
	ED_EVENT,
	ED_GRAPH,
	ED_NODE,
	ED_EXEC,
	ED_POOL,
	ED_KINDS,
};

/* The maximum size of an object in bytes. */
#define ED_OBJECT_SIZE 256

/* The first member of every object. */
struct ed_object {
	uint32_t state; /* 0: never used, else kind * 2 + 1 while alive and kind * 2 + 2 once destroyed */
	struct ed_object *next_free;
};

/* A zeroed object, NULL when all places are taken. */
void *ed_object_take(enum ed_kind kind, size_t size);

/* Destroy an object; its content stays until the place is used again. */
void ed_object_give(void *object);

/*
 * Whether handle is a living object of that kind. A destroyed one is named on stderr and, if strict, ends the process.
 */
bool ed_object_check(const void *handle, enum ed_kind kind);

/* The same without a message, for a handle that may be of one of two kinds. */
bool ed_object_is(const void *handle, enum ed_kind kind);

/* Whether handle was an object of that kind, and is destroyed. */
bool ed_object_was(const void *handle, enum ed_kind kind);

/*
 * Call each for every living object of that kind that is_wanted; it may destroy it. is_wanted is asked under the lock
 * of all objects: none comes or goes meanwhile, but another thread may still fill what it has just made.
 */
void ed_object_each(enum ed_kind kind, bool (*is_wanted)(const void *object, const void *argument),
		    void (*each)(void *object), const void *argument);

#endif
