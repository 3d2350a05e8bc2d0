/* SPDX-License-Identifier: BSD-2-Clause */
/* The memory of a trace: counters by process and library, and a slice for each allocation. */
#ifndef LIEN_TOOLS_TRACE_MEMORY_H
#define LIEN_TOOLS_TRACE_MEMORY_H

#include "agent/graph/graph.h"
#include "tools/cli/trace.h"

struct lien_trace_memory;

struct lien_trace_memory *lien_trace_memory_new(struct lien_trace *trace);
void lien_trace_memory_free(struct lien_trace_memory *memory);
/* Adds what has changed in the graph since the last call, at t. Walks the whole graph. */
void lien_trace_memory_look(struct lien_trace_memory *memory, struct lien_graph *graph, uint64_t t);
/* Returns the number of allocations seen. */
uint64_t lien_trace_memory_allocations(const struct lien_trace_memory *memory);

#endif
