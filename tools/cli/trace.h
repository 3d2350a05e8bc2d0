/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A trace in Chrome's JSON format, which Perfetto reads. Events may be added in any order; they are
 * written sorted by time. When out of memory these functions end the program.
 */
#ifndef LIEN_TOOLS_TRACE_H
#define LIEN_TOOLS_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "agent/graph/graph.h"

struct lien_trace;

/* Returns zeroed memory, for the parts of a trace; the caller frees. */
void *lien_trace_alloc(size_t size);
__attribute__((noreturn)) void lien_trace_no_memory(void);

struct lien_trace *lien_trace_new(void);
void lien_trace_free(struct lien_trace *trace);
/*
 * Adds an event at t, in ns of the recording's clock; 0: at the beginning. Takes over the event,
 * which has everything but "ts" (and "dur", if dur_ns is not LIEN_TRACE_NO_DURATION).
 */
#define LIEN_TRACE_NO_DURATION UINT64_MAX
void lien_trace_add(struct lien_trace *trace, uint64_t t, uint64_t dur_ns, json_t *event);
/* Returns the time between the first event and the last one, in ns. */
uint64_t lien_trace_length(const struct lien_trace *trace);
/* Times are written from 0 on. */
void lien_trace_write(struct lien_trace *trace, FILE *out);

/* --- memory ----------------------------------------------------------------------------------- */

/* The memory of a trace: counters by process and library, and a slice for each allocation. */
struct lien_trace_memory;

struct lien_trace_memory *lien_trace_memory_new(struct lien_trace *trace);
void lien_trace_memory_free(struct lien_trace_memory *memory);
/* Adds what has changed in the graph since the last call, at t. Walks the whole graph. */
void lien_trace_memory_look(struct lien_trace_memory *memory, struct lien_graph *graph, uint64_t t);
/* Returns the number of allocations seen. */
uint64_t lien_trace_memory_allocations(const struct lien_trace_memory *memory);

/* --- offloads and restores -------------------------------------------------------------------- */

/*
 * Offloads and restores in a trace. A recording does not say when they begin and end, but the calls
 * of the control library are marked in it: those that unmap and release memory are an offload's,
 * those that make and map it a restore's. What makes no such call (drain, check, save) is not seen,
 * nor where one offload ends and another one begins.
 */
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
