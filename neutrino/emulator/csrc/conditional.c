#include "conditional.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "region.h"

enum { /* CUgraphConditionalNodeType */
	IF = 0,
	WHILE = 1,
	SWITCH = 2,
};

#define ASSIGN_DEFAULT 1u /* CU_GRAPH_COND_ASSIGN_DEFAULT */
#define MOST_BODIES 1024u

/* CUDA_CONDITIONAL_NODE_PARAMS */
struct parameters {
	uint64_t handle;
	int type;
	uint32_t size;
	CUgraph *bodies;
	CUcontext context;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the list of all */
static struct ed_condition *all;

/* One more holder of a condition (the value of a conditional node): a node or a plan (an executable graph's steps). */
void ed_condition_hold(struct ed_condition *condition)
{
	__atomic_add_fetch(&condition->holders, 1, __ATOMIC_ACQ_REL);
}

/* Give up a hold on a condition (the value of a conditional node): the last one frees it with its device memory. */
void ed_condition_release(struct ed_condition *condition)
{
	pthread_mutex_lock(&mutex);
	bool is_last = !__atomic_sub_fetch(&condition->holders, 1, __ATOMIC_ACQ_REL);
	for (struct ed_condition **link = &all; is_last && *link; link = &(*link)->next)
		if (*link == condition) {
			*link = condition->next;
			break;
		}
	pthread_mutex_unlock(&mutex);
	if (!is_last)
		return;
	ed_memory_free_now(condition->address);
	free(condition);
}

/*
 * A graph is destroyed: free the conditions (a conditional node's value) that were made for it, as far as nothing else
 * holds them.
 */
void ed_condition_forget_graph(CUgraph graph)
{
	while (graph->conditions) {
		struct ed_condition *condition = graph->conditions;
		graph->conditions = condition->next_of_graph;
		ed_condition_release(condition);
	}
}

/* Whether a node uses each condition (a conditional node's value) that was made for the graph. */
bool ed_condition_are_used(const struct ed_graph *graph)
{
	for (const struct ed_condition *condition = graph->conditions; condition; condition = condition->next_of_graph)
		if (!condition->is_used)
			return false;
	return true;
}

/*
 * Make a condition (a value in device memory that kernels set, and by which a conditional node runs its bodies) for a
 * graph. *ret gets its handle, which is its address.
 */
static CUresult make_condition(uint64_t *ret, CUgraph graph, CUcontext handle, uint32_t default_value, unsigned flags)
{
	struct ed_context *context;

	/* The word belongs to no context, since it goes with the graph. */
	if (!ret || !ed_object_check(graph, ED_GRAPH) || flags > ASSIGN_DEFAULT)
		return CUDA_ERROR_INVALID_VALUE;
	/* The current context is not taken for NULL here. */
	CUresult result = handle ? ed_context_of(handle, &context) : CUDA_ERROR_INVALID_CONTEXT;
	if (result)
		return result;
	struct ed_condition *condition = calloc(1, sizeof(*condition));
	if (condition)
		condition->address = ed_region_take(&ed_device_region, sizeof(uint32_t),
						    (struct ed_piece){.sort = DEVICE});
	if (!condition || !condition->address) {
		free(condition);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memset(ed_memory_here(condition->address), 0, sizeof(uint32_t));
	condition->holders = 1;
	condition->has_default = flags & ASSIGN_DEFAULT;
	condition->default_value = default_value;
	condition->next_of_graph = graph->conditions;
	graph->conditions = condition;
	pthread_mutex_lock(&mutex);
	condition->next = all;
	all = condition;
	pthread_mutex_unlock(&mutex);
	*ret = condition->address;
	return CUDA_SUCCESS;
}

/*
 * Emulated CUDA driver call: make the handle of a condition (a value in device memory that kernels set, and by which a
 * conditional node runs its bodies). value: what it is set to at each launch, with flag 1.
 */
API cuGraphConditionalHandleCreate(uint64_t *handle, CUgraph graph, CUcontext context, unsigned int value,
				   unsigned int flags)
{
	ENTER_OR_RETURN();
	return make_condition(handle, graph, context, value, flags);
}

/* --- nodes --- */

/*
 * Take the condition (a conditional node's value) of a handle for a node, with a hold. NULL if there is none, or
 * another node has it.
 */
static struct ed_condition *take_condition(uint64_t handle)
{
	pthread_mutex_lock(&mutex);
	struct ed_condition *condition = all;
	while (condition && condition->address != handle)
		condition = condition->next;
	if (condition && condition->is_used)
		condition = NULL;
	if (condition) {
		condition->is_used = true;
		ed_condition_hold(condition);
	}
	pthread_mutex_unlock(&mutex);
	return condition;
}

/* Whether a conditional node of a type (IF, WHILE, SWITCH) can have that many bodies. */
static bool is_size(int type, uint32_t size)
{
	return type == IF ? size == 1 || size == 2 : type == WHILE ? size == 1 : type == SWITCH && size && size <= MOST_BODIES;
}

/* Make `size` empty graphs, a conditional node's bodies; an array of the caller's. NULL without memory. */
static CUgraph *make_bodies(uint32_t size)
{
	CUgraph *bodies = calloc(size, sizeof(CUgraph));

	for (uint32_t i = 0; bodies && i < size; i++) {
		bodies[i] = ed_graph_make();
		if (bodies[i]) {
			bodies[i]->is_child = true;
			continue;
		}
		while (i)
			ed_graph_destroy(bodies[--i]);
		free(bodies);
		return NULL;
	}
	return bodies;
}

/*
 * Add a conditional node to a graph at a place. given: CUDA_CONDITIONAL_NODE_PARAMS, in which the bodies' graphs are
 * returned for the program to fill.
 */
CUresult ed_graph_add_conditional(const struct ed_place *place, void *given)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
	struct parameters parameters;

	CUresult result = ed_graph_check_place(place->ret, place->graph, place->dependencies, place->count);
	memcpy(&parameters, given, sizeof(parameters));
	if (!result && !is_size(parameters.type, parameters.size))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = ed_context_of(parameters.context, &operation.context);
	if (result)
		return result;
	operation.conditional.condition = take_condition(parameters.handle);
	if (!operation.conditional.condition)
		return CUDA_ERROR_INVALID_VALUE;
	operation.conditional.type = parameters.type;
	operation.conditional.size = parameters.size;
	CUgraph *bodies = make_bodies(parameters.size);
	result = bodies ? ed_graph_add_operation(place, &operation) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result) {
		for (uint32_t i = 0; bodies && i < parameters.size; i++)
			ed_graph_destroy(bodies[i]);
		if (!bodies)
			ed_operation_release(&operation);
		free(bodies);
		return result;
	}
	(*place->ret)->bodies = bodies;
	memcpy((char *)given + offsetof(struct parameters, bodies), &bodies, sizeof(bodies));
	return CUDA_SUCCESS;
}

