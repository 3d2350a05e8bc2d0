// SPDX-License-Identifier: BSD-2-Clause
/* Memory and what holds it: handles, mappings, bindings and shares. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/internal.h"

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

int lien_binding_new(struct lien_graph *graph, const struct lien_binding *like)
{
	struct lien_binding *binding = malloc(sizeof(*binding));

	if (!binding)
		return -ENOMEM;
	*binding = *like;
	binding->number = ++graph->next_binding;
	RB_INSERT(lien_binding_tree, &binding->object->bound, binding);
	LIST_INSERT_HEAD(&binding->memory->bindings, binding, of_memory);
	return 0;
}

void lien_reservation_drop(struct lien_process *process, struct lien_reservation *reservation)
{
	SPLAY_REMOVE(lien_reservation_tree, &process->reservations, reservation);
	lien_slab_put(&process->graph->slabs.reservations, reservation);
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

void lien_graph_free_let_go(struct lien_graph *graph)
{
	unsigned i;

	for (i = 0; graph->let_go && i < LIEN_LET_GO_MAX; i++)
		if (graph->let_go[i])
			allocation_free(graph, graph->let_go[i]);
	free(graph->let_go);
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
	share->made = ++graph->stats.shares_made;
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

struct lien_holding *lien_holding_get(
	struct lien_process *process, struct lien_allocation *allocation)
{
	struct lien_holding *holding = lien_allocation_holding(allocation, process);

	if (holding)
		return holding;
	holding = lien_slab_get(&process->graph->slabs.holdings);
	if (!holding)
		return NULL;
	holding->process = process;
	holding->allocation = allocation;
	LIST_INIT(&holding->mappings);
	TAILQ_INIT(&holding->handles);
	LIST_INSERT_HEAD(&allocation->holdings, holding, of_allocation);
	return holding;
}

static void holding_drop_empty(struct lien_holding *holding)
{
	struct lien_allocation *allocation = holding->allocation;
	struct lien_graph *graph = holding->process->graph;

	if (holding->mapped || !TAILQ_EMPTY(&holding->handles))
		return;
	LIST_REMOVE(holding, of_allocation);
	lien_slab_put(&graph->slabs.holdings, holding);
	lien_allocation_drop_unheld(graph, allocation);
}

struct lien_handle *lien_handle_new(
	struct lien_process *process, struct lien_allocation *allocation, uint64_t value)
{
	struct lien_holding *holding = lien_holding_get(process, allocation);
	struct lien_handle *handle = holding ? lien_slab_get(&process->graph->slabs.handles) : NULL;

	if (!handle) {
		if (holding)
			holding_drop_empty(holding);
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

void lien_handle_drop(struct lien_handle *handle)
{
	struct lien_holding *holding = handle->holding;

	SPLAY_REMOVE(lien_handle_tree, &holding->process->handles, handle);
	TAILQ_REMOVE(&holding->handles, handle, of_holding);
	lien_slab_put(&holding->process->graph->slabs.handles, handle);
	holding_drop_empty(holding);
}

struct lien_mapping *lien_mapping_new(struct lien_holding *holding, uint64_t va, uint64_t bytes)
{
	struct lien_graph *graph = holding ? holding->process->graph : NULL;
	struct lien_mapping *mapping = graph ? lien_slab_get(&graph->slabs.mappings) : NULL;

	if (!mapping) {
		if (holding)
			holding_drop_empty(holding);
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

void lien_mapping_drop(struct lien_mapping *mapping)
{
	struct lien_holding *holding = mapping->holding;

	RB_REMOVE(lien_mapping_tree, &holding->process->mappings, mapping);
	LIST_REMOVE(mapping, of_holding);
	holding->mapped--;
	holding->live -= !mapping->parked;
	holding->process->parked -= mapping->parked;
	holding->process->graph->stats.mappings--;
	lien_slab_put(&holding->process->graph->slabs.mappings, mapping);
	holding_drop_empty(holding);
}

/* Moves everything to another holding of the same process, and frees the old one. */
static void holding_merge(struct lien_holding *from, struct lien_holding *to)
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
	lien_slab_put(&from->process->graph->slabs.holdings, from);
}

static void holdings_move(struct lien_allocation *from, struct lien_allocation *to)
{
	struct lien_holding *holding, *same;

	while ((holding = LIST_FIRST(&from->holdings))) {
		same = lien_allocation_holding(to, holding->process);
		if (same) {
			holding_merge(holding, same);
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

	holdings_move(from, to);
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

void lien_allocation_own(struct lien_allocation *allocation, struct lien_process *process)
{
	allocation->owner = process;
	allocation->owner_pid = process->pid;
	allocation->owner_start = process->start;
	LIST_INSERT_HEAD(&process->owned, allocation, of_owner);
}
