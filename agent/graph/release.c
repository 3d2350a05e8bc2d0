// SPDX-License-Identifier: BSD-2-Clause
/* Calls that release memory, and names that the driver gives out again. */
#include "agent/graph/internal.h"

static bool by_control(const struct lien_event *event)
{
	return event->flags & LIEN_EVENT_CONTROL;
}

/* A handle without references remains the driver's name for memory that its process has mapped. */
static void drop_unused_names(struct lien_graph *graph, struct lien_holding *holding)
{
	struct lien_handle *handle = TAILQ_FIRST(&holding->handles), *next;

	/* Dropping the last one frees the holding. */
	for (; handle && !handle->references && !holding->live; handle = next) {
		next = TAILQ_NEXT(handle, of_holding);
		lien_handle_drop(graph, handle);
	}
}

/*
 * Drops a reference. Whether it was a raw one is not known; a raw release is counted as the release
 * of a raw reference.
 */
static void handle_give_back(struct lien_handle *handle, const struct lien_event *event)
{
	lien_handle_refer(handle, handle->references - 1);
	if (by_control(event))
		return; /* the control library's own reference, not counted as raw */
	if (handle->raw && !(event->flags & LIEN_EVENT_TRANSLATED))
		handle->raw--;
	if (handle->raw > handle->references)
		handle->raw = handle->references;
}

int lien_graph_apply_release(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_handle *handle = lien_handle_find(process, event->release.handle);

	if (!handle || !handle->references) {
		lien_graph_odd(graph, process);
		return 0;
	}
	handle_give_back(handle, event);
	drop_unused_names(graph, handle->holding);
	return 0;
}

void lien_mapping_remove(struct lien_graph *graph, struct lien_mapping *mapping)
{
	struct lien_holding *holding = mapping->holding;

	/* Handles first: the allocation goes with the last handle or mapping. */
	lien_mapping_park(mapping, true);
	drop_unused_names(graph, holding);
	lien_mapping_drop(graph, mapping);
}

/* An unmap by the application removes the mapping; one by the control library parks it. */
static void unmap_one(struct lien_graph *graph, struct lien_mapping *mapping, bool control)
{
	if (!control || lien_allocation_by_address(mapping->holding->allocation)) {
		lien_mapping_remove(graph, mapping);
		return;
	}
	lien_mapping_park(mapping, true);
	drop_unused_names(graph, mapping->holding);
}

void lien_graph_unmap_step(struct lien_graph *graph)
{
	uint64_t va = graph->unmapping.va, end = graph->unmapping.end;
	struct lien_mapping *mapping = lien_process_overlap(graph->unmapping.process, va, end - va);

	if (mapping)
		unmap_one(graph, mapping, false);
	else
		graph->unmapping.process = NULL;
}

int lien_graph_apply_unmap(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	uint64_t va = event->range.va, end = va + event->range.bytes;
	struct lien_mapping *mapping, *next;
	unsigned n = 0;

	for (mapping = lien_process_overlap(process, va, event->range.bytes);
		mapping && mapping->va < end; mapping = next) {
		next = RB_NEXT(lien_mapping_tree, &process->mappings, mapping);
		if (by_control(event) && !lien_process_visits(graph, process))
			break;
		if (++n > LIEN_AT_ONCE && graph->patient && !by_control(event)) {
			graph->unmapping.process = process;
			graph->unmapping.va = mapping->va;
			graph->unmapping.end = end;
			break;
		}
		unmap_one(graph, mapping, by_control(event));
	}
	if (!n)
		lien_graph_odd(graph, process);
	return 0;
}

/* The control library has unmapped a mapping of its own for good. */
static void drop_scratch(struct lien_graph *graph, struct lien_process *process, uint64_t va)
{
	struct lien_mapping *mapping = lien_process_mapping(process, va);

	if (mapping && mapping->parked && mapping->va == va)
		lien_mapping_remove(graph, mapping);
}

int lien_graph_apply_address_free(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_reservation key = {.va = event->range.va}, *reservation;

	if (by_control(event))
		drop_scratch(graph, process, event->range.va);
	reservation = SPLAY_FIND(lien_reservation_tree, &process->reservations, &key);
	if (!reservation) { /* one of the control library may be older than the agent */
		if (!by_control(event))
			lien_graph_odd(graph, process);
		return 0;
	}
	SPLAY_REMOVE(lien_reservation_tree, &process->reservations, reservation);
	lien_slab_put(&graph->slabs.reservations, reservation);
	return 0;
}

static int free_at(struct lien_graph *graph, struct lien_process *process, uint64_t va, bool host,
	bool registered)
{
	struct lien_mapping *mapping = lien_process_mapping(process, va);
	enum lien_origin origin;

	if (!va)
		return 0;
	origin = mapping ? mapping->holding->allocation->origin : 0;
	if (!mapping || mapping->va != va ||
		(!lien_allocation_by_address(mapping->holding->allocation) && !mapping->opened) ||
		(origin == LIEN_ORIGIN_HOST) != host ||
		(origin == LIEN_ORIGIN_REGISTERED) != registered)
		lien_graph_odd(graph, process);
	else
		lien_mapping_drop(graph, mapping);
	return 0;
}

