/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Streams and events. Work is done when the call that asks for it returns, but behind a host
 * function (work.c). While the file that LIEN_SOFTCUDA_BUSY_FILE names exists the devices pretend
 * to work, for tests of what happens to those who wait.
 */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "softcuda.h"

bool soft_busy(void)
{
	return soft.config.busy_file && !access(soft.config.busy_file, F_OK);
}

void soft_busy_wait(void)
{
	while (soft_busy())
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

CUresult soft_stream_find(CUstream handle, CUstream *stream)
{
	*stream = NULL;
	if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
		return CUDA_SUCCESS;
	if (!soft_object_is(handle, SOFT_STREAM))
		return CUDA_ERROR_INVALID_HANDLE;
	*stream = handle;
	return CUDA_SUCCESS;
}

CUresult soft_stream_submit(CUstream handle, bool *execute)
{
	CUstream stream;
	CUresult result;

	pthread_mutex_lock(&soft.objects);
	result = soft_stream_find(handle, &stream);
	if (!result && stream && stream->capture) {
		*execute = false;
		if (!soft_capture_active(stream->capture))
			result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	pthread_mutex_unlock(&soft.objects);
	return result;
}

CUresult soft_stream_device(CUstream handle, int *device)
{
	CUresult result = CUDA_SUCCESS;
	CUcontext context;
	CUstream stream;

	pthread_mutex_lock(&soft.objects);
	result = soft_stream_find(handle, &stream);
	if (!result && stream) {
		*device = stream->object.context->device;
		if (stream->capture)
			result = CUDA_ERROR_NOT_SUPPORTED;
	}
	pthread_mutex_unlock(&soft.objects);
	if (result || stream)
		return result;
	result = soft_context_current(&context);
	if (!result)
		*device = context->device;
	return result;
}

void soft_stream_free(CUstream stream)
{
	soft_work_stream_gone(stream);
	soft_capture_drop(stream);
	soft_object_remove(&stream->object);
	soft_block_free(stream, sizeof(*stream));
}

static uint64_t last_id;

static CUresult stream_create(CUstream *stream, unsigned int flags)
{
	CUcontext context;
	CUresult result;
	CUstream made;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(&context);
	if (result)
		return result;
	if (!stream || flags & ~CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	made = soft_block_new(sizeof(*made));
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->flags = flags;
	made->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&soft.objects);
	soft_object_add(&made->object, SOFT_STREAM, context);
	pthread_mutex_unlock(&soft.objects);
	*stream = made;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	SOFT_FAULT();
	return stream_create(stream, flags);
}

SOFT_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	SOFT_FAULT();
	(void)priority;
	return stream_create(stream, flags);
}

static CUresult stream_destroy(CUstream stream)
{
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&soft.objects);
	if (soft_object_is(stream, SOFT_STREAM)) {
		soft_stream_free(stream);
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&soft.objects);
	return result;
}

SOFT_EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
	SOFT_FAULT();
	return stream_destroy(stream);
}

SOFT_EXPORT CUresult cuStreamDestroy(CUstream stream)
{
	SOFT_FAULT();
	return stream_destroy(stream);
}

/* Seen (580.159): what asks about the legacy default stream invalidates captures of streams that it
 * waits for, in whatever mode. */
static CUresult default_context(CUstream handle, CUcontext *context)
{
	CUresult result = soft_context_current(context);

	if (result || handle == CU_STREAM_PER_THREAD)
		return result;
	pthread_mutex_lock(&soft.objects);
	result = soft_capture_implicit(*context, true);
	pthread_mutex_unlock(&soft.objects);
	return result;
}

static CUresult get_context(CUstream handle, CUcontext *context)
{
	CUstream stream;
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&soft.objects);
	result = soft_stream_find(handle, &stream);
	if (!result && stream)
		*context = stream->object.context;
	pthread_mutex_unlock(&soft.objects);
	return result || stream ? result : default_context(handle, context);
}

SOFT_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
	SOFT_FAULT();
	return get_context(handle, context);
}

SOFT_EXPORT CUresult cuStreamGetCtx_ptsz(CUstream handle, CUcontext *context)
{
	SOFT_FAULT();
	return get_context(handle, context);
}

/* The default streams have the numbers that cannot be one's of cuStreamCreate(): of each context,
 * and the second of each thread. */
SOFT_EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
	CUcontext context;
	CUstream stream;
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&soft.objects);
	result = soft_stream_find(handle, &stream);
	if (!result && stream)
		*id = stream->id;
	pthread_mutex_unlock(&soft.objects);
	if (result || stream)
		return result;
	result = default_context(handle, &context);
	if (!result)
		*id = (handle == CU_STREAM_PER_THREAD ? (uint64_t)gettid() << 32 | 1u << 31
						      : 1ull << 63) |
		      ((uintptr_t)context >> 4 & 0x7fffffff);
	return result;
}

/* What asks for a stream's progress conflicts with its capture, in whatever mode the thread is. */
static CUresult settle(CUstream handle, CUcontext *context)
{
	CUstream stream;
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(context);
	if (result)
		return result;
	pthread_mutex_lock(&soft.objects);
	result = soft_stream_find(handle, &stream);
	if (!result && stream && stream->capture) {
		soft_capture_invalidate(stream->capture);
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	pthread_mutex_unlock(&soft.objects);
	return result ? result : soft_capture_unsafe();
}

static CUresult synchronize(CUstream stream)
{
	CUcontext context;
	CUresult result;

	result = settle(stream, &context);
	if (!result) {
		soft_busy_wait();
		soft_work_wait(stream, context);
		soft_pools_settle();
	}
	return result;
}

SOFT_EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
	SOFT_FAULT();
	return synchronize(stream);
}

SOFT_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	SOFT_FAULT();
	return synchronize(stream);
}

static CUresult query(CUstream stream)
{
	CUcontext context;
	CUresult result;

	result = settle(stream, &context);
	if (!result && (soft_busy() || soft_work_pending(stream, context)))
		result = CUDA_ERROR_NOT_READY;
	return result;
}

SOFT_EXPORT CUresult cuStreamQuery(CUstream stream)
{
	SOFT_FAULT();
	return query(stream);
}

SOFT_EXPORT CUresult cuStreamQuery_ptsz(CUstream stream)
{
	SOFT_FAULT();
	return query(stream);
}

static CUresult wait_event(CUstream handle, CUevent event, unsigned int flags)
{
	struct soft_mark mark = {0};
	CUcontext context = NULL;
	CUstream stream;
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (flags & ~1u)
		return CUDA_ERROR_INVALID_VALUE;
	soft_context_current(&context);
	pthread_mutex_lock(&soft.objects);
	result = soft_stream_find(handle, &stream);
	if (!result && !soft_object_is(event, SOFT_EVENT))
		result = CUDA_ERROR_INVALID_HANDLE;
	if (!result && stream && event->capture)
		soft_capture_join(stream, event->capture);
	if (!result && stream && stream->capture && !soft_capture_active(stream->capture))
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (!result && !(stream && stream->capture))
		mark = event->mark;
	pthread_mutex_unlock(&soft.objects);
	return result ? result : soft_work_after(handle, context, &mark);
}

SOFT_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	SOFT_FAULT();
	return wait_event(stream, event, flags);
}

SOFT_EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
	SOFT_FAULT();
	return wait_event(stream, event, flags);
}
