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
#include <pthread.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "control/plain/memory.h"

#define BYTES 16

enum {
	EVENT,	/* CUevent, never recorded */
	STREAM, /* CUstream, which waits for other contexts' events */
	OBJECTS,
};

struct kept {
	LIST_ENTRY(kept) entry;
	CUcontext context;
	CUdeviceptr block;     /* 0: none yet */
	void *object[OBJECTS]; /* NULL: none yet */
};

static struct {
	pthread_mutex_t lock;
	LIST_HEAD(, kept) list;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct kept *kept_in(CUcontext context)
{
	struct kept *kept;

	LIST_FOREACH (kept, &all.list, entry)
		if (kept->context == context)
			break;
	return kept;
}

/* With the lock. NULL: out of memory. */
static struct kept *kept_or_new(CUcontext context)
{
	struct kept *kept = kept_in(context);

	if (!kept && (kept = calloc(1, sizeof(*kept)))) {
		kept->context = context;
		LIST_INSERT_HEAD(&all.list, kept, entry);
	}
	return kept;
}

/* Returns whether the context had one. */
static int keep(CUcontext context, CUdeviceptr block)
{
	struct kept *kept;
	int is;

	pthread_mutex_lock(&all.lock);
	kept = kept_or_new(context);
	is = kept && kept->block;
	if (kept && !is)
		kept->block = block;
	pthread_mutex_unlock(&all.lock);
	return is;
}

/* Returns what the context has of these: that one, or the one that it had. NULL: none. */
static void *keep_object(CUcontext context, unsigned which, void *object)
{
	struct kept *kept;

	pthread_mutex_lock(&all.lock);
	kept = kept_or_new(context);
	if (kept && !kept->object[which])
		kept->object[which] = object;
	object = kept ? kept->object[which] : NULL;
	pthread_mutex_unlock(&all.lock);
	return object;
}

/* These are not in the section of the application's calls: the memory is the control library's. */
__attribute__((noinline)) static CUresult prepare(CUcontext context)
{
	CUdeviceptr block;
	CUresult result;

	result = LIEN_REAL(cuMemAlloc_v2)(&block, BYTES);
	if (!result && keep(context, block)) /* another thread was faster */
		result = LIEN_REAL(cuMemFree_v2)(block);
	return result;
}

__attribute__((noinline)) static CUresult free_one(void)
{
	CUdeviceptr block;
	CUresult result = LIEN_REAL(cuMemAlloc_v2)(&block, BYTES);

	if (result)
		return result;
	result = LIEN_REAL(cuMemFree_v2)(block);
	return result ? LIEN_REAL(cuMemFree_v2)(block) : CUDA_SUCCESS;
}

LIEN_TRANSLATED CUresult lien_plain_wait_prepare(CUcontext context)
{
	return lien_plain_wait_kept(context) ? CUDA_SUCCESS : prepare(context);
}

LIEN_TRANSLATED CUresult lien_plain_wait(CUcontext context)
{
	int pushed;
	CUresult result = lien_plain_enter(context, &pushed);

	if (result)
		return result;
	result = free_one();
	if (result == CUDA_ERROR_OUT_OF_MEMORY) /* not even that much is left */
		result = LIEN_REAL(cuCtxSynchronize)();
	lien_plain_leave(pushed);
	return result;
}

LIEN_TRANSLATED static CUresult make_stream(CUcontext context, CUstream *stream)
{
	int pushed;
	CUresult result = lien_plain_enter(context, &pushed);

	if (result)
		return result;
	result = LIEN_REAL(cuStreamCreate)(stream, CU_STREAM_NON_BLOCKING);
	lien_plain_leave(pushed);
	return result;
}

LIEN_TRANSLATED CUresult lien_plain_wait_also(CUcontext context, CUevent event)
{
	CUstream stream = keep_object(context, STREAM, NULL), made;
	CUresult result;

	if (!stream) {
		result = make_stream(context, &made);
		if (result)
			return result;
		stream = keep_object(context, STREAM, made);
		if (stream != made) /* another thread was faster, or there is no memory */
			LIEN_REAL(cuStreamDestroy_v2)(made);
		if (!stream)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return LIEN_REAL(cuStreamWaitEvent)(stream, event, 0);
}

int lien_plain_wait_keeps(CUdeviceptr address)
{
	struct kept *kept;

	pthread_mutex_lock(&all.lock);
	LIST_FOREACH (kept, &all.list, entry)
		if (kept->block && address >= kept->block && address - kept->block < BYTES)
			break;
	pthread_mutex_unlock(&all.lock);
	return kept != NULL;
}

CUdeviceptr lien_plain_wait_kept(CUcontext context)
{
	const struct kept *kept;
	CUdeviceptr block;

	pthread_mutex_lock(&all.lock);
	kept = kept_in(context);
	block = kept ? kept->block : 0;
	pthread_mutex_unlock(&all.lock);
	return block;
}

/* Returns the event of the context; NULL: there is none and can be none. */
LIEN_TRANSLATED static CUevent event_of(CUcontext context)
{
	CUevent event = keep_object(context, EVENT, NULL), made;

	if (event || lien_plain_make_event(context, &made))
		return event;
	event = keep_object(context, EVENT, made);
	if (event != made) /* another thread was faster */
		LIEN_REAL(cuEventDestroy_v2)(made);
	return event;
}

LIEN_TRANSLATED int lien_plain_refused(CUcontext context)
{
	CUevent event = event_of(context);

	return event && LIEN_REAL(cuEventQuery)(event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUdeviceptr lien_plain_hide(CUdeviceptr ptr)
{
	return lien_plain_wait_keeps(ptr) ? ptr | 1 : ptr;
}

void lien_plain_wait_forget(CUcontext context)
{
	struct kept *kept;

	pthread_mutex_lock(&all.lock);
	kept = kept_in(context);
	if (kept)
		LIST_REMOVE(kept, entry);
	pthread_mutex_unlock(&all.lock);
	free(kept);
}

void lien_plain_wait_forked(void)
{
	LIST_INIT(&all.list);
	pthread_mutex_init(&all.lock, NULL);
}
