#include "graph_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"
#include "memory.h"
#include "plan.h"
#include "region.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the list of all */
static struct ed_graph_memory *all;

/* CUDA_MEM_ALLOC_NODE_PARAMS, with the members of CUmemPoolProps that are read. */
struct parameters {
	int type, handles;
	int location, device;
	char rest[72];
	const void *access;
	size_t access_count;
	size_t size;
	CUdeviceptr address;
};

_Static_assert(sizeof(struct parameters) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS");

#define PINNED_MEMORY 1 /* CU_MEM_ALLOCATION_TYPE_PINNED */
#define ON_DEVICE 1	/* CU_MEM_LOCATION_TYPE_DEVICE */

/* One more holder of memory that a graph allocates: a node or a plan (an executable graph's steps). */
void ed_graph_memory_hold(struct ed_graph_memory *memory)
{
	__atomic_add_fetch(&memory->holders, 1, __ATOMIC_ACQ_REL);
}

/*
 * Give up a hold on memory that a graph allocates: the last one gives the bytes back. What a launch left allocated
 * stays, for the program to free.
 */
void ed_graph_memory_release(struct ed_graph_memory *memory)
{
	pthread_mutex_lock(&mutex);
	bool is_last = !__atomic_sub_fetch(&memory->holders, 1, __ATOMIC_ACQ_REL);
	for (struct ed_graph_memory **link = &all; is_last && *link; link = &(*link)->next)
		if (*link == memory) {
			*link = memory->next;
			break;
		}
	pthread_mutex_unlock(&mutex);
	if (!is_last)
		return;
	if (!memory->is_live)
		ed_memory_free_now(memory->address);
	free(memory);
}

/* Run a node that allocates or frees: fill its memory with poison, so that a use of what is not there shows. */
void ed_graph_memory_run(const struct ed_graph_memory *memory)
{
	ed_memory_poison(ed_memory_here(memory->address), memory->size);
}

/* The allocation of a graph that begins at an address, NULL without one. Under the mutex. */
static struct ed_graph_memory *find_allocation(uint64_t address)
{
	struct ed_graph_memory *memory = all;

	while (memory && memory->address != address)
		memory = memory->next;
	return memory;
}

/*
 * Make the operation of a node that allocates size bytes. *ret gets the memory's address, which is the same at each
 * launch.
 */
CUresult ed_graph_memory_allocate(struct ed_context *context, uint64_t size, uint64_t *ret,
				  struct ed_operation *operation)
{
	uint64_t failure = ed_failure(ED_FAIL_ALLOC);

	if (!size || failure)
		return size ? (CUresult)failure : CUDA_ERROR_INVALID_VALUE;
	struct ed_graph_memory *memory = calloc(1, sizeof(*memory));
	if (memory)
		memory->address = ed_region_take(&ed_device_region, size,
						 (struct ed_piece){.sort = DEVICE});
	if (!memory || !memory->address) {
		free(memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memory->holders = 1;
	memory->size = size;
	pthread_mutex_lock(&mutex);
	memory->next = all;
	all = memory;
	pthread_mutex_unlock(&mutex);
	*operation = (struct ed_operation){.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .context = context, .memory = memory};
	*ret = memory->address;
	return CUDA_SUCCESS;
}

/*
 * Make the operation of a node that frees what a graph has allocated at that address. CUDA_ERROR_INVALID_VALUE if there
 * is nothing.
 */
CUresult ed_graph_memory_free(struct ed_context *context, uint64_t address, struct ed_operation *operation)
{
	pthread_mutex_lock(&mutex);
	struct ed_graph_memory *memory = find_allocation(address);
	if (memory)
		ed_graph_memory_hold(memory);
	pthread_mutex_unlock(&mutex);
	*operation = (struct ed_operation){.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .context = context, .memory = memory};
	return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/*
 * cuMemFree and cuMemFreeAsync of what a graph has allocated: a later launch may allocate it again. False if the
 * address is none of a graph; *ret is CUDA_ERROR_INVALID_VALUE if it is not allocated now.
 */
bool ed_graph_memory_free_outside(uint64_t address, CUresult *ret)
{
	pthread_mutex_lock(&mutex);
	struct ed_graph_memory *memory = find_allocation(address);
	if (memory)
		*ret = __atomic_exchange_n(&memory->is_live, 0, __ATOMIC_ACQ_REL) ? CUDA_SUCCESS
										  : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&mutex);
	return memory != NULL;
}

/*
 * Mark what the steps of a type (allocate or free), in child graphs too, leave allocated (is_live); only_ask: change
 * nothing. False where something to allocate is allocated already; only if only_ask.
 */
static bool mark_allocated(const struct ed_plan *plan, int type, bool is_live, bool only_ask)
{
	bool free_before = true;

	for (size_t i = 0; i < plan->count; i++) {
		const struct ed_operation *operation = &plan->steps[i].operation;
		if (operation->type == CU_GRAPH_NODE_TYPE_GRAPH)
			free_before &= mark_allocated(operation->plan, type, is_live, only_ask);
		else if (operation->type == type && only_ask)
			free_before &= !__atomic_load_n(&operation->memory->is_live, __ATOMIC_ACQUIRE);
		else if (operation->type == type)
			__atomic_store_n(&operation->memory->is_live, is_live, __ATOMIC_RELEASE);
	}
	return free_before;
}

/*
 * A plan (an executable graph's steps) is launched: CUDA_ERROR_INVALID_VALUE where memory of it is still allocated,
 * unless auto_free, which frees it first. Else what it allocates and does not free is marked as allocated.
 */
CUresult ed_graph_memory_launch(const struct ed_plan *plan, bool auto_free)
{
	if (!auto_free && !mark_allocated(plan, CU_GRAPH_NODE_TYPE_MEM_ALLOC, true, true))
		return CUDA_ERROR_INVALID_VALUE;
	mark_allocated(plan, CU_GRAPH_NODE_TYPE_MEM_ALLOC, true, false);
	mark_allocated(plan, CU_GRAPH_NODE_TYPE_MEM_FREE, false, false);
	return CUDA_SUCCESS;
}

/* --- nodes --- */

/* Add a node that allocates memory at a place of a graph. given: CUDA_MEM_ALLOC_NODE_PARAMS, which gets the address. */
CUresult ed_graph_add_allocation(const struct ed_place *place, void *given)
{
	struct parameters *parameters = given;
	struct ed_operation operation;
	uint64_t address;

	GET_CONTEXT_OR_RETURN(context);
	CUresult result = ed_graph_check_place(place->ret, place->graph, place->dependencies, place->count);
	if (!result && (!parameters || parameters->type != PINNED_MEMORY || parameters->location != ON_DEVICE ||
			parameters->device != 0))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = ed_graph_memory_allocate(context, parameters->size, &address, &operation);
	if (!result)
		result = ed_graph_add_operation(place, &operation);
	if (!result)
		parameters->address = address;
	return result;
}

/* Add a node that frees what a graph has allocated at that address, at a place of a graph. */
CUresult ed_graph_add_free(const struct ed_place *place, CUdeviceptr address)
{
	struct ed_operation operation;

	GET_CONTEXT_OR_RETURN(context);
	CUresult result = ed_graph_check_place(place->ret, place->graph, place->dependencies, place->count);
	if (!result)
		result = ed_graph_memory_free(context, address, &operation);
	return result ? result : ed_graph_add_operation(place, &operation);
}

/* Emulated CUDA driver call: add a node to a graph that allocates memory; the parameters get its address. */
API cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			   struct parameters *parameters)
{
	ENTER_OR_RETURN();
	return ed_graph_add_allocation(&(struct ed_place){node, graph, dependencies, count}, parameters);
}

/* Emulated CUDA driver call: add a node to a graph that frees what a graph has allocated. */
API cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			  CUdeviceptr address)
{
	ENTER_OR_RETURN();
	return ed_graph_add_free(&(struct ed_place){node, graph, dependencies, count}, address);
}

/* Emulated CUDA driver call: what a node of a graph allocates, and its address. */
API cuGraphMemAllocNodeGetParams(CUgraphNode node, struct parameters *ret)
{
	ENTER_OR_RETURN();
	if (!ret || !ed_object_check(node, ED_NODE) || node->operation.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = (struct parameters){.type = PINNED_MEMORY, .location = ON_DEVICE,
				   .size = node->operation.memory->size, .address = node->operation.memory->address};
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the address of what a node of a graph frees. */
API cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address)
{
	ENTER_OR_RETURN();
	if (!address || !ed_object_check(node, ED_NODE) || node->operation.type != CU_GRAPH_NODE_TYPE_MEM_FREE)
		return CUDA_ERROR_INVALID_VALUE;
	*address = node->operation.memory->address;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: give back memory that is kept for graphs; none is kept here. */
API cuDeviceGraphMemTrim(CUdevice device)
{
	ENTER_OR_RETURN();
	return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
