#include "graph.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "copy.h"
#include "event.h"
#include "launch.h"
#include "module.h"
#include "settings.h"
#include "stream.h"

/* --- graphs and nodes --- */

CUgraph ed_graph_make(void)
{
	return ed_object_take(ED_GRAPH, sizeof(struct ed_graph));
}

static void destroy_node(CUgraphNode node)
{
	if (node->child)
		ed_graph_destroy(node->child);
	else
		ed_operation_release(&node->operation);
	free(node->dependencies);
	free(node->pointers);
	ed_object_give(node);
}

void ed_graph_destroy(CUgraph graph)
{
	for (size_t i = 0; i < graph->count; i++)
		destroy_node(graph->nodes[i]);
	free(graph->nodes);
	ed_object_give(graph);
}

static bool add_dependency(CUgraphNode node, CUgraphNode dependency)
{
	for (size_t i = 0; i < node->dependency_count; i++)
		if (node->dependencies[i] == dependency)
			return true;
	CUgraphNode *more = realloc(node->dependencies, (node->dependency_count + 1) * sizeof(*more));
	if (!more)
		return false;
	node->dependencies = more;
	node->dependencies[node->dependency_count++] = dependency;
	return true;
}

CUgraphNode ed_graph_add(CUgraph graph, const struct ed_operation *operation, const CUgraphNode *dependencies,
			 size_t count)
{
	if (graph->count == graph->room) {
		size_t room = graph->room ? graph->room * 2 : 16;
		CUgraphNode *nodes = realloc(graph->nodes, room * sizeof(CUgraphNode));
		if (!nodes)
			return NULL;
		graph->nodes = nodes;
		graph->room = room;
	}
	CUgraphNode node = ed_object_take(ED_NODE, sizeof(*node));
	bool complete = node != NULL;
	for (size_t i = 0; complete && i < count; i++)
		complete = add_dependency(node, dependencies[i]);
	if (!complete) {
		if (node) {
			free(node->dependencies);
			ed_object_give(node);
		}
		return NULL;
	}
	node->graph = graph;
	node->operation = *operation;
	graph->nodes[graph->count++] = node;
	return node;
}

bool ed_graph_reaches(CUgraphNode node, CUgraphNode looked_for)
{
	if (node == looked_for)
		return true;
	for (size_t i = 0; i < node->dependency_count; i++)
		if (ed_graph_reaches(node->dependencies[i], looked_for))
			return true;
	return false;
}

static CUgraph clone_graph(CUgraph graph);

static CUgraphNode clone_node(CUgraph to, CUgraphNode from)
{
	struct ed_operation operation = from->operation;

	if (!from->child && !ed_operation_copy(&operation, &from->operation))
		return NULL;
	CUgraphNode node = ed_graph_add(to, &operation, NULL, 0);
	if (!node) {
		if (!from->child)
			ed_operation_release(&operation);
		return NULL;
	}
	node->clone_of = from;
	if (from->child) {
		node->child = clone_graph(from->child);
		if (!node->child)
			return NULL;
		node->child->is_child = true;
	}
	return node;
}

static size_t index_of(const struct ed_graph *graph, CUgraphNode node)
{
	size_t i = 0;

	while (i < graph->count && graph->nodes[i] != node)
		i++;
	return i;
}

static CUgraph clone_graph(CUgraph graph)
{
	CUgraph copy = ed_graph_make();
	bool complete = copy != NULL;

	for (size_t i = 0; complete && i < graph->count; i++)
		complete = clone_node(copy, graph->nodes[i]) != NULL;
	for (size_t i = 0; complete && i < graph->count; i++)
		for (size_t j = 0; complete && j < graph->nodes[i]->dependency_count; j++) {
			size_t from = index_of(graph, graph->nodes[i]->dependencies[j]);
			complete = add_dependency(copy->nodes[i], copy->nodes[from]);
		}
	if (!complete && copy) {
		ed_graph_destroy(copy);
		copy = NULL;
	}
	return copy;
}

