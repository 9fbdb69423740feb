/* Agents: a processor and a GPU, and what they say of themselves. */
#include "stand_in.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const hsa_isa_t ISA = {7};

const char *stand_in_isa(void)
{
	const char *isa = getenv("HSA_STAND_IN_ISA");
	return isa ? isa : "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-";
}

static bool is_wave32(void) { return strstr(stand_in_isa(), "gfx9") == NULL; }

static void processor(char *name)
{
	const char *begin = strstr(stand_in_isa(), "gfx");
	size_t length = begin ? strcspn(begin, ":") : 0;
	memcpy(name, begin ? begin : "", length);
	name[length] = 0;
}

hsa_status_t hsa_init(void) { return HSA_STATUS_SUCCESS; }

hsa_status_t hsa_shut_down(void) { return HSA_STATUS_SUCCESS; }

hsa_status_t hsa_status_string(hsa_status_t status, const char **text)
{
	*text = status == HSA_STATUS_SUCCESS ? "success" : "a failure of the stand-in";
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_system_get_info(hsa_system_info_t attribute, void *value)
{
	switch ((int)attribute) {
	case HSA_SYSTEM_INFO_VERSION_MAJOR:
	case HSA_SYSTEM_INFO_VERSION_MINOR:
		*(uint16_t *)value = 1;
		break;
	case HSA_SYSTEM_INFO_TIMESTAMP:
		*(uint64_t *)value = 1000;
		break;
	case HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY:
		*(uint64_t *)value = 100000000;
		break;
	case HSA_SYSTEM_INFO_SIGNAL_MAX_WAIT:
		*(uint64_t *)value = UINT64_MAX;
		break;
	default:
		*(uint8_t *)value = 0;
	}
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_system_extension_supported(uint16_t extension, uint16_t major, uint16_t minor, bool *result)
{
	*result = extension == HSA_EXTENSION_AMD_LOADER;
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_agent_extension_supported(uint16_t extension, hsa_agent_t agent, uint16_t major, uint16_t minor, bool *result)
{
	*result = false;
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_iterate_agents(hsa_status_t (*callback)(hsa_agent_t, void *), void *data)
{
	for (uint64_t handle = AGENT_CPU; handle <= AGENT_GPU; handle++) {
		hsa_status_t status = callback((hsa_agent_t){handle}, data);
		if (status != HSA_STATUS_SUCCESS)
			return status;
	}
	return HSA_STATUS_SUCCESS;
}

static uint32_t number(hsa_agent_t agent, int attribute)
{
	switch (attribute) {
	case HSA_AGENT_INFO_DEVICE:
		return agent.handle == AGENT_GPU ? HSA_DEVICE_TYPE_GPU : HSA_DEVICE_TYPE_CPU;
	case HSA_AGENT_INFO_PROFILE:
		return HSA_PROFILE_BASE;
	case HSA_AGENT_INFO_DEFAULT_FLOAT_ROUNDING_MODE:
		return HSA_DEFAULT_FLOAT_ROUNDING_MODE_NEAR;
	case HSA_AGENT_INFO_FEATURE:
		return HSA_AGENT_FEATURE_KERNEL_DISPATCH;
	case HSA_AGENT_INFO_WAVEFRONT_SIZE:
		return is_wave32() ? 32 : 64;
	case HSA_AGENT_INFO_WORKGROUP_MAX_SIZE:
		return 1024;
	case HSA_AGENT_INFO_GRID_MAX_SIZE:
		return UINT32_MAX;
	case HSA_AGENT_INFO_FBARRIER_MAX_SIZE:
		return 32;
	case HSA_AGENT_INFO_QUEUES_MAX:
		return 128;
	case HSA_AGENT_INFO_QUEUE_MIN_SIZE:
		return 64;
	case HSA_AGENT_INFO_QUEUE_MAX_SIZE:
		return 131072;
	case HSA_AGENT_INFO_QUEUE_TYPE:
		return HSA_QUEUE_TYPE_MULTI;
	case HSA_AGENT_INFO_NODE:
		return (uint32_t)agent.handle - AGENT_CPU;
	case HSA_AMD_AGENT_INFO_CHIP_ID:
		return 0x740c;
	case HSA_AMD_AGENT_INFO_CACHELINE_SIZE:
		return 64;
	case HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT:
	case HSA_AMD_AGENT_INFO_COOPERATIVE_COMPUTE_UNIT_COUNT:
		return 104;
	case HSA_AMD_AGENT_INFO_MAX_CLOCK_FREQUENCY:
		return 1700;
	case HSA_AMD_AGENT_INFO_DRIVER_NODE_ID:
		return 1;
	case HSA_AMD_AGENT_INFO_MAX_ADDRESS_WATCH_POINTS:
		return 4;
	case HSA_AMD_AGENT_INFO_BDFID:
		return 0x300;
	case HSA_AMD_AGENT_INFO_MEMORY_WIDTH:
		return 4096;
	case HSA_AMD_AGENT_INFO_MEMORY_MAX_FREQUENCY:
		return 1600;
	case HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU:
		return 32;
	case HSA_AMD_AGENT_INFO_NUM_SIMDS_PER_CU:
		return 4;
	case HSA_AMD_AGENT_INFO_NUM_SHADER_ENGINES:
		return 8;
	case HSA_AMD_AGENT_INFO_NUM_SHADER_ARRAYS_PER_SE:
		return 1;
	default:
		/* Sizes of images. */
		return attribute >= 0x3000 && attribute < 0x3010 ? 16384 : 0;
	}
}

hsa_status_t hsa_agent_get_info(hsa_agent_t agent, hsa_agent_info_t attribute, void *value)
{
	uint32_t *words = value;
	uint16_t *halves = value;
	switch ((int)attribute) {
	case HSA_AGENT_INFO_NAME:
		if (agent.handle == AGENT_GPU)
			processor(value);
		else
			strcpy(value, "cpu");
		break;
	case HSA_AGENT_INFO_VENDOR_NAME:
		strcpy(value, "AMD");
		break;
	case HSA_AMD_AGENT_INFO_PRODUCT_NAME:
		strcpy(value, "stand-in");
		break;
	case HSA_AMD_AGENT_INFO_UUID:
		strcpy(value, "GPU-0123456789abcdef");
		break;
	case HSA_AGENT_INFO_WORKGROUP_MAX_DIM:
		halves[0] = halves[1] = halves[2] = 1024;
		break;
	case HSA_AGENT_INFO_GRID_MAX_DIM:
		words[0] = words[1] = words[2] = UINT32_MAX;
		break;
	case HSA_AGENT_INFO_CACHE_SIZE:
		words[0] = 16384;
		words[1] = 8 << 20;
		words[2] = words[3] = 0;
		break;
	case HSA_AGENT_INFO_ISA:
		*(hsa_isa_t *)value = ISA;
		break;
	case HSA_AGENT_INFO_EXTENSIONS:
		memset(value, 0, 128);
		break;
	case HSA_AMD_AGENT_INFO_HDP_FLUSH:
		memset(value, 0, sizeof(hsa_amd_hdp_flush_t));
		break;
	case HSA_AGENT_INFO_VERSION_MAJOR:
	case HSA_AGENT_INFO_VERSION_MINOR:
		halves[0] = 1;
		break;
	case HSA_AGENT_INFO_FAST_F16_OPERATION:
		*(bool *)value = true;
		break;
	case HSA_AMD_AGENT_INFO_COOPERATIVE_QUEUES:
	case HSA_AMD_AGENT_INFO_SVM_DIRECT_HOST_ACCESS:
		*(bool *)value = false;
		break;
	default:
		words[0] = number(agent, attribute);
	}
	return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_agent_iterate_isas(hsa_agent_t agent, hsa_status_t (*callback)(hsa_isa_t, void *), void *data)
{
	return callback(ISA, data);
}

hsa_status_t hsa_isa_get_info_alt(hsa_isa_t isa, hsa_isa_info_t attribute, void *value)
{
	if (attribute == HSA_ISA_INFO_NAME_LENGTH)
		*(uint32_t *)value = (uint32_t)strlen(stand_in_isa()) + 1;
	else if (attribute == HSA_ISA_INFO_NAME)
		strcpy(value, stand_in_isa());
	return HSA_STATUS_SUCCESS;
}
