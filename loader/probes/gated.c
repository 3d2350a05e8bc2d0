// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/gated.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "loader/hash.h"
#include "loader/probes/holders.h"

/* --- the tables --------------------------------------------------------------------------------
 */

static const char *const asks[] = {"cuArray3DGetDescriptor", "cuArrayGetDescriptor",
	"cuArrayGetMemoryRequirements", "cuArrayGetPlane", "cuArrayGetSparseProperties",
	"cuCoredumpGetAttribute", "cuCoredumpGetAttributeGlobal", "cuCtxGetApiVersion",
	"cuCtxGetCacheConfig", "cuCtxGetCurrent", "cuCtxGetDevResource", "cuCtxGetDevice",
	"cuCtxGetExecAffinity", "cuCtxGetFlags", "cuCtxGetId", "cuCtxGetLimit",
	"cuCtxGetSharedMemConfig", "cuCtxGetStreamPriorityRange", "cuDevResourceGenerateDesc",
	"cuDevSmResourceSplitByCount", "cuDeviceCanAccessPeer", "cuDeviceComputeCapability",
	"cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetByPCIBusId", "cuDeviceGetCount",
	"cuDeviceGetDefaultMemPool", "cuDeviceGetDevResource", "cuDeviceGetExecAffinitySupport",
	"cuDeviceGetGraphMemAttribute", "cuDeviceGetHostAtomicCapabilities", "cuDeviceGetLuid",
	"cuDeviceGetMemPool", "cuDeviceGetName", "cuDeviceGetNvSciSyncAttributes",
	"cuDeviceGetP2PAtomicCapabilities", "cuDeviceGetP2PAttribute", "cuDeviceGetPCIBusId",
	"cuDeviceGetProperties", "cuDeviceGetTexture1DLinearMaxWidth", "cuDeviceGetUuid",
	"cuDevicePrimaryCtxGetState", "cuDeviceTotalMem", "cuDriverGetVersion",
	"cuFuncGetAttribute", "cuFuncGetModule", "cuFuncGetName", "cuFuncGetParamInfo",
	"cuFuncIsLoaded", "cuGetErrorName", "cuGetErrorString", "cuGetExportTable",
	"cuGetProcAddress", "cuGraphBatchMemOpNodeGetParams", "cuGraphChildGraphNodeGetGraph",
	"cuGraphDebugDotPrint", "cuGraphEventRecordNodeGetEvent", "cuGraphEventWaitNodeGetEvent",
	"cuGraphExecGetFlags", "cuGraphExternalSemaphoresSignalNodeGetParams",
	"cuGraphExternalSemaphoresWaitNodeGetParams", "cuGraphGetEdges", "cuGraphGetNodes",
	"cuGraphGetRootNodes", "cuGraphHostNodeGetParams", "cuGraphKernelNodeGetAttribute",
	"cuGraphKernelNodeGetParams", "cuGraphMemAllocNodeGetParams", "cuGraphMemFreeNodeGetParams",
	"cuGraphMemcpyNodeGetParams", "cuGraphMemsetNodeGetParams", "cuGraphNodeFindInClone",
	"cuGraphNodeGetDependencies", "cuGraphNodeGetDependentNodes", "cuGraphNodeGetEnabled",
	"cuGraphNodeGetType", "cuGreenCtxGetDevResource", "cuGreenCtxGetId", "cuInit",
	"cuKernelGetAttribute", "cuKernelGetFunction", "cuKernelGetLibrary", "cuKernelGetName",
	"cuKernelGetParamInfo", "cuLibraryEnumerateKernels", "cuLibraryGetGlobal",
	"cuLibraryGetKernel", "cuLibraryGetKernelCount", "cuLibraryGetManaged",
	"cuLibraryGetModule", "cuLibraryGetUnifiedFunction", "cuLogsCurrent", "cuLogsDumpToFile",
	"cuLogsDumpToMemory", "cuMemGetAllocationGranularity", "cuMemGetDefaultMemPool",
	"cuMemGetInfo", "cuMemGetMemPool", "cuMemPoolGetAccess", "cuMemPoolGetAttribute",
	"cuMipmappedArrayGetLevel", "cuMipmappedArrayGetMemoryRequirements",
	"cuMipmappedArrayGetSparseProperties", "cuModuleEnumerateFunctions", "cuModuleGetFunction",
	"cuModuleGetFunctionCount", "cuModuleGetGlobal", "cuModuleGetLoadingMode",
	"cuModuleGetSurfRef", "cuModuleGetTexRef", "cuMulticastGetGranularity",
	"cuOccupancyAvailableDynamicSMemPerBlock", "cuOccupancyMaxActiveBlocksPerMultiprocessor",
	"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "cuOccupancyMaxActiveClusters",
	"cuOccupancyMaxPotentialBlockSize", "cuOccupancyMaxPotentialBlockSizeWithFlags",
	"cuOccupancyMaxPotentialClusterSize", "cuStreamGetAttribute", "cuStreamGetCaptureInfo",
	"cuStreamGetCtx", "cuStreamGetDevice", "cuStreamGetFlags", "cuStreamGetGreenCtx",
	"cuStreamGetId", "cuStreamGetPriority", "cuStreamIsCapturing",
	"cuSurfObjectGetResourceDesc", "cuSurfRefGetArray", "cuTexObjectGetResourceDesc",
	"cuTexObjectGetResourceViewDesc", "cuTexObjectGetTextureDesc", "cuTexRefGetAddress",
	"cuTexRefGetAddressMode", "cuTexRefGetArray", "cuTexRefGetBorderColor",
	"cuTexRefGetFilterMode", "cuTexRefGetFlags", "cuTexRefGetFormat",
	"cuTexRefGetMaxAnisotropy", "cuTexRefGetMipmapFilterMode", "cuTexRefGetMipmapLevelBias",
	"cuTexRefGetMipmapLevelClamp", "cuTexRefGetMipmappedArray", NULL};

