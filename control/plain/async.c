// SPDX-License-Identifier: BSD-2-Clause
/* The functions that the application gets for the driver's that allocate and free in a stream. A
 * graph's memory is the driver's. */
#include "control/plain/memory.h"

#define CALLER __builtin_return_address(0)

/* In the functions for per-thread default streams, 0 is the thread's. */
#define PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

LIEN_TRANSLATED static CUresult park(
	const struct lien_heap_block *block, CUdeviceptr ptr, CUstream handle)
{
	struct lien_plain_stream stream = {.handle = handle};
	CUresult result;

	/* The driver frees in a stream of any context, whatever is current. */
	result = LIEN_REAL(cuStreamGetCtx)(handle, &stream.context);
	if (result)
		return result;
	if (lien_plain_refused(stream.context))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (block->address != ptr)
		return CUDA_ERROR_INVALID_VALUE;
	if (LIEN_REAL(cuStreamGetId)(handle, &stream.id)) /* a driver of before CUDA 12.0 */
		return lien_plain_cuMemFree_v2(block->address);
	result = lien_plain_stream_park(&stream, block);
	if (!result)
		lien_plain_account(block->key.context, -(int64_t)block->bytes, 0);
	return result;
}

LIEN_TRANSLATED static int is_capturing(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return LIEN_REAL(cuStreamIsCapturing)(stream, &status) ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

LIEN_TRANSLATED CUresult lien_plain_cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	struct lien_heap_block block;

	if (!lien_plain_find(ptr, &block) || is_capturing(stream))
		return LIEN_REAL(cuMemFreeAsync)(lien_plain_hide(ptr), stream);
	return park(&block, ptr, stream);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
	struct lien_heap_block block;

	if (!lien_plain_find(ptr, &block) || is_capturing(PER_THREAD(stream)))
		return LIEN_REAL(cuMemFreeAsync_ptsz)(lien_plain_hide(ptr), stream);
	return park(&block, ptr, PER_THREAD(stream));
}

/* Returns whether it gave out memory of ours. */
LIEN_TRANSLATED static int alloc_async(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool wanted, CUstream handle, const void *caller)
{
	struct lien_plain_place place;
	struct lien_plain_stream stream = {.handle = handle};
	CUmemoryPool pool;
	uint64_t made = 0;

	if (!ptr || !bytes || is_capturing(handle) || !lien_plain_place(&place, caller) ||
		LIEN_REAL(cuStreamGetCtx)(handle, &stream.context) ||
		(uintptr_t)stream.context != place.key.context ||
		LIEN_REAL(cuStreamGetId)(handle, &stream.id))
		return 0;
	pool = lien_plain_pool(place.key.device, wanted);
	if (!pool)
		return 0;
	place.key.context = (uintptr_t)pool;
	place.key.pool = 1;
	lien_plain_pool_use(place.key.device, stream.context);
	if (!lien_plain_stream_reuse(&stream, &place, bytes, ptr) &&
		lien_plain_take(&place, bytes, &made, ptr)) {
		lien_plain_reap();
		if (lien_plain_take(&place, bytes, &made, ptr))
			return 0;
	}
	lien_plain_account(place.key.context, bytes, made);
	return 1;
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	return alloc_async(ptr, bytes, NULL, stream, CALLER)
		       ? CUDA_SUCCESS
		       : LIEN_REAL(cuMemAllocAsync)(ptr, bytes, stream);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocAsync_ptsz(
	CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	return alloc_async(ptr, bytes, NULL, PER_THREAD(stream), CALLER)
		       ? CUDA_SUCCESS
		       : LIEN_REAL(cuMemAllocAsync_ptsz)(ptr, bytes, stream);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocFromPoolAsync(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return pool && alloc_async(ptr, bytes, pool, stream, CALLER)
		       ? CUDA_SUCCESS
		       : LIEN_REAL(cuMemAllocFromPoolAsync)(ptr, bytes, pool, stream);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocFromPoolAsync_ptsz(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return pool && alloc_async(ptr, bytes, pool, PER_THREAD(stream), CALLER)
		       ? CUDA_SUCCESS
		       : LIEN_REAL(cuMemAllocFromPoolAsync_ptsz)(ptr, bytes, pool, stream);
}

LIEN_EXPORT_AS(cuMemFreeAsync, lien_plain_cuMemFreeAsync);
LIEN_EXPORT_AS(cuMemFreeAsync_ptsz, lien_plain_cuMemFreeAsync_ptsz);
LIEN_EXPORT_AS(cuMemAllocAsync, lien_plain_cuMemAllocAsync);
LIEN_EXPORT_AS(cuMemAllocAsync_ptsz, lien_plain_cuMemAllocAsync_ptsz);
LIEN_EXPORT_AS(cuMemAllocFromPoolAsync, lien_plain_cuMemAllocFromPoolAsync);
LIEN_EXPORT_AS(cuMemAllocFromPoolAsync_ptsz, lien_plain_cuMemAllocFromPoolAsync_ptsz);
