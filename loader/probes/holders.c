// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/holders.h"

#include <stddef.h>
#include <string.h>

#include "loader/probes/calls.h"
#include "loader/probes/gated.h"

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

static const char *const other_memory[] = {"cuDestroyExternalMemory", "cuDestroyExternalSemaphore",
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

static const struct lien_reason reasons[] = {
	{"it works on memory by address, while it runs", by_address},
	{"it notes addresses, which stay the same", addresses},
	{"it is about memory that is not moved: of others, of graphs, or of arrays", other_memory},
	{"it is about memory of graphics libraries", graphics},
	{"it only asks, or is about an object that has no memory of its own", newer},
	{"it saves or ends all that the process or its context has", ends},
	{NULL, NULL},
};

/* --- NCCL --------------------------------------------------------------------------------------
 */

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

/* --- network cards -----------------------------------------------------------------------------
 */

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

static const struct lien_reason rdma_reasons[] = {
	{"it only asks", verbs_ask},
	{"it is about an object of the card, to which registrations name memory", verbs_objects},
	{"its memory is not a GPU's, or the registration was seen where it was made", verbs_other},
	{"it is about an object of the card, to which registrations name memory", mlx5_objects},
	{"its memory is the card's, or a dma-buf, or the registration was seen where it was made",
		mlx5_other},
	{"it is about memory that gdr_pin_buffer() has pinned", gdrcopy},
	{NULL, NULL},
};

/* --- looking up --------------------------------------------------------------------------------
 */

static const char *cuda_holds_nothing(const char *symbol)
{
	const char *why;

	if (lien_gated_among(older, symbol, strlen(symbol)))
		return "it makes or ends what is not moved: programs of CUDA 3 and 9 call it";
	if (lien_calls_any_version(symbol, lien_gated_without_version(symbol)))
		return NULL;
	why = lien_gated_reason(reasons, symbol);
	return why ? why : lien_gated_harmless(LIEN_LIB_CUDA, symbol);
}

static const char *nccl_holds_nothing(const char *symbol)
{
	if (lien_gated_among(nccl, symbol, strlen(symbol)) ||
		lien_gated_among(amem, symbol, strlen(symbol)))
		return "what it has held, it has by calls of the driver and libibverbs, which are "
		       "traced";
	return lien_gated_harmless(LIEN_LIB_NCCL, symbol);
}

static bool fits(const char *name, const char *symbol)
{
	const size_t length = strlen(name) - 1;

	return name[length] == '*' ? !strncmp(name, symbol, length) : !strcmp(name, symbol);
}

static const char *rdma_holds_nothing(const char *symbol)
{
	const char *name;
	unsigned i, n;

	for (i = 0; rdma_reasons[i].why; i++)
		for (n = 0; (name = rdma_reasons[i].names[n]); n++)
			if (fits(name, symbol))
				return rdma_reasons[i].why;
	return NULL;
}

/* libibverbs exports more to the drivers of cards. */
static bool is_interface(enum lien_library library, const char *symbol)
{
	switch (library) {
	case LIEN_LIB_IBVERBS:
		return !strncmp(symbol, "ibv_", 4) && strncmp(symbol, "ibv_cmd_", 8);
	case LIEN_LIB_MLX5:
		return !strncmp(symbol, "mlx5dv_", 7);
	case LIEN_LIB_GDRAPI:
		return !strncmp(symbol, "gdr_", 4);
	default:
		return lien_gated_is_interface(library, symbol);
	}
}

const char *lien_holds_nothing(enum lien_library library, const char *symbol)
{
	if (lien_calls_symbol(symbol))
		return NULL;
	switch (library) {
	case LIEN_LIB_CUDA:
		return cuda_holds_nothing(symbol);
	case LIEN_LIB_NCCL:
		return nccl_holds_nothing(symbol);
	default:
		return rdma_holds_nothing(symbol);
	}
}

bool lien_holds_unknown(enum lien_library library, const char *symbol)
{
	return is_interface(library, symbol) && !lien_calls_symbol(symbol) &&
	       !lien_holds_nothing(library, symbol);
}

static const char *listed(const struct lien_reason *table, const char *const *more, unsigned index)
{
	const char *name = lien_gated_nth(table, &index);

	for (; !name && *more && index; index--)
		more++;
	return name ? name : *more;
}

const char *lien_holders_listed(enum lien_library library, unsigned index)
{
	static const struct lien_reason none[] = {{NULL, NULL}};
	static const char *const no_more[] = {NULL};

	switch (library) {
	case LIEN_LIB_CUDA:
		return listed(reasons, older, index);
	case LIEN_LIB_NCCL:
		return listed(none, nccl, index);
	default:
		return listed(rdma_reasons, no_more, index);
	}
}