/* --- plans --- */

struct step {
	struct ed_operation operation;
	CUgraphNode node; /* what it was made of: only compared */
	size_t *after;
	size_t after_count;
};

struct ed_plan {
	uint32_t holders;
	size_t count;
	struct step steps[];
};

struct ed_exec {
	struct ed_object object;
	struct ed_context *context;
	struct ed_plan *plan;
	struct ed_moment last; /* launches of one executable graph do not overlap */
	uint64_t flags;
};

void ed_plan_hold(struct ed_plan *plan)
{
	__atomic_add_fetch(&plan->holders, 1, __ATOMIC_ACQ_REL);
}

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

static struct ed_plan *make_plan(CUgraph graph, struct ed_context *context)
{
	struct ed_plan *plan = calloc(1, sizeof(*plan) + graph->count * sizeof(plan->steps[0]));

	if (!plan)
		return NULL;
	plan->holders = 1;
	for (size_t i = 0; i < graph->count; i++) {
		CUgraphNode node = graph->nodes[i];
		struct step *step = &plan->steps[i];
		bool complete;
		if (node->child) {
			step->operation = (struct ed_operation){.type = CU_GRAPH_NODE_TYPE_GRAPH,
								.plan = make_plan(node->child, context)};
			complete = step->operation.plan != NULL;
		} else {
			complete = ed_operation_copy(&step->operation, &node->operation);
		}
		step->operation.context = context;
		step->node = node;
		step->after = calloc(node->dependency_count + 1, sizeof(*step->after));
		plan->count = i + complete;
		for (size_t j = 0; step->after && j < node->dependency_count; j++)
			step->after[step->after_count++] = index_of(graph, node->dependencies[j]);
		if (!complete || !step->after) {
			ed_plan_release(plan);
			return NULL;
		}
	}
	return plan;
}

static bool may_run(const struct ed_plan *plan, size_t number, const bool *done)
{
	if (done[number])
		return false;
	for (size_t i = 0; i < plan->steps[number].after_count; i++)
		if (!done[plan->steps[number].after[i]])
			return false;
	return true;
}

/* The next that may run: the first, or with a seed a random one. plan->count: a cycle is left. */
static size_t choose(const struct ed_plan *plan, const bool *done, uint64_t *random)
{
	size_t found = plan->count, candidates = 0;

	for (size_t i = 0; i < plan->count; i++) {
		if (!may_run(plan, i, done))
			continue;
		if (!ed_settings()->seed[0])
			return i;
		*random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		if ((*random >> 33) % ++candidates == 0)
			found = i;
	}
	return found;
}

static bool is_acyclic(const struct ed_plan *plan)
{
	bool *done = calloc(plan->count + 1, sizeof(*done));
	uint64_t random = 0;
	size_t left = done ? plan->count : 1;

	while (done && left) {
		size_t next = choose(plan, done, &random);
		if (next == plan->count)
			break;
		done[next] = true;
		left--;
	}
	free(done);
	return left == 0;
}

CUresult ed_plan_run(struct ed_plan *plan)
{
	static uint64_t runs;
	bool *done = calloc(plan->count + 1, sizeof(*done));
	uint64_t random = strtoull(ed_settings()->seed, NULL, 0) ^ __atomic_add_fetch(&runs, 1, __ATOMIC_RELAXED) << 20;

	if (!done)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < plan->count && !ed_device_fault(); i++) {
		size_t next = choose(plan, done, &random);
		ed_operation_run(&plan->steps[next].operation);
		done[next] = true;
	}
	free(done);
	return ed_device_fault();
}

/* --- making graphs --- */

API cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	ENTER();
	if (!graph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = ed_graph_make();
	return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphDestroy(CUgraph graph)
{
	ENTER();
	if (!ed_object_check(graph, ED_GRAPH) || graph->is_child)
		return CUDA_ERROR_INVALID_VALUE;
	ed_graph_destroy(graph);
	return CUDA_SUCCESS;
}

API cuGraphClone(CUgraph *ret, CUgraph graph)
{
	ENTER();
	if (!ret || !ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	*ret = clone_graph(graph);
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphNodeFindInClone(CUgraphNode *ret, CUgraphNode node, CUgraph graph)
{
	ENTER();
	if (!ret || !ed_object_check(node, ED_NODE) || !ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < graph->count; i++)
		if (graph->nodes[i]->clone_of == node) {
			*ret = graph->nodes[i];
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_place(const CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
	if (!ret || !ed_object_check(graph, ED_GRAPH) || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (!ed_object_check(dependencies[i], ED_NODE) || dependencies[i]->graph != graph)
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t count,
		    struct ed_operation *operation)
{
	*ret = ed_graph_add(graph, operation, dependencies, count);
	if (*ret)
		return CUDA_SUCCESS;
	ed_operation_release(operation);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult prepare_kernel(const CUDA_KERNEL_NODE_PARAMS *p, struct ed_operation *ret)
{
	struct ed_context *context;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_context_of(p->ctx, &context);
	if (result)
		return result;
	CUfunction function = p->func ? p->func : (CUfunction)(void *)p->kern;
	/* Unlike a launch a node takes a kernel by its own member only. */
	if (p->func && ed_object_is(p->func, ED_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	uint32_t grid[] = {p->gridDimX, p->gridDimY, p->gridDimZ};
	uint32_t block[] = {p->blockDimX, p->blockDimY, p->blockDimZ};
	*ret = (struct ed_operation){.type = CU_GRAPH_NODE_TYPE_KERNEL, .context = context};
	return ed_launch_prepare(context, function, grid, block, p->sharedMemBytes, false, p->kernelParams, p->extra,
				 &ret->kernel);
}

static CUDA_KERNEL_NODE_PARAMS widen(const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
	CUDA_KERNEL_NODE_PARAMS wide = {0};

	memcpy(&wide, p, sizeof(*p));
	return wide;
}

static CUresult add_kernel(CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			   const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct ed_operation operation;
	CUresult result = check_place(ret, graph, dependencies, count);

	if (!result)
		result = prepare_kernel(parameters, &operation);
	return result ? result : add(ret, graph, dependencies, count, &operation);
}

API cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	ENTER();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS wide = widen(parameters);
	return add_kernel(node, graph, dependencies, count, &wide);
}

API cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			    const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	ENTER();
	return add_kernel(node, graph, dependencies, count, parameters);
}

static CUresult add_copy(CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 const CUDA_MEMCPY3D *parameters, CUcontext handle)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
	CUresult result = check_place(ret, graph, dependencies, count);

	if (!result)
		result = ed_context_of(handle, &operation.context);
	if (!result)
		result = ed_copy_from(parameters, &operation.copy);
	return result ? result : add(ret, graph, dependencies, count, &operation);
}

API cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 const CUDA_MEMCPY3D *parameters, CUcontext context)
{
	ENTER();
	return add_copy(node, graph, dependencies, count, parameters, context);
}

static CUresult add_fill(CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext handle)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
	CUresult result = check_place(ret, graph, dependencies, count);

	if (!result)
		result = ed_context_of(handle, &operation.context);
	if (!result)
		result = ed_fill_from(parameters, &operation.fill);
	return result ? result : add(ret, graph, dependencies, count, &operation);
}

API cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context)
{
	ENTER();
	return add_fill(node, graph, dependencies, count, parameters, context);
}

static CUresult add_host(CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 const CUDA_HOST_NODE_PARAMS *parameters)
{
	CUresult result = check_place(ret, graph, dependencies, count);

	if (result || !parameters || !parameters->fn)
		return result ? result : CUDA_ERROR_INVALID_VALUE;
	struct ed_operation operation = {
		.type = CU_GRAPH_NODE_TYPE_HOST,
		.host = {.function = parameters->fn, .data = parameters->userData},
	};
	return add(ret, graph, dependencies, count, &operation);
}

API cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
		       const CUDA_HOST_NODE_PARAMS *parameters)
{
	ENTER();
	return add_host(node, graph, dependencies, count, parameters);
}

static CUresult add_event(CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t count, int type,
			  CUevent event)
{
	CUresult result = check_place(ret, graph, dependencies, count);

	if (result || !ed_object_check(event, ED_EVENT))
		return result ? result : CUDA_ERROR_INVALID_HANDLE;
	struct ed_operation operation = {.type = type, .event = {NULL, event}};
	return add(ret, graph, dependencies, count, &operation);
}

API cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			      CUevent event)
{
	ENTER();
	return add_event(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

API cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			    CUevent event)
{
	ENTER();
	return add_event(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

API cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_EMPTY};

	ENTER();
	CUresult result = check_place(node, graph, dependencies, count);
	return result ? result : add(node, graph, dependencies, count, &operation);
}

static CUresult add_child(CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraph child)
{
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
	CUresult result = check_place(ret, graph, dependencies, count);

	if (result || !ed_object_check(child, ED_GRAPH) || child == graph)
		return result ? result : CUDA_ERROR_INVALID_VALUE;
	CUgraph copy = clone_graph(child);
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	copy->is_child = true;
	result = add(ret, graph, dependencies, count, &operation);
	if (result)
		ed_graph_destroy(copy);
	else
		(*ret)->child = copy;
	return result;
}

API cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			     CUgraph child)
{
	ENTER();
	return add_child(node, graph, dependencies, count, child);
}

API cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
	ENTER();
	if (!graph || !ed_object_check(node, ED_NODE) || !node->child)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = node->child;
	return CUDA_SUCCESS;
}

