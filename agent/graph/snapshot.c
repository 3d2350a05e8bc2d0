// SPDX-License-Identifier: BSD-2-Clause
/*
 * Taking a snapshot (lien/state.h) and loading one, record by record. Records come from files, so
 * nothing in them is trusted: a record only adds to the graph, and one that does not fit is refused
 * as a whole. Here: the order, and what a process has by itself.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/graph/event_check.h"
#include "agent/graph/snapshot.h"

/* A record of a part that has nothing else in it. */
#define DUMP(snapshot, process, name, from)                                                        \
	do {                                                                                       \
		struct lien_event event = lien_snapshot_record(process, LIEN_STATE_##name);        \
		struct lien_state_##name *body = &event.state.name;                                \
		const __typeof__(*(from)) *part = (from);                                          \
                                                                                                   \
		name##_fields(LIEN_DUMP_FIELD) LIEN_EMIT(snapshot, &event, name);                  \
	} while (0)

/* --- processes -------------------------------------------------------------------------------- */

#define process_fields(COPY) COPY(uid) COPY(incomplete) COPY(cuda) COPY(captured) COPY(device_comm)

static void dump_process(struct lien_snapshot *snapshot, const struct lien_process *part)
{
	struct lien_event event = lien_snapshot_record(part, LIEN_STATE_process);
	struct lien_state_process *body = &event.state.process;

	event.t_entry = part->t_first;
	process_fields(LIEN_DUMP_FIELD) body->context = part->next_context;
	memcpy(body->command, part->command, sizeof(body->command));
	LIEN_EMIT(snapshot, &event, process);
}

static int load_process(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_process *body = &event->state.process;
	struct lien_process *part;

	(void)process;
	if (!event->pid || lien_graph_process(graph, event->pid) ||
		body->context >= LIEN_NUMBER_END)
		return -EBADMSG;
	part = lien_process_new(graph, event->pid, event->start);
	if (!part)
		return -ENOMEM;
	process_fields(LIEN_LOAD_FIELD) part->next_context = body->context;
	part->t_first = event->t_entry;
	lien_copy_printable(part->command, body->command, sizeof(part->command));
	return 0;
}

static void dump_library(struct lien_snapshot *snapshot, const struct lien_process *process,
	const struct lien_library_map *map)
{
	struct lien_event event = lien_snapshot_record(process, LIEN_STATE_process);

	event.type = LIEN_EVENT_LIBRARY;
	event.t_entry = event.t_return = map->t_mapped;
	event.library.start = map->start;
	event.library.length = map->end - map->start;
	event.library.offset = map->offset;
	event.library.inode = map->inode;
	event.library.dev_major = map->dev_major;
	event.library.dev_minor = map->dev_minor;
	strncpy(event.library.name, map->file->text, sizeof(event.library.name) - 1);
	lien_snapshot_emit(snapshot, &event, LIEN_EVENT_SIZE(library));
}

#define reservation_fields(COPY) COPY(va) COPY(bytes)

static int load_reservation(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_reservation *body = &event->state.reservation;
	struct lien_reservation *part = lien_slab_get(&graph->slabs.reservations);

	if (!part)
		return -ENOMEM;
	reservation_fields(LIEN_LOAD_FIELD) if (!SPLAY_INSERT(lien_reservation_tree,
							&process->reservations, part)) return 0;
	lien_slab_put(&graph->slabs.reservations, part);
	return -EBADMSG;
}

#define context_fields(COPY) COPY(value) COPY(number) COPY(device) COPY(primary)

static int load_context(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_context *body = &event->state.context;
	struct lien_context *part;

	(void)graph;
	if (!body->number || body->number >= LIEN_NUMBER_END ||
		lien_context_number(process, body->value))
		return -EBADMSG;
	part = calloc(1, sizeof(*part));
	if (!part)
		return -ENOMEM;
	context_fields(LIEN_LOAD_FIELD) if (RB_INSERT(lien_context_number_tree,
						    &process->context_numbers, part))
	{
		free(part);
		return -EBADMSG;
	}
	RB_INSERT(lien_context_tree, &process->contexts, part);
	lien_count_from(&process->next_context, body->number);
	return 0;
}

#define pool_fields(COPY) COPY(value) COPY(share) COPY(device) COPY(imported)

static int load_pool(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_pool *body = &event->state.pool;
	struct lien_pool *part = calloc(1, sizeof(*part));

	(void)graph;
	if (!part)
		return -ENOMEM;
	pool_fields(
		LIEN_LOAD_FIELD) if (!RB_INSERT(lien_pool_tree, &process->pools, part)) return 0;
	free(part);
	return -EBADMSG;
}

#define capture_fields(COPY) COPY(stream)

static int load_capture(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_capture *body = &event->state.capture;
	struct lien_capture *part = calloc(1, sizeof(*part));

	(void)graph;
	if (!part)
		return -ENOMEM;
	capture_fields(LIEN_LOAD_FIELD) if (!RB_INSERT(lien_capture_tree, &process->captures,
						    part)) return 0;
	free(part);
	return -EBADMSG;
}

/* --- communicators ---------------------------------------------------------------------------- */

#define comm_fields(COPY)                                                                          \
	COPY(hash)                                                                                 \
	COPY(parent) COPY(rank) COPY(nranks) COPY(device) COPY(splits) COPY(shrinks) COPY(finalized)

static void dump_comm(struct lien_snapshot *snapshot, const struct lien_process *process,
	const struct lien_comm *part)
{
	struct lien_event event = lien_snapshot_record(process, LIEN_STATE_comm);
	struct lien_state_comm *body = &event.state.comm;

	event.scope = part->address;
	event.outer = part->made_by;
	event.t_return = part->t_init;
	body->number = part->number;
	comm_fields(LIEN_DUMP_FIELD) memcpy(body->id, part->id, sizeof(body->id));
	LIEN_EMIT(snapshot, &event, comm);
}

static bool makes_comm(unsigned call)
{
	enum lien_kind kind = lien_call_kind(call);

	return kind == LIEN_KIND_comm_init || kind == LIEN_KIND_comm_split ||
	       kind == LIEN_KIND_comm_shrink;
}

static int load_comm(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_comm *body = &event->state.comm;
	uint32_t next = graph->next_comm;
	struct lien_comm *part;

	if (!event->scope || lien_comm_find(process, event->scope) || !body->number ||
		body->number >= LIEN_NUMBER_END || lien_process_comm(process, body->number) ||
		body->parent >= LIEN_NUMBER_END || (event->outer && !makes_comm(event->outer)))
		return -EBADMSG;
	graph->next_comm = body->number - 1;
	part = lien_comm_new(process, event->scope);
	graph->next_comm = next;
	if (!part)
		return -ENOMEM;
	lien_count_from(&graph->next_comm, body->number);
	lien_count_from(&graph->next_comm, body->parent);
	part->made_by = event->outer;
	part->t_init = event->t_return;
	comm_fields(LIEN_LOAD_FIELD) memcpy(part->id, body->id, sizeof(part->id));
	return 0;
}

static void dump_init(struct lien_snapshot *snapshot, const struct lien_process *process,
	const struct lien_init *init)
{
	struct lien_event event = lien_snapshot_record(process, LIEN_STATE_init);

	event.scope = init->scope;
	event.state.init.number = init->number;
	LIEN_EMIT(snapshot, &event, init);
}

static int load_init(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	uint32_t number = event->state.init.number;
	struct lien_init key = {.scope = event->scope, .number = number};

	if (!(event->scope & LIEN_SCOPE_INIT) || !number || number >= LIEN_NUMBER_END ||
		RB_FIND(lien_init_tree, &process->inits, &key) ||
		RB_FIND(lien_init_number_tree, &process->init_numbers, &key))
		return -EBADMSG;
	lien_count_from(&graph->next_comm, number);
	return lien_init_new(process, event->scope, number);
}

static void dump_split(struct lien_snapshot *snapshot, const struct lien_split *split,
	const struct lien_split_member *member)
{
	struct lien_event event = lien_snapshot_record(member->process, LIEN_STATE_split);
	struct lien_state_split *body = &event.state.split;

	memcpy(body->id, split->id, sizeof(body->id));
	body->number = split->number;
	body->nranks = split->nranks;
	body->comm = member->comm ? member->comm->number : 0;
	body->parent = member->parent ? member->parent->number : 0;
	body->color = member->color;
	body->key = member->key;
	body->parent_rank = member->parent_rank;
	LIEN_EMIT(snapshot, &event, split);
}

static int load_split(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	(void)graph;
	return lien_split_load(process, &event->state.split);
}

/* --- all -------------------------------------------------------------------------------------- */

static void dump_alone(struct lien_snapshot *snapshot, struct lien_process *process)
{
	struct lien_reservation *reservation;
	struct lien_library_map *map;
	struct lien_context *context;
	struct lien_capture *capture;
	struct lien_pool *pool;
	struct lien_comm *comm;
	struct lien_init *init;

	dump_process(snapshot, process);
	RB_FOREACH (map, lien_library_tree, &process->libraries)
		dump_library(snapshot, process, map);
	SPLAY_FOREACH (reservation, lien_reservation_tree, &process->reservations)
		DUMP(snapshot, process, reservation, reservation);
	RB_FOREACH (context, lien_context_number_tree, &process->context_numbers)
		DUMP(snapshot, process, context, context);
	RB_FOREACH (pool, lien_pool_tree, &process->pools)
		DUMP(snapshot, process, pool, pool);
	RB_FOREACH (capture, lien_capture_tree, &process->captures)
		DUMP(snapshot, process, capture, capture);
	RB_FOREACH (comm, lien_comm_number_tree, &process->comm_numbers)
		dump_comm(snapshot, process, comm);
	RB_FOREACH (init, lien_init_number_tree, &process->init_numbers)
		dump_init(snapshot, process, init);
}

static void dump_splits(struct lien_snapshot *snapshot)
{
	struct lien_split_member *member;
	struct lien_split *split;

	RB_FOREACH (split, lien_split_tree, &snapshot->graph->splits)
		RB_FOREACH (member, lien_split_rank_tree, &split->members)
			if (lien_viewer_sees(snapshot->viewer, member->process))
				dump_split(snapshot, split, member);
}

static void dump_end(struct lien_snapshot *snapshot)
{
	struct lien_event event = lien_snapshot_record(NULL, LIEN_STATE_end);

	event.state.end.allocation = snapshot->graph->next_id;
	event.state.end.comm = snapshot->graph->next_comm;
	event.state.end.round = snapshot->graph->stats.round;
	LIEN_EMIT(snapshot, &event, end);
}

/* Announcements are the records that the ring had. */
static void dump_pending(struct lien_snapshot *snapshot, struct lien_process *process)
{
	const struct lien_pending *pending;
	struct lien_event event;

	TAILQ_FOREACH (pending, &process->pending, next) {
		event = pending->event;
		lien_snapshot_emit(snapshot, &event, event.size);
	}
}

static void for_each_process(struct lien_snapshot *snapshot,
	void (*dump)(struct lien_snapshot *snapshot, struct lien_process *process))
{
	struct lien_process *process;

	LIEN_FOREACH_PROCESS (process, snapshot->graph)
		if (!snapshot->err && lien_viewer_sees(snapshot->viewer, process))
			dump(snapshot, process);
}

int lien_graph_dump_seen(const struct lien_graph *graph, const struct lien_viewer *viewer,
	int (*fn)(void *context, const struct lien_event *), void *context)
{
	/* The macros that walk the trees take no const. */
	struct lien_snapshot snapshot = {.fn = fn,
		.context = context,
		.viewer = viewer,
		.graph = (struct lien_graph *)graph};

	snapshot.graph->snapshots++;
	for_each_process(&snapshot, dump_alone);
	dump_splits(&snapshot);
	lien_snapshot_dump_allocations(&snapshot);
	for_each_process(&snapshot, lien_snapshot_dump_held);
	lien_snapshot_dump_bindings(&snapshot);
	dump_end(&snapshot);
	for_each_process(&snapshot, dump_pending);
	return snapshot.err;
}

void lien_graph_loaded(struct lien_graph *graph)
{
	struct lien_allocation **all = graph->loading.allocations;
	size_t i;

	if (!all && !graph->loading.sites)
		return; /* with every event but a snapshot's */
	/* One that is freed unbinds others; those are before it, or still count as being imported.
	 */
	for (i = 0; i < graph->loading.allocations_count; i++) {
		all[i]->importing = false;
		lien_allocation_drop_unheld(graph, all[i]);
	}
	free(graph->loading.allocations);
	free(graph->loading.sites);
	memset(&graph->loading, 0, sizeof(graph->loading));
}

static int load_end(struct lien_graph *graph, const struct lien_event *event)
{
	const struct lien_state_end *body = &event->state.end;

	if (body->allocation >= LIEN_ID_END || body->comm >= LIEN_NUMBER_END)
		return -EBADMSG;
	if (graph->next_id < body->allocation)
		graph->next_id = body->allocation;
	lien_count_from(&graph->next_comm, body->comm);
	lien_count_from(&graph->stats.round, body->round);
	lien_graph_loaded(graph);
	return 0;
}

/* The others are about a process that has a record. */
static bool needs_no_process(unsigned type)
{
	return type == LIEN_STATE_process || type == LIEN_STATE_site ||
	       type == LIEN_STATE_allocation || type == LIEN_STATE_share ||
	       type == LIEN_STATE_binding || type == LIEN_STATE_end;
}

int lien_graph_load(struct lien_graph *graph, const struct lien_event *event)
{
#define LOAD(name, number, least) [number] = load_##name,
	static lien_load_fn *const loads[LIEN_CALL_MAX] = {LIEN_PROCESS_STATES(LOAD)};
#undef LOAD
	struct lien_process *process = lien_graph_living(graph, event->pid, event->start);

	if (!process && !needs_no_process(event->type))
		return -EBADMSG;
	graph->stats.events++;
	if (process)
		lien_process_earn_visits(process);
	if (event->type == LIEN_STATE_end)
		return load_end(graph, event);
	return (loads[event->type] ? loads[event->type] : lien_snapshot_load_memory)(
		graph, process, event);
}
