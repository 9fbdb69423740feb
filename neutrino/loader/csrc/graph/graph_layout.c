#include "graph/graph_layout.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "base/settings.h"
#include "graph/graph_bodies.h"
#include "image/backend.h"
#include "image/choice.h"
#include "image/requests.h"
#include "image/sets.h"
#include "image/twin.h"
#include "launch/launch.h"
#include "memory/own_memory.h"
#include "trace/trace.h"

/* --- one node --- */

/* Where a node's launch is set: in an executable graph, or in a graph of ours. */
struct place {
	CUgraphExec exec; /* NULL: in a graph */
	CUgraphNode node;
	const CUDA_KERNEL_NODE_PARAMS *parameters; /* as the program has them */
};

/*
 * Submit function for nodes of graphs: instead of launching, set what the node runs (function, parameters) in the place
 * that launch->argument names.
 */
static CUresult set_node(const struct nt_launch *launch, CUfunction function, void **parameters, void **extra)
{
	const struct place *place = launch->argument;
	CUDA_KERNEL_NODE_PARAMS changed = *place->parameters;

	/* The twin of a CUkernel is one, too. */
	changed.func = place->parameters->kern ? NULL : function;
	changed.kern = place->parameters->kern ? function : NULL;
	changed.kernelParams = parameters;
	changed.extra = extra;
	if (place->exec)
		return nt_driver.cuGraphExecKernelNodeSetParams_v2(place->exec, place->node, &changed);
	return nt_driver.cuGraphKernelNodeSetParams_v2(place->node, &changed);
}

/* The launch of a node as the program has it, whose submit function sets the node in that place. */
static struct nt_launch launch_of(const struct place *place)
{
	const CUDA_KERNEL_NODE_PARAMS *parameters = place->parameters;

	return (struct nt_launch){
		.grid = {parameters->gridDimX, parameters->gridDimY, parameters->gridDimZ},
		.block = {parameters->blockDimX, parameters->blockDimY, parameters->blockDimZ},
		.shared = parameters->sharedMemBytes,
		.parameters = parameters->kernelParams,
		.extra = parameters->kernelParams ? NULL : parameters->extra,
		.submit = set_node,
		.argument = place,
	};
}

/* The program's kernel parameters in one buffer of size bytes, for nt_memory_free. NULL without memory. */
static uint8_t *pack_parameters(const struct nt_kernel *kernel, const CUDA_KERNEL_NODE_PARAMS *parameters, size_t size)
{
	uint8_t *ret = nt_memory_alloc_zeroed(1, size + 1);

	if (!ret)
		return NULL;
	if (parameters->kernelParams || !parameters->extra) {
		for (uint32_t i = 0; i < kernel->parameter_count && parameters->kernelParams; i++)
			memcpy(ret + kernel->parameters[i].offset, parameters->kernelParams[i], kernel->parameters[i].size);
		return ret;
	}
	for (void **key = parameters->extra; *key != CU_LAUNCH_PARAM_END; key += 2)
		if (*key == CU_LAUNCH_PARAM_BUFFER_POINTER)
			memcpy(ret, key[1], size);
	return ret;
}

/* Whether the program may change the node from the device, so that it has to stay what it is. */
static bool is_updatable(CUgraphNode node)
{
	CUlaunchAttributeValue value = {{0}};

	return nt_driver.cuGraphKernelNodeGetAttribute &&
	       nt_driver.cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &value) ==
		       CUDA_SUCCESS &&
	       value.number;
}

/*
 * Whether a node gets its twin (copy with probes) only before a replay (launch of the graph) that is chosen: recording is
 * off, as between the questions of a session, while programs such as JAX set each node before each replay. All replays are
 * asked for then (nt_graph_choice_swap); it takes a node that can be named.
 */
static bool is_put_later(const struct nt_graph_node *node, const struct place *place)
{
	return place->exec && node->is_paired && nt_choice_is_by_launch() && nt_choice_is_off();
}

/*
 * Have a graph's node run its twin (copy with probes) if it can, at once or with the next replay that is chosen; offset:
 * where the memory for its results may begin. Sets the other members of node by the place's parameters. Returns PROBED if
 * it has a twin, else why not.
 */
