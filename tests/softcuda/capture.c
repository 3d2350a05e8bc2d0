/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Stream capture, as far as it concerns others: who captures, what a capture forbids, and that work
 * in a capturing stream is not executed. The graph that comes out is empty. The rules are those
 * that cuda.h gives at cuThreadExchangeStreamCaptureMode.
 */
#include <stdlib.h>
#include <sys/queue.h>
#include <unistd.h>

#include "softcuda.h"

struct soft_capture {
	LIST_ENTRY(soft_capture) entry;
	CUstream origin;
	CUstreamCaptureMode mode;
	pid_t thread;
	bool active; /* false: invalidated, waits for its end */
	CUgraph graph;
};

static LIST_HEAD(soft_captures, soft_capture) captures = LIST_HEAD_INITIALIZER(captures);
static _Atomic int capture_count; /* spares everybody the lock while nobody captures */
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool soft_capture_active(const struct soft_capture *capture)
{
	return capture->active;
}

void soft_capture_invalidate(struct soft_capture *capture)
{
	capture->active = false;
}

void soft_capture_join(CUstream stream, struct soft_capture *capture)
{
	if (!stream->capture)
		stream->capture = capture;
}

static bool forbids(const struct soft_capture *capture, pid_t thread)
{
	if (capture->thread == thread)
		return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	       capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult soft_capture_unsafe(void)
{
	CUresult result = CUDA_SUCCESS;
	struct soft_capture *capture;
	pid_t thread;

	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || !atomic_load(&capture_count))
		return CUDA_SUCCESS;
	thread = gettid();
	pthread_mutex_lock(&soft.objects);
	LIST_FOREACH (capture, &captures, entry) {
		if (forbids(capture, thread)) {
			capture->active = false;
			result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	pthread_mutex_unlock(&soft.objects);
	return result;
}

CUresult soft_capture_synchronized(CUcontext context)
{
	CUresult result = CUDA_SUCCESS;
	struct soft_capture *capture;

	if (!atomic_load(&capture_count))
		return CUDA_SUCCESS;
	pthread_mutex_lock(&soft.objects);
	LIST_FOREACH (capture, &captures, entry) {
		if (capture->origin->object.context == context) {
			capture->active = false;
			result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	pthread_mutex_unlock(&soft.objects);
	return result;
}

CUresult soft_capture_implicit(CUcontext context, bool invalidates)
{
	CUresult result = CUDA_SUCCESS;
	struct soft_capture *capture;

	LIST_FOREACH (capture, &captures, entry) {
		if (capture->origin->object.context != context ||
			capture->origin->flags & CU_STREAM_NON_BLOCKING)
			continue;
		if (invalidates)
			capture->active = false;
		result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	return result;
}

/* The capture is over: nobody takes part in it any more. */
static void capture_end(struct soft_capture *capture)
{
	struct soft_object *object;

	for (object = soft_object_first(); object; object = soft_object_after(object)) {
		if (object->kind == SOFT_STREAM && ((CUstream)object)->capture == capture)
			((CUstream)object)->capture = NULL;
		if (object->kind == SOFT_EVENT && ((CUevent)object)->capture == capture)
			((CUevent)object)->capture = NULL;
	}
	LIST_REMOVE(capture, entry);
	atomic_fetch_sub(&capture_count, 1);
	free(capture);
}

void soft_capture_drop(CUstream stream)
{
	struct soft_capture *capture = stream->capture;

	if (!capture)
		return;
	if (capture->origin == stream)
		capture_end(capture);
	else
		capture->active = false; /* a part of it can no longer be joined */
}

static CUgraph graph_new(void)
{
	CUgraph graph = soft_block_new(sizeof(*graph));

	if (graph)
		soft_object_add(&graph->object, SOFT_GRAPH, NULL);
	return graph;
}

/* soft.objects held. */
static CUresult begin(CUstream handle, CUgraph graph, CUstreamCaptureMode mode)
{
	struct soft_capture *capture;
	CUstream stream;
	CUresult result = soft_stream_find(handle, &stream);

	if (result)
		return result;
	if (!stream)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	capture = calloc(1, sizeof(*capture));
	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*capture = (struct soft_capture){
		.origin = stream, .mode = mode, .thread = gettid(), .active = true, .graph = graph};
	stream->capture = capture;
	LIST_INSERT_HEAD(&captures, capture, entry);
	atomic_fetch_add(&capture_count, 1);
	return CUDA_SUCCESS;
}

static bool mode_ok(CUstreamCaptureMode mode)
{
	return mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
	       mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
	       mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

static CUresult begin_new(CUstream stream, CUstreamCaptureMode mode)
{
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!mode_ok(mode))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&soft.objects);
	result = begin(stream, NULL, mode);
	pthread_mutex_unlock(&soft.objects);
	return result;
}

/* Dependencies name nodes of the graph; graphs have none here, so there can be none. */
static CUresult begin_graph(CUstream stream, CUgraph graph, size_t count, CUstreamCaptureMode mode)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!mode_ok(mode) || count)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&soft.objects);
	if (soft_object_is(graph, SOFT_GRAPH))
		result = begin(stream, graph, mode);
	pthread_mutex_unlock(&soft.objects);
	return result;
}

/* soft.objects held. */
static CUresult end(CUstream handle, CUgraph *graph)
{
	CUstream stream;
	CUresult result = soft_stream_find(handle, &stream);
	struct soft_capture *capture;

	if (result)
		return result;
	capture = stream ? stream->capture : NULL;
	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream)
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != gettid())
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	*graph = NULL;
	if (!capture->active) {
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	} else {
		*graph = soft_object_is(capture->graph, SOFT_GRAPH) ? capture->graph : graph_new();
		result = *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	capture_end(capture);
	return result;
}

