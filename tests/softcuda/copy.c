/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copies and fills. They run at once, in the caller's thread, with soft.lock held for reading: the
 * mappings that were checked stay until the copy is done. Where the stream has work they wait for
 * it as cuda.h says: in the stream, and in the caller's thread if they touch memory that is not
 * pinned.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "softcuda.h"

#define READS  1
#define WRITES 2

/*
 * Is all of it memory that this device may access this way? Mappings that lie side by side count as
 * one. Pinned host memory is reachable from every device (unified addressing).
 */
static bool device_span_ok(uintptr_t base, size_t bytes, int device, int way)
{
	struct soft_mapping *mapping = soft_mapping_find(base);
	uintptr_t at = base, end = base + bytes, host;
	CUcontext context;
	size_t size;

	if (end < base)
		return false;
	if (!mapping)
		return soft_host_find(base, &host, &size, &context) &&
		       bytes <= size - (base - host);
	while (mapping && mapping->base <= at && (mapping->access[device] & way) == way) {
		if (end - mapping->base <= mapping->bytes)
			return true;
		at = mapping->base + mapping->bytes;
		mapping = mapping->bytes == mapping->size ? soft_mapping_next(mapping) : NULL;
	}
	return false;
}

/* Host memory of any kind, but not a reservation of ours that a touch of would fault. */
static bool host_span_ok(uintptr_t base, size_t bytes, int device, int way)
{
	if (!base || base + bytes < base)
		return false;
	if (!soft_range_overlapping(base, bytes))
		return true;
	return device_span_ok(base, bytes, device, way) ||
	       device_span_ok(base, bytes, SOFT_MAX_DEVICES, way); /* the CPU's access */
}

static bool side_ok(enum soft_side side, uintptr_t base, size_t bytes, int device, int way)
{
	return side == SOFT_DEVICE_SIDE ? device_span_ok(base, bytes, device, way)
					: host_span_ok(base, bytes, device, way);
}

CUresult soft_copy_enter(CUcontext *context)
{
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(context);
	if (!result)
		result = soft_capture_unsafe();
	if (!result)
		soft_work_wait(NULL, *context);
	return result;
}

static CUresult enter_async(CUcontext *context, CUstream stream, bool *execute)
{
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(context);
	return result ? result : soft_stream_submit(stream, execute);
}

