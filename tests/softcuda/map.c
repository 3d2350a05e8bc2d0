/* SPDX-License-Identifier: BSD-2-Clause */
/* The driver's calls on addresses: reserve, map, set access, and back. */
#include <errno.h>
#include <sys/mman.h>

#include "softcuda.h"

static bool whole(size_t value)
{
	return !(value % SOFT_GRANULARITY);
}

SOFT_EXPORT CUresult cuMemAddressReserve(
	CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)
{
	struct soft_range *range;
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!ptr || !size || !whole(size) || alignment & (alignment - 1) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&soft.lock);
	result = soft_range_reserve(&range, size, alignment, addr, false);
	if (!result)
		*ptr = range->base;
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct soft_range *range;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_rwlock_wrlock(&soft.lock);
	range = soft_range_find(ptr);
	if (range && range->base == ptr && range->size == size && !range->mappings &&
		!range->internal)
		result = soft_range_release(range);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

static CUresult map(uintptr_t base, size_t size, CUmemGenericAllocationHandle handle)
{
	struct soft_allocation *allocation = soft_handle_use(handle, "cuMemMap");
	struct soft_mapping *mapping;
	struct soft_range *range;

	if (!allocation || size > allocation->size)
		return CUDA_ERROR_INVALID_VALUE;
	range = soft_range_find(base);
	if (!range || range->internal || size > range->size - (base - range->base))
		return CUDA_ERROR_INVALID_VALUE;
	mapping = soft_mapping_from(base);
	/* cuda.h has no error of its own for an address that is mapped already. */
	if (mapping && mapping->base < base + size)
		return CUDA_ERROR_INVALID_VALUE;
	return soft_mapping_create(&mapping, range, base, size, allocation);
}

SOFT_EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!size || !whole(size) || !whole(ptr) || offset || flags || ptr + size < ptr)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&soft.lock);
	result = soft_multicast_wait(handle, "cuMemMap");
	if (!result)
		result = map(ptr, size, handle);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

/* The mappings of cuMemMap that make up exactly this range. */
static bool vmm_span(
	uintptr_t base, size_t size, struct soft_mapping **first, struct soft_mapping **end)
{
	if (!soft_mapping_span(base, size, first, end))
		return false;
	for (struct soft_mapping *m = *first; m != *end; m = soft_mapping_next(m)) {
		if (m->kind != SOFT_VMM)
			return false;
	}
	return true;
}

SOFT_EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct soft_mapping *first, *end;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_rwlock_wrlock(&soft.lock);
	if (vmm_span(ptr, size, &first, &end))
		result = soft_mapping_remove(first, end);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

static bool on_host(const struct soft_mapping *mapping)
{
	return !mapping->allocation->multicast &&
	       mapping->allocation->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
}

CUresult soft_access_slot(const CUmemLocation *location, int *slot)
{
	switch (location->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		*slot = location->id;
		return soft_device_ok(*slot) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		*slot = SOFT_MAX_DEVICES;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

bool soft_access_flags_ok(CUmemAccess_flags flags)
{
	return flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
	       flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static CUresult check_access(const struct soft_mapping *first, const struct soft_mapping *end,
	const CUmemAccessDesc *desc, size_t count)
{
	CUresult result;
	int slot;

	for (size_t i = 0; i < count; i++) {
		result = soft_access_slot(&desc[i].location, &slot);
		if (result)
			return result;
		if (!soft_access_flags_ok(desc[i].flags))
			return CUDA_ERROR_INVALID_VALUE;
		if (slot < SOFT_MAX_DEVICES)
			continue;
		/* The host may be given access to host memory only. */
		for (const struct soft_mapping *m = first; m != end;
			m = soft_mapping_next((struct soft_mapping *)m)) {
			if (!on_host(m))
				return CUDA_ERROR_INVALID_VALUE;
		}
	}
	return CUDA_SUCCESS;
}

static CUresult protect(uintptr_t from, uintptr_t to, int prot)
{
	if (from == to)
		return CUDA_SUCCESS;
	return mprotect((void *)from, to - from, prot) ? soft_result(errno) : CUDA_SUCCESS;
}

/* Neighbours that get the same protection share a call: one per 2 MiB piece would be slow. */
static CUresult set_access(struct soft_mapping *first, struct soft_mapping *end,
	const CUmemAccessDesc *desc, size_t count)
{
	uintptr_t from = first->base, to = from;
	int prot = -1, slot = 0, wanted;
	CUresult result;

	for (struct soft_mapping *m = first; m != end; m = soft_mapping_next(m)) {
		for (size_t i = 0; i < count; i++) {
			soft_access_slot(&desc[i].location, &slot);
			m->access[slot] = desc[i].flags;
		}
		wanted = soft_mapping_prot(m);
		if (wanted != prot) {
			result = protect(from, to, prot);
			if (result)
				return result;
			from = m->base;
			prot = wanted;
		}
		to = m->base + m->size;
	}
	return protect(from, to, prot);
}

SOFT_EXPORT CUresult cuMemSetAccess(
	CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct soft_mapping *first, *end;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!desc || !count)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&soft.lock);
	if (vmm_span(ptr, size, &first, &end)) {
		result = check_access(first, end, desc, count);
		if (!result)
			result = set_access(first, end, desc, count);
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuMemGetAccess(
	unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	struct soft_mapping *mapping;
	CUresult result;
	int slot;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	result = soft_access_slot(location, &slot);
	if (result)
		return result;
	pthread_rwlock_rdlock(&soft.lock);
	mapping = soft_mapping_find(ptr);
	if (mapping && mapping->kind == SOFT_VMM)
		*flags = mapping->access[slot];
	else
		result = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_unlock(&soft.lock);
	return result;
}
