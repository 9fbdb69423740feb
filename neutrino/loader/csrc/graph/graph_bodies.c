#include "graph/graph_bodies.h"

#include <pthread.h>
#include <string.h>

#include "base/lock.h"
#include "base/memory.h"

/* The driver names them once, when the node is added. */
struct bodies {
	CUgraphNode node;
	CUgraph graph; /* that the node is in */
	size_t count;
	struct bodies *next;
	CUgraph graphs[];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct bodies *all_bodies;

/*
 * The program has added a conditional node to a graph: note the graphs in it (its bodies), by which their kernels are
 * found later. Without memory these run unprobed.
 */
void nt_graph_bodies_add(CUgraphNode node, CUgraph graph, const CUgraphNodeParams *parameters)
{
	size_t count = parameters->conditional.size;
	struct bodies *bodies;

	if (!parameters->conditional.phGraph_out || !(bodies = nt_memory_alloc(sizeof(*bodies) + count * sizeof(CUgraph))))
		return;
	*bodies = (struct bodies){.node = node, .graph = graph, .count = count};
	memcpy(bodies->graphs, parameters->conditional.phGraph_out, count * sizeof(CUgraph));
	nt_lock_take(&mutex);
	bodies->next = all_bodies;
	all_bodies = bodies;
	nt_lock_release(&mutex);
}

/* Forget the bodies of all conditional nodes in a graph, and in these bodies. Under the mutex. */
static void forget_bodies(CUgraph graph)
{
	for (struct bodies **link = &all_bodies; *link;) {
		struct bodies *bodies = *link;
		if (bodies->graph != graph) {
			link = &bodies->next;
			continue;
		}
		*link = bodies->next;
		for (size_t i = 0; i < bodies->count; i++)
			forget_bodies(bodies->graphs[i]);
		nt_memory_free(bodies);
		link = &all_bodies; /* the calls have changed the list */
	}
}

/* Before the program destroys a graph: forget the bodies of its conditional nodes. */
void nt_graph_bodies_forget(CUgraph graph)
{
	nt_lock_take(&mutex);
	forget_bodies(graph);
	nt_lock_release(&mutex);
}

/* The index-th body of a conditional node, NULL after the last. */
CUgraph nt_graph_bodies_of(CUgraphNode node, size_t index)
{
	CUgraph ret = NULL;

	nt_lock_take(&mutex);
	for (const struct bodies *bodies = all_bodies; bodies && !ret; bodies = bodies->next)
		if (bodies->node == node && index < bodies->count)
			ret = bodies->graphs[index];
	nt_lock_release(&mutex);
	return ret;
}
