// SPDX-License-Identifier: BSD-2-Clause
/*
 * Loading a snapshot (lien/state.h), record by record. Records come from files, so nothing in them
 * is trusted: a record only adds to the graph, and one that does not fit is refused as a whole.
 *
 * An allocation may have no holder yet. Until the snapshot is loaded it counts as being imported:
 * nothing frees it, and without holders it is not shown.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"
#include "agent/graph/event_check.h"
#include "agent/graph/internal.h"

/* Numbers that the graph counts up from stay below these, so that they never run out. */
#define LIEN_ID_END	(1ull << 62)
#define LIEN_NUMBER_END (1u << 31)

/* Returns 0, -EBADMSG or -ENOMEM. The process is NULL if the record's process is not known. */
typedef int load_fn(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event);

/* The number has been given out: the next one is greater. */
static void count_from(uint32_t *last, uint32_t number)
{
	if (*last < number)
		*last = number;
}

static int load_process(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_process *body = &event->state.process;
	unsigned i;

	if (!event->pid || lien_graph_process(graph, event->pid) ||
		body->context >= LIEN_NUMBER_END)
		return -EBADMSG;
	process = lien_process_new(graph, event->pid, event->start);
	if (!process)
		return -ENOMEM;
	process->uid = body->uid;
	process->incomplete = body->incomplete;
	process->cuda = body->cuda;
	process->captured = body->captured;
	process->device_comm = body->device_comm;
	process->next_context = body->context;
	process->t_first = event->t_entry;
	for (i = 0; i < sizeof(process->command) - 1 && body->command[i]; i++)
		process->command[i] = lien_printable(body->command[i]);
	return 0;
}

static int load_reservation(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_reservation *reservation = lien_slab_get(&graph->slabs.reservations);

	if (!reservation)
		return -ENOMEM;
	reservation->va = event->state.reservation.va;
	reservation->bytes = event->state.reservation.bytes;
	if (!SPLAY_INSERT(lien_reservation_tree, &process->reservations, reservation))
		return 0;
	lien_slab_put(&graph->slabs.reservations, reservation);
	return -EBADMSG;
}

static int load_context(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_context *body = &event->state.context;
	struct lien_context *context;

	(void)graph;
	if (!body->number || body->number >= LIEN_NUMBER_END ||
		lien_context_number(process, body->value))
		return -EBADMSG;
	context = calloc(1, sizeof(*context));
	if (!context)
		return -ENOMEM;
	context->value = body->value;
	context->number = body->number;
	context->device = body->device;
	context->primary = body->primary;
	if (RB_INSERT(lien_context_number_tree, &process->context_numbers, context)) {
		free(context);
		return -EBADMSG;
	}
	RB_INSERT(lien_context_tree, &process->contexts, context);
	count_from(&process->next_context, body->number);
	return 0;
}

static int load_pool(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_pool *body = &event->state.pool;
	struct lien_pool *pool = calloc(1, sizeof(*pool));

	(void)graph;
	if (!pool)
		return -ENOMEM;
	pool->value = body->value;
	pool->share = body->share;
	pool->device = body->device;
	pool->imported = body->imported;
	if (!RB_INSERT(lien_pool_tree, &process->pools, pool))
		return 0;
	free(pool);
	return -EBADMSG;
}

static int load_capture(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_capture *capture = calloc(1, sizeof(*capture));

	(void)graph;
	if (!capture)
		return -ENOMEM;
	capture->stream = event->state.capture.stream;
	if (!RB_INSERT(lien_capture_tree, &process->captures, capture))
		return 0;
	free(capture);
	return -EBADMSG;
}

/* --- communicators ---------------------------------------------------------------------------- */

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
	struct lien_comm *comm;

	if (!event->scope || lien_comm_find(process, event->scope) || !body->number ||
		body->number >= LIEN_NUMBER_END || lien_process_comm(process, body->number) ||
		body->parent >= LIEN_NUMBER_END || (event->outer && !makes_comm(event->outer)))
		return -EBADMSG;
	graph->next_comm = body->number - 1;
	comm = lien_comm_new(graph, process, event->scope);
	graph->next_comm = next;
	if (!comm)
		return -ENOMEM;
	count_from(&graph->next_comm, body->number);
	count_from(&graph->next_comm, body->parent);
	comm->made_by = event->outer;
	comm->t_init = event->t_return;
	comm->hash = body->hash;
	comm->parent = body->parent;
	comm->rank = body->rank;
	comm->nranks = body->nranks;
	comm->device = body->device;
	comm->splits = body->splits;
	comm->shrinks = body->shrinks;
	comm->finalized = body->finalized;
	memcpy(comm->id, body->id, sizeof(comm->id));
	return 0;
}

