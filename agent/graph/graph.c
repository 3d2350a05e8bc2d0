// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/internal.h"

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
TREE(lien_comm_number, lien_comm, number, by_number);
TREE(lien_library, lien_library_map, start, by_start);
TREE(lien_pool, lien_pool, value, by_value);
TREE(lien_context, lien_context, value, by_value);
TREE(lien_context_number, lien_context, number, by_number);
TREE(lien_init, lien_init, scope, by_scope);
TREE(lien_init_number, lien_init, number, by_number);
TREE(lien_capture, lien_capture, stream, by_stream);

static int lien_registration_cmp(
	const struct lien_registration *a, const struct lien_registration *b)
{
	if (a->handle != b->handle)
		return a->handle < b->handle ? -1 : 1;
	return a->number < b->number ? -1 : a->number > b->number;
}
RB_GENERATE(lien_registration_tree, lien_registration, by_handle, lien_registration_cmp)

static int lien_binding_cmp(const struct lien_binding *a, const struct lien_binding *b)
{
	if (a->device != b->device)
		return a->device < b->device ? -1 : 1;
	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return a->number < b->number ? -1 : a->number > b->number;
}
RB_GENERATE(lien_binding_tree, lien_binding, of_object, lien_binding_cmp)

/* Sorts by file, then by offset in it. */
static int lien_place_cmp(const struct lien_library_map *a, const struct lien_library_map *b)
{
	if (a->inode != b->inode)
		return a->inode < b->inode ? -1 : 1;
	if (a->dev_major != b->dev_major)
		return a->dev_major < b->dev_major ? -1 : 1;
	if (a->dev_minor != b->dev_minor)
		return a->dev_minor < b->dev_minor ? -1 : 1;
	if (a->file != b->file)
		return a->file < b->file ? -1 : 1;
	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return a->start < b->start ? -1 : a->start > b->start;
}
RB_GENERATE(lien_place_tree, lien_library_map, by_place, lien_place_cmp)

