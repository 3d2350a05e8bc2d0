// SPDX-License-Identifier: BSD-2-Clause
/* Memory of a context ends with it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "control/driver/thread.h"
#include "control/plain/memory.h"

static CUcontext first; /* the one that the process had first */
static int several;	/* there were others */

int lien_plain_several(void)
{
	return __atomic_load_n(&several, __ATOMIC_RELAXED);
}

/* The driver has made a context, or refused to. */
LIEN_TRANSLATED static CUresult made(CUresult result, CUdevice device, const CUcontext *context)
{
	CUcontext none = NULL;

	if (result)
		return result;
	if (!__atomic_compare_exchange_n(
		    &first, &none, *context, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) &&
		none != *context)
		__atomic_store_n(&several, 1, __ATOMIC_RELAXED);
	lien_plain_use(device);
	return CUDA_SUCCESS;
}

LIEN_TRANSLATED CUresult lien_plain_cuCtxCreate_v2(
	CUcontext *context, unsigned int flags, CUdevice device)
{
	return made(LIEN_REAL(cuCtxCreate_v2)(context, flags, device), device, context);
}

LIEN_TRANSLATED CUresult lien_plain_cuCtxCreate_v3(CUcontext *context,
	CUexecAffinityParam *affinity, int count, unsigned int flags, CUdevice device)
{
	return made(LIEN_REAL(cuCtxCreate_v3)(context, affinity, count, flags, device), device,
		context);
}

LIEN_TRANSLATED CUresult lien_plain_cuCtxCreate_v4(
	CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device)
{
	return made(LIEN_REAL(cuCtxCreate_v4)(context, params, flags, device), device, context);
}

/* --- the end of a context --------------------------------------------------------------------- */

static struct {
	/* Held while a primary context begins or ends: nobody is held in these calls. */
	pthread_mutex_t lock;
	CUcontext context[LIEN_PLAIN_DEVICES];
} primary = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A context that has ended, and the number of the chunks that it had (lien_plain_end()). */
struct ended {
	CUcontext context;
	uint64_t chunks; /* 0: it has not */
};

/* The driver has freed the plain memory of this context. */
LIEN_TRANSLATED static void drop_context(struct ended ended)
{
	struct lien_heap_range chunk;

	if (!ended.chunks)
		return;
	lien_plain_wait_forget(ended.context);
	lien_plain_pool_unuse(ended.context);
	lien_plain_stream_end(ended.context);
	lien_plain_opened_drop(ended.context);
	while (lien_plain_forget(ended.chunks, &chunk))
		lien_plain_unmap(chunk);
}

static struct ended end_context(CUcontext context)
{
	return (struct ended){context, lien_plain_end(context)};
}

CUcontext lien_plain_primary(CUdevice device)
{
	return device >= 0 && device < LIEN_PLAIN_DEVICES
		       ? __atomic_load_n(&primary.context[device], __ATOMIC_ACQUIRE)
		       : NULL;
}

LIEN_TRANSLATED CUresult lien_plain_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CUresult result;

	pthread_mutex_lock(&primary.lock);
	result = LIEN_REAL(cuDevicePrimaryCtxRetain)(context, device);
	if (!result && device >= 0 && device < LIEN_PLAIN_DEVICES)
		__atomic_store_n(&primary.context[device], *context, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&primary.lock);
	return made(result, device, context);
}

/* With the lock: ends the context if nobody has it any more. */
static struct ended end_primary(CUdevice device)
{
	unsigned int flags;
	int active = 1;

	if (!lien_plain_primary(device) ||
		LIEN_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) || active)
		return (struct ended){0};
	return end_context(lien_plain_primary(device));
}

LIEN_TRANSLATED CUresult lien_plain_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	struct ended ended = {0};
	CUresult result;

	pthread_mutex_lock(&primary.lock);
	result = LIEN_REAL(cuDevicePrimaryCtxRelease_v2)(device);
	if (!result)
		ended = end_primary(device);
	pthread_mutex_unlock(&primary.lock);
	drop_context(ended);
	return result;
}

