#include "graph/graph_exec.h"

#include <pthread.h>
#include <stddef.h>

#include "base/lock.h"
#include "base/memory.h"
#include "base/mode.h"
#include "base/settings.h"
#include "graph/graph_bodies.h"
#include "image/choice.h"
#include "launch/launch.h"
#include "trace/trace.h"

/* Guards the lists, and changes of the table. Never held across a call of the driver. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nt_handles exec_table;
static struct nt_graph_exec *execs;
static struct nt_layout *layouts; /* all that are not freed */

/*
 * The record of an executable graph by the driver's handle; NULL if it is not known. In a reading section (what is
 * found in it is not freed).
 */
struct nt_graph_exec *nt_graph_exec_find(CUgraphExec handle)
{
	return handle ? nt_handles_find(&exec_table, handle) : NULL;
}

/* Write the event that says what an executable graph runs. */
void nt_graph_exec_log(const struct nt_layout *layout)
{
	struct nt_event event;
	uint64_t by_reason[NEUTRINO_REASON_SLOTS] = {0};
	static const char *const words[] = {NEUTRINO_REASON_WORDS};

	for (size_t i = 0; i < layout->count; i++)
		by_reason[layout->nodes[i].reason]++;
	nt_event_begin(&event, "graph");
	nt_event_number(&event, "id", layout->graph);
	nt_event_number(&event, "kernels", layout->count);
	nt_event_number(&event, "bytes", layout->size);
	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (by_reason[i])
			nt_event_number(&event, words[i], by_reason[i]);
	nt_lines_event(&event);
}

/*
 * Give an executable graph a new layout (what its kernel nodes run, and where their results go) in place of its present
 * one, which is freed once its replays (launches) are done.
 */
void nt_graph_exec_use(struct nt_graph_exec *exec, struct nt_layout *layout)
{
	nt_lock_take(&mutex);
	if (exec->layout)
		__atomic_store_n(&exec->layout->is_retired, 1, __ATOMIC_RELEASE);
	layout->next = layouts;
	layouts = layout;
	exec->layout = layout;
	nt_lock_release(&mutex);
}

/*
 * Put the original kernels back into an executable graph for good, because its replays (launches) cannot be recorded.
 */
void nt_graph_exec_put_originals_back(struct nt_graph_exec *exec)
{
	struct nt_layout *layout = nt_graph_layout_copy(exec->layout);

	if (layout) {
		nt_graph_layout_restore(&exec->target, layout);
		nt_graph_exec_use(exec, layout);
	}
}

/* Free the record of an executable graph, once no reader can have it any more: nt_grace_retire calls it. */
static void release_exec(struct nt_retired *record)
{
	nt_memory_free((char *)record - offsetof(struct nt_graph_exec, retired));
}

/* List an executable graph; false without memory. */
bool nt_graph_exec_add(struct nt_graph_exec *exec)
{
	nt_lock_take(&mutex);
	bool is_added = nt_handles_put(&exec_table, &exec->handle);
	if (is_added) {
		exec->next = execs;
		execs = exec;
	}
	nt_lock_release(&mutex);
	return is_added;
}

/*
 * Take an executable graph out of the list and the table; it is freed once no thread can be using it. Under the lock.
 */
static void remove_exec(struct nt_graph_exec *exec)
{
	for (struct nt_graph_exec **link = &execs; *link; link = &(*link)->next)
		if (*link == exec) {
			*link = exec->next;
			break;
		}
	nt_handles_remove(&exec_table, &exec->handle);
	__atomic_store_n(&exec->layout->is_retired, 1, __ATOMIC_RELEASE);
	nt_grace_retire(&exec->retired, release_exec);
}

/*
 * Another executable graph that was made of the same graph as one that ends takes over that graph, which the program has
 * destroyed: returns it if there is none, so that it is to be destroyed now; else NULL. Under the lock.
 */
static CUgraph hand_source_on(struct nt_graph_exec *gone)
{
	if (!gone->has_source)
		return NULL;
	gone->has_source = false;
	for (struct nt_graph_exec *exec = execs; exec; exec = exec->next)
		if (exec->source == gone->source && exec != gone) {
			exec->has_source = true;
			return NULL;
		}
	return gone->source;
}

/* Before the program destroys an executable graph: forget it. */
void nt_graph_exec_ends(CUgraphExec handle)
{
	uint32_t *reading = nt_grace_reading_begin();
	struct nt_graph_exec *exec = nt_graph_exec_find(handle);

	if (exec) {
		nt_lock_take(&mutex);
		remove_exec(exec);
		CUgraph source = hand_source_on(exec);
		nt_lock_release(&mutex);
		if (exec->event)
			nt_driver.cuEventDestroy_v2(exec->event);
		if (source)
			nt_driver.cuGraphDestroy(source);
	}
	nt_grace_reading_end(reading);
}

