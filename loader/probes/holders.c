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
	"cuMemFree", "cuMemHostRegister", "cuStreamBeginCapture", "cuStreamBeginCapture_ptsz",
	"cuStreamDestroy", NULL};

static const struct lien_reason reasons[] = {
	{"it works on memory by address, while it runs", by_address},
	{"it notes addresses, which stay the same", addresses},
	{"it is about memory that is not moved: of others, of graphs, or of arrays", other_memory},
	{"it is about memory of graphics libraries", graphics},
	{"it only asks, or is about an object that has no memory of its own", newer},
	{"it saves or ends all that the process or its context has", ends},
	{NULL, NULL},
};

const char *lien_holds_nothing(const char *symbol)
{
	const char *why;

	if (lien_calls_symbol(symbol))
		return NULL;
	if (lien_gated_among(older, symbol, strlen(symbol)))
		return "it makes or ends what is not moved: programs of CUDA 3 and 9 call it";
	if (lien_calls_any_version(symbol, lien_gated_without_version(symbol)))
		return NULL;
	why = lien_gated_reason(reasons, symbol);
	return why ? why : lien_gated_harmless(LIEN_LIB_CUDA, symbol);
}

bool lien_holds_unknown(const char *symbol)
{
	return lien_gated_is_interface(LIEN_LIB_CUDA, symbol) && !lien_calls_symbol(symbol) &&
	       !lien_holds_nothing(symbol);
}

const char *lien_holders_listed(unsigned index)
{
	const char *name = lien_gated_nth(reasons, &index);

	if (name)
		return name;
	return index < sizeof(older) / sizeof(older[0]) ? older[index] : NULL;
}
