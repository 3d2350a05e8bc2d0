// SPDX-License-Identifier: BSD-2-Clause
/*
 * Snapshots of memory, and of what holds it (agent/graph/snapshot.h).
 *
 * An allocation may have no holder yet. Until the snapshot is loaded it counts as being imported:
 * nothing frees it, and without holders it is not shown.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/graph/array.h"
#include "agent/graph/event_check.h"
#include "agent/graph/snapshot.h"

/* --- allocations ------------------------------------------------------------------------------ */

/* Returns a process that may map the site's file. */
static const struct lien_process *asked_by(
	const struct lien_snapshot *snapshot, const struct lien_allocation *allocation)
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

#define site_fields(COPY) COPY(inode) COPY(offset) COPY(dev_major) COPY(dev_minor)

/* Returns the site's number in this snapshot. */
static uint32_t dump_site(struct lien_snapshot *snapshot, const struct lien_allocation *allocation)
{
	/* Sites belong to the graph, which lends them out as const. */
	struct lien_site *part = (struct lien_site *)allocation->site;
	struct lien_state_site *body;
	struct lien_event event;

	if (!part)
		return 0;
	if (part->snapshot == snapshot->graph->snapshots)
		return part->number;
	part->snapshot = snapshot->graph->snapshots;
	part->number = ++snapshot->sites;
	event = lien_snapshot_record(asked_by(snapshot, allocation), LIEN_STATE_site);
	event.outer = part->outer;
	body = &event.state.site;
	site_fields(LIEN_DUMP_FIELD) body->number = part->number;
	strncpy(body->library, part->library->text, sizeof(body->library) - 1);
	if (part->file)
		strncpy(body->file, part->file->text, sizeof(body->file) - 1);
	LIEN_EMIT(snapshot, &event, site);
	return part->number;
}

static int load_site(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_site *body = &event->state.site;
	struct lien_site like = {.outer = event->outer}, *part = &like;
	const struct lien_site *site;

	if (body->number != graph->loading.sites_count + 1)
		return -EBADMSG;
	if (lien_array_grow(&graph->loading.sites, graph->loading.sites_count,
		    &graph->loading.sites_room, sizeof(*graph->loading.sites)))
		return -ENOMEM;
	site_fields(LIEN_LOAD_FIELD) like.library =
		lien_graph_name(graph, body->library, sizeof(body->library));
	if (body->file[0]) {
		like.file = lien_graph_name(graph, body->file, sizeof(body->file));
		if (!like.file)
			return -ENOMEM;
	}
	site = lien_graph_intern_site(graph, process, &like);
	if (!site)
		return -ENOMEM;
	graph->loading.sites[graph->loading.sites_count++] = site;
	return 0;
}

static int id_cmp(const void *key, const void *element)
{
	uint64_t id = *(const uint64_t *)key;
	const struct lien_allocation *allocation = *(struct lien_allocation *const *)element;

	return (id > allocation->id) - (id < allocation->id);
}

/* Returns an allocation of this snapshot. */
static struct lien_allocation *allocation_of(struct lien_graph *graph, uint64_t id)
{
	size_t count = graph->loading.allocations_count;
	struct lien_allocation **all = graph->loading.allocations, **found;

	if (count && all[count - 1]->id == id)
		return all[count - 1];
	found = count ? bsearch(&id, all, count, sizeof(*all), id_cmp) : NULL;
	return found ? *found : NULL;
}

#define allocation_fields(COPY) COPY(bytes) COPY(prop) COPY(comm) COPY(exports) COPY(round)
#define ALLOCATION_FLAGS(COPY)                                                                     \
	COPY(found, LIEN_STATE_FOUND)                                                              \
	COPY(comm_inferred, LIEN_STATE_INFERRED)                                                   \
	COPY(adopted, LIEN_STATE_ADOPTED)                                                          \
	COPY(open, LIEN_STATE_OPEN)                                                                \
	COPY(part, LIEN_STATE_PART)                                                                \
	COPY(tag_unknown, LIEN_STATE_TAG_UNKNOWN)
