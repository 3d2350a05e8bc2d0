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
 * The driver's functions that this library calls for itself, each once. OPTIONAL: missing from some
 * drivers that lien works with, and NULL there. HANDLES: all functions of cuda.h that take or
 * return a handle, which are replaced by ours (translate.h); tests/unit/test_cuda_handles.c
 * compares the list with cuda.h.
 */
/* clang-format off */
#define LIEN_NEEDED_HANDLES(X) \
	X(cuMemGetAllocationPropertiesFromHandle) \
	X(cuMemCreate) \
	X(cuMemRelease) \
	X(cuMemRetainAllocationHandle) \
	X(cuMemMap) \
	X(cuMemExportToShareableHandle) \
	X(cuMemImportFromShareableHandle)

#define LIEN_OPTIONAL_HANDLES(X) \
	X(cuMemMapArrayAsync) \
	X(cuMemMapArrayAsync_ptsz) \
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
	X(cuDeviceGetUuid_v2) \
	X(cuDeviceGetAttribute) \
	X(cuMemsetD8Async) \
	X(cuMemAlloc_v2) \
	X(cuMemFree_v2)
/* clang-format on */

struct lien_driver {
#define LIEN_DRIVER_MEMBER(name) __typeof__(name) *name;
	LIEN_DRIVER_NEEDED(LIEN_DRIVER_MEMBER)
	LIEN_DRIVER_OPTIONAL(LIEN_DRIVER_MEMBER)
#undef LIEN_DRIVER_MEMBER
	void *real[]; /* those that it calls for the application; NULL: the driver lacks it */
};

/* The names of those, LIEN_REAL()'s and LIEN_INTERPOSE()'s. */
#define LIEN_REAL_NAME(variable, name)                                                             \
	static const char *const variable __attribute__((section("lien_real_names"), used)) = #name

extern const char *const __start_lien_real_names[] __attribute__((weak, visibility("hidden"))),
	*const __stop_lien_real_names[] __attribute__((weak, visibility("hidden")));

/* Returns the function whose name lies there. */
static inline void *lien_driver_real(const struct lien_driver *driver, const char *const *name)
{
	return driver->real[name - __start_lien_real_names];
}

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
