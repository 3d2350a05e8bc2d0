// SPDX-License-Identifier: BSD-2-Clause
/*
 * Stream-ordered memory. A block is given out at once. A free parks it: the same stream may have
 * its place at once, others when the stream has come to that point, which an event tells. Rather
 * than make a new chunk, a stream waits for another one's frees, as it does with the driver's own
 * pools.
 *
 * An event belongs to a context, and is gone with it. So only events of the context that the caller
 * uses are touched: nobody may destroy that meanwhile.
 */
#include <stdlib.h>
#include <sys/queue.h>

#include "control/plain/memory.h"

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
	if (err)
		return CUDA_ERROR_INVALID_VALUE; /* a thread was faster */
	return result;
}

LIEN_TRANSLATED CUresult lien_plain_stream_park(
	const struct lien_plain_stream *in, const struct lien_heap_block *block)
{
	struct stream *stream = get_or_make(in->id, in->context);
	CUresult result;

	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = park_in(stream, block, in->handle);
	let_go(stream);
	return result;
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

LIEN_TRANSLATED int lien_plain_stream_reuse(const struct lien_plain_stream *in,
	const struct lien_plain_place *place, uint64_t bytes, CUdeviceptr *ptr)
{
	const CUmemoryPool pool = (CUmemoryPool)(uintptr_t)place->key.context;
	struct stream *own = get(in->id, in->context);
	struct lien_heap_order *order = own ? &own->order : NULL;
	int found;

	found = lien_plain_reuse(place, bytes, order, ptr) ||
		(lien_plain_any_parked() &&
			((may(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) &&
				 look_at_all(in->context, 0) &&
				 lien_plain_reuse(place, bytes, order, ptr)) ||
				(may(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) &&
					reuse_pending(place, bytes, in, ptr))));
	if (own)
		let_go(own);
	return found;
}

void lien_plain_stream_forked(void)
{
	LIST_INIT(&streams);
}
