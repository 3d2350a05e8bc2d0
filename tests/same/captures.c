// SPDX-License-Identifier: BSD-2-Clause
/* Stream capture: one at a time, for a few steps, by threads in any mode. Graphs are not launched.
 */
#include "same.h"

#define STEPS_MAX 8

struct capture capture;

static void begin(void)
{
	CUstreamCaptureMode mode = below(3);
	struct stream *stream = stream_made();

	if (capture.stream || !stream || !streams_rest())
		return;
	LOOK_UP(call, cuStreamBeginCapture_v2, "cuStreamBeginCapture_v2_ptsz");
	say("(s%u, %u)", stream->number, mode);
	if (!say_result(call(stream->handle, mode)))
		capture = (struct capture){.stream = stream, .mode = mode, .thread = thread_now};
}

/* Only the thread that began it may end it, unless the mode is relaxed: others try. */
static void end(void)
{
	__typeof__(&cuGraphDestroy) destroy = names_find("cuGraphDestroy");
	CUgraph graph = NULL;
	CUresult result;

	if (!capture.stream)
		return;
	LOOK_UP(call, cuStreamEndCapture, "cuStreamEndCapture_ptsz");
	say("(s%u)", capture.stream->number);
	result = say_result(call(capture.stream->handle, &graph));
	say("%s", graph ? " a graph" : "");
	if (graph)
		say(" destroyed: %d", destroy(graph));
	if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
		capture.stream = NULL;
}

static void status(void)
{
	CUstreamCaptureStatus status = -1;
	struct stream stream = stream_any();

	if (!one_in(6) && capture.stream)
		stream = *capture.stream;
	LOOK_UP(call, cuStreamIsCapturing, "cuStreamIsCapturing_ptsz");
	say("(%s)", stream_name(&stream));
	if (!say_result(call(stream.handle, &status)))
		say(" %d", status);
}

static void exchange(void)
{
	CUstreamCaptureMode mode = one_in(10) ? 9 : below(3);

	LOOK_UP(call, cuThreadExchangeStreamCaptureMode);
	say("(%u)", mode);
	if (!say_result(call(&mode)))
		say(" %u", mode);
}

const struct op capture_ops[] = {
	{begin, 4},
	{end, 25},
	{status, 4},
	{exchange, 3},
	{0},
};
