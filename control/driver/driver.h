/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The CUDA driver, found at run time in a process that has loaded it. The functions are the
 * exported symbols, so the agent's probes see these calls and recognize them as ours by their
 * return address.
 */
#ifndef LIEN_CONTROL_DRIVER_H
#define LIEN_CONTROL_DRIVER_H

#include <stddef.h>

#include <lien/cuda_abi.h>

/*
 * The driver's functions that this library calls, each once. OPTIONAL: missing from some drivers
 * that lien works with, and NULL there. HANDLES: all functions of cuda.h that take or return a
 * handle, which are replaced by ours (translate.h); tests/unit/test_cuda_handles.c compares the
 * list with cuda.h.
 *
 * PTDS and PTSZ: there is one of the same name for per-thread default streams.
 */
/* clang-format off */
#define LIEN_PTDS(X, name) X(name) X(name##_ptds)
#define LIEN_PTSZ(X, name) X(name) X(name##_ptsz)

#define LIEN_NEEDED_HANDLES(X) \
	X(cuMemGetAllocationPropertiesFromHandle) \
	X(cuMemCreate) \
	X(cuMemRelease) \
	X(cuMemRetainAllocationHandle) \
	X(cuMemMap) \
	X(cuMemExportToShareableHandle) \
	X(cuMemImportFromShareableHandle)

#define LIEN_OPTIONAL_HANDLES(X) \
	LIEN_PTSZ(X, cuMemMapArrayAsync) \
	X(cuMulticastCreate) \
	X(cuMulticastAddDevice) \
	X(cuMulticastBindMem) \
	X(cuMulticastBindMem_v2) \
	X(cuMulticastBindAddr) \
	X(cuMulticastBindAddr_v2) \
	X(cuMulticastUnbind)

#define LIEN_INTERPOSED_HANDLES(X) LIEN_NEEDED_HANDLES(X) LIEN_OPTIONAL_HANDLES(X)

#define LIEN_DRIVER_NEEDED(X) \
	LIEN_NEEDED_HANDLES(X) \
	X(cuGetErrorName) \
	X(cuDeviceGet) \
	X(cuDeviceGetCount) \
	X(cuDevicePrimaryCtxGetState) \
	X(cuCtxSetCurrent) \
	X(cuThreadExchangeStreamCaptureMode) \
	X(cuStreamCreate) \
	X(cuStreamDestroy_v2) \
	X(cuMemHostRegister_v2) \
	X(cuMemHostUnregister) \
	X(cuMemGetAccess) \
	X(cuMemAddressReserve) \
	X(cuMemAddressFree) \
	X(cuMemUnmap) \
	X(cuMemSetAccess) \
	X(cuDevicePrimaryCtxRetain) \
	X(cuDevicePrimaryCtxRelease_v2) \
	X(cuCtxSynchronize) \
	X(cuStreamSynchronize) \
	X(cuMemcpyHtoDAsync_v2) \
	X(cuMemcpyDtoHAsync_v2) \
	X(cuMemGetInfo_v2) \
	X(cuMemGetAddressRange_v2) \
	X(cuPointerGetAttribute)

