/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * cuMemGetHandleForAddressRange: a descriptor for a network card's driver. There is neither, so it
 * is an empty memfd, which holds nothing but itself.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "softcuda.h"

/* All of a range: of one cuMemAlloc, or of mappings side by side on one device and of one sort. */
static bool range_ok(uintptr_t base, size_t size)
{
	struct soft_mapping *mapping = soft_mapping_find(base), *first = mapping;
	uintptr_t end = base + size;

	if (end < base || !mapping)
		return false;
	if (mapping->kind == SOFT_PLAIN || mapping->kind == SOFT_PITCH)
		return size <= mapping->size - (base - mapping->base);
	for (; mapping && mapping->kind == SOFT_VMM && mapping->range == first->range;
		mapping = soft_mapping_next(mapping)) {
		if (mapping->allocation->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
			memcmp(&mapping->allocation->prop, &first->allocation->prop,
				sizeof(first->allocation->prop)))
			return false;
		if (end - mapping->base <= mapping->size)
			return true;
		if (!soft_mapping_next(mapping) ||
			soft_mapping_next(mapping)->base != mapping->base + mapping->size)
			return false;
	}
	return false;
}

SOFT_EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t size,
	CUmemRangeHandleType type, unsigned long long flags)
{
	size_t page = sysconf(_SC_PAGESIZE), host_size;
	bool known, host;
	CUcontext context;
	uintptr_t base;
	int fd;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!handle || !size || ptr % page || size % page ||
		type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
		flags & ~(unsigned long long)CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags)
		return CUDA_ERROR_NOT_SUPPORTED; /* no PCIe here */
	pthread_rwlock_rdlock(&soft.lock);
	known = range_ok(ptr, size);
	host = soft_host_find(ptr, &base, &host_size, &context);
	pthread_rwlock_unlock(&soft.lock);
	if (!known)
		return host ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	fd = memfd_create("lien-softcuda-dmabuf", MFD_CLOEXEC);
	if (fd < 0)
		return soft_result(errno);
	*(int *)handle = fd;
	return CUDA_SUCCESS;
}
