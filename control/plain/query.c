// SPDX-License-Identifier: BSD-2-Clause
/* What the application can ask about an address. Some answers of the driver differ for virtual
 * memory: there ours say what holds for plain memory. */
#include <string.h>

#include "control/plain/memory.h"

/* Finds a block of ours, or an opened one of another process. */
static int find(CUdeviceptr address, struct lien_heap_block *block, int *opened)
{
	*opened = 0;
	if (lien_plain_find(address, block))
		return 1;
	*opened = lien_plain_find_opened(address, block);
	return *opened;
}

/* Plain memory of a device has no range and no device pointer while another device's context is
 * current, unless that has access to the memory's context. The driver knows, and says so of what it
 * keeps for us in that context (wait.c); memory of a pool is never seen by other devices. */
LIEN_TRANSLATED static CUresult reach(const struct lien_heap_block *block)
{
	const CUdeviceptr kept = lien_plain_wait_kept((CUcontext)(uintptr_t)block->key.context);
	CUdeviceptr base;
	CUdevice device;
	CUresult result;
	size_t bytes;

	if (kept)
		return LIEN_REAL(cuMemGetAddressRange_v2)(&base, &bytes, kept);
	result = LIEN_REAL(cuCtxGetDevice)(&device);
	if (result || device == block->key.device)
		return result;
	return CUDA_ERROR_NOT_FOUND;
}

/* The block has no device pointer there, whatever the driver says of virtual memory. */
LIEN_TRANSLATED static int is_out_of_reach(
	CUpointer_attribute attribute, const struct lien_heap_block *block, int opened)
{
	return attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER && !opened && reach(block);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemGetAddressRange_v2(
	CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	struct lien_heap_block block;
	CUresult result;
	int opened;

	if ((!base && !size) || !find(ptr, &block, &opened) || (opened && !lien_plain_current()))
		return LIEN_REAL(cuMemGetAddressRange_v2)(
			base, size, lien_plain_wait_keeps(ptr) ? 0 : ptr);
	result = opened ? CUDA_SUCCESS : reach(&block);
	if (result)
		return result;
	if (base)
		*base = block.address;
	if (size)
		*size = block.bytes;
	return CUDA_SUCCESS;
}

/* The driver counts its own from 1. */
#define FIRST_BUFFER (1ull << 48)

/* Returns the size of the attribute's value; 0: the driver answers. */
static size_t value_of(CUpointer_attribute attribute, const struct lien_heap_block *block,
	int opened, uint64_t *value)
{
	const int pool = block->key.pool;

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*value = pool ? 0 : block->key.context;
		return sizeof(CUcontext);
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*value = pool ? block->key.context : 0;
		return sizeof(CUmemoryPool);
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*value = block->sync_memops;
		return sizeof(unsigned int);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*value = FIRST_BUFFER + block->id;
		return sizeof(unsigned long long);
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*value = !opened && !pool;
		return sizeof(unsigned int);
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*value = block->address;
		return sizeof(CUdeviceptr);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*value = block->bytes;
		return sizeof(size_t);
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*value = 1;
		return sizeof(unsigned int);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*value = 0;
		return sizeof(unsigned long long);
	default:
		return 0;
	}
}

LIEN_TRANSLATED CUresult lien_plain_cuPointerGetAttribute(
	void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct lien_heap_block block;
	CUresult result;
	uint64_t value;
	size_t size;
	int opened, ours;

	ours = data && find(ptr, &block, &opened);
	size = ours ? value_of(attribute, &block, opened, &value) : 0;
	if (size) {
		memcpy(data, &value, size);
		return CUDA_SUCCESS;
	}
	result = LIEN_REAL(cuPointerGetAttribute)(data, attribute, ptr);
	return !result && ours && is_out_of_reach(attribute, &block, opened)
		       ? CUDA_ERROR_INVALID_VALUE
		       : result;
}

LIEN_TRANSLATED CUresult lien_plain_cuPointerGetAttributes(
	unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
	CUresult result = LIEN_REAL(cuPointerGetAttributes)(count, attributes, data, ptr);
	struct lien_heap_block block;
	unsigned int i;
	uint64_t value;
	size_t size;
	int opened;

	if (result || !find(ptr, &block, &opened))
		return result;
	for (i = 0; i < count; i++) {
		size = value_of(attributes[i], &block, opened, &value);
		if (is_out_of_reach(attributes[i], &block, opened)) {
			value = 0;
			size = sizeof(CUdeviceptr);
		}
		memcpy(data[i], &value, size);
	}
	return CUDA_SUCCESS;
}

/* The driver refuses virtual memory when it has checked everything else. */
LIEN_TRANSLATED CUresult lien_plain_cuPointerSetAttribute(
	const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	CUresult result = LIEN_REAL(cuPointerSetAttribute)(value, attribute, ptr);
	struct lien_heap_block block;
	int opened, on;

	if (result != CUDA_ERROR_NOT_SUPPORTED || !find(ptr, &block, &opened))
		return result;
	if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	on = *(const unsigned int *)value != 0;
	if (on)
		lien_plain_sync_memops_used();
	if (opened)
		lien_plain_set_opened_sync_memops(&block, on);
	else
		lien_plain_set_sync_memops(&block, on);
	return CUDA_SUCCESS;
}

/* The driver takes virtual memory for the host's. */
LIEN_TRANSLATED CUresult lien_plain_cuMemHostGetFlags(unsigned int *flags, void *host)
{
	CUresult result = LIEN_REAL(cuMemHostGetFlags)(flags, host);
	struct lien_heap_block block;
	int opened;

	return !result && find((uintptr_t)host, &block, &opened) ? CUDA_ERROR_INVALID_VALUE
								 : result;
}

LIEN_TRANSLATED CUresult lien_plain_cuMemHostGetDevicePointer_v2(
	CUdeviceptr *ptr, void *host, unsigned int flags)
{
	CUresult result = LIEN_REAL(cuMemHostGetDevicePointer_v2)(ptr, host, flags);
	struct lien_heap_block block;
	int opened;

	return !result && find((uintptr_t)host, &block, &opened) ? CUDA_ERROR_INVALID_VALUE
								 : result;
}

LIEN_EXPORT_AS(cuMemHostGetFlags, lien_plain_cuMemHostGetFlags);
LIEN_EXPORT_AS(cuMemHostGetDevicePointer_v2, lien_plain_cuMemHostGetDevicePointer_v2);
LIEN_EXPORT_AS(cuMemGetAddressRange_v2, lien_plain_cuMemGetAddressRange_v2);
LIEN_EXPORT_AS(cuPointerGetAttribute, lien_plain_cuPointerGetAttribute);
LIEN_EXPORT_AS(cuPointerGetAttributes, lien_plain_cuPointerGetAttributes);
LIEN_EXPORT_AS(cuPointerSetAttribute, lien_plain_cuPointerSetAttribute);
