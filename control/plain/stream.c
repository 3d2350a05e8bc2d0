// SPDX-License-Identifier: BSD-2-Clause
/*
 * Stream-ordered memory. A block is given out at once. A free parks it: the same stream may have
 * its place at once, others when the stream has come to that point, which an event tells. Rather
 * than make a new chunk, a stream waits for another one's frees, as it does with the driver's own
 * pools. A graph's memory is the driver's.
 *
 * An event belongs to a context, and is gone with it. So only events of the context that the caller
 * uses are touched: nobody may destroy that meanwhile.
 */
#include <stdlib.h>
#include <sys/queue.h>

#include "control/plain/memory.h"

#define CALLER __builtin_return_address(0)

/* In the functions for per-thread default streams, 0 is the thread's. */
#define PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

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

static LIST_HEAD(, stream) streams;

/* --- streams ---------------------------------------------------------------------------------- */

static struct stream *find(unsigned long long id, CUcontext context)
{
	struct stream *stream;

	LIST_FOREACH (stream, &streams, entry)
		if (stream->id == id && stream->context == context)
			break;
	return stream;
}

/* Forgets one of the context whose work is done and in which nothing is parked; it may have been
 * destroyed. Returns NULL: there is none. */
static struct stream *forget_one(CUcontext context)
{
	struct stream *stream;

	LIST_FOREACH (stream, &streams, entry)
		if (!stream->users && TAILQ_EMPTY(&stream->pending) && !stream->order.pieces &&
			(!stream->context || stream->context == context))
			break;
	if (stream)
		LIST_REMOVE(stream, entry);
	return stream;
}

LIEN_TRANSLATED static void forget_idle(CUcontext context)
{
	struct stream *stream;
	struct point *point;

	for (;;) {
		lien_plain_lock();
		stream = forget_one(context);
		lien_plain_unlock();
		if (!stream)
			return;
		while ((point = TAILQ_FIRST(&stream->unused))) {
			TAILQ_REMOVE(&stream->unused, point, entry);
			LIEN_REAL(cuEventDestroy_v2)(point->event);
			free(point);
		}
		free(stream);
	}
}

/* Finds the stream; let_go() it. NULL: nothing has been freed in it. */
static struct stream *get(unsigned long long id, CUcontext context)
{
	struct stream *stream;

	lien_plain_lock();
	stream = find(id, context);
	if (stream)
		stream->users++;
	lien_plain_unlock();
	return stream;
}

/* The same; makes it if there is none. NULL: out of memory. */
LIEN_TRANSLATED static struct stream *get_or_make(unsigned long long id, CUcontext context)
{
	struct stream *stream = get(id, context), *made;

	if (stream)
		return stream;
	forget_idle(context);
	made = calloc(1, sizeof(*made));
	if (!made)
		return NULL;
	made->id = id;
	made->context = context;
	TAILQ_INIT(&made->pending);
	TAILQ_INIT(&made->unused);
	lien_plain_lock();
	stream = find(id, context);
	if (!stream) {
		stream = made;
		LIST_INSERT_HEAD(&streams, stream, entry);
	}
	stream->users++;
	lien_plain_unlock();
	if (stream != made)
		free(made);
	return stream;
}

static void let_go(struct stream *stream)
{
	lien_plain_lock();
	stream->users--;
	lien_plain_unlock();
}

/* Goes from one stream of the context to the next; NULL: to the first, or it was the last. */
static struct stream *next_of(CUcontext context, struct stream *stream)
{
	struct stream *next;

	lien_plain_lock();
	next = stream ? LIST_NEXT(stream, entry) : LIST_FIRST(&streams);
	while (next && next->context != context)
		next = LIST_NEXT(next, entry);
	if (next)
		next->users++;
	if (stream)
		stream->users--;
	lien_plain_unlock();
	return next;
}

/* The events are gone. */
static void free_points(struct points *points)
{
	struct point *point;

	while ((point = TAILQ_FIRST(points))) {
		TAILQ_REMOVE(points, point, entry);
		free(point);
	}
}

void lien_plain_stream_end(CUcontext context)
{
	struct stream *stream;

	lien_plain_pool_unuse(context);
	lien_plain_lock();
	LIST_FOREACH (stream, &streams, entry) {
		if (stream->context != context)
			continue;
		stream->context = NULL;
		stream->order.reached = stream->order.freed;
		free_points(&stream->pending);
		free_points(&stream->unused);
	}
	lien_plain_unlock();
}

/* --- how far they have come ------------------------------------------------------------------- */

/* A copy; .turn 0: there is none. */
static struct point oldest(struct stream *stream)
{
	struct point point = {.turn = 0};

	lien_plain_lock();
	if (!TAILQ_EMPTY(&stream->pending))
		point = *TAILQ_FIRST(&stream->pending);
	lien_plain_unlock();
	return point;
}

