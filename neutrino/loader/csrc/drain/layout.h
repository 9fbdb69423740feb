/*
 * What a replay of an executable graph runs, and where the maps of its kernels lie: graph/graph_layout.c makes it, and the
 * drain thread writes by it what a replay recorded.
 */
#ifndef NEUTRINO_REPLAY_LAYOUT_H
#define NEUTRINO_REPLAY_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/driver.h"
#include "base/kernel.h"

/* A kernel node. */
struct nt_graph_node {
	CUgraphNode node;	  /* of the program's graph */
	struct nt_kernel *kernel; /* NULL: of a function that the hook never saw obtained */
	enum neutrino_reason reason;	  /* PROBED: its twin runs; else why the original does */
	bool may_repeat;	  /* in the body of a conditional node */
	bool is_disabled;	  /* by the program: neither runs */
	bool is_left_out; /* its launches are not chosen: the original runs, though it has a twin */
	bool is_wanted;	  /* graph_choice.c's: its launch in the replay under way is chosen */
	bool has_twin;	  /* the executable graph has its twin now */
	bool is_paired; /* node is known to name it, and to take changes; not after an update, where its place is taken */
	uint32_t grid[3];
	uint32_t block[3];
	uint32_t shared; /* bytes of dynamic shared memory */
	uint32_t variant;
	uint32_t log_units;
	uint64_t offset; /* of its maps' regions, in bytes from where the replay's memory begins */
	uint64_t size;
	uint64_t room; /* bytes from offset on that are this node's, and may be more than it needs now */
	/* The program's own launch, to put it back: the function, and the parameters in one buffer. */
	CUfunction function;
	CUkernel kern; /* NULL: the node names the function; else this instead */
	uint8_t *packed;
	size_t packed_size;
};

/*
 * Not changed after the first replay, except for the counters and what the thread that launches has for itself: is_wanted,
 * has_twin, is_paired and twins.
 */
struct nt_layout {
	uint32_t graph;	 /* id of the executable graph in the trace */
	uint32_t set;	 /* number of the probes that its twins have (image/sets.h) */
	uint32_t probed; /* nodes whose twins run and are recorded */
	uint32_t twins;	 /* nodes that have their twin now */
	uint64_t size;	 /* bytes of a replay's memory */
	size_t count;
	size_t capacity;
	struct nt_graph_node *nodes;
	uint64_t replays;	   /* that had memory */
	uint64_t replays_full;	   /* that had none */
	uint64_t replays_left_out; /* none of whose launches was chosen */
	uint64_t counted;	   /* of replays, those that are in the trace's counters */
	uint64_t counted_full;
	uint64_t counted_left_out;
	uint32_t in_flight; /* replays that the drain thread has not seen yet */
	int is_retired;	    /* no replay comes any more */
	struct nt_layout *next;
};

#endif
