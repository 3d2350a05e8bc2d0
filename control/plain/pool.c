// SPDX-License-Identifier: BSD-2-Clause
/* The devices' default pools, as far as their memory is ours, and the calls at which parked memory
 * is given back. The memory of other pools, which may be shared or limited, is the driver's. */
#include <pthread.h>
#include <string.h>

#include "control/plain/memory.h"

/* The default pool of a device. */
struct pool {
	CUmemoryPool pool; /* NULL: not asked for */
	int shared;	   /* with other devices: what it gives out is the driver's from then on */
	uint64_t used, used_high, parked, reserved_high;
};

static struct {
	pthread_mutex_t lock;
	struct pool list[LIEN_PLAIN_DEVICES];
} pools = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct pool *pool_of(uint64_t pool)
{
	unsigned i;

	for (i = 0; pool && i < LIEN_PLAIN_DEVICES; i++)
		if ((uintptr_t)__atomic_load_n(&pools.list[i].pool, __ATOMIC_ACQUIRE) == pool)
			return &pools.list[i];
	return NULL;
}

int lien_plain_is_pool(uint64_t key)
{
	return pool_of(key) != NULL;
}

void lien_plain_account(uint64_t key, int64_t used, int64_t parked)
{
	struct pool *pool = pool_of(key);

	if (!pool)
		return; /* plain memory, freed in a stream */
	pthread_mutex_lock(&pools.lock);
	pool->used += used;
	pool->parked += parked;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	if (pool->used + pool->parked > pool->reserved_high)
		pool->reserved_high = pool->used + pool->parked;
	pthread_mutex_unlock(&pools.lock);
}

/* Returns whether the application has let other devices use the pool's memory. */
LIEN_TRANSLATED static int is_shared(CUmemoryPool pool, CUdevice own)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	CUmemAccess_flags flags;
	int count = 0;

	if (LIEN_REAL(cuDeviceGetCount)(&count))
		return 1;
	for (location.id = 0; location.id < count; location.id++) {
		flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
		if (location.id != own &&
			(LIEN_REAL(cuMemPoolGetAccess)(&flags, pool, &location) || flags))
			return 1;
	}
	return 0;
}

LIEN_TRANSLATED CUmemoryPool lien_plain_pool(CUdevice device, CUmemoryPool wanted)
{
	CUmemoryPool pool = NULL, current = wanted;

	if (device < 0 || device >= LIEN_PLAIN_DEVICES || pools.list[device].shared ||
		LIEN_REAL(cuDeviceGetDefaultMemPool)(&pool, device) ||
		(!wanted && LIEN_REAL(cuDeviceGetMemPool)(&current, device)) || current != pool)
		return NULL;
	if (pools.list[device].pool)
		return pool;
	pools.list[device].shared = is_shared(pool, device);
	__atomic_store_n(&pools.list[device].pool, pool, __ATOMIC_RELEASE);
	return pools.list[device].shared ? NULL : pool;
}

LIEN_TRANSLATED CUresult lien_plain_cuMemPoolGetAttribute(
	CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = LIEN_REAL(cuMemPoolGetAttribute)(handle, attribute, value);
	struct pool *pool = pool_of((uintptr_t)handle);
	uint64_t more = 0;

	if (result || !pool)
		return result;
	pthread_mutex_lock(&pools.lock);
	if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
		more = pool->used + pool->parked;
	else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
		more = pool->reserved_high;
	else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
		more = pool->used;
	else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
		more = pool->used_high;
	pthread_mutex_unlock(&pools.lock);
	if (more)
		*(uint64_t *)value += more;
	return CUDA_SUCCESS;
}

/* The driver has set the access of the pool's memory, and so do we of what is ours. */
LIEN_TRANSLATED CUresult lien_plain_cuMemPoolSetAccess(
	CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
	CUresult result = LIEN_REAL(cuMemPoolSetAccess)(handle, access, count);
	struct pool *pool = pool_of((uintptr_t)handle);
	struct lien_heap_range chunk = {0};
	struct lien_heap_key key;

	if (result || !pool)
		return result;
	pool->shared = 1;
	while (!result && lien_plain_next(chunk.base + chunk.bytes, &chunk, &key))
		if (key.context == (uintptr_t)handle)
			result = LIEN_REAL(cuMemSetAccess)(chunk.base, chunk.bytes, access, count);
	return result;
}

