/* Queries of the device and the driver. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "channel.h"
#include "context.h"
#include "occupancy.h"
#include "settings.h"

#define DEVICE_NAME "Neutrino embedded device (PTX interpreter, step clock)"

/*
 * By CUdevice_attribute, those of an sm_90; others are 0. The clock rates have no meaning: there is only a step clock.
 */
static const int attributes[] = {
	[1] = 1024,	     /* MAX_THREADS_PER_BLOCK */
	[2] = 1024,	     /* MAX_BLOCK_DIM_X */
	[3] = 1024,	     /* MAX_BLOCK_DIM_Y */
	[4] = 64,	     /* MAX_BLOCK_DIM_Z */
	[5] = 2147483647,    /* MAX_GRID_DIM_X */
	[6] = 65535,	     /* MAX_GRID_DIM_Y */
	[7] = 65535,	     /* MAX_GRID_DIM_Z */
	[8] = 49152,	     /* MAX_SHARED_MEMORY_PER_BLOCK */
	[9] = 65536,	     /* TOTAL_CONSTANT_MEMORY */
	[10] = 32,	     /* WARP_SIZE */
	[11] = 2147483647,   /* MAX_PITCH */
	[12] = 65536,	     /* MAX_REGISTERS_PER_BLOCK */
	[13] = 1000,	     /* CLOCK_RATE, kHz */
	[14] = 512,	     /* TEXTURE_ALIGNMENT */
	[15] = 1,	     /* GPU_OVERLAP */
	[16] = ED_MULTIPROCESSORS,
	[19] = 1,	     /* CAN_MAP_HOST_MEMORY */
	[30] = 512,	     /* SURFACE_ALIGNMENT */
	[31] = 1,	     /* CONCURRENT_KERNELS */
	[36] = 1000,	     /* MEMORY_CLOCK_RATE, kHz */
	[37] = 5120,	     /* GLOBAL_MEMORY_BUS_WIDTH */
	[38] = 52428800,     /* L2_CACHE_SIZE */
	[39] = 2048,	     /* MAX_THREADS_PER_MULTIPROCESSOR */
	[40] = 3,	     /* ASYNC_ENGINE_COUNT */
	[41] = 1,	     /* UNIFIED_ADDRESSING */
	[51] = 32,	     /* TEXTURE_PITCH_ALIGNMENT */
	[75] = 9,	     /* COMPUTE_CAPABILITY_MAJOR */
	[76] = 0,	     /* COMPUTE_CAPABILITY_MINOR */
	[78] = 1,	     /* STREAM_PRIORITIES_SUPPORTED */
	[79] = 1,	     /* GLOBAL_L1_CACHE_SUPPORTED */
	[80] = 1,	     /* LOCAL_L1_CACHE_SUPPORTED */
	[81] = 233472,	     /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
	[82] = 65536,	     /* MAX_REGISTERS_PER_MULTIPROCESSOR */
	[83] = 1,	     /* MANAGED_MEMORY */
	[87] = 2,	     /* SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO */
	[89] = 1,	     /* CONCURRENT_MANAGED_ACCESS */
	[92] = 0,	     /* CAN_USE_STREAM_MEM_OPS_V1: see write_value.c */
	[93] = 0,	     /* CAN_USE_64_BIT_STREAM_MEM_OPS_V1 */
	[95] = 1,	     /* COOPERATIVE_LAUNCH */
	[97] = 232448,	     /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
	[99] = 1,	     /* HOST_REGISTER_SUPPORTED */
	[106] = 32,	     /* MAX_BLOCKS_PER_MULTIPROCESSOR */
	[111] = 1024,	     /* RESERVED_SHARED_MEMORY_PER_BLOCK */
	[115] = 1,	     /* MEMORY_POOLS_SUPPORTED */
	[122] = 1,	     /* CAN_USE_64_BIT_STREAM_MEM_OPS */
	[126] = 1,	     /* MEM_SYNC_DOMAIN_COUNT */
	[147] = 0,	     /* the last that is known */
};

/* Emulated CUDA driver call: the CUDA version that this driver is of. Also before cuInit. */
API cuDriverGetVersion(int *version)
{
	static struct ed_counter counter;

	ed_count(&counter, __func__, __builtin_return_address(0));
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = ED_DRIVER_VERSION;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: how many devices there are, always 1. */
API cuDeviceGetCount(int *count)
{
	ENTER_OR_RETURN();
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = 1;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the device of an ordinal; there is only 0. */
API cuDeviceGet(CUdevice *device, int ordinal)
{
	ENTER_OR_RETURN();
	if (!device || ordinal)
		return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	*device = 0;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the device's name, at most size bytes with NUL. */
API cuDeviceGetName(char *name, int size, CUdevice device)
{
	ENTER_OR_RETURN();
	if (device || !name || size <= 0)
		return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)size, "%s", DEVICE_NAME);
	return CUDA_SUCCESS;
}

/* What cuDeviceGetUuid does: the device's 16 bytes, which are always the same. */
static CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
	if (device || !uuid)
		return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	memcpy(uuid->bytes, "neutrino-device\0", sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the device's unique id, which is always the same. */
API cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	ENTER_OR_RETURN();
	return get_uuid(uuid, device);
}

/* Emulated CUDA driver call: the device's unique id, which is always the same. */
API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	ENTER_OR_RETURN();
	return get_uuid(uuid, device);
}

/* Emulated CUDA driver call: bytes of the device's memory. */
API cuDeviceTotalMem_v2(size_t *size, CUdevice device)
{
	ENTER_OR_RETURN();
	if (device || !size)
		return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	*size = ed_shared.device_size;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: an attribute of the device, from the table above it; those of an H100 (sm_90). */
API cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	ENTER_OR_RETURN();
	if (device)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!value || attribute < 1 || (size_t)attribute >= sizeof(attributes) / sizeof(attributes[0]))
		return CUDA_ERROR_INVALID_VALUE;
	*value = attributes[attribute];
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the device's compute capability, 9.0. */
API cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	ENTER_OR_RETURN();
	if (device || !major || !minor)
		return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	*major = attributes[75];
	*minor = attributes[76];
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: the device's PCI address as text, always the same. */
API cuDeviceGetPCIBusId(char *text, int size, CUdevice device)
{
	ENTER_OR_RETURN();
	if (device || !text || size <= 0)
		return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	snprintf(text, (size_t)size, "0000:00:00.0");
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: whether a device can access another one's memory; there is only one, so 0. */
API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	ENTER_OR_RETURN();
	if (device || peer || !can)
		return can ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	*can = 0;
	return CUDA_SUCCESS;
}

/* Emulated CUDA driver call: undocumented tables, by which cudart identifies NVIDIA's driver. This driver has none. */
API cuGetExportTable(const void **table, const CUuuid *id)
{
	static struct ed_counter counter;

	ed_count(&counter, __func__, __builtin_return_address(0));
	(void)id;
	if (table)
		*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