/* CUgraphNodeParams: the type, three reserved words, then the parameters of that type. */
static CUresult add_any(CUgraphNode *ret, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			const void *parameters)
{
	const char *of_type = (const char *)parameters + 16;
	int type;

	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&type, parameters, sizeof(type));
	switch (type) {
	case CU_GRAPH_NODE_TYPE_KERNEL: {
		CUDA_KERNEL_NODE_PARAMS kernel;
		memcpy(&kernel, of_type, sizeof(kernel));
		return add_kernel(ret, graph, dependencies, count, &kernel);
	}
	case CU_GRAPH_NODE_TYPE_MEMCPY: {
		/* CUDA_MEMCPY_NODE_PARAMS: flags, a reserved word, the context, the copy. */
		CUcontext context;
		CUDA_MEMCPY3D copy;
		memcpy(&context, of_type + 8, sizeof(context));
		memcpy(&copy, of_type + 16, sizeof(copy));
		return add_copy(ret, graph, dependencies, count, &copy, context);
	}
	case CU_GRAPH_NODE_TYPE_MEMSET: {
		/* CUDA_MEMSET_NODE_PARAMS_v2 ends in the context. */
		CUDA_MEMSET_NODE_PARAMS fill;
		CUcontext context;
		memcpy(&fill, of_type, sizeof(fill));
		memcpy(&context, of_type + sizeof(fill), sizeof(context));
		return add_fill(ret, graph, dependencies, count, &fill, context);
	}
	case CU_GRAPH_NODE_TYPE_HOST: {
		CUDA_HOST_NODE_PARAMS host;
		memcpy(&host, of_type, sizeof(host));
		return add_host(ret, graph, dependencies, count, &host);
	}
	case CU_GRAPH_NODE_TYPE_GRAPH: {
		CUgraph child;
		memcpy(&child, of_type, sizeof(child));
		return add_child(ret, graph, dependencies, count, child);
	}
	case CU_GRAPH_NODE_TYPE_EMPTY: {
		struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
		CUresult result = check_place(ret, graph, dependencies, count);
		return result ? result : add(ret, graph, dependencies, count, &operation);
	}
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD: {
		CUevent event;
		memcpy(&event, of_type, sizeof(event));
		return add_event(ret, graph, dependencies, count, type, event);
	}
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

API cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
		   const void *parameters)
{
	ENTER();
	return add_any(node, graph, dependencies, count, parameters);
}

API cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
		      size_t count, const void *parameters)
{
	ENTER();
	(void)edges;
	return add_any(node, graph, dependencies, count, parameters);
}

/* --- looking into graphs --- */

/* As many of found as *count has room for; without room only how many there are. */
static CUresult give_list(CUgraphNode *ret, size_t *count, const CUgraphNode *found, size_t found_count)
{
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	if (ret) {
		for (size_t i = 0; i < *count; i++)
			ret[i] = i < found_count ? found[i] : NULL;
		if (*count <= found_count)
			return CUDA_SUCCESS;
	}
	*count = found_count;
	return CUDA_SUCCESS;
}

API cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	ENTER();
	if (!ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	return give_list(nodes, count, graph->nodes, graph->count);
}

API cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	ENTER();
	if (!ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNode *found = calloc(graph->count + 1, sizeof(CUgraphNode));
	size_t found_count = 0;
	if (!found)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < graph->count; i++)
		if (!graph->nodes[i]->dependency_count)
			found[found_count++] = graph->nodes[i];
	CUresult result = give_list(nodes, count, found, found_count);
	free(found);
	return result;
}

static CUresult get_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
	size_t found = 0;

	if (!count || !ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < graph->count; i++)
		for (size_t j = 0; j < graph->nodes[i]->dependency_count; j++, found++)
			if (from && to && found < *count) {
				from[found] = graph->nodes[i]->dependencies[j];
				to[found] = graph->nodes[i];
				if (data)
					data[found] = (CUgraphEdgeData){0};
			}
	if (!from || !to || found < *count)
		*count = found;
	return CUDA_SUCCESS;
}

API cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	ENTER();
	return get_edges(graph, from, to, NULL, count);
}

API cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
	ENTER();
	return get_edges(graph, from, to, data, count);
}

API cuGraphNodeGetType(CUgraphNode node, int *type)
{
	ENTER();
	if (!type || !ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	*type = node->child ? CU_GRAPH_NODE_TYPE_GRAPH : node->operation.type;
	return CUDA_SUCCESS;
}

API cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count)
{
	ENTER();
	if (!ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	return give_list(dependencies, count, node->dependencies, node->dependency_count);
}

API cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *dependencies, CUgraphEdgeData *data, size_t *count)
{
	ENTER();
	if (!ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	if (data && dependencies && count)
		memset(data, 0, *count * sizeof(*data));
	return give_list(dependencies, count, node->dependencies, node->dependency_count);
}

static CUresult dependents(CUgraphNode node, CUgraphNode *ret, size_t *count)
{
	if (!ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	CUgraph graph = node->graph;
	CUgraphNode *found = calloc(graph->count + 1, sizeof(CUgraphNode));
	size_t found_count = 0;
	if (!found)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < graph->count; i++)
		for (size_t j = 0; j < graph->nodes[i]->dependency_count; j++)
			if (graph->nodes[i]->dependencies[j] == node)
				found[found_count++] = graph->nodes[i];
	CUresult result = give_list(ret, count, found, found_count);
	free(found);
	return result;
}

API cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
	ENTER();
	return dependents(node, nodes, count);
}

API cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
	ENTER();
	if (data && nodes && count)
		memset(data, 0, *count * sizeof(*data));
	return dependents(node, nodes, count);
}

static CUresult add_dependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	CUgraphNode unused;
	CUresult result = check_place(&unused, graph, from, count);

	if (!result)
		result = check_place(&unused, graph, to, count);
	for (size_t i = 0; !result && i < count; i++)
		if (from[i] == to[i] || !add_dependency(to[i], from[i]))
			result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

API cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	ENTER();
	return add_dependencies(graph, from, to, count);
}

API cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
			      const CUgraphEdgeData *data, size_t count)
{
	ENTER();
	(void)data;
	return add_dependencies(graph, from, to, count);
}

static void remove_dependency(CUgraphNode node, CUgraphNode dependency)
{
	for (size_t i = 0; i < node->dependency_count; i++)
		if (node->dependencies[i] == dependency)
			node->dependencies[i--] = node->dependencies[--node->dependency_count];
}

API cuGraphDestroyNode(CUgraphNode node)
{
	ENTER();
	if (!ed_object_check(node, ED_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	CUgraph graph = node->graph;
	size_t at = index_of(graph, node);
	memmove(&graph->nodes[at], &graph->nodes[at + 1], (--graph->count - at) * sizeof(CUgraphNode));
	for (size_t i = 0; i < graph->count; i++)
		remove_dependency(graph->nodes[i], node);
	destroy_node(node);
	return CUDA_SUCCESS;
}

static CUresult get_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *ret)
{
	CUfunction function;

	if (!ret || !ed_object_check(node, ED_NODE) || node->child || node->operation.type != CU_GRAPH_NODE_TYPE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	const struct ed_kernel_work *work = &node->operation.kernel;
	CUresult result = ed_function_of(node->operation.context, work->function, &function);
	if (result)
		return result;
	const struct ed_description *kernel = function->kernel;
	void **pointers = realloc(node->pointers, (kernel->parameter_count + 1) * sizeof(*pointers));
	if (!pointers)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->pointers = pointers;
	for (uint32_t i = 0; i < kernel->parameter_count; i++)
		pointers[i] = work->parameters + kernel->parameters[i].offset;
	bool is_kernel = ed_object_is(work->function, ED_KERNEL);
	*ret = (CUDA_KERNEL_NODE_PARAMS){
		.func = function,
		.gridDimX = work->grid[0],
		.gridDimY = work->grid[1],
		.gridDimZ = work->grid[2],
		.blockDimX = work->block[0],
		.blockDimY = work->block[1],
		.blockDimZ = work->block[2],
		.sharedMemBytes = work->shared,
		.kernelParams = kernel->parameter_count ? pointers : NULL,
		.kern = is_kernel ? (CUkernel)(void *)work->function : NULL,
		.ctx = node->operation.context,
	};
	return CUDA_SUCCESS;
}

API cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	CUDA_KERNEL_NODE_PARAMS wide;

	ENTER();
	CUresult result = parameters ? get_kernel(node, &wide) : CUDA_ERROR_INVALID_VALUE;
	if (!result)
		memcpy(parameters, &wide, sizeof(*parameters));
	return result;
}

API cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters)
{
	ENTER();
	return get_kernel(node, parameters);
}

static CUresult set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct ed_operation operation;

	if (!ed_object_check(node, ED_NODE) || node->child || node->operation.type != CU_GRAPH_NODE_TYPE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = prepare_kernel(parameters, &operation);
	if (result)
		return result;
	/* What the new parameters were read from may be the old ones: they go last. */
	ed_operation_release(&node->operation);
	node->operation = operation;
	return CUDA_SUCCESS;
}

API cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	ENTER();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS wide = widen(parameters);
	return set_kernel(node, &wide);
}

API cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	ENTER();
	return set_kernel(node, parameters);
}

API cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event)
{
	ENTER();
	if (!event || !ed_object_check(node, ED_NODE) || node->operation.type != CU_GRAPH_NODE_TYPE_EVENT_RECORD)
		return CUDA_ERROR_INVALID_VALUE;
	*event = node->operation.event.event;
	return CUDA_SUCCESS;
}

/* --- executable graphs --- */

#define INSTANTIATE_FLAGS 15u /* CUgraphInstantiate_flags together */

