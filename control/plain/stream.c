// SPDX-License-Identifier: BSD-2-Clause
/*
 * Stream-ordered memory of the devices' default pools. A block is given out at once. A free parks
 * it until its stream has come to that point; until then only the same stream gets it again. The
 * memory of other pools, which may be shared or limited, and that of graphs is the driver's.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "control/plain/memory.h"

#define CALLER __builtin_return_address(0)

/* In the functions for per-thread default streams, 0 is the thread's. */
#define PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

struct parked {
	LIST_ENTRY(parked) entry;
	struct lien_heap_block block;
	CUstream stream;
	CUevent event;
};

LIST_HEAD(parked_list, parked);

/* The default pool of a device. */
struct pool {
	CUmemoryPool pool; /* NULL: not asked for */
	int shared;	   /* with other devices: what it gives out is the driver's from then on */
	uint64_t used, used_high, parked, reserved_high;
};

static struct {
	pthread_mutex_t lock;
	struct parked_list parked;
	unsigned count;
	struct pool pools[LIEN_PLAIN_DEVICES];
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- pools ------------------------------------------------------------------------------------ */

static struct pool *pool_of(uint64_t pool)
{
	unsigned i;

	for (i = 0; pool && i < LIEN_PLAIN_DEVICES; i++)
		if ((uintptr_t)__atomic_load_n(&streams.pools[i].pool, __ATOMIC_ACQUIRE) == pool)
			return &streams.pools[i];
	return NULL;
}

int lien_plain_is_pool(uint64_t key)
{
	return pool_of(key) != NULL;
}

static void account(uint64_t key, int64_t used, int64_t parked)
{
	struct pool *pool = pool_of(key);

	if (!pool)
		return; /* plain memory, freed in a stream */
	pthread_mutex_lock(&streams.lock);
	pool->used += used;
	pool->parked += parked;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	if (pool->used + pool->parked > pool->reserved_high)
		pool->reserved_high = pool->used + pool->parked;
	pthread_mutex_unlock(&streams.lock);
}

void lien_plain_pool_freed(const struct lien_heap_block *block)
{
	account(block->key.context, -(int64_t)block->bytes, 0);
}

/* Returns the pool from which memory of the device is to come if it is one of ours. */
LIEN_TRANSLATED static CUmemoryPool ours(CUdevice device, CUmemoryPool wanted)
{
	CUmemoryPool pool = NULL, current = wanted;

	if (device < 0 || device >= LIEN_PLAIN_DEVICES || streams.pools[device].shared ||
		LIEN_REAL(cuDeviceGetDefaultMemPool)(&pool, device) ||
		(!wanted && LIEN_REAL(cuDeviceGetMemPool)(&current, device)) || current != pool)
		return NULL;
	__atomic_store_n(&streams.pools[device].pool, pool, __ATOMIC_RELEASE);
	return pool;
}

LIEN_TRANSLATED CUresult lien_plain_cuMemPoolGetAttribute(
	CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = LIEN_REAL(cuMemPoolGetAttribute)(handle, attribute, value);
	struct pool *pool = pool_of((uintptr_t)handle);
	uint64_t more = 0;

	if (result || !pool)
		return result;
	pthread_mutex_lock(&streams.lock);
	if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
		more = pool->used + pool->parked;
	else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
		more = pool->reserved_high;
	else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
		more = pool->used;
	else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
		more = pool->used_high;
	pthread_mutex_unlock(&streams.lock);
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
	struct pool *pool =
		device >= 0 && device < LIEN_PLAIN_DEVICES ? &streams.pools[device] : NULL;
	struct lien_heap_range chunk;

	if (!pool || !pool->pool)
		return;
	lien_plain_reap(1);
	while (lien_plain_forget((CUcontext)pool->pool, &chunk))
		lien_plain_unmap(chunk);
	pthread_mutex_lock(&streams.lock);
	pool->used = pool->parked = 0;
	pthread_mutex_unlock(&streams.lock);
}

/* --- freeing ---------------------------------------------------------------------------------- */

/* Takes an entry out of the list, or puts it there. */
static void move(struct parked *parked, int in)
{
	pthread_mutex_lock(&streams.lock);
	if (in)
		LIST_INSERT_HEAD(&streams.parked, parked, entry);
	else
		LIST_REMOVE(parked, entry);
	streams.count += in ? 1 : -1;
	pthread_mutex_unlock(&streams.lock);
}

static struct parked *take_first(struct parked_list *list)
{
	struct parked *parked;

