// SPDX-License-Identifier: BSD-2-Clause
#include "control/plain/memory.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

static struct {
	pthread_mutex_t lock;
	struct lien_heap heap;
	unsigned trims; /* threads that free a chunk that the heap has forgotten */
} plain = {.lock = PTHREAD_MUTEX_INITIALIZER};

int lien_plain_reuse(const struct lien_plain_place *place, uint64_t bytes,
	struct lien_heap_order *order, CUdeviceptr *ptr)
{
	struct lien_heap_block block;
	int err;

	pthread_mutex_lock(&plain.lock);
	err = lien_heap_take(&plain.heap, &place->key, bytes, order, &block);
	pthread_mutex_unlock(&plain.lock);
	if (!err)
		*ptr = block.address;
	return !err;
}

int lien_plain_add(const struct lien_heap_key *key, struct lien_heap_range chunk, uint64_t bytes,
	struct lien_heap_block *block)
{
	int err;

	pthread_mutex_lock(&plain.lock);
	err = lien_heap_add(&plain.heap, key, chunk, bytes, block);
	pthread_mutex_unlock(&plain.lock);
	return err;
}

int lien_plain_find(CUdeviceptr address, struct lien_heap_block *block)
{
	int found;

	if (!__atomic_load_n(&plain.heap.count, __ATOMIC_RELAXED))
		return 0;
	pthread_mutex_lock(&plain.lock);
	found = lien_heap_find(&plain.heap, address, block);
	pthread_mutex_unlock(&plain.lock);
	return found;
}

void lien_plain_set_sync_memops(const struct lien_heap_block *block, int value)
{
	pthread_mutex_lock(&plain.lock);
	lien_heap_set_sync_memops(&plain.heap, block, value);
	pthread_mutex_unlock(&plain.lock);
}

int lien_plain_offer(struct lien_heap_block *block, uint64_t secret)
{
	int err;

	pthread_mutex_lock(&plain.lock);
	err = lien_heap_offer(&plain.heap, block, secret);
	pthread_mutex_unlock(&plain.lock);
	return err;
}

void lien_plain_lock(void)
{
	pthread_mutex_lock(&plain.lock);
}

void lien_plain_unlock(void)
{
	pthread_mutex_unlock(&plain.lock);
}

int lien_plain_park(const struct lien_heap_block *block, struct lien_heap_order *order)
{
	return lien_heap_park(&plain.heap, block, order);
}

int lien_plain_any_parked(void)
{
	return __atomic_load_n(&plain.heap.parked, __ATOMIC_RELAXED) != 0;
}

LIEN_TRANSLATED CUresult lien_plain_unmap(struct lien_heap_range range)
{
	CUresult result = LIEN_REAL(cuMemUnmap)(range.base, range.bytes);

	/* The memory is gone: a failure only leaves the addresses unused. */
	if (!result)
		LIEN_REAL(cuMemAddressFree)(range.base, range.bytes);
	return result;
}

LIEN_TRANSLATED uint64_t lien_plain_trim(uint64_t pool)
{
	struct lien_heap_range chunk = {0};
	int found;

	pthread_mutex_lock(&plain.lock);
	found = lien_heap_trim(&plain.heap, pool, &chunk);
	if (found)
		__atomic_fetch_add(&plain.trims, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&plain.lock);
	if (!found)
		return 0;
	lien_plain_unmap(chunk);
	__atomic_fetch_sub(&plain.trims, 1, __ATOMIC_RELEASE);
	return chunk.bytes;
}

void lien_plain_trims_end(void)
{
	const struct timespec moment = {.tv_nsec = 20000};

	while (__atomic_load_n(&plain.trims, __ATOMIC_ACQUIRE))
		nanosleep(&moment, NULL);
}

LIEN_TRANSLATED CUresult lien_plain_give(const struct lien_heap_block *block)
{
	struct lien_heap_range empty;
	CUresult result = CUDA_SUCCESS;
	int err;

	pthread_mutex_lock(&plain.lock);
	err = lien_heap_give(&plain.heap, block, &empty);
	pthread_mutex_unlock(&plain.lock);
	if (err)
		return CUDA_ERROR_INVALID_VALUE; /* another thread was faster */
	if (empty.bytes)
		result = lien_plain_unmap(empty);
	if (result) {
		pthread_mutex_lock(&plain.lock);
		lien_heap_put_back(&plain.heap, block);
		pthread_mutex_unlock(&plain.lock);
	}
	return result;
}

/* --- all chunks ------------------------------------------------------------------------------- */

uint64_t lien_plain_end(CUcontext context)
{
	static uint64_t last;
	uint64_t ended;

	pthread_mutex_lock(&plain.lock);
	last += 2;
	ended = last | 1; /* odd: no address of a context or a pool */
	lien_heap_end(&plain.heap, (uintptr_t)context, ended);
	pthread_mutex_unlock(&plain.lock);
	return ended;
}

int lien_plain_forget(uint64_t ended, struct lien_heap_range *chunk)
{
	int found;

	pthread_mutex_lock(&plain.lock);
	found = lien_heap_drop(&plain.heap, ended, chunk);
	pthread_mutex_unlock(&plain.lock);
	return found;
}

int lien_plain_next(CUdeviceptr address, struct lien_heap_range *chunk, struct lien_heap_key *key)
{
	int found;

	pthread_mutex_lock(&plain.lock);
	found = lien_heap_next(&plain.heap, address, chunk, key);
	pthread_mutex_unlock(&plain.lock);
	return found;
}

void lien_plain_memory_forked(void)
{
	pthread_mutex_init(&plain.lock, NULL);
	memset(&plain.heap, 0, sizeof(plain.heap)); /* another thread may have been changing it */
	plain.trims = 0;
}