/* Another thread may have found that as well, and have recorded the event again. */
static void has_reached(struct stream *stream, const struct point *reached)
{
	struct point *point;

	lien_plain_lock();
	point = TAILQ_FIRST(&stream->pending);
	if (point && point->event == reached->event && point->turn == reached->turn) {
		stream->order.reached = point->turn;
		point->turn = 0;
		TAILQ_REMOVE(&stream->pending, point, entry);
		TAILQ_INSERT_HEAD(&stream->unused, point, entry);
	}
	lien_plain_unlock();
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

LIEN_TRANSLATED void lien_plain_look(int wait)
{
	if (lien_plain_any_parked())
		look_at_all(lien_plain_current(), wait);
}

LIEN_TRANSLATED void lien_plain_reap(void)
{
	lien_plain_look(1);
	lien_plain_release_chunks(1);
	lien_plain_trims_end();
}

/* --- freeing ---------------------------------------------------------------------------------- */

/* Takes an unused event; NULL: there is none. */
static struct point *take_point(struct stream *stream)
{
	struct point *point;

	lien_plain_lock();
	point = TAILQ_FIRST(&stream->unused);
	if (point)
		TAILQ_REMOVE(&stream->unused, point, entry);
	lien_plain_unlock();
	return point;
}

/* With the lock. */
static void put_point(struct stream *stream, struct point *point)
{
	if (!stream->context) /* which the event has ended with */
		free(point);
	else if (point->turn)
		TAILQ_INSERT_TAIL(&stream->pending, point, entry);
	else
		TAILQ_INSERT_HEAD(&stream->unused, point, entry);
}

LIEN_TRANSLATED CUresult lien_plain_make_event(CUcontext context, CUevent *event)
{
	int pushed;
	CUresult result = lien_plain_enter(context, &pushed);

	if (result)
		return result;
	result = LIEN_REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
	lien_plain_leave(pushed);
	return result;
}

LIEN_TRANSLATED static CUresult make_point(CUcontext context, struct point **made)
{
	struct point *point = calloc(1, sizeof(*point));
	CUresult result;

	if (!point)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = lien_plain_make_event(context, &point->event);
	if (result)
		free(point);
	else
		*made = point;
	return result;
}

LIEN_TRANSLATED static CUresult park_in(
	struct stream *stream, const struct lien_heap_block *block, CUstream handle)
{
	struct point *point = take_point(stream);
	CUresult result = CUDA_SUCCESS;
	int err = 0;

	if (!point && look_at(stream, 0))
		point = take_point(stream);
	if (!point)
		result = make_point(stream->context, &point);
	if (result)
		return result;
	result = LIEN_REAL(cuEventRecord)(point->event, handle);
	lien_plain_lock();
	if (!result)
		err = lien_plain_park(block, &stream->order);
	if (!result && !err)
		point->turn = stream->order.freed;
	put_point(stream, point);
	lien_plain_unlock();
	if (result || err)
		return result ? result : CUDA_ERROR_INVALID_VALUE; /* a thread was faster */
	lien_plain_account(block->key.context, -(int64_t)block->bytes, 0);
	return CUDA_SUCCESS;
}

LIEN_TRANSLATED static CUresult park(
	const struct lien_heap_block *block, CUdeviceptr ptr, CUstream handle)
{
	unsigned long long id;
	struct stream *stream;
	CUcontext context;
	CUresult result;

	/* The driver frees in a stream of any context, whatever is current. */
	result = LIEN_REAL(cuStreamGetCtx)(handle, &context);
	if (result)
		return result;
	if (lien_plain_refused(context))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (block->address != ptr)
		return CUDA_ERROR_INVALID_VALUE;
	if (LIEN_REAL(cuStreamGetId)(handle, &id)) /* a driver of before CUDA 12.0 */
		return lien_plain_cuMemFree_v2(block->address);
	stream = get_or_make(id, context);
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = park_in(stream, block, handle);
	let_go(stream);
	return result;
}

LIEN_TRANSLATED static int is_capturing(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return LIEN_REAL(cuStreamIsCapturing)(stream, &status) ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

LIEN_TRANSLATED CUresult lien_plain_cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	struct lien_heap_block block;

	if (!lien_plain_find(ptr, &block) || is_capturing(stream))
		return LIEN_REAL(cuMemFreeAsync)(lien_plain_hide(ptr), stream);
	return park(&block, ptr, stream);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
	struct lien_heap_block block;

	if (!lien_plain_find(ptr, &block) || is_capturing(PER_THREAD(stream)))
		return LIEN_REAL(cuMemFreeAsync_ptsz)(lien_plain_hide(ptr), stream);
	return park(&block, ptr, PER_THREAD(stream));
}

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

	lien_plain_lock();
	TAILQ_FOREACH_REVERSE (point, &other->pending, points, entry)
		if (count < FREEING_MAX)
			events[count++] = point->event;
	lien_plain_unlock();
	for (i = 0; i < count; i++)
		if (LIEN_REAL(cuStreamWaitEvent)(handle, events[i], 0))
			LIEN_REAL(cuEventSynchronize)(events[i]);
}

