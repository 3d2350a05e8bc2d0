// SPDX-License-Identifier: BSD-2-Clause
/*
 * The driver's cuMemFree() waits for all work of the context, and so must ours. cuCtxSynchronize()
 * would invalidate every capture in the context, in whatever mode. So the driver frees a block of
 * its own, which waits, and invalidates only the captures that cuMemFree() does, with the same
 * error (seen, 580.159). The block shares a chunk of the driver's with another one that is kept, so
 * this takes 4 us instead of 80.
 *
 * The driver refuses to allocate, and to free in a stream, where a capture forbids it; it never
 * refuses virtual memory. What is about an event it refuses in the same cases, with the same error
 * and effect, whether or not the event has been recorded (seen, 580.159), and such a question takes
 * 0.1 us.
 *
 * For what the context is to wait for besides its own work it gets a stream of the control
 * library's.
 */
#include <stdlib.h>

#include <lien/locked.h>

#include "control/plain/memory.h"

/* cuCtxGetCurrent() does not tell whether the context is in order, and neither do the functions of
 * virtual memory. A question about the legacy default stream would invalidate captures. */
LIEN_TRANSLATED CUcontext lien_plain_current(void)
{
	CUcontext context = NULL;

	return LIEN_REAL(cuStreamGetCtx)(CU_STREAM_PER_THREAD, &context) ? NULL : context;
}