static bool has_init(struct lien_process *process, uint32_t number)
{
	struct lien_init key = {.number = number};

	return RB_FIND(lien_init_number_tree, &process->init_numbers, &key);
}

static int load_init(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	uint32_t number = event->state.init.number;
	struct lien_init key = {.scope = event->scope};

	if (!(event->scope & LIEN_SCOPE_INIT) || !number || number >= LIEN_NUMBER_END ||
		RB_FIND(lien_init_tree, &process->inits, &key) || has_init(process, number))
		return -EBADMSG;
	count_from(&graph->next_comm, number);
	return lien_init_new(process, event->scope, number);
}

static int load_split(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	return lien_split_load(graph, process, &event->state.split);
}

/* The graph marks the spans of a new process for computation. */
static int load_registration(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_registration *body = &event->state.registration;
	struct lien_comm *comm = body->comm ? lien_process_comm(process, body->comm) : NULL;
	struct lien_registration *registration;

	if (!body->handle || (body->comm && !comm))
		return -EBADMSG;
	registration = calloc(1, sizeof(*registration));
	if (!registration)
		return -ENOMEM;
	registration->number = ++graph->next_registration;
	registration->va = body->va;
	registration->bytes = body->bytes;
	registration->handle = body->handle;
	registration->window = body->window;
	registration->of_gpu = body->of_gpu;
	RB_INSERT(lien_registration_tree, comm ? &comm->registrations : &process->cards,
		registration);
	process->card_spans.known = false;
	return !comm && event->size >= LIEN_EVENT_SIZE(state.registration)
		       ? lien_registration_name(graph, registration, body->card)
		       : 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

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

static int load_site(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_site *body = &event->state.site;
	struct lien_site like = {.inode = body->inode,
		.offset = body->offset,
		.dev_major = body->dev_major,
		.dev_minor = body->dev_minor,
		.outer = event->outer};
	const struct lien_site *site;

	if (body->number != graph->loading.sites_count + 1)
		return -EBADMSG;
	if (lien_array_grow(&graph->loading.sites, graph->loading.sites_count,
		    &graph->loading.sites_room, sizeof(*graph->loading.sites)))
		return -ENOMEM;
	like.library = lien_graph_name(graph, body->library, sizeof(body->library));
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

static bool allocation_fits(struct lien_graph *graph, const struct lien_state_allocation *body)
{
	const uint32_t known = LIEN_STATE_FOUND | LIEN_STATE_INFERRED | LIEN_STATE_ADOPTED |
			       LIEN_STATE_OPEN | LIEN_STATE_PART | LIEN_STATE_TAG_UNKNOWN;

	return body->id > graph->next_id && body->id < LIEN_ID_END &&
	       body->origin > LIEN_ORIGIN_NONE && body->origin < LIEN_ORIGIN_COUNT &&
	       !(body->flags & ~known) && body->site <= graph->loading.sites_count &&
	       body->comm < LIEN_NUMBER_END && body->context < LIEN_NUMBER_END;
}

/* Fills in what the record says of an allocation. */
static void allocation_describe(
	struct lien_allocation *allocation, const struct lien_state_allocation *body)
{
	allocation->bytes = body->bytes;
	allocation->prop = body->prop;
	allocation->comm = body->comm;
	if (body->origin == LIEN_ORIGIN_MULTICAST) {
		allocation->devices = body->devices;
	} else {
		allocation->context = body->context;
		allocation->dmabufs = body->dmabufs;
	}
	allocation->exports = body->exports;
	allocation->round = body->round;
	allocation->found = body->flags & LIEN_STATE_FOUND;
	allocation->comm_inferred = body->flags & LIEN_STATE_INFERRED;
	allocation->adopted = body->flags & LIEN_STATE_ADOPTED;
	allocation->open = body->flags & LIEN_STATE_OPEN;
	allocation->part = body->flags & LIEN_STATE_PART;
	allocation->tag_unknown = body->flags & LIEN_STATE_TAG_UNKNOWN;
}

static int load_allocation(
	struct lien_graph *graph, struct lien_process *owner, const struct lien_event *event)
{
	const struct lien_state_allocation *body = &event->state.allocation;
	struct lien_allocation *allocation;

	if (!allocation_fits(graph, body))
		return -EBADMSG;
	if (lien_array_grow(&graph->loading.allocations, graph->loading.allocations_count,
		    &graph->loading.allocations_room, sizeof(*graph->loading.allocations)))
		return -ENOMEM;
	graph->next_id = body->id - 1;
	allocation = lien_allocation_new(graph, body->origin);
	if (!allocation)
		return -ENOMEM;
	graph->loading.allocations[graph->loading.allocations_count++] = allocation;
	allocation->importing = true;
	allocation_describe(allocation, body);
	if (event->size >= LIEN_EVENT_SIZE(state.allocation) && body->tag[0] &&
		lien_allocation_set_tag(graph, allocation, body->tag_uid, body->tag))
		return -ENOMEM;
	if (body->site)
		allocation->site = graph->loading.sites[body->site - 1];
	if (owner) {
		lien_allocation_own(allocation, owner);
		count_from(&owner->next_context, body->context);
	} else {
		allocation->owner_pid = event->pid;
		allocation->owner_start = event->start;
	}
	count_from(&graph->next_comm, body->comm);
	count_from(&graph->round, body->round);
	return 0;
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
	const struct lien_share like = {.number = body->number,
		.imports = body->imports,
		.call = body->call,
		.fd = body->fd,
		.control = body->flags & LIEN_STATE_CONTROL,
		.stale = body->flags & LIEN_STATE_STALE};
	const struct lien_share *first = allocation ? LIST_FIRST(&allocation->shares) : NULL;

	(void)process;
	if (!allocation || !share_fits(body) || (like.control && first && first->control) ||
		(!like.stale && lien_share_find(graph, body->number)))
		return -EBADMSG;
	return lien_share_copy(
		       graph, allocation, &like, body->flags & LIEN_STATE_KEYED ? body->key : NULL)
		       ? 0
		       : -ENOMEM;
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
	handle = lien_handle_new(graph, process, allocation, body->value);
	if (!handle)
		return -ENOMEM;
	lien_handle_refer(handle, body->references);
	handle->raw = body->raw;
	handle->raw_to = raw_to;
	handle->imported = body->flags & LIEN_STATE_IMPORTED;
	return 0;
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
			graph, lien_holding_get(graph, process, allocation), body->va, body->bytes);
		if (!mapping)
			return -ENOMEM;
		mapping->imported = body->flags & LIEN_STATE_IMPORTED;
		mapping->opened = body->flags & LIEN_STATE_OPENED;
		lien_mapping_park(mapping, body->flags & LIEN_STATE_PARKED);
	}
	if (mapping->opened) {
		mapping->opens = body->opens;
		mapping->context = body->context;
		count_from(&process->next_context, body->context);
	} else {
		mapping->access = access;
	}
	return 0;
}

