// SPDX-License-Identifier: BSD-2-Clause
/* The functions that the application gets for the driver's that allocate and free, at once, in a
 * stream, and with a context, whose memory ends with it. A graph's memory is the driver's. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "control/plain/memory.h"

/* The caller is the application. */
#define CALLER __builtin_return_address(0)

/* --- contexts -------------------------------------------------------------------------------- */

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

/* Returns the device's primary context; NULL: the application has not asked for it. */
static CUcontext primary_of(CUdevice device)
{
	return device >= 0 && device < LIEN_PLAIN_DEVICES
		       ? __atomic_load_n(&primary.context[device], __ATOMIC_ACQUIRE)
		       : NULL;
}

static LIEN_PLAIN(cuDevicePrimaryCtxRetain, CUcontext *context, CUdevice device)
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

	if (!primary_of(device) || LIEN_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) ||
		active)
		return (struct ended){0};
	return end_context(primary_of(device));
}

static LIEN_PLAIN(cuDevicePrimaryCtxRelease_v2, CUdevice device)
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

static LIEN_PLAIN(cuDevicePrimaryCtxReset_v2, CUdevice device)
{
	struct ended ended = {0};
	CUresult result;

	pthread_mutex_lock(&primary.lock);
	result = LIEN_REAL(cuDevicePrimaryCtxReset_v2)(device);
	if (!result && primary_of(device))
		ended = end_context(primary_of(device));
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

static LIEN_PLAIN(cuCtxDestroy_v2, CUcontext context)
{
	return destroyed(LIEN_REAL(cuCtxDestroy_v2)(context), context);
}

/* The oldest name may refuse where its successor does not (seen, 580.159). */
static LIEN_PLAIN(cuCtxDestroy, CUcontext context)
{
	return destroyed(LIEN_REAL(cuCtxDestroy)(context), context);
}

LIEN_INTERPOSE(LIEN_FROM_START, cuDevicePrimaryCtxRelease, plain_cuDevicePrimaryCtxRelease_v2);
LIEN_INTERPOSE(LIEN_FROM_START, cuDevicePrimaryCtxReset, plain_cuDevicePrimaryCtxReset_v2);

/* --- memory that stays until it is freed ------------------------------------------------------ */

/* Finds the place for memory that stays until it is freed. Returns whether it can be ours. */
LIEN_TRANSLATED static int place_for(struct lien_plain_place *place, const void *caller)
{
	CUresult result;

	if (!lien_plain_place(place, caller))
		return 0;
	result = lien_plain_wait_prepare((CUcontext)(uintptr_t)place->key.context);
	return !result || result == CUDA_ERROR_OUT_OF_MEMORY; /* there may be parked memory */
}

static LIEN_PLAIN(cuMemAlloc_v2, CUdeviceptr *ptr, size_t bytes)
{
	struct lien_plain_place place;

	if (ptr && bytes && place_for(&place, CALLER)) {
		if (!lien_plain_take(&place, bytes, NULL, ptr))
			return CUDA_SUCCESS;
		lien_plain_reap();
		if (!lien_plain_take(&place, bytes, NULL, ptr))
			return CUDA_SUCCESS;
	}
	return LIEN_REAL(cuMemAlloc_v2)(ptr, bytes);
}

/* The pitch that the driver chooses (seen, 580.159). */
#define PITCH 512

/* Returns the bytes of the rows, and their pitch; 0: the driver decides. */
static size_t pitched(size_t width, size_t height, unsigned int element, size_t *pitch)
{
	size_t bytes;

	if (!width || !height || (element != 4 && element != 8 && element != 16))
		return 0;
	*pitch = (width + PITCH - 1) / PITCH * PITCH;
	return *pitch < width || __builtin_mul_overflow(*pitch, height, &bytes) ? 0 : bytes;
}

static LIEN_PLAIN(cuMemAllocPitch_v2, CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height,
	unsigned int element)
{
	struct lien_plain_place place;
	size_t bytes, row;

	bytes = ptr && pitch ? pitched(width, height, element, &row) : 0;
	if (bytes && place_for(&place, CALLER) && !lien_plain_take(&place, bytes, NULL, ptr)) {
		*pitch = row;
		return CUDA_SUCCESS;
	}
	return LIEN_REAL(cuMemAllocPitch_v2)(ptr, pitch, width, height, element);
}

/* NULL: it is not active, or the application has not asked for it. */
LIEN_TRANSLATED static CUcontext active_primary(CUdevice device)
{
	unsigned int flags;
	int active = 0;

	return !LIEN_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) && active
		       ? primary_of(device)
		       : NULL;
}

/* Returns a context whose work may use the block. NULL: there is none. Like the driver, this asks
 * for no current context. */
LIEN_TRANSLATED static CUcontext context_of(const struct lien_heap_block *block)
{
	CUcontext context = NULL;

	if (!block->key.pool)
		return (CUcontext)(uintptr_t)block->key.context;
	LIEN_REAL(cuCtxGetCurrent)(&context);
	if (!context)
		context = lien_plain_pool_context(block->key.device);
	return context ? context : active_primary(block->key.device);
}

