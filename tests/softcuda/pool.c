/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory pools: their lives, attributes and access. A pool is its device's, not a context's. One
 * that can be shared has a memfd, which is what is exported and what tells it from others.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "softcuda.h"

static LIST_HEAD(soft_pools, CUmemPoolHandle_st) pools = LIST_HEAD_INITIALIZER(pools);

CUmemoryPool soft_pool_first(void)
{
	return LIST_FIRST(&pools);
}

CUmemoryPool soft_pool_use(CUmemoryPool wanted)
{
	CUmemoryPool pool;

	LIST_FOREACH (pool, &pools, entry) {
		if (pool == wanted)
			return pool->destroyed ? NULL : pool;
	}
	return NULL;
}

void soft_pool_add(CUmemoryPool pool)
{
	LIST_INSERT_HEAD(&pools, pool, entry);
}

void soft_pools_forked(void)
{
	CUmemoryPool pool;

	LIST_FOREACH (pool, &pools, entry) {
		if (pool->fd >= 0)
			close(pool->fd);
		pool->fd = -1;
	}
}

CUresult soft_pool_new(CUmemoryPool *made, const CUmemPoolProps *props)
{
	CUmemoryPool pool = soft_block_new(sizeof(*pool));
	int own = SOFT_MAX_DEVICES;

	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pool->props = *props;
	pool->fd = -1;
	for (size_t i = 0; i < sizeof(pool->reuse) / sizeof(pool->reuse[0]); i++)
		pool->reuse[i] = 1;
	if (props->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		own = props->location.id;
	pool->access[own] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	*made = pool;
	return CUDA_SUCCESS;
}

void soft_pool_account(CUmemoryPool pool, size_t reserved, size_t used)
{
	pool->reserved += reserved;
	pool->used += used;
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
}

void soft_pool_put(CUmemoryPool pool)
{
	if (!pool->destroyed || pool->reserved)
		return;
	LIST_REMOVE(pool, entry);
	if (pool->fd >= 0)
		close(pool->fd);
	soft_block_free(pool, sizeof(*pool));
}

CUresult soft_pool_current(CUmemoryPool *pool, int device, bool its_default)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
	};
	struct soft_device *of = &soft.device[device];

	if (!of->default_pool) {
		CUresult result = soft_pool_new(&of->default_pool, &props);

		if (result)
			return result;
		of->default_pool->is_default = true;
		soft_pool_add(of->default_pool);
	}
	*pool = its_default || !of->current_pool ? of->default_pool : of->current_pool;
	return CUDA_SUCCESS;
}

static CUresult get_device_pool(CUmemoryPool *pool, CUdevice device, bool its_default)
{
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!soft_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_rwlock_wrlock(&soft.lock);
	result = soft_pool_current(pool, device, its_default);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	SOFT_FAULT();
	return get_device_pool(pool, device, true);
}

SOFT_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	SOFT_FAULT();
	return get_device_pool(pool, device, false);
}