int lien_graph_new(struct lien_graph **out)
{
	struct lien_graph *graph = calloc(1, sizeof(*graph));

	if (!graph)
		return -ENOMEM;
	RB_INIT(&graph->processes);
	TAILQ_INIT(&graph->allocations);
	TAILQ_INIT(&graph->freed);
	TAILQ_INIT(&graph->ending);
	SPLAY_INIT(&graph->shares);
	RB_INIT(&graph->names);
	RB_INIT(&graph->access_sets);
	RB_INIT(&graph->sites);
	RB_INIT(&graph->tags);
	lien_slab_init(&graph->slabs.allocations, sizeof(struct lien_allocation));
	lien_slab_init(&graph->slabs.mappings, sizeof(struct lien_mapping));
	lien_slab_init(&graph->slabs.handles, sizeof(struct lien_handle));
	lien_slab_init(&graph->slabs.holdings, sizeof(struct lien_holding));
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
	graph->patient = false;
	lien_graph_loaded(graph);
	while ((process = RB_ROOT(&graph->processes)))
		lien_process_end(graph, process);
	for (i = 0; graph->let_go && i < LIEN_LET_GO_MAX; i++)
		if (graph->let_go[i])
			allocation_free(graph, graph->let_go[i]);
	free(graph->let_go);
	lien_graph_free_sets(graph);
	lien_slab_clear(&graph->slabs.allocations);
	lien_slab_clear(&graph->slabs.mappings);
	lien_slab_clear(&graph->slabs.handles);
	lien_slab_clear(&graph->slabs.holdings);
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

/*
 * Skips allocations that were let go, which stay in the list because they may come back, and those
 * from a snapshot whose holders are not loaded yet.
 */
static struct lien_allocation *first_shown(struct lien_allocation *allocation)
{
	while (allocation && (allocation->let_go ||
				     (allocation->importing && !lien_allocation_held(allocation))))
		allocation = TAILQ_NEXT(allocation, of_graph);
	return allocation;
}

struct lien_allocation *lien_graph_first_allocation(struct lien_graph *graph)
{
	return first_shown(TAILQ_FIRST(&graph->allocations));
}

struct lien_allocation *lien_graph_next_allocation(struct lien_allocation *allocation)
{
	return first_shown(TAILQ_NEXT(allocation, of_graph));
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

struct lien_holding *lien_allocation_holding(
	const struct lien_allocation *allocation, const struct lien_process *process)
{
	struct lien_holding *holding;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (holding->process == process)
			break;
	return holding;
}

const struct lien_access_set *lien_mapping_access(const struct lien_mapping *mapping)
{
	return mapping->opened ? NULL : mapping->access;
}

unsigned lien_mapping_opens(const struct lien_mapping *mapping)
{
	return mapping->opened ? mapping->opens : 0;
}

bool lien_allocation_held(const struct lien_allocation *allocation)
{
	if (!LIST_EMPTY(&allocation->holdings))
		return true;
	/* The object holds the memory bound to it, not the other way round. */
	return allocation->origin != LIEN_ORIGIN_MULTICAST && !LIST_EMPTY(&allocation->bindings);
}

bool lien_allocation_offloaded(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (holding->live || !TAILQ_EMPTY(&holding->handles))
			return false;
	return !LIST_EMPTY(&allocation->holdings);
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
	default: /* an import of unknown origin is treated the same */
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

bool lien_allocation_handed_out(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;

	if (allocation->site && allocation->site->outer == LIEN_CALL_NCCL_MEM_ALLOC)
		return true;
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (holding->process->device_comm)
			return true;
	return false;
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
	TAILQ_INIT(&process->pending);
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
	LIST_INIT(&allocation->holdings);
	LIST_INIT(&allocation->shares);
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

bool lien_share_awaited(const struct lien_share *share)
{
	return !share->control && !(share->number & LIEN_SHARE_BY_KEY) && !share->imports &&
	       !share->closed;
}

static void share_unlink(struct lien_share *share)
{
	share->allocation->awaited -= lien_share_awaited(share);
	LIST_REMOVE(share, of_allocation);
}

void lien_share_drop(struct lien_graph *graph, struct lien_share *share)
{
	share_unlink(share);
	if (!share->stale)
		SPLAY_REMOVE(lien_share_tree, &graph->shares, share);
	share_free(graph, share);
}

void lien_share_drop_control(struct lien_graph *graph, struct lien_allocation *allocation)
{
	struct lien_share *first = LIST_FIRST(&allocation->shares);

	if (first && first->control)
		lien_share_drop(graph, first);
}

static void share_link(
	struct lien_graph *graph, struct lien_allocation *allocation, struct lien_share *share)
{
	struct lien_share *first;

	if (share->control)
		lien_share_drop_control(graph, allocation);
	first = LIST_FIRST(&allocation->shares);
	share->allocation = allocation;
	allocation->awaited += lien_share_awaited(share);
	if (first && first->control)
		LIST_INSERT_AFTER(first, share, of_allocation);
	else
		LIST_INSERT_HEAD(&allocation->shares, share, of_allocation);
}

void lien_share_claim(struct lien_share *share)
{
	share->control = false;
	share->imports = 0;
	share->allocation->exports++;
}

void lien_share_outdate(struct lien_graph *graph, struct lien_share *share)
{
	SPLAY_REMOVE(lien_share_tree, &graph->shares, share);
	share->stale = true;
}

void lien_binding_drop(struct lien_graph *graph, struct lien_binding *binding)
{
	struct lien_allocation *memory = binding->memory;

	RB_REMOVE(lien_binding_tree, &binding->object->bound, binding);
	LIST_REMOVE(binding, of_memory);
	free(binding);
	lien_allocation_drop_unheld(graph, memory);
}

static void unbind_all(struct lien_graph *graph, struct lien_allocation *object)
{
	struct lien_binding *binding;

	if (object->origin == LIEN_ORIGIN_MULTICAST)
		while ((binding = RB_ROOT(&object->bound)))
			lien_binding_drop(graph, binding);
}

static void allocation_free(struct lien_graph *graph, struct lien_allocation *allocation)
{
	struct lien_share *share;

	unsigned i;

	unbind_all(graph, allocation);
	lien_allocation_drop_tag(graph, allocation);
	graph->stats.unmatched_imports -= allocation->origin == LIEN_ORIGIN_IMPORT;
	if (allocation->owner)
		LIST_REMOVE(allocation, of_owner);
	if (allocation->let_go)
		graph->let_go[allocation->let_go - 1] = NULL;
	else
		graph->stats.allocations--;
	TAILQ_REMOVE(&graph->allocations, allocation, of_graph);
	for (i = 0; !graph->patient || i < LIEN_AT_ONCE; i++) {
		share = LIST_FIRST(&allocation->shares);
		if (!share) {
			lien_slab_put(&graph->slabs.allocations, allocation);
			return;
		}
		lien_share_drop(graph, share);
	}
	TAILQ_INSERT_TAIL(&graph->freed, allocation, of_graph);
}

/* Takes the place of the allocation that was let go longest ago. */
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
	graph->stats.allocations--;
	graph->let_go[place] = allocation;
	allocation->let_go = place + 1;
}

struct lien_allocation *lien_share_taken(struct lien_graph *graph, struct lien_share *share)
{
	struct lien_allocation *allocation = share->allocation;

	allocation->awaited -= lien_share_awaited(share);
	share->imports++;
	if (allocation->let_go) {
		graph->let_go[allocation->let_go - 1] = NULL;
		allocation->let_go = 0;
		graph->stats.allocations++;
	}
	return allocation;
}

/* Frees an allocation that nothing holds, unless it was handed out, because an import of it may
 * still be reported. An allocation that nobody has imported at all is kept as long as its owner
 * lives. */
void lien_allocation_drop_unheld(struct lien_graph *graph, struct lien_allocation *allocation)
{
	const struct lien_share *share = LIST_FIRST(&allocation->shares);

	if (allocation->importing || lien_allocation_held(allocation))
		return;
	if ((allocation->awaited && allocation->owner) || allocation->let_go)
		return;
	unbind_all(graph, allocation);
	if (share && share->control)
		share = LIST_NEXT(share, of_allocation);
	if (share)
		let_go(graph, allocation);
	else
		allocation_free(graph, allocation);
}

struct lien_share *lien_share_copy(struct lien_graph *graph, struct lien_allocation *allocation,
	const struct lien_share *like, const uint8_t *key)
{
	struct lien_share *share = key ? calloc(1, sizeof(*share) + LIEN_KEY_BYTES)
				       : lien_slab_get(&graph->slabs.shares);

	if (!share)
		return NULL;
	*share = *like;
	share->made = ++graph->shares_made;
	share->has_key = key;
	if (key)
		memcpy(share->key, key, LIEN_KEY_BYTES);
	if (!share->stale && SPLAY_INSERT(lien_share_tree, &graph->shares, share)) {
		share_free(graph, share);
		return NULL;
	}
	share_link(graph, allocation, share);
	return share;
}

struct lien_share *lien_share_new(struct lien_graph *graph, struct lien_allocation *allocation,
	const struct lien_event *event, uint64_t number, const uint8_t *key)
{
	const struct lien_share like = {
		.number = number,
		.call = event->type,
		.fd = key ? -1 : event->share.fd,
		.control = event->flags & LIEN_EVENT_CONTROL,
		.imports = !!(event->flags & LIEN_EVENT_IMPORTED),
	};

	return lien_share_copy(graph, allocation, &like, key);
}

struct lien_holding *lien_holding_get(
	struct lien_graph *graph, struct lien_process *process, struct lien_allocation *allocation)
{
	struct lien_holding *holding = lien_allocation_holding(allocation, process);

	if (holding)
		return holding;
	holding = lien_slab_get(&graph->slabs.holdings);
	if (!holding)
		return NULL;
	holding->process = process;
	holding->allocation = allocation;
	LIST_INIT(&holding->mappings);
	TAILQ_INIT(&holding->handles);
	LIST_INSERT_HEAD(&allocation->holdings, holding, of_allocation);
	return holding;
}

static void holding_drop_empty(struct lien_graph *graph, struct lien_holding *holding)
{
	struct lien_allocation *allocation = holding->allocation;

	if (holding->mapped || !TAILQ_EMPTY(&holding->handles))
		return;
	LIST_REMOVE(holding, of_allocation);
	lien_slab_put(&graph->slabs.holdings, holding);
	lien_allocation_drop_unheld(graph, allocation);
}

struct lien_handle *lien_handle_new(struct lien_graph *graph, struct lien_process *process,
	struct lien_allocation *allocation, uint64_t value)
{
	struct lien_holding *holding = lien_holding_get(graph, process, allocation);
	struct lien_handle *handle = holding ? lien_slab_get(&graph->slabs.handles) : NULL;

	if (!handle) {
		if (holding)
			holding_drop_empty(graph, holding);
		return NULL;
	}
	handle->holding = holding;
	handle->value = value;
	SPLAY_INSERT(lien_handle_tree, &process->handles, handle);
	TAILQ_INSERT_HEAD(&holding->handles, handle, of_holding);
	return handle;
}

void lien_handle_refer(struct lien_handle *handle, uint32_t references)
{
	struct lien_handle_list *handles = &handle->holding->handles;

	if (!handle->references != !references) {
		TAILQ_REMOVE(handles, handle, of_holding);
		if (references)
			TAILQ_INSERT_TAIL(handles, handle, of_holding);
		else
			TAILQ_INSERT_HEAD(handles, handle, of_holding);
	}
	handle->references = references;
}

void lien_handle_drop(struct lien_graph *graph, struct lien_handle *handle)
{
	struct lien_holding *holding = handle->holding;

	SPLAY_REMOVE(lien_handle_tree, &holding->process->handles, handle);
	TAILQ_REMOVE(&holding->handles, handle, of_holding);
	lien_slab_put(&graph->slabs.handles, handle);
	holding_drop_empty(graph, holding);
}

uint64_t lien_range_bytes(uint64_t va, uint64_t bytes)
{
	if (bytes > LIEN_ADDRESS_END - va)
		bytes = LIEN_ADDRESS_END - va;
	return bytes ? bytes : 1;
}

struct lien_mapping *lien_mapping_new(
	struct lien_graph *graph, struct lien_holding *holding, uint64_t va, uint64_t bytes)
{
	struct lien_mapping *mapping = holding ? lien_slab_get(&graph->slabs.mappings) : NULL;

	if (!mapping) {
		if (holding)
			holding_drop_empty(graph, holding);
		return NULL;
	}
	mapping->holding = holding;
	mapping->va = va;
	mapping->bytes = lien_range_bytes(va, bytes);
	holding->mapped++;
	holding->live++;
	RB_INSERT(lien_mapping_tree, &holding->process->mappings, mapping);
	LIST_INSERT_HEAD(&holding->mappings, mapping, of_holding);
	graph->stats.mappings++;
	return mapping;
}

void lien_mapping_park(struct lien_mapping *mapping, bool parked)
{
	if (mapping->parked == parked)
		return;
	mapping->parked = parked;
	mapping->holding->live += parked ? -1 : 1;
	mapping->holding->process->parked += parked ? 1 : -1;
}

void lien_mapping_drop(struct lien_graph *graph, struct lien_mapping *mapping)
{
	struct lien_holding *holding = mapping->holding;

	RB_REMOVE(lien_mapping_tree, &holding->process->mappings, mapping);
	LIST_REMOVE(mapping, of_holding);
	holding->mapped--;
	holding->live -= !mapping->parked;
	holding->process->parked -= mapping->parked;
	graph->stats.mappings--;
	lien_slab_put(&graph->slabs.mappings, mapping);
	holding_drop_empty(graph, holding);
}

/* Moves everything to another holding of the same process, and frees the old one. */
static void holding_merge(
	struct lien_graph *graph, struct lien_holding *from, struct lien_holding *to)
{
	struct lien_handle *handle;
	struct lien_mapping *mapping;

	while ((handle = TAILQ_FIRST(&from->handles))) {
		TAILQ_REMOVE(&from->handles, handle, of_holding);
		handle->holding = to;
		if (handle->references)
			TAILQ_INSERT_TAIL(&to->handles, handle, of_holding);
		else
			TAILQ_INSERT_HEAD(&to->handles, handle, of_holding);
	}
	while ((mapping = LIST_FIRST(&from->mappings))) {
		LIST_REMOVE(mapping, of_holding);
		mapping->holding = to;
		LIST_INSERT_HEAD(&to->mappings, mapping, of_holding);
	}
	to->mapped += from->mapped;
	to->live += from->live;
	LIST_REMOVE(from, of_allocation);
	lien_slab_put(&graph->slabs.holdings, from);
}

static void holdings_move(
	struct lien_graph *graph, struct lien_allocation *from, struct lien_allocation *to)
{
	struct lien_holding *holding, *same;

	while ((holding = LIST_FIRST(&from->holdings))) {
		same = lien_allocation_holding(to, holding->process);
		if (same) {
			holding_merge(graph, holding, same);
			continue;
		}
		LIST_REMOVE(holding, of_allocation);
		holding->allocation = to;
		LIST_INSERT_HEAD(&to->holdings, holding, of_allocation);
	}
}

void lien_allocation_merge(
	struct lien_graph *graph, struct lien_allocation *from, struct lien_allocation *to)
{
	struct lien_binding *binding;
	struct lien_share *share;

	holdings_move(graph, from, to);
	while ((binding = LIST_FIRST(&from->bindings))) {
		LIST_REMOVE(binding, of_memory);
		binding->memory = to;
		LIST_INSERT_HEAD(&to->bindings, binding, of_memory);
	}
	while ((share = LIST_FIRST(&from->shares))) {
		share_unlink(share);
		share_link(graph, to, share);
	}
	allocation_free(graph, from);
}

void lien_comm_drop(struct lien_graph *graph, struct lien_process *process, struct lien_comm *comm)
{
	struct lien_init key = {.number = comm->number}, *init;

	lien_splits_forget(graph, process, comm->number);
	while (!RB_EMPTY(&comm->registrations))
		lien_registration_drop(&comm->registrations, RB_ROOT(&comm->registrations));
	while ((init = RB_FIND(lien_init_number_tree, &process->init_numbers, &key)))
		lien_init_drop(process, init);
	RB_REMOVE(lien_comm_tree, &process->comms, comm);
	RB_REMOVE(lien_comm_number_tree, &process->comm_numbers, comm);
	free(comm);
}

void lien_init_drop(struct lien_process *process, struct lien_init *init)
{
	RB_REMOVE(lien_init_tree, &process->inits, init);
	RB_REMOVE(lien_init_number_tree, &process->init_numbers, init);
	free(init);
}

void lien_library_drop(struct lien_process *process, struct lien_library_map *map)
{
	RB_REMOVE(lien_library_tree, &process->libraries, map);
	RB_REMOVE(lien_place_tree, &process->places, map);
	free(map);
}

void lien_allocation_own(struct lien_allocation *allocation, struct lien_process *process)
{
	allocation->owner = process;
	allocation->owner_pid = process->pid;
	allocation->owner_start = process->start;
	LIST_INSERT_HEAD(&process->owned, allocation, of_owner);
}

void lien_allocation_disown(struct lien_graph *graph, struct lien_allocation *allocation)
{
	LIST_REMOVE(allocation, of_owner);
	allocation->owner = NULL;
	lien_allocation_drop_unheld(graph, allocation);
}
