// SPDX-License-Identifier: BSD-2-Clause
/*
 * Calls that release memory, those that have been entered and have not returned yet, and names that
 * the driver gives out again. Contexts, because memory that was allocated in one goes with it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "agent/graph/internal.h"

/* At most this many releases are pending at a time. Beyond it, the oldest returns were missed or
 * never happened (longjmp). */
#define PENDING_MAX 1024

static struct lien_pending *pending_take(struct lien_process *process, struct lien_pending *pending)
{
	TAILQ_REMOVE(&process->pending, pending, next);
	process->pending_count--;
	return pending;
}

/* Returns false for an unmap that the driver refuses: it unmaps whole mappings, and no range that
 * ends within one. */
static bool may_succeed(struct lien_process *process, const struct lien_event *event)
{
	const uint64_t va = event->range.va, bytes = event->range.bytes;
	const struct lien_mapping *first, *last;

	if (event->type != LIEN_CALL_CU_MEM_UNMAP)
		return true;
	first = lien_process_overlap(process, va, bytes);
	last = lien_process_mapping(process, va + bytes - 1);
	return first && last && first->va == va && last->va + last->bytes == va + bytes;
}

/* If several releases are pending that name it, it is one that the driver may have carried out. */
bool lien_pending_apply(
	struct lien_process *process, enum lien_kind kind, uint64_t name, uint64_t bytes)
{
	const bool patient = process->graph->patient;
	struct lien_pending *pending, *doubtful = NULL;
	uint64_t at;

	TAILQ_FOREACH (pending, &process->pending, next) {
		if (lien_call_kind(pending->event.type) != kind)
			continue;
		/* The name is the first member of every release's body, except for registrations.
		 */
		at = kind == LIEN_KIND_deregister || kind == LIEN_KIND_deregister_mr
			     ? pending->event.reg.handle
			     : pending->event.release.handle;
		if (kind == LIEN_KIND_unmap
				? name >= at + pending->event.range.bytes || at >= name + bytes
				: at != name)
			continue;
		if (may_succeed(process, &pending->event))
			break;
		doubtful = doubtful ? doubtful : pending;
	}
	if (!pending)
		pending = doubtful;
	if (!pending)
		return false;
	pending_take(process, pending);
	process->graph->patient = false; /* the caller needs the room at once */
	pending->effect(process, &pending->event);
	process->graph->patient = patient;
	free(pending);
	return true;
}

int lien_pending_call(
	struct lien_process *process, const struct lien_event *event, lien_apply_fn *effect)
{
	struct lien_pending *pending;

	if (event->flags & LIEN_EVENT_ENTRY) {
		pending = calloc(1, sizeof(*pending));
		if (!pending)
			return -ENOMEM;
		memcpy(&pending->event, event, event->size);
		pending->effect = effect;
		TAILQ_INSERT_TAIL(&process->pending, pending, next);
		if (++process->pending_count > PENDING_MAX) {
			free(pending_take(process, TAILQ_FIRST(&process->pending)));
			process->incomplete |= LIEN_INCOMPLETE_LOST;
		}
		return 0;
	}
	TAILQ_FOREACH (pending, &process->pending, next)
		if (pending->event.tid == event->tid && pending->event.t_entry == event->t_entry)
			break;
	if (!pending) {
		/* Already applied when the driver reused the name. If the driver then refused this
		 * call, another one had freed the name. */
		if (!lien_event_succeeded(event))
			lien_process_odd(process);
		return 0;
	}
	free(pending_take(process, pending));
	return lien_event_succeeded(event) ? effect(process, event) : 0;
}

/* --- handles and mappings --------------------------------------------------------------------- */

static bool by_control(const struct lien_event *event)
{
	return event->flags & LIEN_EVENT_CONTROL;
}

