/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the two files that take and load snapshots (lien/state.h). No other file includes this.
 */
#ifndef LIEN_SNAPSHOT_H
#define LIEN_SNAPSHOT_H

#include <string.h>

#include "agent/graph/internal.h"

/* Numbers that the graph counts up from stay below these, so that they never run out. */
#define LIEN_ID_END	(1ull << 62)
#define LIEN_NUMBER_END (1u << 31)

/*
 * A record's fields that are the same in its body and in the part of the graph are listed once, as
 * NAME_FIELDS(COPY). These copy them in either direction.
 */
#define LIEN_DUMP_FIELD(field) body->field = part->field;
#define LIEN_LOAD_FIELD(field) part->field = body->field;

struct lien_snapshot {
	int (*fn)(void *context, const struct lien_event *event);
	void *context;
	const struct lien_viewer *viewer;
	struct lien_graph *graph;
	uint32_t sites; /* number of records of sites so far */
	int err;	/* the first one; nothing is passed on after it */
};

static inline void lien_snapshot_emit(
	struct lien_snapshot *snapshot, struct lien_event *event, size_t size)
{
	event->size = size;
	if (!snapshot->err)
		snapshot->err = snapshot->fn(snapshot->context, event);
	if (snapshot->err > 0)
		snapshot->err = 0;
}

#define LIEN_EMIT(snapshot, event, name)                                                           \
	lien_snapshot_emit(snapshot, event, LIEN_EVENT_SIZE(state.name))

/* Begins a record about the process. */
static inline struct lien_event lien_snapshot_record(
	const struct lien_process *process, enum lien_state type)
{
	struct lien_event event;

	memset(&event, 0, sizeof(event));
	event.type = type;
	if (process) {
		event.pid = event.tid = process->pid;
		event.start = process->start;
	}
	return event;
}

/* The number has been given out: the next one is greater. */
static inline void lien_count_from(uint32_t *last, uint32_t number)
{
	if (*last < number)
		*last = number;
}

/* Allocations, with their sites and shares. */
void lien_snapshot_dump_allocations(struct lien_snapshot *snapshot);
/* Writes the process's handles, mappings and registrations. */
void lien_snapshot_dump_held(struct lien_snapshot *snapshot, struct lien_process *process);
void lien_snapshot_dump_bindings(struct lien_snapshot *snapshot);
/* Loads a record, as lien_graph_load(). process NULL: of some records. */
typedef int lien_load_fn(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event);
/* Loads the rows of LIEN_MEMORY_STATES. */
lien_load_fn lien_snapshot_load_memory;

#endif
