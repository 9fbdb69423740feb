#include "queue.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "apart.h"
#include "settings.h"

struct ed_item {
	struct ed_operation operation;
	struct ed_item *next;
	size_t count;
	struct ed_moment after[];
};

static pthread_mutex_t queues_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the lists of queues and their owners */
static struct ed_queue *all_queues, *free_queues;

/* Sleep up to the time that the test setting delay allows, so that tests see other orders of work. */
static void wait_a_random_time(struct ed_queue *queue)
{
	uint32_t max = ed_settings()->delay; /* microseconds */

	if (!max)
		return;
	/* xorshift64: https://www.jstatsoft.org/article/view/v008i14 */
	queue->random ^= queue->random << 13;
	queue->random ^= queue->random >> 7;
	queue->random ^= queue->random << 17;
	uint64_t time = (queue->random >> 16) % (max + 1) * 1000;
	nanosleep(&(struct timespec){(time_t)(time / 1000000000), (long)(time % 1000000000)}, NULL);
}

/* Wait for the moments that an item of a queue (a stream's work) must follow, run its operation, and free it. */
static void do_item(struct ed_queue *queue, struct ed_item *item)
{
	for (size_t i = 0; i < item->count; i++)
		ed_moment_wait(item->after[i]);
	wait_a_random_time(queue);
	/* After a fault nothing runs but callbacks, which get the fault. */
	if (!ed_device_fault() || item->operation.type == CU_GRAPH_NODE_TYPE_HOST)
		ed_operation_run(&item->operation);
	ed_operation_release(&item->operation);
	free(item);
}

/* Main function of a queue's thread: runs the queue's items in order, for as long as the process lives. */
static void *serve_queue(void *argument)
{
	struct ed_queue *queue = argument;

	pthread_mutex_lock(&queue->mutex);
	for (;;) {
		while (!queue->first)
			pthread_cond_wait(&queue->work, &queue->mutex);
		struct ed_item *item = queue->first;
		queue->first = item->next;
		pthread_mutex_unlock(&queue->mutex);
		do_item(queue, item);
		pthread_mutex_lock(&queue->mutex);
		__atomic_store_n(&queue->completed, queue->completed + 1, __ATOMIC_RELEASE);
		pthread_cond_broadcast(&queue->progress);
	}
	return NULL;
}

/*
 * Start the thread of a queue (a stream's work), with all signals blocked: they are for the program's own threads.
 * False if that fails.
 */
static bool start_thread(struct ed_queue *queue)
{
	sigset_t all, before;
	pthread_attr_t attributes;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	bool started = ed_apart_set_stack(&attributes) &&
		       pthread_create(&queue->thread, &attributes, serve_queue, queue) == 0;
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return started;
}

/* Whether all items of a queue (a stream's work) have run. */
static bool is_idle(const struct ed_queue *queue)
{
	return __atomic_load_n(&queue->completed, __ATOMIC_ACQUIRE) == __atomic_load_n(&queue->submitted, __ATOMIC_ACQUIRE);
}

/*
 * Make a queue (what a stream is beneath its handle), without its thread; NULL without memory. Queues are reused, never
 * freed. With queues_mutex held.
 */
static struct ed_queue *make_queue(void)
{
	static uint64_t made;
	struct ed_queue *queue = calloc(1, sizeof(*queue));

	if (!queue)
		return NULL;
	pthread_mutex_init(&queue->mutex, NULL);
	pthread_cond_init(&queue->work, NULL);
	pthread_cond_init(&queue->progress, NULL);
	/* Never 0: xorshift would stay at 0. */
	queue->random = (strtoull(ed_settings()->seed, NULL, 0) + ++made) * UINT64_C(0x9e3779b97f4a7c15) | 1;
	queue->next_of_all = all_queues;
	all_queues = queue;
	return queue;
}

/*
 * Get a queue for a stream: an idle one whose stream has gone, or a new one. is_blocking: it synchronizes with the
 * context's default stream; is_legacy: it is that stream's. NULL without a thread or memory.
 */
struct ed_queue *ed_queue_take(struct ed_context *context, bool is_blocking, bool is_legacy)
{
	pthread_mutex_lock(&queues_mutex);
	/* Only an idle one: work of the former stream may wait for work of the new one. */
	struct ed_queue **link = &free_queues;
	while (*link && !is_idle(*link))
		link = &(*link)->next_free;
	struct ed_queue *queue = *link;
	if (queue)
		*link = queue->next_free;
	else
		queue = make_queue();
	if (queue && !queue->started) {
		queue->started = start_thread(queue);
		if (!queue->started) {
			queue->next_free = free_queues;
			free_queues = queue;
			queue = NULL;
		}
	}
	if (queue) {
		queue->context = context;
		queue->is_blocking = is_blocking;
		queue->is_legacy = is_legacy;
		queue->in_use = true;
	}
	pthread_mutex_unlock(&queues_mutex);
	return queue;
}

/* Let a queue (a stream's work) be reused, as its stream is gone. Its items still run. */
void ed_queue_give(struct ed_queue *queue)
{
	pthread_mutex_lock(&queues_mutex);
	queue->in_use = false;
	queue->next_free = free_queues;
	free_queues = queue;
	pthread_mutex_unlock(&queues_mutex);
}

/* The moment (a point in a queue's work) at which all items that are on the queue now have run. */
struct ed_moment ed_queue_end(struct ed_queue *queue)
{
	return (struct ed_moment){queue, __atomic_load_n(&queue->submitted, __ATOMIC_ACQUIRE)};
}