SOFT_EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	CUmemoryPool pool;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!soft_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_rwlock_wrlock(&soft.lock);
	pool = soft_pool_use(handle);
	if (pool && !pool->imported && pool->props.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
		pool->props.location.id == device) {
		soft.device[device].current_pool = pool;
		result = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

static CUresult check_props(const CUmemPoolProps *props)
{
	static const unsigned char zeros[sizeof(props->reserved)];
	CUmemAllocationProp prop;
	CUresult why;

	if (!props || props->win32SecurityAttributes || props->usage ||
		memcmp(props->reserved, zeros, sizeof(zeros)))
		return CUDA_ERROR_INVALID_VALUE;
	if (props->handleTypes & CU_MEM_HANDLE_TYPE_FABRIC)
		return CUDA_ERROR_NOT_SUPPORTED;
	prop = (CUmemAllocationProp){.type = props->allocType,
		.requestedHandleTypes = props->handleTypes,
		.location = props->location};
	return soft_prop_ok(&prop, &why) ? CUDA_SUCCESS : why;
}

SOFT_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props)
{
	CUmemoryPool pool;
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = handle ? check_props(props) : CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = soft_pool_new(&pool, props);
	if (!result && props->handleTypes)
		result = soft_pool_make_shareable(pool);
	if (result)
		return result;
	pthread_rwlock_wrlock(&soft.lock);
	soft_pool_add(pool);
	pthread_rwlock_unlock(&soft.lock);
	*handle = pool;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	CUmemoryPool pool;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_rwlock_wrlock(&soft.lock);
	pool = soft_pool_use(handle);
	if (pool && !pool->is_default) {
		for (int i = 0; i < soft.count; i++) {
			if (soft.device[i].current_pool == pool)
				soft.device[i].current_pool = NULL;
		}
		soft_pool_trim(pool, 0);
		pool->destroyed = true;
		soft_pool_put(pool);
		result = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

static CUresult set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, const void *value)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		pool->reuse[attribute - 1] = !!*(const int *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->threshold = *(const uint64_t *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (*(const uint64_t *)value)
			return CUDA_ERROR_INVALID_VALUE; /* "can only be reset to zero" */
		if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
			pool->reserved_high = pool->reserved;
		else
			pool->used_high = pool->used;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	const size_t sizes[] = {
		[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD] = pool->threshold,
		[CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT] = pool->reserved,
		[CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] = pool->reserved_high,
		[CU_MEMPOOL_ATTR_USED_MEM_CURRENT] = pool->used,
		[CU_MEMPOOL_ATTR_USED_MEM_HIGH] = pool->used_high,
	};

	if (attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
		attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		*(int *)value = pool->reuse[attribute - 1];
	else
		*(uint64_t *)value = sizes[attribute];
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMemPoolSetAttribute(
	CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	CUmemoryPool pool;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_rwlock_wrlock(&soft.lock);
	pool = soft_pool_use(handle);
	if (pool && value)
		result = set_attribute(pool, attribute, value);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuMemPoolGetAttribute(
	CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	CUmemoryPool pool;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_rwlock_rdlock(&soft.lock);
	pool = soft_pool_use(handle);
	if (pool && value)
		result = get_attribute(pool, attribute, value);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

/* A device keeps its access to a pool of its own memory. */
static CUresult check_access(CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count)
{
	CUresult result;
	int slot;

	for (size_t i = 0; i < count; i++) {
		result = soft_access_slot(&desc[i].location, &slot);
		if (result)
			return result;
		if (!soft_access_flags_ok(desc[i].flags))
			return CUDA_ERROR_INVALID_VALUE;
		if (pool->props.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			continue;
		if (slot == SOFT_MAX_DEVICES ||
			(slot == pool->props.location.id &&
				desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static CUresult set_access(CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count)
{
	struct soft_mapping *mapping;
	CUresult result;
	int slot = 0;

	for (size_t i = 0; i < count; i++) {
		soft_access_slot(&desc[i].location, &slot);
		pool->access[slot] = desc[i].flags;
	}
	for (mapping = soft_mapping_from(0); mapping; mapping = soft_mapping_next(mapping)) {
		if (mapping->pool != pool || !mapping->bytes)
			continue;
		memcpy(mapping->access, pool->access, sizeof(mapping->access));
		result = soft_mapping_protect(mapping);
		if (result)
			return result;
	}
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMemPoolSetAccess(
	CUmemoryPool handle, const CUmemAccessDesc *desc, size_t count)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	CUmemoryPool pool;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_rwlock_wrlock(&soft.lock);
	pool = soft_pool_use(handle);
	if (pool && desc && count)
		result = check_access(pool, desc, count);
	if (!result)
		result = set_access(pool, desc, count);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuMemPoolGetAccess(
	CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	CUmemoryPool pool;
	int slot;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&soft.lock);
	pool = soft_pool_use(handle);
	if (pool)
		result = soft_access_slot(location, &slot);
	if (!result)
		*flags = pool->access[slot];
	pthread_rwlock_unlock(&soft.lock);
	return result;
}