CUresult soft_copy_now(const struct soft_copy *copy, int device, bool execute)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!copy->bytes)
		return CUDA_SUCCESS;
	pthread_rwlock_rdlock(&soft.lock);
	if (side_ok(copy->dst_side, copy->dst, copy->bytes, device, WRITES) &&
		side_ok(copy->src_side, copy->src, copy->bytes, device, READS)) {
		if (execute)
			memmove((void *)copy->dst, (const void *)copy->src, copy->bytes);
		result = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

static CUresult copy_sync(const struct soft_copy *copy)
{
	CUcontext context;
	CUresult result = soft_copy_enter(&context);

	return result ? result : soft_copy_now(copy, context->device, true);
}

/* A copy or a fill that waits for its turn. */
struct later {
	struct soft_copy copy;
	uint32_t value;
	size_t width, count; /* of a fill; width is 0 for copies */
	int device;
};

static CUresult fill(
	CUdeviceptr dst, uint32_t value, size_t width, size_t count, int device, bool execute);

/* Its memory was good when it was asked for. */
static void later_run(void *arg)
{
	struct later later = *(struct later *)arg;
	CUresult result;

	free(arg);
	result = later.width ? fill(later.copy.dst, later.value, later.width, later.count,
				       later.device, true)
			     : soft_copy_now(&later.copy, later.device, true);
	if (!result)
		return;
	fprintf(stderr, "softcuda: GPU fault: memory of a copy in a stream is gone: %#lx, %#lx\n",
		(unsigned long)later.copy.dst, (unsigned long)later.copy.src);
	abort();
}

static CUresult later_add(const struct later *later, CUcontext context, CUstream stream)
{
	struct later *copy = malloc(sizeof(*copy));
	CUresult result;

	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*copy = *later;
	result = soft_work_add(stream, context, later_run, copy);
	if (result)
		free(copy);
	return result;
}

/* Is it the device's, or pinned, so that it may be touched after the call? */
static bool pinned(uintptr_t address)
{
	uintptr_t base;
	CUcontext context;
	size_t size;
	bool is;

	pthread_rwlock_rdlock(&soft.lock);
	is = soft_mapping_find(address) || soft_host_find(address, &base, &size, &context);
	pthread_rwlock_unlock(&soft.lock);
	return is;
}

/* Must the stream be waited for? Then it has been where the memory is not pinned. */
static bool wait_turn(const struct soft_copy *copy, CUcontext context, CUstream stream)
{
	if (!soft_work_pending(stream, context))
		return false;
	if (pinned(copy->dst) && (!copy->src || pinned(copy->src)))
		return true;
	soft_work_wait(stream, context);
	return false;
}

/* Other contexts' memory: cuMemFree() waits for the copy (seen, 580.159). */
static CUresult owner_waits(uintptr_t address, CUcontext context, CUstream stream)
{
	struct soft_mapping *mapping;
	CUcontext owner;

	pthread_rwlock_rdlock(&soft.lock);
	mapping = soft_mapping_find(address);
	owner = mapping && (mapping->kind == SOFT_PLAIN || mapping->kind == SOFT_PITCH ||
				   mapping->kind == SOFT_IPC)
			? mapping->context
			: NULL;
	pthread_rwlock_unlock(&soft.lock);
	return owner && owner != context ? soft_work_also(owner, stream, context) : CUDA_SUCCESS;
}

static CUresult copy_async(const struct soft_copy *copy, CUstream stream)
{
	bool execute = true, waits;
	CUcontext context;
	CUresult result = enter_async(&context, stream, &execute);

	if (!result)
		result = soft_copy_now(copy, context->device, false);
	if (result || !execute || !copy->bytes)
		return result;
	waits = wait_turn(copy, context, stream);
	if (!waits)
		return soft_copy_now(copy, context->device, true);
	result = later_add(
		&(struct later){.copy = *copy, .device = context->device}, context, stream);
	if (!result)
		result = owner_waits(copy->dst, context, stream);
	return result ? result : owner_waits(copy->src, context, stream);
}

#define COPY(d, ds, s, ss, n) (&(struct soft_copy){(uintptr_t)(d), (uintptr_t)(s), ds, ss, n})

SOFT_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{
	SOFT_FAULT();
	return copy_sync(COPY(dst, SOFT_DEVICE_SIDE, src, SOFT_HOST_SIDE, bytes));
}

SOFT_EXPORT CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr dst, const void *src, size_t bytes)
{
	SOFT_FAULT();
	return copy_sync(COPY(dst, SOFT_DEVICE_SIDE, src, SOFT_HOST_SIDE, bytes));
}

SOFT_EXPORT CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{
	SOFT_FAULT();
	return copy_sync(COPY(dst, SOFT_HOST_SIDE, src, SOFT_DEVICE_SIDE, bytes));
}

SOFT_EXPORT CUresult cuMemcpyDtoH_v2_ptds(void *dst, CUdeviceptr src, size_t bytes)
{
	SOFT_FAULT();
	return copy_sync(COPY(dst, SOFT_HOST_SIDE, src, SOFT_DEVICE_SIDE, bytes));
}

SOFT_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	SOFT_FAULT();
	return copy_sync(COPY(dst, SOFT_DEVICE_SIDE, src, SOFT_DEVICE_SIDE, bytes));
}

SOFT_EXPORT CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	SOFT_FAULT();
	return copy_sync(COPY(dst, SOFT_DEVICE_SIDE, src, SOFT_DEVICE_SIDE, bytes));
}

SOFT_EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	SOFT_FAULT();
	return copy_sync(COPY(dst, SOFT_ANY_SIDE, src, SOFT_ANY_SIDE, bytes));
}

SOFT_EXPORT CUresult cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	SOFT_FAULT();
	return copy_sync(COPY(dst, SOFT_ANY_SIDE, src, SOFT_ANY_SIDE, bytes));
}

SOFT_EXPORT CUresult cuMemcpyHtoDAsync_v2(
	CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
	SOFT_FAULT();
	return copy_async(COPY(dst, SOFT_DEVICE_SIDE, src, SOFT_HOST_SIDE, bytes), stream);
}

SOFT_EXPORT CUresult cuMemcpyHtoDAsync_v2_ptsz(
	CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
	SOFT_FAULT();
	return copy_async(COPY(dst, SOFT_DEVICE_SIDE, src, SOFT_HOST_SIDE, bytes), stream);
}