static const char *const waits[] = {"cuCtxRecordEvent", "cuCtxSynchronize", "cuCtxWaitEvent",
	"cuEventElapsedTime", "cuEventQuery", "cuEventRecord", "cuEventRecordWithFlags",
	"cuEventSynchronize", "cuGreenCtxRecordEvent", "cuGreenCtxWaitEvent", "cuStreamQuery",
	"cuStreamSynchronize", "cuStreamWaitEvent", NULL};

static const char *const contexts[] = {"cuCoredumpSetAttribute", "cuCoredumpSetAttributeGlobal",
	"cuCtxAttach", "cuCtxCreate", "cuCtxDestroy", "cuCtxDetach", "cuCtxDisablePeerAccess",
	"cuCtxEnablePeerAccess", "cuCtxFromGreenCtx", "cuCtxPopCurrent", "cuCtxPushCurrent",
	"cuCtxResetPersistingL2Cache", "cuCtxSetCacheConfig", "cuCtxSetCurrent", "cuCtxSetFlags",
	"cuCtxSetLimit", "cuCtxSetSharedMemConfig", "cuDevicePrimaryCtxRelease",
	"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxSetFlags",
	"cuDeviceRegisterAsyncNotification", "cuDeviceUnregisterAsyncNotification",
	"cuGreenCtxCreate", "cuGreenCtxDestroy", "cuLogsRegisterCallback",
	"cuLogsUnregisterCallback", "cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop",
	"cuThreadExchangeStreamCaptureMode", NULL};

static const char *const code[] = {"cuFuncLoad", "cuFuncSetAttribute", "cuFuncSetBlockShape",
	"cuFuncSetCacheConfig", "cuFuncSetSharedMemConfig", "cuFuncSetSharedSize",
	"cuKernelSetAttribute", "cuKernelSetCacheConfig", "cuLibraryLoadData",
	"cuLibraryLoadFromFile", "cuLibraryUnload", "cuLinkAddData", "cuLinkAddFile",
	"cuLinkComplete", "cuLinkCreate", "cuLinkDestroy", "cuModuleLoad", "cuModuleLoadData",
	"cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuModuleUnload", "cuParamSetSize",
	"cuParamSetTexRef", "cuParamSetf", "cuParamSeti", "cuParamSetv", NULL};

