/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Stream-ordered memory. As all work is done when the call that asks for it returns, so are these
 * allocations and frees. A pool reserves whole 2 MiB pieces, an own file for each allocation; what
 * is freed stays reserved, at its address but accessible to nobody, for the next allocation that
 * fits, until a synchronisation finds more reserved than the pool's threshold.
 */
#include <string.h>

#include "softcuda.h"

static _Atomic unsigned int idle; /* of all pools: spares synchronisations the lock */

static bool is_idle(const struct soft_mapping *mapping, CUmemoryPool pool)
{
	return mapping->pool == pool && mapping->kind == SOFT_ASYNC && !mapping->bytes;
}

/* A pool's memory goes; when it was destroyed, so may the pool. */
static void release(struct soft_mapping *mapping)
{
	CUmemoryPool pool = mapping->pool;

	pool->reserved -= mapping->size;
	pool->used -= mapping->bytes;
	soft_unplace(mapping);
	soft_pool_put(pool);
}

void soft_pool_trim(CUmemoryPool pool, size_t keep)
{
	struct soft_mapping *mapping, *next;

	/* "at least minBytesToKeep": what would fall below it stays. */
	for (mapping = soft_mapping_from(0); mapping && pool->idle; mapping = next) {
		next = soft_mapping_next(mapping);
		if (!is_idle(mapping, pool) || pool->reserved - mapping->size < keep)
			continue;
		pool->idle--;
		atomic_fetch_sub(&idle, 1);
		release(mapping);
	}
}

void soft_pools_settle(void)
{
	CUmemoryPool pool;

	if (!atomic_load(&idle))
		return;
	pthread_rwlock_wrlock(&soft.lock);
	for (pool = soft_pool_first(); pool; pool = LIST_NEXT(pool, entry)) {
		if (pool->reserved > pool->threshold)
			soft_pool_trim(pool, pool->threshold);
	}
	pthread_rwlock_unlock(&soft.lock);
}

void soft_async_free(struct soft_mapping *mapping)
{
	CUmemoryPool pool = mapping->pool;

	if (mapping->kind == SOFT_ASYNC_IMPORT || pool->destroyed) {
		release(mapping);
		return;
	}
	pool->used -= mapping->bytes;
	mapping->bytes = 0;
	memset(mapping->access, 0, sizeof(mapping->access));
	soft_mapping_protect(mapping);
	pool->idle++;
	atomic_fetch_add(&idle, 1);
}

static struct soft_mapping *best_idle(CUmemoryPool pool, size_t size)
{
	struct soft_mapping *best = NULL, *mapping;

	if (!pool->idle)
		return NULL;
	for (mapping = soft_mapping_from(0); mapping; mapping = soft_mapping_next(mapping)) {
		if (is_idle(mapping, pool) && mapping->size >= size &&
			(!best || mapping->size < best->size))
			best = mapping;
	}
	return best;
}

static CUresult reuse(struct soft_mapping *mapping, size_t bytes)
{
	CUmemoryPool pool = mapping->pool;
	CUresult result;

	memcpy(mapping->access, pool->access, sizeof(mapping->access));
	result = soft_mapping_protect(mapping);
	if (result)
		return result;
	mapping->bytes = bytes;
	mapping->buffer = soft_buffer_new();
	mapping->sync_memops = false; /* seen, 580.159 */
	pool->idle--;
	atomic_fetch_sub(&idle, 1);
	soft_pool_account(pool, 0, bytes);
	return CUDA_SUCCESS;
}

/* What the device's pools have and do not need. */
static void trim_location(const CUmemLocation *location)
{
	CUmemoryPool pool;

	for (pool = soft_pool_first(); pool; pool = LIST_NEXT(pool, entry)) {
		if (!memcmp(&pool->props.location, location, sizeof(*location)))
			soft_pool_trim(pool, 0);
	}
}

