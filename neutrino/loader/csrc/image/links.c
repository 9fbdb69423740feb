#include "image/links.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/lock.h"
#include "base/memory.h"
#include "image/passed.h"

/* At most so many links at a time, and bytes of one's PTX. Of others nothing is known. */
#define MOST_LINKS 256u
#define MOST_BYTES ((size_t)64 << 20)

struct link {
	struct link *next;
	const void *handle;
	uint32_t inputs;
	char *text; /* of the only input, if that is PTX */
	size_t size;
	struct nt_ltoir *ltoir; /* of all inputs, if they are LTO IR; NULL: none is kept, or no longer */
	const char *why; /* there is no PTX for its result; NULL: there is or will be, or it has no input yet */
};

static const char not_ptx[] = "it was linked from something other than PTX and LTO IR";

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct link *links;
static uint32_t count; /* also read without the mutex */

/* Where the link with that handle stands in the list; *ret is NULL if there is none. Under the mutex. */
static struct link **find(const void *handle)
{
	struct link **ret = &links;

	while (*ret && (*ret)->handle != handle)
		ret = &(*ret)->next;
	return ret;
}

/* Take the link with that handle out of the list; NULL if there is none. Its memory is the caller's. */
static struct link *take(const void *handle)
{
	if (!__atomic_load_n(&count, __ATOMIC_RELAXED))
		return NULL;
	nt_lock_take(&mutex);
	struct link **found = find(handle), *ret = *found;
	if (ret) {
		*found = ret->next;
		__atomic_fetch_sub(&count, 1, __ATOMIC_RELAXED);
	}
	nt_lock_release(&mutex);
	return ret;
}

/* Free a link that is in no list, or NULL. */
static void free_link(struct link *link)
{
	if (link) {
		nt_memory_free(link->text);
		nt_ltoir_free(link->ltoir);
	}
	nt_memory_free(link);
}

/* Put a link into the list, unless that is full: then it is freed. */
static void put(struct link *link)
{
	nt_lock_take(&mutex);
	bool has_room = count < MOST_LINKS;
	if (has_room) {
		link->next = links;
		links = link;
		__atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
	}
	nt_lock_release(&mutex);
	if (!has_room)
		free_link(link);
}

/*
 * A link of PTX to machine code (cuLink*, nvJitLink) begins. unsupported: why its result cannot be probed, a text that is
 * never freed, or NULL. handle: the linker's; a link that had the same before has ended. ltoir: where its LTO IR (input of
 * optimization at link time) is kept, from now on the link's, or NULL.
 */
void nt_links_begin(const void *handle, const char *unsupported, struct nt_ltoir *ltoir)
{
	struct link *link = nt_memory_alloc_zeroed(1, sizeof(*link));

	free_link(take(handle));
	if (!link) {
		nt_ltoir_free(ltoir);
		return;
	}
	link->handle = handle;
	link->why = unsupported;
	link->ltoir = ltoir;
	put(link);
}

/* Count an input, which is of another kind than those before it, if there are any. What was kept of those is freed. */
static void add_other(struct link *link)
{
	link->inputs++;
	nt_memory_free(link->text);
	link->text = NULL;
	if (link->inputs > 1 && !link->why)
		link->why = "it was linked from several inputs";
}

/* Free the LTO IR of a link. */
static void drop_ltoir(struct link *link)
{
	nt_ltoir_free(link->ltoir);
	link->ltoir = NULL;
}

/*
 * A link (to machine code) gets an input. text: PTX, of size bytes or up to its NUL; NULL: it is something else.
 * unsupported: as for nt_links_begin.
 */
void nt_links_add(const void *handle, const char *text, size_t size, const char *unsupported)
{
	struct link *link = take(handle);

	if (!link)
		return;
	add_other(link);
	drop_ltoir(link);
	if (!link->why)
		link->why = text ? unsupported : not_ptx;
	if (!link->why) {
		link->size = strnlen(text, size);
		link->text = link->size && link->size <= MOST_BYTES ? nt_memory_alloc(link->size) : NULL;
		if (link->text)
			memcpy(link->text, text, link->size);
		else
			link->why = "its PTX could not be kept";
	}
	put(link);
}

/* A link gets LTO IR (input of optimization at link time), of size bytes. */
void nt_links_add_ltoir(const void *handle, const void *data, size_t size)
{
	struct link *link = take(handle);

	if (!link)
		return;
	if (link->ltoir && link->ltoir->inputs_count)
		link->inputs++;
	else
		add_other(link);
	if (!link->why && !link->ltoir)
		link->why = not_ptx;
	if (!link->why) {
		nt_ltoir_add(link->ltoir, data, size);
		link->why = link->ltoir->why;
	}
	if (link->why)
		drop_ltoir(link);
	put(link);
}

/*
 * The LTO IR of a link (its inputs, for optimization at link time), if it has no other inputs and its PTX is not known yet.
 * From now on it is the caller's. Else NULL.
 */
struct nt_ltoir *nt_links_take_ltoir(const void *handle)
{
	struct link *link = take(handle);
	struct nt_ltoir *ret = NULL;

	if (!link)
		return NULL;
	if (!link->why && link->ltoir && link->ltoir->inputs_count) {
		ret = link->ltoir;
		link->ltoir = NULL;
		link->why = "its LTO IR was not linked to PTX";
	}
	put(link);
	return ret;
}

/*
 * The PTX of what nt_links_take_ltoir has given: memory of nt_memory_alloc, from now on the link's, of size bytes; NULL: why
 * there is none, a text that is never freed.
 */
void nt_links_give_ptx(const void *handle, char *text, size_t size, const char *why)
{
	struct link *link = take(handle);

	if (!link) {
		nt_memory_free(text);
		return;
	}
	nt_memory_free(link->text);
	link->text = text;
	link->size = size;
	link->why = text ? NULL : why;
	put(link);
}

/* A link is done: keep the PTX of its result, a cubin (machine code for a GPU). by: whose link, never freed. */
void nt_links_done(const void *handle, const void *cubin, size_t size, const char *by)
{
	struct link *link = take(handle);

	if (!link)
		return;
	if (link->inputs && cubin)
		nt_passed_keep(cubin, size, link->text, link->size, by, link->why);
	/* The result may be asked for again. */
	put(link);
}

/* The handle of a link (of PTX to machine code) ends. */
void nt_links_end(const void *handle)
{
	free_link(take(handle));
}