	pthread_mutex_lock(&streams.lock);
	parked = LIST_FIRST(list);
	if (parked) {
		LIST_REMOVE(parked, entry);
		streams.count--;
	}
	pthread_mutex_unlock(&streams.lock);
	return parked;
}

/* Takes all that is parked. */
static void take_all(struct parked_list *list)
{
	pthread_mutex_lock(&streams.lock);
	*list = streams.parked;
	if (list->lh_first)
		list->lh_first->entry.le_prev = &list->lh_first;
	LIST_INIT(&streams.parked);
	pthread_mutex_unlock(&streams.lock);
}

/* An error other than "not ready" means that its context is gone, and so is the work. */
LIEN_TRANSLATED static int is_done(const struct parked *parked, int wait)
{
	if (wait)
		return LIEN_REAL(cuEventSynchronize)(parked->event) != CUDA_ERROR_NOT_READY;
	return LIEN_REAL(cuEventQuery)(parked->event) != CUDA_ERROR_NOT_READY;
}

LIEN_TRANSLATED static void unpark(struct parked *parked)
{
	LIEN_REAL(cuEventDestroy_v2)(parked->event);
	account(parked->block.key.context, 0, -(int64_t)parked->block.bytes);
	lien_plain_give(&parked->block);
	free(parked);
}

#define NO_POOL	  0
#define EVERY_ONE UINT64_MAX

static int concerns(const struct parked *parked, uint64_t pool)
{
	return pool == EVERY_ONE || parked->block.key.context == pool ||
	       (pool == NO_POOL && !pool_of(parked->block.key.context));
}

/* `pool`: one, or plain memory alone (NO_POOL), or EVERY_ONE. */
LIEN_TRANSLATED static int reap(uint64_t pool, int wait)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct parked_list list;
	struct parked *parked;
	int any = 0;

	if (!__atomic_load_n(&streams.count, __ATOMIC_RELAXED) ||
		LIEN_REAL(cuThreadExchangeStreamCaptureMode)(&mode))
		return 0;
	take_all(&list);
	while ((parked = take_first(&list))) {
		if (concerns(parked, pool) && is_done(parked, wait)) {
			unpark(parked);
			any = 1;
		} else {
			move(parked, 1);
		}
	}
	LIEN_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return any;
}

LIEN_TRANSLATED int lien_plain_reap(int wait)
{
	return reap(EVERY_ONE, wait);
}

LIEN_TRANSLATED static CUresult park(const struct lien_heap_block *block, CUstream stream)
{
	struct parked *parked = calloc(1, sizeof(*parked));
	CUresult result;

	if (!parked)
		return CUDA_ERROR_OUT_OF_MEMORY;
	parked->block = *block;
	parked->stream = stream;
	result = LIEN_REAL(cuEventCreate)(&parked->event, CU_EVENT_DISABLE_TIMING);
	if (!result) {
		result = LIEN_REAL(cuEventRecord)(parked->event, stream);
		if (!result && lien_plain_park(block))
			result = CUDA_ERROR_INVALID_VALUE; /* another thread was faster */
		if (result)
			LIEN_REAL(cuEventDestroy_v2)(parked->event);
	}
	if (result) {
		free(parked);
		return result;
	}
	account(block->key.context, -(int64_t)block->bytes, block->bytes);
	move(parked, 1);
	return CUDA_SUCCESS;
}

LIEN_TRANSLATED static int is_capturing(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return LIEN_REAL(cuStreamIsCapturing)(stream, &status) ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

LIEN_TRANSLATED CUresult lien_plain_cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	struct lien_heap_block block;

	if (!lien_plain_find(ptr, &block) || is_capturing(stream))
		return LIEN_REAL(cuMemFreeAsync)(ptr, stream);
	return block.address == ptr ? park(&block, stream) : CUDA_ERROR_INVALID_VALUE;
}

LIEN_TRANSLATED CUresult lien_plain_cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
	struct lien_heap_block block;

	if (!lien_plain_find(ptr, &block) || is_capturing(PER_THREAD(stream)))
		return LIEN_REAL(cuMemFreeAsync_ptsz)(ptr, stream);
	return block.address == ptr ? park(&block, PER_THREAD(stream)) : CUDA_ERROR_INVALID_VALUE;
}

/* --- allocating ------------------------------------------------------------------------------- */

/* A parked block may be larger than the new one by an eighth. */
static int fits(
	const struct lien_heap_block *block, const struct lien_heap_key *key, uint64_t bytes)
{
	return block->key.context == key->context && block->key.device == key->device &&
	       block->key.asker == key->asker && block->bytes >= bytes &&
	       block->bytes - bytes <= bytes / 8;
}

/* Takes a parked block out of the list that the stream may have. */
static struct parked *find_parked(const struct lien_heap_key *key, uint64_t bytes, CUstream stream)
{
	struct parked *parked;

	pthread_mutex_lock(&streams.lock);
	LIST_FOREACH (parked, &streams.parked, entry)
		if (parked->stream == stream && fits(&parked->block, key, bytes))
			break;
	if (parked) {
		LIST_REMOVE(parked, entry);
		streams.count--;
	}
	pthread_mutex_unlock(&streams.lock);
	return parked;
}

/* The stream may have been destroyed and another one have its handle, so it waits for the event. */
LIEN_TRANSLATED static int reuse(
	const struct lien_heap_key *key, uint64_t bytes, CUstream stream, CUdeviceptr *ptr)
{
	struct parked *parked = find_parked(key, bytes, stream);
	struct lien_heap_block block;

	if (!parked)
		return 0;
	if (LIEN_REAL(cuStreamWaitEvent)(stream, parked->event, 0) ||
		lien_plain_reuse(&parked->block, bytes, &block)) {
		move(parked, 1);
		return 0;
	}
	LIEN_REAL(cuEventDestroy_v2)(parked->event);
	account(key->context, bytes, -(int64_t)parked->block.bytes);
	free(parked);
	*ptr = block.address;
	return 1;
}

