// SPDX-License-Identifier: BSD-2-Clause
/*
 * Memory that programs get from the stand-in libnccl and make known to it. A window is kept as NCCL
 * 2.28 keeps it: the memory is mapped a second time, and its handle is held until the end.
 */
#include <stdlib.h>
#include <string.h>

#include "softnccl_sync.h"

#define GRANULARITY (2ul << 20)

struct ncclWindow_vidmem {
	struct buffer own, alias;
	CUmemGenericAllocationHandle handle;
};

EXPORT ncclResult_t ncclGetVersion(int *version)
{
	*version = SYNC_VERSION;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
	struct buffer buffer;
	ncclResult_t result;

	if (!sync_driver_bind())
		return ncclSystemError;
	bytes = (bytes + GRANULARITY - 1) & ~(GRANULARITY - 1);
	result = sync_buffer_make(&buffer, bytes, NULL);
	if (!result)
		*memory = (void *)(uintptr_t)buffer.va;
	return result;
}

EXPORT ncclResult_t ncclMemFree(void *memory)
{
	struct buffer buffer;

	if (!sync_buffer_of(&buffer, memory, 1))
		return ncclInvalidArgument;
	sync_buffer_free(&buffer);
	return ncclSuccess;
}

/* The range, which must lie in one allocation. */
EXPORT ncclResult_t ncclCommRegister(
	const ncclComm_t comm, void *memory, size_t bytes, void **handle)
{
	struct buffer *buffer = malloc(sizeof(*buffer));

	if (!comm || !buffer || !sync_buffer_of(buffer, memory, bytes)) {
		free(buffer);
		return ncclInvalidArgument;
	}
	*handle = buffer;
	return ncclSuccess;
}

/* It is still the allocation that it was. */
EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
	struct buffer *buffer = handle, now;
	bool same;

	same = comm && sync_buffer_of(&now, (void *)(uintptr_t)buffer->va, buffer->bytes) &&
	       now.va == buffer->va && now.bytes == buffer->bytes;
	free(buffer);
	return same ? ncclSuccess : ncclInvalidArgument;
}

#if SYNC_VERSION >= 22700
EXPORT ncclResult_t ncclCommWindowRegister(
	ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window, int flags)
{
	uint64_t words[RANKS_MAX] = {0};
	ncclWindow_t made;

	(void)flags;
	*window = NULL;
	if (sync_plain())
		return ncclSuccess;
	made = calloc(1, sizeof(*made));
	if (!comm || !made || !sync_buffer_of(&made->own, memory, bytes) ||
		sync_buffer_alias(&made->alias, &made->own, &made->handle)) {
		free(made);
		return ncclInvalidArgument;
	}
	*window = made;
	return sync_exchange(comm, words); /* ranks meet */
}

EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
	bool same;

	if (!comm || !window)
		return ncclInvalidArgument;
	same = sync_buffers_equal(&window->own, &window->alias);
	sync_buffer_alias_free(&window->alias, window->handle);
	free(window);
	return same ? ncclSuccess : ncclInternalError;
}
#endif