#define DUMP_FLAG(field, flag)	body->flags |= part->field ? (flag) : 0;
#define LOAD_FLAG(field, flag)	part->field = body->flags & (flag);
#define KNOWN_FLAG(field, flag) | (flag)

static void dump_allocation(struct lien_snapshot *snapshot, const struct lien_allocation *part)
{
	struct lien_event event = lien_snapshot_record(NULL, LIEN_STATE_allocation);
	struct lien_state_allocation *body = &event.state.allocation;

	event.pid = event.tid = part->owner_pid;
	event.start = part->owner_start;
	body->id = part->id;
	body->origin = part->origin;
	allocation_fields(LIEN_DUMP_FIELD) ALLOCATION_FLAGS(DUMP_FLAG) body->site =
		dump_site(snapshot, part);
	if (part->origin == LIEN_ORIGIN_MULTICAST) {
		body->devices = part->devices;
	} else {
		body->context = part->context;
		body->dmabufs = part->dmabufs;
	}
	if (!part->tag) {
		lien_snapshot_emit(
			snapshot, &event, offsetof(struct lien_event, state.allocation.tag_uid));
		return;
	}
	body->tag_uid = part->tag->uid;
	strcpy(body->tag, part->tag->text);
	LIEN_EMIT(snapshot, &event, allocation);
}

/* The viewer holds it and does not see whose it is. */
static void dump_foreign(struct lien_snapshot *snapshot, const struct lien_allocation *allocation)
{
	struct lien_event event = lien_snapshot_record(NULL, LIEN_STATE_allocation);

	event.state.allocation.id = allocation->id;
	event.state.allocation.bytes = allocation->bytes;
	event.state.allocation.origin = allocation->origin == LIEN_ORIGIN_MULTICAST
						? LIEN_ORIGIN_MULTICAST
						: LIEN_ORIGIN_IMPORT;
	lien_snapshot_emit(snapshot, &event, offsetof(struct lien_event, state.allocation.tag_uid));
}

static bool allocation_fits(struct lien_graph *graph, const struct lien_state_allocation *body)
{
	const uint32_t known = 0 ALLOCATION_FLAGS(KNOWN_FLAG);

	return body->id > graph->next_id && body->id < LIEN_ID_END &&
	       body->origin > LIEN_ORIGIN_NONE && body->origin < LIEN_ORIGIN_COUNT &&
	       !(body->flags & ~known) && body->site <= graph->loading.sites_count &&
	       body->comm < LIEN_NUMBER_END && body->context < LIEN_NUMBER_END;
}

static int load_allocation(
	struct lien_graph *graph, struct lien_process *owner, const struct lien_event *event)
{
	const struct lien_state_allocation *body = &event->state.allocation;
	struct lien_allocation *part;

	if (!allocation_fits(graph, body))
		return -EBADMSG;
	if (lien_array_grow(&graph->loading.allocations, graph->loading.allocations_count,
		    &graph->loading.allocations_room, sizeof(*graph->loading.allocations)))
		return -ENOMEM;
	graph->next_id = body->id - 1;
	part = lien_allocation_new(graph, body->origin);
	if (!part)
		return -ENOMEM;
	graph->loading.allocations[graph->loading.allocations_count++] = part;
	part->importing = true;
	allocation_fields(LIEN_LOAD_FIELD)
		ALLOCATION_FLAGS(LOAD_FLAG) if (body->origin == LIEN_ORIGIN_MULTICAST)
	{
		part->devices = body->devices;
	}
	else
	{
		part->context = body->context;
		part->dmabufs = body->dmabufs;
	}
	if (event->size >= LIEN_EVENT_SIZE(state.allocation) && body->tag[0] &&
		lien_allocation_set_tag(graph, part, body->tag_uid, body->tag))
		return -ENOMEM;
	if (body->site)
		part->site = graph->loading.sites[body->site - 1];
	if (owner) {
		lien_allocation_own(part, owner);
		lien_count_from(&owner->next_context, body->context);
	} else {
		part->owner_pid = event->pid;
		part->owner_start = event->start;
	}
	lien_count_from(&graph->next_comm, body->comm);
	lien_count_from(&graph->stats.round, body->round);
	return 0;
}

