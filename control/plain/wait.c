// SPDX-License-Identifier: BSD-2-Clause
/*
 * The driver's cuMemFree() waits for all work of the context, and so must ours. cuCtxSynchronize()
 * would invalidate every capture in the context, in whatever mode. So the driver frees a block of
 * its own, which waits, and invalidates only the captures that cuMemFree() does, with the same
 * error (seen, 580.159). The block shares a chunk of the driver's with another one that is kept, so
 * this takes 4 us instead of 80.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "control/plain/memory.h"

#define BYTES 16

struct kept {
	LIST_ENTRY(kept) entry;
	CUcontext context;
	CUdeviceptr block;
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

/* Returns whether the context had one. */
static int keep(CUcontext context, CUdeviceptr block)
{
	struct kept *kept;
	int is;

	pthread_mutex_lock(&all.lock);
	is = kept_in(context) != NULL;
	if (!is && (kept = calloc(1, sizeof(*kept)))) {
		kept->context = context;
		kept->block = block;
		LIST_INSERT_HEAD(&all.list, kept, entry);
	}
	pthread_mutex_unlock(&all.lock);
	return is;
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
	int is;

	pthread_mutex_lock(&all.lock);
	is = kept_in(context) != NULL;
	pthread_mutex_unlock(&all.lock);
	return is ? CUDA_SUCCESS : prepare(context);
}

LIEN_TRANSLATED CUresult lien_plain_wait(CUcontext context)
{
	CUcontext current = NULL;
	CUresult result = CUDA_SUCCESS;

	LIEN_REAL(cuCtxGetCurrent)(&current);
	if (current != context)
		result = LIEN_REAL(cuCtxPushCurrent_v2)(context);
	if (result)
		return result;
	result = free_one();
	if (result == CUDA_ERROR_OUT_OF_MEMORY) /* not even that much is left */
		result = LIEN_REAL(cuCtxSynchronize)();
	if (current != context)
		LIEN_REAL(cuCtxPopCurrent_v2)(&context);
	return result;
}

int lien_plain_wait_keeps(CUdeviceptr address)
{
	struct kept *kept;

	pthread_mutex_lock(&all.lock);
	LIST_FOREACH (kept, &all.list, entry)
		if (address >= kept->block && address - kept->block < BYTES)
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
