// SPDX-License-Identifier: BSD-2-Clause
/* Takes a snapshot: one record for each part of the graph, in the order of lien/state.h. */
#include <string.h>

#include "agent/graph/internal.h"
#include "agent/graph/viewer.h"

struct snapshot {
	int (*fn)(void *context, const struct lien_event *event);
	void *context;
	const struct lien_viewer *viewer;
	struct lien_graph *graph;
	uint32_t sites; /* number of records of sites so far */
	int err;	/* the first one; nothing is passed on after it */
};

static void emit(struct snapshot *snapshot, struct lien_event *event, size_t size)
{
	event->size = size;
	if (!snapshot->err)
		snapshot->err = snapshot->fn(snapshot->context, event);
	if (snapshot->err > 0)
		snapshot->err = 0;
}

#define EMIT(snapshot, event, name) emit(snapshot, event, LIEN_EVENT_SIZE(state.name))

/* Begins a record about the process. */
static struct lien_event record(const struct lien_process *process, enum lien_state type)
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

/* --- processes -------------------------------------------------------------------------------- */

static void dump_process(struct snapshot *snapshot, const struct lien_process *process)
{
	struct lien_event event = record(process, LIEN_STATE_process);

	event.t_entry = process->t_first;
	event.state.process.uid = process->uid;
	event.state.process.incomplete = process->incomplete;
	event.state.process.cuda = process->cuda;
	event.state.process.captured = process->captured;
	event.state.process.device_comm = process->device_comm;
	event.state.process.context = process->next_context;
	memcpy(event.state.process.command, process->command, sizeof(process->command));
	EMIT(snapshot, &event, process);
}

static void dump_library(struct snapshot *snapshot, const struct lien_process *process,
	const struct lien_library_map *map)
{
	struct lien_event event = record(process, LIEN_STATE_process);

	event.type = LIEN_EVENT_LIBRARY;
	event.t_entry = event.t_return = map->t_mapped;
	event.library.start = map->start;
	event.library.length = map->end - map->start;
	event.library.offset = map->offset;
	event.library.inode = map->inode;
	event.library.dev_major = map->dev_major;
	event.library.dev_minor = map->dev_minor;
	strncpy(event.library.name, map->file->text, sizeof(event.library.name) - 1);
	emit(snapshot, &event, LIEN_EVENT_SIZE(library));
}

static void dump_reservation(struct snapshot *snapshot, const struct lien_process *process,
	const struct lien_reservation *reservation)
{
	struct lien_event event = record(process, LIEN_STATE_reservation);

	event.state.reservation.va = reservation->va;
	event.state.reservation.bytes = reservation->bytes;
	EMIT(snapshot, &event, reservation);
}

static void dump_context(struct snapshot *snapshot, const struct lien_process *process,
	const struct lien_context *context)
{
	struct lien_event event = record(process, LIEN_STATE_context);

	event.state.context.value = context->value;
	event.state.context.number = context->number;
	event.state.context.device = context->device;
	event.state.context.primary = context->primary;
	EMIT(snapshot, &event, context);
}

static void dump_pool(
	struct snapshot *snapshot, const struct lien_process *process, const struct lien_pool *pool)
{
	struct lien_event event = record(process, LIEN_STATE_pool);

	event.state.pool.value = pool->value;
	event.state.pool.share = pool->share;
	event.state.pool.device = pool->device;
	event.state.pool.imported = pool->imported;
	EMIT(snapshot, &event, pool);
}

static void dump_capture(struct snapshot *snapshot, const struct lien_process *process,
	const struct lien_capture *capture)
{
	struct lien_event event = record(process, LIEN_STATE_capture);

	event.state.capture.stream = capture->stream;
	EMIT(snapshot, &event, capture);
}

static void dump_comm(
	struct snapshot *snapshot, const struct lien_process *process, const struct lien_comm *comm)
{
	struct lien_event event = record(process, LIEN_STATE_comm);

	event.scope = comm->address;
	event.outer = comm->made_by;
	event.t_return = comm->t_init;
	event.state.comm.hash = comm->hash;
	event.state.comm.number = comm->number;
	event.state.comm.parent = comm->parent;
	event.state.comm.rank = comm->rank;
	event.state.comm.nranks = comm->nranks;
	event.state.comm.device = comm->device;
	event.state.comm.splits = comm->splits;
	event.state.comm.shrinks = comm->shrinks;
	event.state.comm.finalized = comm->finalized;
	memcpy(event.state.comm.id, comm->id, sizeof(comm->id));
	EMIT(snapshot, &event, comm);
}

static void dump_init(
	struct snapshot *snapshot, const struct lien_process *process, const struct lien_init *init)
{
	struct lien_event event = record(process, LIEN_STATE_init);