#define share_fields(COPY) COPY(number) COPY(imports) COPY(call) COPY(fd)

static void dump_share(struct lien_snapshot *snapshot, const struct lien_share *part)
{
	struct lien_event event = lien_snapshot_record(part->allocation->owner, LIEN_STATE_share);
	struct lien_state_share *body = &event.state.share;

	body->allocation = part->allocation->id;
	share_fields(LIEN_DUMP_FIELD) body->flags = (part->control ? LIEN_STATE_CONTROL : 0) |
						    (part->has_key ? LIEN_STATE_KEYED : 0) |
						    (part->stale ? LIEN_STATE_STALE : 0);
	if (part->has_key)
		memcpy(body->key, part->key, LIEN_KEY_BYTES);
	LIEN_EMIT(snapshot, &event, share);
}

static bool share_fits(const struct lien_state_share *body)
{
	const uint32_t known = LIEN_STATE_CONTROL | LIEN_STATE_KEYED | LIEN_STATE_STALE;
	enum lien_kind kind = lien_call_kind(body->call);

	if (body->flags & ~known)
		return false;
	if (body->flags & LIEN_STATE_KEYED)
		return (kind == LIEN_KIND_export || (kind == LIEN_KIND_key_export &&
							    !(body->flags & LIEN_STATE_CONTROL))) &&
		       body->number == lien_share_number(body->call, body->key);
	return !(body->flags & LIEN_STATE_STALE) && kind == LIEN_KIND_export && body->number &&
	       !(body->number & LIEN_SHARE_BY_KEY);
}

static int load_share(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_share *body = &event->state.share;
	struct lien_allocation *allocation = allocation_of(graph, body->allocation);
	struct lien_share like = {.control = body->flags & LIEN_STATE_CONTROL,
				  .stale = body->flags & LIEN_STATE_STALE},
			  *part = &like;
	const struct lien_share *first = allocation ? LIST_FIRST(&allocation->shares) : NULL;

	(void)process;
	if (!allocation || !share_fits(body) || (like.control && first && first->control) ||
		(!like.stale && lien_share_find(graph, body->number)))
		return -EBADMSG;
	share_fields(LIEN_LOAD_FIELD) return lien_share_copy(
		graph, allocation, &like, body->flags & LIEN_STATE_KEYED ? body->key : NULL)
		? 0
		: -ENOMEM;
}

void lien_snapshot_dump_allocations(struct lien_snapshot *snapshot)
{
	struct lien_allocation *allocation;
	struct lien_share *share;

	LIEN_FOREACH_ALLOCATION (allocation, snapshot->graph) {
		if (snapshot->err)
			return;
		if (lien_viewer_sees_owner(snapshot->viewer, allocation)) {
			dump_allocation(snapshot, allocation);
			LIST_FOREACH (share, &allocation->shares, of_allocation)
				dump_share(snapshot, share);
		} else if (lien_viewer_sees_part(snapshot->viewer, allocation)) {
			dump_foreign(snapshot, allocation);
		}
	}
}

/* --- what holds them -------------------------------------------------------------------------- */

static void dump_handle(struct lien_snapshot *snapshot, const struct lien_handle *part)
{
	struct lien_event event = lien_snapshot_record(part->holding->process, LIEN_STATE_handle);
	struct lien_state_handle *body = &event.state.handle;

	body->allocation = part->holding->allocation->id;
	body->value = part->value;
	body->references = part->references;
	body->raw = part->raw;
	body->flags = part->imported ? LIEN_STATE_IMPORTED : 0;
	if (!part->raw_to) {
		lien_snapshot_emit(
			snapshot, &event, offsetof(struct lien_event, state.handle.raw_to));
		return;
	}
	strncpy(body->raw_to, part->raw_to->text, sizeof(body->raw_to) - 1);
	LIEN_EMIT(snapshot, &event, handle);
}