static const char *const objects[] = {"cuEventCreate", "cuEventDestroy", "cuGraphAddChildGraphNode",
	"cuGraphAddDependencies", "cuGraphAddEmptyNode", "cuGraphAddEventRecordNode",
	"cuGraphAddEventWaitNode", "cuGraphAddHostNode", "cuGraphChildGraphNodeGetGraph",
	"cuGraphClone", "cuGraphConditionalHandleCreate", "cuGraphCreate", "cuGraphDestroy",
	"cuGraphDestroyNode", "cuGraphEventRecordNodeSetEvent", "cuGraphEventWaitNodeSetEvent",
	"cuGraphExecDestroy", "cuGraphExecEventRecordNodeSetEvent",
	"cuGraphExecEventWaitNodeSetEvent", "cuGraphExecHostNodeSetParams",
	"cuGraphHostNodeSetParams", "cuGraphNodeSetEnabled", "cuGraphReleaseUserObject",
	"cuGraphRemoveDependencies", "cuGraphRetainUserObject", "cuGreenCtxStreamCreate",
	"cuIpcGetEventHandle", "cuIpcOpenEventHandle", "cuStreamCopyAttributes", "cuStreamCreate",
	"cuStreamCreateWithPriority", "cuStreamDestroy", "cuStreamEndCapture",
	"cuStreamSetAttribute", "cuStreamUpdateCaptureDependencies", "cuSurfObjectDestroy",
	"cuTexObjectDestroy", "cuTexRefCreate", "cuTexRefDestroy", "cuUserObjectCreate",
	"cuUserObjectRelease", "cuUserObjectRetain", NULL};

static const char *const host_memory[] = {"cuMemAllocHost", "cuMemFreeHost", "cuMemHostAlloc",
	"cuMemHostGetDevicePointer", "cuMemHostGetFlags", "cuMemHostRegister",
	"cuMemHostUnregister", NULL};

static const char *const other_memory[] = {"cuArray3DCreate", "cuArrayCreate", "cuArrayDestroy",
	"cuDeviceGraphMemTrim", "cuDeviceSetGraphMemAttribute", "cuDeviceSetMemPool",
	"cuMemAddressReserve", "cuMemAlloc", "cuMemAllocAsync", "cuMemAllocFromPoolAsync",
	"cuMemAllocManaged", "cuMemAllocPitch", "cuMemCreate", "cuMemFree", "cuMemFreeAsync",
	"cuMemPoolCreate", "cuMemPoolDestroy", "cuMemPoolSetAccess", "cuMemPoolSetAttribute",
	"cuMemPoolTrimTo", "cuMemSetMemPool", "cuMipmappedArrayCreate", "cuMipmappedArrayDestroy",
	"cuMulticastCreate", NULL};

static const struct lien_reason cuda_harmless[] = {
	{"it only asks", asks},
	{"it waits, or marks a place in a stream", waits},
	{"it is about contexts and settings", contexts},
	{"it is about code, which is not moved", code},
	{"it makes, changes or ends an object that has no memory of its own", objects},
	{"it is about host memory, which is not moved", host_memory},
	{"it makes or ends memory that is not moved", other_memory},
	{NULL, NULL},
};

static const char *const nccl_asks[] = {"ncclCommCount", "ncclCommCuDevice",
	"ncclCommGetAsyncError", "ncclCommGetUniqueId", "ncclCommMemStats", "ncclCommUserRank",
	"ncclGetErrorString", "ncclGetLastError", "ncclGetUniqueId", "ncclGetVersion",
	"ncclParamBind", "ncclParamDumpAll", "ncclParamGet", "ncclParamGetAllParameterKeys",
	"ncclParamGetI16", "ncclParamGetI32", "ncclParamGetI64", "ncclParamGetI8",
	"ncclParamGetParameter", "ncclParamGetStr", "ncclParamGetU16", "ncclParamGetU32",
	"ncclParamGetU64", "ncclParamGetU8", "ncclResetDebugInit", "ncclResetDebugInitInternal",
	"ncclWinGetUserPtr", NULL};

static const char *const nccl_objects[] = {"ncclRedOpCreatePreMulSum", "ncclRedOpDestroy", NULL};

