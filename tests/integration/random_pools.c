// SPDX-License-Identifier: BSD-2-Clause
/* Turns of prog_random: pools; contexts, and what is allocated in them and goes with them. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "random.h"

#define POOLS	 4
#define CONTEXTS 3
#define INSIDE	 4

static struct pool {
	pthread_mutex_t lock;
	CUmemoryPool pool; /* NULL: nothing here */
	bool shareable;
} pools[POOLS];

static struct context {
	pthread_mutex_t lock;
	CUcontext context; /* NULL: nothing here */
	struct {
		CUdeviceptr va;
		enum { PLAIN, HOST, REGISTERED } kind;
	} inside[INSIDE];
} contexts[CONTEXTS];

void pools_init(void)
{
	for (unsigned int i = 0; i < POOLS; i++)
		pthread_mutex_init(&pools[i].lock, NULL);
	for (unsigned int i = 0; i < CONTEXTS; i++)
		pthread_mutex_init(&contexts[i].lock, NULL);
}

/* --- pools --- */

static void pool_make(struct pool *pool)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, below(2)}};

	pool->shareable = below(2);
	props.handleTypes = pool->shareable ? FD : 0;
	DO(cuMemPoolCreate, &pool->pool, &props);
}

static void pool_change(struct pool *pool)
{
	uint64_t threshold = below(4) * PIECE;

	switch (below(3)) {
	case 0:
		DO(cuMemPoolSetAttribute, pool->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
			&threshold);
		break;
	case 1:
		DO(cuMemPoolTrimTo, pool->pool, threshold);
		break;
	case 2:
		DO(cuCtxSynchronize);
	}
}

void pools_turn(void)
{
	struct pool *pool = &pools[below(POOLS)];

	if (pthread_mutex_trylock(&pool->lock))
		return;
	if (!pool->pool) {
		pool_make(pool);
	} else if (below(3)) {
		pool_change(pool);
	} else {
		DO(cuMemPoolDestroy, pool->pool); /* its memory stays until it is freed */
		pool->pool = NULL;
	}
	pthread_mutex_unlock(&pool->lock);
}

static void tell_pointer(const struct pool *pool, CUdeviceptr va)
{
	struct parcel parcel = {.kind = PARCEL_POINTER};
	int fd;

	DO(cuMemPoolExportPointer, (CUmemPoolPtrExportData *)parcel.key, va);
	DO(cuMemPoolExportToShareableHandle, &fd, pool->pool, FD, 0);
	parcel_send(&parcel, fd, true);
}

CUdeviceptr pool_alloc(uint64_t bytes, bool *keep)
{
	struct pool *pool = &pools[below(POOLS)];
	CUdeviceptr va = 0;

	if (pthread_mutex_trylock(&pool->lock)) {
		*keep = false;
		return 0;
	}
	*keep = *keep && pool->pool && pool->shareable;
	if (pool->pool && below(2))
		DO(cuMemAllocFromPoolAsync, &va, bytes, pool->pool, NULL);
	else if (pool->pool)
		DO(cuMemAllocFromPoolAsync_ptsz, &va, bytes, pool->pool, NULL);
	if (*keep)
		tell_pointer(pool, va);
	pthread_mutex_unlock(&pool->lock);
	return va;
}

/* --- contexts --- */

static void context_alloc(struct context *context)
{
	unsigned int at = below(INSIDE);
	void *host;

	if (context->inside[at].va)
		return;
	context->inside[at].kind = below(3);
	switch (context->inside[at].kind) {
	case PLAIN:
		DO(cuMemAlloc_v2, &context->inside[at].va, 1 + below(PIECE));
		break;
	case HOST:
		DO(cuMemHostAlloc, &host, 1 + below(PIECE), 0);
		context->inside[at].va = (uintptr_t)host;
		break;
	case REGISTERED:
		context->inside[at].va = register_some();
	}
}

static void context_free(struct context *context)
{
	unsigned int at = below(INSIDE);
	CUdeviceptr va = context->inside[at].va;

	if (!va)
		return;
	if (context->inside[at].kind == PLAIN)
		DO(cuMemFree_v2, va);
	else if (context->inside[at].kind == HOST)
		DO(cuMemFreeHost, (void *)(uintptr_t)va);
	else
		DO(cuMemHostUnregister, (void *)(uintptr_t)va);
	context->inside[at].va = 0;
}

/* With another process's memory open in it. */
static void context_receive(void)
{
	struct parcel parcel;
	CUipcMemHandle handle;
	CUdeviceptr va;
	int fd;

	if (!parcel_receive(&parcel, &fd))
		return;
	memcpy(&handle, parcel.key, sizeof(handle));
	if (parcel.kind == PARCEL_IPC)
		cuIpcOpenMemHandle_v2(&va, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (fd >= 0)
		close(fd);
}

static void inside(struct context *context)
{
	for (unsigned int i = 1 + below(3); i; i--) {
		switch (below(8)) {
		case 0:
			context_receive();
			break;
		case 1:
		case 2:
			context_free(context);
			break;
		default:
			context_alloc(context);
		}
	}
}

/* As the thread's current one, or as one that it leaves behind. */
static void context_destroy(struct context *context)
{
	bool current = below(2);

	if (current)
		DO(cuCtxPushCurrent_v2, context->context);
	DO(cuCtxDestroy_v2, context->context);
	context->context = NULL;
	memset(context->inside, 0, sizeof(context->inside));
}

void contexts_turn(void)
{
	struct context *context = &contexts[below(CONTEXTS)];

	if (!below(4)) {
		DO(cuCtxSetCurrent, primary[below(2)]);
		return;
	}
	if (pthread_mutex_trylock(&context->lock))
		return;
	if (!context->context) {
		DO(cuCtxCreate_v2, &context->context, 0, below(2));
		inside(context);
		DO(cuCtxPopCurrent_v2, NULL);
	} else if (below(3)) {
		DO(cuCtxPushCurrent_v2, context->context);
		inside(context);
		DO(cuCtxPopCurrent_v2, NULL);
	} else {
		context_destroy(context);
	}
	pthread_mutex_unlock(&context->lock);
}

void contexts_print(void)
{
	for (unsigned int i = 0; i < CONTEXTS; i++)
		if (contexts[i].context)
			printf(",[%lu,-1]", (unsigned long)contexts[i].context);
}