static int load_handle(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_handle *body = &event->state.handle;
	struct lien_allocation *allocation = allocation_of(graph, body->allocation);
	const struct lien_name *raw_to = NULL;
	struct lien_handle *handle;

	if (!allocation || body->flags & ~LIEN_STATE_IMPORTED || body->raw > body->references ||
		body->raw >= LIEN_NUMBER_END || lien_handle_find(process, body->value))
		return -EBADMSG;
	if (event->size >= LIEN_EVENT_SIZE(state.handle)) {
		raw_to = lien_graph_name(graph, body->raw_to, sizeof(body->raw_to));
		if (!raw_to)
			return -ENOMEM;
	}
	handle = lien_handle_new(process, allocation, body->value);
	if (!handle)
		return -ENOMEM;
	lien_handle_refer(handle, body->references);
	handle->raw = body->raw;
	handle->raw_to = raw_to;
	handle->imported = body->flags & LIEN_STATE_IMPORTED;
	return 0;
}

/* Emits a record for as much access as fits into one, and for the rest. */
static void dump_mapping(struct lien_snapshot *snapshot, const struct lien_mapping *mapping)
{
	const struct lien_access_set *access = lien_mapping_access(mapping);
	struct lien_event event =
		lien_snapshot_record(mapping->holding->process, LIEN_STATE_mapping);
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
		lien_snapshot_emit(snapshot, &event,
			offsetof(struct lien_event, state.mapping.access) +
				n * sizeof(struct lien_access));
		from += n;
	} while (from < count);
}

static bool mapping_fits(const struct lien_state_mapping *body)
{
	const uint32_t known =
		LIEN_STATE_IMPORTED | LIEN_STATE_PARKED | LIEN_STATE_OPENED | LIEN_STATE_ACCESS;

	if (body->flags & ~known || !lien_range_sane(body->va, body->bytes) ||
		lien_range_bytes(body->va, body->bytes) != body->bytes)
		return false;
	if (body->flags & LIEN_STATE_OPENED)
		return body->opens && body->context < LIEN_NUMBER_END &&
		       !(body->flags & LIEN_STATE_ACCESS);
	return !body->opens && !body->context && (body->flags & LIEN_STATE_ACCESS || !body->count);
}

/* Returns the mapping that earlier records of the same one have made. */
static struct lien_mapping *same_mapping(struct lien_process *process,
	const struct lien_allocation *allocation, const struct lien_state_mapping *body)
{
	struct lien_mapping *mapping = lien_process_mapping(process, body->va);

	return mapping && mapping->va == body->va && mapping->bytes == body->bytes &&
			       mapping->holding->allocation == allocation &&
			       body->flags & LIEN_STATE_ACCESS && !mapping->opened
		       ? mapping
		       : NULL;
}

static int load_mapping(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_mapping *body = &event->state.mapping;
	struct lien_allocation *allocation = allocation_of(graph, body->allocation);
	const struct lien_access_set *access = NULL;
	struct lien_mapping *mapping;

	if (!allocation || !mapping_fits(body))
		return -EBADMSG;
	mapping = same_mapping(process, allocation, body);
	if (!mapping && lien_process_overlap(process, body->va, body->bytes))
		return -EBADMSG;
	if (body->flags & LIEN_STATE_ACCESS) {
		access = lien_graph_access(
			graph, mapping ? mapping->access : NULL, body->access, body->count);
		if (!access)
			return -ENOMEM;
	}
	if (!mapping) {
		mapping = lien_mapping_new(
			lien_holding_get(process, allocation), body->va, body->bytes);
		if (!mapping)
			return -ENOMEM;
		mapping->imported = body->flags & LIEN_STATE_IMPORTED;
		mapping->opened = body->flags & LIEN_STATE_OPENED;
		lien_mapping_park(mapping, body->flags & LIEN_STATE_PARKED);
	}
	if (mapping->opened) {
		mapping->opens = body->opens;
		mapping->context = body->context;
		lien_count_from(&process->next_context, body->context);
	} else {
		mapping->access = access;
	}
	return 0;
}

