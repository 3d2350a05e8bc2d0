// SPDX-License-Identifier: BSD-2-Clause
/*
 * Copies and sets do two things for plain memory that they do not do for virtual memory.
 *
 * The driver lets the context of the memory take part in a copy that another context makes, so that
 * cuMemFree() waits for it (seen, 580.159). Virtual memory is copied by the one context alone. So
 * the memory's context gets an event behind the copy to wait for.
 *
 * CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of a block: calls that are not asynchronous by their name return
 * when all is done.
 *
 * Copies to and from arrays, batches, and those of graphs are the driver's own.
 */
#include "control/plain/memory.h"

/* --- what is done behind a copy ----------------------------------------------------------------
 */

static int any_sync_memops; /* SYNC_MEMOPS has been set for a block */

void lien_plain_sync_memops_used(void)
{
	__atomic_store_n(&any_sync_memops, 1, __ATOMIC_RELAXED);
}

static int find(CUdeviceptr address, struct lien_heap_block *block)
{
	return lien_plain_find(address, block) || lien_plain_find_opened(address, block);
}

/* Has no effect on captures, unless the stream is being captured. */
LIEN_TRANSLATED static CUresult synchronize(CUstream stream)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult result;

	LIEN_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	result = LIEN_REAL(cuStreamSynchronize)(stream);
	LIEN_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return result;
}

/* Returns the context of the memory if it is ours and another one's. Memory of a pool has none. */
static CUcontext owner_of(CUdeviceptr address, CUcontext context)
{
	struct lien_heap_block block;

	if (!find(address, &block) || block.key.pool || block.key.context == (uintptr_t)context)
		return NULL;
	return (CUcontext)(uintptr_t)block.key.context;
}

/* Lets the owners wait for what is in the stream, which is the context's. NULL: nobody. */
LIEN_TRANSLATED static CUresult follow(
	CUcontext context, CUstream stream, CUcontext one, CUcontext two)
{
	CUevent event;
	CUresult result = lien_plain_make_event(context, &event);

	if (result)
		return result;
	result = LIEN_REAL(cuEventRecord)(event, stream);
	if (!result && one)
		result = lien_plain_wait_also(one, event);
	if (!result && two)
		result = lien_plain_wait_also(two, event);
	LIEN_REAL(cuEventDestroy_v2)(event);
	return result;
}

/* Returns whether a capture of the stream is under way, or cannot tell. A question about the legacy
 * default stream, which is never captured, would invalidate captures of streams that wait for it.
 */
LIEN_TRANSLATED static int is_capturing(CUstream stream)
{
	CUstreamCaptureStatus status;

	return stream != CU_STREAM_LEGACY && (LIEN_REAL(cuStreamIsCapturing)(stream, &status) ||
						     status != CU_STREAM_CAPTURE_STATUS_NONE);
}

LIEN_TRANSLATED static void let_owners_wait(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUcontext context, one, two;
	CUresult failed;

	if (LIEN_REAL(cuStreamGetCtx)(
		    stream == CU_STREAM_LEGACY ? CU_STREAM_PER_THREAD : stream, &context))
		return;
	one = owner_of(to, context);
	two = owner_of(from, context);
	if ((!one && !two) || is_capturing(stream))
		return;
	LIEN_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	failed = follow(context, stream, one, two == one ? NULL : two);
	LIEN_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	if (failed)
		synchronize(stream);
}

/* Most processes have one context and set no attributes, and copy often. */
LIEN_TRANSLATED static CUresult copied(
	CUresult result, CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
	if (!result && lien_plain_several())
		let_owners_wait(to, from, stream);
	return result;
}

static int has_sync_memops(CUdeviceptr address)
{
	struct lien_heap_block block;

	return find(address, &block) && block.sync_memops;
}

/* The same for calls that are not asynchronous by their name. */
LIEN_TRANSLATED static CUresult copied_now(
	CUresult result, CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
	if (!result && __atomic_load_n(&any_sync_memops, __ATOMIC_RELAXED) &&
		(has_sync_memops(to) || has_sync_memops(from)))
		return synchronize(stream);
	return copied(result, to, from, stream);
}

#define IN(stream, standard) ((stream) ? (stream) : (standard))

/* --- of bytes ----------------------------------------------------------------------------------
 */