	event.scope = init->scope;
	event.state.init.number = init->number;
	EMIT(snapshot, &event, init);
}

static void dump_split(struct snapshot *snapshot, const struct lien_split *split,
	const struct lien_split_member *member)
{
	struct lien_event event = record(member->process, LIEN_STATE_split);

	memcpy(event.state.split.id, split->id, sizeof(split->id));
	event.state.split.number = split->number;
	event.state.split.nranks = split->nranks;
	event.state.split.comm = member->number;
	event.state.split.parent = member->parent;
	event.state.split.color = member->color;
	event.state.split.key = member->key;
	event.state.split.parent_rank = member->parent_rank;
	EMIT(snapshot, &event, split);
}

static void dump_alone(struct snapshot *snapshot, struct lien_process *process)
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
		dump_reservation(snapshot, process, reservation);
	RB_FOREACH (context, lien_context_number_tree, &process->context_numbers)
		dump_context(snapshot, process, context);
	RB_FOREACH (pool, lien_pool_tree, &process->pools)
		dump_pool(snapshot, process, pool);
	RB_FOREACH (capture, lien_capture_tree, &process->captures)
		dump_capture(snapshot, process, capture);
	RB_FOREACH (comm, lien_comm_number_tree, &process->comm_numbers)
		dump_comm(snapshot, process, comm);
	RB_FOREACH (init, lien_init_number_tree, &process->init_numbers)
		dump_init(snapshot, process, init);
}

