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

#endif
