/* Events. */
#ifndef ED_EVENT_H
#define ED_EVENT_H

#include "queue.h"

/* One recording of an event: outlives the event while work refers to it. */
struct ed_mark {
	uint32_t holders;
	uint64_t done_ns;
	struct ed_moment moment;
};

struct ed_event {
	struct ed_object object;
	struct ed_context *context;
	unsigned flags;
	struct ed_mark *mark; /* NULL: not recorded */
	/* Of capture.c: the capture in which it was last recorded, 0 for none, and the nodes that it follows. */
	uint64_t capture_id;
	CUgraphNode *nodes;
	size_t node_count;
};

/* The moment of the event's last recording. */
struct ed_moment ed_event_moment(CUevent event);

/* Record the event on a queue, outside of captures. The arguments must have been checked. */
CUresult ed_event_record(CUevent event, struct ed_queue *queue);

void ed_mark_release(struct ed_mark *mark);
struct ed_mark *ed_mark_make(void);

/* Make a mark the event's. The event owns the caller's reference. */
void ed_event_set(CUevent event, struct ed_mark *mark);

void ed_event_forget_context(const struct ed_context *context);

#endif