#define NOW(name, to_type, from_type, stream)                                                      \
	LIEN_TRANSLATED CUresult lien_plain_##name(to_type to, from_type from, size_t bytes)       \
	{                                                                                          \
		return copied_now(LIEN_REAL(name)(to, from, bytes), (CUdeviceptr)to,               \
			(CUdeviceptr)from, stream);                                                \
	}                                                                                          \
	LIEN_EXPORT_AS(name, lien_plain_##name);

#define LATER(name, to_type, from_type, standard)                                                  \
	LIEN_TRANSLATED CUresult lien_plain_##name(                                                \
		to_type to, from_type from, size_t bytes, CUstream stream)                         \
	{                                                                                          \
		return copied(LIEN_REAL(name)(to, from, bytes, stream), (CUdeviceptr)to,           \
			(CUdeviceptr)from, IN(stream, standard));                                  \
	}                                                                                          \
	LIEN_EXPORT_AS(name, lien_plain_##name);

#define BOTH(name, version, to_type, from_type)                                                    \
	NOW(name##version, to_type, from_type, CU_STREAM_LEGACY)                                   \
	NOW(name##version##_ptds, to_type, from_type, CU_STREAM_PER_THREAD)                        \
	LATER(name##Async##version, to_type, from_type, CU_STREAM_LEGACY)                          \
	LATER(name##Async##version##_ptsz, to_type, from_type, CU_STREAM_PER_THREAD)

BOTH(cuMemcpyHtoD, _v2, CUdeviceptr, const void *)
BOTH(cuMemcpyDtoH, _v2, void *, CUdeviceptr)
BOTH(cuMemcpyDtoD, _v2, CUdeviceptr, CUdeviceptr)
BOTH(cuMemcpy, , CUdeviceptr, CUdeviceptr)

/* --- of bytes between contexts -----------------------------------------------------------------
 */

#define PEER(name, stream)                                                                         \
	LIEN_TRANSLATED CUresult lien_plain_##name(CUdeviceptr to, CUcontext to_context,           \
		CUdeviceptr from, CUcontext from_context, size_t bytes)                            \
	{                                                                                          \
		return copied_now(LIEN_REAL(name)(to, to_context, from, from_context, bytes), to,  \
			from, stream);                                                             \
	}                                                                                          \
	LIEN_EXPORT_AS(name, lien_plain_##name);

#define PEER_LATER(name, standard)                                                                 \
	LIEN_TRANSLATED CUresult lien_plain_##name(CUdeviceptr to, CUcontext to_context,           \
		CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream)           \
	{                                                                                          \
		return copied(LIEN_REAL(name)(to, to_context, from, from_context, bytes, stream),  \
			to, from, IN(stream, standard));                                           \
	}                                                                                          \
	LIEN_EXPORT_AS(name, lien_plain_##name);

PEER(cuMemcpyPeer, CU_STREAM_LEGACY)
PEER(cuMemcpyPeer_ptds, CU_STREAM_PER_THREAD)
PEER_LATER(cuMemcpyPeerAsync, CU_STREAM_LEGACY)
PEER_LATER(cuMemcpyPeerAsync_ptsz, CU_STREAM_PER_THREAD)

/* --- of rows -----------------------------------------------------------------------------------
 */

/* Where one side of the copy begins; 0: in memory that cannot be ours. */
#define SIDE(copy, side)                                                                           \
	((copy) && ((copy)->side##MemoryType == CU_MEMORYTYPE_DEVICE ||                            \
			   (copy)->side##MemoryType == CU_MEMORYTYPE_UNIFIED)                      \
			? (copy)->side##Device                                                     \
			: 0)

#define ROWS(name, type, stream)                                                                   \
	LIEN_TRANSLATED CUresult lien_plain_##name(const type *copy)                               \
	{                                                                                          \
		return copied_now(                                                                 \
			LIEN_REAL(name)(copy), SIDE(copy, dst), SIDE(copy, src), stream);          \
	}                                                                                          \
	LIEN_EXPORT_AS(name, lien_plain_##name);

#define ROWS_LATER(name, type, standard)                                                           \
	LIEN_TRANSLATED CUresult lien_plain_##name(const type *copy, CUstream stream)              \
	{                                                                                          \
		return copied(LIEN_REAL(name)(copy, stream), SIDE(copy, dst), SIDE(copy, src),     \
			IN(stream, standard));                                                     \
	}                                                                                          \
	LIEN_EXPORT_AS(name, lien_plain_##name);

#define ROWS_BOTH(name, version, type)                                                             \
	ROWS(name##version, type, CU_STREAM_LEGACY)                                                \
	ROWS(name##version##_ptds, type, CU_STREAM_PER_THREAD)                                     \
	ROWS_LATER(name##Async##version, type, CU_STREAM_LEGACY)                                   \
	ROWS_LATER(name##Async##version##_ptsz, type, CU_STREAM_PER_THREAD)

ROWS_BOTH(cuMemcpy2D, _v2, CUDA_MEMCPY2D)
ROWS(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, CU_STREAM_LEGACY)
ROWS(cuMemcpy2DUnaligned_v2_ptds, CUDA_MEMCPY2D, CU_STREAM_PER_THREAD)
ROWS_BOTH(cuMemcpy3D, _v2, CUDA_MEMCPY3D)
ROWS_BOTH(cuMemcpy3DPeer, , CUDA_MEMCPY3D_PEER)

/* --- sets, which the driver refuses in other contexts' memory ----------------------------------
 */

#define SET(name, type, stream)                                                                    \
	LIEN_TRANSLATED CUresult lien_plain_##name(CUdeviceptr to, type value, size_t count)       \
	{                                                                                          \
		return copied_now(LIEN_REAL(name)(to, value, count), to, 0, stream);               \
	}                                                                                          \
	LIEN_EXPORT_AS(name, lien_plain_##name);

#define SET_ROWS(name, type, stream)                                                               \
	LIEN_TRANSLATED CUresult lien_plain_##name(                                                \
		CUdeviceptr to, size_t pitch, type value, size_t width, size_t height)             \
	{                                                                                          \
		return copied_now(                                                                 \
			LIEN_REAL(name)(to, pitch, value, width, height), to, 0, stream);          \
	}                                                                                          \
	LIEN_EXPORT_AS(name, lien_plain_##name);

#define SETS(bits, type)                                                                           \
	SET(cuMemsetD##bits##_v2, type, CU_STREAM_LEGACY)                                          \
	SET(cuMemsetD##bits##_v2_ptds, type, CU_STREAM_PER_THREAD)                                 \
	SET_ROWS(cuMemsetD2D##bits##_v2, type, CU_STREAM_LEGACY)                                   \
	SET_ROWS(cuMemsetD2D##bits##_v2_ptds, type, CU_STREAM_PER_THREAD)

SETS(8, unsigned char)
SETS(16, unsigned short)
SETS(32, unsigned int)
