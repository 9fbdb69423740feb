/* cuGetProcAddress: functions by their names without suffixes, and the CUDA version that each variant came with. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "abi.h"
#include "count.h"

enum {
	SUCCESS = 0,
	SYMBOL_NOT_FOUND = 1,
	VERSION_NOT_SUFFICIENT = 2,
};

/*
 * Versions of functions that came later than CUDA 3.2, as cudaTypedefs.h has them. Beside these, _v2 is from 3020 on
 * and a bare name from 2000 on.
 */
static const struct {
	const char *name;
	int since;
} versions[] = {
	{"cuLaunchKernel", 4000},
	{"cuLaunchKernelEx", 11060},
	{"cuLaunchCooperativeKernel", 9000},
	{"cuLaunchHostFunc", 10000},
	{"cuCtxCreate_v3", 11040},
	{"cuCtxCreate_v4", 12050},
	{"cuCtxGetDevice_v2", 13000},
	{"cuCtxSynchronize_v2", 13000},
	{"cuCtxDestroy_v2", 4000},
	{"cuCtxPopCurrent_v2", 4000},
	{"cuCtxPushCurrent_v2", 4000},
	{"cuDevicePrimaryCtxRelease_v2", 11000},
	{"cuDevicePrimaryCtxReset_v2", 11000},
	{"cuDevicePrimaryCtxSetFlags_v2", 11000},
	{"cuDeviceGetUuid_v2", 11040},
	{"cuEventDestroy_v2", 4000},
	{"cuEventElapsedTime_v2", 12080},
	{"cuGetProcAddress_v2", 12000},
	{"cuGraphAddDependencies_v2", 12030},
	{"cuGraphAddKernelNode_v2", 12000},
	{"cuGraphAddNode_v2", 12030},
	{"cuGraphExecKernelNodeSetParams_v2", 12000},
	{"cuGraphExecUpdate_v2", 12000},
	{"cuGraphGetEdges_v2", 12030},
	{"cuGraphInstantiate_v2", 11000},
	{"cuGraphInstantiateWithFlags", 11040},
	{"cuGraphKernelNodeGetParams_v2", 12000},
	{"cuGraphKernelNodeSetParams_v2", 12000},
	{"cuGraphNodeGetDependencies_v2", 12030},
	{"cuGraphNodeGetDependentNodes_v2", 12030},
	{"cuGraphRemoveDependencies_v2", 12030},
	{"cuMemAdvise_v2", 12020},
	{"cuMemHostRegister_v2", 6050},
	{"cuMemPrefetchAsync_v2", 12020},
	{"cuStreamBeginCapture_v2", 10010},
	{"cuStreamDestroy_v2", 4000},
	{"cuStreamGetCaptureInfo_v2", 11030},
	{"cuStreamGetCaptureInfo_v3", 12030},
	{"cuStreamUpdateCaptureDependencies_v2", 12030},
	{"cuCtxFromGreenCtx", 12040},
	{"cuCtxGetDevResource", 12040},
	{"cuCtxGetId", 12000},
	{"cuDevResourceGenerateDesc", 12040},
	{"cuDevSmResourceSplitByCount", 12040},
	{"cuDeviceGetDevResource", 12040},
	{"cuDeviceGraphMemTrim", 11040},
	{"cuGraphAddMemAllocNode", 11040},
	{"cuGraphAddMemFreeNode", 11040},
	{"cuGraphAddNode", 12020},
	{"cuGraphConditionalHandleCreate", 12030},
	{"cuGraphExecChildGraphNodeSetParams", 11010},
	{"cuGraphExecHostNodeSetParams", 10020},
	{"cuGraphExecMemcpyNodeSetParams", 10020},
	{"cuGraphExecMemsetNodeSetParams", 10020},
	{"cuGraphExecNodeSetParams", 12020},
	{"cuGraphInstantiateWithParams", 12000},
	{"cuGraphKernelNodeCopyAttributes", 11000},
	{"cuGraphKernelNodeGetAttribute", 11000},
	{"cuGraphKernelNodeSetAttribute", 11000},
	{"cuGraphMemAllocNodeGetParams", 11040},
	{"cuGraphMemFreeNodeGetParams", 11040},
	{"cuGraphNodeGetEnabled", 11060},
	{"cuGraphNodeSetEnabled", 11060},
	{"cuGraphNodeSetParams", 12020},
	{"cuGreenCtxCreate", 12040},
	{"cuGreenCtxDestroy", 12040},
	{"cuGreenCtxGetDevResource", 12040},
	{"cuGreenCtxGetId", 12090},
	{"cuGreenCtxStreamCreate", 12050},
	{"cuStreamGetGreenCtx", 12040},
	{"cuStreamGetId", 12000},
	{"cuStreamWriteValue32", 8000},
	{"cuStreamWriteValue32_v2", 11070},
	{"cuStreamWriteValue64", 9000},
	{"cuStreamWriteValue64_v2", 11070},
};