LIEN_TRANSLATED static void *drop_ended(void *arg)
{
	drop_context(*(struct ended *)arg);
	free(arg);
	return NULL;
}

/* The rest is not done in this thread: threads that are held may have locks that it needs. */
void lien_plain_primary_release(const struct lien_driver *driver, CUdevice device)
{
	struct ended ended, *copy;

	pthread_mutex_lock(&primary.lock);
	if (driver->cuDevicePrimaryCtxRelease_v2(device))
		driver->cuDevicePrimaryCtxRelease_v2(device);
	ended = end_primary(device);
	pthread_mutex_unlock(&primary.lock);
	if (!ended.chunks || !(copy = malloc(sizeof(*copy))))
		return;
	*copy = ended;
	if (lien_thread_start(drop_ended, copy))
		free(copy);
}

LIEN_TRANSLATED CUresult lien_plain_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	struct ended ended = {0};
	CUresult result;

	pthread_mutex_lock(&primary.lock);
	result = LIEN_REAL(cuDevicePrimaryCtxReset_v2)(device);
	if (!result && lien_plain_primary(device))
		ended = end_context(lien_plain_primary(device));
	pthread_mutex_unlock(&primary.lock);
	drop_context(ended);
	if (!result)
		lien_plain_pool_drop(device);
	return result;
}

LIEN_TRANSLATED static CUresult destroyed(CUresult result, CUcontext context)
{
	if (!result)
		drop_context(end_context(context));
	return result;
}

LIEN_TRANSLATED CUresult lien_plain_cuCtxDestroy_v2(CUcontext context)
{
	return destroyed(LIEN_REAL(cuCtxDestroy_v2)(context), context);
}

/* The names of before CUDA 4 and 11. The oldest one may refuse where its successor does not (seen,
 * 580.159). */
LIEN_TRANSLATED CUresult lien_plain_cuDevicePrimaryCtxRelease(CUdevice device)
{
	return lien_plain_cuDevicePrimaryCtxRelease_v2(device);
}

LIEN_TRANSLATED CUresult lien_plain_cuDevicePrimaryCtxReset(CUdevice device)
{
	return lien_plain_cuDevicePrimaryCtxReset_v2(device);
}

LIEN_TRANSLATED CUresult lien_plain_cuCtxDestroy(CUcontext context)
{
	return destroyed(LIEN_REAL(cuCtxDestroy)(context), context);
}

void lien_plain_lifetime_forked(void)
{
	first = NULL;
	several = 0;
	memset(&primary, 0, sizeof(primary));
	pthread_mutex_init(&primary.lock, NULL);
}

LIEN_EXPORT_AS(cuCtxCreate_v2, lien_plain_cuCtxCreate_v2);
LIEN_EXPORT_AS(cuCtxCreate_v3, lien_plain_cuCtxCreate_v3);
LIEN_EXPORT_AS(cuCtxCreate_v4, lien_plain_cuCtxCreate_v4);
LIEN_EXPORT_AS(cuDevicePrimaryCtxRetain, lien_plain_cuDevicePrimaryCtxRetain);
LIEN_EXPORT_AS(cuDevicePrimaryCtxRelease_v2, lien_plain_cuDevicePrimaryCtxRelease_v2);
LIEN_EXPORT_AS(cuDevicePrimaryCtxReset_v2, lien_plain_cuDevicePrimaryCtxReset_v2);
LIEN_EXPORT_AS(cuDevicePrimaryCtxRelease, lien_plain_cuDevicePrimaryCtxRelease);
LIEN_EXPORT_AS(cuDevicePrimaryCtxReset, lien_plain_cuDevicePrimaryCtxReset);
LIEN_EXPORT_AS(cuCtxDestroy, lien_plain_cuCtxDestroy);
LIEN_EXPORT_AS(cuCtxDestroy_v2, lien_plain_cuCtxDestroy_v2);