/* --- running --- */

/* Where this process has a condition (a conditional node's value in device memory) mapped. */
static uint32_t *value_of(const struct ed_condition *condition)
{
	return (uint32_t *)(void *)ed_memory_here(condition->address);
}

/*
 * A plan (executable graph) is launched: give its conditions, also in child graphs and bodies, their values at launch.
 */
void ed_condition_begin(const struct ed_plan *plan)
{
	for (size_t i = 0; i < plan->count; i++) {
		const struct ed_operation *operation = &plan->steps[i].operation;
		if (operation->type == CU_GRAPH_NODE_TYPE_GRAPH)
			ed_condition_begin(operation->plan);
		if (operation->type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
			continue;
		const struct ed_condition *condition = operation->conditional.condition;
		if (condition->has_default)
			__atomic_store_n(value_of(condition), condition->default_value, __ATOMIC_RELEASE);
		for (uint32_t j = 0; j < operation->conditional.size; j++)
			ed_condition_begin(operation->conditional.bodies[j]);
	}
}

/*
 * Run the bodies (graphs) of a conditional node, as its condition (a value that kernels set) says: one of them, or of a
 * WHILE node the only one again and again. The device's error if one fails.
 */
CUresult ed_condition_run(const struct ed_operation *operation)
{
	struct ed_plan *const *bodies = operation->conditional.bodies;
	uint32_t *value = value_of(operation->conditional.condition), now;
	CUresult result = CUDA_SUCCESS;

	switch (operation->conditional.type) {
	case WHILE:
		while (!result && __atomic_load_n(value, __ATOMIC_ACQUIRE))
			result = ed_plan_run(bodies[0]);
		return result;
	case IF:
		now = __atomic_load_n(value, __ATOMIC_ACQUIRE) ? 0 : 1;
		break;
	default:
		now = __atomic_load_n(value, __ATOMIC_ACQUIRE);
		break;
	}
	return now < operation->conditional.size ? ed_plan_run(bodies[now]) : CUDA_SUCCESS;
}
