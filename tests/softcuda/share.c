/* SPDX-License-Identifier: BSD-2-Clause */
/* Handles between processes: export and import, by fd and by fabric handle. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "peer.h"

static bool share_type_ok(CUmemAllocationHandleType type)
{
	return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	       type == CU_MEM_HANDLE_TYPE_FABRIC;
}

static CUresult export_fd(const struct soft_allocation *allocation, int *out)
{
	int fd = soft_backing_export(allocation->fd);

	/* An fd that the program closed behind our back is no bad argument of its. */
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*out = fd;
	return CUDA_SUCCESS;
}

static CUresult export_fabric(const struct soft_allocation *allocation, void *out)
{
	struct soft_ticket ticket = soft_ticket_of(SOFT_TICKET_FABRIC, allocation);

	if (ticket.fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	memcpy(out, &ticket, sizeof(ticket));
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMemExportToShareableHandle(void *shareable,
	CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
	unsigned long long flags)
{
	struct soft_allocation *allocation;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!shareable || flags || !share_type_ok(type))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&soft.lock);
	allocation = soft_handle_use(handle, "cuMemExportToShareableHandle");
	if (allocation && (allocation->prop.requestedHandleTypes & type)) {
		result = type == CU_MEM_HANDLE_TYPE_FABRIC ? export_fabric(allocation, shareable)
							   : export_fd(allocation, shareable);
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

static CUresult import_memory(int fd, CUmemAllocationHandleType type, struct soft_allocation **made)
{
	CUmemAllocationProp prop;
	size_t size;
	int own = soft_backing_import(fd, type, &prop, &size);

	/* NVIDIA's (580) tells none of what was imported, and exports none of it. */
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	return own < 0 ? soft_result(own) : soft_allocation_wrap(made, own, size, &prop);
}

static CUresult import(CUmemGenericAllocationHandle *handle, int fd, CUmemAllocationHandleType type)
{
	CUresult result = CUDA_SUCCESS;
	struct soft_allocation *allocation = soft_multicast_import(fd, type, &result);

	if (!allocation && !result)
		result = import_memory(fd, type, &allocation);
	if (result)
		return result;
	allocation->imported = true;
	pthread_rwlock_wrlock(&soft.lock);
	soft_allocation_list(allocation);
	*handle = soft_allocation_adopt(allocation);
	pthread_rwlock_unlock(&soft.lock);
	return CUDA_SUCCESS;
}

static CUresult import_fabric(CUmemGenericAllocationHandle *handle, const void *bytes)
{
	struct soft_ticket ticket;
	CUresult result;
	int fd;

	if (!bytes || !soft_ticket_read(&ticket, bytes, SOFT_TICKET_FABRIC))
		return CUDA_ERROR_INVALID_VALUE;
	fd = soft_ticket_open(&ticket);
	if (fd == -EACCES || fd == -EPERM)
		return CUDA_ERROR_NOT_PERMITTED; /* as without the exporter's IMEX channel */
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE; /* the memory, or the exporter, is gone */
	result = import(handle, fd, CU_MEM_HANDLE_TYPE_FABRIC);
	close(fd);
	return result;
}

SOFT_EXPORT CUresult cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type)
{
	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!handle || !share_type_ok(type))
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_MEM_HANDLE_TYPE_FABRIC)
		return import_fabric(handle, os_handle);
	/* What this driver keeps open itself is no export, though it is the same file. */
	if (soft_allocation_has_fd((int)(uintptr_t)os_handle))
		return CUDA_ERROR_INVALID_VALUE;
	return import(handle, (int)(uintptr_t)os_handle, type);
}
