// SPDX-License-Identifier: BSD-2-Clause
/* Tracks which streams are being captured. */
#include <errno.h>
#include <stdlib.h>

#include "agent/graph/internal.h"

static struct lien_capture *capture_find(struct lien_process *process, uint64_t stream)
{
	struct lien_capture key = {.stream = stream};

	return RB_FIND(lien_capture_tree, &process->captures, &key);
}

int lien_graph_apply_capture_begin(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_capture *capture = capture_find(process, event->capture.stream);

	process->captured = true;
	if (capture)
		lien_pending_apply(graph, process, LIEN_CALL_CU_STREAM_DESTROY,
			event->capture.stream, 0, lien_graph_apply_stream_destroy);
	if (capture_find(process, event->capture.stream))
		return 0; /* a stream has one capture at a time: the previous end was missed */
	capture = calloc(1, sizeof(*capture));
	if (!capture)
		return -ENOMEM;
	capture->stream = event->capture.stream;
	RB_INSERT(lien_capture_tree, &process->captures, capture);
	return 0;
}

/* These results leave a capture running. Any other result ends it, most of them without a graph. */
static bool capture_goes_on(int result)
{
	return result == 1 /* INVALID_VALUE: none on this stream */ || result == 400 ||
	       result == 903 /* UNMATCHED: not the origin */ || result == 908 /* WRONG_THREAD */;
}

static void capture_drop(struct lien_process *process, uint64_t stream)
{
	struct lien_capture *capture = capture_find(process, stream);

	if (!capture)
		return;
	RB_REMOVE(lien_capture_tree, &process->captures, capture);
	free(capture);
}

int lien_graph_apply_capture_end(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	(void)graph;
	if (!capture_goes_on(event->result))
		capture_drop(process, event->capture.stream);
	return 0;
}

/* A stream's destruction ends its capture. */
int lien_graph_apply_stream_destroy(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	(void)graph;
	capture_drop(process, event->capture.stream);
	return 0;
}
