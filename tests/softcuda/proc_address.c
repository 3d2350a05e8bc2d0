/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * cuGetProcAddress: base names to the exported functions. lien relies on a fact about the real
 * driver, measured: what this returns is the address of the exported, versioned symbol, so a uprobe
 * on the symbol sees those who came this way. The versions are those of cudaTypedefs.h. The table
 * is read-only after relocation: what replaces cached driver pointers by value must not find it.
 */
#include <limits.h>
#include <string.h>

#include "softcuda.h"

struct symbol {
	const char *name;
	int since, until; /* CUDA versions, until is not included */
	const void *function;
	const void *per_thread; /* variant for the per-thread default stream */
};

#define NAMED(base, since, until, f, ptsz)                                                         \
	{                                                                                          \
#base, since, until, (const void *)(f), ptsz                                       \
	}
#define SAME(since, f)	NAMED(f, since, INT_MAX, f, NULL)
#define V2(since, base) NAMED(base, since, INT_MAX, base##_v2, NULL)
#define PTSZ(since, f)	NAMED(f, since, INT_MAX, f, (const void *)f##_ptsz)

#define PTDS(since, f)		NAMED(f, since, INT_MAX, f, (const void *)f##_ptds)
#define V2_PT(since, base, end) NAMED(base, since, INT_MAX, base##_v2, (const void *)base##_v2##end)

/* The variants have the arguments of the functions that they are variants of. */
#define VARIANT(f, variant) __typeof__(f) variant
VARIANT(cuMemsetD8Async, cuMemsetD8Async_ptsz);
VARIANT(cuMemsetD32Async, cuMemsetD32Async_ptsz);
VARIANT(cuStreamSynchronize, cuStreamSynchronize_ptsz);
VARIANT(cuStreamGetCtx, cuStreamGetCtx_ptsz);
VARIANT(cuStreamQuery, cuStreamQuery_ptsz);
VARIANT(cuStreamWaitEvent, cuStreamWaitEvent_ptsz);
VARIANT(cuLaunchHostFunc, cuLaunchHostFunc_ptsz);
VARIANT(cuStreamIsCapturing, cuStreamIsCapturing_ptsz);
VARIANT(cuEventRecord, cuEventRecord_ptsz);