static enum neutrino_reason probe_node(const struct nt_graph_target *target, struct nt_graph_node *node, const struct place *place,
				       uint64_t offset)
{
	const CUDA_KERNEL_NODE_PARAMS *parameters = place->parameters;
	struct nt_function *function = nt_function_find(parameters->kern ? parameters->kern : parameters->func);
	struct nt_launch launch = launch_of(place);
	struct nt_attempt attempt = {.function = function, .launch = &launch, .context = target->context,
				     .cell = target->cell, .base = offset};

	memcpy(node->grid, launch.grid, sizeof(node->grid));
	memcpy(node->block, launch.block, sizeof(node->block));
	node->shared = launch.shared;
	node->kernel = function ? function->kernel : NULL;
	if (!function)
		return NEUTRINO_REASON_LAUNCH_FORM;
	struct nt_kernel *kernel = function->kernel;
	if (!nt_choice_has_context(parameters->ctx ? parameters->ctx : target->context) || nt_choice_is_over(kernel))
		return NEUTRINO_REASON_NOT_SELECTED;
	enum neutrino_reason reason = nt_function_reason(function);
	if (reason == NEUTRINO_REASON_NOT_READY && nt_requests_is_due(function))
		nt_requests_add(function, target->context);
	if (reason != NEUTRINO_REASON_PROBED)
		return reason;
	if (target->refusal != NEUTRINO_REASON_PROBED)
		return target->refusal;
	if (parameters->ctx && parameters->ctx != target->context)
		return NEUTRINO_REASON_CONTEXT;
	if (is_updatable(node->node) || (node->may_repeat && !nt_regions_add_up(kernel->maps, kernel->map_count)))
		return NEUTRINO_REASON_GRAPH;
	reason = nt_launch_extent(&launch, kernel, &attempt.extent);
	if (reason == NEUTRINO_REASON_PROBED)
		reason = kernel->backend->choose(&attempt);
	if (reason != NEUTRINO_REASON_PROBED)
		return reason;
	nt_backend_measure(&attempt, target->most);
	if (attempt.size > target->most || offset > target->most - attempt.size)
		return NEUTRINO_REASON_MAP_SIZE;
	size_t packed_size = nt_twin_parameters_size(kernel);
	uint8_t *packed = pack_parameters(kernel, parameters, packed_size);
	bool is_put = !nt_own_memory_is_memusage && !is_put_later(node, place);
	if (!packed || (is_put && kernel->backend->submit(&attempt) != CUDA_SUCCESS)) {
		nt_memory_free(packed);
		return NEUTRINO_REASON_REFUSED;
	}
	node->has_twin = is_put;
	node->function = parameters->func;
	node->kern = parameters->kern;
	node->packed = packed;
	node->packed_size = packed_size;
	node->variant = attempt.variant;
	node->log_units = attempt.extent.log_units;
	node->offset = offset;
	node->size = attempt.size;
	return NEUTRINO_REASON_PROBED;
}

/* --- a node's launch for other probes --- */

#define MOST_PARAMETERS 4096

/* Offset and size in bytes of a function's parameter of that number, by the driver; false after the last. */
static bool parameter_of(const CUDA_KERNEL_NODE_PARAMS *parameters, size_t number, size_t *offset, size_t *size)
{
	if (parameters->kern)
		return nt_driver.cuKernelGetParamInfo &&
		       nt_driver.cuKernelGetParamInfo(parameters->kern, number, offset, size) == CUDA_SUCCESS;
	return nt_driver.cuFuncGetParamInfo && nt_driver.cuFuncGetParamInfo(parameters->func, number, offset, size) == CUDA_SUCCESS;
}

/* Where a node's function has its parameters, by the driver, for nt_memory_free. NULL without memory. */
static struct nt_parameters *ask_for_parameters(const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	size_t count = 0, offset = 0, size = 0;

	while (count < MOST_PARAMETERS && parameter_of(parameters, count, &offset, &size))
		count++;
	struct nt_parameters *ret = nt_memory_alloc_zeroed(1, sizeof(*ret) + count * sizeof(*ret->each));
	if (!ret)
		return NULL;
	for (; ret->count < count && parameter_of(parameters, ret->count, &offset, &size); ret->count++) {
		ret->each[ret->count] = (struct nt_parameter){offset, size};
		ret->total = offset + size > ret->total ? offset + size : ret->total;
	}
	return ret;
}

/*
 * Where a node's function has its parameters. The driver is asked once for each function that is known, since programs set
 * the nodes of a graph before each replay. *fresh: what the caller must free afterwards, or NULL. NULL without memory. In
 * a reading section.
 */
