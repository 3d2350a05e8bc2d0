// SPDX-License-Identifier: BSD-2-Clause
/*
 * Stream-ordered memory: the devices' default pools, as far as their memory is ours. The memory of
 * other pools, which may be shared or limited, is the driver's.
 *
 * A block is given out at once. A free parks it: the same stream may have its place at once, others
 * when the stream has come to that point, which an event tells. Rather than make a new chunk, a
 * stream waits for another one's frees, as it does with the driver's own pools. What is parked is
 * given back when somebody synchronizes.
 *
 * An event belongs to a context, and is gone with it. So only events of the context that the caller
 * uses are touched: nobody may destroy that meanwhile.
 */
#include <stdlib.h>
#include <time.h>

#include <lien/locked.h>

#include "control/driver/gate.h"
#include "control/plain/memory.h"

/* --- the pools -------------------------------------------------------------------------------- */

/* Bytes of blocks, and of chunks. */
enum { USED, RESERVED, FIGURES };

static const struct {
	CUmemPool_attribute now, high;
} attributes[FIGURES] = {
	[USED] = {CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH},
	[RESERVED] = {CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH},
};

/* The default pool of a device. */
struct pool {
	CUmemoryPool pool; /* NULL: not asked for */
	CUcontext context; /* the last one that took memory from it; NULL: that has ended */
	int shared;	   /* with other devices: what it gives out is the driver's from then on */
	uint64_t now[FIGURES], high[FIGURES];
};

static struct {
	pthread_mutex_t lock;
	struct pool list[LIEN_PLAIN_DEVICES];
} pools LIEN_ZERO_IN_CHILD;

static struct pool *pool_of(uint64_t pool)
{
	unsigned i;

	for (i = 0; pool && i < LIEN_PLAIN_DEVICES; i++)
		if ((uintptr_t)__atomic_load_n(&pools.list[i].pool, __ATOMIC_ACQUIRE) == pool)
			return &pools.list[i];
	return NULL;
}

/* Adds to the bytes of a pool. */
static void account(uint64_t key, int64_t used, int64_t reserved)
{
	const int64_t more[FIGURES] = {[USED] = used, [RESERVED] = reserved};
	struct pool *pool = pool_of(key);
	unsigned i;

	if (!pool)
		return; /* plain memory, freed in a stream */
	LIEN_LOCKED(&pools.lock);
	for (i = 0; i < FIGURES; i++) {
		pool->now[i] += more[i];
		if (pool->now[i] > pool->high[i])
			pool->high[i] = pool->now[i];
	}
}

/* Returns whether the application has let other devices use the pool's memory. */
LIEN_TRANSLATED static int is_shared(CUmemoryPool pool, CUdevice own)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	CUmemAccess_flags flags;
	int count = 0;

	if (LIEN_REAL(cuDeviceGetCount)(&count))
		return 1;
	for (location.id = 0; location.id < count; location.id++) {
		flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
		if (location.id != own &&
			(LIEN_REAL(cuMemPoolGetAccess)(&flags, pool, &location) || flags))
			return 1;
	}
	return 0;
}

/* Returns the pool from which memory of the device is to come, if that is ours: `wanted`, or the
 * device's current one. Notes that the context takes memory from it. */
LIEN_TRANSLATED static CUmemoryPool choose(CUdevice device, CUmemoryPool wanted, CUcontext context)
{
	struct pool *known =
		device >= 0 && device < LIEN_PLAIN_DEVICES ? &pools.list[device] : NULL;
	CUmemoryPool pool = NULL, current = wanted;

	if (!known || known->shared || LIEN_REAL(cuDeviceGetDefaultMemPool)(&pool, device) ||
		(!wanted && LIEN_REAL(cuDeviceGetMemPool)(&current, device)) || current != pool)
		return NULL;
	if (!known->pool) {
		known->shared = is_shared(pool, device);
		__atomic_store_n(&known->pool, pool, __ATOMIC_RELEASE);
		if (known->shared)
			return NULL;
	}
	if (__atomic_load_n(&known->context, __ATOMIC_RELAXED) != context)
		__atomic_store_n(&known->context, context, __ATOMIC_RELAXED);
	return pool;
}

CUcontext lien_plain_pool_context(CUdevice device)
{
	return __atomic_load_n(&pools.list[device].context, __ATOMIC_RELAXED);
}

