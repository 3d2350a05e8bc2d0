/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * cuMemAlloc and what can be asked about an address. Every allocation takes whole 2 MiB pieces of
 * its device, which is how the real driver's accounts move too (it shares a piece among small
 * allocations, this one does not). It has addresses of its own and no handle, so the file needs no
 * fd once it is mapped.
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "softcuda.h"

SOFT_EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	CUcontext context;
	struct statfs fs;
	CUresult result;

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

static void unplace(struct soft_mapping *mapping)
{
	struct soft_range *range = mapping->range;

	if (!soft_mapping_remove(mapping, soft_mapping_next(mapping)))
		soft_range_release(range);
}

/* soft.lock held for writing. */
static CUresult place(
	struct soft_allocation *allocation, size_t bytes, CUcontext context, uintptr_t *base)
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
	mapping->context = context;
	mapping->bytes = bytes;
	for (int i = 0; i < soft.count; i++)
		mapping->access[i] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	if (mprotect((void *)mapping->base, mapping->size, soft_mapping_prot(mapping))) {
		allocation->references++; /* the caller's, while the mapping goes */
		unplace(mapping);
		allocation->references--;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*base = mapping->base;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
	};
	struct soft_allocation *allocation;
	CUcontext context;
	CUresult result;
	uintptr_t base;
	size_t size;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(&context);
	if (!result)
		result = soft_capture_unsafe();
	if (result)
		return result;
	size = (bytes + SOFT_GRANULARITY - 1) & ~(SOFT_GRANULARITY - 1);
	if (!ptr || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (size < bytes || size > SIZE_MAX / 4)
		return CUDA_ERROR_OUT_OF_MEMORY;
	prop.location.id = context->device;
	result = soft_allocation_create(&allocation, size, &prop);
	if (result)
		return result;
	pthread_rwlock_wrlock(&soft.lock);
	result = place(allocation, bytes, context, &base);
	close(allocation->fd);
	allocation->fd = -1;
	if (result)
		soft_allocation_put(allocation);
	else
		*ptr = base;
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	struct soft_mapping *mapping;
	CUcontext context;
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(&context);
	if (!result)
		result = soft_capture_unsafe();
	if (result || !ptr) /* NULL is freed without complaint (seen, 580.159) */
		return result;
	pthread_rwlock_wrlock(&soft.lock);
	mapping = soft_mapping_find(ptr);
	if (mapping && mapping->context && mapping->base == ptr)
		unplace(mapping);
	else
		result = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

void soft_memory_free_context(CUcontext context)
{
	struct soft_mapping *mapping, *next;

	for (mapping = soft_mapping_from(0); mapping; mapping = next) {
		next = soft_mapping_next(mapping);
		if (mapping->context == context)
			unplace(mapping);
	}
}

/* soft.lock held. The kind of memory, 0 where an address is no memory that CUDA knows. */
static CUmemorytype describe(
	uintptr_t address, uintptr_t *base, size_t *size, struct soft_mapping **mapping)
{
	*mapping = soft_mapping_find(address);
	if (*mapping && address - (*mapping)->base < (*mapping)->bytes) {
		*base = (*mapping)->base;
		*size = (*mapping)->bytes;
		return (*mapping)->allocation->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE
			       ? CU_MEMORYTYPE_DEVICE
			       : CU_MEMORYTYPE_HOST;
	}
	*mapping = NULL;
	return soft_host_find(address, base, size) ? CU_MEMORYTYPE_HOST : 0;
}

SOFT_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	struct soft_mapping *mapping;
	size_t found_size;
	CUcontext context;
	CUresult result;
	uintptr_t found;
	bool known;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(&context); /* seen: INVALID_CONTEXT without one (580.159) */
	if (result)
		return result;
	pthread_rwlock_rdlock(&soft.lock);
	known = describe(ptr, &found, &found_size, &mapping);
	pthread_rwlock_unlock(&soft.lock);
	if (!known)
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = found;
	if (size)
		*size = found_size;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuPointerGetAttribute(
	void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct soft_mapping *mapping;
	CUresult result = CUDA_SUCCESS;
	CUmemorytype type;
	uintptr_t base;
	size_t size;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&soft.lock);
	type = describe(ptr, &base, &size, &mapping);
	if (!type)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
		*(CUcontext *)data = mapping ? mapping->context : NULL;
	else if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
		*(unsigned int *)data = type;
	else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
		*(CUdeviceptr *)data = ptr;
	else if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && type == CU_MEMORYTYPE_HOST)
		*(void **)data = (void *)(uintptr_t)ptr;
	else if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED)
		*(unsigned int *)data = 0;
	else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL && type == CU_MEMORYTYPE_DEVICE)
		*(int *)data = mapping->allocation->prop.location.id;
	else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
		*(CUdeviceptr *)data = base;
	else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
		*(size_t *)data = size;
	else if (attribute == CU_POINTER_ATTRIBUTE_MAPPED)
		*(unsigned int *)data = 1;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_unlock(&soft.lock);
	return result;
}
