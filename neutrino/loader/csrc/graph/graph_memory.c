#include "graph/graph_memory.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/lock.h"
#include "base/memory.h"
#include "memory/own_memory.h"

struct nt_graph_memory {
	CUcontext context;
	uint64_t id;	   /* of the context, if the driver gives one: another may come to its address */
	CUdeviceptr cells; /* the current page of them */
	uint32_t used;	   /* of the page */
	CUdeviceptr spare; /* where replays without room write, all of them to the same place */
	uint64_t spare_size;
	uint64_t size; /* bytes of all this */
	struct nt_graph_memory *next;
};

enum { CELLS = 8192, CELLS_SIZE = CELLS * sizeof(uint64_t) }; /* of a page */

/* Guards the list, and changes. Never held across a call of the driver. Not taken on the launch path. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nt_graph_memory *memories;

/*
 * The device memory for executable graphs in a context, which is current, made if there is none; NULL without memory.
 * It lasts until nt_graph_memory_forget.
 */
struct nt_graph_memory *nt_graph_memory_of(CUcontext context)
{
	struct nt_graph_memory *memory;
	uint64_t id = 0;

	if (nt_driver.cuCtxGetId)
		nt_driver.cuCtxGetId(context, (void *)&id);
	nt_lock_take(&mutex);
	for (memory = memories; memory && (memory->context != context || memory->id != id); memory = memory->next)
		;
	if (!memory && (memory = nt_memory_alloc_zeroed(1, sizeof(*memory)))) {
		memory->context = context;
		memory->id = id;
		memory->next = memories;
		memories = memory;
	}
	nt_lock_release(&mutex);
	return memory;
}

/* The next unused cell (device memory that says where results go) of the current page, 0 if there is none. */
static CUdeviceptr next_cell(struct nt_graph_memory *memory)
{
	CUdeviceptr ret = 0;

	nt_lock_take(&mutex);
	if (memory->cells && memory->used < CELLS)
		ret = memory->cells + memory->used++ * sizeof(uint64_t);
	nt_lock_release(&mutex);
	return ret;
}

/*
 * A new cell: 8 bytes of device memory, in which the twins (copies with probes) of a graph find where their results
 * go; 0 without memory. Never used again, since a replay (launch of a graph) may still read it.
 */
CUdeviceptr nt_graph_memory_cell(struct nt_graph_memory *memory)
{
	CUdeviceptr cell = next_cell(memory);
	CUdeviceptr page = cell ? 0 : nt_own_memory_get(NT_OWN_GRAPHS, CELLS_SIZE);

	if (!page)
		return cell;
	nt_lock_take(&mutex);
	/* Another thread may have got a page meanwhile. */
	bool is_needed = !memory->cells || memory->used == CELLS;
	if (is_needed) {
		memory->cells = page;
		memory->used = 0;
		memory->size += CELLS_SIZE;
	}
	nt_lock_release(&mutex);
	if (!is_needed)
		nt_own_memory_free(NT_OWN_GRAPHS, page, CELLS_SIZE);
	return next_cell(memory);
}

/* Whether there are at least so many bytes of spare device memory. Lock-free. */
bool nt_graph_memory_has_spare(const struct nt_graph_memory *memory, uint64_t size)
{
	return __atomic_load_n(&memory->spare_size, __ATOMIC_ACQUIRE) >= size;
}

/*
 * Have at least size bytes of spare device memory, to which all replays (launches of graphs) without room write; false
 * if there are not so many.
 */
bool nt_graph_memory_spare(struct nt_graph_memory *memory, uint64_t size)
{
	uint64_t before = __atomic_load_n(&memory->spare_size, __ATOMIC_ACQUIRE);

	if (before >= size)
		return true;
	/* What was there before stays: replays under way may write to it. Doubled, so that it stays small in sum. */
	uint64_t wanted = size < 2 * before ? 2 * before : size;
	CUdeviceptr larger = nt_own_memory_get(NT_OWN_GRAPHS, wanted);
	if (!larger)
		return false;
	nt_lock_take(&mutex);
	bool is_needed = memory->spare_size < wanted;
	if (is_needed) {
		__atomic_store_n(&memory->spare, larger, __ATOMIC_RELEASE);
		__atomic_store_n(&memory->spare_size, wanted, __ATOMIC_RELEASE);
		memory->size += wanted;
	}
	nt_lock_release(&mutex);
	if (!is_needed)
		nt_own_memory_free(NT_OWN_GRAPHS, larger, wanted);
	return true;
}

/* Where the spare device memory is, to which replays (launches of graphs) without room write. On the launch path. */
CUdeviceptr nt_graph_memory_spare_address(const struct nt_graph_memory *memory)
{
	return __atomic_load_n(&memory->spare, __ATOMIC_ACQUIRE);
}

/* The context ends, and the driver frees what was allocated in it: forget the memory for its graphs. */
void nt_graph_memory_forget(CUcontext context)
{
	nt_lock_take(&mutex);
	for (struct nt_graph_memory **link = &memories; *link;) {
		struct nt_graph_memory *memory = *link;
		if (memory->context == context) {
			*link = memory->next;
			nt_own_memory_gone(NT_OWN_GRAPHS, memory->size);
			nt_memory_free(memory);
		} else {
			link = &memory->next;
		}
	}
	nt_lock_release(&mutex);
}
