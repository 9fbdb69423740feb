#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "settings.h"

/* One more reference to a plan (the steps of an executable graph). */
void ed_plan_hold(struct ed_plan *plan)
{
	__atomic_add_fetch(&plan->holders, 1, __ATOMIC_ACQ_REL);
}

/* Give up a reference to a plan (the steps of an executable graph); the last one frees it. NULL is ignored. */
void ed_plan_release(struct ed_plan *plan)
{
	if (!plan || __atomic_sub_fetch(&plan->holders, 1, __ATOMIC_ACQ_REL))
		return;
	for (size_t i = 0; i < plan->count; i++) {
		ed_operation_release(&plan->steps[i].operation);
		free(plan->steps[i].after);
	}
	free(plan);
}

/*
 * Make the plans of a conditional node's bodies, for its operation. False without memory, and the operation is
 * released.
 */
static bool make_bodies(CUgraphNode node, struct ed_operation *operation, struct ed_context *context)
{
	uint32_t count = 0, size = operation->conditional.size;
	struct ed_plan **bodies = calloc(size, sizeof(*bodies));

	while (bodies && count < size && (bodies[count] = ed_plan_make(node->bodies[count], context)))
		count++;
	if (count == size) {
		operation->conditional.bodies = bodies;
		return true;
	}
	while (count)
		ed_plan_release(bodies[--count]);
	free(bodies);
	ed_operation_release(operation);
	return false;
}

/*
 * Make a plan (the steps of an executable graph): a copy of each node's operation, with the indices of the steps that
 * it follows. One reference; NULL without memory.
 */
struct ed_plan *ed_plan_make(CUgraph graph, struct ed_context *context)
{
	struct ed_plan *plan = calloc(1, sizeof(*plan) + graph->count * sizeof(plan->steps[0]));

	if (!plan)
		return NULL;
	plan->holders = 1;
	for (size_t i = 0; i < graph->count; i++) {
		CUgraphNode node = graph->nodes[i];
		struct ed_step *step = &plan->steps[i];
		bool complete;
		if (node->child) {
			step->operation = (struct ed_operation){.type = CU_GRAPH_NODE_TYPE_GRAPH,
								.plan = ed_plan_make(node->child, context)};
			complete = step->operation.plan != NULL;
		} else {
			complete = ed_operation_copy(&step->operation, &node->operation) &&
				   (!node->bodies || make_bodies(node, &step->operation, context));
		}
		step->operation.context = context;
		step->node = node;
		step->after = calloc(node->dependency_count + 1, sizeof(*step->after));
		plan->count = i + complete;
		for (size_t j = 0; step->after && j < node->dependency_count; j++)
			step->after[step->after_count++] = ed_graph_index(graph, node->dependencies[j]);
		if (!complete || !step->after) {
			if (!complete)
				free(step->after);
			ed_plan_release(plan);
			return NULL;
		}
	}
	return plan;
}

/*
 * A copy of a plan (an executable graph's steps) that shares nothing with it, with one reference; NULL without memory.
 */
struct ed_plan *ed_plan_copy(const struct ed_plan *plan)
{
	struct ed_plan *copy = calloc(1, sizeof(*copy) + plan->count * sizeof(copy->steps[0]));

	if (!copy)
		return NULL;
	copy->holders = 1;
	for (size_t i = 0; i < plan->count; i++) {
		const struct ed_step *from = &plan->steps[i];
		struct ed_step *to = &copy->steps[i];
		*to = *from;
		to->after = calloc(from->after_count + 1, sizeof(*to->after));
		bool complete = ed_operation_copy(&to->operation, &from->operation);
		copy->count = i + complete;
		if (!complete || !to->after) {
			if (!complete)
				free(to->after);
			ed_plan_release(copy);
			return NULL;
		}
		memcpy(to->after, from->after, from->after_count * sizeof(*to->after));
	}
	return copy;
}

/*
 * The plans within a step (of a child graph, or of a conditional node's bodies), in *ret. Returns how many there are.
 */
static size_t plans_of(const struct ed_step *step, struct ed_plan *const **ret)
{
	if (step->operation.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
		*ret = step->operation.conditional.bodies;
		return step->operation.conditional.size;
	}
	*ret = &step->operation.plan;
	return step->operation.type == CU_GRAPH_NODE_TYPE_GRAPH;
}

/*
 * The step of a plan (an executable graph's steps) that was made from that node, also in plans within the plan; NULL
 * without one.
 */
struct ed_step *ed_plan_find(struct ed_plan *plan, CUgraphNode node)
{
	for (size_t i = 0; i < plan->count; i++) {
		struct ed_plan *const *inner;
		if (plan->steps[i].node == node)
			return &plan->steps[i];
		size_t count = plans_of(&plan->steps[i], &inner);
		for (size_t j = 0; j < count; j++) {
			struct ed_step *step = ed_plan_find(inner[j], node);
			if (step)
				return step;
		}
	}
	return NULL;
}