/* A handle without references remains the driver's name for memory that its process has mapped. */
static void drop_unused_names(struct lien_holding *holding)
{
	struct lien_handle *handle = TAILQ_FIRST(&holding->handles), *next;

	/* Dropping the last one frees the holding. */
	for (; handle && !handle->references && !holding->live; handle = next) {
		next = TAILQ_NEXT(handle, of_holding);
		lien_handle_drop(handle);
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

static int apply_release(struct lien_process *process, const struct lien_event *event)
{
	struct lien_handle *handle = lien_handle_find(process, event->release.handle);

	if (!handle || !handle->references)
		return lien_process_odd(process);
	handle_give_back(handle, event);
	drop_unused_names(handle->holding);
	return 0;
}

/* Removes a mapping, and the handles that only it kept. */
static void mapping_remove(struct lien_mapping *mapping)
{
	struct lien_holding *holding = mapping->holding;

	/* Handles first: the allocation goes with the last handle or mapping. */
	lien_mapping_park(mapping, true);
	drop_unused_names(holding);
	lien_mapping_drop(mapping);
}

/* An unmap by the application removes the mapping; one by the control library parks it. */
static void unmap_one(struct lien_mapping *mapping, bool control)
{
	if (!control || lien_allocation_by_address(mapping->holding->allocation)) {
		mapping_remove(mapping);
		return;
	}
	lien_mapping_park(mapping, true);
	drop_unused_names(mapping->holding);
}

void lien_graph_unmap_step(struct lien_graph *graph)
{
	uint64_t va = graph->unmapping.va, end = graph->unmapping.end;
	struct lien_mapping *mapping = lien_process_overlap(graph->unmapping.process, va, end - va);

	if (mapping)
		unmap_one(mapping, false);
	else
		graph->unmapping.process = NULL;
}

static int apply_unmap(struct lien_process *process, const struct lien_event *event)
{
	uint64_t va = event->range.va, end = va + event->range.bytes;
	struct lien_mapping *mapping, *next;
	unsigned n = 0;

	for (mapping = lien_process_overlap(process, va, event->range.bytes);
		mapping && mapping->va < end; mapping = next) {
		next = RB_NEXT(lien_mapping_tree, &process->mappings, mapping);
		if (by_control(event) && !lien_process_visits(process))
			break;
		if (++n > LIEN_AT_ONCE && process->graph->patient && !by_control(event)) {
			process->graph->unmapping.process = process;
			process->graph->unmapping.va = mapping->va;
			process->graph->unmapping.end = end;
			break;
		}
		unmap_one(mapping, by_control(event));
	}
	if (!n)
		lien_process_odd(process);
	return 0;
}

/* The control library has unmapped a mapping of its own for good. */
static void drop_scratch(struct lien_process *process, uint64_t va)
{
	struct lien_mapping *mapping = lien_process_mapping(process, va);

	if (mapping && mapping->parked && mapping->va == va)
		mapping_remove(mapping);
}

static int apply_address_free(struct lien_process *process, const struct lien_event *event)
{
	struct lien_reservation key = {.va = event->range.va}, *reservation;

	if (by_control(event))
		drop_scratch(process, event->range.va);
	reservation = SPLAY_FIND(lien_reservation_tree, &process->reservations, &key);
	if (!reservation) { /* one of the control library may be older than the agent */
		if (!by_control(event))
			lien_process_odd(process);
		return 0;
	}
	lien_reservation_drop(process, reservation);
	return 0;
}

/* Each kind frees memory of its own origins. */
static int apply_free(struct lien_process *process, const struct lien_event *event)
{
	const enum lien_kind kind = lien_call_kind(event->type);
	struct lien_mapping *mapping = lien_process_mapping(process, event->range.va);
	enum lien_origin origin = mapping ? mapping->holding->allocation->origin : 0;

	if (!event->range.va)
		return 0;
	if (!mapping || mapping->va != event->range.va ||
		(!lien_allocation_by_address(mapping->holding->allocation) && !mapping->opened) ||
		(origin == LIEN_ORIGIN_HOST) != (kind == LIEN_KIND_free_host) ||
		(origin == LIEN_ORIGIN_REGISTERED) != (kind == LIEN_KIND_unregister_host))
		lien_process_odd(process);
	else
		lien_mapping_drop(mapping);
	return 0;
}

static int apply_ipc_close(struct lien_process *process, const struct lien_event *event)
{
	struct lien_mapping *mapping = lien_process_mapping(process, event->range.va);

	if (!mapping || !mapping->imported || !mapping->opened)
		lien_process_odd(process);
	else if (!--mapping->opens)
		lien_mapping_drop(mapping);
	return 0;
}

/* Returns a mapping of the holding that has a byte in the range. */
static const struct lien_mapping *mapped_within(
	const struct lien_holding *holding, uint64_t va, uint64_t bytes)
{
	struct lien_process *process = holding->process;
	struct lien_mapping *mapping = lien_process_overlap(process, va, bytes);

	for (; mapping && mapping->va < va + bytes && lien_process_visits(process);
		mapping = RB_NEXT(lien_mapping_tree, &process->mappings, mapping))
		if (mapping->holding == holding)
			return mapping;
	return NULL;
}

/*
 * Memory whose handle was released goes with its last mapping, and an unmap under way may have
 * removed that. `any`: also one that the driver would refuse, as far as the graph knows.
 */
static bool apply_pending_unmap(struct lien_handle *handle, bool any)
{
	struct lien_process *process = handle->holding->process;
	const struct lien_pending *pending;
	const struct lien_mapping *mapping;

	TAILQ_FOREACH (pending, &process->pending, next) {
		if (pending->event.type != LIEN_CALL_CU_MEM_UNMAP ||
			!(any || may_succeed(process, &pending->event)))
			continue;
		mapping = mapped_within(
			handle->holding, pending->event.range.va, pending->event.range.bytes);
		if (mapping)
			return lien_pending_apply(
				process, LIEN_KIND_unmap, mapping->va, mapping->bytes);
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
static struct lien_handle *after_pending(struct lien_process *process, uint64_t value)
{
	struct lien_handle *handle;

	while ((handle = lien_handle_find(process, value))) {
		if (lien_pending_apply(process, LIEN_KIND_release, value, 0) ||
			apply_pending_unmap(handle, false))
			continue;
		if (may_have_gone(handle))
			lien_handle_drop(handle);
		else if (!apply_pending_unmap(handle, true))
			break;
	}
	return handle;
}

void lien_handle_vacate(struct lien_process *process, uint64_t value)
{
	struct lien_handle *handle;

	while ((handle = after_pending(process, value))) {
		lien_process_odd(process);
		lien_handle_drop(handle);
	}
}

/*
 * The driver returned a name of one allocation for another one, so records are missing. Which of
 * the two is out of date is unknown, so the mapping is dropped, to be read again together with its
 * name. Moving the name would merge two allocations, and no re-read could tell them apart again.
 */
void lien_retain_contradicts(struct lien_process *process, const struct lien_event *event)
{
	struct lien_handle *handle = after_pending(process, event->retain.handle);
	struct lien_mapping *mapping = lien_process_mapping(process, event->retain.va);

	if (!handle || !mapping || handle->holding == mapping->holding)
		return;
	if (by_control(event) || mapping->parked) { /* what lien put there is known */
		lien_handle_vacate(process, event->retain.handle);
		return;
	}
	lien_process_odd(process);
	mapping_remove(mapping);
}

/* Applies a pending release of the memory at the mapping's address. Returns false if there is none.
 */
static bool apply_pending(const struct lien_mapping *mapping)
{
	static const enum lien_kind kinds[] = {LIEN_KIND_unmap, LIEN_KIND_free, LIEN_KIND_free_host,
		LIEN_KIND_unregister_host, LIEN_KIND_ipc_close};
	unsigned i;

	for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (lien_pending_apply(
			    mapping->holding->process, kinds[i], mapping->va, mapping->bytes))
			return true;
	return false;
}

/* --- contexts --------------------------------------------------------------------------------- */

static struct lien_context *context_find(struct lien_process *process, uint64_t value)
{
	return RB_FIND(
		lien_context_tree, &process->contexts, &(struct lien_context){.value = value});
}

uint32_t lien_context_number(struct lien_process *process, uint64_t value)
{
	const struct lien_context *context = context_find(process, value);

	return context ? context->number : 0;
}

/* Returns the number of the mapping's context. Memory allocated or opened in a context goes with
 * it. Memory with handles and pools belong to no context. */
static uint32_t in_context(const struct lien_mapping *mapping)
{
	const struct lien_allocation *allocation = mapping->holding->allocation;

	if (mapping->imported)
		return mapping->opened ? mapping->context : 0;
	return lien_allocation_by_address(allocation) && allocation->origin != LIEN_ORIGIN_POOL &&
			       allocation->owner == mapping->holding->process
		       ? allocation->context
		       : 0;
}

/* 0: none, or not known. */
static uint64_t context_of(const struct lien_mapping *mapping)
{
	struct lien_context key = {.number = in_context(mapping)};
	const struct lien_context *context = RB_FIND(
		lien_context_number_tree, &mapping->holding->process->context_numbers, &key);

	return context ? context->value : 0;
}

static struct lien_mapping *next_in_context(
	struct lien_process *process, uint64_t from, const struct lien_context *context)
{
	struct lien_mapping *mapping = lien_process_overlap(process, from, UINT64_MAX - from);

	while (mapping && in_context(mapping) != context->number)
		mapping = lien_process_visits(process)
				  ? RB_NEXT(lien_mapping_tree, &process->mappings, mapping)
				  : NULL;
	return mapping;
}

/* Frees memory allocated in the context, unless a call that has yet to return has freed it. */
static void context_drop(struct lien_process *process, struct lien_context *context)
{
	struct lien_mapping *mapping;
	uint64_t from = 0;

	while ((mapping = next_in_context(process, from, context))) {
		from = mapping->va;
		if (!apply_pending(mapping))
			lien_mapping_drop(mapping);
	}
	RB_REMOVE(lien_context_tree, &process->contexts, context);
	RB_REMOVE(lien_context_number_tree, &process->context_numbers, context);
	free(context);
}

static int apply_context_destroy(struct lien_process *process, const struct lien_event *event)
{
	struct lien_context *context = context_find(process, event->context.context);

	if (!context)
		lien_process_odd(process);
	else
		context_drop(process, context);
	return 0;
}

/* Every retain returns the same primary context; other contexts are new. */
static int apply_context(struct lien_process *process, const struct lien_event *event)
{
	bool primary = event->type == LIEN_CALL_CU_CONTEXT_PRIMARY;
	struct lien_context *context;

	while ((context = context_find(process, event->context.context)) &&
		!(primary && context->primary))
		if (!lien_pending_apply(process, LIEN_KIND_context_destroy, context->value, 0))
			context_drop(process, context);
	if (!context) {
		context = calloc(1, sizeof(*context));
		if (!context)
			return -ENOMEM;
		context->value = event->context.context;
		context->number = ++process->next_context;
		RB_INSERT(lien_context_tree, &process->contexts, context);
		RB_INSERT(lien_context_number_tree, &process->context_numbers, context);
	}
	context->device = event->context.device;
	context->primary = primary;
	process->no_context &= !primary;
	return 0;
}

/* The mapping's context may be going, with everything allocated in it. */
static bool apply_pending_context(const struct lien_mapping *mapping)
{
	uint64_t context = context_of(mapping);

	return context &&
	       lien_pending_apply(mapping->holding->process, LIEN_KIND_context_destroy, context, 0);
}

bool lien_range_vacate(struct lien_process *process, uint64_t va, uint64_t bytes)
{
	struct lien_mapping *mapping;

	bytes = lien_range_bytes(va, bytes);
	while ((mapping = lien_process_overlap(process, va, bytes))) {
		if (apply_pending(mapping) || apply_pending_context(mapping))
			continue;
		if (!lien_process_visits(process))
			return false;
		lien_process_odd(process);
		mapping_remove(mapping);
	}
	return true;
}

#define apply_free_host	      apply_free
#define apply_unregister_host apply_free

lien_apply_fn *const lien_release_effects[LIEN_KIND_COUNT] = {LIEN_RELEASE_KINDS(LIEN_EFFECT)};