/* The CUDA version that a function of the driver came with, as 12030 for 12.3. */
static int cuda_version_of(const char *name)
{
	for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++)
		if (!strcmp(versions[i].name, name))
			return versions[i].since;
	if (!strncmp(name, "cuLibrary", strlen("cuLibrary")) || !strncmp(name, "cuKernel", strlen("cuKernel")))
		return 12000;
	return strstr(name, "_v2") ? 3020 : 2000;
}

/*
 * This library's own function of a name. It is found by path: the hook has the same SONAME, and its functions come
 * first under the plain names.
 */
static void *own;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Find this library itself by its path, for look-ups of its functions. Once. */
static void open_own(void)
{
	Dl_info info;

	if (dladdr((void *)open_own, &info) && info.dli_fname)
		own = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

/* This library's function of that exact name, NULL if it has none. */
static void *look_up(const char *name)
{
	Dl_info info, mine;
	void *found = own ? dlsym(own, name) : NULL;

	/* dlsym also finds functions of this library's dependencies, which do not count. */
	if (!found || !dladdr(found, &info) || !dladdr((void *)open_own, &mine) || info.dli_fbase != mine.dli_fbase)
		return NULL;
	return found;
}

/*
 * Whether a name ends in a suffix of variants (_v2, _ptsz, ...). cuGetProcAddress takes names without one, as in the
 * manual.
 */
static bool has_suffix(const char *symbol)
{
	static const char *const suffixes[] = {"_v2", "_v3", "_v4", "_ptsz", "_ptds"};
	size_t length = strlen(symbol);

	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		size_t size = strlen(suffixes[i]);
		if (length >= size && !strcmp(symbol + length - size, suffixes[i]))
			return true;
	}
	return false;
}

/*
 * What cuGetProcAddress does: the newest variant of a function (name, _v2 ...) that the CUDA version has; with the flag
 * for it, that of per-thread default streams. status: a CUdriverProcAddressQueryResult; may be NULL.
 */
static CUresult get_proc_address(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
	static const char *const suffixes[] = {"_v4", "_v3", "_v2", ""};
	static const char *const per_thread[] = {"_ptsz", "_ptds", ""};
	char name[160];
	int failure = SYMBOL_NOT_FOUND;

	if (!symbol || !function || flags > CU_GET_PROC_ADDRESS_LAST || version > ED_DRIVER_VERSION)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_once(&once, open_own);
	*function = NULL;
	/* The header's macro: cuGraphInstantiate is cuGraphInstantiateWithFlags from 12.0 on. */
	if (!strcmp(symbol, "cuGraphInstantiate") && version >= 12000)
		symbol = "cuGraphInstantiateWithFlags";
	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]) && !*function && !has_suffix(symbol); i++) {
		snprintf(name, sizeof(name), "%s%s", symbol, suffixes[i]);
		if (!look_up(name))
			continue;
		if (cuda_version_of(name) > version) {
			failure = VERSION_NOT_SUFFICIENT;
			continue;
		}
		size_t first = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? 0 : 2;
		for (size_t j = first; j < 3 && !*function; j++) {
			snprintf(name, sizeof(name), "%s%s%s", symbol, suffixes[i], per_thread[j]);
			*function = look_up(name);
		}
	}
	if (status)
		*status = *function ? SUCCESS : failure;
	return *function || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/*
 * Emulated CUDA driver call: the address of a driver function by its name, in the variant that a CUDA version has. Also
 * before cuInit.
 */
API cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	static struct ed_counter counter;

	ed_count(&counter, __func__, __builtin_return_address(0));
	return get_proc_address(symbol, function, version, flags, NULL);
}

/*
 * Emulated CUDA driver call: the address of a driver function by its name, in the variant that a CUDA version has, or
 * in *status why there is none. Also before cuInit.
 */
API cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
	static struct ed_counter counter;

	ed_count(&counter, __func__, __builtin_return_address(0));
	return get_proc_address(symbol, function, version, flags, status);
}
