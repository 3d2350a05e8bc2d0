/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Legacy IPC: memory of cuMemAlloc, known to other processes by 64 bytes. Opened memory belongs to
 * the context that opened it.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "peer.h"

SOFT_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	struct soft_mapping *mapping;
	struct soft_ticket ticket;
	CUcontext context;
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(&context);
	if (result)
		return result;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&soft.lock);
	mapping = soft_mapping_find(ptr);
	if (!mapping || /* an address inside gives the handle of the whole (seen, 580.159) */
		(mapping->kind != SOFT_PLAIN && mapping->kind != SOFT_PITCH)) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else if (mapping->allocation->fd < 0) {
		result = CUDA_ERROR_OUT_OF_MEMORY; /* of descriptors: see memory.c */
	} else {
		ticket = soft_ticket_of(SOFT_TICKET_IPC, mapping->allocation);
		ticket.bytes = mapping->bytes;
		memcpy(handle, &ticket, sizeof(ticket));
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

/*
 * Memory of this process's that was opened already. "CUipcMemHandles from each CUdevice in a given
 * process may only be opened by one CUcontext per CUdevice per other process."
 */
static CUresult find_open(
	const struct soft_ticket *ticket, CUcontext context, struct soft_mapping **found)
{
	struct soft_mapping *mapping;

	*found = NULL;
	for (mapping = soft_mapping_from(0); mapping; mapping = soft_mapping_next(mapping)) {
		const struct soft_allocation *allocation = mapping->allocation;

		if (mapping->kind != SOFT_IPC)
			continue;
		if (mapping->context == context && allocation->number == ticket->number)
			*found = mapping;
		else if (mapping->context != context && mapping->owner == ticket->pid &&
			 mapping->context->device == context->device &&
			 soft.device[allocation->prop.location.id].physical == ticket->device)
			return CUDA_ERROR_INVALID_HANDLE; /* seen, 580.159 */
	}
	return CUDA_SUCCESS;
}

/* soft.lock held for writing. The allocation is the mapping's, or gone. */
static CUresult open_memory(CUdeviceptr *ptr, struct soft_allocation *allocation,
	const struct soft_ticket *ticket, CUcontext context)
{
	struct soft_mapping *mapping = NULL;
	CUresult result = CUDA_ERROR_INVALID_HANDLE;

	soft_allocation_list(allocation);
	if (allocation->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		result = find_open(ticket, context, &mapping);
	if (!result && !mapping) {
		result = soft_place(&mapping, allocation, ticket->bytes, SOFT_IPC, NULL);
		if (!result) {
			soft_allocation_hide(allocation);
			allocation->imported = true;
			mapping->context = context;
			mapping->owner = ticket->pid;
		}
	}
	soft_allocation_put(allocation);
	if (result)
		return result;
	mapping->opens++;
	*ptr = mapping->base;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuIpcOpenMemHandle_v2(
	CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	struct soft_allocation *allocation;
	struct soft_ticket ticket;
	CUcontext context;
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(&context);
	if (result)
		return result;
	if (!ptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	if (!soft_ticket_read(&ticket, &handle, SOFT_TICKET_IPC))
		return CUDA_ERROR_INVALID_VALUE;
	if (ticket.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	/* Seen, 580.159: freed memory, and memory of a process that has ended. */
	result = soft_ticket_take(&ticket,
		kill(ticket.pid, 0) && errno == ESRCH ? CUDA_ERROR_INVALID_HANDLE
						      : CUDA_ERROR_INVALID_VALUE,
		&allocation);
	if (result)
		return result;
	pthread_rwlock_wrlock(&soft.lock);
	result = open_memory(ptr, allocation, &ticket, context);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	return cuIpcOpenMemHandle_v2(ptr, handle, flags);
}

SOFT_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	struct soft_mapping *mapping;
	CUcontext context;
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(&context);
	if (result)
		return result;
	pthread_rwlock_wrlock(&soft.lock);
	mapping = soft_mapping_find(ptr);
	if (!mapping || mapping->kind != SOFT_IPC || mapping->base != ptr)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!--mapping->opens)
		soft_unplace(mapping);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}
