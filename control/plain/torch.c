// SPDX-License-Identifier: BSD-2-Clause
/* The allocator that torch_memory_saver's mode "torch" gives to PyTorch. */
#include <stdio.h>
#include <sys/types.h>

#include "control/plain/memory.h"

#define EXPORT __attribute__((visibility("default")))

/* Makes the device's primary context current, unless it is. Returns whether it can. *pushed: it has
 * to be popped. */
LIEN_TRANSLATED static int enter(int device, int *pushed)
{
	CUdevice current;
	CUcontext context;

	*pushed = 0;
	if (!LIEN_REAL(cuCtxGetDevice)(&current) && current == device)
		return 1;
	context = lien_plain_primary(device);
	*pushed = context && !LIEN_REAL(cuCtxPushCurrent_v2)(context);
	return *pushed;
}

LIEN_TRANSLATED static void leave(int pushed)
{
	CUcontext context;

	if (pushed)
		LIEN_REAL(cuCtxPopCurrent_v2)(&context);
}

/* NULL: there is no room, as PyTorch understands it. */
EXPORT LIEN_TRANSLATED void *tms_torch_malloc(ssize_t bytes, int device, void *stream)
{
	CUdeviceptr address = 0;
	CUresult result;
	int pushed;

	(void)stream;
	if (bytes <= 0)
		return NULL;
	if (!enter(device, &pushed)) {
		fprintf(stderr, "lien: torch_memory_saver: device %d has no context\n", device);
		return NULL;
	}
	result = lien_plain_cuMemAlloc_v2(&address, bytes);
	leave(pushed);
	return result ? NULL : (void *)(uintptr_t)address;
}

EXPORT LIEN_TRANSLATED void tms_torch_free(void *address, ssize_t bytes, int device, void *stream)
{
	CUresult result;
	int pushed;

	(void)bytes, (void)stream;
	if (!address)
		return;
	if (!enter(device, &pushed))
		return; /* it has gone with its context */
	result = lien_plain_cuMemFree_v2((uintptr_t)address);
	leave(pushed);
	if (result)
		fprintf(stderr, "lien: torch_memory_saver: %p cannot be freed: error %d\n", address,
			result);
}
