/* Memory: the process's own is the GPU's too. All of the GPU's is in one arena at an address that is known, so that who
   executes kernels has it as one array; nothing is given back. */
#define _GNU_SOURCE
#include "stand_in.h"

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

static char *arena;
static size_t used;

void *hsa_stand_in_arena(size_t *size)
{
	*size = used;
	return arena;
}

void *stand_in_allocate(size_t size)
{
	size_t whole = (size + PAGE - 1) & ~(size_t)(PAGE - 1);
	if (!arena) {
		void *made = mmap((void *)STAND_IN_ARENA, STAND_IN_ARENA_SIZE, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
		if (made != (void *)STAND_IN_ARENA)
			return NULL;
		arena = made;
	}
	/* A page between two is nobody's. */
	if (whole + PAGE > STAND_IN_ARENA_SIZE - used)
		return NULL;
	char *memory = arena + used;
	used += whole + PAGE;
	return memory;
}

hsa_status_t hsa_amd_agent_iterate_memory_pools(hsa_agent_t agent, hsa_status_t (*callback)(hsa_amd_memory_pool_t, void *), void *data)
{
	static const uint64_t of_cpu[] = {POOL_FINE, POOL_KERNARG, POOL_COARSE, 0}, of_gpu[] = {POOL_GPU, POOL_GROUP, 0};
	for (const uint64_t *pool = agent.handle == AGENT_GPU ? of_gpu : of_cpu; *pool; pool++) {
		hsa_status_t status = callback((hsa_amd_memory_pool_t){*pool}, data);
		if (status != HSA_STATUS_SUCCESS)
			return status;
	}
	return HSA_STATUS_SUCCESS;
}

static uint32_t flags(uint64_t pool)
{
	switch (pool) {
	case POOL_FINE:
		return HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED;
	case POOL_KERNARG:
		return HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED | HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT;
	default:
		return HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED;
	}
}

hsa_status_t hsa_amd_memory_pool_get_info(hsa_amd_memory_pool_t pool, hsa_amd_memory_pool_info_t attribute, void *value)
{
	switch ((int)attribute) {
	case HSA_AMD_MEMORY_POOL_INFO_SEGMENT:
		*(uint32_t *)value = pool.handle == POOL_GROUP ? HSA_AMD_SEGMENT_GROUP : HSA_AMD_SEGMENT_GLOBAL;
		break;
	case HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS:
		*(uint32_t *)value = flags(pool.handle);
		break;
	case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED:
		*(bool *)value = pool.handle != POOL_GROUP;
		break;
	case HSA_AMD_MEMORY_POOL_INFO_ACCESSIBLE_BY_ALL:
		*(bool *)value = pool.handle < POOL_GPU;
		break;
	case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE:
	case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALIGNMENT:
		*(size_t *)value = PAGE;
		break;
	default:
		*(size_t *)value = pool.handle == POOL_GROUP ? 65536 : (size_t)4 << 30;
	}
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_agent_memory_pool_get_info(hsa_agent_t agent, hsa_amd_memory_pool_t pool, hsa_amd_agent_memory_pool_info_t attribute, void *value)
{
	if (attribute == HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS)
		*(uint32_t *)value = HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT;
	else if (attribute == HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS)
		*(uint32_t *)value = 0;
	else
		memset(value, 0, sizeof(hsa_amd_memory_pool_link_info_t));
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_pool_allocate(hsa_amd_memory_pool_t pool, size_t size, uint32_t options, void **memory)
{
	*memory = stand_in_allocate(size);
	return *memory ? HSA_STATUS_SUCCESS : HSA_STATUS_ERROR_OUT_OF_RESOURCES;
}

hsa_status_t hsa_amd_memory_pool_free(void *memory) { return HSA_STATUS_SUCCESS; }

hsa_status_t hsa_amd_agents_allow_access(uint32_t count, const hsa_agent_t *agents, const uint32_t *options, const void *memory)
{
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_lock_to_pool(void *host, size_t size, hsa_agent_t *agents, int count, hsa_amd_memory_pool_t pool, uint32_t options, void **memory)
{
	*memory = host;
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_unlock(void *host) { return HSA_STATUS_SUCCESS; }

hsa_status_t hsa_memory_copy(void *to, const void *from, size_t size)
{
	memcpy(to, from, size);
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_memory_register(void *memory, size_t size) { return HSA_STATUS_SUCCESS; }

hsa_status_t hsa_memory_deregister(void *memory, size_t size) { return HSA_STATUS_SUCCESS; }

hsa_status_t hsa_amd_pointer_info(const void *memory, hsa_amd_pointer_info_t *info, void *(*allocate)(size_t), uint32_t *count, hsa_agent_t **accessible)
{
	memset(info, 0, sizeof *info);
	info->size = sizeof *info;
	info->type = HSA_EXT_POINTER_TYPE_HSA;
	info->agentBaseAddress = info->hostBaseAddress = (void *)(uintptr_t)memory;
	info->sizeInBytes = PAGE;
	info->agentOwner.handle = AGENT_GPU;
	return HSA_STATUS_SUCCESS;
}