static const struct lien_reason nccl_harmless[] = {
	{"it only asks", nccl_asks},
	{"it makes or ends an object that has no memory of its own", nccl_objects},
	{NULL, NULL},
};

/*
 * Calls whose arguments tell which memory they work on. The names include the version, because
 * arguments differ between versions. A call that is not listed is held wherever it works.
 */
static const struct {
	const char *name;
	enum lien_touches touches;
} touching[] = {
	{"cuIpcGetMemHandle", LIEN_TOUCHES_AT_1},
	{"cuMemAddressFree", LIEN_TOUCHES_RANGE},
	{"cuMemAdvise", LIEN_TOUCHES_RANGE},
	{"cuMemAdvise_v2", LIEN_TOUCHES_RANGE},
	{"cuMemExportToShareableHandle", LIEN_TOUCHES_HANDLE_1},
	{"cuMemGetAccess", LIEN_TOUCHES_AT_2},
	{"cuMemGetAddressRange_v2", LIEN_TOUCHES_AT_2},
	{"cuMemGetAllocationPropertiesFromHandle", LIEN_TOUCHES_HANDLE_1},
	{"cuMemMap", LIEN_TOUCHES_HANDLE_3},
	{"cuMemMapArrayAsync", LIEN_TOUCHES_HANDLES},
	{"cuMemPrefetchAsync", LIEN_TOUCHES_RANGE},
	{"cuMemPrefetchAsync_v2", LIEN_TOUCHES_RANGE},
	{"cuMemRelease", LIEN_TOUCHES_HANDLE_0},
	{"cuMemRetainAllocationHandle", LIEN_TOUCHES_AT_1},
	{"cuMemSetAccess", LIEN_TOUCHES_RANGE},
	{"cuMemUnmap", LIEN_TOUCHES_RANGE},
	{"cuMemcpy", LIEN_TOUCHES_COPY},
	{"cuMemcpyAsync", LIEN_TOUCHES_COPY},
	{"cuMemcpyDtoDAsync_v2", LIEN_TOUCHES_COPY},
	{"cuMemcpyDtoD_v2", LIEN_TOUCHES_COPY},
	{"cuMemcpyDtoHAsync_v2", LIEN_TOUCHES_COPY},
	{"cuMemcpyDtoH_v2", LIEN_TOUCHES_COPY},
	{"cuMemcpyHtoDAsync_v2", LIEN_TOUCHES_COPY},
	{"cuMemcpyHtoD_v2", LIEN_TOUCHES_COPY},
	{"cuMemcpyPeer", LIEN_TOUCHES_COPY_PEER},
	{"cuMemcpyPeerAsync", LIEN_TOUCHES_COPY_PEER},
	{"cuMemsetD16Async", LIEN_TOUCHES_SET_16},
	{"cuMemsetD16_v2", LIEN_TOUCHES_SET_16},
	{"cuMemsetD32Async", LIEN_TOUCHES_SET_32},
	{"cuMemsetD32_v2", LIEN_TOUCHES_SET_32},
	{"cuMemsetD8Async", LIEN_TOUCHES_SET_8},
	{"cuMemsetD8_v2", LIEN_TOUCHES_SET_8},
	{"cuMulticastAddDevice", LIEN_TOUCHES_HANDLES},
	{"cuMulticastBindMem", LIEN_TOUCHES_HANDLES},
	{"cuMulticastBindMem_v2", LIEN_TOUCHES_HANDLES},
	{"cuMulticastUnbind", LIEN_TOUCHES_HANDLES},
	{"cuPointerGetAttribute", LIEN_TOUCHES_AT_2},
	{"cuPointerGetAttributes", LIEN_TOUCHES_AT_3},
	{"cuPointerSetAttribute", LIEN_TOUCHES_AT_2},
	{"cuStreamWaitValue32", LIEN_TOUCHES_AT_1},
	{"cuStreamWaitValue32_v2", LIEN_TOUCHES_AT_1},
	{"cuStreamWaitValue64", LIEN_TOUCHES_AT_1},
	{"cuStreamWaitValue64_v2", LIEN_TOUCHES_AT_1},
	{"cuStreamWriteValue32", LIEN_TOUCHES_AT_1},
	{"cuStreamWriteValue32_v2", LIEN_TOUCHES_AT_1},
	{"cuStreamWriteValue64", LIEN_TOUCHES_AT_1},
	{"cuStreamWriteValue64_v2", LIEN_TOUCHES_AT_1},
};

