// SPDX-License-Identifier: BSD-2-Clause
/* Stream-ordered memory. A block is given out at once. A free parks it until its stream has come to
 * that point; until then only the same stream gets it again. A graph's memory is the driver's. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "control/driver/gate.h"
#include "control/plain/memory.h"

#define CALLER __builtin_return_address(0)

/* In the functions for per-thread default streams, 0 is the thread's. */
#define PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

struct parked {
	TAILQ_ENTRY(parked) entry;
	struct lien_heap_block block;
	CUstream stream;
	CUevent event;
	unsigned looked; /* the last round of looking that has looked at it */
};

TAILQ_HEAD(parked_list, parked);

static struct {
	pthread_mutex_t lock;
	pthread_cond_t given;
	struct parked_list parked; /* the last one to be put there comes last */
	unsigned count;
	unsigned giving; /* are being given back */
	unsigned rounds;
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER,
	.given = PTHREAD_COND_INITIALIZER,
	.parked = TAILQ_HEAD_INITIALIZER(streams.parked)};

/* --- freeing ---------------------------------------------------------------------------------- */

static void put(struct parked *parked)
{
	pthread_mutex_lock(&streams.lock);
	TAILQ_INSERT_TAIL(&streams.parked, parked, entry);
	streams.count++;
	pthread_mutex_unlock(&streams.lock);
}

int lien_plain_any_parked(void)
{
	return __atomic_load_n(&streams.count, __ATOMIC_RELAXED) != 0;
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
	lien_plain_account(parked->block.key.context, 0, -(int64_t)parked->block.bytes);
	lien_plain_give(&parked->block);
	free(parked);
}

static int concerns(const struct parked *parked, uint64_t pool)
{
	return pool == LIEN_PLAIN_EVERY_ONE || parked->block.key.context == pool ||
	       (pool == LIEN_PLAIN_NO_POOL && !lien_plain_is_pool(parked->block.key.context));
}

/* Takes one out that this round has not looked at yet. The others stay, for other threads. */
static struct parked *take_next(unsigned number, uint64_t pool)
{
	struct parked *parked;

	pthread_mutex_lock(&streams.lock);
	TAILQ_FOREACH (parked, &streams.parked, entry)
		if (parked->looked != number && concerns(parked, pool))
			break;
	if (parked) {
		TAILQ_REMOVE(&streams.parked, parked, entry);
		streams.count--;
		streams.giving++;
		parked->looked = number;
	}
	pthread_mutex_unlock(&streams.lock);
	return parked;
}

static void has_given(void)
{
	pthread_mutex_lock(&streams.lock);
	streams.giving--;
	pthread_cond_broadcast(&streams.given);
	pthread_mutex_unlock(&streams.lock);
}

/* Memory that another thread is giving back will be there soon. Returns whether there was any. */
static int wait_for_others(void)
{
	int any;

	pthread_mutex_lock(&streams.lock);
	any = streams.giving != 0;
	while (streams.giving)
		pthread_cond_wait(&streams.given, &streams.lock);
	pthread_mutex_unlock(&streams.lock);
	return any;
}

/* Memory that is away is given back later: nobody is short of it, and to unmap it would begin a
 * restore. */
LIEN_TRANSLATED int lien_plain_reap(uint64_t pool, int wait)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct parked *parked;
	unsigned number;
	int any = 0;

	if (!wait && (!lien_plain_any_parked() || lien_gate_is_shut()))
		return 0;
	if (LIEN_REAL(cuThreadExchangeStreamCaptureMode)(&mode))
		return 0;
	number = __atomic_add_fetch(&streams.rounds, 1, __ATOMIC_RELAXED);
	while ((parked = take_next(number, pool))) {
		if (is_done(parked, wait)) {
			unpark(parked);
			any = 1;
		} else {
			put(parked);
		}
		has_given();
	}
	LIEN_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return wait ? wait_for_others() || any : any;
}

LIEN_TRANSLATED static CUresult park(const struct lien_heap_block *block, CUstream stream)
{
	struct parked *parked = calloc(1, sizeof(*parked));
	CUcontext context;
	CUresult result;
	int pushed;

	if (!parked)
		return CUDA_ERROR_OUT_OF_MEMORY;
	parked->block = *block;
	parked->stream = stream;
	/* The driver frees in a stream of any context, whatever is current. */
	pushed = !LIEN_REAL(cuStreamGetCtx)(stream, &context) &&
		 !LIEN_REAL(cuCtxPushCurrent_v2)(context);
	result = LIEN_REAL(cuEventCreate)(&parked->event, CU_EVENT_DISABLE_TIMING);
	if (!result) {
		result = LIEN_REAL(cuEventRecord)(parked->event, stream);
		if (!result && lien_plain_park(block))
			result = CUDA_ERROR_INVALID_VALUE; /* another thread was faster */
		if (result)
			LIEN_REAL(cuEventDestroy_v2)(parked->event);
	}
	if (pushed)
		LIEN_REAL(cuCtxPopCurrent_v2)(&context);
	if (result) {
		free(parked);
		return result;
	}
	lien_plain_account(block->key.context, -(int64_t)block->bytes, block->bytes);
	put(parked);
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
	       block->key.asker == key->asker && block->key.tag == key->tag &&
	       block->bytes >= bytes && block->bytes - bytes <= bytes / 8;
}

/* Takes a parked block out of the list that the stream may have. */
static struct parked *find_parked(const struct lien_heap_key *key, uint64_t bytes, CUstream stream)
{
	struct parked *parked;

	pthread_mutex_lock(&streams.lock);
	TAILQ_FOREACH_REVERSE (parked, &streams.parked, parked_list, entry)
		if (parked->stream == stream && fits(&parked->block, key, bytes))
			break;
	if (parked) {
		TAILQ_REMOVE(&streams.parked, parked, entry);
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
		put(parked);
		return 0;
	}
	LIEN_REAL(cuEventDestroy_v2)(parked->event);
	lien_plain_account(key->context, bytes, -(int64_t)parked->block.bytes);
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
	pool = lien_plain_pool(place.key.device, wanted);
	if (!pool)
		return 0;
	place.key.context = (uintptr_t)pool;
	if (reuse(&place.key, bytes, stream, ptr))
		return 1;
	if (lien_plain_take(&place, bytes, ptr) &&
		(!lien_plain_reap(LIEN_PLAIN_EVERY_ONE, 1) || lien_plain_take(&place, bytes, ptr)))
		return 0;
	lien_plain_account(place.key.context, bytes, 0);
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

void lien_plain_stream_forked(void)
{
	memset(&streams, 0, sizeof(streams));
	pthread_mutex_init(&streams.lock, NULL);
	pthread_cond_init(&streams.given, NULL);
	TAILQ_INIT(&streams.parked);
}

LIEN_EXPORT_AS(cuMemFreeAsync, lien_plain_cuMemFreeAsync);
LIEN_EXPORT_AS(cuMemFreeAsync_ptsz, lien_plain_cuMemFreeAsync_ptsz);
LIEN_EXPORT_AS(cuMemAllocAsync, lien_plain_cuMemAllocAsync);
LIEN_EXPORT_AS(cuMemAllocAsync_ptsz, lien_plain_cuMemAllocAsync_ptsz);
LIEN_EXPORT_AS(cuMemAllocFromPoolAsync, lien_plain_cuMemAllocFromPoolAsync);
LIEN_EXPORT_AS(cuMemAllocFromPoolAsync_ptsz, lien_plain_cuMemAllocFromPoolAsync_ptsz);