static CUresult end_locked(CUstream stream, CUgraph *graph)
{
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&soft.objects);
	result = end(stream, graph);
	pthread_mutex_unlock(&soft.objects);
	return result;
}

SOFT_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	SOFT_FAULT();
	return begin_new(stream, mode);
}

SOFT_EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	SOFT_FAULT();
	return begin_new(stream, mode);
}

SOFT_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
	const CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count,
	CUstreamCaptureMode mode)
{
	SOFT_FAULT();
	(void)dependencies;
	(void)edges;
	return begin_graph(stream, graph, count, mode);
}

SOFT_EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
	const CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count,
	CUstreamCaptureMode mode)
{
	SOFT_FAULT();
	(void)dependencies;
	(void)edges;
	return begin_graph(stream, graph, count, mode);
}

SOFT_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	SOFT_FAULT();
	return end_locked(stream, graph);
}

SOFT_EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	SOFT_FAULT();
	return end_locked(stream, graph);
}

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status)
{
	CUstream stream;
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&soft.objects);
	result = soft_stream_find(handle, &stream);
	if (!result && (!stream || !stream->capture))
		*status = CU_STREAM_CAPTURE_STATUS_NONE;
	else if (!result)
		*status = stream->capture->active ? CU_STREAM_CAPTURE_STATUS_ACTIVE
						  : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
	pthread_mutex_unlock(&soft.objects);
	return result;
}

SOFT_EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	SOFT_FAULT();
	return is_capturing(stream, status);
}

SOFT_EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
	SOFT_FAULT();
	return is_capturing(stream, status);
}

SOFT_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode before = thread_mode;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!mode || !mode_ok(*mode))
		return CUDA_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!graph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&soft.objects);
	*graph = graph_new();
	pthread_mutex_unlock(&soft.objects);
	return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SOFT_EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&soft.objects);
	if (soft_object_is(graph, SOFT_GRAPH)) {
		soft_object_remove(&graph->object);
		soft_block_free(graph, sizeof(*graph));
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&soft.objects);
	return result;
}