#define TOUCHING (sizeof(touching) / sizeof(touching[0]))

/* Registrations. Those of a dma-buf are of memory that has stayed since its file was made. */
static const struct {
	const char *name;
	enum lien_touches touches;
} registering[] = {
	{"gdr_pin_buffer", LIEN_TOUCHES_RANGE_1},
	{"gdr_pin_buffer_v2", LIEN_TOUCHES_RANGE_1},
	{"ibv_reg_mr", LIEN_TOUCHES_RANGE_1},
	{"ibv_reg_mr_ex", LIEN_TOUCHES_ANY},
	{"ibv_reg_mr_iova", LIEN_TOUCHES_RANGE_1},
	{"ibv_reg_mr_iova2", LIEN_TOUCHES_RANGE_1},
	{"mlx5dv_devx_umem_reg", LIEN_TOUCHES_RANGE_1},
	{"mlx5dv_devx_umem_reg_ex", LIEN_TOUCHES_ANY},
};

#define REGISTERING (sizeof(registering) / sizeof(registering[0]))

/* Graph launches may start work on NCCL's memory, although they are not NCCL's. Asking devices
 * whether they are idle would spoil a capture (control/orders/drain.c). */
static const char *const with_nccl[] = {
	"cuGraphLaunch", "cuStreamBeginCapture", "cuStreamBeginCaptureToGraph", NULL};

/* --- looking up --------------------------------------------------------------------------------
 */

static bool is_capital(char c)
{
	return c >= 'A' && c <= 'Z';
}

/* Returns the length without "_ptsz" or "_ptds", the per-thread default stream's variant of a
 * call. */
static size_t without_variant(const char *symbol)
{
	size_t length = strlen(symbol);

	if (length > 5 &&
		(!strcmp(symbol + length - 5, "_ptsz") || !strcmp(symbol + length - 5, "_ptds")))
		length -= 5;
	return length;
}

/* Also without "_v2". */
size_t lien_gated_without_version(const char *symbol)
{
	size_t length = without_variant(symbol), end = length;

	while (end && symbol[end - 1] >= '0' && symbol[end - 1] <= '9')
		end--;
	return end < length && end > 2 && symbol[end - 1] == 'v' && symbol[end - 2] == '_' ? end - 2
											   : length;
}

static bool is_named(const char *name, const char *symbol, size_t length)
{
	return !strncmp(name, symbol, length) && !name[length];
}

bool lien_gated_among(const char *const *names, const char *symbol, size_t length)
{
	for (; *names; names++)
		if (is_named(*names, symbol, length))
			return true;
	return false;
}

/* Skips the prefix of the copies that NCCL exports for profilers. */
static const char *without_profiler(const char *symbol)
{
	return !strncmp(symbol, "pnccl", 5) ? symbol + 1 : symbol;
}

bool lien_gated_is_interface(enum lien_library library, const char *symbol)
{
	switch (library) {
	case LIEN_LIB_CUDA:
		return !strncmp(symbol, "cu", 2) && is_capital(symbol[2]);
	case LIEN_LIB_NCCL:
		return !strncmp(symbol, "nccl", 4) && is_capital(symbol[4]);
	default:
		return false;
	}
}

const char *lien_gated_reason(const struct lien_reason *reasons, const char *symbol)
{
	const size_t length = lien_gated_without_version(symbol);

	for (; reasons->why; reasons++)
		if (lien_gated_among(reasons->names, symbol, length))
			return reasons->why;
	return NULL;
}

const char *lien_gated_nth(const struct lien_reason *reasons, unsigned *index)
{
	const char *const *name;

	for (; reasons->why; reasons++)
		for (name = reasons->names; *name; name++)
			if (!(*index)--)
				return *name;
	return NULL;
}

