/*
 * What a replay of an executable graph runs, and where the maps of its kernels lie: made when the program instantiates or
 * changes the graph. Kernel nodes with a twin run it from then on, with a probe block that names the graph's cell.
 */
#ifndef NEUTRINO_GRAPH_LAYOUT_H
#define NEUTRINO_GRAPH_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/driver.h"
#include "base/kernel.h"
#include "drain/layout.h"

/* What it takes to make the layout of an executable graph. */
struct nt_graph_target {
	CUgraphExec exec;
	CUcontext context; /* current now */
	CUdeviceptr cell;
	enum neutrino_reason refusal; /* why no kernel can be probed; PROBED: they can be */
	uint32_t graph; /* id */
	uint64_t most;	/* bytes of a replay's memory */
};

/*
 * Have the kernel nodes of a graph run their twins in the executable graph that was made of it, or with a clone in that
 * clone instead; return the layout. NULL without memory. Calls the driver.
 */
struct nt_layout *nt_graph_layout_make(const struct nt_graph_target *target, CUgraph graph, CUgraph clone);

/* A copy, without counters. NULL without memory. */
struct nt_layout *nt_graph_layout_copy(const struct nt_layout *from);

/*
 * The program has given a node of the executable graph these parameters (NULL: they are not known): put its twin there
 * again. No replay has used the layout.
 */
void nt_graph_layout_set(const struct nt_graph_target *target, struct nt_layout *layout, CUgraphNode node,
			 const CUDA_KERNEL_NODE_PARAMS *parameters);
/* The same of all kernel nodes in a child graph, which got those of another graph. */
void nt_graph_layout_set_child(const struct nt_graph_target *target, struct nt_layout *layout, CUgraph child, CUgraph other);
/* The program has enabled or disabled a node. */
void nt_graph_layout_enable(struct nt_layout *layout, CUgraphNode node, bool is_enabled);

/* Whether replays need memory for maps: twins are in the executable graph, or with --memusage would be. */
bool nt_graph_layout_records(const struct nt_layout *layout);

/* Put the program's own launches back in the executable graph. */
void nt_graph_layout_restore(const struct nt_graph_target *target, struct nt_layout *layout);

/*
 * Put a node's own launch, or its twin with regions where they were, into the executable graph. False, with a note, if that
 * fails, or if the node cannot be named with certainty.
 */
bool nt_graph_layout_put_original(const struct nt_graph_target *target, struct nt_layout *layout, struct nt_graph_node *node);
bool nt_graph_layout_put_twin(const struct nt_graph_target *target, struct nt_layout *layout, struct nt_graph_node *node);

void nt_graph_layout_free(struct nt_layout *layout);

/*
 * Have the nodes of the executable graph run their twins of the set of probes in force, of that number; return the layout.
 * A twin that cannot be replaced stays, and is not recorded. NULL without memory.
 */
struct nt_layout *nt_graph_layout_for_set(const struct nt_graph_target *target, const struct nt_layout *from, uint32_t set);

/* Bytes that a replay's maps take at most with the set of probes in force. Calls no driver. */
uint64_t nt_graph_layout_size_now(const struct nt_graph_target *target, const struct nt_layout *layout);

#endif
