/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies of rows, and between the memory of two contexts. All of them are done at once: work that
 * is in the stream is waited for before. */
#include "softcuda.h"

/* One side of a copy of rows: where its first row begins. 0: there is no such kind of memory. */
static uintptr_t side_of(CUmemorytype type, const void *host, CUdeviceptr device, size_t x,
	size_t y, size_t pitch, enum soft_side *side)
{
	*side = type == CU_MEMORYTYPE_DEVICE ? SOFT_DEVICE_SIDE
		: type == CU_MEMORYTYPE_HOST ? SOFT_HOST_SIDE
					     : SOFT_ANY_SIDE;
	if (type == CU_MEMORYTYPE_ARRAY)
		return 0;
	return (type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : device) + y * pitch + x;
}

static CUresult copy_rows(const CUDA_MEMCPY2D *rows, int device, bool execute)
{
	struct soft_copy copy = {.bytes = rows->WidthInBytes};
	CUresult result = CUDA_SUCCESS;

	copy.dst = side_of(rows->dstMemoryType, rows->dstHost, rows->dstDevice, rows->dstXInBytes,
		rows->dstY, rows->dstPitch, &copy.dst_side);
	copy.src = side_of(rows->srcMemoryType, rows->srcHost, rows->srcDevice, rows->srcXInBytes,
		rows->srcY, rows->srcPitch, &copy.src_side);
	if (!copy.dst || !copy.src)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t row = 0; row < rows->Height && !result; row++) {
		result = soft_copy_now(&copy, device, execute);
		copy.dst += rows->dstPitch;
		copy.src += rows->srcPitch;
	}
	return result;
}

/* A pitch of 0 is that of rows without gaps. */
static CUresult check_rows(const CUDA_MEMCPY2D *rows, CUDA_MEMCPY2D *checked)
{
	if (!rows)
		return CUDA_ERROR_INVALID_VALUE;
	*checked = *rows;
	if (!checked->dstPitch)
		checked->dstPitch = checked->WidthInBytes + checked->dstXInBytes;
	if (!checked->srcPitch)
		checked->srcPitch = checked->WidthInBytes + checked->srcXInBytes;
	if (checked->dstPitch < checked->WidthInBytes + checked->dstXInBytes ||
		checked->srcPitch < checked->WidthInBytes + checked->srcXInBytes)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult copy_2d(const CUDA_MEMCPY2D *rows)
{
	CUDA_MEMCPY2D checked;
	CUcontext context;
	CUresult result = soft_copy_enter(&context);

	if (!result)
		result = check_rows(rows, &checked);
	if (!result)
		result = copy_rows(&checked, context->device, false);
	return result ? result : copy_rows(&checked, context->device, true);
}

static CUresult enter_async(CUcontext *context, CUstream stream, bool *execute)
{
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(context);
	if (!result)
		result = soft_stream_submit(stream, execute);
	if (!result && *execute)
		soft_work_wait(stream, *context);
	return result;
}

static CUresult copy_2d_async(const CUDA_MEMCPY2D *rows, CUstream stream)
{
	bool execute = true;
	CUDA_MEMCPY2D checked;
	CUcontext context;
	CUresult result = enter_async(&context, stream, &execute);

	if (!result)
		result = check_rows(rows, &checked);
	if (!result)
		result = copy_rows(&checked, context->device, false);
	return result || !execute ? result : copy_rows(&checked, context->device, true);
}

#define EXPORT_2D(name)                                                                            \
	SOFT_EXPORT CUresult name(const CUDA_MEMCPY2D *rows)                                       \
	{                                                                                          \
		SOFT_FAULT();                                                                      \
		return copy_2d(rows);                                                              \
	}

#define EXPORT_2D_ASYNC(name)                                                                      \
	SOFT_EXPORT CUresult name(const CUDA_MEMCPY2D *rows, CUstream stream)                      \
	{                                                                                          \
		SOFT_FAULT();                                                                      \
		return copy_2d_async(rows, stream);                                                \
	}

EXPORT_2D(cuMemcpy2D_v2)
EXPORT_2D(cuMemcpy2D_v2_ptds)
EXPORT_2D(cuMemcpy2DUnaligned_v2)
EXPORT_2D(cuMemcpy2DUnaligned_v2_ptds)
EXPORT_2D_ASYNC(cuMemcpy2DAsync_v2)
EXPORT_2D_ASYNC(cuMemcpy2DAsync_v2_ptsz)

/* --- between contexts --- */

static bool alive(CUcontext context)
{
	bool is;

	pthread_mutex_lock(&soft.objects);
	is = soft_object_is(context, SOFT_CONTEXT) && atomic_load(&context->alive);
	pthread_mutex_unlock(&soft.objects);
	return is;
}

/* Each context reaches its own side; what it copies through does not matter. */
static CUresult copy_peer(
	CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes, bool execute)
{
	struct soft_copy copy = {dst, dst, SOFT_DEVICE_SIDE, SOFT_DEVICE_SIDE, bytes};
	CUresult result;

	if (!alive(to) || !alive(from))
		return CUDA_ERROR_INVALID_CONTEXT;
	result = soft_copy_now(&copy, to->device, false);
	copy.dst = copy.src = src;
	if (!result)
		result = soft_copy_now(&copy, from->device, false);
	copy.dst = dst;
	copy.dst_side = copy.src_side = SOFT_ANY_SIDE;
	return result ? result : soft_copy_now(&copy, to->device, execute);
}

static CUresult peer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes)
{
	CUcontext context;
	CUresult result = soft_copy_enter(&context);

	return result ? result : copy_peer(dst, to, src, from, bytes, true);
}

static CUresult peer_async(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from,
	size_t bytes, CUstream stream)
{
	bool execute = true;
	CUcontext context;
	CUresult result = enter_async(&context, stream, &execute);

	return result ? result : copy_peer(dst, to, src, from, bytes, execute);
}

SOFT_EXPORT CUresult cuMemcpyPeer(
	CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes)
{
	SOFT_FAULT();
	return peer(dst, to, src, from, bytes);
}

SOFT_EXPORT CUresult cuMemcpyPeer_ptds(
	CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes)
{
	SOFT_FAULT();
	return peer(dst, to, src, from, bytes);
}

SOFT_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src,
	CUcontext from, size_t bytes, CUstream stream)
{
	SOFT_FAULT();
	return peer_async(dst, to, src, from, bytes, stream);
}

SOFT_EXPORT CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr dst, CUcontext to, CUdeviceptr src,
	CUcontext from, size_t bytes, CUstream stream)
{
	SOFT_FAULT();
	return peer_async(dst, to, src, from, bytes, stream);
}
