// SPDX-License-Identifier: BSD-2-Clause
/* What the application can ask about an address. Some answers of the driver differ for virtual
 * memory: there ours say what holds for plain memory. */
#include <string.h>

#include "control/plain/memory.h"

/* Plain memory of a device has no range and no device pointer while another device's context is
 * current, unless that has access to the memory's context. The driver knows, and says so of what it
 * keeps for us in that context (context.c); memory of a pool is never seen by other devices. */
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
	CUpointer_attribute attribute, const struct lien_heap_block *block)
{
	return attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER && !lien_plain_is_opened(block) &&
	       reach(block);
}

static LIEN_PLAIN(cuMemGetAddressRange_v2, CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	struct lien_heap_block block;
	CUresult result;

	if ((!base && !size) || !lien_plain_find(ptr, &block) ||
		(lien_plain_is_opened(&block) && !lien_plain_current()))
		return LIEN_REAL(cuMemGetAddressRange_v2)(
			base, size, lien_plain_wait_keeps(ptr) ? 0 : ptr);
	result = lien_plain_is_opened(&block) ? CUDA_SUCCESS : reach(&block);
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
static size_t value_of(
	CUpointer_attribute attribute, const struct lien_heap_block *block, uint64_t *value)
{
	const uint64_t pool = block->key.pool ? block->key.context : 0;
	const struct {
		size_t size;
		uint64_t value;
	} values[] = {
		[CU_POINTER_ATTRIBUTE_CONTEXT] = {8, pool ? 0 : block->key.context},
		[CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE] = {8, pool},
		[CU_POINTER_ATTRIBUTE_SYNC_MEMOPS] = {4, block->sync_memops},
		[CU_POINTER_ATTRIBUTE_BUFFER_ID] = {8, FIRST_BUFFER + block->id},
		[CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE] = {4,
			!lien_plain_is_opened(block) && !pool},
		[CU_POINTER_ATTRIBUTE_RANGE_START_ADDR] = {8, block->address},
		[CU_POINTER_ATTRIBUTE_RANGE_SIZE] = {8, block->bytes},
		[CU_POINTER_ATTRIBUTE_MAPPED] = {4, 1},
		[CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES] = {8, 0},
	};

	if ((unsigned)attribute >= sizeof(values) / sizeof(values[0]))
		return 0;
	*value = values[attribute].value;
	return values[attribute].size;
}

static LIEN_PLAIN(cuPointerGetAttribute, void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct lien_heap_block block;
	CUresult result;
	uint64_t value;
	int ours = data && lien_plain_find(ptr, &block);
	size_t size = ours ? value_of(attribute, &block, &value) : 0;

	if (size) {
		memcpy(data, &value, size);
		return CUDA_SUCCESS;
	}
	result = LIEN_REAL(cuPointerGetAttribute)(data, attribute, ptr);
	return !result && ours && is_out_of_reach(attribute, &block) ? CUDA_ERROR_INVALID_VALUE
								     : result;
}

static LIEN_PLAIN(cuPointerGetAttributes, unsigned int count, CUpointer_attribute *attributes,
	void **data, CUdeviceptr ptr)
{
	CUresult result = LIEN_REAL(cuPointerGetAttributes)(count, attributes, data, ptr);
	struct lien_heap_block block;
	unsigned int i;
	uint64_t value;
	size_t size;

	if (result || !lien_plain_find(ptr, &block))
		return result;
	for (i = 0; i < count; i++) {
		size = value_of(attributes[i], &block, &value);
		if (is_out_of_reach(attributes[i], &block)) {
			value = 0;
			size = sizeof(CUdeviceptr);
		}
		memcpy(data[i], &value, size);
	}
	return CUDA_SUCCESS;
}

/* The driver refuses virtual memory when it has checked everything else. */
static LIEN_PLAIN(
	cuPointerSetAttribute, const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	CUresult result = LIEN_REAL(cuPointerSetAttribute)(value, attribute, ptr);
	struct lien_heap_block block;

	if (result != CUDA_ERROR_NOT_SUPPORTED || !lien_plain_find(ptr, &block))
		return result;
	if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	lien_plain_set_sync_memops(&block, *(const unsigned int *)value != 0);
	return CUDA_SUCCESS;
}

/* The driver takes virtual memory for the host's. */
static CUresult not_hosts(CUresult result, const void *host)
{
	struct lien_heap_block block;

	return !result && lien_plain_find((uintptr_t)host, &block) ? CUDA_ERROR_INVALID_VALUE
								   : result;
}

static LIEN_PLAIN(cuMemHostGetFlags, unsigned int *flags, void *host)
{
	return not_hosts(LIEN_REAL(cuMemHostGetFlags)(flags, host), host);
}

static LIEN_PLAIN(cuMemHostGetDevicePointer_v2, CUdeviceptr *ptr, void *host, unsigned int flags)
{
	return not_hosts(LIEN_REAL(cuMemHostGetDevicePointer_v2)(ptr, host, flags), host);
}

/* --- beginning and end ------------------------------------------------------------------------ */

static int is_plain(CUdeviceptr address)
{
	struct lien_heap_block block;

	return lien_plain_find(address, &block);
}

void lien_plain_start(void)
{
	if (!lien_interpose_has_plain())
		return;
	__atomic_store_n(&lien_plain_enabled, 1, __ATOMIC_RELAXED);
	lien_translate_is_plain = is_plain;
}

void lien_plain_stop(void)
{
	__atomic_store_n(&lien_plain_enabled, 0, __ATOMIC_RELAXED);
}