static void dump_splits(struct snapshot *snapshot)
{
	struct lien_split_member *member;
	struct lien_split *split;

	RB_FOREACH (split, lien_split_tree, &snapshot->graph->splits)
		RB_FOREACH (member, lien_split_rank_tree, &split->members)
			if (lien_viewer_sees(snapshot->viewer, member->process))
				dump_split(snapshot, split, member);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Returns a process that may map the site's file. */
static const struct lien_process *asked_by(
	const struct snapshot *snapshot, const struct lien_allocation *allocation)
{
	const struct lien_process *lowest = allocation->owner;
	const struct lien_holding *holding;

	if (lowest)
		return lowest;
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (lien_viewer_sees(snapshot->viewer, holding->process) &&
			(!lowest || holding->process->pid < lowest->pid))
			lowest = holding->process;
	return lowest;
}

/* Returns the site's number in this snapshot. */
static uint32_t dump_site(struct snapshot *snapshot, const struct lien_allocation *allocation)
{
	/* Sites belong to the graph, which lends them out as const. */
	struct lien_site *site = (struct lien_site *)allocation->site;
	struct lien_event event;

	if (!site)
		return 0;
	if (site->snapshot == snapshot->graph->snapshots)
		return site->number;
	site->snapshot = snapshot->graph->snapshots;
	site->number = ++snapshot->sites;
	event = record(asked_by(snapshot, allocation), LIEN_STATE_site);
	event.outer = site->outer;
	event.state.site.inode = site->inode;
	event.state.site.offset = site->offset;
	event.state.site.dev_major = site->dev_major;
	event.state.site.dev_minor = site->dev_minor;
	event.state.site.number = site->number;
	strncpy(event.state.site.library, site->library->text,
		sizeof(event.state.site.library) - 1);
	if (site->file)
		strncpy(event.state.site.file, site->file->text, sizeof(event.state.site.file) - 1);
	EMIT(snapshot, &event, site);
	return site->number;
}

static uint32_t allocation_flags(const struct lien_allocation *allocation)
{
	return (allocation->found ? LIEN_STATE_FOUND : 0) |
	       (allocation->comm_inferred ? LIEN_STATE_INFERRED : 0) |
	       (allocation->adopted ? LIEN_STATE_ADOPTED : 0) |
	       (allocation->open ? LIEN_STATE_OPEN : 0) | (allocation->part ? LIEN_STATE_PART : 0) |
	       (allocation->tag_unknown ? LIEN_STATE_TAG_UNKNOWN : 0);
}

static void dump_allocation(struct snapshot *snapshot, const struct lien_allocation *allocation)
{
	const bool object = allocation->origin == LIEN_ORIGIN_MULTICAST;
	struct lien_event event = record(NULL, LIEN_STATE_allocation);

	event.pid = event.tid = allocation->owner_pid;
	event.start = allocation->owner_start;
	event.state.allocation.id = allocation->id;
	event.state.allocation.bytes = allocation->bytes;
	event.state.allocation.prop = allocation->prop;
	event.state.allocation.origin = allocation->origin;
	event.state.allocation.flags = allocation_flags(allocation);
	event.state.allocation.site = dump_site(snapshot, allocation);
	event.state.allocation.comm = allocation->comm;
	event.state.allocation.devices = object ? allocation->devices : 0;
	event.state.allocation.context = object ? 0 : allocation->context;
	event.state.allocation.dmabufs = object ? 0 : allocation->dmabufs;
	event.state.allocation.exports = allocation->exports;
	event.state.allocation.round = allocation->round;
	if (!allocation->tag) {
		emit(snapshot, &event, offsetof(struct lien_event, state.allocation.tag_uid));
		return;
	}
	event.state.allocation.tag_uid = allocation->tag->uid;
	strcpy(event.state.allocation.tag, allocation->tag->text);
	EMIT(snapshot, &event, allocation);
}

/* The viewer holds it and does not see whose it is. */
static void dump_foreign(struct snapshot *snapshot, const struct lien_allocation *allocation)
{
	struct lien_event event = record(NULL, LIEN_STATE_allocation);

	event.state.allocation.id = allocation->id;
	event.state.allocation.bytes = allocation->bytes;
	event.state.allocation.origin = allocation->origin == LIEN_ORIGIN_MULTICAST
						? LIEN_ORIGIN_MULTICAST
						: LIEN_ORIGIN_IMPORT;
	emit(snapshot, &event, offsetof(struct lien_event, state.allocation.tag_uid));
}

static void dump_share(struct snapshot *snapshot, const struct lien_share *share)
{
	struct lien_event event = record(share->allocation->owner, LIEN_STATE_share);

	event.state.share.allocation = share->allocation->id;
	event.state.share.number = share->number;
	event.state.share.imports = share->imports;
	event.state.share.call = share->call;
	event.state.share.fd = share->fd;
	event.state.share.flags = (share->control ? LIEN_STATE_CONTROL : 0) |
				  (share->has_key ? LIEN_STATE_KEYED : 0) |
				  (share->stale ? LIEN_STATE_STALE : 0);
	if (share->has_key)
		memcpy(event.state.share.key, share->key, LIEN_KEY_BYTES);
	EMIT(snapshot, &event, share);
}

static void dump_handle(struct snapshot *snapshot, const struct lien_handle *handle)
{
	struct lien_event event = record(handle->holding->process, LIEN_STATE_handle);

	event.state.handle.allocation = handle->holding->allocation->id;
	event.state.handle.value = handle->value;
	event.state.handle.references = handle->references;
	event.state.handle.raw = handle->raw;
	event.state.handle.flags = handle->imported ? LIEN_STATE_IMPORTED : 0;
	if (!handle->raw_to) {
		emit(snapshot, &event, offsetof(struct lien_event, state.handle.raw_to));
		return;
	}
	strncpy(event.state.handle.raw_to, handle->raw_to->text,
		sizeof(event.state.handle.raw_to) - 1);
	EMIT(snapshot, &event, handle);
}

/* Emits a record for as much access as fits into one, and for the rest. */
static void dump_mapping(struct snapshot *snapshot, const struct lien_mapping *mapping)
{
	const struct lien_access_set *access = lien_mapping_access(mapping);
	struct lien_event event = record(mapping->holding->process, LIEN_STATE_mapping);
	unsigned from = 0, count = access ? access->count : 0, n;

	event.state.mapping.allocation = mapping->holding->allocation->id;
	event.state.mapping.va = mapping->va;
	event.state.mapping.bytes = mapping->bytes;
	event.state.mapping.flags = (mapping->imported ? LIEN_STATE_IMPORTED : 0) |
				    (mapping->parked ? LIEN_STATE_PARKED : 0) |
				    (mapping->opened ? LIEN_STATE_OPENED : 0) |
				    (access ? LIEN_STATE_ACCESS : 0);
	if (mapping->opened) {
		event.state.mapping.opens = mapping->opens;
		event.state.mapping.context = mapping->context;
	}
	do {
		n = count - from < LIEN_ACCESS_MAX ? count - from : LIEN_ACCESS_MAX;
		event.state.mapping.count = n;
		if (n)
			memcpy(event.state.mapping.access, access->access + from,
				n * sizeof(struct lien_access));
		emit(snapshot, &event,
			offsetof(struct lien_event, state.mapping.access) +
				n * sizeof(struct lien_access));
		from += n;
	} while (from < count);
}

static void dump_registration(struct snapshot *snapshot, const struct lien_process *process,
	const struct lien_comm *comm, const struct lien_registration *registration)
{
	struct lien_event event = record(process, LIEN_STATE_registration);

	event.state.registration.va = registration->va;
	event.state.registration.bytes = registration->bytes;
	event.state.registration.handle = registration->handle;
	event.state.registration.comm = comm ? comm->number : 0;
	event.state.registration.window = registration->window;
	event.state.registration.of_gpu = registration->of_gpu;
	if (registration->card)
		memcpy(event.state.registration.card, registration->card->text,
			strlen(registration->card->text));
	EMIT(snapshot, &event, registration);
}

static void dump_binding(struct snapshot *snapshot, const struct lien_binding *binding)
{
	const struct lien_process *owner = binding->object->owner;
	struct lien_event event = record(
		lien_viewer_sees(snapshot->viewer, owner) ? owner : NULL, LIEN_STATE_binding);

	event.state.binding.object = binding->object->id;
	event.state.binding.memory = binding->memory->id;
	event.state.binding.offset = binding->offset;
	event.state.binding.bytes = binding->bytes;
	event.state.binding.memory_offset = binding->memory_offset;
	event.state.binding.device = binding->device;
	EMIT(snapshot, &event, binding);
}

static void dump_allocations(struct snapshot *snapshot)
{
	struct lien_allocation *allocation;
	struct lien_share *share;

	for (allocation = lien_graph_first_allocation(snapshot->graph);
		allocation && !snapshot->err; allocation = lien_graph_next_allocation(allocation)) {
		if (lien_viewer_sees_owner(snapshot->viewer, allocation)) {
			dump_allocation(snapshot, allocation);
			LIST_FOREACH (share, &allocation->shares, of_allocation)
				dump_share(snapshot, share);
		} else if (lien_viewer_sees_part(snapshot->viewer, allocation)) {
			dump_foreign(snapshot, allocation);
		}
	}
}

static void dump_held(struct snapshot *snapshot, struct lien_process *process)
{
	struct lien_registration *registration;
	struct lien_mapping *mapping;
	struct lien_handle *handle;
	struct lien_comm *comm;

	SPLAY_FOREACH (handle, lien_handle_tree, &process->handles)
		dump_handle(snapshot, handle);
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings)
		dump_mapping(snapshot, mapping);
	RB_FOREACH (registration, lien_registration_tree, &process->cards)
		dump_registration(snapshot, process, NULL, registration);
	RB_FOREACH (comm, lien_comm_number_tree, &process->comm_numbers)
		RB_FOREACH (registration, lien_registration_tree, &comm->registrations)
			dump_registration(snapshot, process, comm, registration);
}

