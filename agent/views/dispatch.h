/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The requests that a graph answers (`ps`, `mem`, `comms`, `graph`, `holders`, `check`): one table,
 * for the agent and for a recording.
 */
#ifndef LIEN_DISPATCH_H
#define LIEN_DISPATCH_H

#include "agent/views/views.h"

/*
 * The graph, its viewer, and what else is known. A callback that is left out means that nothing is.
 */
struct lien_view_source {
	struct lien_graph *graph;
	const struct lien_viewer *viewer; /* NULL: sees everything */
	const struct lien_node *node;
	/* it is not known what an offload would do, or which processes take orders */
	bool recorded;
	/*
	 * Returns the processes that have exported descriptors open; valid until the caller of the
	 * view goes on.
	 */
	struct lien_view_files (*files)(void *context);
	/* See struct lien_findings_input. */
	bool (*traffic)(
		void *context, uint32_t pid, uint64_t comm, struct lien_probe_traffic *traffic);
	/* Used instead of the view of the graph alone. */
	json_t *(*comms)(void *context, const struct lien_viewer *viewer);
	/*
	 * Has the devices asked, or the call sites resolved. Returns true while an answer is
	 * outstanding.
	 */
	bool (*refresh)(void *context, bool devices, bool callsites);
	void *context;
	uint64_t now_ns; /* CLOCK_MONOTONIC */
};

/* Is this a request that a graph answers? */
bool lien_view_has(const char *op);
/* Returns the answer in the shape of docs/protocol.md, a new reference. NULL: `error` says why; "":
 * out of memory. */
json_t *lien_view_dispatch(const struct lien_view_source *source, const json_t *request,
	char *error, size_t error_size);

#endif