/* Whether the item of a queue (a stream's work) that a moment stands for has run; a moment of no queue is past. */
bool ed_moment_is_past(struct ed_moment moment)
{
	return !moment.queue || __atomic_load_n(&moment.queue->completed, __ATOMIC_ACQUIRE) >= moment.number;
}

/* Wait until the work up to a moment (a point in a queue, that is in a stream's work) has run. */
void ed_moment_wait(struct ed_moment moment)
{
	if (ed_moment_is_past(moment))
		return;
	pthread_mutex_lock(&moment.queue->mutex);
	while (moment.queue->completed < moment.number)
		pthread_cond_wait(&moment.queue->progress, &moment.queue->mutex);
	pthread_mutex_unlock(&moment.queue->mutex);
}

/*
 * The moments that new work on a queue must follow by the rules of the default stream: its work waits for all work on
 * the context's blocking streams, and theirs for its. Queues whose stream is gone count too. ret: room for `most`
 * moments, at least 1. Returns how many there are; those that have passed are left out.
 */
static size_t rule_moments(const struct ed_queue *queue, struct ed_moment *ret, size_t most)
{
	size_t count = 0;

	if (!queue->is_blocking)
		return 0;
	if (!queue->is_legacy) {
		ret[0] = ed_queue_end(queue->context->legacy);
		return !ed_moment_is_past(ret[0]);
	}
	pthread_mutex_lock(&queues_mutex);
	for (struct ed_queue *other = all_queues; other && count < most; other = other->next_of_all) {
		if (other == queue || other->context != queue->context || !other->is_blocking)
			continue;
		ret[count] = ed_queue_end(other);
		count += !ed_moment_is_past(ret[count]);
	}
	pthread_mutex_unlock(&queues_mutex);
	return count;
}

/*
 * Append an operation to a queue (a stream's work), which owns it from then on, to run after `count` moments (points in
 * queues) and what the default stream's rules ask for. Returns the moment at which it has run; .queue is NULL without
 * memory.
 */
struct ed_moment ed_queue_submit(struct ed_queue *queue, struct ed_operation *operation, const struct ed_moment *after,
				 size_t count)
{
	struct ed_moment rules[1024];
	size_t rule_count = rule_moments(queue, rules, sizeof(rules) / sizeof(rules[0]));
	struct ed_item *item = malloc(sizeof(*item) + (count + rule_count) * sizeof(item->after[0]));

	if (!item) {
		ed_operation_release(operation);
		return (struct ed_moment){0};
	}
	item->operation = *operation;
	item->next = NULL;
	item->count = count + rule_count;
	if (count)
		memcpy(item->after, after, count * sizeof(*after));
	memcpy(item->after + count, rules, rule_count * sizeof(rules[0]));
	pthread_mutex_lock(&queue->mutex);
	if (queue->first)
		queue->last->next = item;
	else
		queue->first = item;
	queue->last = item;
	struct ed_moment moment = {queue, queue->submitted + 1};
	__atomic_store_n(&queue->submitted, moment.number, __ATOMIC_RELEASE);
	pthread_cond_signal(&queue->work);
	pthread_mutex_unlock(&queue->mutex);
	return moment;
}

/*
 * The moments at which what is on the queues of a context now has run, of all of them or of those of blocking streams.
 * Returns how many, at most `most`.
 */
static size_t ends_of(const struct ed_context *context, bool only_blocking, struct ed_moment *ret, size_t most)
{
	size_t count = 0;

	pthread_mutex_lock(&queues_mutex);
	for (struct ed_queue *queue = all_queues; queue && count < most; queue = queue->next_of_all)
		if (queue->context == context && (queue->is_blocking || !only_blocking)) {
			ret[count] = ed_queue_end(queue);
			count += !ed_moment_is_past(ret[count]);
		}
	pthread_mutex_unlock(&queues_mutex);
	return count;
}

/* The moments at which what is on all queues of a context now has run. Returns how many, at most `most`. */
size_t ed_queue_ends(const struct ed_context *context, struct ed_moment *ret, size_t most)
{
	return ends_of(context, false, ret, most);
}

/* Wait for what is on the queues of a context now; on all of them, or on those of blocking streams. */
static void wait_for_queues(const struct ed_context *context, bool only_blocking)
{
	struct ed_moment moments[ED_QUEUE_ENDS];
	size_t count = ends_of(context, only_blocking, moments, ED_QUEUE_ENDS);

	for (size_t i = 0; i < count; i++)
		ed_moment_wait(moments[i]);
}

/* Wait for all work that a context has been given so far. */
void ed_queue_wait_all(const struct ed_context *context)
{
	wait_for_queues(context, false);
}

/* Wait for what is on the context's default stream, and on all streams that it synchronizes with. */
void ed_queue_wait_blocking(const struct ed_context *context)
{
	wait_for_queues(context, true);
}

/* Call each() for every queue of a context that a stream uses. It must not submit work. */
void ed_queue_each(const struct ed_context *context, void (*each)(struct ed_queue *, void *), void *argument)
{
	pthread_mutex_lock(&queues_mutex);
	for (struct ed_queue *queue = all_queues; queue; queue = queue->next_of_all)
		if (queue->context == context && queue->in_use)
			each(queue, argument);
	pthread_mutex_unlock(&queues_mutex);
}
