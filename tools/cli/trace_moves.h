/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Offloads and restores in a trace. A recording does not say when they begin and end, but the calls
 * of the control library are marked in it: those that unmap and release memory are an offload's,
 * those that make and map it a restore's. What makes no such call (drain, check, save) is not seen,
 * nor where one offload ends and another one begins.
 */
#ifndef LIEN_TOOLS_TRACE_MOVES_H
#define LIEN_TOOLS_TRACE_MOVES_H

#include "agent/graph/graph.h"
#include "tools/cli/trace.h"

struct lien_trace_moves;

struct lien_trace_moves *lien_trace_moves_new(struct lien_trace *trace);
void lien_trace_moves_free(struct lien_trace_moves *moves);
/* Call this for each record before it is applied to the graph. */
void lien_trace_moves_event(
	struct lien_trace_moves *moves, struct lien_graph *graph, const struct lien_event *event);
/* Ends what is still open. */
void lien_trace_moves_end(struct lien_trace_moves *moves);
/* Returns the number of offloads and restores, each counted in each process. */
uint64_t lien_trace_moves_count(const struct lien_trace_moves *moves);

#endif
