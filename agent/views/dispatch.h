/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The requests that a graph answers (`ps`, `mem`, `comms`, `graph`, `holders`, `check`): one table,
 * for the agent and for a recording.
 */
#ifndef LIEN_DISPATCH_H
#define LIEN_DISPATCH_H

#include "agent/views/findings.h"
#include "agent/views/views.h"

/* Whose graph it is, and what is known besides. Callbacks that are left out: nothing is. */
struct lien_view_source {
	struct lien_graph *graph;
	const struct lien_viewer *viewer; /* NULL: may see all */
	const struct lien_node *node;
	bool recorded; /* nobody knows what an offload would do, or who takes orders */
	/* Who has exported descriptors open; to be freed by free((void *)files.file). */
	struct lien_view_files (*files)(void *context);
	/* See struct lien_findings_input. */
	bool (*traffic)(
		void *context, uint32_t pid, uint64_t comm, struct lien_probe_traffic *traffic);
	/* Instead of what the graph alone has. */
	json_t *(*comms)(void *context, const struct lien_viewer *viewer);
	/* Has the devices asked, the call sites resolved. True: the answer is awaited. */
	bool (*refresh)(void *context, bool devices, bool callsites);
	void *context;
	uint64_t now_ns; /* CLOCK_MONOTONIC */
};

/* Does a graph answer this? */
bool lien_view_has(const char *op);
/* The answer in the shape of docs/protocol.md, a new reference. NULL: `error` says why; "": out of
 * memory. */
json_t *lien_view_dispatch(const struct lien_view_source *source, const json_t *request,
	char *error, size_t error_size);

#endif
