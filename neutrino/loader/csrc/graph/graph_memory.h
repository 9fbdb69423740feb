/* Device memory of a context for its executable graphs: their cells, and where replays without room write. */
#ifndef NEUTRINO_GRAPH_MEMORY_H
#define NEUTRINO_GRAPH_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/driver.h"

struct nt_graph_memory;

/* The memory of a context, which is current; NULL without memory. It lasts until nt_graph_memory_forget. */
struct nt_graph_memory *nt_graph_memory_of(CUcontext context);

/* A new cell, 8 bytes that no replay uses yet; 0 without memory. Never used again, since a replay may still read it. */
CUdeviceptr nt_graph_memory_cell(struct nt_graph_memory *memory);

/* Have at least size bytes of spare memory, to which all replays without room write; false if there are not so many. */
bool nt_graph_memory_has_spare(const struct nt_graph_memory *memory, uint64_t size);
bool nt_graph_memory_spare(struct nt_graph_memory *memory, uint64_t size);

/* Where the spare memory is. On the launch path. */
CUdeviceptr nt_graph_memory_spare_address(const struct nt_graph_memory *memory);

/* The context ends, and the driver frees what was allocated in it. */
void nt_graph_memory_forget(CUcontext context);

#endif