#define registration_fields(COPY) COPY(va) COPY(bytes) COPY(handle) COPY(window) COPY(of_gpu)

static void dump_registration(struct lien_snapshot *snapshot, const struct lien_process *process,
	const struct lien_comm *comm, const struct lien_registration *part)
{
	struct lien_event event = lien_snapshot_record(process, LIEN_STATE_registration);
	struct lien_state_registration *body = &event.state.registration;

	registration_fields(LIEN_DUMP_FIELD) body->comm = comm ? comm->number : 0;
	if (part->card)
		memcpy(body->card, part->card->text, strlen(part->card->text));
	LIEN_EMIT(snapshot, &event, registration);
}

/* The graph marks the spans of a new process for computation. */
static int load_registration(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_registration *body = &event->state.registration;
	struct lien_comm *comm = body->comm ? lien_process_comm(process, body->comm) : NULL;
	struct lien_registration *part;

	if (!body->handle || (body->comm && !comm))
		return -EBADMSG;
	part = calloc(1, sizeof(*part));
	if (!part)
		return -ENOMEM;
	part->number = ++graph->next_registration;
	registration_fields(LIEN_LOAD_FIELD) RB_INSERT(
		lien_registration_tree, comm ? &comm->registrations : &process->cards, part);
	process->card_spans.known = false;
	return !comm && event->size >= LIEN_EVENT_SIZE(state.registration)
		       ? lien_registration_name(graph, part, body->card)
		       : 0;
}

void lien_snapshot_dump_held(struct lien_snapshot *snapshot, struct lien_process *process)
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

#define binding_fields(COPY) COPY(offset) COPY(bytes) COPY(memory_offset) COPY(device)

static void dump_binding(struct lien_snapshot *snapshot, const struct lien_binding *part)
{
	const struct lien_process *owner = part->object->owner;
	struct lien_event event = lien_snapshot_record(
		lien_viewer_sees(snapshot->viewer, owner) ? owner : NULL, LIEN_STATE_binding);
	struct lien_state_binding *body = &event.state.binding;

	body->object = part->object->id;
	body->memory = part->memory->id;
	binding_fields(LIEN_DUMP_FIELD) LIEN_EMIT(snapshot, &event, binding);
}

static int load_binding(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_binding *body = &event->state.binding;
	struct lien_allocation *object = allocation_of(graph, body->object);
	struct lien_allocation *memory = allocation_of(graph, body->memory);
	struct lien_binding like = {.object = object, .memory = memory}, *part = &like;

	(void)process;
	if (!object || object->origin != LIEN_ORIGIN_MULTICAST || !memory ||
		memory->origin == LIEN_ORIGIN_MULTICAST)
		return -EBADMSG;
	binding_fields(LIEN_LOAD_FIELD) return lien_binding_new(graph, part);
}

void lien_snapshot_dump_bindings(struct lien_snapshot *snapshot)
{
	struct lien_allocation *object;
	struct lien_binding *binding;

	LIEN_FOREACH_ALLOCATION (object, snapshot->graph) {
		if (object->origin != LIEN_ORIGIN_MULTICAST ||
			!lien_viewer_sees_part(snapshot->viewer, object))
			continue;
		RB_FOREACH (binding, lien_binding_tree, &object->bound)
			if (lien_viewer_sees_part(snapshot->viewer, binding->memory))
				dump_binding(snapshot, binding);
	}
}

int lien_snapshot_load_memory(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
#define LOAD(name, number, least) [number] = load_##name,
	static lien_load_fn *const loads[LIEN_CALL_MAX] = {LIEN_MEMORY_STATES(LOAD)};
#undef LOAD

	return loads[event->type](graph, process, event);
}
