// SPDX-License-Identifier: BSD-2-Clause
#include "control/plain/memory.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "control/tag/tag.h"

static struct {
	pthread_mutex_t lock;
	struct lien_heap heap;
	unsigned trims; /* threads that free a chunk that the heap has forgotten */
} plain = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int enabled;

void lien_plain_enable(int on)
{
	__atomic_store_n(&enabled, on, __ATOMIC_RELAXED);
}

/* --- places ----------------------------------------------------------------------------------- */

struct device {
	int known;
	int usable;
	int rdma;
	uint64_t granularity;
};

static struct device devices[LIEN_PLAIN_DEVICES];

static CUmemAllocationProp prop_for(CUdevice device, int rdma)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
		.allocFlags = {.gpuDirectRDMACapable = rdma},
	};
}

LIEN_TRANSLATED static int has(CUdevice device, CUdevice_attribute attribute)
{
	int value = 0;

	return !LIEN_REAL(cuDeviceGetAttribute)(&value, attribute, device) && value;
}

LIEN_TRANSLATED static void ask_device(CUdevice device, struct device *found)
{
	CUmemAllocationProp prop;
	size_t granularity = 0;

	found->usable =
		has(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
		has(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
	if (!found->usable)
		return;
	found->rdma = has(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	prop = prop_for(device, found->rdma);
	if (LIEN_REAL(cuMemGetAllocationGranularity)(
		    &granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ||
		!granularity)
		found->usable = 0;
	found->granularity = granularity;
}

/* Threads that ask at the same time get the same answers. */
LIEN_TRANSLATED static struct device device_of(CUdevice device)
{
	struct device found = {0};

	if (device < 0 || device >= LIEN_PLAIN_DEVICES)
		return found;
	if (__atomic_load_n(&devices[device].known, __ATOMIC_ACQUIRE))
		return devices[device];
	ask_device(device, &found);
	pthread_mutex_lock(&plain.lock);
	devices[device].usable = found.usable;
	devices[device].rdma = found.rdma;
	devices[device].granularity = found.granularity;
	__atomic_store_n(&devices[device].known, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&plain.lock);
	return found;
}

/* cuCtxGetCurrent() does not tell whether the context is in order, and neither do the functions of
 * virtual memory. A question about the legacy default stream would invalidate captures. */
LIEN_TRANSLATED CUcontext lien_plain_current(void)
{
	CUcontext context = NULL;

	return LIEN_REAL(cuStreamGetCtx)(CU_STREAM_PER_THREAD, &context) ? NULL : context;
}

LIEN_TRANSLATED int lien_plain_place(struct lien_plain_place *place, const void *caller)
{
	struct device found;
	CUcontext context;
	CUdevice device;

	context = lien_plain_current();
	if (!enabled || !context || LIEN_REAL(cuCtxGetDevice)(&device))
		return 0;
	found = device_of(device);
	if (!found.usable || lien_plain_refused(context))
		return 0;
	lien_plain_use(device); /* the context may be one that the driver made by itself */
	memset(place, 0, sizeof(*place));
	place->key.context = (uintptr_t)context;
	place->key.device = device;
	place->key.asker = lien_plain_asker(caller);
	place->key.tag = lien_tag_number();
	place->granularity = found.granularity;
	place->rdma = found.rdma;
	return 1;
}

/* --- chunks ----------------------------------------------------------------------------------- */

LIEN_TRANSLATED CUresult lien_plain_unmap(struct lien_heap_range range)
{
	CUresult result = LIEN_REAL(cuMemUnmap)(range.base, range.bytes);

	/* The memory is gone: a failure only leaves the addresses unused. */
	if (!result)
		LIEN_REAL(cuMemAddressFree)(range.base, range.bytes);
	return result;
}

LIEN_TRANSLATED static CUresult set_access(
	struct lien_heap_range range, CUcontext context, CUdevice device)
{
	CUmemAccessDesc access[LIEN_PLAIN_DEVICES];

	return LIEN_REAL(cuMemSetAccess)(
		range.base, range.bytes, access, lien_plain_access(context, device, access));
}

LIEN_TRANSLATED CUresult lien_plain_allow(struct lien_heap_range range, CUdevice device)
{
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

	return LIEN_REAL(cuMemSetAccess)(range.base, range.bytes, &access, 1);
}

LIEN_TRANSLATED CUresult lien_plain_release(CUmemGenericAllocationHandle handle)
{
	CUresult result = lien_translate_cuMemRelease(handle);

	return result ? lien_translate_cuMemRelease(handle) : CUDA_SUCCESS;
}

LIEN_TRANSLATED CUresult lien_plain_map(CUmemGenericAllocationHandle handle, uint64_t bytes,
	CUcontext context, CUdevice device, CUdeviceptr *at)
{
	CUresult result = LIEN_REAL(cuMemAddressReserve)(at, bytes, 0, 0, 0), released;

	if (!result) {
		result = lien_translate_cuMemMap(*at, bytes, 0, handle, 0);
		if (result)
			LIEN_REAL(cuMemAddressFree)(*at, bytes);
	}
	if (result) {
		lien_plain_release(handle);
		return result;
	}
	result = set_access((struct lien_heap_range){*at, bytes}, context, device);
	released = lien_plain_release(handle);
	if (!result)
		result = released;
	if (result)
		lien_plain_unmap((struct lien_heap_range){*at, bytes});
	return result;
}

LIEN_TRANSLATED static CUresult make_chunk(
	const struct lien_plain_place *place, struct lien_heap_range *chunk)
{
	CUmemAllocationProp prop = prop_for(place->key.device, place->rdma);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at = 0;
	CUresult result;

	result = lien_translate_cuMemCreate(&handle, chunk->bytes, &prop, 0);
	if (!result)
		result = lien_plain_map(handle, chunk->bytes,
			(CUcontext)(uintptr_t)place->key.context, place->key.device, &at);
	chunk->base = at;
	return result;
}

/* --- blocks ----------------------------------------------------------------------------------- */

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

/* Makes a chunk for the block. */
LIEN_TRANSLATED static CUresult take_new(
	const struct lien_plain_place *place, uint64_t bytes, int least, CUdeviceptr *ptr)
{
	struct lien_heap_range chunk = {
		.bytes = lien_heap_chunk_bytes(&place->key, bytes, place->granularity, least)};
	const uint64_t used = lien_plain_used();
	struct lien_heap_block block;
	CUresult result;
	int err;

	if (!chunk.bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = make_chunk(place, &chunk);
	if (result)
		return result;
	pthread_mutex_lock(&plain.lock);
	err = lien_heap_add(&plain.heap, &place->key, chunk, bytes, &block);
	pthread_mutex_unlock(&plain.lock);
	if (err) {
		lien_plain_unmap(chunk);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	lien_plain_account(place->key.context, 0, chunk.bytes);
	/* Another thread began to use a device, and did not find this chunk. */
	if (used != lien_plain_used())
		set_access(chunk, (CUcontext)(uintptr_t)place->key.context, place->key.device);
	*ptr = block.address;
	return CUDA_SUCCESS;
}

LIEN_TRANSLATED CUresult lien_plain_take(
	const struct lien_plain_place *place, uint64_t bytes, CUdeviceptr *ptr)
{
	CUresult result;

	if (lien_plain_reuse(place, bytes, NULL, ptr))
		return CUDA_SUCCESS;
	result = take_new(place, bytes, 0, ptr);
	return result && place->key.pool ? take_new(place, bytes, 1, ptr) : result;
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