static const struct lien_reason *harmless_in(enum lien_library library)
{
	return library == LIEN_LIB_NCCL ? nccl_harmless : cuda_harmless;
}

const char *lien_gated_harmless(enum lien_library library, const char *symbol)
{
	return lien_gated_reason(harmless_in(library), without_profiler(symbol));
}

static unsigned touches_of(const char *symbol)
{
	size_t length = without_variant(symbol);
	unsigned i;

	for (i = 0; i < TOUCHING; i++)
		if (is_named(touching[i].name, symbol, length))
			return touching[i].touches;
	return LIEN_TOUCHES_ANY;
}

/* Decides for functions of network cards' libraries and of GDRCopy. NCCL registers its own memory
 * inside NCCL calls, which are held. */
static enum lien_gating registers(enum lien_library library, const char *symbol, unsigned *touches)
{
	unsigned i;

	for (i = 0; i < REGISTERING && strcmp(registering[i].name, symbol); i++)
		;
	if (touches)
		*touches = i < REGISTERING ? registering[i].touches : LIEN_TOUCHES_ANY;
	return i < REGISTERING || lien_holds_unknown(library, symbol) ? LIEN_GATING_ALL
								      : LIEN_GATING_NONE;
}

bool lien_gated_library(enum lien_library library)
{
	return library == LIEN_LIB_CUDA || library == LIEN_LIB_NCCL || library >= LIEN_LIB_IBVERBS;
}

enum lien_gating lien_gated(enum lien_library library, const char *symbol, unsigned *touches)
{
	if (library >= LIEN_LIB_IBVERBS)
		return registers(library, symbol, touches);
	symbol = without_profiler(symbol);
	if (touches)
		*touches = library == LIEN_LIB_CUDA ? touches_of(symbol) : LIEN_TOUCHES_ANY;
	if (!lien_gated_is_interface(library, symbol) || lien_gated_harmless(library, symbol))
		return LIEN_GATING_NONE;
	return library == LIEN_LIB_NCCL || lien_gated_among(with_nccl, symbol,
						   lien_gated_without_version(symbol))
		       ? LIEN_GATING_NCCL
		       : LIEN_GATING_ALL;
}

const char *lien_gated_listed(enum lien_library library, unsigned index)
{
	const char *name = lien_gated_nth(harmless_in(library), &index);

	if (name)
		return name;
	return library == LIEN_LIB_CUDA && index < TOUCHING ? touching[index].name : NULL;
}

/* --- numbers -----------------------------------------------------------------------------------
 */

static struct {
	pthread_mutex_t lock;
	struct named {
		unsigned number;
		char *name;
	} * named;
	unsigned count;
} numbers = {PTHREAD_MUTEX_INITIALIZER, NULL, 0};

/* More functions than any known library has. Further ones are shown by their number. */
#define NAMED_MAX 4096

const char *lien_gated_name(unsigned number)
{
	const char *name = NULL;
	unsigned i;

	pthread_mutex_lock(&numbers.lock);
	for (i = 0; i < numbers.count && !name; i++)
		if (numbers.named[i].number == number)
			name = numbers.named[i].name;
	pthread_mutex_unlock(&numbers.lock);
	return name;
}

static void note(unsigned number, const char *symbol)
{
	struct named *grown;

	pthread_mutex_lock(&numbers.lock);
	grown = numbers.count == NAMED_MAX
			? NULL
			: realloc(numbers.named, (numbers.count + 1) * sizeof(*grown));
	if (grown) {
		numbers.named = grown;
		grown[numbers.count].number = number;
		grown[numbers.count].name = strdup(symbol);
		numbers.count += grown[numbers.count].name != NULL;
	}
	pthread_mutex_unlock(&numbers.lock);
}

unsigned lien_gated_number(const char *symbol)
{
	uint64_t hash = lien_hash(LIEN_HASH_START, symbol, strlen(symbol));
	unsigned number =
		LIEN_CALL_GATED_FIRST + hash % (LIEN_CALL_GATED_LAST - LIEN_CALL_GATED_FIRST + 1);

	if (!lien_gated_name(number))
		note(number, symbol);
	return number;
}