static bool sees(const struct snapshot *snapshot, const struct lien_allocation *allocation)
{
	return lien_viewer_sees_owner(snapshot->viewer, allocation) ||
	       lien_viewer_sees_part(snapshot->viewer, allocation);
}

static void dump_bindings(struct snapshot *snapshot)
{
	struct lien_allocation *object;
	struct lien_binding *binding;

	for (object = lien_graph_first_allocation(snapshot->graph); object;
		object = lien_graph_next_allocation(object)) {
		if (object->origin != LIEN_ORIGIN_MULTICAST || !sees(snapshot, object))
			continue;
		RB_FOREACH (binding, lien_binding_tree, &object->bound)
			if (sees(snapshot, binding->memory))
				dump_binding(snapshot, binding);
	}
}

static void dump_end(struct snapshot *snapshot)
{
	struct lien_event event = record(NULL, LIEN_STATE_end);

	event.state.end.allocation = snapshot->graph->next_id;
	event.state.end.comm = snapshot->graph->next_comm;
	event.state.end.round = snapshot->graph->round;
	EMIT(snapshot, &event, end);
}

/* Announcements are the records that the ring had. */
static void dump_pending(struct snapshot *snapshot, struct lien_process *process)
{
	const struct lien_pending *pending;
	struct lien_event event;

	TAILQ_FOREACH (pending, &process->pending, next) {
		event = pending->event;
		emit(snapshot, &event, event.size);
	}
}

static void for_each_process(struct snapshot *snapshot,
	void (*dump)(struct snapshot *snapshot, struct lien_process *process))
{
	struct lien_process *process;

	for (process = lien_graph_first(snapshot->graph); process && !snapshot->err;
		process = lien_graph_next(process))
		if (lien_viewer_sees(snapshot->viewer, process))
			dump(snapshot, process);
}

int lien_graph_dump_seen(const struct lien_graph *graph, const struct lien_viewer *viewer,
	int (*fn)(void *context, const struct lien_event *), void *context)
{
	/* The macros that walk the trees take no const. */
	struct snapshot snapshot = {.fn = fn,
		.context = context,
		.viewer = viewer,
		.graph = (struct lien_graph *)graph};

	snapshot.graph->snapshots++;
	for_each_process(&snapshot, dump_alone);
	dump_splits(&snapshot);
	dump_allocations(&snapshot);
	for_each_process(&snapshot, dump_held);
	dump_bindings(&snapshot);
	dump_end(&snapshot);
	for_each_process(&snapshot, dump_pending);
	return snapshot.err;
}

int lien_graph_dump(const struct lien_graph *graph,
	int (*fn)(void *context, const struct lien_event *), void *context)
{
	return lien_graph_dump_seen(graph, NULL, fn, context);
}
