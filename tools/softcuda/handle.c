/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocations, the handles that name them, and their export and import.
 *
 * A handle value is given out once in a process's life, so that the use of a stale one is seen: it
 * fails with CUDA_ERROR_INVALID_VALUE, and with LIEN_SOFTCUDA_STRICT=1 the process says so and
 * aborts. (The real driver leaves it undefined, and reuses values.) All processes count alike, so
 * that whoever takes a value for unique on a machine is found out.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "softcuda.h"

#define HANDLE_BASE 0x50f7000000000000ull
#define HANDLE_STEP 0x40ull

RB_HEAD(soft_handles, soft_allocation);

static struct soft_handles handles = RB_INITIALIZER(&handles);
static CUmemGenericAllocationHandle last_handle = HANDLE_BASE;

static int compare_handles(struct soft_allocation *a, struct soft_allocation *b)
{
	return a->handle < b->handle ? -1 : a->handle > b->handle;
}

SOFT_TREE(soft_handles, soft_allocation, node, compare_handles)

struct soft_allocation *soft_handle_use(CUmemGenericAllocationHandle handle, const char *call)
{
	struct soft_allocation key = {.handle = handle};
	struct soft_allocation *found = RB_FIND(soft_handles, &handles, &key);

	if (found && found->references)
		return found;
	if (soft.config.strict) {
		fprintf(stderr, "softcuda: %s: handle %#llx is %s\n", call, handle,
			handle > HANDLE_BASE && handle <= last_handle ? "stale" : "unknown");
		abort();
	}
	return NULL;
}

static void adopt(struct soft_allocation *allocation)
{
	last_handle += HANDLE_STEP;
	allocation->handle = last_handle;
	RB_INSERT(soft_handles, &handles, allocation);
}

CUresult soft_allocation_create(
	struct soft_allocation **created, size_t size, const CUmemAllocationProp *prop)
{
	struct soft_allocation *allocation = calloc(1, sizeof(*allocation));

	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation->fd = soft_backing_create(prop, size);
	if (allocation->fd < 0) {
		CUresult result = soft_result(allocation->fd);

		free(allocation);
		return result;
	}
	allocation->size = size;
	allocation->prop = *prop;
	allocation->prop.win32HandleMetaData = NULL;
	*created = allocation;
	return CUDA_SUCCESS;
}

void soft_allocation_put(struct soft_allocation *allocation)
{
	if (allocation->references || allocation->mappings)
		return;
	if (allocation->handle)
		RB_REMOVE(soft_handles, &handles, allocation);
	if (allocation->fd >= 0)
		close(allocation->fd);
	free(allocation);
}

void soft_handles_forked(void)
{
	struct soft_allocation *allocation;

	RB_FOREACH (allocation, soft_handles, &handles) {
		close(allocation->fd);
		allocation->fd = -1;
	}
}

static bool location_ok(const CUmemAllocationProp *prop, CUresult *why)
{
	*why = CUDA_ERROR_INVALID_VALUE;
	switch (prop->location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		*why = CUDA_ERROR_INVALID_DEVICE;
		return soft_device_ok(prop->location.id);
	case CU_MEM_LOCATION_TYPE_HOST: /* "not IPC capable" */
		return prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return prop->location.id >= 0 && prop->location.id < 1024;
	default:
		return false;
	}
}

bool soft_prop_ok(const CUmemAllocationProp *prop, CUresult *why)
{
	*why = CUDA_ERROR_INVALID_VALUE;
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return false;
	if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) {
		*why = CUDA_ERROR_NOT_SUPPORTED;
		return false;
	}
	if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return false;
	/* The flags that cuda.h names; they have to survive an export. */
	if (prop->allocFlags.compressionType > 1 || prop->allocFlags.gpuDirectRDMACapable > 1 ||
		prop->allocFlags.usage > 1)
		return false;
	return location_ok(prop, why);
}

SOFT_EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity,
	const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
	CUresult why;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!granularity || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
				    option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
		return CUDA_ERROR_INVALID_VALUE;
	if (!soft_prop_ok(prop, &why))
		return why;
	*granularity = SOFT_GRANULARITY;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct soft_allocation *allocation = NULL;
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!handle || !size || size % SOFT_GRANULARITY || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!soft_prop_ok(prop, &result))
		return result;
	/* The slow part, and it needs no lock: other threads go on while the pages are taken. */
	result = soft_allocation_create(&allocation, size, prop);
	if (result)
		return result;
	allocation->references = 1;
	pthread_rwlock_wrlock(&soft.lock);
	adopt(allocation);
	*handle = allocation->handle;
	pthread_rwlock_unlock(&soft.lock);
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct soft_allocation *allocation;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_rwlock_wrlock(&soft.lock);
	allocation = soft_handle_use(handle, "cuMemRelease");
	if (allocation) {
		allocation->references--;
		soft_allocation_put(allocation);
	}
	pthread_rwlock_unlock(&soft.lock);
	return allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SOFT_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct soft_mapping *mapping;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&soft.lock);
	mapping = soft_mapping_find((uintptr_t)addr);
	if (mapping && mapping->allocation->handle) {
		mapping->allocation->references++;
		*handle = mapping->allocation->handle;
		result = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(
	CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	struct soft_allocation *allocation;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!prop)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&soft.lock);
	allocation = soft_handle_use(handle, "cuMemGetAllocationPropertiesFromHandle");
	if (allocation)
		*prop = allocation->prop;
	pthread_rwlock_unlock(&soft.lock);
	return allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_share_type(CUmemAllocationHandleType type)
{
	if (type == CU_MEM_HANDLE_TYPE_FABRIC)
		return CUDA_ERROR_NOT_SUPPORTED;
	return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_SUCCESS
								: CUDA_ERROR_INVALID_VALUE;
}

SOFT_EXPORT CUresult cuMemExportToShareableHandle(void *shareable,
	CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
	unsigned long long flags)
{
	struct soft_allocation *allocation;
	CUresult result;
	int fd;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!shareable || flags)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_share_type(type);
	if (result)
		return result;
	pthread_rwlock_rdlock(&soft.lock);
	allocation = soft_handle_use(handle, "cuMemExportToShareableHandle");
	if (allocation && (allocation->prop.requestedHandleTypes & type)) {
		fd = soft_backing_reopen(allocation->fd);
		/* An fd that the program closed behind our back is no bad argument of its. */
		result = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
		if (!result)
			*(int *)shareable = fd;
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type)
{
	struct soft_allocation *allocation;
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_share_type(type);
	if (result)
		return result;
	allocation = calloc(1, sizeof(*allocation));
	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation->fd = soft_backing_import(
		(int)(uintptr_t)os_handle, &allocation->prop, &allocation->size);
	if (allocation->fd < 0) {
		result = soft_result(allocation->fd);
		free(allocation);
		return result;
	}
	allocation->references = 1;
	pthread_rwlock_wrlock(&soft.lock);
	adopt(allocation);
	*handle = allocation->handle;
	pthread_rwlock_unlock(&soft.lock);
	return CUDA_SUCCESS;
}

/* These devices have no multicast; but a stale memory handle is told apart from that. */
SOFT_EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
	unsigned long long flags)
{
	bool known;

	(void)multicast;
	(void)offset;
	(void)memory_offset;
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!size || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&soft.lock);
	known = soft_handle_use(memory, "cuMulticastBindMem");
	pthread_rwlock_unlock(&soft.lock);
	return known ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}