#define LIEN_DRIVER_OPTIONAL(X) \
	LIEN_OPTIONAL_HANDLES(X) \
	X(cuGetProcAddress) \
	X(cuGetProcAddress_v2) \
	X(cuDeviceGetUuid_v2) \
	X(cuDeviceGetAttribute) \
	X(cuMemsetD8Async) \
	X(cuCtxGetCurrent) \
	X(cuCtxGetDevice) \
	X(cuCtxPushCurrent_v2) \
	X(cuCtxPopCurrent_v2) \
	X(cuDeviceCanAccessPeer) \
	X(cuMemGetAllocationGranularity) \
	X(cuDeviceGetDefaultMemPool) \
	X(cuDeviceGetMemPool) \
	X(cuMemPoolGetAccess) \
	X(cuStreamGetCtx) \
	X(cuStreamGetId) \
	X(cuStreamIsCapturing) \
	X(cuStreamWaitEvent) \
	X(cuEventCreate) \
	X(cuEventRecord) \
	X(cuEventQuery) \
	X(cuEventDestroy_v2) \
	X(cuDevicePrimaryCtxReset_v2) \
	X(cuDevicePrimaryCtxRelease) \
	X(cuDevicePrimaryCtxReset) \
	X(cuCtxDestroy) \
	X(cuCtxDestroy_v2) \
	X(cuIpcOpenMemHandle) \
	X(cuCtxCreate_v2) \
	X(cuCtxCreate_v3) \
	X(cuCtxCreate_v4) \
	X(cuMemAlloc_v2) \
	X(cuMemAllocPitch_v2) \
	X(cuMemFree_v2) \
	X(cuPointerGetAttributes) \
	X(cuPointerSetAttribute) \
	X(cuMemHostGetFlags) \
	X(cuMemHostGetDevicePointer_v2) \
	LIEN_PTSZ(X, cuMemAllocAsync) \
	LIEN_PTSZ(X, cuMemAllocFromPoolAsync) \
	LIEN_PTSZ(X, cuMemFreeAsync) \
	X(cuMemPoolGetAttribute) \
	X(cuMemPoolSetAttribute) \
	X(cuMemPoolSetAccess) \
	X(cuMemPoolTrimTo) \
	X(cuStreamSynchronize_ptsz) \
	X(cuEventSynchronize) \
	X(cuCtxSynchronize_v2) \
	X(cuIpcGetMemHandle) \
	X(cuIpcOpenMemHandle_v2) \
	X(cuIpcCloseMemHandle) \
	LIEN_PTDS(X, cuMemcpyHtoD_v2) \
	X(cuMemcpyHtoDAsync_v2_ptsz) \
	LIEN_PTDS(X, cuMemcpyDtoH_v2) \
	X(cuMemcpyDtoHAsync_v2_ptsz) \
	LIEN_PTDS(X, cuMemcpyDtoD_v2) \
	LIEN_PTSZ(X, cuMemcpyDtoDAsync_v2) \
	LIEN_PTDS(X, cuMemcpy) \
	LIEN_PTSZ(X, cuMemcpyAsync) \
	LIEN_PTDS(X, cuMemcpyPeer) \
	LIEN_PTSZ(X, cuMemcpyPeerAsync) \
	LIEN_PTDS(X, cuMemcpy2D_v2) \
	LIEN_PTSZ(X, cuMemcpy2DAsync_v2) \
	LIEN_PTDS(X, cuMemcpy2DUnaligned_v2) \
	LIEN_PTDS(X, cuMemcpy3D_v2) \
	LIEN_PTSZ(X, cuMemcpy3DAsync_v2) \
	LIEN_PTDS(X, cuMemcpy3DPeer) \
	LIEN_PTSZ(X, cuMemcpy3DPeerAsync) \
	LIEN_PTDS(X, cuMemsetD8_v2) \
	LIEN_PTDS(X, cuMemsetD2D8_v2) \
	LIEN_PTDS(X, cuMemsetD16_v2) \
	LIEN_PTDS(X, cuMemsetD2D16_v2) \
	LIEN_PTDS(X, cuMemsetD32_v2) \
	LIEN_PTDS(X, cuMemsetD2D32_v2)
/* clang-format on */

struct lien_driver {
#define LIEN_DRIVER_MEMBER(name) __typeof__(name) *name;
	LIEN_DRIVER_NEEDED(LIEN_DRIVER_MEMBER)
	LIEN_DRIVER_OPTIONAL(LIEN_DRIVER_MEMBER)
#undef LIEN_DRIVER_MEMBER
};

/* Returns the driver that the process has loaded. NULL: there is none, or *missing names the
 * function that it lacks. Never loads the driver, but keeps it loaded. Thread-safe; waits while
 * another thread loads a library. */
const struct lien_driver *lien_driver_find(const char **missing);
/* Same, for a thread of the application's that calls the driver: waits for nobody, and so may be
 * called where a constructor waits for that thread. If nobody has kept the driver loaded, a thread
 * does that later. */
const struct lien_driver *lien_driver_called(void);
/* Keeps the driver loaded, if it is. Waits like find(). */
void lien_driver_keep(void);
/* Returns the driver if an earlier lien_driver_find() found it, otherwise NULL. */
const struct lien_driver *lien_driver_found(void);
/* Returns a function of the driver that is loaded now; NULL: there is none. Does not keep the
 * driver loaded, and waits for nobody. */
void *lien_driver_symbol(const char *name);

/* Writes "CUDA_ERROR_...", the number of an unnamed error, or that the process is ending. */
void lien_driver_error(const struct lien_driver *driver, CUresult result, char *text, size_t size);

#endif
