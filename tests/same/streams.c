// SPDX-License-Identifier: BSD-2-Clause
/* Streams, and events in them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "same.h"

#define STREAMS	   24
#define MADE_MAX   12
#define LEGACY	   ((CUstream)1)
#define PER_THREAD ((CUstream)2)

static struct stream streams[STREAMS];
static struct event events[STREAMS];
static unsigned streams_count, events_count;

/* --- the tables --- */

struct stream *stream_add(CUstream handle, struct context *context)
{
	unsigned i = 0;

	while (i < STREAMS && streams[i].handle)
		i++;
	if (i == STREAMS)
		abort();
	streams[i] = (struct stream){++streams_count, handle, context, false};
	return &streams[i];
}

static unsigned made(void)
{
	unsigned count = 0;

	for (unsigned i = 0; i < STREAMS; i++)
		count += streams[i].handle != NULL;
	return count;
}

/* Mostly one of the current context. */
struct stream *stream_made(void)
{
	struct stream *found[STREAMS];
	bool any = one_in(4);
	unsigned count = 0;

	for (unsigned i = 0; i < STREAMS; i++)
		if (streams[i].handle && (any || streams[i].context == current()))
			found[count++] = &streams[i];
	return count ? found[below(count)] : NULL;
}

struct stream stream_any(void)
{
	static const CUstream defaults[] = {NULL, NULL, LEGACY, PER_THREAD};
	struct stream *stream = one_in(3) ? NULL : stream_made();

	return stream ? *stream : (struct stream){.handle = ANY(defaults)};
}

/* What is put into a default stream is waited for at once, which a capture may forbid. */
struct stream stream_to_work(void)
{
	struct stream stream = stream_any();

	return capture.stream && !stream.number ? *capture.stream : stream;
}

/* NULL: those whose context is gone. */
void stream_gone(struct stream *stream)
{
	for (unsigned i = 0; i < STREAMS; i++)
		if (streams[i].handle &&
			(stream ? stream == &streams[i] : !streams[i].context->alive))
			streams[i].handle = NULL;
}

const char *stream_name(const struct stream *stream)
{
	static char name[16];

	if (!stream->number)
		return !stream->handle ? "0" : stream->handle == LEGACY ? "legacy" : "per-thread";
	snprintf(name, sizeof(name), "s%u", stream->number);
	return name;
}

/* Who shares a default stream, and in which context, is not followed: it is waited for at once. */
void stream_worked(const struct stream *stream)
{
	__typeof__(&cuStreamSynchronize) wait = names_find("cuStreamSynchronize");
	__typeof__(&cuCtxSynchronize) wait_all = names_find("cuCtxSynchronize");

	if (capture.stream && capture.stream->number == stream->number)
		return;
	for (unsigned i = 0; i < STREAMS; i++)
		if (stream->number && streams[i].handle && streams[i].number == stream->number)
			streams[i].pending = true;
	if (!stream->number)
		say(", waits: %d", capture.stream ? wait(stream->handle) : wait_all());
}

