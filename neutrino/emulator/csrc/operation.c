#include "operation.h"

#include <stdlib.h>
#include <string.h>

#include "conditional.h"
#include "copy.h"
#include "event.h"
#include "graph.h"
#include "graph_memory.h"
#include "launch.h"
#include "plan.h"
#include "settings.h"
#include "write_value.h"

/* Replace a pointer to size bytes by one to a copy of them. False without memory; NULL stays NULL. */
static bool duplicate_bytes(uint8_t **data, size_t size)
{
	if (!*data)
		return true;
	uint8_t *copy = malloc(size ? size : 1);
	if (copy)
		memcpy(copy, *data, size);
	*data = copy;
	return copy != NULL;
}

/* Replace the plans of a conditional node's bodies by copies, and hold its condition. False without memory. */
static bool copy_bodies(struct ed_operation *operation)
{
	struct ed_plan **from = operation->conditional.bodies;
	uint32_t size = operation->conditional.size, count = 0;

	if (from) {
		struct ed_plan **bodies = calloc(size, sizeof(*bodies));
		while (bodies && count < size && (bodies[count] = ed_plan_copy(from[count])))
			count++;
		if (count < size) {
			while (count)
				ed_plan_release(bodies[--count]);
			free(bodies);
			return false;
		}
		operation->conditional.bodies = bodies;
	}
	ed_condition_hold(operation->conditional.condition);
	return true;
}

/* Copy an operation (a launch, a copy, ... of a stream or a graph's node) with what it owns. False without memory. */
bool ed_operation_copy(struct ed_operation *to, const struct ed_operation *from)
{
	*to = *from;
	switch (from->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return duplicate_bytes(&to->kernel.parameters, to->kernel.size);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return duplicate_bytes(&to->copy.staged, to->copy.width * to->copy.height * to->copy.depth);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		if (to->event.mark)
			__atomic_add_fetch(&to->event.mark->holders, 1, __ATOMIC_ACQ_REL);
		return true;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		to->plan = ed_plan_copy(from->plan);
		return to->plan != NULL;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		ed_graph_memory_hold(to->memory);
		return true;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return copy_bodies(to);
	default:
		return true;
	}
}

__thread bool ed_in_host_function;

/*
 * Call a function of the program, in a stream's turn. Callbacks get the device's fault; host functions are skipped
 * after one.
 */
static CUresult run_host(struct ed_operation *operation)
{
	ed_in_host_function = true;
	if (operation->host.callback)
		operation->host.callback(operation->host.stream, ed_device_fault(),
					 operation->host.data);
	else if (!ed_device_fault())
		operation->host.function(operation->host.data);
	ed_in_host_function = false;
	return CUDA_SUCCESS;
}

/*
 * Run an operation in the calling thread, which is a queue's. An error is recorded as the device's fault, and returned.
 */
CUresult ed_operation_run(struct ed_operation *operation)
{
	CUresult result = CUDA_SUCCESS;

	switch (operation->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return ed_launch_run(&operation->kernel);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		result = ed_copy_run(&operation->copy);
		break;
	case CU_GRAPH_NODE_TYPE_MEMSET:
		result = ed_fill_run(&operation->fill);
		break;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		result = ed_write_run(&operation->write);
		break;
	case CU_GRAPH_NODE_TYPE_HOST:
		return run_host(operation);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		if (operation->event.mark)
			__atomic_store_n(&operation->event.mark->done_ns, ed_now_ns(), __ATOMIC_RELEASE);
		break;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		if (operation->is_whole)
			ed_condition_begin(operation->plan);
		return ed_plan_run(operation->plan);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		ed_graph_memory_run(operation->memory);
		break;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return ed_condition_run(operation);
	default:
		break;
	}
	if (result)
		ed_device_fail(result, "a copy, fill or write found its memory freed, or was set to fail");
	return result;
}

/* Free what an operation owns. */
void ed_operation_release(struct ed_operation *operation)
{
	switch (operation->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		free(operation->kernel.parameters);
		break;
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		free(operation->copy.staged);
		break;
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		ed_mark_release(operation->event.mark);
		break;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		ed_plan_release(operation->plan);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		ed_graph_memory_release(operation->memory);
		break;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		for (uint32_t i = 0; operation->conditional.bodies && i < operation->conditional.size; i++)
			ed_plan_release(operation->conditional.bodies[i]);
		free(operation->conditional.bodies);
		ed_condition_release(operation->conditional.condition);
		break;
	default:
		break;
	}
}
