/* SPDX-License-Identifier: BSD-2-Clause */
/* Contexts, and each thread's stack of current ones. */
#include <stdlib.h>

#include "softcuda.h"

#define STACK_MAX 64

static __thread struct {
	CUcontext context[STACK_MAX];
	int depth;
} stack;

CUresult soft_context_current(CUcontext *context)
{
	CUcontext top = stack.depth ? stack.context[stack.depth - 1] : NULL;

	if (!top)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!atomic_load(&top->alive))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*context = top;
	return CUDA_SUCCESS;
}

static bool alive(CUcontext context)
{
	bool is;

	pthread_mutex_lock(&soft.objects);
	is = soft_object_is(context, SOFT_CONTEXT) && atomic_load(&context->alive);
	pthread_mutex_unlock(&soft.objects);
	return is;
}

static bool push(CUcontext context)
{
	if (stack.depth == STACK_MAX)
		return false;
	stack.context[stack.depth++] = context;
	return true;
}

static CUcontext context_new(CUdevice device, bool primary)
{
	CUcontext context = calloc(1, sizeof(*context));

	if (!context)
		return NULL;
	context->device = device;
	context->primary = primary;
	atomic_store(&context->alive, true);
	soft_object_add(&context->object, SOFT_CONTEXT, context);
	return context;
}

/* What belongs to a context goes with it: all but VMM memory. Both locks held. */
static void context_clear(CUcontext context)
{
	struct soft_object *object, *next;

	atomic_store(&context->alive, false);
	soft_memory_free_context(context);
	soft_host_free_context(context);
	soft_peers_drop(context);
	for (object = soft_object_first(); object; object = next) {
		next = soft_object_after(object);
		if (object->context != context)
			continue;
		if (object->kind == SOFT_STREAM)
			soft_stream_free((CUstream)object);
		else if (object->kind == SOFT_EVENT)
			soft_event_free((CUevent)object);
	}
}

static void lock_all(void)
{
	pthread_rwlock_wrlock(&soft.lock);
	pthread_mutex_lock(&soft.objects);
}

static void unlock_all(void)
{
	pthread_mutex_unlock(&soft.objects);
	pthread_rwlock_unlock(&soft.lock);
}

SOFT_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	struct soft_device *dev;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	if (!soft_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	dev = &soft.device[device];
	pthread_mutex_lock(&soft.objects);
	if (!dev->primary)
		dev->primary = context_new(device, true);
	if (dev->primary) {
		dev->primary->references++;
		atomic_store(&dev->primary->alive, true);
		*context = dev->primary;
	}
	pthread_mutex_unlock(&soft.objects);
	return dev->primary ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SOFT_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CUresult result = CUDA_ERROR_INVALID_CONTEXT;
	CUcontext primary;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!soft_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	lock_all();
	primary = soft.device[device].primary;
	if (primary && primary->references) {
		if (!--primary->references)
			context_clear(primary);
		result = CUDA_SUCCESS;
	}
	unlock_all();
	return result;
}

SOFT_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return cuDevicePrimaryCtxRelease_v2(device);
}

SOFT_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	CUcontext primary;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!soft_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	lock_all();
	primary = soft.device[device].primary;
	if (primary && atomic_load(&primary->alive)) {
		context_clear(primary);
		primary->references = 0;
	}
	unlock_all();
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return cuDevicePrimaryCtxReset_v2(device);
}

SOFT_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
	CUcontext primary;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	if (!soft_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&soft.objects);
	primary = soft.device[device].primary;
	*flags = primary ? primary->flags : 0;
	*active = primary && atomic_load(&primary->alive);
	pthread_mutex_unlock(&soft.objects);
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext *context, CUdevice device)
{
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	if (!soft_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (stack.depth == STACK_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&soft.objects);
	*context = context_new(device, false);
	pthread_mutex_unlock(&soft.objects);
	if (!*context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	push(*context);
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	SOFT_FAULT();
	(void)flags; /* how to wait for a GPU: there is none */
	return create(context, device);
}

SOFT_EXPORT CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinities,
	int affinities_count, unsigned int flags, CUdevice device)
{
	SOFT_FAULT();
	(void)flags;
	if (affinities || affinities_count)
		return soft_ready() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED;
	return create(context, device);
}

SOFT_EXPORT CUresult cuCtxCreate_v4(
	CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device)
{
	SOFT_FAULT();
	(void)flags;
	if (params)
		return soft_ready() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED;
	return create(context, device);
}

SOFT_EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
	CUresult result = CUDA_ERROR_INVALID_CONTEXT;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	lock_all();
	if (soft_object_is(context, SOFT_CONTEXT) && !context->primary &&
		atomic_load(&context->alive)) {
		context_clear(context);
		result = CUDA_SUCCESS;
	}
	unlock_all();
	if (!result && stack.depth && stack.context[stack.depth - 1] == context)
		stack.depth--;
	return result;
}

SOFT_EXPORT CUresult cuCtxDestroy(CUcontext context)
{
	return cuCtxDestroy_v2(context);
}

SOFT_EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!context) {
		if (stack.depth)
			stack.depth--;
		return CUDA_SUCCESS;
	}
	if (!alive(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (stack.depth)
		stack.depth--;
	push(context);
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = stack.depth ? stack.context[stack.depth - 1] : NULL;
	return CUDA_SUCCESS;
}

static CUresult push_current(CUcontext context)
{
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!alive(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	return push(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SOFT_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	SOFT_FAULT();
	return push_current(context);
}

SOFT_EXPORT CUresult cuCtxPushCurrent(CUcontext context)
{
	SOFT_FAULT();
	return push_current(context);
}

static CUresult pop_current(CUcontext *context)
{
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!stack.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	stack.depth--;
	if (context)
		*context = stack.context[stack.depth];
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	SOFT_FAULT();
	return pop_current(context);
}

SOFT_EXPORT CUresult cuCtxPopCurrent(CUcontext *context)
{
	SOFT_FAULT();
	return pop_current(context);
}

static CUresult context_device(CUdevice *device, CUcontext context)
{
	CUresult result = CUDA_SUCCESS;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context)
		result = soft_context_current(&context);
	else if (!alive(context))
		result = CUDA_ERROR_INVALID_CONTEXT;
	if (!result)
		*device = context->device;
	return result;
}

SOFT_EXPORT CUresult cuCtxGetFlags(unsigned int *flags)
{
	CUcontext context;
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	result = soft_context_current(&context);
	if (!result)
		*flags = atomic_load(&context->flags);
	return result;
}

/* Nothing changes: work is done when a call returns. */
SOFT_EXPORT CUresult cuCtxSetFlags(unsigned int flags)
{
	CUcontext context;
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(&context);
	if (!result)
		atomic_store(&context->flags, flags);
	return result;
}

SOFT_EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
	SOFT_FAULT();
	return context_device(device, NULL);
}

SOFT_EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
	SOFT_FAULT();
	return context_device(device, context);
}

static CUresult synchronize(CUcontext context)
{
	CUresult result = CUDA_SUCCESS;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!context)
		result = soft_context_current(&context);
	else if (!alive(context))
		result = CUDA_ERROR_INVALID_CONTEXT;
	if (!result)
		result = soft_capture_synchronized(context);
	if (!result) {
		soft_busy_wait();
		soft_work_wait_all(context);
		soft_pools_settle();
	}
	return result;
}

SOFT_EXPORT CUresult cuCtxSynchronize(void)
{
	SOFT_FAULT();
	return synchronize(NULL);
}

SOFT_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
	SOFT_FAULT();
	return synchronize(context);
}