static LIEN_PLAIN(
	cuMemPoolGetAttribute, CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = LIEN_REAL(cuMemPoolGetAttribute)(handle, attribute, value);
	const struct pool *pool = pool_of((uintptr_t)handle);
	unsigned i;

	if (result || !pool)
		return result;
	LIEN_LOCKED(&pools.lock);
	for (i = 0; i < FIGURES; i++)
		if (attribute == attributes[i].now)
			*(uint64_t *)value += pool->now[i];
		else if (attribute == attributes[i].high)
			*(uint64_t *)value += pool->high[i];
	return CUDA_SUCCESS;
}

/* The high marks can be set to 0, which makes them what there is now. */
static LIEN_PLAIN(
	cuMemPoolSetAttribute, CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = LIEN_REAL(cuMemPoolSetAttribute)(handle, attribute, value);
	struct pool *pool = pool_of((uintptr_t)handle);
	unsigned i;

	if (result || !pool)
		return result;
	LIEN_LOCKED(&pools.lock);
	for (i = 0; i < FIGURES; i++)
		if (attribute == attributes[i].high)
			pool->high[i] = pool->now[i];
	return CUDA_SUCCESS;
}

/* The driver has set the access of the pool's memory, and so do we of what is ours. */
static LIEN_PLAIN(
	cuMemPoolSetAccess, CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
	CUresult result = LIEN_REAL(cuMemPoolSetAccess)(handle, access, count);
	struct pool *pool = pool_of((uintptr_t)handle);
	struct lien_heap_range chunk = {0};
	struct lien_heap_key key;

	if (result || !pool)
		return result;
	pool->shared = 1;
	while (!result && lien_heap_next(&lien_plain_heap, chunk.base + chunk.bytes, &chunk, &key))
		if (key.context == (uintptr_t)handle)
			result = LIEN_REAL(cuMemSetAccess)(chunk.base, chunk.bytes, access, count);
	return result;
}

void lien_plain_pool_reset(CUdevice device)
{
	struct pool *pool = device >= 0 && device < LIEN_PLAIN_DEVICES ? &pools.list[device] : NULL;

	if (!pool || !pool->pool)
		return;
	lien_plain_drop((uintptr_t)pool->pool);
	LIEN_LOCKED(&pools.lock);
	pool->now[USED] = pool->now[RESERVED] = 0;
}

/* --- streams ---------------------------------------------------------------------------------- */

/* So many of a stream's frees, at most, may be in another order than their events. */
#define FREEING_MAX 64

/* A free that the stream may not have reached yet. */
struct point {
	TAILQ_ENTRY(point) entry;
	CUevent event;
	uint64_t turn; /* of the order; 0: none, the event may be recorded */
};

TAILQ_HEAD(points, point);

/* A stream in which memory has been freed. All of this is protected by the heap's lock. */
struct stream {
	LIST_ENTRY(stream) entry;
	unsigned long long id; /* never given to another stream */
	CUcontext context;     /* NULL: has ended */
	struct lien_heap_order order;
	struct points pending, unused; /* the oldest first */
	unsigned users;		       /* threads that use this: it stays */
};

static LIST_HEAD(, stream) streams LIEN_ZERO_IN_CHILD;

/* Forgets one of the context whose work is done and in which nothing is parked; it may have been
 * destroyed. Returns NULL: there is none. */
static struct stream *forget_one(CUcontext context)
{
	struct stream *stream;

	LIEN_LOCKED(&lien_plain_heap.lock);
	LIST_FOREACH (stream, &streams, entry)
		if (!stream->users && TAILQ_EMPTY(&stream->pending) && !stream->order.pieces &&
			(!stream->context || stream->context == context))
			break;
	if (stream)
		LIST_REMOVE(stream, entry);
	return stream;
}

/* Frees the points; `live`: and their events, which are not gone with their context. */
LIEN_TRANSLATED static void free_points(struct points *points, int live)
{
	struct point *point;

	while ((point = TAILQ_FIRST(points))) {
		TAILQ_REMOVE(points, point, entry);
		if (live)
			LIEN_REAL(cuEventDestroy_v2)(point->event);
		free(point);
	}
}

LIEN_TRANSLATED static void forget_idle(CUcontext context)
{
	struct stream *stream;

	while ((stream = forget_one(context))) {
		free_points(&stream->unused, 1);
		free(stream);
	}
}

/* Finds the stream; let_go() it. If there is none, `made` becomes it, if that is given. NULL:
 * nothing has been freed in it. */
static struct stream *get(const struct lien_plain_stream *in, struct stream *made)
{
	struct stream *stream;