LIEN_TRANSLATED int lien_plain_is_capturing(CUstream stream)
{
	CUstreamCaptureStatus status;

	return LIEN_REAL(cuStreamIsCapturing)(stream, &status) ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

LIEN_TRANSLATED CUresult lien_plain_enter(CUcontext context, int *pushed)
{
	CUcontext current = NULL;

	LIEN_REAL(cuCtxGetCurrent)(&current);
	*pushed = current != context;
	return *pushed ? LIEN_REAL(cuCtxPushCurrent_v2)(context) : CUDA_SUCCESS;
}

LIEN_TRANSLATED void lien_plain_leave(int pushed)
{
	CUcontext context;

	if (pushed)
		LIEN_REAL(cuCtxPopCurrent_v2)(&context);
}

/* --- what is kept in a context ---------------------------------------------------------------- */

#define BYTES 16

enum {
	BLOCK,	/* of the driver's own memory */
	EVENT,	/* never recorded */
	STREAM, /* waits for other contexts' events */
	OBJECTS,
};

struct kept {
	LIST_ENTRY(kept) entry;
	CUcontext context;
	uint64_t object[OBJECTS]; /* 0: none yet */
};

static struct {
	pthread_mutex_t lock;
	LIST_HEAD(, kept) list;
} all LIEN_ZERO_IN_CHILD;

static struct kept *kept_in(CUcontext context)
{
	struct kept *kept;

	LIST_FOREACH (kept, &all.list, entry)
		if (kept->context == context)
			break;
	return kept;
}

/* Returns what the context has of these; 0: nothing. */
static uint64_t kept_object(CUcontext context, unsigned which)
{
	const struct kept *kept;

	LIEN_LOCKED(&all.lock);
	kept = kept_in(context);
	return kept ? kept->object[which] : 0;
}

/* Returns the object, or the one that another thread was faster to make. 0: out of memory. */
static uint64_t keep(CUcontext context, unsigned which, uint64_t object)
{
	struct kept *kept;

	LIEN_LOCKED(&all.lock);
	kept = kept_in(context);
	if (!kept && (kept = calloc(1, sizeof(*kept)))) {
		kept->context = context;
		LIST_INSERT_HEAD(&all.list, kept, entry);
	}
	if (kept && !kept->object[which])
		kept->object[which] = object;
	return kept ? kept->object[which] : 0;
}

/* These are not in the section of the application's calls: the memory is the control library's. */
__attribute__((noinline)) static CUresult alloc_block(CUdeviceptr *block)
{
	return LIEN_REAL(cuMemAlloc_v2)(block, BYTES);
}

__attribute__((noinline)) static CUresult free_block(CUdeviceptr block)
{
	return LIEN_REAL(cuMemFree_v2)(block);
}

/* Makes an object in the context, which need not be current. */
LIEN_TRANSLATED static CUresult make(CUcontext context, unsigned which, void *object)
{
	int pushed;
	CUresult result = lien_plain_enter(context, &pushed);

	if (result)
		return result;
	if (which == BLOCK)
		result = alloc_block(object);
	else if (which == EVENT)
		result = LIEN_REAL(cuEventCreate)(object, CU_EVENT_DISABLE_TIMING);
	else
		result = LIEN_REAL(cuStreamCreate)(object, CU_STREAM_NON_BLOCKING);
	lien_plain_leave(pushed);
	return result;
}

LIEN_TRANSLATED static void destroy(unsigned which, uint64_t object)
{
	if (which == BLOCK)
		free_block(object);
	else if (which == EVENT)
		LIEN_REAL(cuEventDestroy_v2)((CUevent)(uintptr_t)object);
	else
		LIEN_REAL(cuStreamDestroy_v2)((CUstream)(uintptr_t)object);
}

/* Finds the object in the context, or makes it. */
LIEN_TRANSLATED static CUresult have(CUcontext context, unsigned which, uint64_t *object)
{
	uint64_t made;
	CUresult result;

	*object = kept_object(context, which);
	if (*object)
		return CUDA_SUCCESS;
	result = make(context, which, &made);
	if (result)
		return result;
	*object = keep(context, which, made);
	if (*object != made)
		destroy(which, made);
	return *object ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

LIEN_TRANSLATED CUresult lien_plain_make_event(CUcontext context, CUevent *event)
{
	return make(context, EVENT, event);
}

LIEN_TRANSLATED CUresult lien_plain_wait_prepare(CUcontext context)
{
	uint64_t block;

	return have(context, BLOCK, &block);
}

CUdeviceptr lien_plain_wait_kept(CUcontext context)
{
	return kept_object(context, BLOCK);
}

int lien_plain_wait_keeps(CUdeviceptr address)
{
	struct kept *kept;

	LIEN_LOCKED(&all.lock);
	LIST_FOREACH (kept, &all.list, entry)
		if (kept->object[BLOCK] && address - kept->object[BLOCK] < BYTES)
			break;
	return kept != NULL;
}

CUdeviceptr lien_plain_hide(CUdeviceptr ptr)
{
	return lien_plain_wait_keeps(ptr) ? ptr | 1 : ptr;
}

void lien_plain_wait_forget(CUcontext context)
{
	struct kept *kept;

	LIEN_LOCKED(&all.lock);
	kept = kept_in(context);
	if (kept)
		LIST_REMOVE(kept, entry);
	free(kept);
}

/* --- waiting, and asking ---------------------------------------------------------------------- */

LIEN_TRANSLATED CUresult lien_plain_wait(CUcontext context)
{
	CUdeviceptr block;
	int pushed;
	CUresult result = lien_plain_enter(context, &pushed);

	if (result)
		return result;
	result = alloc_block(&block);
	if (!result && free_block(block))
		result = free_block(block);
	if (result == CUDA_ERROR_OUT_OF_MEMORY) /* not even that much is left */
		result = LIEN_REAL(cuCtxSynchronize)();
	lien_plain_leave(pushed);
	return result;
}

LIEN_TRANSLATED CUresult lien_plain_wait_also(CUcontext context, CUevent event)
{
	uint64_t stream;
	CUresult result = have(context, STREAM, &stream);

	return result ? result
		      : LIEN_REAL(cuStreamWaitEvent)((CUstream)(uintptr_t)stream, event, 0);
}

LIEN_TRANSLATED int lien_plain_refused(CUcontext context)
{
	uint64_t event;

	return !have(context, EVENT, &event) &&
	       LIEN_REAL(cuEventQuery)((CUevent)(uintptr_t)event) ==
		       CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}