static const struct symbol symbols[] = {
	SAME(2000, cuInit),
	SAME(2020, cuDriverGetVersion),
	SAME(6000, cuGetErrorName),
	SAME(6000, cuGetErrorString),
	NAMED(cuGetProcAddress, 11030, 12000, cuGetProcAddress, NULL),
	V2(12000, cuGetProcAddress),
	SAME(2000, cuDeviceGet),
	SAME(2000, cuDeviceGetCount),
	SAME(2000, cuDeviceGetName),
	NAMED(cuDeviceGetUuid, 9020, 11040, cuDeviceGetUuid, NULL),
	V2(11040, cuDeviceGetUuid),
	V2(3020, cuDeviceTotalMem),
	SAME(2000, cuDeviceGetAttribute),
	SAME(4000, cuDeviceCanAccessPeer),
	SAME(7000, cuDevicePrimaryCtxRetain),
	V2(11000, cuDevicePrimaryCtxRelease),
	V2(11000, cuDevicePrimaryCtxReset),
	SAME(4000, cuCtxEnablePeerAccess),
	SAME(4000, cuCtxDisablePeerAccess),
	SAME(7000, cuDevicePrimaryCtxGetState),
	/* _v3 (from 11.4 on) has other arguments and is not here. */
	NAMED(cuCtxCreate, 3020, 11040, cuCtxCreate_v2, NULL),
	NAMED(cuCtxCreate, 12050, INT_MAX, cuCtxCreate_v4, NULL),
	V2(4000, cuCtxDestroy),
	SAME(4000, cuCtxSetCurrent),
	SAME(4000, cuCtxGetCurrent),
	V2(4000, cuCtxPushCurrent),
	V2(4000, cuCtxPopCurrent),
	NAMED(cuCtxGetDevice, 2000, 13000, cuCtxGetDevice, NULL),
	V2(13000, cuCtxGetDevice),
	SAME(7000, cuCtxGetFlags),
	SAME(12010, cuCtxSetFlags),
	NAMED(cuCtxSynchronize, 2000, 13000, cuCtxSynchronize, NULL),
	V2(13000, cuCtxSynchronize),
	V2(3020, cuMemGetInfo),
	V2(3020, cuMemAlloc),
	V2(3020, cuMemAllocPitch),
	SAME(6000, cuMemAllocManaged),
	V2(3020, cuMemFree),
	PTSZ(11020, cuMemAllocAsync),
	PTSZ(11020, cuMemAllocFromPoolAsync),
	PTSZ(11020, cuMemFreeAsync),
	SAME(11020, cuDeviceGetDefaultMemPool),
	SAME(11020, cuDeviceGetMemPool),
	SAME(11020, cuDeviceSetMemPool),
	SAME(11020, cuMemPoolCreate),
	SAME(11020, cuMemPoolDestroy),
	SAME(11020, cuMemPoolSetAttribute),
	SAME(11020, cuMemPoolGetAttribute),
	SAME(11020, cuMemPoolTrimTo),
	SAME(11020, cuMemPoolSetAccess),
	SAME(11020, cuMemPoolGetAccess),
	SAME(11020, cuMemPoolExportToShareableHandle),
	SAME(11020, cuMemPoolImportFromShareableHandle),
	SAME(11020, cuMemPoolExportPointer),
	SAME(11020, cuMemPoolImportPointer),
	SAME(4010, cuIpcGetMemHandle),
	V2(11000, cuIpcOpenMemHandle),
	SAME(4010, cuIpcCloseMemHandle),
	V2(3020, cuMemAllocHost),
	SAME(2020, cuMemHostAlloc),
	SAME(2000, cuMemFreeHost),
	V2(6050, cuMemHostRegister),
	SAME(4000, cuMemHostUnregister),
	V2(3020, cuMemHostGetDevicePointer),
	SAME(2030, cuMemHostGetFlags),
	SAME(4000, cuPointerGetAttribute),
	SAME(7000, cuPointerGetAttributes),
	SAME(6000, cuPointerSetAttribute),
	V2(3020, cuMemGetAddressRange),
	SAME(11070, cuMemGetHandleForAddressRange),
	V2_PT(3020, cuMemcpyHtoD, _ptds),
	V2_PT(3020, cuMemcpyDtoH, _ptds),
	V2_PT(3020, cuMemcpyDtoD, _ptds),
	V2_PT(3020, cuMemcpyHtoDAsync, _ptsz),
	V2_PT(3020, cuMemcpyDtoHAsync, _ptsz),
	V2_PT(3020, cuMemcpyDtoDAsync, _ptsz),
	PTDS(4000, cuMemcpy),
	PTSZ(4000, cuMemcpyAsync),
	V2_PT(3020, cuMemsetD8, _ptds),
	PTSZ(3020, cuMemsetD8Async),
	PTSZ(3020, cuMemsetD32Async),
	V2_PT(3020, cuMemcpy2D, _ptds),
	V2_PT(3020, cuMemcpy2DUnaligned, _ptds),
	V2_PT(3020, cuMemcpy2DAsync, _ptsz),
	PTDS(4000, cuMemcpyPeer),
	PTSZ(4000, cuMemcpyPeerAsync),
	V2_PT(3020, cuMemsetD32, _ptds),
	SAME(10020, cuMemGetAllocationGranularity),
	SAME(10020, cuMemCreate),
	SAME(10020, cuMemRelease),
	SAME(11000, cuMemRetainAllocationHandle),
	SAME(10020, cuMemGetAllocationPropertiesFromHandle),
	SAME(10020, cuMemAddressReserve),
	SAME(10020, cuMemAddressFree),
	SAME(10020, cuMemMap),
	SAME(10020, cuMemUnmap),
	SAME(10020, cuMemSetAccess),
	SAME(10020, cuMemGetAccess),
	SAME(10020, cuMemExportToShareableHandle),
	SAME(10020, cuMemImportFromShareableHandle),
	SAME(12010, cuMulticastGetGranularity),
	SAME(12010, cuMulticastCreate),
	SAME(12010, cuMulticastAddDevice),
	SAME(12010, cuMulticastBindMem),
	SAME(12010, cuMulticastBindAddr),
	SAME(12010, cuMulticastUnbind),
	SAME(2000, cuStreamCreate),
	SAME(5050, cuStreamCreateWithPriority),
	V2(4000, cuStreamDestroy),
	PTSZ(2000, cuStreamSynchronize),
	SAME(12000, cuStreamGetId),
	PTSZ(9020, cuStreamGetCtx),
	PTSZ(2000, cuStreamQuery),
	PTSZ(3020, cuStreamWaitEvent),
	PTSZ(10000, cuLaunchHostFunc),
	PTSZ(10000, cuStreamIsCapturing),
	NAMED(cuStreamBeginCapture, 10010, INT_MAX, cuStreamBeginCapture_v2,
		(const void *)cuStreamBeginCapture_v2_ptsz),
	PTSZ(12030, cuStreamBeginCaptureToGraph),
	PTSZ(10000, cuStreamEndCapture),
	SAME(10010, cuThreadExchangeStreamCaptureMode),
	SAME(10000, cuGraphCreate),
	SAME(10000, cuGraphDestroy),
	SAME(2000, cuEventCreate),
	V2(4000, cuEventDestroy),
	PTSZ(2000, cuEventRecord),
	SAME(2000, cuEventQuery),
	SAME(2000, cuEventSynchronize),
};

static CUdriverProcAddressQueryResult find(
	const char *name, int version, bool per_thread, const void **function)
{
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;

	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		const struct symbol *symbol = &symbols[i];

		if (strcmp(symbol->name, name))
			continue;
		if (version >= symbol->since && version < symbol->until) {
			*function = per_thread && symbol->per_thread ? symbol->per_thread
								     : symbol->function;
			return CU_GET_PROC_ADDRESS_SUCCESS;
		}
		status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
	}
	return status;
}

static CUresult get(const char *symbol, void **pfn, int version, uint64_t flags,
	CUdriverProcAddressQueryResult *status)
{
	CUdriverProcAddressQueryResult found;
	const void *function = NULL;

	if (!symbol || !pfn || version > SOFT_DRIVER_VERSION ||
		flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	found = find(
		symbol, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &function);
	*pfn = (void *)function;
	if (status)
		*status = found;
	return found == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SOFT_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version,
	uint64_t flags, CUdriverProcAddressQueryResult *status)
{
	SOFT_FAULT();
	return get(symbol, pfn, version, flags, status);
}

/* CUDA 11.3 to 11.8. */
SOFT_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	SOFT_FAULT();
	return get(symbol, pfn, version, flags, NULL);
}
