/* The records of executable graphs: their list, their layouts, their ends, and what is counted of them. */
#ifndef NEUTRINO_GRAPH_EXEC_H
#define NEUTRINO_GRAPH_EXEC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/driver.h"
#include "base/grace.h"
#include "base/handles.h"
#include "graph/graph_layout.h"
#include "graph/graph_memory.h"

/* An executable graph of the program. */
struct nt_graph_exec {
	struct nt_handle handle;
	struct nt_retired retired;
	struct nt_graph_memory *memory;
	struct nt_graph_target target;
	struct nt_layout *layout;
	CUgraph source;	 /* that it was made of */
	bool has_source; /* the program has destroyed that; it lasts as long as this, since its nodes name ours */
	uint64_t last_stream; /* id of the stream of the last replay; 0: not known */
	bool has_run;	      /* there was a replay */
	bool is_recorded;     /* event follows the last one */
	CUevent event;
	struct nt_graph_exec *next;
};

/*
 * The record of an executable graph by the driver's handle; NULL if it is not known. In a reading section. Lock-free.
 */
struct nt_graph_exec *nt_graph_exec_find(CUgraphExec handle);

/* List one that was made. False without memory: then it is not. */
bool nt_graph_exec_add(struct nt_graph_exec *exec);

/* Give it a new layout in place of the present one, which is freed once its replays are done. */
void nt_graph_exec_use(struct nt_graph_exec *exec, struct nt_layout *layout);

/* Put its original kernels back for good, because replays cannot be recorded. */
void nt_graph_exec_put_originals_back(struct nt_graph_exec *exec);

/* Write the event that says what it runs. */
void nt_graph_exec_log(const struct nt_layout *layout);

/* Before the driver's call that destroys it. */
void nt_graph_exec_ends(CUgraphExec handle);

/* In place of the driver's call, with its result, if the graph is to last as long as an executable graph; else false. */
bool nt_graph_exec_keeps(CUgraph graph, CUresult *result);

/* A context is destroyed: forget those in it, and their device memory. */
void nt_graph_exec_context_ends(CUcontext context);

/* Device memory that those in a context need in front of their next replays. */
struct nt_graph_need {
	CUcontext context;
	uint64_t size; /* bytes of the largest */
};

/* What they need with the set of probes in force, in rows, one for each context; how many there are. */
unsigned nt_graph_exec_needs(struct nt_graph_need *ret, unsigned most);

/*
 * Bring the trace's counters up to date with the replays so far, and free what is no longer used. Called by the drain
 * thread from time to time, and at the end.
 */
void nt_graph_exec_count_all(void);

#endif