void lien_plain_pool_drop(CUdevice device)
{
	struct pool *pool = device >= 0 && device < LIEN_PLAIN_DEVICES ? &pools.list[device] : NULL;
	struct lien_heap_range chunk;

	if (!pool || !pool->pool)
		return;
	lien_plain_reap(LIEN_PLAIN_EVERY_ONE, 1);
	while (lien_plain_forget((uintptr_t)pool->pool, &chunk))
		lien_plain_unmap(chunk);
	pthread_mutex_lock(&pools.lock);
	pool->used = pool->parked = 0;
	pthread_mutex_unlock(&pools.lock);
}

/* --- when parked memory is given back ----------------------------------------------------------
 */

/* A pool keeps at a synchronization what its threshold allows. */
LIEN_TRANSLATED static void synchronized(void)
{
	const struct pool *pool;
	uint64_t threshold;
	unsigned i;

	if (!lien_plain_any_parked())
		return;
	lien_plain_reap(LIEN_PLAIN_NO_POOL, 0);
	for (i = 0; i < LIEN_PLAIN_DEVICES; i++) {
		pool = &pools.list[i];
		if (!pool->parked || LIEN_REAL(cuMemPoolGetAttribute)(pool->pool,
					     CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold))
			continue;
		if (pool->used + pool->parked > threshold)
			lien_plain_reap((uintptr_t)pool->pool, 0);
	}
}

LIEN_TRANSLATED CUresult lien_plain_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	const struct pool *of = pool_of((uintptr_t)pool);

	if (of && of->used + of->parked > keep)
		lien_plain_reap((uintptr_t)pool, 0);
	return LIEN_REAL(cuMemPoolTrimTo)(pool, keep);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemGetInfo_v2(size_t *free, size_t *total)
{
	synchronized();
	return LIEN_REAL(cuMemGetInfo_v2)(free, total);
}

LIEN_TRANSLATED CUresult lien_plain_cuCtxSynchronize(void)
{
	CUresult result = LIEN_REAL(cuCtxSynchronize)();

	if (!result)
		synchronized();
	return result;
}

LIEN_TRANSLATED CUresult lien_plain_cuCtxSynchronize_v2(CUcontext context)
{
	CUresult result = LIEN_REAL(cuCtxSynchronize_v2)(context);

	if (!result)
		synchronized();
	return result;
}

LIEN_TRANSLATED CUresult lien_plain_cuStreamSynchronize(CUstream stream)
{
	CUresult result = LIEN_REAL(cuStreamSynchronize)(stream);

	if (!result)
		synchronized();
	return result;
}

LIEN_TRANSLATED CUresult lien_plain_cuEventSynchronize(CUevent event)
{
	CUresult result = LIEN_REAL(cuEventSynchronize)(event);

	if (!result)
		synchronized();
	return result;
}

void lien_plain_pool_forked(void)
{
	memset(&pools, 0, sizeof(pools));
	pthread_mutex_init(&pools.lock, NULL);
}

LIEN_EXPORT_AS(cuMemPoolGetAttribute, lien_plain_cuMemPoolGetAttribute);
LIEN_EXPORT_AS(cuMemPoolSetAccess, lien_plain_cuMemPoolSetAccess);
LIEN_EXPORT_AS(cuMemPoolTrimTo, lien_plain_cuMemPoolTrimTo);
LIEN_EXPORT_AS(cuMemGetInfo_v2, lien_plain_cuMemGetInfo_v2);
LIEN_EXPORT_AS(cuCtxSynchronize, lien_plain_cuCtxSynchronize);
LIEN_EXPORT_AS(cuCtxSynchronize_v2, lien_plain_cuCtxSynchronize_v2);
LIEN_EXPORT_AS(cuStreamSynchronize, lien_plain_cuStreamSynchronize);
LIEN_EXPORT_AS(cuEventSynchronize, lien_plain_cuEventSynchronize);
