/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Pools and their memory between processes. What is exported of a pool is a memfd that says what it
 * is; of an allocation, 64 bytes that say where its file is.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "peer.h"

#define POOL_NAME "lien-softcuda-pool-"
#define POOL_FILE 4096

struct pool_file {
	CUmemPoolProps props;
	int physical; /* the device as all processes number it, -1: host memory */
};

static struct pool_file *look_into(int fd, int protection)
{
	void *at = mmap(NULL, POOL_FILE, protection, MAP_SHARED, fd, 0);

	return at == MAP_FAILED ? NULL : at;
}

CUresult soft_pool_make_shareable(CUmemoryPool pool)
{
	struct pool_file *file;

	pool->fd = soft_backing_memfd(POOL_NAME, getpid(), pool->props.handleTypes, POOL_FILE);
	file = pool->fd < 0 ? NULL : look_into(pool->fd, PROT_READ | PROT_WRITE);
	if (!file) {
		if (pool->fd >= 0)
			close(pool->fd);
		soft_block_free(pool, sizeof(*pool));
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	file->props = pool->props;
	file->physical = pool->props.location.type == CU_MEM_LOCATION_TYPE_DEVICE
				 ? soft.device[pool->props.location.id].physical
				 : -1;
	munmap(file, POOL_FILE);
	pool->number = soft_backing_number(pool->fd);
	return CUDA_SUCCESS;
}

static CUresult check_handle_type(CUmemAllocationHandleType type)
{
	if (type == CU_MEM_HANDLE_TYPE_FABRIC)
		return CUDA_ERROR_NOT_SUPPORTED;
	return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_SUCCESS
								: CUDA_ERROR_INVALID_VALUE;
}

SOFT_EXPORT CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool handle,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	CUmemoryPool pool;
	int fd;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!shareable || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (check_handle_type(type))
		return check_handle_type(type);
	pthread_rwlock_rdlock(&soft.lock);
	pool = soft_pool_use(handle);
	if (pool && !pool->imported && (pool->props.handleTypes & type)) {
		fd = soft_backing_export(pool->fd);
		result = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
		if (!result)
			*(int *)shareable = fd;
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

/* As in this process: a device has another ordinal here, or none. */
static CUresult local_props(const struct pool_file *file, CUmemPoolProps *props)
{
	*props = file->props;
	if (file->physical < 0)
		return CUDA_SUCCESS;
	for (int i = 0; i < soft.count; i++) {
		if (soft.device[i].physical == file->physical) {
			props->location.id = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

static CUresult import_pool(CUmemoryPool *made, int fd)
{
	struct pool_file *file;
	CUmemPoolProps props;
	CUresult result;

	if (!soft_backing_is_memfd(
		    fd, POOL_NAME, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, POOL_FILE))
		return CUDA_ERROR_INVALID_VALUE;
	file = look_into(fd, PROT_READ);
	if (!file)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = local_props(file, &props);
	munmap(file, POOL_FILE);
	if (!result)
		result = soft_pool_new(made, &props);
	if (result)
		return result;
	(*made)->imported = true;
	(*made)->number = soft_backing_number(fd);
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *os_handle,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	CUmemoryPool pool;
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!handle || flags)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_handle_type(type);
	if (!result)
		result = import_pool(&pool, (int)(uintptr_t)os_handle);
	if (result)
		return result;
	pthread_rwlock_wrlock(&soft.lock);
	soft_pool_add(pool);
	pthread_rwlock_unlock(&soft.lock);
	*handle = pool;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr ptr)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct soft_mapping *mapping;
	struct soft_ticket ticket;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&soft.lock);
	mapping = soft_mapping_find(ptr);
	if (mapping && mapping->kind == SOFT_ASYNC && mapping->base == ptr && mapping->bytes &&
		mapping->pool->number) {
		ticket = soft_ticket_of(SOFT_TICKET_POINTER, mapping->allocation);
		ticket.bytes = mapping->bytes;
		ticket.pool = mapping->pool->number;
		memcpy(data, &ticket, sizeof(ticket));
		result = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

/* soft.lock held for writing. */
static CUresult import_pointer(CUdeviceptr *ptr, CUmemoryPool handle,
	struct soft_allocation *allocation, const struct soft_ticket *ticket)
{
	CUmemoryPool pool = soft_pool_use(handle);
	struct soft_mapping *mapping;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	soft_allocation_list(allocation);
	if (pool && pool->imported && pool->number == ticket->pool)
		result = soft_place(
			&mapping, allocation, ticket->bytes, SOFT_ASYNC_IMPORT, pool->access);
	if (result) {
		soft_allocation_put(allocation);
		return result;
	}
	soft_allocation_hide(allocation);
	allocation->imported = true;
	mapping->pool = pool;
	soft_pool_account(pool, mapping->size, mapping->bytes);
	*ptr = mapping->base;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMemPoolImportPointer(
	CUdeviceptr *ptr, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	struct soft_allocation *allocation;
	struct soft_ticket ticket;
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!ptr || !data || !soft_ticket_read(&ticket, data, SOFT_TICKET_POINTER))
		return CUDA_ERROR_INVALID_VALUE;
	result = soft_ticket_take(&ticket, CUDA_ERROR_INVALID_VALUE, &allocation);
	if (result)
		return result;
	pthread_rwlock_wrlock(&soft.lock);
	result = import_pointer(ptr, pool, allocation, &ticket);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}
