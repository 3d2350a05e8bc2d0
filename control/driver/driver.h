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

#define LIEN_DRIVER_FUNCTIONS(X)                                                                   \
	X(cuGetErrorName)                                                                          \
	X(cuDeviceGet)                                                                             \
	X(cuDeviceGetCount)                                                                        \
	X(cuDevicePrimaryCtxGetState)                                                              \
	X(cuDevicePrimaryCtxRetain)                                                                \
	X(cuDevicePrimaryCtxRelease_v2)                                                            \
	X(cuCtxSetCurrent)                                                                         \
	X(cuCtxSynchronize)                                                                        \
	X(cuThreadExchangeStreamCaptureMode)                                                       \
	X(cuStreamCreate)                                                                          \
	X(cuStreamDestroy_v2)                                                                      \
	X(cuStreamSynchronize)                                                                     \
	X(cuMemHostRegister_v2)                                                                    \
	X(cuMemHostUnregister)                                                                     \
	X(cuMemcpyHtoDAsync_v2)                                                                    \
	X(cuMemcpyDtoHAsync_v2)                                                                    \
	X(cuMemGetInfo_v2)                                                                         \
	X(cuMemGetAddressRange_v2)                                                                 \
	X(cuPointerGetAttribute)                                                                   \
	X(cuMemGetAccess)                                                                          \
	X(cuMemGetAllocationPropertiesFromHandle)                                                  \
	X(cuMemCreate)                                                                             \
	X(cuMemRelease)                                                                            \
	X(cuMemRetainAllocationHandle)                                                             \
	X(cuMemAddressReserve)                                                                     \
	X(cuMemAddressFree)                                                                        \
	X(cuMemMap)                                                                                \
	X(cuMemUnmap)                                                                              \
	X(cuMemSetAccess)                                                                          \
	X(cuMemExportToShareableHandle)                                                            \
	X(cuMemImportFromShareableHandle)

/* Copies and sets but for those two above, of which the older drivers lack some. */
#define LIEN_DRIVER_COPIES(X)                                                                      \
	X(cuMemcpyHtoD_v2)                                                                         \
	X(cuMemcpyHtoD_v2_ptds)                                                                    \
	X(cuMemcpyHtoDAsync_v2_ptsz)                                                               \
	X(cuMemcpyDtoH_v2)                                                                         \
	X(cuMemcpyDtoH_v2_ptds)                                                                    \
	X(cuMemcpyDtoHAsync_v2_ptsz)                                                               \
	X(cuMemcpyDtoD_v2)                                                                         \
	X(cuMemcpyDtoD_v2_ptds)                                                                    \
	X(cuMemcpyDtoDAsync_v2)                                                                    \
	X(cuMemcpyDtoDAsync_v2_ptsz)                                                               \
	X(cuMemcpy)                                                                                \
	X(cuMemcpy_ptds)                                                                           \
	X(cuMemcpyAsync)                                                                           \
	X(cuMemcpyAsync_ptsz)                                                                      \
	X(cuMemcpyPeer)                                                                            \
	X(cuMemcpyPeer_ptds)                                                                       \
	X(cuMemcpyPeerAsync)                                                                       \
	X(cuMemcpyPeerAsync_ptsz)                                                                  \
	X(cuMemcpy2D_v2)                                                                           \
	X(cuMemcpy2D_v2_ptds)                                                                      \
	X(cuMemcpy2DAsync_v2)                                                                      \
	X(cuMemcpy2DAsync_v2_ptsz)                                                                 \
	X(cuMemcpy2DUnaligned_v2)                                                                  \
	X(cuMemcpy2DUnaligned_v2_ptds)                                                             \
	X(cuMemcpy3D_v2)                                                                           \
	X(cuMemcpy3D_v2_ptds)                                                                      \
	X(cuMemcpy3DAsync_v2)                                                                      \
	X(cuMemcpy3DAsync_v2_ptsz)                                                                 \
	X(cuMemcpy3DPeer)                                                                          \
	X(cuMemcpy3DPeer_ptds)                                                                     \
	X(cuMemcpy3DPeerAsync)                                                                     \
	X(cuMemcpy3DPeerAsync_ptsz)                                                                \
	X(cuMemsetD8_v2)                                                                           \
	X(cuMemsetD8_v2_ptds)                                                                      \
	X(cuMemsetD2D8_v2)                                                                         \
	X(cuMemsetD2D8_v2_ptds)                                                                    \
	X(cuMemsetD16_v2)                                                                          \
	X(cuMemsetD16_v2_ptds)                                                                     \
	X(cuMemsetD2D16_v2)                                                                        \
	X(cuMemsetD2D16_v2_ptds)                                                                   \
	X(cuMemsetD32_v2)                                                                          \
	X(cuMemsetD32_v2_ptds)                                                                     \
	X(cuMemsetD2D32_v2)                                                                        \
	X(cuMemsetD2D32_v2_ptds)