/* Returns whether it gave out memory of ours. */
LIEN_TRANSLATED static int alloc_async(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool wanted, CUstream stream, const void *caller)
{
	struct lien_plain_place place;
	CUcontext context = NULL;
	CUmemoryPool pool;

	if (!ptr || !bytes || !lien_plain_place(&place, caller) ||
		LIEN_REAL(cuStreamGetCtx)(stream, &context) ||
		(uintptr_t)context != place.key.context || is_capturing(stream))
		return 0;
	pool = ours(place.key.device, wanted);
	if (!pool)
		return 0;
	place.key.context = (uintptr_t)pool;
	if (reuse(&place.key, bytes, stream, ptr))
		return 1;
	if (lien_plain_take(&place, bytes, ptr) &&
		(!lien_plain_reap(1) || lien_plain_take(&place, bytes, ptr)))
		return 0;
	account(place.key.context, bytes, 0);
	return 1;
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	return alloc_async(ptr, bytes, NULL, stream, CALLER)
		       ? CUDA_SUCCESS
		       : LIEN_REAL(cuMemAllocAsync)(ptr, bytes, stream);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocAsync_ptsz(
	CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	return alloc_async(ptr, bytes, NULL, PER_THREAD(stream), CALLER)
		       ? CUDA_SUCCESS
		       : LIEN_REAL(cuMemAllocAsync_ptsz)(ptr, bytes, stream);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocFromPoolAsync(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return pool && alloc_async(ptr, bytes, pool, stream, CALLER)
		       ? CUDA_SUCCESS
		       : LIEN_REAL(cuMemAllocFromPoolAsync)(ptr, bytes, pool, stream);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocFromPoolAsync_ptsz(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return pool && alloc_async(ptr, bytes, pool, PER_THREAD(stream), CALLER)
		       ? CUDA_SUCCESS
		       : LIEN_REAL(cuMemAllocFromPoolAsync_ptsz)(ptr, bytes, pool, stream);
}

/* --- when parked memory is given back ----------------------------------------------------------
 */

/* A pool keeps at a synchronization what its threshold allows. */
LIEN_TRANSLATED static void synchronized(void)
{
	const struct pool *pool;
	uint64_t threshold;
	unsigned i;

	if (!__atomic_load_n(&streams.count, __ATOMIC_RELAXED))
		return;
	reap(NO_POOL, 0);
	for (i = 0; i < LIEN_PLAIN_DEVICES; i++) {
		pool = &streams.pools[i];
		if (!pool->parked || LIEN_REAL(cuMemPoolGetAttribute)(pool->pool,
					     CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold))
			continue;
		if (pool->used + pool->parked > threshold)
			reap((uintptr_t)pool->pool, 0);
	}
}

LIEN_TRANSLATED CUresult lien_plain_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	const struct pool *of = pool_of((uintptr_t)pool);

	if (of && of->used + of->parked > keep)
		reap((uintptr_t)pool, 0);
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

void lien_plain_stream_forked(void)
{
	memset(&streams, 0, sizeof(streams));
	pthread_mutex_init(&streams.lock, NULL);
}

LIEN_EXPORT_AS(cuMemPoolGetAttribute, lien_plain_cuMemPoolGetAttribute);
LIEN_EXPORT_AS(cuMemPoolSetAccess, lien_plain_cuMemPoolSetAccess);
LIEN_EXPORT_AS(cuMemFreeAsync, lien_plain_cuMemFreeAsync);
LIEN_EXPORT_AS(cuMemFreeAsync_ptsz, lien_plain_cuMemFreeAsync_ptsz);
LIEN_EXPORT_AS(cuMemAllocAsync, lien_plain_cuMemAllocAsync);
LIEN_EXPORT_AS(cuMemAllocAsync_ptsz, lien_plain_cuMemAllocAsync_ptsz);
LIEN_EXPORT_AS(cuMemAllocFromPoolAsync, lien_plain_cuMemAllocFromPoolAsync);
LIEN_EXPORT_AS(cuMemAllocFromPoolAsync_ptsz, lien_plain_cuMemAllocFromPoolAsync_ptsz);
LIEN_EXPORT_AS(cuMemPoolTrimTo, lien_plain_cuMemPoolTrimTo);
LIEN_EXPORT_AS(cuMemGetInfo_v2, lien_plain_cuMemGetInfo_v2);
LIEN_EXPORT_AS(cuCtxSynchronize, lien_plain_cuCtxSynchronize);
LIEN_EXPORT_AS(cuCtxSynchronize_v2, lien_plain_cuCtxSynchronize_v2);
LIEN_EXPORT_AS(cuStreamSynchronize, lien_plain_cuStreamSynchronize);
LIEN_EXPORT_AS(cuEventSynchronize, lien_plain_cuEventSynchronize);
