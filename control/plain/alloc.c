// SPDX-License-Identifier: BSD-2-Clause
/* The functions that the application gets for the driver's that allocate and free plain memory. */
#include <pthread.h>
#include <string.h>

#include "control/plain/memory.h"

/* The pitch that the driver chooses (seen, 580.159). */
#define PITCH 512

/* The caller is the application. */
#define CALLER __builtin_return_address(0)

/* Finds the place for memory that stays until it is freed. Returns whether it can be ours. */
LIEN_TRANSLATED static int place_for(struct lien_plain_place *place, const void *caller)
{
	CUresult result;

	if (!lien_plain_place(place, caller))
		return 0;
	result = lien_plain_wait_prepare((CUcontext)(uintptr_t)place->key.context);
	return !result || result == CUDA_ERROR_OUT_OF_MEMORY; /* there may be parked memory */
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
	struct lien_plain_place place;

	if (ptr && bytes && place_for(&place, CALLER)) {
		if (!lien_plain_take(&place, bytes, NULL, ptr))
			return CUDA_SUCCESS;
		lien_plain_reap();
		if (!lien_plain_take(&place, bytes, NULL, ptr))
			return CUDA_SUCCESS;
	}
	return LIEN_REAL(cuMemAlloc_v2)(ptr, bytes);
}

/* Returns the bytes of the rows, and their pitch; 0: the driver decides. */
static size_t pitched(size_t width, size_t height, unsigned int element, size_t *pitch)
{
	size_t bytes;

	if (!width || !height || (element != 4 && element != 8 && element != 16))
		return 0;
	*pitch = (width + PITCH - 1) / PITCH * PITCH;
	return *pitch < width || __builtin_mul_overflow(*pitch, height, &bytes) ? 0 : bytes;
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocPitch_v2(
	CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	struct lien_plain_place place;
	size_t bytes, row;

	bytes = ptr && pitch ? pitched(width, height, element, &row) : 0;
	if (bytes && place_for(&place, CALLER) && !lien_plain_take(&place, bytes, NULL, ptr)) {
		*pitch = row;
		return CUDA_SUCCESS;
	}
	return LIEN_REAL(cuMemAllocPitch_v2)(ptr, pitch, width, height, element);
}

/* NULL: it is not active, or the application has not asked for it. */
LIEN_TRANSLATED static CUcontext active_primary(CUdevice device)
{
	unsigned int flags;
	int active = 0;

	return !LIEN_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) && active
		       ? lien_plain_primary(device)
		       : NULL;
}

/* Returns a context whose work may use the block. NULL: there is none. Like the driver, this asks
 * for no current context. */
LIEN_TRANSLATED static CUcontext context_of(const struct lien_heap_block *block)
{
	CUcontext context = NULL;

	if (!block->key.pool)
		return (CUcontext)(uintptr_t)block->key.context;
	LIEN_REAL(cuCtxGetCurrent)(&context);
	if (!context)
		context = lien_plain_pool_context(block->key.device);
	return context ? context : active_primary(block->key.device);
}

/* Before the driver looks at the address it checks that the current context has not ended, and that
 * no work of the memory's context is captured. NULL: all contexts that used the memory have ended.
 */
LIEN_TRANSLATED static CUresult check_and_wait(CUcontext context)
{
	CUcontext current;

	if (LIEN_REAL(cuStreamGetCtx)(CU_STREAM_PER_THREAD, &current) ==
		CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return context ? lien_plain_wait(context) : CUDA_SUCCESS;
}

LIEN_TRANSLATED CUresult lien_plain_cuMemFree_v2(CUdeviceptr ptr)
{
	struct lien_heap_block block;
	CUresult result;

	if (!lien_plain_find(ptr, &block))
		return LIEN_REAL(cuMemFree_v2)(lien_plain_hide(ptr));
	result = check_and_wait(context_of(&block));
	if (!result && block.address != ptr)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = lien_plain_give(&block);
	if (result || !block.key.pool)
		return result;
	lien_plain_account(block.key.context, -(int64_t)block.bytes, 0);
	lien_plain_synchronized();
	return CUDA_SUCCESS;
}

LIEN_EXPORT_AS(cuMemAlloc_v2, lien_plain_cuMemAlloc_v2);
LIEN_EXPORT_AS(cuMemAllocPitch_v2, lien_plain_cuMemAllocPitch_v2);
LIEN_EXPORT_AS(cuMemFree_v2, lien_plain_cuMemFree_v2);
