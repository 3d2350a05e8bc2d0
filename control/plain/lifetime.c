// SPDX-License-Identifier: BSD-2-Clause
/* Memory of a context ends with it. */
#include <stdlib.h>

#include <lien/locked.h>

#include "control/driver/thread.h"
#include "control/plain/memory.h"

static CUcontext first LIEN_ZERO_IN_CHILD; /* the one that the process had first */
static int several LIEN_ZERO_IN_CHILD;	   /* there were others */

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

#define MAKES(name, parameters, arguments)                                                         \
	LIEN_TRANSLATED static CUresult plain_##name parameters                                    \
	{                                                                                          \
		return made(LIEN_REAL(name) arguments, device, context);                           \
	}                                                                                          \
	LIEN_INTERPOSE(LIEN_FROM_START, name, plain_##name);

MAKES(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),
	(context, flags, device))
MAKES(cuCtxCreate_v3,
	(CUcontext * context, CUexecAffinityParam *affinity, int count, unsigned int flags,
		CUdevice device),
	(context, affinity, count, flags, device))
MAKES(cuCtxCreate_v4,
	(CUcontext * context, CUctxCreateParams *params, unsigned int flags, CUdevice device),
	(context, params, flags, device))

/* --- the end of a context --------------------------------------------------------------------- */

static struct {
	/* Held while a primary context begins or ends: nobody is held in these calls. */
	pthread_mutex_t lock;
	CUcontext context[LIEN_PLAIN_DEVICES];
} primary LIEN_ZERO_IN_CHILD;

/* A context that has ended, and the number of the chunks that it had (lien_heap_end()). */
struct ended {
	CUcontext context;
	uint64_t chunks; /* 0: it has not */
};

static struct ended end_context(CUcontext context)
{
	return (struct ended){context, lien_heap_end(&lien_plain_heap, (uintptr_t)context)};
}

/* The driver has freed the plain memory of this context. */
LIEN_TRANSLATED static void drop_context(struct ended ended)
{
	if (!ended.chunks)
		return;
	lien_plain_wait_forget(ended.context);
	lien_plain_pool_end(ended.context);
	lien_plain_opened_drop(ended.context);
	lien_plain_drop(ended.chunks);
}

CUcontext lien_plain_primary(CUdevice device)
{
	return device >= 0 && device < LIEN_PLAIN_DEVICES
		       ? __atomic_load_n(&primary.context[device], __ATOMIC_ACQUIRE)
		       : NULL;
}

LIEN_TRANSLATED static CUresult plain_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
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

LIEN_TRANSLATED static CUresult plain_cuDevicePrimaryCtxRelease_v2(CUdevice device)
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

LIEN_TRANSLATED static CUresult plain_cuDevicePrimaryCtxReset_v2(CUdevice device)
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
		lien_plain_pool_reset(device);
	return result;
}

LIEN_TRANSLATED static CUresult destroyed(CUresult result, CUcontext context)
{
	if (!result)
		drop_context(end_context(context));
	return result;
}

LIEN_TRANSLATED static CUresult plain_cuCtxDestroy_v2(CUcontext context)
{
	return destroyed(LIEN_REAL(cuCtxDestroy_v2)(context), context);
}

/* The oldest name may refuse where its successor does not (seen, 580.159). */
LIEN_TRANSLATED static CUresult plain_cuCtxDestroy(CUcontext context)
{
	return destroyed(LIEN_REAL(cuCtxDestroy)(context), context);
}

LIEN_INTERPOSE(LIEN_FROM_START, cuDevicePrimaryCtxRetain, plain_cuDevicePrimaryCtxRetain);
LIEN_INTERPOSE(LIEN_FROM_START, cuDevicePrimaryCtxRelease, plain_cuDevicePrimaryCtxRelease_v2);
LIEN_INTERPOSE(LIEN_FROM_START, cuDevicePrimaryCtxRelease_v2, plain_cuDevicePrimaryCtxRelease_v2);
LIEN_INTERPOSE(LIEN_FROM_START, cuDevicePrimaryCtxReset, plain_cuDevicePrimaryCtxReset_v2);
LIEN_INTERPOSE(LIEN_FROM_START, cuDevicePrimaryCtxReset_v2, plain_cuDevicePrimaryCtxReset_v2);
LIEN_INTERPOSE(LIEN_FROM_START, cuCtxDestroy, plain_cuCtxDestroy);
LIEN_INTERPOSE(LIEN_FROM_START, cuCtxDestroy_v2, plain_cuCtxDestroy_v2);
