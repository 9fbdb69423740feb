/*
 * Executable graphs. The program's graph is left as it is. In the executable graph the kernel nodes run twins, whose
 * probe blocks name a cell in device memory. Each replay gets memory for the maps of all its kernels together, and the
 * cell is written, in the stream, before the graph is launched; so replays that are queued have memory of their own.
 */
#ifndef NEUTRINO_GRAPH_H
#define NEUTRINO_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/driver.h"

/* After the driver's call. flags: of the instantiation. */
void nt_graph_instantiated(CUgraphExec exec, CUgraph graph, uint64_t flags);
void nt_graph_updated(CUgraphExec exec, CUgraph graph);
/* parameters: CUDA_KERNEL_NODE_PARAMS, with is_v2 its second version. */
void nt_graph_node_set(CUgraphExec exec, CUgraphNode node, const void *parameters, bool is_v2);
void nt_graph_any_node_set(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *parameters);
void nt_graph_child_set(CUgraphExec exec, CUgraphNode node, CUgraph child);
void nt_graph_node_enabled(CUgraphExec exec, CUgraphNode node, unsigned enabled);
void nt_graph_node_added(CUgraphNode node, CUgraph graph, const CUgraphNodeParams *parameters);

/* After a change of the set of probes: have device memory for the next replays. Not on the launch path. */
void nt_graph_expect_set(void);

#endif
