// SPDX-License-Identifier: BSD-2-Clause
/* The devices' default pools, as far as their memory is ours, and the calls at which parked memory
 * is given back. The memory of other pools, which may be shared or limited, is the driver's. */
#include <pthread.h>
#include <string.h>

#include "control/driver/gate.h"
#include "control/plain/memory.h"

/* The default pool of a device. */
struct pool {
	CUmemoryPool pool; /* NULL: not asked for */
	CUcontext context; /* the last one that took memory from it; NULL: that has ended */
	int shared;	   /* with other devices: what it gives out is the driver's from then on */
	uint64_t used, used_high, reserved, reserved_high; /* bytes: blocks, chunks */
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

void lien_plain_account(uint64_t key, int64_t used, int64_t reserved)
{
	struct pool *pool = pool_of(key);

	if (!pool)
		return; /* plain memory, freed in a stream */
	pthread_mutex_lock(&pools.lock);
	pool->used += used;
	pool->reserved += reserved;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
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

void lien_plain_pool_use(CUdevice device, CUcontext context)
{
	if (__atomic_load_n(&pools.list[device].context, __ATOMIC_RELAXED) != context)
		__atomic_store_n(&pools.list[device].context, context, __ATOMIC_RELAXED);
}

void lien_plain_pool_unuse(CUcontext context)
{
	CUcontext last;
	unsigned i;

	for (i = 0; i < LIEN_PLAIN_DEVICES; i++) {
		last = context;
		__atomic_compare_exchange_n(
			&pools.list[i].context, &last, NULL, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
}

CUcontext lien_plain_pool_context(CUdevice device)
{
	return __atomic_load_n(&pools.list[device].context, __ATOMIC_RELAXED);
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
		more = pool->reserved;
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

/* The high marks can be set to 0, which makes them what there is now. */
LIEN_TRANSLATED CUresult lien_plain_cuMemPoolSetAttribute(
	CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = LIEN_REAL(cuMemPoolSetAttribute)(handle, attribute, value);
	struct pool *pool = pool_of((uintptr_t)handle);

	if (result || !pool)
		return result;
	pthread_mutex_lock(&pools.lock);
	if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
		pool->reserved_high = pool->reserved;
	else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
		pool->used_high = pool->used;
	pthread_mutex_unlock(&pools.lock);
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
	while (lien_plain_forget((uintptr_t)pool->pool, &chunk))
		lien_plain_unmap(chunk);
	pthread_mutex_lock(&pools.lock);
	pool->used = pool->reserved = 0;
	pthread_mutex_unlock(&pools.lock);
}

/* --- when memory is given back -----------------------------------------------------------------
 */

/* Frees chunks of the pool until it has no more than that. */
LIEN_TRANSLATED static void trim(struct pool *pool, uint64_t keep)
{
	uint64_t bytes;

	while (pool->reserved > keep && (bytes = lien_plain_trim((uintptr_t)pool->pool)))
		lien_plain_account((uintptr_t)pool->pool, 0, -(int64_t)bytes);
}

/* Frees chunks of pools that nobody has memory in, and of memory of no pool; `all`: not only what
 * the pools' thresholds do not let them keep. */
LIEN_TRANSLATED static void release_chunks(int all)
{
	uint64_t keep;
	unsigned i;

	while (lien_plain_trim(0))
		;
	for (i = 0; i < LIEN_PLAIN_DEVICES; i++) {
		keep = 0;
		if (!pools.list[i].reserved ||
			(!all && LIEN_REAL(cuMemPoolGetAttribute)(pools.list[i].pool,
					 CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep)))
			continue;
		trim(&pools.list[i], keep);
	}
}

LIEN_TRANSLATED void lien_plain_reap(void)
{
	lien_plain_look(1);
	release_chunks(1);
	lien_plain_trims_end();
}

static int any_reserved(void)
{
	unsigned i;

	for (i = 0; i < LIEN_PLAIN_DEVICES; i++)
		if (__atomic_load_n(&pools.list[i].reserved, __ATOMIC_RELAXED))
			return 1;
	return 0;
}

/* Memory that is away is given back later: nobody is short of it, and to unmap it would begin a
 * restore. */
LIEN_TRANSLATED void lien_plain_synchronized(void)
{
	if ((!lien_plain_any_parked() && !any_reserved()) || lien_gate_is_shut())
		return;
	lien_plain_look(0);
	release_chunks(0);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	struct pool *pool = pool_of((uintptr_t)handle);

	if (pool && pool->reserved > keep && !lien_gate_is_shut()) {
		lien_plain_look(0);
		trim(pool, keep);
	}
	return LIEN_REAL(cuMemPoolTrimTo)(handle, keep);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemGetInfo_v2(size_t *free, size_t *total)
{
	lien_plain_synchronized();
	return LIEN_REAL(cuMemGetInfo_v2)(free, total);
}

/* The driver has synchronized, or has failed to. */
LIEN_TRANSLATED static CUresult after(CUresult result)
{
	if (!result)
		lien_plain_synchronized();
	return result;
}

LIEN_TRANSLATED CUresult lien_plain_cuCtxSynchronize(void)
{
	return after(LIEN_REAL(cuCtxSynchronize)());
}

LIEN_TRANSLATED CUresult lien_plain_cuCtxSynchronize_v2(CUcontext context)
{
	return after(LIEN_REAL(cuCtxSynchronize_v2)(context));
}

LIEN_TRANSLATED CUresult lien_plain_cuStreamSynchronize(CUstream stream)
{
	return after(LIEN_REAL(cuStreamSynchronize)(stream));
}

LIEN_TRANSLATED CUresult lien_plain_cuStreamSynchronize_ptsz(CUstream stream)
{
	return after(LIEN_REAL(cuStreamSynchronize_ptsz)(stream));
}

LIEN_TRANSLATED CUresult lien_plain_cuEventSynchronize(CUevent event)
{
	return after(LIEN_REAL(cuEventSynchronize)(event));
}

void lien_plain_pool_forked(void)
{
	memset(&pools, 0, sizeof(pools));
	pthread_mutex_init(&pools.lock, NULL);
}

LIEN_EXPORT_AS(cuMemPoolGetAttribute, lien_plain_cuMemPoolGetAttribute);
LIEN_EXPORT_AS(cuMemPoolSetAttribute, lien_plain_cuMemPoolSetAttribute);
LIEN_EXPORT_AS(cuMemPoolSetAccess, lien_plain_cuMemPoolSetAccess);
LIEN_EXPORT_AS(cuMemPoolTrimTo, lien_plain_cuMemPoolTrimTo);
LIEN_EXPORT_AS(cuMemGetInfo_v2, lien_plain_cuMemGetInfo_v2);
LIEN_EXPORT_AS(cuCtxSynchronize, lien_plain_cuCtxSynchronize);
LIEN_EXPORT_AS(cuCtxSynchronize_v2, lien_plain_cuCtxSynchronize_v2);
LIEN_EXPORT_AS(cuStreamSynchronize, lien_plain_cuStreamSynchronize);
LIEN_EXPORT_AS(cuStreamSynchronize_ptsz, lien_plain_cuStreamSynchronize_ptsz);
LIEN_EXPORT_AS(cuEventSynchronize, lien_plain_cuEventSynchronize);
