/* Bodies of conditional nodes: the graphs in these, which the driver names once, when the node is added. */
#ifndef NEUTRINO_GRAPH_BODIES_H
#define NEUTRINO_GRAPH_BODIES_H

#include <stddef.h>

#include "base/driver.h"

/* The program has added a conditional node to a graph; later its bodies are found by it. */
void nt_graph_bodies_add(CUgraphNode node, CUgraph graph, const CUgraphNodeParams *parameters);

/* Before a graph is destroyed: forget the bodies of its conditional nodes. */
void nt_graph_bodies_forget(CUgraph graph);

/* The index-th body of a conditional node, NULL after the last. */
CUgraph nt_graph_bodies_of(CUgraphNode node, size_t index);

#endif
