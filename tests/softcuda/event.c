/* SPDX-License-Identifier: BSD-2-Clause */
/* Events: marks in the work of streams. */
#include "softcuda.h"

void soft_event_free(CUevent event)
{
	soft_object_remove(&event->object);
	soft_block_free(event, sizeof(*event));
}

SOFT_EXPORT CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	CUcontext context;
	CUresult result;
	CUevent made;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(&context);
	if (result)
		return result;
	if (!event || flags & ~7u) /* blocking sync, disable timing, interprocess */
		return CUDA_ERROR_INVALID_VALUE;
	made = soft_block_new(sizeof(*made));
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&soft.objects);
	soft_object_add(&made->object, SOFT_EVENT, context);
	pthread_mutex_unlock(&soft.objects);
	*event = made;
	return CUDA_SUCCESS;
}

static CUresult destroy(CUevent event)
{
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&soft.objects);
	if (soft_object_is(event, SOFT_EVENT)) {
		soft_event_free(event);
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&soft.objects);
	return result;
}

SOFT_EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
	SOFT_FAULT();
	return destroy(event);
}

SOFT_EXPORT CUresult cuEventDestroy(CUevent event)
{
	SOFT_FAULT();
	return destroy(event);
}

static CUresult record(CUevent event, CUstream handle)
{
	CUstream stream;
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&soft.objects);
	result = soft_stream_find(handle, &stream);
	if (!result && !soft_object_is(event, SOFT_EVENT))
		result = CUDA_ERROR_INVALID_HANDLE;
	if (!result && stream && stream->object.context != event->object.context)
		result = CUDA_ERROR_INVALID_HANDLE;
	if (!result && stream && stream->capture && !soft_capture_active(stream->capture))
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (!result)
		event->capture = stream ? stream->capture : NULL;
	if (!result && !event->capture)
		result = soft_work_mark(handle, event->object.context, &event->mark);
	pthread_mutex_unlock(&soft.objects);
	return result;
}

SOFT_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
	SOFT_FAULT();
	return record(event, stream);
}

SOFT_EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	SOFT_FAULT();
	return record(event, stream);
}

static CUresult settle_event(CUevent event, struct soft_mark *mark)
{
	CUresult result = CUDA_SUCCESS;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&soft.objects);
	if (!soft_object_is(event, SOFT_EVENT)) {
		result = CUDA_ERROR_INVALID_HANDLE;
	} else if (event->capture) {
		soft_capture_invalidate(event->capture);
		result = CUDA_ERROR_CAPTURED_EVENT;
	} else {
		*mark = event->mark;
	}
	pthread_mutex_unlock(&soft.objects);
	return result ? result : soft_capture_unsafe();
}

SOFT_EXPORT CUresult cuEventQuery(CUevent event)
{
	struct soft_mark mark;
	CUresult result;

	SOFT_FAULT();
	result = settle_event(event, &mark);
	if (!result && (soft_busy() || soft_work_marked(&mark)))
		result = CUDA_ERROR_NOT_READY;
	return result;
}

SOFT_EXPORT CUresult cuEventSynchronize(CUevent event)
{
	struct soft_mark mark;
	CUresult result;

	SOFT_FAULT();
	result = settle_event(event, &mark);
	if (!result) {
		soft_busy_wait();
		soft_work_wait_marked(&mark);
		soft_pools_settle();
	}
	return result;
}
