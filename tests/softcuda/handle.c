/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocations, the handles that name them, and their export and import.
 *
 * A handle's value is given out again at once when nothing is left of the allocation (reuse.c), and
 * a stale one fails with CUDA_ERROR_INVALID_VALUE only until then. With LIEN_SOFTCUDA_STRICT=1 a
 * value is given out once in a process's life, and a process that uses a stale one says so and
 * aborts. (The real driver leaves it undefined, and reuses values.) All processes count alike, so
 * that whoever takes a value for unique on a machine is found out.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "softcuda.h"

#define HANDLE_BASE 0x50f7000000000000ull
#define HANDLE_STEP 0x40ull

RB_HEAD(soft_handles, soft_allocation);

static struct soft_handles handles = RB_INITIALIZER(&handles);
static LIST_HEAD(soft_allocations, soft_allocation) allocations = LIST_HEAD_INITIALIZER(
	allocations);
static CUmemGenericAllocationHandle last_handle = HANDLE_BASE;
static struct soft_freed freed_handles;

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
	/* Refused and no more, by NVIDIA's as well: whoever gives back one reference too many of
	 * memory that is still mapped can tell by that how many there were. */
	if (soft.config.strict && !(found && found->mappings && !strcmp(call, "cuMemRelease"))) {
		fprintf(stderr, "softcuda: %s: handle %#llx is %s\n", call, handle,
			handle > HANDLE_BASE && handle <= last_handle ? "stale" : "unknown");
		abort();
	}
	return NULL;
}

CUmemGenericAllocationHandle soft_allocation_adopt(struct soft_allocation *allocation)
{
	uint64_t value;

	if (!soft_freed_pop(&freed_handles, &value))
		value = last_handle += HANDLE_STEP;
	allocation->handle = value;
	allocation->references = 1;
	RB_INSERT(soft_handles, &handles, allocation);
	return value;
}

/* A bit for each descriptor that an allocation has. */
static _Atomic uint64_t own_fds[1 << 14];

static _Atomic uint64_t *own_bits(int fd)
{
	const size_t at = (size_t)fd / 64;

	return fd >= 0 && at < sizeof(own_fds) / sizeof(own_fds[0]) ? &own_fds[at] : NULL;
}

bool soft_allocation_has_fd(int fd)
{
	return own_bits(fd) && *own_bits(fd) >> fd % 64 & 1;
}

CUresult soft_allocation_wrap(
	struct soft_allocation **made, int fd, size_t size, const CUmemAllocationProp *prop)
{
	struct soft_allocation *allocation = calloc(1, sizeof(*allocation));

	if (!allocation) {
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	allocation->fd = fd;
	if (own_bits(fd))
		*own_bits(fd) |= 1ull << fd % 64;
	allocation->size = size;
	allocation->number = soft_backing_number(fd);
	allocation->prop = *prop;
	allocation->prop.win32HandleMetaData = NULL;
	*made = allocation;
	return CUDA_SUCCESS;
}

CUresult soft_allocation_create(
	struct soft_allocation **created, size_t size, const CUmemAllocationProp *prop)
{
	int fd = soft_backing_create(prop, size);

	return fd < 0 ? soft_result(fd) : soft_allocation_wrap(created, fd, size, prop);
}

void soft_allocation_list(struct soft_allocation *allocation)
{
	LIST_INSERT_HEAD(&allocations, allocation, entry);
}

struct soft_allocation *soft_allocation_first(void)
{
	return LIST_FIRST(&allocations);
}

void soft_allocation_hide(struct soft_allocation *allocation)
{
	if (own_bits(allocation->fd))
		*own_bits(allocation->fd) &= ~(1ull << allocation->fd % 64);
	if (allocation->fd >= 0)
		close(allocation->fd);
	allocation->fd = -1;
}

void soft_allocation_put(struct soft_allocation *allocation)
{
	if (allocation->references || allocation->mappings || allocation->bindings)
		return;
	if (allocation->handle) {
		RB_REMOVE(soft_handles, &handles, allocation);
		soft_freed_push(&freed_handles, allocation->handle);
	}
	LIST_REMOVE(allocation, entry);
	if (allocation->multicast)
		soft_multicast_free(allocation);
	soft_allocation_hide(allocation);
	free(allocation);
}

void soft_handles_forked(void)
{
	struct soft_allocation *allocation;

	LIST_FOREACH (allocation, &allocations, entry)
		soft_allocation_hide(allocation);
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
	if (prop->requestedHandleTypes & ~SOFT_HANDLE_TYPES)
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

	SOFT_FAULT();
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

	SOFT_FAULT();
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
	pthread_rwlock_wrlock(&soft.lock);
	soft_allocation_list(allocation);
	*handle = soft_allocation_adopt(allocation);
	pthread_rwlock_unlock(&soft.lock);
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct soft_allocation *allocation;

	SOFT_FAULT();
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

	SOFT_FAULT();
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

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!prop)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&soft.lock);
	allocation = soft_handle_use(handle, "cuMemGetAllocationPropertiesFromHandle");
	if (allocation && allocation->multicast)
		allocation = NULL; /* it is no allocation of cuMemCreate's */
	if (allocation)
		*prop = allocation->prop;
	pthread_rwlock_unlock(&soft.lock);
	return allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
