// SPDX-License-Identifier: BSD-2-Clause
/* The functions that the application gets for the driver's that allocate and free, at once and in a
 * stream. A graph's memory is the driver's. */
#include <stdio.h>
#include <sys/types.h>

#include "control/plain/memory.h"

/* The caller is the application. */
#define CALLER __builtin_return_address(0)

/* --- memory that stays until it is freed ------------------------------------------------------ */

/* Finds the place for memory that stays until it is freed. Returns whether it can be ours. */
LIEN_TRANSLATED static int place_for(struct lien_plain_place *place, const void *caller)
{
	CUresult result;

	if (!lien_plain_place(place, caller))
		return 0;
	result = lien_plain_wait_prepare((CUcontext)(uintptr_t)place->key.context);
	return !result || result == CUDA_ERROR_OUT_OF_MEMORY; /* there may be parked memory */
}

LIEN_TRANSLATED static CUresult plain_cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
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

LIEN_INTERPOSE(LIEN_FROM_START, cuMemAlloc_v2, plain_cuMemAlloc_v2);

/* The pitch that the driver chooses (seen, 580.159). */
#define PITCH 512

/* Returns the bytes of the rows, and their pitch; 0: the driver decides. */
static size_t pitched(size_t width, size_t height, unsigned int element, size_t *pitch)
{
	size_t bytes;

	if (!width || !height || (element != 4 && element != 8 && element != 16))
		return 0;
	*pitch = (width + PITCH - 1) / PITCH * PITCH;
	return *pitch < width || __builtin_mul_overflow(*pitch, height, &bytes) ? 0 : bytes;
}