static CUresult instantiate(CUgraphExec *ret, CUgraph graph, uint64_t flags)
{
	IN_CONTEXT(context);
	if (!ret || !ed_object_check(graph, ED_GRAPH) || flags > INSTANTIATE_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	struct ed_plan *plan = make_plan(graph, context);
	if (!plan)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct ed_exec *exec = is_acyclic(plan) ? ed_object_take(ED_EXEC, sizeof(*exec)) : NULL;
	if (!exec) {
		ed_plan_release(plan);
		return CUDA_ERROR_INVALID_VALUE;
	}
	exec->context = context;
	exec->plan = plan;
	exec->flags = flags;
	*ret = exec;
	return CUDA_SUCCESS;
}

API cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size)
{
	ENTER();
	if (node)
		*node = NULL;
	if (log && size)
		*log = 0;
	return instantiate(exec, graph, 0);
}

API cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size)
{
	ENTER();
	if (node)
		*node = NULL;
	if (log && size)
		*log = 0;
	return instantiate(exec, graph, 0);
}

API cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	ENTER();
	return instantiate(exec, graph, flags);
}

/* CUDA_GRAPH_INSTANTIATE_PARAMS */
struct instantiate_parameters {
	uint64_t flags;
	CUstream upload_stream;
	CUgraphNode error_node;
	int result;
};

API cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, struct instantiate_parameters *parameters)
{
	ENTER();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = instantiate(exec, graph, parameters->flags);
	parameters->error_node = NULL;
	parameters->result = result ? 1 : 0;
	return result;
}

API cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags)
{
	ENTER();
	if (!flags || !ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	*flags = exec->flags;
	return CUDA_SUCCESS;
}

API cuGraphExecDestroy(CUgraphExec exec)
{
	ENTER();
	if (!ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	/* A launch that has not run yet holds the plan. */
	struct ed_plan *plan = exec->plan;
	ed_object_give(exec);
	ed_plan_release(plan);
	return CUDA_SUCCESS;
}

/* The moments that the plan's waits for events stand for, and how many. */
static size_t awaited(const struct ed_plan *plan, struct ed_moment *ret, size_t most)
{
	size_t count = 0;

	for (size_t i = 0; i < plan->count && count < most; i++)
		if (plan->steps[i].operation.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT)
			ret[count++] = ed_event_moment(plan->steps[i].operation.event.event);
	return count;
}

static void set_events(const struct ed_plan *plan, struct ed_moment moment)
{
	for (size_t i = 0; i < plan->count; i++) {
		if (plan->steps[i].operation.type != CU_GRAPH_NODE_TYPE_EVENT_RECORD)
			continue;
		struct ed_mark *mark = ed_mark_make();
		if (!mark)
			continue;
		mark->moment = moment;
		mark->done_ns = ed_now_ns();
		ed_event_set(plan->steps[i].operation.event.event, mark);
	}
}

static CUresult launch(CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct ed_queue *queue;
	struct ed_moment after[64], done;

	IN_CONTEXT(context);
	if (!ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);
	if (!result && __atomic_load_n(&queue->capture, __ATOMIC_ACQUIRE))
		result = ed_capture_forbids(queue);
	if (result)
		return result;
	struct ed_operation operation = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .context = queue->context, .plan = exec->plan};
	ed_plan_hold(exec->plan);
	after[0] = exec->last;
	size_t count = 1 + awaited(exec->plan, after + 1, 63);
	result = ed_stream_submit_after(queue, &operation, after, count, &done);
	if (!result && done.queue) {
		exec->last = done;
		set_events(exec->plan, done);
	}
	return result;
}

API cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return launch(exec, stream, false);
}

API cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return launch(exec, stream, true);
}

/* There is nothing to bring anywhere. */
static CUresult upload(CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct ed_queue *queue;

	IN_CONTEXT(context);
	if (!ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = ed_stream_queue(context, stream, per_thread, &queue);
	return result ? result : ed_capture_forbids(queue);
}

API cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return upload(exec, stream, false);
}

API cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	ENTER();
	return upload(exec, stream, true);
}