SOFT_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	SOFT_FAULT();
	return copy_async(COPY(dst, SOFT_HOST_SIDE, src, SOFT_DEVICE_SIDE, bytes), stream);
}

SOFT_EXPORT CUresult cuMemcpyDtoHAsync_v2_ptsz(
	void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	SOFT_FAULT();
	return copy_async(COPY(dst, SOFT_HOST_SIDE, src, SOFT_DEVICE_SIDE, bytes), stream);
}

SOFT_EXPORT CUresult cuMemcpyDtoDAsync_v2(
	CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	SOFT_FAULT();
	return copy_async(COPY(dst, SOFT_DEVICE_SIDE, src, SOFT_DEVICE_SIDE, bytes), stream);
}

SOFT_EXPORT CUresult cuMemcpyDtoDAsync_v2_ptsz(
	CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	SOFT_FAULT();
	return copy_async(COPY(dst, SOFT_DEVICE_SIDE, src, SOFT_DEVICE_SIDE, bytes), stream);
}

SOFT_EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	SOFT_FAULT();
	return copy_async(COPY(dst, SOFT_ANY_SIDE, src, SOFT_ANY_SIDE, bytes), stream);
}

SOFT_EXPORT CUresult cuMemcpyAsync_ptsz(
	CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	SOFT_FAULT();
	return copy_async(COPY(dst, SOFT_ANY_SIDE, src, SOFT_ANY_SIDE, bytes), stream);
}

static CUresult fill(
	CUdeviceptr dst, uint32_t value, size_t width, size_t count, int device, bool execute)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (dst % width || count > SIZE_MAX / width)
		return CUDA_ERROR_INVALID_VALUE;
	if (!count)
		return CUDA_SUCCESS;
	pthread_rwlock_rdlock(&soft.lock);
	if (device_span_ok(dst, count * width, device, WRITES)) {
		result = CUDA_SUCCESS;
		if (execute && width == 1)
			memset((void *)(uintptr_t)dst, value, count);
		else if (execute)
			for (size_t i = 0; i < count; i++)
				((uint32_t *)(uintptr_t)dst)[i] = value;
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

static CUresult set_sync(CUdeviceptr dst, uint32_t value, size_t width, size_t count)
{
	CUcontext context;
	CUresult result = soft_copy_enter(&context);

	return result ? result : fill(dst, value, width, count, context->device, true);
}

static CUresult set_async(
	CUdeviceptr dst, uint32_t value, size_t width, size_t count, CUstream stream)
{
	bool execute = true, waits;
	CUcontext context;
	CUresult result = enter_async(&context, stream, &execute);

	if (result)
		return result;
	waits = execute && count && wait_turn(&(struct soft_copy){.dst = dst}, context, stream);
	result = fill(dst, value, width, count, context->device, execute && !waits);
	if (result || !waits)
		return result;
	return later_add(&(struct later){.copy.dst = dst,
				 .value = value,
				 .width = width,
				 .count = count,
				 .device = context->device},
		context, stream);
}

SOFT_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count)
{
	SOFT_FAULT();
	return set_sync(dst, value, 1, count);
}

SOFT_EXPORT CUresult cuMemsetD8_v2_ptds(CUdeviceptr dst, unsigned char value, size_t count)
{
	SOFT_FAULT();
	return set_sync(dst, value, 1, count);
}

SOFT_EXPORT CUresult cuMemsetD8Async(
	CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
	SOFT_FAULT();
	return set_async(dst, value, 1, count, stream);
}

SOFT_EXPORT CUresult cuMemsetD8Async_ptsz(
	CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
	SOFT_FAULT();
	return set_async(dst, value, 1, count, stream);
}

SOFT_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t count)
{
	SOFT_FAULT();
	return set_sync(dst, value, 4, count);
}

SOFT_EXPORT CUresult cuMemsetD32_v2_ptds(CUdeviceptr dst, unsigned int value, size_t count)
{
	SOFT_FAULT();
	return set_sync(dst, value, 4, count);
}

SOFT_EXPORT CUresult cuMemsetD32Async(
	CUdeviceptr dst, unsigned int value, size_t count, CUstream stream)
{
	SOFT_FAULT();
	return set_async(dst, value, 4, count, stream);
}

SOFT_EXPORT CUresult cuMemsetD32Async_ptsz(
	CUdeviceptr dst, unsigned int value, size_t count, CUstream stream)
{
	SOFT_FAULT();
	return set_async(dst, value, 4, count, stream);
}