/* Before the driver looks at the address it checks that the current context has not ended, and that
 * no work of the memory's context is captured. NULL: all contexts that used the memory have ended.
 */
LIEN_TRANSLATED static CUresult check_and_wait(CUcontext context)
{
	CUcontext current;

	if (LIEN_REAL(cuStreamGetCtx)(CU_STREAM_PER_THREAD, &current) ==
		CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return context ? lien_plain_wait(context) : CUDA_SUCCESS;
}

/* Takes back a block that nothing uses any more. */
LIEN_TRANSLATED static CUresult give(const struct lien_heap_block *block)
{
	struct lien_heap_range empty;
	CUresult result = CUDA_SUCCESS;

	if (lien_heap_give(&lien_plain_heap, block, &empty))
		return CUDA_ERROR_INVALID_VALUE; /* another thread was faster */
	if (empty.bytes)
		result = lien_plain_unmap(empty);
	if (result)
		lien_heap_put_back(&lien_plain_heap, block);
	return result;
}

static LIEN_PLAIN(cuMemFree_v2, CUdeviceptr ptr)
{
	struct lien_heap_block block;
	CUresult result;

	if (!lien_heap_find(&lien_plain_heap, ptr, &block))
		return LIEN_REAL(cuMemFree_v2)(lien_plain_hide(ptr));
	result = check_and_wait(context_of(&block));
	if (!result && block.address != ptr)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = give(&block);
	if (!result && block.key.pool)
		lien_plain_pool_given(&block);
	return result;
}

/* --- in a stream ------------------------------------------------------------------------------ */

/* Returns whether the address is ours to free; *result says whether it is freed. */
LIEN_TRANSLATED static int free_async(CUdeviceptr ptr, CUstream handle, CUresult *result)
{
	struct lien_plain_stream stream = {.handle = handle};
	struct lien_heap_block block;

	if (!lien_heap_find(&lien_plain_heap, ptr, &block) || lien_plain_is_capturing(handle))
		return 0;
	/* The driver frees in a stream of any context, whatever is current. */
	*result = LIEN_REAL(cuStreamGetCtx)(handle, &stream.context);
	if (*result)
		return 1;
	if (lien_plain_refused(stream.context))
		*result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	else if (block.address != ptr)
		*result = CUDA_ERROR_INVALID_VALUE;
	else if (LIEN_REAL(cuStreamGetId)(handle, &stream.id)) /* a driver of before CUDA 12.0 */
		*result = plain_cuMemFree_v2(ptr);
	else
		*result = lien_plain_pool_park(&stream, &block);
	return 1;
}

/* The functions for per-thread default streams take 0 for the thread's. */
#define BOTH(DEFINE, name)                                                                         \
	DEFINE(name, stream)                                                                       \
	DEFINE(name##_ptsz, stream ? stream : CU_STREAM_PER_THREAD)

#define FREE(name, in)                                                                             \
	static LIEN_PLAIN(name, CUdeviceptr ptr, CUstream stream)                                  \
	{                                                                                          \
		CUresult result;                                                                   \
                                                                                                   \
		return free_async(ptr, in, &result)                                                \
			       ? result                                                            \
			       : LIEN_REAL(name)(lien_plain_hide(ptr), stream);                    \
	}

#define ALLOC(name, in)                                                                            \
	static LIEN_PLAIN(name, CUdeviceptr *ptr, size_t bytes, CUstream stream)                   \
	{                                                                                          \
		return lien_plain_pool_alloc(ptr, bytes, NULL, in, CALLER)                         \
			       ? CUDA_SUCCESS                                                      \
			       : LIEN_REAL(name)(ptr, bytes, stream);                              \
	}

#define ALLOC_FROM(name, in)                                                                       \
	static LIEN_PLAIN(                                                                         \
		name, CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)          \
	{                                                                                          \
		return pool && lien_plain_pool_alloc(ptr, bytes, pool, in, CALLER)                 \
			       ? CUDA_SUCCESS                                                      \
			       : LIEN_REAL(name)(ptr, bytes, pool, stream);                        \
	}

BOTH(FREE, cuMemFreeAsync)
BOTH(ALLOC, cuMemAllocAsync)
BOTH(ALLOC_FROM, cuMemAllocFromPoolAsync)

/* --- the allocator that torch_memory_saver's mode "torch" gives to PyTorch -------------------- */

#define EXPORT __attribute__((visibility("default")))

/* Makes the device's primary context current, unless it is; leave() undoes that. Returns whether it
 * can. */
LIEN_TRANSLATED static int enter(int device, int *pushed)
{
	CUdevice current;
	CUcontext context;

	*pushed = 0;
	if (!LIEN_REAL(cuCtxGetDevice)(&current) && current == device)
		return 1;
	context = primary_of(device);
	return context && !lien_plain_enter(context, pushed);
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
	result = plain_cuMemAlloc_v2(&address, bytes);
	lien_plain_leave(pushed);
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
	result = plain_cuMemFree_v2((uintptr_t)address);
	lien_plain_leave(pushed);
	if (result)
		fprintf(stderr, "lien: torch_memory_saver: %p cannot be freed: error %d\n", address,
			result);
}