/* Takes a place that another stream of the context has freed, and has not reached. */
LIEN_TRANSLATED static int reuse_pending(const struct lien_plain_place *place, uint64_t bytes,
	CUcontext context, CUstream handle, CUdeviceptr *ptr)
{
	struct stream *other = NULL;

	while ((other = next_of(context, other))) {
		if (!lien_plain_reuse(place, bytes, &other->order, ptr))
			continue;
		wait_in(handle, other);
		let_go(other);
		return 1;
	}
	return 0;
}

LIEN_TRANSLATED static int reuse(const struct lien_plain_place *place, uint64_t bytes,
	struct stream *own, CUcontext context, CUstream handle, CUdeviceptr *ptr)
{
	const CUmemoryPool pool = (CUmemoryPool)(uintptr_t)place->key.context;
	struct lien_heap_order *order = own ? &own->order : NULL;

	return lien_plain_reuse(place, bytes, order, ptr) ||
	       (lien_plain_any_parked() &&
		       ((may(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) &&
				look_at_all(context, 0) &&
				lien_plain_reuse(place, bytes, order, ptr)) ||
			       (may(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) &&
				       reuse_pending(place, bytes, context, handle, ptr))));
}

/* Returns whether it gave out memory of ours. */
LIEN_TRANSLATED static int alloc_async(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool wanted, CUstream handle, const void *caller)
{
	struct lien_plain_place place;
	CUcontext context = NULL;
	unsigned long long id;
	struct stream *own;
	CUmemoryPool pool;
	int found;

	if (!ptr || !bytes || is_capturing(handle) || !lien_plain_place(&place, caller) ||
		LIEN_REAL(cuStreamGetCtx)(handle, &context) ||
		(uintptr_t)context != place.key.context || LIEN_REAL(cuStreamGetId)(handle, &id))
		return 0;
	pool = lien_plain_pool(place.key.device, wanted);
	if (!pool)
		return 0;
	place.key.context = (uintptr_t)pool;
	place.key.pool = 1;
	lien_plain_pool_use(place.key.device, context);
	own = get(id, context);
	found = reuse(&place, bytes, own, context, handle, ptr);
	if (own)
		let_go(own);
	if (!found && lien_plain_take(&place, bytes, ptr)) {
		lien_plain_reap();
		if (lien_plain_take(&place, bytes, ptr))
			return 0;
	}
	lien_plain_account(place.key.context, bytes, 0);
	return 1;
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	return alloc_async(ptr, bytes, NULL, stream, CALLER)
		       ? CUDA_SUCCESS
		       : LIEN_REAL(cuMemAllocAsync)(ptr, bytes, stream);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocAsync_ptsz(
	CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
	return alloc_async(ptr, bytes, NULL, PER_THREAD(stream), CALLER)
		       ? CUDA_SUCCESS
		       : LIEN_REAL(cuMemAllocAsync_ptsz)(ptr, bytes, stream);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocFromPoolAsync(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return pool && alloc_async(ptr, bytes, pool, stream, CALLER)
		       ? CUDA_SUCCESS
		       : LIEN_REAL(cuMemAllocFromPoolAsync)(ptr, bytes, pool, stream);
}

LIEN_TRANSLATED CUresult lien_plain_cuMemAllocFromPoolAsync_ptsz(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return pool && alloc_async(ptr, bytes, pool, PER_THREAD(stream), CALLER)
		       ? CUDA_SUCCESS
		       : LIEN_REAL(cuMemAllocFromPoolAsync_ptsz)(ptr, bytes, pool, stream);
}

void lien_plain_stream_forked(void)
{
	LIST_INIT(&streams);
}

LIEN_EXPORT_AS(cuMemFreeAsync, lien_plain_cuMemFreeAsync);
LIEN_EXPORT_AS(cuMemFreeAsync_ptsz, lien_plain_cuMemFreeAsync_ptsz);
LIEN_EXPORT_AS(cuMemAllocAsync, lien_plain_cuMemAllocAsync);
LIEN_EXPORT_AS(cuMemAllocAsync_ptsz, lien_plain_cuMemAllocAsync_ptsz);
LIEN_EXPORT_AS(cuMemAllocFromPoolAsync, lien_plain_cuMemAllocFromPoolAsync);
LIEN_EXPORT_AS(cuMemAllocFromPoolAsync_ptsz, lien_plain_cuMemAllocFromPoolAsync_ptsz);
