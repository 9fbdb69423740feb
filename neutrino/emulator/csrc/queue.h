/*
 * Work in order: what a stream is beneath its handle. A queue has a thread of its own, and numbers its items from 1, so
 * that (queue, number) stands for ever for the moment at which that item is done: queues are reused, numbers are not.
 */
#ifndef ED_QUEUE_H
#define ED_QUEUE_H

#include <pthread.h>

#include "abi.h"
#include "context.h"
#include "operation.h"

struct ed_capture;

struct ed_moment {
	struct ed_queue *queue; /* NULL: always past */
	uint64_t number;
};

struct ed_queue {
	pthread_mutex_t mutex;
	pthread_cond_t work, progress;
	struct ed_item *first, *last;
	uint64_t submitted, completed;
	uint64_t random;
	struct ed_context *context;
	struct ed_capture *capture; /* capture.c's */
	struct ed_queue *next_free, *next_of_all;
	pthread_t thread;
	bool started;
	bool in_use;	/* by a stream of that context */
	bool is_blocking; /* waits for the default stream and is waited for by it */
	bool is_legacy;
};

/* A queue for a new stream of the context; NULL without a thread or memory. */
struct ed_queue *ed_queue_take(struct ed_context *context, bool is_blocking, bool is_legacy);

/* Let a queue be reused. The items that are left on it still run. */
void ed_queue_give(struct ed_queue *queue);

/*
 * Append an operation, which the queue owns from now on. after: moments to wait for first, besides those that the
 * default stream's rules ask for. Returns the moment at which it is done; .queue is NULL without memory.
 */
struct ed_moment ed_queue_submit(struct ed_queue *queue, struct ed_operation *operation, const struct ed_moment *after,
				 size_t count);

/* The moment at which all items that are on it now have run. */
struct ed_moment ed_queue_end(struct ed_queue *queue);

bool ed_moment_is_past(struct ed_moment moment);
void ed_moment_wait(struct ed_moment moment);

/* The moments at which what is on the queues of a context now has run, at most most of them. Returns how many there are. */
#define ED_QUEUE_ENDS 1024
size_t ed_queue_ends(const struct ed_context *context, struct ed_moment *ret, size_t most);

/* Wait for all queues of a context, as they are now. */
void ed_queue_wait_all(const struct ed_context *context);

/* Wait for the context's default stream and all streams that it waits for. */
void ed_queue_wait_blocking(const struct ed_context *context);

/* Call each for every queue in use of the context; it must not submit. */
void ed_queue_each(const struct ed_context *context, void (*each)(struct ed_queue *, void *), void *argument);

#endif
