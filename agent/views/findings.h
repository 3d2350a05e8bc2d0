/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Oddities in the memory of this node: `lien check`. Reads the graph and changes nothing;
 * everything else it needs is passed in, so that it can be tested without a kernel.
 */
#ifndef LIEN_FINDINGS_H
#define LIEN_FINDINGS_H

#include <jansson.h>

#include "agent/views/views.h"

struct lien_findings_input {
	const struct lien_viewer *viewer; /* NULL: root */
	uint64_t now_ns;		  /* CLOCK_MONOTONIC */
	uint64_t idle_ns; /* a communicator counts as idle after that long without a call */
	struct lien_view_files files;
	/* Returns a process's use of a communicator; false: none. NULL: not known for any. */
	bool (*traffic)(
		void *context, uint32_t pid, uint64_t comm, struct lien_probe_traffic *traffic);
	void *context;
};

/* Returns the list in the shape of docs/protocol.md, a new reference; NULL: out of memory. */
json_t *lien_findings(struct lien_graph *graph, const struct lien_findings_input *input);

#endif
