// SPDX-License-Identifier: BSD-2-Clause
/* Memory of a context ends with it, and all devices that the process uses may reach it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "control/driver/thread.h"
#include "control/plain/memory.h"

/* --- devices that are used ---------------------------------------------------------------------
 */

/*
 * The driver copies plain memory of one device when another one's context is current, and between
 * two, whether or not peer access is enabled; virtual memory only where both have access. So each
 * device that the process has a context on has access to all plain memory that it can reach, from
 * then on, and cuCtxEnablePeerAccess() finds everything done.
 */
static struct {
	uint64_t used;			    /* bits: devices with a context, now or before */
	uint64_t reach[LIEN_PLAIN_DEVICES]; /* bits: of each of these, whose memory it can reach */
} used;

static CUmemAccessDesc access_of(CUdevice device)
{
	return (CUmemAccessDesc){
		{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

uint64_t lien_plain_used(void)
{
	return __atomic_load_n(&used.used, __ATOMIC_SEQ_CST);
}

unsigned lien_plain_access(CUcontext context, CUdevice device, CUmemAccessDesc *access)
{
	uint64_t others = lien_plain_used() & ~(1ull << device);
	unsigned n = 0;

	access[n++] = access_of(device);
	for (; others && !lien_plain_is_pool((uintptr_t)context); others &= others - 1)
		if (used.reach[__builtin_ctzll(others)] >> device & 1)
			access[n++] = access_of(__builtin_ctzll(others));
	return n;
}

LIEN_TRANSLATED static uint64_t reach_of(CUdevice device)
{
	uint64_t reach = 0;
	CUdevice other;
	int count, can;

	if (LIEN_REAL(cuDeviceGetCount)(&count))
		return 0;
	for (other = 0; other < count && other < LIEN_PLAIN_DEVICES; other++)
		if (other != device && !LIEN_REAL(cuDeviceCanAccessPeer)(&can, device, other) &&
			can)
			reach |= 1ull << other;
	return reach;
}

/* Where it fails, copies of that chunk with this device's context current do, too. */
LIEN_TRANSLATED static void let_reach(CUdevice device)
{
	const CUmemAccessDesc access = access_of(device);
	struct lien_heap_range chunk = {0};
	struct lien_heap_key key;

	while (lien_plain_next(chunk.base + chunk.bytes, &chunk, &key))
		if (!key.pool && used.reach[device] >> key.device & 1)
			LIEN_REAL(cuMemSetAccess)(chunk.base, chunk.bytes, &access, 1);
}

LIEN_TRANSLATED void lien_plain_use(CUdevice device)
{
	uint64_t bit;

	if (device < 0 || device >= LIEN_PLAIN_DEVICES)
		return;
	bit = 1ull << device;
	if (lien_plain_used() & bit)
		return;
	/* Threads that come here at the same time write the same. */
	__atomic_store_n(&used.reach[device], reach_of(device), __ATOMIC_RELAXED);
	if (!(__atomic_fetch_or(&used.used, bit, __ATOMIC_SEQ_CST) & bit))
		let_reach(device);
}

/* --- contexts ---------------------------------------------------------------------------------
 */

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

void lien_plain_context_forked(void)
{
	memset(&used, 0, sizeof(used));
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
