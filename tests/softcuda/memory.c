/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * cuMemAlloc, its pitch and managed kinds, and cuMemFree. Every allocation takes whole 2 MiB pieces
 * of its device, which is how the real driver's accounts move too (it shares a piece among small
 * allocations, this one does not). It has addresses of its own and no handle; its file stays open
 * for cuIpcGetMemHandle, unless descriptors are so scarce that it would have a low number.
 *
 * Managed memory lies on the device that was current, as cuda.h describes it for devices without
 * concurrent managed access, which these say they are; the CPU may use it all the same.
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "softcuda.h"

#define PITCH_ALIGNMENT 512

SOFT_EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	CUcontext context;
	struct statfs fs;
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(&context);
	if (result)
		return result;
	if (!free || !total)
		return CUDA_ERROR_INVALID_VALUE;
	if (fstatfs(soft.device[context->device].dir, &fs))
		return CUDA_ERROR_OPERATING_SYSTEM;
	*free = (size_t)fs.f_bfree * fs.f_bsize;
	*total = (size_t)fs.f_blocks * fs.f_bsize;
	return CUDA_SUCCESS;
}

size_t soft_whole(size_t bytes)
{
	size_t size = (bytes + SOFT_GRANULARITY - 1) & ~(SOFT_GRANULARITY - 1);

	return size < bytes || size > SIZE_MAX / 4 ? 0 : size;
}

void soft_unplace(struct soft_mapping *mapping)
{
	struct soft_range *range = mapping->range;

	if (!soft_mapping_remove(mapping, soft_mapping_next(mapping)))
		soft_range_release(range);
}

CUresult soft_mapping_protect(struct soft_mapping *mapping)
{
	return mprotect((void *)mapping->base, mapping->size, soft_mapping_prot(mapping))
		       ? CUDA_ERROR_OUT_OF_MEMORY
		       : CUDA_SUCCESS;
}

CUresult soft_place(struct soft_mapping **made, struct soft_allocation *allocation, size_t bytes,
	enum soft_mapping_kind kind, const uint8_t *access)
{
	struct soft_mapping *mapping;
	struct soft_range *range;
	CUresult result;

	result = soft_range_reserve(&range, allocation->size, 0, 0, true);
	if (result)
		return result;
	result = soft_mapping_create(&mapping, range, range->base, range->size, allocation);
	if (result) {
		soft_range_release(range);
		return result;
	}
	mapping->kind = kind;
	mapping->bytes = bytes;
	for (int i = 0; i <= SOFT_MAX_DEVICES; i++) {
		if (access)
			mapping->access[i] = access[i];
		else if (i < soft.count)
			mapping->access[i] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	}
	result = soft_mapping_protect(mapping);
	if (result) {
		allocation->references++; /* the caller's, while the mapping goes */
		soft_unplace(mapping);
		allocation->references--;
		return result;
	}
	*made = mapping;
	return CUDA_SUCCESS;
}

/* soft.lock held for writing. The allocation is the mapping's, or gone. */
static CUresult place(struct soft_allocation *allocation, size_t bytes, CUcontext context,
	enum soft_mapping_kind kind, CUdeviceptr *ptr)
{
	struct soft_mapping *mapping;
	CUresult result;

	soft_allocation_list(allocation);
	result = soft_place(&mapping, allocation, bytes, kind, NULL);
	if (result) {
		soft_allocation_put(allocation);
		return result;
	}
	mapping->context = context;
	if (kind == SOFT_MANAGED || allocation->fd < SOFT_FIRST_FD)
		soft_allocation_hide(allocation);
	*ptr = mapping->base;
	return CUDA_SUCCESS;
}

static CUresult enter(CUcontext *context)
{
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(context);
	return result ? result : soft_capture_unsafe();
}

static CUresult alloc(
	CUdeviceptr *ptr, size_t bytes, CUcontext context, enum soft_mapping_kind kind)
{
	CUmemAllocationProp prop = {
		.type = kind == SOFT_MANAGED ? CU_MEM_ALLOCATION_TYPE_MANAGED
					     : CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, context->device},
	};
	struct soft_allocation *allocation;
	size_t size = soft_whole(bytes);
	CUresult result;

	if (!size)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = soft_allocation_create(&allocation, size, &prop);
	if (result)
		return result;
	pthread_rwlock_wrlock(&soft.lock);
	result = place(allocation, bytes, context, kind, ptr);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
	CUcontext context;
	CUresult result = enter(&context);

	SOFT_FAULT();
	if (!result && (!ptr || !bytes))
		result = CUDA_ERROR_INVALID_VALUE;
	return result ? result : alloc(ptr, bytes, context, SOFT_PLAIN);
}

SOFT_EXPORT CUresult cuMemAllocPitch_v2(
	CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	CUcontext context;
	CUresult result = enter(&context);
	size_t row, bytes;

	SOFT_FAULT();
	if (result)
		return result;
	if (!ptr || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	row = (width + PITCH_ALIGNMENT - 1) & ~(size_t)(PITCH_ALIGNMENT - 1);
	if (row < width || __builtin_mul_overflow(row, height, &bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = alloc(ptr, bytes, context, SOFT_PITCH);
	if (!result)
		*pitch = row;
	return result;
}

SOFT_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t bytes, unsigned int flags)
{
	CUcontext context;
	CUresult result = enter(&context);

	SOFT_FAULT();
	if (!result &&
		(!ptr || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)))
		result = CUDA_ERROR_INVALID_VALUE;
	return result ? result : alloc(ptr, bytes, context, SOFT_MANAGED);
}

/* However small the memory is, and threads that launch meanwhile wait as well (seen, 580.159). */
static void wait_for_work(CUdeviceptr ptr)
{
	struct soft_mapping *mapping;
	CUcontext context;

	pthread_rwlock_rdlock(&soft.lock);
	mapping = soft_mapping_freeable(ptr);
	context = mapping ? mapping->context : NULL;
	pthread_rwlock_unlock(&soft.lock);
	if (!context)
		return;
	soft_busy_wait();
	soft_work_wait_barred(context);
}

SOFT_EXPORT CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	struct soft_mapping *mapping;
	CUcontext context;
	CUresult result = enter(&context);

	SOFT_FAULT();
	if (result == CUDA_ERROR_INVALID_CONTEXT)
		result = soft_capture_unsafe(); /* it needs none (seen, 580.159) */
	if (result || !ptr) /* NULL is freed without complaint (seen, 580.159) */
		return result;
	wait_for_work(ptr);
	pthread_rwlock_wrlock(&soft.lock);
	mapping = soft_mapping_freeable(ptr);
	if (mapping)
		soft_free(mapping);
	else
		result = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

struct soft_mapping *soft_mapping_freeable(CUdeviceptr ptr)
{
	struct soft_mapping *mapping = soft_mapping_find(ptr);

	/* An idle piece of a pool was freed already. */
	if (!mapping || mapping->base != ptr || !mapping->bytes)
		return NULL;
	return mapping->kind == SOFT_VMM || mapping->kind == SOFT_IPC ? NULL : mapping;
}

void soft_free(struct soft_mapping *mapping)
{
	if (mapping->pool)
		soft_async_free(mapping);
	else
		soft_unplace(mapping);
}

void soft_memory_free_context(CUcontext context)
{
	struct soft_mapping *mapping, *next;

	for (mapping = soft_mapping_from(0); mapping; mapping = next) {
		next = soft_mapping_next(mapping);
		if (mapping->context == context)
			soft_unplace(mapping);
	}
}