static CUresult fresh(CUmemoryPool pool, size_t size, size_t bytes, struct soft_mapping **made)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = pool->props.handleTypes,
		.location = pool->props.location,
	};
	struct soft_allocation *allocation;
	CUresult result;

	if (pool->props.maxSize && pool->reserved + size > pool->props.maxSize)
		soft_pool_trim(pool, 0);
	if (pool->props.maxSize && pool->reserved + size > pool->props.maxSize)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = soft_allocation_create(&allocation, size, &prop);
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		trim_location(&prop.location);
		result = soft_allocation_create(&allocation, size, &prop);
	}
	if (result)
		return result;
	soft_allocation_list(allocation);
	result = soft_place(made, allocation, bytes, SOFT_ASYNC, pool->access);
	if (result) {
		soft_allocation_put(allocation);
		return result;
	}
	(*made)->pool = pool;
	if (!pool->props.handleTypes && allocation->fd < SOFT_FIRST_FD)
		soft_allocation_hide(allocation); /* as in memory.c: a binding would need it */
	soft_pool_account(pool, size, bytes);
	return CUDA_SUCCESS;
}

/* soft.lock held for writing. */
static CUresult alloc(CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool)
{
	size_t size = soft_whole(bytes);
	struct soft_mapping *mapping;
	CUresult result;

	if (!size)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mapping = best_idle(pool, size);
	result = mapping ? reuse(mapping, bytes) : fresh(pool, size, bytes, &mapping);
	if (!result)
		*ptr = mapping->base;
	return result;
}

/* Arguments are looked at after captures (seen, 580.159). */
static CUresult enter(CUstream stream, int *device)
{
	CUresult result = CUDA_ERROR_NOT_INITIALIZED;

	if (soft_ready())
		result = soft_stream_device(stream, device);
	return result ? result : soft_capture_unsafe();
}

static CUresult alloc_current(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	CUmemoryPool pool;
	CUresult result;
	int device;

	result = enter(stream, &device);
	if (result)
		return result;
	if (!ptr || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&soft.lock);
	result = soft_pool_current(&pool, device, false);
	if (!result)
		result = alloc(ptr, bytes, pool);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

static CUresult alloc_from(CUdeviceptr *ptr, size_t bytes, CUmemoryPool handle, CUstream stream)
{
	CUmemoryPool pool;
	CUresult result;
	int device;

	result = enter(stream, &device);
	if (result)
		return result;
	if (!ptr || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&soft.lock);
	pool = soft_pool_use(handle);
	/* "Imported memory pools do not support creating new allocations." */
	result = pool && !pool->imported ? alloc(ptr, bytes, pool) : CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

static CUresult free_async(CUdeviceptr ptr, CUstream stream)
{
	struct soft_mapping *mapping;
	CUresult result;
	int device;

	result = enter(stream, &device);
	if (result)
		return result;
	pthread_rwlock_wrlock(&soft.lock);
	mapping = soft_mapping_freeable(ptr);
	if (mapping)
		soft_free(mapping);
	else
		result = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	SOFT_FAULT();
	return alloc_current(ptr, bytes, stream);
}

SOFT_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	SOFT_FAULT();
	return alloc_current(ptr, bytes, stream);
}

SOFT_EXPORT CUresult cuMemAllocFromPoolAsync(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	SOFT_FAULT();
	return alloc_from(ptr, bytes, pool, stream);
}

SOFT_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	SOFT_FAULT();
	return alloc_from(ptr, bytes, pool, stream);
}

SOFT_EXPORT CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	SOFT_FAULT();
	return free_async(ptr, stream);
}

SOFT_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
	SOFT_FAULT();
	return free_async(ptr, stream);
}

SOFT_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	CUmemoryPool pool;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_rwlock_wrlock(&soft.lock);
	pool = soft_pool_use(handle);
	if (pool)
		soft_pool_trim(pool, keep);
	pthread_rwlock_unlock(&soft.lock);
	return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
