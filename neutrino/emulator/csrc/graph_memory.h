/* Memory that graphs allocate. */
#ifndef ED_GRAPH_MEMORY_H
#define ED_GRAPH_MEMORY_H

#include "graph.h"

/*
 * An allocation of a graph. Its bytes are there from when the node is made until the graph and what was made of it have
 * gone, since its address must not change; they belong to no context.
 */
struct ed_graph_memory {
	uint32_t holders; /* operations of nodes and plans */
	uint32_t is_live; /* by the launches that have been submitted: allocated and not freed yet */
	uint64_t address, size;
	struct ed_graph_memory *next;
};

void ed_graph_memory_hold(struct ed_graph_memory *memory);
void ed_graph_memory_release(struct ed_graph_memory *memory);

/* Fill memory that comes or goes with poison. */
void ed_graph_memory_run(const struct ed_graph_memory *memory);

/* The operation of a node that allocates or frees. The address goes to ret. */
CUresult ed_graph_memory_allocate(struct ed_context *context, uint64_t size, uint64_t *ret,
				  struct ed_operation *operation);
CUresult ed_graph_memory_free(struct ed_context *context, uint64_t address, struct ed_operation *operation);

/*
 * For cuMemFree and cuMemFreeAsync of what a graph allocated: the memory may be allocated again by a launch. False if
 * the address is none of a graph, CUDA_ERROR_INVALID_VALUE in *ret if it is not allocated now.
 */
bool ed_graph_memory_free_outside(uint64_t address, CUresult *ret);

/*
 * For launches: CUDA_ERROR_INVALID_VALUE where memory of the plan is still allocated, unless it is freed first
 * (auto_free); then what it leaves allocated is.
 */
CUresult ed_graph_memory_launch(const struct ed_plan *plan, bool auto_free);

/* Add nodes. parameters: CUDA_MEM_ALLOC_NODE_PARAMS, where the address goes. */
CUresult ed_graph_add_allocation(const struct ed_place *place, void *parameters);
CUresult ed_graph_add_free(const struct ed_place *place, CUdeviceptr address);

#endif
