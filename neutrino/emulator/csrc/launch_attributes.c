#include "launch_attributes.h"

#include <string.h>

#include "event.h"
#include "module.h"
#include "settings.h"
#include "stream.h"

#define CLUSTER_MOST 8u /* blocks, without CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED */

static const int tunings[ED_TUNINGS] = {
	CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
	CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
	CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
	CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
};

/* The device's choice; the default domain is 0, the remote one 1; the default domain; the device's choice. */
const uint32_t ed_tuning_default[ED_TUNINGS] = {0, 1 << 8, 0, UINT32_MAX};

/*
 * Where a launch's work keeps the value of an attribute for tuning (which has no effect, but can be asked for); NULL if
 * the attribute is none.
 */
uint32_t *ed_tuning_find(struct ed_kernel_work *work, int attribute)
{
	for (size_t i = 0; i < ED_TUNINGS; i++)
		if (tunings[i] == attribute)
			return &work->tuning[i];
	return NULL;
}

/* Read the attributes of a launch. Unknown ones are CUDA_ERROR_INVALID_VALUE. ret, zeroed before, refers to config. */
CUresult ed_launch_attributes_read(const CUlaunchConfig *config, struct ed_launch_attributes *ret)
{
	if (config->numAttrs && !config->attrs)
		return CUDA_ERROR_INVALID_VALUE;
	ret->config = config;
	for (unsigned i = 0; i < config->numAttrs; i++) {
		const CUlaunchAttribute *attribute = &config->attrs[i];
		if (attribute->id < 0 || attribute->id > CU_LAUNCH_ATTRIBUTE_LAST)
			return CUDA_ERROR_INVALID_VALUE;
		switch (attribute->id) {
		case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
			ret->is_cooperative = attribute->value.cooperative != 0;
			break;
		case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
			memcpy(ret->cluster, &attribute->value.clusterDim, sizeof(ret->cluster));
			break;
		case CU_LAUNCH_ATTRIBUTE_PRIORITY:
			ret->has_priority = true;
			ret->priority = attribute->value.priority;
			break;
		case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
			ret->events[0] = attribute->value.event;
			break;
		case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
			ret->events[1] = attribute->value.event;
			break;
		case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
			if (attribute->value.cooperative)
				return CUDA_ERROR_NOT_SUPPORTED;
			ret->says_updatable = true;
			break;
		default:
			/*
			 * Programmatic stream serialization too: a launch may begin before the one before it has
			 * ended, and need not.
			 */
			break;
		}
	}
	return CUDA_SUCCESS;
}

/*
 * Check the shape of a launch's clusters of blocks; zeros: none. Blocks run as clusters of one, which only code that
 * asks for its place or reaches other blocks can notice: then it is an error.
 */
static CUresult check_cluster(const uint32_t cluster[3], const struct ed_kernel_work *work, const struct ed_loaded *code)
{
	uint64_t blocks = (uint64_t)cluster[0] * cluster[1] * cluster[2];

	if (blocks == 1 || !(cluster[0] | cluster[1] | cluster[2]))
		return CUDA_SUCCESS;
	if (!blocks || blocks > CLUSTER_MOST)
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	for (int i = 0; i < 3; i++)
		if (work->grid[i] % cluster[i])
			return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	if (code->needs_clusters) {
		ed_say("clusters of blocks are not run");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_SUCCESS;
}

/*
 * Check a launch against its attributes, and let its work have those that a graph's node shows. stream: as the program
 * gave it.
 */
CUresult ed_launch_attributes_apply(const struct ed_launch_attributes *attributes, struct ed_queue *queue,
				    CUstream stream, struct ed_kernel_work *work)
{
	bool is_captured = __atomic_load_n(&queue->capture, __ATOMIC_ACQUIRE);
	CUfunction function;
	CUresult result = ed_function_of(queue->context, work->function, &function);

	if (!result)
		result = check_cluster(attributes->cluster, work, &function->module->loaded);
	if (!result && attributes->says_updatable && !is_captured)
		result = CUDA_ERROR_NOT_SUPPORTED;
	for (int i = 0; i < 2 && !result; i++)
		if (attributes->events[i] && !ed_object_check(attributes->events[i], ED_EVENT))
			result = CUDA_ERROR_INVALID_HANDLE;
		else if (attributes->events[i] && is_captured)
			/* Edges of graphs have no ports here. */
			result = CUDA_ERROR_NOT_SUPPORTED;
	memcpy(work->cluster, attributes->cluster, sizeof(work->cluster));
	work->priority = attributes->has_priority ? attributes->priority
			 : ed_object_is(stream, ED_STREAM) ? stream->priority : 0;
	for (unsigned i = 0; attributes->config && i < attributes->config->numAttrs; i++) {
		const CUlaunchAttribute *attribute = &attributes->config->attrs[i];
		uint32_t *tuning = ed_tuning_find(work, attribute->id);
		if (tuning)
			memcpy(tuning, &attribute->value, sizeof(*tuning));
	}
	return result;
}

/* After a launch: record the events that its attributes name. */
CUresult ed_launch_attributes_record(const struct ed_launch_attributes *attributes, struct ed_queue *queue)
{
	CUresult result = CUDA_SUCCESS;

	for (int i = 0; i < 2 && !result; i++)
		if (attributes->events[i])
			result = ed_event_record(attributes->events[i], queue);
	return result;
}