	LIEN_LOCKED(&lien_plain_heap.lock);
	LIST_FOREACH (stream, &streams, entry)
		if (stream->id == in->id && stream->context == in->context)
			break;
	if (!stream && made) {
		made->id = in->id;
		made->context = in->context;
		TAILQ_INIT(&made->pending);
		TAILQ_INIT(&made->unused);
		LIST_INSERT_HEAD(&streams, made, entry);
		stream = made;
	}
	if (stream)
		stream->users++;
	return stream;
}

/* The same; makes it if there is none. NULL: out of memory. */
LIEN_TRANSLATED static struct stream *get_or_make(const struct lien_plain_stream *in)
{
	struct stream *stream = get(in, NULL), *made;

	if (stream)
		return stream;
	forget_idle(in->context);
	made = calloc(1, sizeof(*made));
	stream = made ? get(in, made) : NULL;
	if (stream != made)
		free(made);
	return stream;
}

static void let_go(struct stream *stream)
{
	LIEN_LOCKED(&lien_plain_heap.lock);
	stream->users--;
}

/* Goes from one stream of the context to the next; NULL: to the first, or it was the last. */
static struct stream *next_of(CUcontext context, struct stream *stream)
{
	struct stream *next;

	LIEN_LOCKED(&lien_plain_heap.lock);
	next = stream ? LIST_NEXT(stream, entry) : LIST_FIRST(&streams);
	while (next && next->context != context)
		next = LIST_NEXT(next, entry);
	if (next)
		next->users++;
	if (stream)
		stream->users--;
	return next;
}

