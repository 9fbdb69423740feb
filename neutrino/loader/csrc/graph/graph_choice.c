#include "graph/graph_choice.h"

#include "image/choice.h"
#include "memory/own_memory.h"

/*
 * Take the numbers of the launches of a graph's next replay (launch of a graph), and note in the layout (what its
 * kernel nodes run) which are chosen for probing (is_wanted). Returns whether any is, and whether that is as before.
 * Lock-free.
 */
enum nt_chosen nt_graph_choice_ask(struct nt_layout *layout)
{
	bool is_off = nt_choice_is_off(), is_any = false, is_as_before = true;

	for (size_t i = 0; i < layout->count; i++) {
		struct nt_graph_node *node = &layout->nodes[i];
		node->is_wanted = !node->is_left_out;
		/* These have no number. */
		if (node->is_disabled || node->reason == NEUTRINO_REASON_NOT_SELECTED)
			continue;
		node->is_wanted = !is_off && (!node->kernel || nt_choice_take(node->kernel));
		is_any |= node->is_wanted;
		is_as_before &= node->is_wanted != node->is_left_out;
	}
	if (!is_any)
		return NT_CHOSEN_NONE;
	return is_as_before ? NT_CHOSEN_AS_BEFORE : NT_CHOSEN_OTHERS;
}

/*
 * A copy of a graph's layout (what its kernel nodes run) that leaves out the launches that are not chosen now. NULL
 * without memory.
 */
struct nt_layout *nt_graph_choice_leave_out(const struct nt_layout *layout)
{
	struct nt_layout *ret = nt_graph_layout_copy(layout);

	if (!ret)
		return NULL;
	ret->probed = 0;
	for (size_t i = 0; i < ret->count; i++) {
		struct nt_graph_node *node = &ret->nodes[i];
		node->is_left_out = !node->is_wanted;
		ret->probed += node->reason == NEUTRINO_REASON_PROBED && !node->is_left_out;
	}
	return ret;
}

/*
 * Have the nodes that the layout (what its kernel nodes run) does not leave out run their twins (copies with probes),
 * or if not is_any none, and the others their originals. Without effect on launches of the graph before this. False if
 * a twin could not be put there.
 */
bool nt_graph_choice_swap(const struct nt_graph_target *target, struct nt_layout *layout, bool is_any)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool is_relaxed = false, is_complete = true;

	if (nt_own_memory_is_memusage)
		return true;
	for (size_t i = 0; i < layout->count; i++) {
		struct nt_graph_node *node = &layout->nodes[i];
		bool wants_twin = is_any && !node->is_left_out;
		if (node->reason != NEUTRINO_REASON_PROBED || wants_twin == node->has_twin)
			continue;
		if (!is_relaxed)
			nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
		is_relaxed = true;
		/* A twin that stays is launched with memory that nobody reads. */
		if (wants_twin)
			is_complete &= nt_graph_layout_put_twin(target, layout, node);
		else
			nt_graph_layout_put_original(target, layout, node);
	}
	if (is_relaxed)
		nt_driver.cuThreadExchangeStreamCaptureMode(&mode);
	return is_complete;
}

/*
 * A copy of a graph's layout (what its kernel nodes run) in which the nodes that have no twin (copy with probes),
 * though they should, run their originals for good. NULL without memory.
 */
struct nt_layout *nt_graph_choice_drop(const struct nt_layout *layout)
{
	struct nt_layout *ret = nt_graph_layout_copy(layout);

	for (size_t i = 0; ret && i < ret->count; i++) {
		struct nt_graph_node *node = &ret->nodes[i];
		if (node->reason != NEUTRINO_REASON_PROBED || node->is_left_out || node->has_twin)
			continue;
		node->reason = NEUTRINO_REASON_GRAPH;
		ret->probed--;
	}
	return ret;
}
