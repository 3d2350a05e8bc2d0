// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/functions.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/hash.h"

/* --- calls with a number ---------------------------------------------------------------------- */

static const struct lien_probed_call calls[] = {
#define CALL_ROW(name, number, lib, symbol, flags, kind)                                           \
	{symbol, LIEN_CALL_##name, LIEN_LIB_##lib, flags},
#define SAME_ROW(name, lib, symbol, flags) {symbol, LIEN_CALL_##name, LIEN_LIB_##lib, flags},
	LIEN_CALLS(CALL_ROW) LIEN_SAME_CALLS(SAME_ROW)
	/* Those that only the gate knows by number. */
	LIEN_GATE_CALLS(CALL_ROW)};

#define ONE(...) +1
#define TRACED	 (0 LIEN_CALLS(ONE) LIEN_SAME_CALLS(ONE))

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* --- functions that hold nothing -------------------------------------------------------------- */

/* Lists end with NULL. In lists of CUDA's and NCCL's functions each name stands for all versions
 * and variants ("_v2" and so on, "_ptsz", "_ptds"), unless it has to be exact. */

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

static const char *const by_address[] = {"cuFlushGPUDirectRDMAWrites", "cuLaunch",
	"cuLaunchCooperativeKernel", "cuLaunchCooperativeKernelMultiDevice", "cuLaunchGrid",
	"cuLaunchGridAsync", "cuLaunchHostFunc", "cuLaunchKernel", "cuLaunchKernelEx",
	"cuMemAdvise", "cuMemBatchDecompressAsync", "cuMemDiscardAndPrefetchBatchAsync",
	"cuMemDiscardBatchAsync", "cuMemGetAccess", "cuMemGetAddressRange",
	"cuMemGetAllocationPropertiesFromHandle", "cuMemPrefetchAsync", "cuMemPrefetchBatchAsync",
	"cuMemRangeGetAttribute", "cuMemRangeGetAttributes", "cuMemcpy", "cuMemcpy2D",
	"cuMemcpy2DAsync", "cuMemcpy2DUnaligned", "cuMemcpy3D", "cuMemcpy3DAsync",
	"cuMemcpy3DBatchAsync", "cuMemcpy3DPeer", "cuMemcpy3DPeerAsync",
	"cuMemcpy3DWithAttributesAsync", "cuMemcpyAsync", "cuMemcpyAtoA", "cuMemcpyAtoD",
	"cuMemcpyAtoH", "cuMemcpyAtoHAsync", "cuMemcpyBatchAsync", "cuMemcpyDtoA", "cuMemcpyDtoD",
	"cuMemcpyDtoDAsync", "cuMemcpyDtoH", "cuMemcpyDtoHAsync", "cuMemcpyHtoA",
	"cuMemcpyHtoAAsync", "cuMemcpyHtoD", "cuMemcpyHtoDAsync", "cuMemcpyPeer",
	"cuMemcpyPeerAsync", "cuMemcpyWithAttributesAsync", "cuMemsetD16", "cuMemsetD16Async",
	"cuMemsetD2D16", "cuMemsetD2D16Async", "cuMemsetD2D32", "cuMemsetD2D32Async",
	"cuMemsetD2D8", "cuMemsetD2D8Async", "cuMemsetD32", "cuMemsetD32Async", "cuMemsetD8",
	"cuMemsetD8Async", "cuPointerGetAttribute", "cuPointerGetAttributes",
	"cuPointerSetAttribute", "cuStreamAddCallback", "cuStreamAttachMemAsync",
	"cuStreamBatchMemOp", "cuStreamWaitValue32", "cuStreamWaitValue64", "cuStreamWriteValue32",
	"cuStreamWriteValue64", NULL};

/* The memory comes back at the same address. */
static const char *const addresses[] = {"cuGraphAddBatchMemOpNode", "cuGraphAddKernelNode",
	"cuGraphAddMemcpyNode", "cuGraphAddMemsetNode", "cuGraphAddNode",
	"cuGraphBatchMemOpNodeSetParams", "cuGraphExecBatchMemOpNodeSetParams",
	"cuGraphExecChildGraphNodeSetParams", "cuGraphExecKernelNodeSetParams",
	"cuGraphExecMemcpyNodeSetParams", "cuGraphExecMemsetNodeSetParams",
	"cuGraphExecNodeSetParams", "cuGraphExecUpdate", "cuGraphInstantiate",
	"cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams",
	"cuGraphKernelNodeCopyAttributes", "cuGraphKernelNodeSetAttribute",
	"cuGraphKernelNodeSetParams", "cuGraphMemcpyNodeSetParams", "cuGraphMemsetNodeSetParams",
	"cuGraphLaunch", "cuGraphNodeSetParams", "cuGraphUpload", "cuTensorMapEncodeIm2col",
	"cuTensorMapEncodeIm2colWide", "cuTensorMapEncodeTiled", "cuTensorMapReplaceAddress",
	"cuTexObjectCreate", "cuTexRefSetAddress", "cuTexRefSetAddress2D", "cuTexRefSetAddressMode",
	"cuTexRefSetBorderColor", "cuTexRefSetFilterMode", "cuTexRefSetFlags", "cuTexRefSetFormat",
	"cuTexRefSetMaxAnisotropy", "cuTexRefSetMipmapFilterMode", "cuTexRefSetMipmapLevelBias",
	"cuTexRefSetMipmapLevelClamp", NULL};

static const char *const unmoved[] = {"cuDestroyExternalMemory", "cuDestroyExternalSemaphore",
	"cuExternalMemoryGetMappedBuffer", "cuExternalMemoryGetMappedMipmappedArray",
	"cuGraphAddExternalSemaphoresSignalNode", "cuGraphAddExternalSemaphoresWaitNode",
	"cuGraphAddMemAllocNode", "cuGraphAddMemFreeNode",
	"cuGraphExecExternalSemaphoresSignalNodeSetParams",
	"cuGraphExecExternalSemaphoresWaitNodeSetParams",
	"cuGraphExternalSemaphoresSignalNodeSetParams",
	"cuGraphExternalSemaphoresWaitNodeSetParams", "cuGraphicsMapResources",
	"cuGraphicsResourceGetMappedMipmappedArray", "cuGraphicsResourceGetMappedPointer",
	"cuGraphicsResourceSetMapFlags", "cuGraphicsSubResourceGetMappedArray",
	"cuGraphicsUnmapResources", "cuGraphicsUnregisterResource", "cuImportExternalMemory",
	"cuImportExternalSemaphore", "cuMemMapArrayAsync", "cuSignalExternalSemaphoresAsync",
	"cuSurfObjectCreate", "cuSurfRefSetArray", "cuTexRefSetArray", "cuTexRefSetMipmappedArray",
	"cuWaitExternalSemaphoresAsync", NULL};

/* The functions of cudaGL.h, cudaEGL.h and cudaVDPAU.h, but for cuEGLStreamProducerPresentFrame():
 * its frame may be the program's own memory, which the consumer keeps. */
static const char *const graphics[] = {"cuEGLApiInit", "cuEGLStreamConsumerAcquireFrame",
	"cuEGLStreamConsumerConnect", "cuEGLStreamConsumerConnectWithFlags",
	"cuEGLStreamConsumerDisconnect", "cuEGLStreamConsumerReleaseFrame",
	"cuEGLStreamProducerConnect", "cuEGLStreamProducerDisconnect",
	"cuEGLStreamProducerReturnFrame", "cuGLCtxCreate", "cuGLGetDevices", "cuGLInit",
	"cuGLMapBufferObject", "cuGLMapBufferObjectAsync", "cuGLRegisterBufferObject",
	"cuGLSetBufferObjectMapFlags", "cuGLUnmapBufferObject", "cuGLUnmapBufferObjectAsync",
	"cuGLUnregisterBufferObject", "cuGraphicsEGLRegisterImage", "cuGraphicsGLRegisterBuffer",
	"cuGraphicsGLRegisterImage", "cuGraphicsResourceGetMappedEglFrame",
	"cuGraphicsVDPAURegisterOutputSurface", "cuGraphicsVDPAURegisterVideoSurface",
	"cuVDPAUCtxCreate", "cuVDPAUGetDevice", NULL};

/* Of CUDA 13.1 to 13.3. What binds memory to an endpoint is not among them, nor what begins
 * captures in new ways. */
static const char *const newer[] = {"cuCoredumpDeregisterCompleteCallback",
	"cuCoredumpDeregisterStartCallback", "cuCoredumpRegisterCompleteCallback",
	"cuCoredumpRegisterStartCallback", "cuDevSmResourceSplit", "cuDeviceGetCliqueCount",
	"cuDeviceGetCliqueInfo", "cuFuncGetParamCount", "cuGraphExecGetId", "cuGraphGetId",
	"cuGraphNodeGetContainingGraph", "cuGraphNodeGetLocalId", "cuGraphNodeGetParams",
	"cuGraphNodeGetToolsId", "cuKernelGetParamCount", "cuLogicalEndpointAddDevice",
	"cuLogicalEndpointCreate", "cuLogicalEndpointDestroy", "cuLogicalEndpointExport",
	"cuLogicalEndpointGetLimits", "cuLogicalEndpointIdRelease", "cuLogicalEndpointIdReserve",
	"cuLogicalEndpointImport", "cuLogicalEndpointQuery", "cuLogicalEndpointUnbind",
	"cuStreamGetDevResource", NULL};

static const char *const ends[] = {"cuCheckpointProcessCheckpoint",
	"cuCheckpointProcessGetRestoreThreadId", "cuCheckpointProcessGetState",
	"cuCheckpointProcessLock", "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock",
	"cuDevicePrimaryCtxReset", NULL};

/* Exactly these: of what is traced, another version may do more. */
static const char *const older[] = {"cuCtxCreate", "cuCtxDestroy", "cuCtxPopCurrent",
	"cuCtxPushCurrent", "cuIpcOpenMemHandle", "cuMemAlloc", "cuMemAllocHost", "cuMemAllocPitch",
	"cuMemFree", "cuStreamBeginCapture", "cuStreamBeginCapture_ptsz", "cuStreamDestroy", NULL};

static const char *const nccl_asks[] = {"ncclCommCount", "ncclCommCuDevice",
	"ncclCommGetAsyncError", "ncclCommGetUniqueId", "ncclCommMemStats", "ncclCommUserRank",
	"ncclGetErrorString", "ncclGetLastError", "ncclGetUniqueId", "ncclGetVersion",
	"ncclParamBind", "ncclParamDumpAll", "ncclParamGet", "ncclParamGetAllParameterKeys",
	"ncclParamGetI16", "ncclParamGetI32", "ncclParamGetI64", "ncclParamGetI8",
	"ncclParamGetParameter", "ncclParamGetStr", "ncclParamGetU16", "ncclParamGetU32",
	"ncclParamGetU64", "ncclParamGetU8", "ncclResetDebugInit", "ncclResetDebugInitInternal",
	"ncclWinGetUserPtr", NULL};

static const char *const nccl_objects[] = {"ncclRedOpCreatePreMulSum", "ncclRedOpDestroy", NULL};

static const char *const nccl[] = {"ncclBcast", "ncclCommGrow", "ncclCommQueryProperties",
	"ncclCommResume", "ncclCommRevoke", "ncclCommSuspend", "ncclDevCommDestroy",
	"ncclGetCftDeviceLeInfo", "ncclGetLsaDevicePointer", "ncclGetLsaMultimemDevicePointer",
	"ncclGetMultimemDeviceLeInfo", "ncclGetMultimemDevicePointer", "ncclGetPeerDeviceLeInfo",
	"ncclGetPeerDevicePointer", "ncclGinBarrierCreateRequirement",
	"ncclGinInboxA2ACreateRequirement", "ncclGinOutboxCreateRequirement",
	"ncclGroupSimulateEnd", "ncclGroupStart", "ncclLLA2ACalcSlots",
	"ncclLLA2ACreateRequirement", "ncclLsaBarrierCreateRequirement", "ncclPutSignal",
	"ncclSetEncryption", "ncclSignal", "ncclTeamCft", "ncclTeamCftMultimem", "ncclTeamLsa",
	"ncclTeamRail", "ncclTeamRankToLsa", "ncclTeamRankToWorld", "ncclTeamWorld",
	"ncclWaitSignal", NULL};

/* AMem, a patched NCCL 2.27, adds these. */
static const char *const amem[] = {
	"ncclMemStats", "ncclPause", "ncclResume", "ncclSetGroupID", NULL};

/* A name that ends with an asterisk stands for all that begin so. */
static const char *const verbs_ask[] = {"ibv_copy_*", "ibv_event_type_str", "ibv_get_*",
	"ibv_is_fork_initialized", "ibv_node_type_str", "ibv_port_state_str", "ibv_query_*",
	"ibv_rate_to_*", "ibv_read_*", "ibv_resolve_eth_l2_from_gid", "ibv_wc_status_str",
	"ibv_wr_opcode_str", NULL};

/* Their queues are in memory of the process. */
static const char *const verbs_objects[] = {"ibv_ack_async_event", "ibv_ack_cq_events",
	"ibv_alloc_dmah", "ibv_alloc_pd", "ibv_attach_mcast", "ibv_close_device", "ibv_create_ah",
	"ibv_create_ah_from_wc", "ibv_create_comp_channel", "ibv_create_comp_cntr", "ibv_create_cq",
	"ibv_create_qp", "ibv_create_srq", "ibv_dealloc_dmah", "ibv_dealloc_pd", "ibv_destroy_*",
	"ibv_detach_mcast", "ibv_dofork_range", "ibv_dontfork_range", "ibv_fork_init",
	"ibv_free_device_list", "ibv_import_device", "ibv_import_pd", "ibv_inc_comp_cntr",
	"ibv_inc_err_comp_cntr", "ibv_init_ah_from_wc", "ibv_modify_*", "ibv_open_device",
	"ibv_qp_attach_comp_cntr", "ibv_qp_to_qp_ex", "ibv_register_driver", "ibv_resize_cq",
	"ibv_set_*", "ibv_unimport_pd", NULL};

static const char *const verbs_other[] = {"ibv_alloc_buf", "ibv_dm_export_dmabuf_fd",
	"ibv_dmabuf_heap_*", "ibv_export_buf_dmabuf_fd", "ibv_free_buf", "ibv_import_dm",
	"ibv_import_mr", "ibv_reg_buf_mr", "ibv_unimport_dm", "ibv_unimport_mr", NULL};

static const char *const mlx5_objects[] = {"mlx5dv_alloc_var", "mlx5dv_create_cq",
	"mlx5dv_create_flow*", "mlx5dv_create_mkey", "mlx5dv_create_qp",
	"mlx5dv_create_steering_anchor", "mlx5dv_create_wq", "mlx5dv_crypto_*", "mlx5dv_dci_*",
	"mlx5dv_dek_*", "mlx5dv_destroy_*", "mlx5dv_devx_alloc_*", "mlx5dv_devx_cq_*",
	"mlx5dv_devx_create_*", "mlx5dv_devx_destroy_*", "mlx5dv_devx_free_*",
	"mlx5dv_devx_general_cmd", "mlx5dv_devx_get_*", "mlx5dv_devx_ind_tbl_*",
	"mlx5dv_devx_obj_*", "mlx5dv_devx_qp_*", "mlx5dv_devx_query_*", "mlx5dv_devx_srq_*",
	"mlx5dv_devx_subscribe_*", "mlx5dv_devx_uar_*", "mlx5dv_devx_wq_*", "mlx5dv_dr_*",
	"mlx5dv_dump_*", "mlx5dv_free_var", "mlx5dv_get_*", "mlx5dv_init_obj",
	"mlx5dv_is_supported", "mlx5dv_map_ah_to_qp", "mlx5dv_modify_*", "mlx5dv_open_device",
	"mlx5dv_pp_*", "mlx5dv_qp_*", "mlx5dv_query_*", "mlx5dv_reserved_*", "mlx5dv_sched_*",
	"mlx5dv_set_context_attr", "mlx5dv_var_*", "mlx5dv_vfio_*", NULL};

static const char *const mlx5_other[] = {"mlx5dv_alloc_dm", "mlx5dv_devx_umem_export",
	"mlx5dv_devx_umem_import", "mlx5dv_devx_umem_unimport", "mlx5dv_dm_map_op_addr",
	"mlx5dv_reg_dmabuf_mr", NULL};

static const char *const gdrcopy[] = {"gdr_close", "gdr_copy_*", "gdr_driver_get_version",
	"gdr_get_*", "gdr_map", "gdr_map_v2", "gdr_open", "gdr_runtime_get_version", "gdr_unmap",
	NULL};

/* Functions of which the same is true: what they make holds nothing that could be moved. */
static const struct reason {
	enum lien_library library; /* LIEN_LIB_IBVERBS: those of network cards and of GDRCopy */
	enum {
		GATED,	  /* they work on memory: the gate holds them, in all versions */
		HARMLESS, /* the gate need not hold them, in any version */
		EXACT,	  /* these versions alone; the gate holds them (not those of cards) */
	} how;
	const char *const *names;
	const char *why;
} reasons[] = {
	{LIEN_LIB_CUDA, EXACT, older,
		"it makes or ends what is not moved: programs of CUDA 3 and 9 call it"},
	{LIEN_LIB_CUDA, HARMLESS, asks, "it only asks"},
	{LIEN_LIB_CUDA, HARMLESS, waits, "it waits, or marks a place in a stream"},
	{LIEN_LIB_CUDA, HARMLESS, contexts, "it is about contexts and settings"},
	{LIEN_LIB_CUDA, HARMLESS, code, "it is about code, which is not moved"},
	{LIEN_LIB_CUDA, HARMLESS, objects,
		"it makes, changes or ends an object that has no memory of its own"},
	{LIEN_LIB_CUDA, HARMLESS, host_memory, "it is about host memory, which is not moved"},
	{LIEN_LIB_CUDA, HARMLESS, other_memory, "it makes or ends memory that is not moved"},
	{LIEN_LIB_CUDA, GATED, by_address, "it works on memory by address, while it runs"},
	{LIEN_LIB_CUDA, GATED, addresses, "it notes addresses, which stay the same"},
	{LIEN_LIB_CUDA, GATED, unmoved,
		"it is about memory that is not moved: of others, of graphs, or of arrays"},
	{LIEN_LIB_CUDA, GATED, graphics, "it is about memory of graphics libraries"},
	{LIEN_LIB_CUDA, GATED, newer,
		"it only asks, or is about an object that has no memory of its own"},
	{LIEN_LIB_CUDA, GATED, ends, "it saves or ends all that the process or its context has"},
	{LIEN_LIB_NCCL, HARMLESS, nccl_asks, "it only asks"},
	{LIEN_LIB_NCCL, HARMLESS, nccl_objects,
		"it makes or ends an object that has no memory of its own"},
	{LIEN_LIB_NCCL, EXACT, nccl,
		"it holds by calls of the driver and libibverbs, which are traced"},
	{LIEN_LIB_NCCL, EXACT, amem,
		"it holds by calls of the driver and libibverbs, which are traced"},
	{LIEN_LIB_IBVERBS, EXACT, verbs_ask, "it only asks"},
	{LIEN_LIB_IBVERBS, EXACT, verbs_objects,
		"it is about an object of the card, to which registrations name memory"},
	{LIEN_LIB_IBVERBS, EXACT, verbs_other,
		"its memory is not a GPU's, or the registration was seen where it was made"},
	{LIEN_LIB_IBVERBS, EXACT, mlx5_objects,
		"it is about an object of the card, to which registrations name memory"},
	{LIEN_LIB_IBVERBS, EXACT, mlx5_other,
		"its memory is the card's, or a dma-buf, or it was registered elsewhere"},
	{LIEN_LIB_IBVERBS, EXACT, gdrcopy, "it is about memory that gdr_pin_buffer() has pinned"},
};

/* --- functions that name memory --------------------------------------------------------------- */

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

/* Graph launches may start work on NCCL's memory, although they are not NCCL's. Asking devices
 * whether they are idle would spoil a capture (control/orders/drain.c). */
static const char *const with_nccl[] = {
	"cuGraphLaunch", "cuStreamBeginCapture", "cuStreamBeginCaptureToGraph", NULL};

/* --- looking up ------------------------------------------------------------------------------- */

const struct lien_probed_call *lien_functions_traced(unsigned index)
{
	return index < TRACED ? &calls[index] : NULL;
}

const struct lien_probed_call *lien_function_call(const char *symbol)
{
	unsigned i;

	for (i = 0; i < COUNT(calls); i++)
		if (!strcmp(calls[i].symbol, symbol))
			return &calls[i];
	return NULL;
}

static bool is_traced(const char *symbol)
{
	const struct lien_probed_call *call = lien_function_call(symbol);

	return call && call < calls + TRACED;
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
static size_t without_version(const char *symbol)
{
	size_t length = without_variant(symbol), end = length;

	while (end && symbol[end - 1] >= '0' && symbol[end - 1] <= '9')
		end--;
	return end < length && end > 2 && symbol[end - 1] == 'v' && symbol[end - 2] == '_' ? end - 2
											   : length;
}

/* Is there a traced call of that name, in any version? */
static bool is_traced_in_any_version(const char *symbol)
{
	const size_t length = without_version(symbol);
	unsigned i;

	for (i = 0; i < TRACED; i++)
		if (without_version(calls[i].symbol) == length &&
			!strncmp(calls[i].symbol, symbol, length))
			return true;
	return false;
}

/* Is it the symbol's beginning of that length? A name that ends with an asterisk stands for all
 * that begin so. */
static bool fits(const char *name, const char *symbol, size_t length)
{
	size_t n = 0;

	while (n < length && name[n] == symbol[n])
		n++;
	return name[n] == '*' || (n == length && !name[n]);
}

static bool is_among(const char *const *names, const char *symbol, size_t length)
{
	for (; *names; names++)
		if (fits(*names, symbol, length))
			return true;
	return false;
}

static bool is_about(const struct reason *reason, enum lien_library library)
{
	return reason->library == (library > LIEN_LIB_IBVERBS ? LIEN_LIB_IBVERBS : library);
}

static bool is_harmless(enum lien_library library, const char *symbol)
{
	const size_t length = without_version(symbol);
	unsigned i;

	for (i = 0; i < COUNT(reasons); i++)
		if (reasons[i].how == HARMLESS && is_about(&reasons[i], library) &&
			is_among(reasons[i].names, symbol, length))
			return true;
	return false;
}

/* Of an untraced version of a traced call only those are known that are listed exactly: it may do
 * more. */
static bool holds_nothing(enum lien_library library, const char *symbol)
{
	const bool exact = library == LIEN_LIB_CUDA && is_traced_in_any_version(symbol);
	const size_t whole = strlen(symbol), length = without_version(symbol);
	unsigned i;

	for (i = 0; i < COUNT(reasons); i++)
		if (is_about(&reasons[i], library) && (reasons[i].how == EXACT || !exact) &&
			is_among(
				reasons[i].names, symbol, reasons[i].how == EXACT ? whole : length))
			return true;
	return false;
}

/* Copies that NCCL exports for profilers begin with a "p". libibverbs exports more to the drivers
 * of cards. */
static bool is_interface(enum lien_library library, const char *symbol)
{
	switch (library) {
	case LIEN_LIB_CUDA:
		return !strncmp(symbol, "cu", 2) && symbol[2] >= 'A' && symbol[2] <= 'Z';
	case LIEN_LIB_NCCL:
		return !strncmp(symbol, "nccl", 4) && symbol[4] >= 'A' && symbol[4] <= 'Z';
	case LIEN_LIB_IBVERBS:
		return !strncmp(symbol, "ibv_", 4) && strncmp(symbol, "ibv_cmd_", 8);
	case LIEN_LIB_MLX5:
		return !strncmp(symbol, "mlx5dv_", 7);
	case LIEN_LIB_GDRAPI:
		return !strncmp(symbol, "gdr_", 4);
	default:
		return false;
	}
}

bool lien_function_may_hold(enum lien_library library, const char *symbol)
{
	return is_interface(library, symbol) && !is_traced(symbol) &&
	       !holds_nothing(library, symbol);
}

static enum lien_touches touches_of(const char *symbol)
{
	size_t length = without_variant(symbol);
	unsigned i;

	for (i = 0; i < COUNT(touching); i++)
		if (fits(touching[i].name, symbol, length))
			return touching[i].touches;
	return LIEN_TOUCHES_ANY;
}

/* NCCL registers its own memory inside NCCL calls, which are held. */
static enum lien_gating registers(
	enum lien_library library, const char *symbol, enum lien_touches *touches)
{
	unsigned i;

	for (i = 0; i < COUNT(registering); i++)
		if (!strcmp(registering[i].name, symbol)) {
			*touches = registering[i].touches;
			return LIEN_GATING_ALL;
		}
	return lien_function_may_hold(library, symbol) ? LIEN_GATING_ALL : LIEN_GATING_NONE;
}

enum lien_gating lien_function_gating(
	enum lien_library library, const char *symbol, enum lien_touches *touches)
{
	*touches = LIEN_TOUCHES_ANY;
	if (library >= LIEN_LIB_IBVERBS)
		return registers(library, symbol, touches);
	if (library == LIEN_LIB_NCCL && !strncmp(symbol, "pnccl", 5))
		symbol++;
	if (library == LIEN_LIB_CUDA)
		*touches = touches_of(symbol);
	if (!is_interface(library, symbol) || is_harmless(library, symbol))
		return LIEN_GATING_NONE;
	return library == LIEN_LIB_NCCL || is_among(with_nccl, symbol, without_version(symbol))
		       ? LIEN_GATING_NCCL
		       : LIEN_GATING_ALL;
}

/* --- numbers ---------------------------------------------------------------------------------- */

#define FIRST LIEN_CALL_GATED_FIRST

/* By number, from FIRST on: the first name that it was made from. Never freed. */
static char *made[LIEN_CALL_GATED_LAST - FIRST + 1];

unsigned lien_function_number(const char *symbol)
{
	const struct lien_probed_call *call = lien_function_call(symbol);
	uint64_t hash = lien_hash(LIEN_HASH_START, symbol, strlen(symbol)) % COUNT(made);
	char *none = NULL, *name;

	if (call)
		return call->number;
	name = __atomic_load_n(&made[hash], __ATOMIC_ACQUIRE) ? NULL : strdup(symbol);
	if (name && !__atomic_compare_exchange_n(
			    &made[hash], &none, name, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		free(name);
	return FIRST + hash;
}

const char *lien_calls_name(unsigned number)
{
	const char *name = NULL;
	unsigned i;

	for (i = 0; i < COUNT(calls); i++)
		if (calls[i].number == number)
			return calls[i].symbol;
	if (number >= FIRST && number < FIRST + COUNT(made))
		name = __atomic_load_n(&made[number - FIRST], __ATOMIC_ACQUIRE);
	return name ? name : "a call of the driver or NCCL";
}