/* Missing from some drivers that lien works with, and NULL there. */
#define LIEN_DRIVER_OPTIONAL(X)                                                                    \
	X(cuGetProcAddress)                                                                        \
	X(cuGetProcAddress_v2)                                                                     \
	X(cuMemMapArrayAsync)                                                                      \
	X(cuMemMapArrayAsync_ptsz)                                                                 \
	X(cuMulticastCreate)                                                                       \
	X(cuMulticastAddDevice)                                                                    \
	X(cuMulticastBindMem)                                                                      \
	X(cuMulticastBindMem_v2)                                                                   \
	X(cuMulticastBindAddr)                                                                     \
	X(cuMulticastBindAddr_v2)                                                                  \
	X(cuMulticastUnbind)                                                                       \
	X(cuDeviceGetUuid_v2)                                                                      \
	X(cuDeviceGetAttribute)                                                                    \
	X(cuMemsetD8Async)                                                                         \
	X(cuDevicePrimaryCtxReset_v2)                                                              \
	X(cuDevicePrimaryCtxRelease)                                                               \
	X(cuDevicePrimaryCtxReset)                                                                 \
	X(cuCtxDestroy)                                                                            \
	X(cuCtxDestroy_v2)                                                                         \
	X(cuIpcOpenMemHandle)                                                                      \
	X(cuCtxGetCurrent)                                                                         \
	X(cuCtxGetDevice)                                                                          \
	X(cuCtxPushCurrent_v2)                                                                     \
	X(cuCtxPopCurrent_v2)                                                                      \
	X(cuCtxCreate_v2)                                                                          \
	X(cuCtxCreate_v3)                                                                          \
	X(cuCtxCreate_v4)                                                                          \
	X(cuDeviceCanAccessPeer)                                                                   \
	X(cuMemGetAllocationGranularity)                                                           \
	X(cuMemAlloc_v2)                                                                           \
	X(cuMemAllocPitch_v2)                                                                      \
	X(cuMemFree_v2)                                                                            \
	X(cuPointerGetAttributes)                                                                  \
	X(cuPointerSetAttribute)                                                                   \
	X(cuMemHostGetFlags)                                                                       \
	X(cuMemHostGetDevicePointer_v2)                                                            \
	X(cuMemAllocAsync)                                                                         \
	X(cuMemAllocAsync_ptsz)                                                                    \
	X(cuMemAllocFromPoolAsync)                                                                 \
	X(cuMemAllocFromPoolAsync_ptsz)                                                            \
	X(cuMemFreeAsync)                                                                          \
	X(cuMemFreeAsync_ptsz)                                                                     \
	X(cuDeviceGetDefaultMemPool)                                                               \
	X(cuDeviceGetMemPool)                                                                      \
	X(cuMemPoolGetAttribute)                                                                   \
	X(cuMemPoolSetAttribute)                                                                   \
	X(cuMemPoolGetAccess)                                                                      \
	X(cuMemPoolSetAccess)                                                                      \
	X(cuMemPoolTrimTo)                                                                         \
	X(cuStreamGetCtx)                                                                          \
	X(cuStreamGetId)                                                                           \
	X(cuStreamIsCapturing)                                                                     \
	X(cuStreamSynchronize_ptsz)                                                                \
	X(cuStreamWaitEvent)                                                                       \
	X(cuEventCreate)                                                                           \
	X(cuEventRecord)                                                                           \
	X(cuEventQuery)                                                                            \
	X(cuEventSynchronize)                                                                      \
	X(cuEventDestroy_v2)                                                                       \
	X(cuCtxSynchronize_v2)                                                                     \
	X(cuIpcGetMemHandle)                                                                       \
	X(cuIpcOpenMemHandle_v2)                                                                   \
	X(cuIpcCloseMemHandle)                                                                     \
	LIEN_DRIVER_COPIES(X)

struct lien_driver {
#define LIEN_DRIVER_MEMBER(name) __typeof__(name) *name;
	LIEN_DRIVER_FUNCTIONS(LIEN_DRIVER_MEMBER)
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