static int load_binding(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_binding *body = &event->state.binding;
	struct lien_allocation *object = allocation_of(graph, body->object);
	struct lien_allocation *memory = allocation_of(graph, body->memory);

	(void)process;
	if (!object || object->origin != LIEN_ORIGIN_MULTICAST || !memory ||
		memory->origin == LIEN_ORIGIN_MULTICAST)
		return -EBADMSG;
	return lien_binding_new(graph, &(struct lien_binding){.object = object,
					       .memory = memory,
					       .offset = body->offset,
					       .bytes = body->bytes,
					       .memory_offset = body->memory_offset,
					       .device = body->device});
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

static int load_end(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_end *body = &event->state.end;

	(void)process;
	if (body->allocation >= LIEN_ID_END || body->comm >= LIEN_NUMBER_END)
		return -EBADMSG;
	if (graph->next_id < body->allocation)
		graph->next_id = body->allocation;
	count_from(&graph->next_comm, body->comm);
	count_from(&graph->round, body->round);
	lien_graph_loaded(graph);
	return 0;
}

/* --- all -------------------------------------------------------------------------------------- */

/* The others are about a process that has a record. */
static bool needs_no_process(unsigned type)
{
	return type == LIEN_STATE_process || type == LIEN_STATE_site ||
	       type == LIEN_STATE_allocation || type == LIEN_STATE_share ||
	       type == LIEN_STATE_binding || type == LIEN_STATE_end;
}

int lien_graph_load(struct lien_graph *graph, const struct lien_event *event)
{
	static load_fn *const loads[LIEN_CALL_MAX] = {
#define LOAD(name, number, least) [number] = load_##name,
		LIEN_STATES(LOAD)
#undef LOAD
	};
	struct lien_process *process = lien_graph_living(graph, event->pid, event->start);

	if (!process && !needs_no_process(event->type))
		return -EBADMSG;
	graph->stats.events++;
	if (process)
		lien_process_earn_visits(process);
	return loads[event->type](graph, process, event);
}
