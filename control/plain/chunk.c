// SPDX-License-Identifier: BSD-2-Clause
/* Where memory of ours can be, and the chunks that are made there. */
#include <string.h>

#include "control/plain/memory.h"
#include "control/tag/tag.h"

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
	lien_plain_lock();
	devices[device].usable = found.usable;
	devices[device].rdma = found.rdma;
	devices[device].granularity = found.granularity;
	__atomic_store_n(&devices[device].known, 1, __ATOMIC_RELEASE);
	lien_plain_unlock();
	return found;
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

LIEN_TRANSLATED static CUresult set_access(struct lien_heap_range range, CUdevice device, int pool)
{
	CUmemAccessDesc access[LIEN_PLAIN_DEVICES];

	return LIEN_REAL(cuMemSetAccess)(
		range.base, range.bytes, access, lien_plain_access(device, pool, access));
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
	CUdevice device, int pool, CUdeviceptr *at)
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
	result = set_access((struct lien_heap_range){*at, bytes}, device, pool);
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
		result = lien_plain_map(
			handle, chunk->bytes, place->key.device, place->key.pool, &at);
	chunk->base = at;
	return result;
}

/* Makes a chunk for the block. */
LIEN_TRANSLATED static CUresult take_new(const struct lien_plain_place *place, uint64_t bytes,
	int least, uint64_t *made, CUdeviceptr *ptr)
{
	struct lien_heap_range chunk = {
		.bytes = lien_heap_chunk_bytes(&place->key, bytes, place->granularity, least)};
	const uint64_t used = lien_plain_used();
	struct lien_heap_block block;
	CUresult result;

	if (!chunk.bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = make_chunk(place, &chunk);
	if (result)
		return result;
	if (lien_plain_add(&place->key, chunk, bytes, &block)) {
		lien_plain_unmap(chunk);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (made)
		*made = chunk.bytes;
	/* Another thread began to use a device, and did not find this chunk. */
	if (used != lien_plain_used())
		set_access(chunk, place->key.device, place->key.pool);
	*ptr = block.address;
	return CUDA_SUCCESS;
}

LIEN_TRANSLATED CUresult lien_plain_take(
	const struct lien_plain_place *place, uint64_t bytes, uint64_t *made, CUdeviceptr *ptr)
{
	CUresult result;

	if (lien_plain_reuse(place, bytes, NULL, ptr))
		return CUDA_SUCCESS;
	result = take_new(place, bytes, 0, made, ptr);
	return result && place->key.pool ? take_new(place, bytes, 1, made, ptr) : result;
}
