/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Pinned host memory: a set of address ranges that do not overlap. Nothing is pinned in truth (a
 * machine that runs this has no DMA to protect, and RLIMIT_MEMLOCK is small).
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "softcuda.h"

RB_HEAD(soft_hosts, soft_host);

static struct soft_hosts hosts = RB_INITIALIZER(&hosts);

static int compare(struct soft_host *a, struct soft_host *b)
{
	return a->base < b->base ? -1 : a->base > b->base;
}

SOFT_TREE(soft_hosts, soft_host, node, compare)

struct soft_host *soft_host_from(uintptr_t address)
{
	struct soft_host key = {.base = address};
	struct soft_host *at = RB_NFIND(soft_hosts, &hosts, &key);
	struct soft_host *below;

	if (at && at->base == address)
		return at;
	below = at ? RB_PREV(soft_hosts, &hosts, at) : RB_MAX(soft_hosts, &hosts);
	return below && address - below->base < below->size ? below : at;
}

struct soft_host *soft_host_next(struct soft_host *host)
{
	return RB_NEXT(soft_hosts, &hosts, host);
}

uint64_t soft_host_buffer(uintptr_t address)
{
	struct soft_host *host = soft_host_from(address);

	return host && host->base <= address ? host->buffer : 0;
}

bool soft_host_find(uintptr_t address, uintptr_t *base, size_t *size, CUcontext *context)
{
	struct soft_host *host = soft_host_from(address);

	if (!host || host->base > address)
		return false;
	*base = host->base;
	*size = host->size;
	*context = host->context;
	return true;
}

static void drop(struct soft_host *host)
{
	RB_REMOVE(soft_hosts, &hosts, host);
	if (!host->registered)
		munmap((void *)host->base, host->size);
	free(host);
}

void soft_host_free_context(CUcontext context)
{
	struct soft_host *host, *next;

	RB_FOREACH_SAFE (host, soft_hosts, &hosts, next) {
		if (host->context == context)
			drop(host);
	}
}

static CUresult enter(CUcontext *context)
{
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(context);
	return result ? result : soft_capture_unsafe();
}

static CUresult add(
	uintptr_t base, size_t size, unsigned int flags, bool registered, CUcontext context)
{
	struct soft_host *next, *host = malloc(sizeof(*host));
	CUresult result = CUDA_SUCCESS;

	if (!host)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*host = (struct soft_host){.base = base,
		.size = size,
		.flags = flags,
		.registered = registered,
		.context = context};
	pthread_rwlock_wrlock(&soft.lock);
	next = soft_host_from(base);
	if (next && next->base < base + size)
		result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	else
		RB_INSERT(soft_hosts, &hosts, host);
	host->buffer = soft_buffer_new();
	pthread_rwlock_unlock(&soft.lock);
	if (result)
		free(host);
	return result;
}

static CUresult alloc(void **ptr, size_t bytes, unsigned int flags)
{
	CUcontext context;
	CUresult result = enter(&context);
	void *base;

	if (result)
		return result;
	if (!ptr || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = add((uintptr_t)base, bytes, flags, false, context);
	if (result)
		munmap(base, bytes);
	else
		*ptr = base;
	return result;
}

SOFT_EXPORT CUresult cuMemAllocHost_v2(void **ptr, size_t bytes)
{
	SOFT_FAULT();
	return alloc(ptr, bytes, CU_MEMHOSTALLOC_DEVICEMAP);
}

SOFT_EXPORT CUresult cuMemHostAlloc(void **ptr, size_t bytes, unsigned int flags)
{
	SOFT_FAULT();
	if (soft_ready() && flags & ~(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
					    CU_MEMHOSTALLOC_WRITECOMBINED))
		return CUDA_ERROR_INVALID_VALUE;
	return alloc(ptr, bytes, flags);
}

/* Takes back one that begins here and is (or is not) the program's own memory. */
static CUresult take_back(uintptr_t base, bool registered, CUresult otherwise)
{
	CUcontext context;
	CUresult result = enter(&context);
	struct soft_host *host;

	if (result)
		return result;
	pthread_rwlock_wrlock(&soft.lock);
	host = soft_host_from(base);
	if (host && host->base == base && host->registered == registered)
		drop(host);
	else
		result = otherwise;
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuMemFreeHost(void *ptr)
{
	SOFT_FAULT();
	return take_back((uintptr_t)ptr, false, CUDA_ERROR_INVALID_VALUE);
}

SOFT_EXPORT CUresult cuMemHostUnregister(void *ptr)
{
	SOFT_FAULT();
	if (soft_ready() && !ptr)
		return CUDA_ERROR_INVALID_VALUE;
	return take_back((uintptr_t)ptr, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

/* msync() fails where nothing is mapped, and by MS_ASYNC does nothing else. */
static bool is_memory(uintptr_t base, size_t size)
{
	uintptr_t at = base & -sysconf(_SC_PAGESIZE), end = base + size;

	return end > base && !msync((void *)at, end - at, MS_ASYNC);
}

static CUresult host_register(void *ptr, size_t bytes, unsigned int flags)
{
	CUcontext context;
	CUresult result = enter(&context);

	if (result)
		return result;
	if (!ptr || !bytes || flags & ~0xfu || !is_memory((uintptr_t)ptr, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return add((uintptr_t)ptr, bytes, flags, true, context);
}

SOFT_EXPORT CUresult cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned int flags)
{
	SOFT_FAULT();
	return host_register(ptr, bytes, flags);
}

SOFT_EXPORT CUresult cuMemHostRegister(void *ptr, size_t bytes, unsigned int flags)
{
	SOFT_FAULT();
	return host_register(ptr, bytes, flags);
}

SOFT_EXPORT CUresult cuMemHostGetDevicePointer_v2(
	CUdeviceptr *device, void *ptr, unsigned int flags)
{
	CUcontext context;
	uintptr_t base;
	size_t size;
	bool known;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!device || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&soft.lock);
	known = soft_host_find((uintptr_t)ptr, &base, &size, &context);
	pthread_rwlock_unlock(&soft.lock);
	if (!known)
		return CUDA_ERROR_INVALID_VALUE;
	*device = (uintptr_t)ptr;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMemHostGetFlags(unsigned int *flags, void *ptr)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct soft_host *host;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&soft.lock);
	host = soft_host_from((uintptr_t)ptr);
	if (host && host->base <= (uintptr_t)ptr && !host->registered) {
		*flags = host->flags;
		result = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}
