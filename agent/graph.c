// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph_internal.h"

#define SPLAY_TREE(tree, type, member, entry)                                                      \
	int tree##_cmp(const struct type *a, const struct type *b)                                 \
	{                                                                                          \
		return a->member < b->member ? -1 : a->member > b->member;                         \
	}                                                                                          \
	SPLAY_GENERATE(tree##_tree, type, entry, tree##_cmp)                                       \
	_Static_assert(1, "takes the semicolon")

#define TREE(tree, type, member, entry)                                                            \
	static int tree##_cmp(const struct type *a, const struct type *b)                          \
	{                                                                                          \
		return a->member < b->member ? -1 : a->member > b->member;                         \
	}                                                                                          \
	RB_GENERATE(tree##_tree, type, entry, tree##_cmp)                                          \
	_Static_assert(1, "takes the semicolon")

TREE(lien_process, lien_process, pid, by_pid);
SPLAY_TREE(lien_share, lien_share, number, by_number);
SPLAY_TREE(lien_handle, lien_handle, value, by_value);
SPLAY_TREE(lien_reservation, lien_reservation, va, by_va);
TREE(lien_mapping, lien_mapping, va, by_va);
TREE(lien_comm, lien_comm, address, by_address);
TREE(lien_library, lien_library_map, start, by_start);

int lien_graph_new(struct lien_graph **out)
{
	struct lien_graph *graph = calloc(1, sizeof(*graph));

	if (!graph)
		return -ENOMEM;
	RB_INIT(&graph->processes);
	TAILQ_INIT(&graph->allocations);
	SPLAY_INIT(&graph->shares);
	RB_INIT(&graph->names);
	RB_INIT(&graph->access_sets);
	RB_INIT(&graph->sites);
	LIST_INIT(&graph->splits);
	lien_slab_init(&graph->slabs.allocations, sizeof(struct lien_allocation));
	lien_slab_init(&graph->slabs.mappings, sizeof(struct lien_mapping));
	lien_slab_init(&graph->slabs.handles, sizeof(struct lien_handle));
	lien_slab_init(&graph->slabs.reservations, sizeof(struct lien_reservation));
	lien_slab_init(&graph->slabs.shares, sizeof(struct lien_share));
	*out = graph;
	return 0;
}

static void allocation_free(struct lien_graph *graph, struct lien_allocation *allocation);

void lien_graph_free(struct lien_graph *graph)
{
	struct lien_process *process;
	unsigned i;

	if (!graph)
		return;
	while ((process = RB_ROOT(&graph->processes)))
		lien_process_end(graph, process);
	for (i = 0; graph->let_go && i < LIEN_LET_GO_MAX; i++)
		if (graph->let_go[i])
			allocation_free(graph, graph->let_go[i]);
	free(graph->let_go);
	lien_splits_drop(graph, 0);
	lien_graph_free_sets(graph);
	lien_slab_clear(&graph->slabs.allocations);
	lien_slab_clear(&graph->slabs.mappings);
	lien_slab_clear(&graph->slabs.handles);
	lien_slab_clear(&graph->slabs.reservations);
	lien_slab_clear(&graph->slabs.shares);
	free(graph);
}

void lien_graph_on_process_end(
	struct lien_graph *graph, void (*fn)(void *context, struct lien_process *), void *context)
{
	graph->on_process_end = fn;
	graph->on_process_end_context = context;
}

const struct lien_graph_stats *lien_graph_stats(const struct lien_graph *graph)
{
	return &graph->stats;
}

struct lien_process *lien_graph_process(struct lien_graph *graph, uint32_t pid)
{
	struct lien_process key = {.pid = pid};

	return RB_FIND(lien_process_tree, &graph->processes, &key);
}

struct lien_process *lien_graph_living(struct lien_graph *graph, uint32_t pid, uint64_t start)
{
	struct lien_process *process = lien_graph_process(graph, pid);

	return process && process->start == start && !process->ended ? process : NULL;
}

struct lien_process *lien_graph_first(struct lien_graph *graph)
{
	return RB_MIN(lien_process_tree, &graph->processes);
}

struct lien_process *lien_graph_next(struct lien_process *process)
{
	return RB_NEXT(lien_process_tree, NULL, process);
}

struct lien_process *lien_graph_process_after(struct lien_graph *graph, uint32_t pid)
{
	struct lien_process key = {.pid = pid + 1};

	return RB_NFIND(lien_process_tree, &graph->processes, &key);
}

struct lien_allocation *lien_graph_first_allocation(struct lien_graph *graph)
{
	return TAILQ_FIRST(&graph->allocations);
}

struct lien_allocation *lien_graph_next_allocation(struct lien_allocation *allocation)
{
	return TAILQ_NEXT(allocation, of_graph);
}

bool lien_range_sane(uint64_t va, uint64_t bytes)
{
	return bytes && va + bytes > va;
}

struct lien_mapping *lien_process_overlap(struct lien_process *process, uint64_t va, uint64_t bytes)
{
	struct lien_mapping *at = RB_ROOT(&process->mappings), *best = NULL;

	while (at) {
		if (at->va + at->bytes > va) {
			best = at;
			at = RB_LEFT(at, by_va);
		} else {
			at = RB_RIGHT(at, by_va);
		}
	}
	return best && best->va < va + bytes ? best : NULL;
}

struct lien_mapping *lien_process_mapping(struct lien_process *process, uint64_t va)
{
	return lien_process_overlap(process, va, 1);
}

struct lien_library_map *lien_process_library(struct lien_process *process, uint64_t address)
{
	struct lien_library_map *at = RB_ROOT(&process->libraries);

	while (at) {
		if (address < at->start)
			at = RB_LEFT(at, by_start);
		else if (address >= at->end)
			at = RB_RIGHT(at, by_start);
		else
			return at;
	}
	return NULL;
}

bool lien_registration_lies(
	struct lien_process *process, const struct lien_registration *registration)
{
	return lien_process_mapping(process, registration->va) ||
	       lien_process_mapping(process, registration->va + registration->bytes - 1);
}

bool lien_registration_touches(
	const struct lien_registration *registration, const struct lien_mapping *mapping)
{
	return registration->va < mapping->va + mapping->bytes &&
	       mapping->va < registration->va + registration->bytes;
}

bool lien_allocation_held(const struct lien_allocation *allocation)
{
	if (!LIST_EMPTY(&allocation->handles) || !LIST_EMPTY(&allocation->mappings))
		return true;
	/* Bound memory is held by the object; the object is not held by what is bound to it. */
	return allocation->origin != LIEN_ORIGIN_MULTICAST && !LIST_EMPTY(&allocation->bindings);
}

bool lien_allocation_offloaded(const struct lien_allocation *allocation)
{
	const struct lien_mapping *mapping;
	bool parked = false;

	if (!LIST_EMPTY(&allocation->handles))
		return false;
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation) {
		if (!mapping->parked)
			return false;
		parked = true;
	}
	return parked;
}

bool lien_allocation_on_device(const struct lien_allocation *allocation)
{
	switch (allocation->origin) {
	case LIEN_ORIGIN_CREATE:
		return allocation->prop.location_type == 1; /* CU_MEM_LOCATION_TYPE_DEVICE */
	case LIEN_ORIGIN_MULTICAST:
	case LIEN_ORIGIN_HOST:
	case LIEN_ORIGIN_REGISTERED:
		return false;
	default: /* what is imported from nobody known is taken for it, too */
		return true;
	}
}

bool lien_allocation_by_address(const struct lien_allocation *allocation)
{
	return allocation->origin >= LIEN_ORIGIN_ALLOC;
}

const char *lien_allocation_library(const struct lien_allocation *allocation)
{
	return allocation->site ? allocation->site->library->text : "unknown";
}

struct lien_comm *lien_allocation_comm(const struct lien_allocation *allocation)
{
	return allocation->comm && allocation->owner
		       ? lien_process_comm(allocation->owner, allocation->comm)
		       : NULL;
}

struct lien_process *lien_process_new(struct lien_graph *graph, uint32_t pid, uint64_t start)
{
	struct lien_process *process = calloc(1, sizeof(*process));

	if (!process)
		return NULL;
	process->pid = pid;
	process->start = start;
	SPLAY_INIT(&process->handles);
	RB_INIT(&process->mappings);
	SPLAY_INIT(&process->reservations);
	RB_INIT(&process->comms);
	RB_INIT(&process->libraries);
	TAILQ_INIT(&process->pending);
	LIST_INIT(&process->captures);
	LIST_INIT(&process->pools);
	LIST_INIT(&process->contexts);
	LIST_INIT(&process->inits);
	LIST_INIT(&process->cards);
	LIST_INIT(&process->owned);
	RB_INSERT(lien_process_tree, &graph->processes, process);
	graph->stats.processes++;
	return process;
}

struct lien_allocation *lien_allocation_new(struct lien_graph *graph, enum lien_origin origin)
{
	struct lien_allocation *allocation = lien_slab_get(&graph->slabs.allocations);

	if (!allocation)
		return NULL;
	allocation->id = ++graph->next_id;
	allocation->origin = origin;
	LIST_INIT(&allocation->handles);
	LIST_INIT(&allocation->mappings);
	LIST_INIT(&allocation->shares);
	LIST_INIT(&allocation->bindings);
	TAILQ_INSERT_TAIL(&graph->allocations, allocation, of_graph);
	graph->stats.allocations++;
	graph->stats.unmatched_imports += origin == LIEN_ORIGIN_IMPORT;
	return allocation;
}

static void share_free(struct lien_graph *graph, struct lien_share *share)
{
	if (share->has_key)
		free(share);
	else
		lien_slab_put(&graph->slabs.shares, share);
}

void lien_share_drop(struct lien_graph *graph, struct lien_share *share)
{
	LIST_REMOVE(share, of_allocation);
	if (!share->stale)
		SPLAY_REMOVE(lien_share_tree, &graph->shares, share);
	share_free(graph, share);
}

void lien_share_outdate(struct lien_graph *graph, struct lien_share *share)
{
	SPLAY_REMOVE(lien_share_tree, &graph->shares, share);
	share->stale = true;
}

void lien_shares_drop_control(struct lien_graph *graph, struct lien_allocation *allocation)
{
	struct lien_share *share, *next;

	LIST_FOREACH_SAFE (share, &allocation->shares, of_allocation, next)
		if (share->control)
			lien_share_drop(graph, share);
}

static void allocation_settle(struct lien_graph *graph, struct lien_allocation *allocation);

void lien_binding_drop(struct lien_graph *graph, struct lien_binding *binding)
{
	struct lien_allocation *memory = binding->memory;

	LIST_REMOVE(binding, of_object);
	LIST_REMOVE(binding, of_memory);
	free(binding);
	allocation_settle(graph, memory);
}

static void unbind_all(struct lien_graph *graph, struct lien_allocation *object)
{
	struct lien_binding *binding;

	if (object->origin == LIEN_ORIGIN_MULTICAST)
		while ((binding = LIST_FIRST(&object->bindings)))
			lien_binding_drop(graph, binding);
}

static void hide(struct lien_graph *graph, struct lien_allocation *allocation)
{
	TAILQ_REMOVE(&graph->allocations, allocation, of_graph);
	graph->stats.allocations--;
}

static void show(struct lien_graph *graph, struct lien_allocation *allocation)
{
	struct lien_allocation *before = TAILQ_LAST(&graph->allocations, lien_allocation_list);

	while (before && before->id > allocation->id)
		before = TAILQ_PREV(before, lien_allocation_list, of_graph);
	if (before)
		TAILQ_INSERT_AFTER(&graph->allocations, before, allocation, of_graph);
	else
		TAILQ_INSERT_HEAD(&graph->allocations, allocation, of_graph);
	graph->stats.allocations++;
}

static void allocation_free(struct lien_graph *graph, struct lien_allocation *allocation)
{
	struct lien_share *share;

	unbind_all(graph, allocation);
	graph->stats.unmatched_imports -= allocation->origin == LIEN_ORIGIN_IMPORT;
	while ((share = LIST_FIRST(&allocation->shares)))
		lien_share_drop(graph, share);
	if (allocation->owner)
		LIST_REMOVE(allocation, of_owner);
	if (allocation->let_go)
		graph->let_go[allocation->let_go - 1] = NULL;
	else
		hide(graph, allocation);
	lien_slab_put(&graph->slabs.allocations, allocation);
}

/* Its place is that of the one that was let go longest ago. */
static void let_go(struct lien_graph *graph, struct lien_allocation *allocation)
{
	unsigned place;

	if (!graph->let_go)
		graph->let_go = calloc(LIEN_LET_GO_MAX, sizeof(*graph->let_go));
	if (!graph->let_go) {
		allocation_free(graph, allocation);
		return;
	}
	do
		place = graph->next_let_go++ % LIEN_LET_GO_MAX;
	while (graph->let_go[place] && graph->let_go[place]->importing);
	if (graph->let_go[place])
		allocation_free(graph, graph->let_go[place]);
	hide(graph, allocation);
	graph->let_go[place] = allocation;
	allocation->let_go = place + 1;
}

struct lien_allocation *lien_share_taken(struct lien_graph *graph, struct lien_share *share)
{
	struct lien_allocation *allocation = share->allocation;

	share->imports++;
	if (allocation->let_go) {
		graph->let_go[allocation->let_go - 1] = NULL;
		allocation->let_go = 0;
		show(graph, allocation);
	}
	return allocation;
}

/* What nothing holds is freed, unless it was handed out: then an import may be told of yet. One
 * that nobody has imported at all is expected as long as its owner lives. */
static void allocation_settle(struct lien_graph *graph, struct lien_allocation *allocation)
{
	bool handed_out = false, awaited = false;
	const struct lien_share *share;

	if (allocation->importing || lien_allocation_held(allocation))
		return;
	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (!share->control) {
			handed_out = true;
			if (!(share->number & LIEN_SHARE_BY_KEY))
				awaited |= !share->imports;
		}
	if ((awaited && allocation->owner) || allocation->let_go)
		return;
	unbind_all(graph, allocation);
	if (handed_out)
		let_go(graph, allocation);
	else
		allocation_free(graph, allocation);
}

struct lien_share *lien_share_new(struct lien_graph *graph, struct lien_allocation *allocation,
	uint64_t number, const uint8_t *key)
{
	struct lien_share *share = key ? calloc(1, sizeof(*share) + LIEN_KEY_BYTES)
				       : lien_slab_get(&graph->slabs.shares);

	if (!share)
		return NULL;
	share->number = number;
	share->has_key = key;
	if (key)
		memcpy(share->key, key, LIEN_KEY_BYTES);
	share->allocation = allocation;
	if (SPLAY_INSERT(lien_share_tree, &graph->shares, share)) {
		share_free(graph, share);
		return NULL;
	}
	LIST_INSERT_HEAD(&allocation->shares, share, of_allocation);
	return share;
}

struct lien_handle *lien_handle_new(struct lien_graph *graph, struct lien_process *process,
	struct lien_allocation *allocation, uint64_t value)
{
	struct lien_handle *handle = lien_slab_get(&graph->slabs.handles);

	if (!handle)
		return NULL;
	handle->process = process;
	handle->allocation = allocation;
	handle->value = value;
	SPLAY_INSERT(lien_handle_tree, &process->handles, handle);
	LIST_INSERT_HEAD(&allocation->handles, handle, of_allocation);
	return handle;
}

void lien_handle_drop(struct lien_graph *graph, struct lien_handle *handle)
{
	struct lien_allocation *allocation = handle->allocation;

	SPLAY_REMOVE(lien_handle_tree, &handle->process->handles, handle);
	LIST_REMOVE(handle, of_allocation);
	lien_slab_put(&graph->slabs.handles, handle);
	allocation_settle(graph, allocation);
}

uint64_t lien_range_bytes(uint64_t va, uint64_t bytes)
{
	if (bytes > LIEN_ADDRESS_END - va)
		bytes = LIEN_ADDRESS_END - va;
	return bytes ? bytes : 1;
}

struct lien_mapping *lien_mapping_new(struct lien_graph *graph, struct lien_process *process,
	struct lien_allocation *allocation, uint64_t va, uint64_t bytes)
{
	struct lien_mapping *mapping = lien_slab_get(&graph->slabs.mappings);

	if (!mapping)
		return NULL;
	mapping->process = process;
	mapping->allocation = allocation;
	mapping->va = va;
	mapping->bytes = lien_range_bytes(va, bytes);
	RB_INSERT(lien_mapping_tree, &process->mappings, mapping);
	LIST_INSERT_HEAD(&allocation->mappings, mapping, of_allocation);
	graph->stats.mappings++;
	return mapping;
}

void lien_mapping_drop(struct lien_graph *graph, struct lien_mapping *mapping)
{
	struct lien_allocation *allocation = mapping->allocation;

	RB_REMOVE(lien_mapping_tree, &mapping->process->mappings, mapping);
	LIST_REMOVE(mapping, of_allocation);
	graph->stats.mappings--;
	lien_slab_put(&graph->slabs.mappings, mapping);
	allocation_settle(graph, allocation);
}

void lien_allocation_merge(
	struct lien_graph *graph, struct lien_allocation *from, struct lien_allocation *to)
{
	struct lien_binding *binding;
	struct lien_handle *handle;
	struct lien_mapping *mapping;
	struct lien_share *share;

	while ((handle = LIST_FIRST(&from->handles))) {
		LIST_REMOVE(handle, of_allocation);
		handle->allocation = to;
		LIST_INSERT_HEAD(&to->handles, handle, of_allocation);
	}
	while ((mapping = LIST_FIRST(&from->mappings))) {
		LIST_REMOVE(mapping, of_allocation);
		mapping->allocation = to;
		LIST_INSERT_HEAD(&to->mappings, mapping, of_allocation);
	}
	while (from->origin != LIEN_ORIGIN_MULTICAST && (binding = LIST_FIRST(&from->bindings))) {
		LIST_REMOVE(binding, of_memory);
		binding->memory = to;
		LIST_INSERT_HEAD(&to->bindings, binding, of_memory);
	}
	while ((share = LIST_FIRST(&from->shares))) {
		LIST_REMOVE(share, of_allocation);
		share->allocation = to;
		LIST_INSERT_HEAD(&to->shares, share, of_allocation);
	}
	while ((binding = LIST_FIRST(&from->bindings))) {
		LIST_REMOVE(binding, of_memory);
		binding->memory = to;
		LIST_INSERT_HEAD(&to->bindings, binding, of_memory);
	}
	allocation_free(graph, from);
}

static void registrations_free(struct lien_registration_list *list)
{
	struct lien_registration *registration;

	while ((registration = LIST_FIRST(list))) {
		LIST_REMOVE(registration, next);
		free(registration);
	}
}

void lien_comm_drop(struct lien_graph *graph, struct lien_process *process, struct lien_comm *comm)
{
	struct lien_init *init, *next;

	lien_splits_forget(graph, comm->number);
	registrations_free(&comm->registrations);
	LIST_FOREACH_SAFE (init, &process->inits, next, next)
		if (init->number == comm->number) {
			LIST_REMOVE(init, next);
			free(init);
		}
	RB_REMOVE(lien_comm_tree, &process->comms, comm);
	free(comm);
}

void lien_allocation_own(struct lien_allocation *allocation, struct lien_process *process)
{
	allocation->owner = process;
	allocation->owner_pid = process->pid;
	allocation->owner_start = process->start;
	LIST_INSERT_HEAD(&process->owned, allocation, of_owner);
}

static void allocation_disown(struct lien_graph *graph, struct lien_allocation *allocation)
{
	LIST_REMOVE(allocation, of_owner);
	allocation->owner = NULL;
	allocation_settle(graph, allocation);
}

void lien_process_end(struct lien_graph *graph, struct lien_process *process)
{
	struct lien_reservation *reservation;
	struct lien_allocation *allocation;
	struct lien_library_map *library;
	struct lien_context *context;
	struct lien_init *init;
	struct lien_pool *pool;
	struct lien_pending *pending;
	struct lien_capture *capture;
	struct lien_mapping *mapping;
	struct lien_handle *handle;
	struct lien_comm *comm;

	process->ended = true;
	if (graph->on_process_end)
		graph->on_process_end(graph->on_process_end_context, process);
	while ((mapping = RB_ROOT(&process->mappings)))
		lien_mapping_drop(graph, mapping);
	while ((handle = SPLAY_ROOT(&process->handles)))
		lien_handle_drop(graph, handle);
	while ((reservation = SPLAY_ROOT(&process->reservations))) {
		SPLAY_REMOVE(lien_reservation_tree, &process->reservations, reservation);
		lien_slab_put(&graph->slabs.reservations, reservation);
	}
	while ((comm = RB_ROOT(&process->comms)))
		lien_comm_drop(graph, process, comm);
	registrations_free(&process->cards);
	while ((library = RB_ROOT(&process->libraries))) {
		RB_REMOVE(lien_library_tree, &process->libraries, library);
		free(library);
	}
	while ((pending = TAILQ_FIRST(&process->pending))) {
		TAILQ_REMOVE(&process->pending, pending, next);
		free(pending);
	}
	while ((capture = LIST_FIRST(&process->captures))) {
		LIST_REMOVE(capture, next);
		free(capture);
	}
	while ((pool = LIST_FIRST(&process->pools))) {
		LIST_REMOVE(pool, next);
		free(pool);
	}
	while ((context = LIST_FIRST(&process->contexts))) {
		LIST_REMOVE(context, next);
		free(context);
	}
	while ((init = LIST_FIRST(&process->inits))) {
		LIST_REMOVE(init, next);
		free(init);
	}
	lien_splits_drop(graph, process->pid);
	while ((allocation = LIST_FIRST(&process->owned)))
		allocation_disown(graph, allocation);
	RB_REMOVE(lien_process_tree, &graph->processes, process);
	graph->stats.processes--;
	free(process);
}