/* Whether nodes of executable graphs get twins (copies with probes) and originals, or other twins, by turns. */
static bool may_change(void)
{
	return nt_settings()->asks_again || nt_choice_is_by_launch();
}

/*
 * The program destroys a graph. One of whose nodes name those of an executable graph that may change is destroyed with
 * that, since its nodes must be there then: what the program's call returns is in *result then, and the result is true.
 * Else it is to be destroyed by the driver now.
 */
bool nt_graph_exec_keeps(CUgraph graph, CUresult *result)
{
	struct nt_graph_exec *owner = NULL;

	nt_graph_bodies_forget(graph);
	if (nt_mode_of_process() != NT_TRACING || !may_change())
		return false;
	nt_lock_take(&mutex);
	for (struct nt_graph_exec *exec = execs; exec; exec = exec->next)
		if (exec->source == graph && (!owner || exec->has_source))
			owner = exec;
	if (owner)
		*result = owner->has_source ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	if (owner)
		owner->has_source = true;
	nt_lock_release(&mutex);
	return owner;
}

/* A context is destroyed: forget the executable graphs in it, and their device memory. */
void nt_graph_exec_context_ends(CUcontext context)
{
	nt_lock_take(&mutex);
	for (struct nt_graph_exec *exec = execs, *next; exec; exec = next) {
		next = exec->next;
		if (exec->target.context == context)
			remove_exec(exec);
	}
	nt_lock_release(&mutex);
	nt_graph_memory_forget(context);
}

/* Add what each executable graph needs with the set of probes in force to rows, one for each context; how many there are. */
unsigned nt_graph_exec_needs(struct nt_graph_need *ret, unsigned most)
{
	unsigned count = 0;

	nt_lock_take(&mutex);
	for (struct nt_graph_exec *exec = execs; exec; exec = exec->next) {
		uint64_t size = exec->target.refusal ? 0 : nt_graph_layout_size_now(&exec->target, exec->layout);
		unsigned row = 0;
		while (row < count && ret[row].context != exec->target.context)
			row++;
		if (!size || row == most)
			continue;
		if (row == count)
			ret[count++] = (struct nt_graph_need){exec->target.context, 0};
		if (ret[row].size < size)
			ret[row].size = size;
	}
	nt_lock_release(&mutex);
	return count;
}

/*
 * Count the launches of a layout's kernels in those of so many replays of one sort that are not counted yet. reason:
 * PROBED, or why no twin (copy with probes) of the layout ran, or was recorded, in them.
 */
static void count_replays(const struct nt_layout *layout, const uint64_t *replays, uint64_t *counted,
			  enum neutrino_reason reason)
{
	uint64_t now = __atomic_load_n(replays, __ATOMIC_ACQUIRE), added = now - *counted;

	*counted = now;
	if (!added)
		return;
	for (size_t i = 0; i < layout->count; i++) {
		const struct nt_graph_node *node = &layout->nodes[i];
		if (node->is_disabled)
			continue;
		bool is_chosen = !node->is_left_out && reason != NEUTRINO_REASON_NOT_SELECTED;
		if (!node->kernel)
			nt_launch_unknown(added, is_chosen);
		else if (!is_chosen)
			nt_counters_count_many(node->kernel->id, NEUTRINO_REASON_NOT_SELECTED, added);
		else
			nt_counters_count_many(node->kernel->id, node->reason ? node->reason : reason, added);
	}
}

/*
 * Bring the trace's launch counters up to date with the replays (launches) of graphs so far, and free layouts (what
 * graphs' nodes run) that are no longer used. By the drain thread (it fetches results) from time to time, and at the
 * end.
 */
void nt_graph_exec_count_all(void)
{
	nt_lock_take(&mutex);
	for (struct nt_layout **link = &layouts; *link;) {
		struct nt_layout *layout = *link;
		bool is_retired = __atomic_load_n(&layout->is_retired, __ATOMIC_ACQUIRE) &&
				  !__atomic_load_n(&layout->in_flight, __ATOMIC_ACQUIRE);
		count_replays(layout, &layout->replays, &layout->counted, NEUTRINO_REASON_PROBED);
		count_replays(layout, &layout->replays_full, &layout->counted_full, NEUTRINO_REASON_POOL_FULL);
		count_replays(layout, &layout->replays_left_out, &layout->counted_left_out, NEUTRINO_REASON_NOT_SELECTED);
		if (!is_retired) {
			link = &layout->next;
			continue;
		}
		*link = layout->next;
		nt_graph_layout_free(layout);
	}
	nt_lock_release(&mutex);
}