int lien_graph_apply_free(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	return free_at(graph, process, event->range.va, false, false);
}

int lien_graph_apply_free_host(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	return free_at(graph, process, event->range.va, true, false);
}

int lien_graph_apply_unregister_host(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	return free_at(graph, process, event->range.va, false, true);
}

int lien_graph_apply_ipc_close(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_mapping *mapping = lien_process_mapping(process, event->range.va);

	if (!mapping || !mapping->imported || !mapping->opened)
		lien_graph_odd(graph, process);
	else if (!--mapping->opens)
		lien_mapping_drop(graph, mapping);
	return 0;
}

/* Returns a mapping of the holding that has a byte in the range. */
static const struct lien_mapping *mapped_within(
	struct lien_graph *graph, const struct lien_holding *holding, uint64_t va, uint64_t bytes)
{
	struct lien_process *process = holding->process;
	struct lien_mapping *mapping = lien_process_overlap(process, va, bytes);

	for (; mapping && mapping->va < va + bytes && lien_process_visits(graph, process);
		mapping = RB_NEXT(lien_mapping_tree, &process->mappings, mapping))
		if (mapping->holding == holding)
			return mapping;
	return NULL;
}

/*
 * Memory whose handle was released goes with its last mapping, and an unmap under way may have
 * removed that. `any`: also one that the driver would refuse, as far as the graph knows.
 */
static bool apply_pending_unmap(struct lien_graph *graph, struct lien_handle *handle, bool any)
{
	struct lien_process *process = handle->holding->process;
	const struct lien_pending *pending;
	const struct lien_mapping *mapping;

	TAILQ_FOREACH (pending, &process->pending, next) {
		if (pending->event.type != LIEN_CALL_CU_MEM_UNMAP ||
			!(any || lien_release_may_succeed(process, &pending->event)))
			continue;
		mapping = mapped_within(graph, handle->holding, pending->event.range.va,
			pending->event.range.bytes);
		if (mapping)
			return lien_pending_apply(graph, process, LIEN_CALL_CU_MEM_UNMAP,
				mapping->va, mapping->bytes, lien_graph_apply_unmap);
	}
	return false;
}

/*
 * A process that imported the same memory twice has two handles to it. Which of them a mapping was
 * made with is not known, so a handle without references may have gone with an earlier mapping.
 */
static bool may_have_gone(const struct lien_handle *handle)
{
	return !handle->references &&
	       (TAILQ_NEXT(handle, of_holding) || TAILQ_FIRST(&handle->holding->handles) != handle);
}

/* Applies calls under way that may have ended the name. Returns NULL if it names nothing now. */
struct lien_handle *lien_handle_after_pending(
	struct lien_graph *graph, struct lien_process *process, uint64_t value)
{
	struct lien_handle *handle;

	while ((handle = lien_handle_find(process, value))) {
		if (lien_pending_apply(graph, process, LIEN_CALL_CU_MEM_RELEASE, value, 0,
			    lien_graph_apply_release) ||
			apply_pending_unmap(graph, handle, false))
			continue;
		if (may_have_gone(handle))
			lien_handle_drop(graph, handle);
		else if (!apply_pending_unmap(graph, handle, true))
			break;
	}
	return handle;
}

void lien_handle_vacate(struct lien_graph *graph, struct lien_process *process, uint64_t value)
{
	struct lien_handle *handle;

	while ((handle = lien_handle_after_pending(graph, process, value))) {
		lien_graph_odd(graph, process);
		lien_handle_drop(graph, handle);
	}
}

/* Calls that release the memory at an address. */
static const struct {
	unsigned call;
	lien_apply_fn *effect;
} range_releases[] = {
	{LIEN_CALL_CU_MEM_UNMAP, lien_graph_apply_unmap},
	{LIEN_CALL_CU_MEM_FREE, lien_graph_apply_free},
	{LIEN_CALL_CU_MEM_FREE_ASYNC, lien_graph_apply_free},
	{LIEN_CALL_CU_MEM_FREE_ASYNC_PTSZ, lien_graph_apply_free},
	{LIEN_CALL_CU_FREE_HOST, lien_graph_apply_free_host},
	{LIEN_CALL_CU_HOST_UNREGISTER, lien_graph_apply_unregister_host},
	{LIEN_CALL_CU_IPC_CLOSE, lien_graph_apply_ipc_close},
};

bool lien_mapping_apply_pending(struct lien_graph *graph, const struct lien_mapping *mapping)
{
	unsigned i;

	for (i = 0; i < sizeof(range_releases) / sizeof(range_releases[0]); i++)
		if (lien_pending_apply(graph, mapping->holding->process, range_releases[i].call,
			    mapping->va, mapping->bytes, range_releases[i].effect))
			return true;
	return false;
}
