/* SPDX-License-Identifier: BSD-2-Clause */
/* What can be asked about an address. */
#include <string.h>

#include "softcuda.h"

struct described {
	CUmemorytype type;
	uintptr_t base;
	size_t size;
	CUcontext context;
	struct soft_mapping *mapping; /* NULL: pinned host memory */
	bool bound;		      /* to its device, or to contexts with access to its own */
	int device;
};

static bool is_host(const struct soft_mapping *mapping)
{
	CUmemLocationType type = mapping->allocation->prop.location.type;

	return !mapping->allocation->multicast && type != CU_MEM_LOCATION_TYPE_DEVICE;
}

/* soft.lock held. False where an address is no memory that CUDA knows. */
static bool describe(uintptr_t address, struct described *found)
{
	struct soft_mapping *mapping = soft_mapping_find(address);

	*found = (struct described){.type = CU_MEMORYTYPE_HOST};
	if (mapping && address - mapping->base < mapping->bytes) {
		found->mapping = mapping;
		found->base = mapping->base;
		found->size = mapping->bytes;
		found->context = mapping->context;
		found->type = is_host(mapping) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		found->bound = mapping->kind == SOFT_PLAIN || mapping->kind == SOFT_PITCH ||
			       mapping->kind == SOFT_ASYNC;
		found->device = mapping->allocation->prop.location.id;
		return true;
	}
	return soft_host_find(address, &found->base, &found->size, &found->context);
}

/* Seen (580.159): plain memory has no range and no device pointer while another device's context is
 * current that has no access to its context; a pool's never while another device's is. */
static CUresult reach(const struct described *found, bool known)
{
	CUcontext context;
	CUresult result = soft_context_current(&context);

	if (result)
		return result;
	if (!known)
		return CUDA_ERROR_NOT_FOUND;
	return !found->bound || found->device == context->device ||
			       (found->context && soft_peer_access(context, found->context))
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_NOT_FOUND;
}

SOFT_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	struct described found;
	CUresult result;
	bool known;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!base && !size) /* any address, even without a context (measured, driver 580.159) */
		return CUDA_SUCCESS;
	pthread_rwlock_rdlock(&soft.lock);
	known = describe(ptr, &found);
	pthread_rwlock_unlock(&soft.lock);
	result = reach(&found, known);
	if (result)
		return result;
	if (base)
		*base = found.base;
	if (size)
		*size = found.size;
	return CUDA_SUCCESS;
}

/* One attribute each: the value, or false where the memory has none. */
static bool get_context(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	(void)ptr;
	*value = (uintptr_t)of->context;
	return true;
}

static bool get_type(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	(void)ptr;
	*value = of->type;
	return true;
}

static bool get_device_pointer(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	(void)of;
	*value = ptr;
	return true;
}

static bool is_managed(const struct described *of)
{
	return of->mapping && of->mapping->kind == SOFT_MANAGED;
}

static bool get_host_pointer(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	*value = ptr;
	return of->type == CU_MEMORYTYPE_HOST || is_managed(of);
}

/* Seen (580.159): set for managed memory from the beginning, and never for virtual memory. */
static bool get_sync_memops(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	(void)ptr;
	*value = of->mapping && (of->mapping->sync_memops || is_managed(of));
	return true;
}

static bool get_buffer(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	*value = of->mapping ? of->mapping->buffer : soft_host_buffer(ptr);
	return true;
}

static bool get_managed(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	(void)ptr;
	*value = is_managed(of);
	return true;
}

static bool get_ordinal(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	(void)ptr;
	if (of->mapping && of->mapping->allocation->multicast)
		return false;
	if (!of->mapping)
		*value = of->context->device;
	else if (of->type == CU_MEMORYTYPE_HOST)
		*value = (uint32_t)CU_DEVICE_CPU;
	else
		*value = of->mapping->allocation->prop.location.id;
	return true;
}

static bool get_ipc(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	(void)ptr;
	*value =
		of->mapping && (of->mapping->kind == SOFT_PLAIN || of->mapping->kind == SOFT_PITCH);
	return true;
}

static bool get_start(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	(void)ptr;
	*value = of->base;
	if (of->mapping && of->mapping->kind == SOFT_VMM)
		*value = of->mapping->range->base;
	return true;
}

static bool get_size(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	(void)ptr;
	*value = of->size;
	if (of->mapping && of->mapping->kind == SOFT_VMM)
		*value = of->mapping->range->size;
	return true;
}

static bool get_mapped(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	(void)of;
	(void)ptr;
	*value = 1;
	return true;
}