/* Whether a step can take another one's place in an executable graph: a CUgraphExecUpdateResult. */
static int compare_steps(const struct ed_step *before, const struct ed_step *now)
{
	struct ed_plan *const *inner_before, *const *inner_now;
	CUgraphNode unused;

	if (before->operation.type != now->operation.type)
		return ED_UPDATE_NODE_TYPE_CHANGED;
	if (now->operation.type == CU_GRAPH_NODE_TYPE_CONDITIONAL &&
	    now->operation.conditional.type != before->operation.conditional.type)
		return ED_UPDATE_TOPOLOGY_CHANGED;
	size_t count = plans_of(before, &inner_before);
	if (before->after_count != now->after_count || count != plans_of(now, &inner_now) ||
	    memcmp(before->after, now->after, now->after_count * sizeof(*now->after)) != 0)
		return ED_UPDATE_TOPOLOGY_CHANGED;
	int verdict = ED_UPDATE_SUCCESS;
	for (size_t i = 0; i < count && verdict == ED_UPDATE_SUCCESS; i++)
		verdict = ed_plan_compare(inner_before[i], inner_now[i], &unused);
	return verdict;
}

/*
 * Whether one plan (the steps of an executable graph) can take another one's place: the same steps in the same order; a
 * CUgraphExecUpdateResult. *error: the node of `now` that differs, NULL where the numbers of nodes do.
 */
int ed_plan_compare(const struct ed_plan *before, const struct ed_plan *now, CUgraphNode *error)
{
	int verdict = before->count == now->count ? ED_UPDATE_SUCCESS : ED_UPDATE_TOPOLOGY_CHANGED;

	*error = NULL;
	for (size_t i = 0; i < now->count && verdict == ED_UPDATE_SUCCESS; i++) {
		verdict = compare_steps(&before->steps[i], &now->steps[i]);
		if (verdict != ED_UPDATE_SUCCESS)
			*error = now->steps[i].node;
	}
	return verdict;
}

/*
 * Let the steps of a plan (an executable graph's) have the nodes' names and the states (disabled) of those that they
 * replace. The plans must be alike by ed_plan_compare.
 */
void ed_plan_rename(struct ed_plan *now, const struct ed_plan *before)
{
	struct ed_plan *const *inner_before, *const *inner_now;

	for (size_t i = 0; i < now->count; i++) {
		now->steps[i].node = before->steps[i].node;
		now->steps[i].is_disabled = before->steps[i].is_disabled;
		size_t count = plans_of(&before->steps[i], &inner_before);
		plans_of(&now->steps[i], &inner_now);
		for (size_t j = 0; j < count; j++)
			ed_plan_rename(inner_now[j], inner_before[j]);
	}
}

/* Whether a step has not run, but all steps that it follows have. done: by step. */
static bool may_run(const struct ed_plan *plan, size_t number, const bool *done)
{
	if (done[number])
		return false;
	for (size_t i = 0; i < plan->steps[number].after_count; i++)
		if (!done[plan->steps[number].after[i]])
			return false;
	return true;
}

/*
 * The next step of an executable graph's plan to run: the first that may, or with the setting seed a random one.
 * plan->count if none may: there is a cycle, or all are done. done: by step.
 */
static size_t next_step(const struct ed_plan *plan, const bool *done, uint64_t *random)
{
	size_t chosen = plan->count, candidates = 0;

	for (size_t i = 0; i < plan->count; i++) {
		if (!may_run(plan, i, done))
			continue;
		if (!ed_settings()->seed[0])
			return i;
		*random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		/* Reservoir sampling: the n-th candidate replaces the choice with probability 1/n. */
		if ((*random >> 33) % ++candidates == 0)
			chosen = i;
	}
	return chosen;
}

/* Whether all steps of a plan (an executable graph's) can run in some order. */
bool ed_plan_is_acyclic(const struct ed_plan *plan)
{
	bool *done = calloc(plan->count + 1, sizeof(*done));
	uint64_t random = 0;
	size_t left = done ? plan->count : 1;

	while (done && left) {
		size_t next = next_step(plan, done, &random);
		if (next == plan->count)
			break;
		done[next] = true;
		left--;
	}
	free(done);
	return left == 0;
}

/*
 * Run the steps of a plan (an executable graph's) one after the other, in an order that the edges allow, up to the
 * device's first fault, which is returned.
 */
CUresult ed_plan_run(struct ed_plan *plan)
{
	static uint64_t runs;
	bool *done = calloc(plan->count + 1, sizeof(*done));
	uint64_t random = strtoull(ed_settings()->seed, NULL, 0) ^ __atomic_add_fetch(&runs, 1, __ATOMIC_RELAXED) << 20;

	if (!done)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < plan->count && !ed_device_fault(); i++) {
		size_t next = next_step(plan, done, &random);
		if (!plan->steps[next].is_disabled)
			ed_operation_run(&plan->steps[next].operation);
		done[next] = true;
	}
	free(done);
	return ed_device_fault();
}