/* The plan with one step's operation replaced: launches under way keep the old one. */
static struct ed_plan *replaced(const struct ed_plan *plan, size_t at, struct ed_operation *operation)
{
	struct ed_plan *copy = calloc(1, sizeof(*copy) + plan->count * sizeof(copy->steps[0]));

	if (!copy)
		return NULL;
	copy->holders = 1;
	for (size_t i = 0; i < plan->count; i++) {
		const struct step *from = &plan->steps[i];
		struct step *to = &copy->steps[i];
		to->after = calloc(from->after_count + 1, sizeof(*to->after));
		bool complete = true;
		if (i == at)
			to->operation = *operation;
		else
			complete = ed_operation_copy(&to->operation, &from->operation);
		copy->count = i + complete;
		if (!complete || !to->after) {
			ed_plan_release(copy);
			return NULL;
		}
		memcpy(to->after, from->after, from->after_count * sizeof(*to->after));
		to->after_count = from->after_count;
		to->node = from->node;
	}
	return copy;
}

static CUresult exec_set_kernel(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct ed_operation operation;

	if (!ed_object_check(exec, ED_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	size_t at = 0;
	while (at < exec->plan->count && exec->plan->steps[at].node != node)
		at++;
	if (at == exec->plan->count || exec->plan->steps[at].operation.type != CU_GRAPH_NODE_TYPE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = prepare_kernel(parameters, &operation);
	if (result)
		return result;
	struct ed_plan *plan = replaced(exec->plan, at, &operation);
	if (!plan)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ed_plan_release(exec->plan);
	exec->plan = plan;
	return CUDA_SUCCESS;
}

API cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	ENTER();
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS wide = widen(parameters);
	return exec_set_kernel(exec, node, &wide);
}

API cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	ENTER();
	return exec_set_kernel(exec, node, parameters);
}

enum { /* CUgraphExecUpdateResult */
	UPDATE_SUCCESS = 0,
	UPDATE_TOPOLOGY_CHANGED = 2,
	UPDATE_NODE_TYPE_CHANGED = 3,
};

static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, int *verdict)
{
	IN_CONTEXT(context);
	*error_node = NULL;
	*verdict = 1;
	if (!ed_object_check(exec, ED_EXEC) || !ed_object_check(graph, ED_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	struct ed_plan *plan = make_plan(graph, context);
	if (!plan)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*verdict = plan->count == exec->plan->count ? UPDATE_SUCCESS : UPDATE_TOPOLOGY_CHANGED;
	for (size_t i = 0; i < plan->count && *verdict == UPDATE_SUCCESS; i++) {
		const struct step *before = &exec->plan->steps[i], *now = &plan->steps[i];
		if (before->operation.type != now->operation.type)
			*verdict = UPDATE_NODE_TYPE_CHANGED;
		else if (before->after_count != now->after_count ||
			 memcmp(before->after, now->after, now->after_count * sizeof(*now->after)) != 0)
			*verdict = UPDATE_TOPOLOGY_CHANGED;
		if (*verdict != UPDATE_SUCCESS)
			*error_node = now->node;
	}
	if (*verdict != UPDATE_SUCCESS) {
		ed_plan_release(plan);
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	}
	/* The program goes on naming the nodes that the graph was instantiated from. */
	for (size_t i = 0; i < plan->count; i++)
		plan->steps[i].node = exec->plan->steps[i].node;
	ed_plan_release(exec->plan);
	exec->plan = plan;
	return CUDA_SUCCESS;
}

API cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, int *verdict)
{
	CUgraphNode node;
	int found;

	ENTER();
	CUresult result = update(exec, graph, &node, &found);
	if (error_node)
		*error_node = node;
	if (verdict)
		*verdict = found;
	return result;
}

API cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	CUgraphNode node;
	int found;

	ENTER();
	CUresult result = update(exec, graph, &node, &found);
	if (info)
		*info = (CUgraphExecUpdateResultInfo){found, node, NULL};
	return result;
}