void lien_plain_pool_end(CUcontext context)
{
	struct stream *stream;
	CUcontext last;
	unsigned i;

	for (i = 0; i < LIEN_PLAIN_DEVICES; i++) {
		last = context;
		__atomic_compare_exchange_n(
			&pools.list[i].context, &last, NULL, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
	LIEN_LOCKED(&lien_plain_heap.lock);
	LIST_FOREACH (stream, &streams, entry) {
		if (stream->context != context)
			continue;
		stream->context = NULL;
		stream->order.reached = stream->order.freed;
		free_points(&stream->pending, 0);
		free_points(&stream->unused, 0);
	}
}

/* --- how far they have come ------------------------------------------------------------------- */

/* A copy; .turn 0: there is none. */
static struct point oldest(struct stream *stream)
{
	LIEN_LOCKED(&lien_plain_heap.lock);
	return TAILQ_EMPTY(&stream->pending) ? (struct point){.turn = 0}
					     : *TAILQ_FIRST(&stream->pending);
}

/* Another thread may have found that as well, and have recorded the event again. */
static void has_reached(struct stream *stream, const struct point *reached)
{
	struct point *point;

	LIEN_LOCKED(&lien_plain_heap.lock);
	point = TAILQ_FIRST(&stream->pending);
	if (!point || point->event != reached->event || point->turn != reached->turn)
		return;
	stream->order.reached = point->turn;
	point->turn = 0;
	TAILQ_REMOVE(&stream->pending, point, entry);
	TAILQ_INSERT_HEAD(&stream->unused, point, entry);
}

/* Returns whether it has come further. In another mode a question about an event invalidates
 * captures. An error other than "not ready" means that the context is broken, and its work over. */
LIEN_TRANSLATED static int look_at(struct stream *stream, int wait)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct point point = oldest(stream);
	CUresult result;
	int any = 0;

	if (!point.turn || LIEN_REAL(cuThreadExchangeStreamCaptureMode)(&mode))
		return 0;
	for (; point.turn; point = oldest(stream), any = 1) {
		result = wait ? LIEN_REAL(cuEventSynchronize)(point.event)
			      : LIEN_REAL(cuEventQuery)(point.event);
		if (result == CUDA_ERROR_NOT_READY)
			break;
		has_reached(stream, &point);
	}
	LIEN_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return any;
}

/* Returns whether any has come further. */
LIEN_TRANSLATED static int look_at_all(CUcontext context, int wait)
{
	struct stream *stream = NULL;
	int any = 0;

	while (context && (stream = next_of(context, stream)))
		any |= look_at(stream, wait);
	return any;
}

static int any_parked(void)
{
	return __atomic_load_n(&lien_plain_heap.parked, __ATOMIC_RELAXED) != 0;
}

/* Checks how far the streams of the current context have come; with `wait`, waits for them. */
LIEN_TRANSLATED static void look(int wait)
{
	if (any_parked())
		look_at_all(lien_plain_current(), wait);
}

/* --- freeing ---------------------------------------------------------------------------------- */

/* Takes an unused event; NULL: there is none. */
static struct point *take_point(struct stream *stream)
{
	struct point *point;

	LIEN_LOCKED(&lien_plain_heap.lock);
	point = TAILQ_FIRST(&stream->unused);
	if (point)
		TAILQ_REMOVE(&stream->unused, point, entry);
	return point;
}

/* Parks the block if the event behind it could be recorded, and keeps the event. */
static CUresult park(struct stream *stream, const struct lien_heap_block *block,
	struct point *point, CUresult recorded)
{
	CUresult result = recorded;

	LIEN_LOCKED(&lien_plain_heap.lock);
	if (!result && lien_heap_park(&lien_plain_heap, block, &stream->order))
		result = CUDA_ERROR_INVALID_VALUE; /* a thread was faster */
	else if (!result)
		point->turn = stream->order.freed;
	if (!stream->context) /* which the event has ended with */
		free(point);
	else if (point->turn)
		TAILQ_INSERT_TAIL(&stream->pending, point, entry);
	else
		TAILQ_INSERT_HEAD(&stream->unused, point, entry);
	return result;
}

LIEN_TRANSLATED CUresult lien_plain_pool_park(
	const struct lien_plain_stream *in, const struct lien_heap_block *block)
{
	struct stream *stream = get_or_make(in);
	CUresult result = CUDA_SUCCESS;
	struct point *point;

	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	point = take_point(stream);
	if (!point && look_at(stream, 0))
		point = take_point(stream);
	if (!point) {
		point = calloc(1, sizeof(*point));
		result = point ? lien_plain_make_event(in->context, &point->event)
			       : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result)
		free(point);
	else
		result = park(
			stream, block, point, LIEN_REAL(cuEventRecord)(point->event, in->handle));
	let_go(stream);
	if (!result)
		account(block->key.context, -(int64_t)block->bytes, 0);
	return result;
}

/* --- when memory is given back ---------------------------------------------------------------- */

/* Frees chunks that nobody has memory in, of the pool until it has no more than that. NULL: all
 * those of no pool. */
LIEN_TRANSLATED static void trim(const struct pool *pool, uint64_t keep)
{
	const uint64_t key = pool ? (uintptr_t)pool->pool : 0;
	struct lien_heap_range chunk;

	while ((!pool || pool->now[RESERVED] > keep) &&
		lien_heap_trim(&lien_plain_heap, key, &chunk)) {
		lien_plain_unmap(chunk);
		__atomic_fetch_sub(&lien_plain_heap.trimmed, 1, __ATOMIC_RELEASE);
		account(key, 0, -(int64_t)chunk.bytes);
	}
}

/* Frees chunks of pools that nobody has memory in, and of memory of no pool; `all`: not only what
 * the pools' thresholds do not let them keep. */
LIEN_TRANSLATED static void release_chunks(int all)
{
	uint64_t keep;
	unsigned i;

	trim(NULL, 0);
	for (i = 0; i < LIEN_PLAIN_DEVICES; i++) {
		keep = 0;
		if (!pools.list[i].now[RESERVED] ||
			(!all && LIEN_REAL(cuMemPoolGetAttribute)(pools.list[i].pool,
					 CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep)))
			continue;
		trim(&pools.list[i], keep);
	}
}

LIEN_TRANSLATED void lien_plain_reap(void)
{
	const struct timespec moment = {.tv_nsec = 20000};

	look(1);
	release_chunks(1);
	/* Until other threads have freed what they are about to. */
	while (__atomic_load_n(&lien_plain_heap.trimmed, __ATOMIC_ACQUIRE))
		nanosleep(&moment, NULL);
}

static int any_reserved(void)
{
	unsigned i;

	for (i = 0; i < LIEN_PLAIN_DEVICES; i++)
		if (__atomic_load_n(&pools.list[i].now[RESERVED], __ATOMIC_RELAXED))
			return 1;
	return 0;
}

/* Somebody has synchronized: frees chunks that the pools do not keep. Memory that is away is given
 * back later: nobody is short of it, and to unmap it would begin a restore. */
LIEN_TRANSLATED static void synchronized(void)
{
	if ((!any_parked() && !any_reserved()) || lien_gate_is_shut())
		return;
	look(0);
	release_chunks(0);
}

static LIEN_PLAIN(cuMemPoolTrimTo, CUmemoryPool handle, size_t keep)
{
	struct pool *pool = pool_of((uintptr_t)handle);

	if (pool && pool->now[RESERVED] > keep && !lien_gate_is_shut()) {
		look(0);
		trim(pool, keep);
	}
	return LIEN_REAL(cuMemPoolTrimTo)(handle, keep);
}

static LIEN_PLAIN(cuMemGetInfo_v2, size_t *free, size_t *total)
{
	synchronized();
	return LIEN_REAL(cuMemGetInfo_v2)(free, total);
}

LIEN_TRANSLATED void lien_plain_pool_given(const struct lien_heap_block *block)
{
	account(block->key.context, -(int64_t)block->bytes, 0);
	synchronized();
}

#define SYNCHRONIZES(name, parameter, argument)                                                    \
	static LIEN_PLAIN(name, parameter)                                                         \
	{                                                                                          \
		CUresult result = LIEN_REAL(name)(argument);                                       \
                                                                                                   \
		if (!result)                                                                       \
			synchronized();                                                            \
		return result;                                                                     \
	}

SYNCHRONIZES(cuCtxSynchronize, void, )
SYNCHRONIZES(cuCtxSynchronize_v2, CUcontext context, context)
SYNCHRONIZES(cuStreamSynchronize, CUstream stream, stream)
SYNCHRONIZES(cuStreamSynchronize_ptsz, CUstream stream, stream)
SYNCHRONIZES(cuEventSynchronize, CUevent event, event)

/* --- allocating ------------------------------------------------------------------------------- */

LIEN_TRANSLATED static int may(CUmemoryPool pool, CUmemPool_attribute reuse)
{
	int value = 0;

	return !LIEN_REAL(cuMemPoolGetAttribute)(pool, reuse, &value) && value;
}

/* Waits in the stream for what is pending in the other one. Its events stay while this thread uses
 * it; one that has been recorded again meanwhile stands for more. */
LIEN_TRANSLATED static void wait_in(CUstream handle, struct stream *other)
{
	CUevent events[FREEING_MAX];
	struct point *point;
	unsigned i, count = 0;

	pthread_mutex_lock(&lien_plain_heap.lock);
	TAILQ_FOREACH_REVERSE (point, &other->pending, points, entry)
		if (count < FREEING_MAX)
			events[count++] = point->event;
	pthread_mutex_unlock(&lien_plain_heap.lock);
	for (i = 0; i < count; i++)
		if (LIEN_REAL(cuStreamWaitEvent)(handle, events[i], 0))
			LIEN_REAL(cuEventSynchronize)(events[i]);
}

/* Takes a place that another stream of the context has freed, and has not reached. */
LIEN_TRANSLATED static int reuse_pending(const struct lien_plain_place *place, uint64_t bytes,
	const struct lien_plain_stream *in, CUdeviceptr *ptr)
{
	struct stream *other = NULL;

	while ((other = next_of(in->context, other))) {
		if (!lien_plain_reuse(place, bytes, &other->order, ptr))
			continue;
		wait_in(in->handle, other);
		let_go(other);
		return 1;
	}
	return 0;
}

/* Gives out a place that a stream of the context has freed, or makes this stream wait until another
 * one has. Returns whether there was one. */
LIEN_TRANSLATED static int reuse(const struct lien_plain_stream *in,
	const struct lien_plain_place *place, uint64_t bytes, CUdeviceptr *ptr)
{
	const CUmemoryPool pool = (CUmemoryPool)(uintptr_t)place->key.context;
	struct stream *own = get(in, NULL);
	struct lien_heap_order *order = own ? &own->order : NULL;
	int found = lien_plain_reuse(place, bytes, order, ptr);

	if (!found && any_parked() && may(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC))
		found = look_at_all(in->context, 0) && lien_plain_reuse(place, bytes, order, ptr);
	if (!found && any_parked() && may(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES))
		found = reuse_pending(place, bytes, in, ptr);
	if (own)
		let_go(own);
	return found;
}

LIEN_TRANSLATED int lien_plain_pool_alloc(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool wanted, CUstream handle, const void *caller)
{
	struct lien_plain_stream in = {.handle = handle};
	struct lien_plain_place place;
	CUmemoryPool pool;
	uint64_t made = 0;

	if (!ptr || !bytes || lien_plain_is_capturing(handle) ||
		!lien_plain_place(&place, caller) ||
		LIEN_REAL(cuStreamGetCtx)(handle, &in.context) ||
		(uintptr_t)in.context != place.key.context ||
		LIEN_REAL(cuStreamGetId)(handle, &in.id))
		return 0;
	pool = choose(place.key.device, wanted, in.context);
	if (!pool)
		return 0;
	place.key.context = (uintptr_t)pool;
	place.key.pool = 1;
	if (!reuse(&in, &place, bytes, ptr) && lien_plain_take(&place, bytes, &made, ptr)) {
		lien_plain_reap();
		if (lien_plain_take(&place, bytes, &made, ptr))
			return 0;
	}
	account(place.key.context, bytes, made);
	return 1;
}
