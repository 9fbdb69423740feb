/*
 * The choice of launches in graphs. It is made for each kernel node of each replay; where it differs from that of the
 * replay before, nodes get their twins or their originals again. All functions run in the thread that launches the graph.
 */
#ifndef NEUTRINO_GRAPH_CHOICE_H
#define NEUTRINO_GRAPH_CHOICE_H

#include "graph/graph_layout.h"

enum nt_chosen {
	NT_CHOSEN_NONE,
	NT_CHOSEN_AS_BEFORE, /* just what the layout does not leave out */
	NT_CHOSEN_OTHERS,
};

/* Take the numbers of the launches of the next replay, and note in the layout which are chosen. Lock-free. */
enum nt_chosen nt_graph_choice_ask(struct nt_layout *layout);

/* A copy that leaves out what is noted as not chosen. NULL without memory. */
struct nt_layout *nt_graph_choice_leave_out(const struct nt_layout *layout);

/*
 * Have the nodes that the layout does not leave out run their twins, or if not is_any none, and the others their originals.
 * Without effect on replays that were launched before. False if a twin could not be put there.
 */
bool nt_graph_choice_swap(const struct nt_graph_target *target, struct nt_layout *layout, bool is_any);

/* A copy in which the nodes that nt_graph_choice_swap has failed for run their originals for good. NULL without memory. */
struct nt_layout *nt_graph_choice_drop(const struct nt_layout *layout);

#endif
