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

/* --- what is done behind a copy --------------------------------------------------------------- */

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

	if (!lien_plain_find(address, &block) || block.key.pool ||
		block.key.context == (uintptr_t)context)
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
	/* A question about the legacy default stream, which is never captured, would invalidate
	 * captures of streams that wait for it. */
	if ((!one && !two) || (stream != CU_STREAM_LEGACY && lien_plain_is_capturing(stream)))
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

	return lien_plain_find(address, &block) && block.sync_memops;
}

/* The same for calls that are not asynchronous by their name. */
LIEN_TRANSLATED static CUresult copied_now(
	CUresult result, CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
	if (!result && __atomic_load_n(&lien_plain_any_sync_memops, __ATOMIC_RELAXED) &&
		(has_sync_memops(to) || has_sync_memops(from)))
		return synchronize(stream);
	return copied(result, to, from, stream);
}

/* --- the calls -------------------------------------------------------------------------------- */

#define CALL(after, name, parameters, arguments, to, from, stream)                                 \
	LIEN_TRANSLATED static CUresult plain_##name parameters                                    \
	{                                                                                          \
		return after(LIEN_REAL(name) arguments, (CUdeviceptr)(to), (CUdeviceptr)(from),    \
			stream);                                                                   \
	}                                                                                          \
	LIEN_INTERPOSE(LIEN_FROM_START, name, plain_##name);

#define NOW(name, parameters, arguments, to, from)                                                 \
	CALL(copied_now, name, parameters, arguments, to, from, CU_STREAM_LEGACY)                  \
	CALL(copied_now, name##_ptds, parameters, arguments, to, from, CU_STREAM_PER_THREAD)

#define LATER(name, parameters, arguments, to, from)                                               \
	CALL(copied, name, parameters, arguments, to, from, stream ? stream : CU_STREAM_LEGACY)    \
	CALL(copied, name##_ptsz, parameters, arguments, to, from,                                 \
		stream ? stream : CU_STREAM_PER_THREAD)

#define BYTES(name, version, to_type, from_type)                                                   \
	NOW(name##version, (to_type to, from_type from, size_t bytes), (to, from, bytes), to,      \
		from)                                                                              \
	LATER(name##Async##version, (to_type to, from_type from, size_t bytes, CUstream stream),   \
		(to, from, bytes, stream), to, from)

BYTES(cuMemcpyHtoD, _v2, CUdeviceptr, const void *)
BYTES(cuMemcpyDtoH, _v2, void *, CUdeviceptr)
BYTES(cuMemcpyDtoD, _v2, CUdeviceptr, CUdeviceptr)
BYTES(cuMemcpy, , CUdeviceptr, CUdeviceptr)

NOW(cuMemcpyPeer,
	(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
		size_t bytes),
	(to, to_context, from, from_context, bytes), to, from)
LATER(cuMemcpyPeerAsync,
	(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
		size_t bytes, CUstream stream),
	(to, to_context, from, from_context, bytes, stream), to, from)

/* Where one side of the copy begins; 0: in memory that cannot be ours. */
#define SIDE(copy, side)                                                                           \
	((copy) && ((copy)->side##MemoryType == CU_MEMORYTYPE_DEVICE ||                            \
			   (copy)->side##MemoryType == CU_MEMORYTYPE_UNIFIED)                      \
			? (copy)->side##Device                                                     \
			: 0)

#define ROWS(name, type) NOW(name, (const type *copy), (copy), SIDE(copy, dst), SIDE(copy, src))
#define ROWS_LATER(name, type)                                                                     \
	LATER(name, (const type *copy, CUstream stream), (copy, stream), SIDE(copy, dst),          \
		SIDE(copy, src))

ROWS(cuMemcpy2D_v2, CUDA_MEMCPY2D)
ROWS_LATER(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D)
ROWS(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D)
ROWS(cuMemcpy3D_v2, CUDA_MEMCPY3D)
ROWS_LATER(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D)
ROWS(cuMemcpy3DPeer, CUDA_MEMCPY3D_PEER)
ROWS_LATER(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER)

/* Those of another context's memory, the driver refuses. */
#define SETS(bits, type)                                                                           \
	NOW(cuMemsetD##bits##_v2, (CUdeviceptr to, type value, size_t count), (to, value, count),  \
		to, 0)                                                                             \
	NOW(cuMemsetD2D##bits##_v2,                                                                \
		(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),           \
		(to, pitch, value, width, height), to, 0)

SETS(8, unsigned char)
SETS(16, unsigned short)
SETS(32, unsigned int)
