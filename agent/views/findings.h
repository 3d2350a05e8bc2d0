/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What is odd about the memory of this node: `lien check`. Reads the graph and changes nothing;
 * what it needs besides is given, so that it can be tested without a kernel.
 */
#ifndef LIEN_FINDINGS_H
#define LIEN_FINDINGS_H

#include <jansson.h>

#include "agent/views/views.h"

struct lien_findings_input {
	const struct lien_viewer *viewer; /* NULL: root */
	uint64_t now_ns;		  /* CLOCK_MONOTONIC */
	uint64_t idle_ns; /* a communicator is idle after that long without a call */
	struct lien_view_files files;
	/* What a process asked of a communicator; false: nothing. NULL: not known of any. */
	bool (*traffic)(
		void *context, uint32_t pid, uint64_t comm, struct lien_probe_traffic *traffic);
	void *context;
};

/* As docs/protocol.md has it. A new reference; NULL: out of memory. */
json_t *lien_findings(struct lien_graph *graph, const struct lien_findings_input *input);

#endif