bool stream_captures(const struct stream *stream)
{
	__typeof__(&cuStreamIsCapturing) ask = names_find("cuStreamIsCapturing");
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return capture.stream && !ask(stream->handle, &status) &&
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool streams_rest(void)
{
	__typeof__(&cuStreamSynchronize) wait = names_find("cuStreamSynchronize");
	CUresult result;

	for (unsigned i = 0; i < STREAMS; i++) {
		if (!streams[i].handle || !streams[i].pending)
			continue;
		if (capture.stream == &streams[i])
			return false;
		result = wait(streams[i].handle);
		if (result) {
			say("%s is not at rest: %d", stream_name(&streams[i]), result);
			return false;
		}
		streams[i].pending = false;
	}
	return true;
}

struct event *event_add(CUevent handle, struct context *context)
{
	unsigned i = 0;

	while (i < STREAMS && events[i].handle)
		i++;
	if (i == STREAMS)
		abort();
	events[i] = (struct event){++events_count, handle, context};
	return &events[i];
}

static unsigned events_made(void)
{
	unsigned count = 0;

	for (unsigned i = 0; i < STREAMS; i++)
		count += events[i].handle != NULL;
	return count;
}

struct event *event_any(void)
{
	struct event *found[STREAMS];
	unsigned count = 0;

	for (unsigned i = 0; i < STREAMS; i++)
		if (events[i].handle)
			found[count++] = &events[i];
	return count ? found[below(count)] : NULL;
}

void event_gone(struct event *event)
{
	for (unsigned i = 0; i < STREAMS; i++)
		if (events[i].handle && (event ? event == &events[i] : !events[i].context->alive))
			events[i].handle = NULL;
}

/* --- what is drawn --- */

static void create(void)
{
	unsigned flags = one_in(15) ? 6 : below(2);
	CUstream handle = NULL;
	CUresult result;

	if (made() >= MADE_MAX)
		return;
	if (one_in(3)) {
		LOOK_UP(call, cuStreamCreateWithPriority);
		say("(%u, 0)", flags);
		result = call(&handle, flags, 0);
	} else {
		LOOK_UP(call, cuStreamCreate);
		say("(%u)", flags);
		result = call(&handle, flags);
	}
	if (!say_result(result))
		say(" s%u", stream_add(handle, current())->number);
}

static void destroy(void)
{
	struct stream *stream = stream_made();

	if (!stream || capture.stream || !streams_rest())
		return;
	LOOK_UP(call, cuStreamDestroy_v2, "cuStreamDestroy");
	say("(s%u)", stream->number);
	if (!say_result(call(stream->handle)))
		stream_gone(stream);
}

static void synchronize(void)
{
	struct stream stream = stream_any();

	LOOK_UP(call, cuStreamSynchronize, "cuStreamSynchronize_ptsz");
	say("(%s)", stream_name(&stream));
	say_result(call(stream.handle));
}

/* Whether there is work left is chance on a real device: then it is waited for. */
static void query(void)
{
	struct stream stream = stream_any();
	unsigned tries = 0;
	CUresult result;

	if (!capture.stream && !streams_rest())
		return;
	LOOK_UP(call, cuStreamQuery, "cuStreamQuery_ptsz");
	say("(%s)", stream_name(&stream));
	do
		result = call(stream.handle);
	while (result == CUDA_ERROR_NOT_READY && ++tries < 1000000);
	say_result(result);
}

static void context_of(void)
{
	struct stream stream = stream_any();
	CUcontext handle = NULL;

	LOOK_UP(call, cuStreamGetCtx, "cuStreamGetCtx_ptsz");
	say("(%s)", stream_name(&stream));
	if (!say_result(call(stream.handle, &handle)))
		say(" %s", context_name(handle));
}

static void host_function(void *data)
{
	++*(unsigned *)data;
}

static void launch_host(void)
{
	static unsigned calls;
	struct stream stream = stream_to_work();

	if (!streams_rest())
		return;
	LOOK_UP(call, cuLaunchHostFunc, "cuLaunchHostFunc_ptsz");
	say("(%s)", stream_name(&stream));
	if (say_result(call(stream.handle, host_function, &calls)))
		return;
	stream_worked(&stream);
	if (!capture.stream && streams_rest())
		say(" call %u", calls);
}

static void event_create(void)
{
	unsigned flags = one_in(15) ? 64 : below(4);
	CUevent handle = NULL;

	if (events_made() >= MADE_MAX)
		return;
	LOOK_UP(call, cuEventCreate);
	say("(%u)", flags);
	if (!say_result(call(&handle, flags)))
		say(" e%u", event_add(handle, current())->number);
}

static void event_destroy(void)
{
	struct event *event = event_any();

	if (!event || capture.stream)
		return;
	LOOK_UP(call, cuEventDestroy_v2, "cuEventDestroy");
	say("(e%u)", event->number);
	if (!say_result(call(event->handle)))
		event_gone(event);
}

static void event_record(void)
{
	struct event *event = event_any();
	struct stream stream = stream_any();

	if (!event)
		return;
	LOOK_UP(call, cuEventRecord, "cuEventRecord_ptsz");
	say("(e%u, %s)", event->number, stream_name(&stream));
	say_result(call(event->handle, stream.handle));
}

static void event_wait(void)
{
	struct event *event = event_any();
	struct stream stream = stream_any();

	if (!event)
		return;
	LOOK_UP(call, cuStreamWaitEvent, "cuStreamWaitEvent_ptsz");
	say("(%s, e%u)", stream_name(&stream), event->number);
	say_result(call(stream.handle, event->handle, one_in(20) ? 8 : 0));
}

static void event_ask(void)
{
	struct event *event = event_any();
	unsigned tries = 0;
	CUresult result;

	if (!event)
		return;
	if (one_in(2)) {
		LOOK_UP(call, cuEventSynchronize);
		say("(e%u)", event->number);
		say_result(call(event->handle));
		return;
	}
	LOOK_UP(call, cuEventQuery);
	say("(e%u)", event->number);
	do
		result = call(event->handle);
	while (result == CUDA_ERROR_NOT_READY && ++tries < 1000000);
	say_result(result);
}

const struct op stream_ops[] = {
	{create, 10},
	{destroy, 5},
	{synchronize, 12},
	{query, 6},
	{context_of, 5},
	{launch_host, 4},
	{event_create, 5},
	{event_destroy, 3},
	{event_record, 8},
	{event_wait, 8},
	{event_ask, 8},
	{0},
};