static bool get_handle_types(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	(void)ptr;
	*value = of->mapping && of->mapping->kind == SOFT_VMM
			 ? of->mapping->allocation->prop.requestedHandleTypes
			 : 0;
	return true;
}

static bool get_pool(const struct described *of, CUdeviceptr ptr, uint64_t *value)
{
	(void)ptr;
	*value = of->mapping ? (uintptr_t)of->mapping->pool : 0;
	return true;
}

static const struct attribute {
	CUpointer_attribute number;
	size_t size; /* of the caller's variable */
	bool (*get)(const struct described *of, CUdeviceptr ptr, uint64_t *value);
} attributes[] = {
	{CU_POINTER_ATTRIBUTE_CONTEXT, sizeof(CUcontext), get_context},
	{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, sizeof(unsigned int), get_type},
	{CU_POINTER_ATTRIBUTE_DEVICE_POINTER, sizeof(CUdeviceptr), get_device_pointer},
	{CU_POINTER_ATTRIBUTE_HOST_POINTER, sizeof(void *), get_host_pointer},
	{CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, sizeof(unsigned int), get_sync_memops},
	{CU_POINTER_ATTRIBUTE_BUFFER_ID, sizeof(unsigned long long), get_buffer},
	{CU_POINTER_ATTRIBUTE_IS_MANAGED, sizeof(unsigned int), get_managed},
	{CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, sizeof(int), get_ordinal},
	{CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, sizeof(unsigned int), get_ipc},
	{CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, sizeof(CUdeviceptr), get_start},
	{CU_POINTER_ATTRIBUTE_RANGE_SIZE, sizeof(size_t), get_size},
	{CU_POINTER_ATTRIBUTE_MAPPED, sizeof(unsigned int), get_mapped},
	{CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, sizeof(unsigned long long), get_handle_types},
	{CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, sizeof(CUmemoryPool), get_pool},
};

static const struct attribute *find(CUpointer_attribute number)
{
	for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
		if (attributes[i].number == number)
			return &attributes[i];
	}
	return NULL;
}

SOFT_EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute number, CUdeviceptr ptr)
{
	const struct attribute *attribute = find(number);
	CUresult result = CUDA_SUCCESS;
	struct described found;
	uint64_t value = 0;
	bool has;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!data || !attribute)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&soft.lock);
	has = describe(ptr, &found) && attribute->get(&found, ptr, &value);
	pthread_rwlock_unlock(&soft.lock);
	if (number == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
		result = reach(&found, has);
	if (result == CUDA_ERROR_INVALID_CONTEXT)
		return result;
	if (!has || result)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(data, &value, attribute->size);
	return CUDA_SUCCESS;
}

/* Unlike the other one: no error for an address that is no memory, but zeros. */
SOFT_EXPORT CUresult cuPointerGetAttributes(
	unsigned int count, CUpointer_attribute *numbers, void **data, CUdeviceptr ptr)
{
	struct described found;
	bool known, reached;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!count || !numbers || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < count; i++) {
		if (!data[i] || !find(numbers[i]))
			return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_rwlock_rdlock(&soft.lock);
	known = describe(ptr, &found);
	pthread_rwlock_unlock(&soft.lock);
	reached = !reach(&found, known);
	pthread_rwlock_rdlock(&soft.lock);
	known = describe(ptr, &found);
	for (unsigned int i = 0; i < count; i++) {
		const struct attribute *attribute = find(numbers[i]);
		uint64_t value = 0;

		if (!known || !attribute->get(&found, ptr, &value) ||
			(attribute->number == CU_POINTER_ATTRIBUTE_DEVICE_POINTER && !reached))
			value = 0;
		memcpy(data[i], &value, attribute->size);
	}
	pthread_rwlock_unlock(&soft.lock);
	return CUDA_SUCCESS;
}

/* Seen (580.159). Pinned memory forgets what is set. */
SOFT_EXPORT CUresult cuPointerSetAttribute(
	const void *value, CUpointer_attribute number, CUdeviceptr ptr)
{
	struct described found;
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	result = soft_capture_unsafe();
	if (result)
		return result;
	pthread_rwlock_wrlock(&soft.lock);
	if (!describe(ptr, &found))
		result = CUDA_ERROR_INVALID_VALUE;
	else if (found.mapping && found.mapping->kind == SOFT_VMM)
		result = CUDA_ERROR_NOT_SUPPORTED;
	else if (number != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (found.mapping)
		found.mapping->sync_memops = *(const unsigned int *)value != 0;
	pthread_rwlock_unlock(&soft.lock);
	return result;
}