static const struct nt_parameters *parameters_of(const CUDA_KERNEL_NODE_PARAMS *parameters, struct nt_parameters **fresh)
{
	struct nt_function *function = nt_function_find(parameters->kern ? parameters->kern : parameters->func);
	struct nt_parameters *known = function ? __atomic_load_n(&function->parameters, __ATOMIC_ACQUIRE) : NULL;

	*fresh = known ? NULL : ask_for_parameters(parameters);
	if (known || !*fresh || !function)
		return known ? known : *fresh;
	/* Another thread may have been first. */
	if (__atomic_compare_exchange_n(&function->parameters, &known, *fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		known = *fresh;
		*fresh = NULL;
	}
	return known;
}

/*
 * Keep a node's launch as the program has it, where other probes may come: a kernel that these probes leave as it is may
 * get a twin (copy with probes) of those. Without memory, or a driver that knows parameters (from CUDA 12.4 on), it gets
 * none.
 */
static void keep_launch(const struct nt_graph_target *target, struct nt_graph_node *node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	if (!nt_settings()->asks_again || node->packed || (parameters->ctx && parameters->ctx != target->context))
		return;
	node->function = parameters->func;
	node->kern = parameters->kern;
	/* The driver must know how many there are: none at all, or the last one. */
	if (!(parameters->kern ? nt_driver.cuKernelGetParamInfo != NULL : nt_driver.cuFuncGetParamInfo != NULL))
		return;
	NT_FREED struct nt_parameters *fresh = NULL;
	const struct nt_parameters *known = parameters_of(parameters, &fresh);
	uint8_t *packed = known ? nt_memory_alloc_zeroed(1, known->total + 1) : NULL;
	const uint8_t *buffer = NULL;
	size_t buffer_size = 0;
	if (!packed)
		return;
	for (void **key = parameters->kernelParams ? NULL : parameters->extra; key && *key != CU_LAUNCH_PARAM_END; key += 2) {
		if (*key == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = key[1];
		else if (*key == CU_LAUNCH_PARAM_BUFFER_SIZE)
			buffer_size = *(size_t *)key[1];
	}
	if (parameters->kernelParams)
		for (size_t i = 0; i < known->count; i++)
			memcpy(packed + known->each[i].offset, parameters->kernelParams[i], known->each[i].size);
	else if (buffer && buffer_size == known->total)
		memcpy(packed, buffer, known->total);
	else if (known->total) {
		nt_memory_free(packed);
		return;
	}
	node->packed = packed;
	node->packed_size = known->total;
}

/* --- all nodes --- */

/*
 * A new node at the end of a layout (what its kernel nodes run), NULL without memory. Pointers to earlier nodes may
 * move.
 */
static struct nt_graph_node *add_node(struct nt_layout *layout)
{
	if (layout->count == layout->capacity) {
		size_t capacity = layout->capacity ? 2 * layout->capacity : 32;
		struct nt_graph_node *nodes = nt_memory_realloc(layout->nodes, capacity * sizeof(*nodes));
		if (!nodes)
			return NULL;
		layout->nodes = nodes;
		layout->capacity = capacity;
	}
	struct nt_graph_node *node = &layout->nodes[layout->count++];
	*node = (struct nt_graph_node){0};
	return node;
}

/* Set why a node runs its original (PROBED: its copy with probes), and the layout's totals by it. */
static void settle_node(struct nt_layout *layout, struct nt_graph_node *node, enum neutrino_reason reason)
{
	node->reason = reason;
	if (reason != NEUTRINO_REASON_PROBED)
		return;
	layout->probed++;
	layout->twins += node->has_twin;
	if (node->room < node->size)
		node->room = node->size;
	if (node->offset + node->size > layout->size)
		layout->size = node->offset + node->size;
}

/* Where the memory for the results of a further node begins, in bytes from the replay's. */
static uint64_t free_offset(const struct nt_layout *layout)
{
	return (layout->size + NEUTRINO_REGION_ALIGN - 1) / NEUTRINO_REGION_ALIGN * NEUTRINO_REGION_ALIGN;
}

/* For add_graph: what all its calls share. */
struct making {
	const struct nt_graph_target *target;
	struct nt_layout *layout;
	bool has_memory;
};

/*
 * Add one kernel node of the program's graph to the layout (what its kernel nodes run), and have it run its twin (copy
 * with probes). cloned: that node in a clone of the graph, or NULL. may_repeat: it is in the body of a conditional
 * node.
 */
static void add_kernel(struct making *making, CUgraphNode node, CUgraphNode cloned, bool may_repeat)
{
	CUDA_KERNEL_NODE_PARAMS parameters;
	struct place place = {cloned ? NULL : making->target->exec, cloned ? cloned : node, &parameters};

	if (nt_driver.cuGraphKernelNodeGetParams_v2(node, &parameters) != CUDA_SUCCESS)
		return;
	struct nt_graph_node *added = add_node(making->layout);
	if (!added) {
		making->has_memory = false;
		return;
	}
	added->node = node;
	added->is_paired = true;
	added->may_repeat = may_repeat;
	settle_node(making->layout, added, probe_node(making->target, added, &place, free_offset(making->layout)));
	keep_launch(making->target, added, &parameters);
}

/*
 * Add all kernel nodes of a graph, of its child graphs and of bodies of conditional nodes to the layout (what its
 * kernel nodes run). clone: of the graph, or NULL. may_repeat: the graph is in such a body.
 */
static void add_graph(struct making *making, CUgraph graph, CUgraph clone, bool may_repeat)
{
	size_t count = 0;

	if (nt_driver.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || !count)
		return;
	NT_FREED CUgraphNode *nodes = nt_memory_alloc_zeroed(count, sizeof(*nodes));
	if (!nodes || nt_driver.cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS) {
		making->has_memory = making->has_memory && nodes;
		return;
	}
	for (size_t i = 0; i < count && making->has_memory; i++) {
		CUgraphNode cloned = NULL;
		CUgraph child, cloned_child = NULL;
		int type;
		if (nt_driver.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
			continue;
		if (clone && nt_driver.cuGraphNodeFindInClone(&cloned, nodes[i], clone) != CUDA_SUCCESS)
			continue;
		if (type == CU_GRAPH_NODE_TYPE_KERNEL)
			add_kernel(making, nodes[i], cloned, may_repeat);
		else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
			 nt_driver.cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS &&
			 (!cloned || nt_driver.cuGraphChildGraphNodeGetGraph(cloned, &cloned_child) == CUDA_SUCCESS))
			add_graph(making, child, cloned_child, may_repeat);
		else if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL && !clone)
			for (size_t j = 0; (child = nt_graph_bodies_of(nodes[i], j)); j++)
				add_graph(making, child, NULL, true);
	}
}

/*
 * Have the kernel nodes of a graph run their twins (copies with probes) in the executable graph that was made of it, or
 * with a clone in that clone instead; return the layout, which says what each runs. NULL without memory.
 */
struct nt_layout *nt_graph_layout_make(const struct nt_graph_target *target, CUgraph graph, CUgraph clone)
{
	struct making making = {target, nt_memory_alloc_zeroed(1, sizeof(struct nt_layout)), true};

	if (!making.layout)
		return NULL;
	making.layout->graph = target->graph;
	making.layout->set = nt_sets_number_now();
	add_graph(&making, graph, clone, false);
	if (making.has_memory)
		return making.layout;
	/* Nodes that already have their twin would write to memory that nobody reserved. */
	if (!clone)
		nt_graph_layout_restore(target, making.layout);
	nt_graph_layout_free(making.layout);
	return NULL;
}

/* A copy of a layout (what the kernel nodes of a graph run), without its counters. NULL without memory. */
struct nt_layout *nt_graph_layout_copy(const struct nt_layout *from)
{
	struct nt_layout *ret = nt_memory_alloc_zeroed(1, sizeof(*ret));
	bool is_complete = ret && (ret->nodes = nt_memory_alloc_zeroed(from->count + 1, sizeof(*ret->nodes)));

	for (size_t i = 0; is_complete && i < from->count; i++) {
		struct nt_graph_node *to = &ret->nodes[ret->count++];
		*to = from->nodes[i];
		if (!to->packed)
			continue;
		to->packed = nt_memory_alloc(to->packed_size + 1);
		is_complete = to->packed;
		if (is_complete)
			memcpy(to->packed, from->nodes[i].packed, to->packed_size);
	}
	if (!is_complete) {
		if (ret)
			nt_graph_layout_free(ret);
		return NULL;
	}
	ret->graph = from->graph;
	ret->set = from->set;
	ret->probed = from->probed;
	ret->twins = from->twins;
	ret->size = from->size;
	ret->capacity = from->count + 1;
	return ret;
}

/* The layout's record of a node, NULL if it has none. */
static struct nt_graph_node *find_node(struct nt_layout *layout, CUgraphNode node)
{
	for (size_t i = 0; i < layout->count; i++)
		if (layout->nodes[i].node == node)
			return &layout->nodes[i];
	return NULL;
}

/*
 * The program has given a node of the executable graph these parameters (NULL: they are not known): put its twin (copy
 * with probes) there again. No replay (launch of a graph) has used the layout (what its kernel nodes run).
 */
void nt_graph_layout_set(const struct nt_graph_target *target, struct nt_layout *layout, CUgraphNode node,
			 const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct nt_graph_node *found = find_node(layout, node);
	struct place place = {target->exec, node, parameters};

	if (!found)
		return;
	struct nt_graph_node before = *found;
	layout->probed -= before.reason == NEUTRINO_REASON_PROBED && !before.is_left_out;
	layout->twins -= before.has_twin;
	nt_memory_free(before.packed);
	*found = (struct nt_graph_node){.node = node, .kernel = before.kernel, .may_repeat = before.may_repeat,
					.is_disabled = before.is_disabled, .is_paired = before.is_paired,
					.offset = before.offset, .room = before.room};
	if (!parameters) {
		settle_node(layout, found, NEUTRINO_REASON_GRAPH);
		return;
	}
	/* Where its regions were, as long as they fit: programs may set parameters before each replay. */
	enum neutrino_reason reason = probe_node(target, found, &place, before.room ? before.offset : free_offset(layout));
	if (reason == NEUTRINO_REASON_PROBED && before.room && found->size > before.room) {
		nt_memory_free(found->packed);
		found->packed = NULL;
		found->has_twin = false;
		found->room = 0;
		reason = probe_node(target, found, &place, free_offset(layout));
		if (reason != NEUTRINO_REASON_PROBED && nt_driver.cuGraphExecKernelNodeSetParams_v2(target->exec, node, parameters))
			nt_lines_note("graph %u: a kernel node could not be put back", layout->graph);
	}
	settle_node(layout, found, reason);
	keep_launch(target, found, parameters);
}

/*
 * The program has given the kernel nodes in a child graph those of another graph: put their twins (copies with probes)
 * there again. No replay (launch of a graph) has used the layout (what its kernel nodes run).
 */
void nt_graph_layout_set_child(const struct nt_graph_target *target, struct nt_layout *layout, CUgraph child, CUgraph other)
{
	size_t count = 0, other_count = 0;
	CUgraphNode *nodes = NULL, *others = NULL;

	if (nt_driver.cuGraphGetNodes(child, NULL, &count) == CUDA_SUCCESS &&
	    nt_driver.cuGraphGetNodes(other, NULL, &other_count) == CUDA_SUCCESS && (nodes = nt_memory_alloc_zeroed(count + 1, sizeof(*nodes))) &&
	    (others = nt_memory_alloc_zeroed(other_count + 1, sizeof(*others))) &&
	    nt_driver.cuGraphGetNodes(child, nodes, &count) == CUDA_SUCCESS &&
	    nt_driver.cuGraphGetNodes(other, others, &other_count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count; i++) {
			CUDA_KERNEL_NODE_PARAMS parameters;
			int type;
			if (nt_driver.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
				continue;
			CUgraph inner, other_inner;
			/* The driver has paired the nodes in the order in which they were added. */
			bool is_paired = count == other_count;
			if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
				is_paired = is_paired && nt_driver.cuGraphKernelNodeGetParams_v2(others[i], &parameters) == CUDA_SUCCESS;
				nt_graph_layout_set(target, layout, nodes[i], is_paired ? &parameters : NULL);
			} else if (type == CU_GRAPH_NODE_TYPE_GRAPH && is_paired &&
				   nt_driver.cuGraphChildGraphNodeGetGraph(nodes[i], &inner) == CUDA_SUCCESS &&
				   nt_driver.cuGraphChildGraphNodeGetGraph(others[i], &other_inner) == CUDA_SUCCESS) {
				nt_graph_layout_set_child(target, layout, inner, other_inner);
			}
		}
	nt_memory_free(nodes);
	nt_memory_free(others);
}

/* The program has enabled or disabled a node: note it in the layout (what its kernel nodes run). */
void nt_graph_layout_enable(struct nt_layout *layout, CUgraphNode node, bool is_enabled)
{
	struct nt_graph_node *found = find_node(layout, node);

	if (found)
		found->is_disabled = !is_enabled;
}

/* A node's launch as the program has it. extra: room for what the result points at. */
static CUDA_KERNEL_NODE_PARAMS own_launch(const struct nt_graph_target *target, struct nt_graph_node *node, void *extra[5])
{
	extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
	extra[1] = node->packed;
	extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
	extra[3] = &node->packed_size;
	extra[4] = CU_LAUNCH_PARAM_END;
	return (CUDA_KERNEL_NODE_PARAMS){
		.func = node->kern ? NULL : node->function,
		.kern = node->kern,
		.gridDimX = node->grid[0],
		.gridDimY = node->grid[1],
		.gridDimZ = node->grid[2],
		.blockDimX = node->block[0],
		.blockDimY = node->block[1],
		.blockDimZ = node->block[2],
		.sharedMemBytes = node->shared,
		.extra = node->packed_size ? extra : NULL,
		.ctx = target->context,
	};
}

/*
 * Put a node's original kernel into the executable graph. False, with a note, if that fails, or if the node cannot be
 * named with certainty.
 */
bool nt_graph_layout_put_original(const struct nt_graph_target *target, struct nt_layout *layout, struct nt_graph_node *node)
{
	void *extra[5];
	CUDA_KERNEL_NODE_PARAMS parameters = own_launch(target, node, extra);

	if (!node->is_paired)
		return false;
	if (nt_driver.cuGraphExecKernelNodeSetParams_v2(target->exec, node->node, &parameters) != CUDA_SUCCESS) {
		nt_lines_note("graph %u: a kernel node could not be put back", layout->graph);
		node->is_paired = false; /* so that it is not tried again */
		return false;
	}
	node->has_twin = false;
	layout->twins--;
	return true;
}

/*
 * Put a node's twin (copy with probes) into the executable graph again, with its results where they were. False,
 * perhaps with a note, if that fails, or if the node cannot be named with certainty.
 */
bool nt_graph_layout_put_twin(const struct nt_graph_target *target, struct nt_layout *layout, struct nt_graph_node *node)
{
	void *extra[5];
	CUDA_KERNEL_NODE_PARAMS parameters = own_launch(target, node, extra);
	struct nt_function *function = nt_function_find(node->kern ? node->kern : node->function);
	struct place place = {target->exec, node->node, &parameters};
	struct nt_launch launch = launch_of(&place);
	struct nt_attempt attempt = {.function = function, .launch = &launch, .context = target->context,
				     .cell = target->cell, .base = node->offset};

	if (!node->is_paired || !function || function->kernel != node->kernel ||
	    nt_launch_extent(&launch, node->kernel, &attempt.extent) != NEUTRINO_REASON_PROBED ||
	    node->kernel->backend->choose(&attempt) != NEUTRINO_REASON_PROBED || attempt.variant != node->variant)
		return false;
	attempt.extent.log_units = node->log_units;
	if (node->kernel->backend->submit(&attempt) != CUDA_SUCCESS) {
		nt_lines_note("graph %u: a kernel node could not get its twin again", layout->graph);
		return false;
	}
	node->has_twin = true;
	layout->twins++;
	return true;
}

/*
 * Whether replays (launches of graphs) need memory for results: twins (copies with probes) are in the executable graph,
 * or with --memusage would be.
 */
bool nt_graph_layout_records(const struct nt_layout *layout)
{
	return nt_own_memory_is_memusage ? layout->probed : layout->twins;
}

/*
 * Put all original kernels back into the executable graph, for good. A node that cannot be named with certainty keeps
 * its twin (copy with probes).
 */
void nt_graph_layout_restore(const struct nt_graph_target *target, struct nt_layout *layout)
{
	for (size_t i = 0; i < layout->count; i++) {
		struct nt_graph_node *node = &layout->nodes[i];
		/* A node that cannot be named with certainty keeps its twin, and its cell is written as before. */
		if (node->reason != NEUTRINO_REASON_PROBED || (node->has_twin && !nt_graph_layout_put_original(target, layout, node)))
			continue;
		node->reason = NEUTRINO_REASON_GRAPH;
		layout->probed -= !node->is_left_out;
	}
}

/*
 * Set what a node runs in a layout for another set of probes: it has its original now. Its twin (copy with probes) of that
 * set, if it has one, and its launch is known.
 */
static void change_node(const struct nt_graph_target *target, struct nt_layout *layout, struct nt_graph_node *node)
{
	struct nt_graph_node before = *node;
	void *extra[5];
	CUDA_KERNEL_NODE_PARAMS parameters = own_launch(target, &before, extra);
	struct place place = {target->exec, node->node, &parameters};
	const struct nt_function *function = nt_function_find(before.kern ? before.kern : before.function);

	node->is_left_out = false;
	if (function)
		node->kernel = function->kernel;
	if (!before.packed || !before.is_paired || before.has_twin || !function) {
		enum neutrino_reason reason = function ? nt_function_reason(function) : before.reason;
		bool has_other = reason == NEUTRINO_REASON_PROBED || before.has_twin;
		node->reason = has_other ? NEUTRINO_REASON_GRAPH : reason;
		return;
	}
	*node = (struct nt_graph_node){.node = before.node, .may_repeat = before.may_repeat, .is_disabled = before.is_disabled,
				       .is_paired = true};
	enum neutrino_reason reason = probe_node(target, node, &place, free_offset(layout));
	if (node->packed) {
		nt_memory_free(before.packed);
	} else {
		node->function = before.function;
		node->kern = before.kern;
		node->packed = before.packed;
		node->packed_size = before.packed_size;
	}
	settle_node(layout, node, reason);
}

/*
 * Have the nodes of an executable graph run their twins (copies with probes) of the set of probes in force, whose number is
 * given, in place of another's; return the layout that says so (what each runs), NULL without memory. A twin that cannot be
 * replaced, since its node cannot be named with certainty, stays, and is not recorded.
 */
struct nt_layout *nt_graph_layout_for_set(const struct nt_graph_target *target, const struct nt_layout *from, uint32_t set)
{
	struct nt_layout *ret = nt_graph_layout_copy(from);

	if (!ret)
		return NULL;
	ret->set = set;
	ret->probed = 0;
	ret->size = 0;
	/* First all that stays, with its memory. */
	for (size_t i = 0; i < ret->count; i++) {
		struct nt_graph_node *node = &ret->nodes[i];
		if (node->has_twin && !nt_graph_layout_put_original(target, ret, node) && node->offset + node->size > ret->size)
			ret->size = node->offset + node->size;
	}
	for (size_t i = 0; i < ret->count; i++)
		change_node(target, ret, &ret->nodes[i]);
	return ret;
}

/*
 * Bytes that a replay (launch of a graph) needs for the results of its kernels with the set of probes in force, whatever it
 * runs now. Calls no driver.
 */
uint64_t nt_graph_layout_size_now(const struct nt_graph_target *target, const struct nt_layout *layout)
{
	uint64_t size = 0, kept = layout->size;

	for (size_t i = 0; i < layout->count; i++) {
		const struct nt_graph_node *node = &layout->nodes[i];
		struct nt_function *function = nt_function_find(node->kern ? node->kern : node->function);
		struct nt_launch launch = {.shared = node->shared};
		struct nt_attempt attempt = {.function = function, .launch = &launch, .context = target->context, .cell = target->cell};
		memcpy(launch.grid, node->grid, sizeof(launch.grid));
		memcpy(launch.block, node->block, sizeof(launch.block));
		if (!function || nt_function_reason(function) != NEUTRINO_REASON_PROBED ||
		    nt_launch_extent(&launch, function->kernel, &attempt.extent) != NEUTRINO_REASON_PROBED)
			continue;
		nt_backend_measure(&attempt, target->most);
		size += (attempt.size + NEUTRINO_REGION_ALIGN - 1) / NEUTRINO_REGION_ALIGN * NEUTRINO_REGION_ALIGN;
	}
	/* Twins that stay keep their memory in front. */
	return kept + size;
}

/* Free a layout (what its kernel nodes run) with all that it has. */
void nt_graph_layout_free(struct nt_layout *layout)
{
	for (size_t i = 0; i < layout->count; i++)
		nt_memory_free(layout->nodes[i].packed);
	nt_memory_free(layout->nodes);
	nt_memory_free(layout);
}