LIEN_TRANSLATED static CUresult plain_cuMemAllocPitch_v2(
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

LIEN_INTERPOSE(LIEN_FROM_START, cuMemAllocPitch_v2, plain_cuMemAllocPitch_v2);

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

/* Takes back a block that nothing uses any more. */
LIEN_TRANSLATED static CUresult give(const struct lien_heap_block *block)
{
	struct lien_heap_range empty;
	CUresult result = CUDA_SUCCESS;

	if (lien_heap_give(&lien_plain_heap, block, &empty))
		return CUDA_ERROR_INVALID_VALUE; /* another thread was faster */
	if (empty.bytes)
		result = lien_plain_unmap(empty);
	if (result)
		lien_heap_put_back(&lien_plain_heap, block);
	return result;
}

LIEN_TRANSLATED static CUresult plain_cuMemFree_v2(CUdeviceptr ptr)
{
	struct lien_heap_block block;
	CUresult result;

	if (!lien_heap_find(&lien_plain_heap, ptr, &block))
		return LIEN_REAL(cuMemFree_v2)(lien_plain_hide(ptr));
	result = check_and_wait(context_of(&block));
	if (!result && block.address != ptr)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = give(&block);
	if (!result && block.key.pool)
		lien_plain_pool_given(&block);
	return result;
}

LIEN_INTERPOSE(LIEN_FROM_START, cuMemFree_v2, plain_cuMemFree_v2);

/* --- in a stream ------------------------------------------------------------------------------ */

/* Returns whether the address is ours to free; *result says whether it is freed. */
LIEN_TRANSLATED static int free_async(CUdeviceptr ptr, CUstream handle, CUresult *result)
{
	struct lien_plain_stream stream = {.handle = handle};
	struct lien_heap_block block;

	if (!lien_heap_find(&lien_plain_heap, ptr, &block) || lien_plain_is_capturing(handle))
		return 0;
	/* The driver frees in a stream of any context, whatever is current. */
	*result = LIEN_REAL(cuStreamGetCtx)(handle, &stream.context);
	if (*result)
		return 1;
	if (lien_plain_refused(stream.context))
		*result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	else if (block.address != ptr)
		*result = CUDA_ERROR_INVALID_VALUE;
	else if (LIEN_REAL(cuStreamGetId)(handle, &stream.id)) /* a driver of before CUDA 12.0 */
		*result = plain_cuMemFree_v2(ptr);
	else
		*result = lien_plain_pool_park(&stream, &block);
	return 1;
}

/* The functions for per-thread default streams take 0 for the thread's. */
#define BOTH(DEFINE, name)                                                                         \
	DEFINE(name, stream)                                                                       \
	DEFINE(name##_ptsz, stream ? stream : CU_STREAM_PER_THREAD)

#define FREE(name, in)                                                                             \
	LIEN_TRANSLATED static CUresult plain_##name(CUdeviceptr ptr, CUstream stream)             \
	{                                                                                          \
		CUresult result;                                                                   \
                                                                                                   \
		return free_async(ptr, in, &result)                                                \
			       ? result                                                            \
			       : LIEN_REAL(name)(lien_plain_hide(ptr), stream);                    \
	}                                                                                          \
	LIEN_INTERPOSE(LIEN_FROM_START, name, plain_##name);

#define ALLOC(name, in)                                                                            \
	LIEN_TRANSLATED static CUresult plain_##name(                                              \
		CUdeviceptr *ptr, size_t bytes, CUstream stream)                                   \
	{                                                                                          \
		return lien_plain_pool_alloc(ptr, bytes, NULL, in, CALLER)                         \
			       ? CUDA_SUCCESS                                                      \
			       : LIEN_REAL(name)(ptr, bytes, stream);                              \
	}                                                                                          \
	LIEN_INTERPOSE(LIEN_FROM_START, name, plain_##name);

#define ALLOC_FROM(name, in)                                                                       \
	LIEN_TRANSLATED static CUresult plain_##name(                                              \
		CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)                \
	{                                                                                          \
		return pool && lien_plain_pool_alloc(ptr, bytes, pool, in, CALLER)                 \
			       ? CUDA_SUCCESS                                                      \
			       : LIEN_REAL(name)(ptr, bytes, pool, stream);                        \
	}                                                                                          \
	LIEN_INTERPOSE(LIEN_FROM_START, name, plain_##name);

BOTH(FREE, cuMemFreeAsync)
BOTH(ALLOC, cuMemAllocAsync)
BOTH(ALLOC_FROM, cuMemAllocFromPoolAsync)

/* --- the allocator that torch_memory_saver's mode "torch" gives to PyTorch -------------------- */

#define EXPORT __attribute__((visibility("default")))

/* Makes the device's primary context current, unless it is; leave() undoes that. Returns whether it
 * can. */
LIEN_TRANSLATED static int enter(int device, int *pushed)
{
	CUdevice current;
	CUcontext context;

	*pushed = 0;
	if (!LIEN_REAL(cuCtxGetDevice)(&current) && current == device)
		return 1;
	context = lien_plain_primary(device);
	return context && !lien_plain_enter(context, pushed);
}

/* NULL: there is no room, as PyTorch understands it. */
EXPORT LIEN_TRANSLATED void *tms_torch_malloc(ssize_t bytes, int device, void *stream)
{
	CUdeviceptr address = 0;
	CUresult result;
	int pushed;

	(void)stream;
	if (bytes <= 0)
		return NULL;
	if (!enter(device, &pushed)) {
		fprintf(stderr, "lien: torch_memory_saver: device %d has no context\n", device);
		return NULL;
	}
	result = plain_cuMemAlloc_v2(&address, bytes);
	lien_plain_leave(pushed);
	return result ? NULL : (void *)(uintptr_t)address;
}

EXPORT LIEN_TRANSLATED void tms_torch_free(void *address, ssize_t bytes, int device, void *stream)
{
	CUresult result;
	int pushed;

	(void)bytes, (void)stream;
	if (!address)
		return;
	if (!enter(device, &pushed))
		return; /* it has gone with its context */
	result = plain_cuMemFree_v2((uintptr_t)address);
	lien_plain_leave(pushed);
	if (result)
		fprintf(stderr, "lien: torch_memory_saver: %p cannot be freed: error %d\n", address,
			result);
}
