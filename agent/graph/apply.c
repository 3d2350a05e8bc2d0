// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "agent/graph/event_check.h"
#include "agent/graph/internal.h"

static int apply_other(struct lien_process *process, const struct lien_event *event)
{
	const enum lien_kind kind = lien_call_kind(event->type);

	if (kind == LIEN_KIND_holds)
		/* lien follows neither what holds the memory nor when that lets go of it. */
		process->incomplete |= LIEN_INCOMPLETE_HELD;
	else if (kind == LIEN_KIND_device_comm)
		process->device_comm = true;
	return 0;
}

#define apply_init	  apply_other
#define apply_holds	  apply_other
#define apply_device_comm apply_other

static lien_apply_fn *const other_effects[LIEN_KIND_COUNT] = {LIEN_OTHER_KINDS(LIEN_EFFECT)};

/* Each kind is in one of them. */
static lien_apply_fn *effect_of(unsigned call)
{
	static lien_apply_fn *const *const effects[] = {lien_memory_effects, lien_release_effects,
		lien_share_effects, lien_comm_effects, lien_register_effects, other_effects};
	const enum lien_kind kind = lien_call_kind(call);
	unsigned i = 0;

	while (!effects[i][kind])
		i++;
	return effects[i][kind];
}

static void library_drop(struct lien_process *process, struct lien_library_map *map)
{
	free(RB_REMOVE(lien_library_tree, &process->libraries, map));
}

static int apply_library(struct lien_process *process, const struct lien_event *event)
{
	struct lien_library_map *map = lien_process_library(process, event->library.start), *old,
				*next;

	if (map && map->start == event->library.start && map->inode == event->library.inode &&
		map->end == map->start + event->library.length &&
		map->offset == event->library.offset)
		return 0; /* reported twice: keep the first time */
	if (event->library.start >= LIEN_ADDRESS_END)
		return 0;
	map = calloc(1, sizeof(*map));
	if (!map)
		return -ENOMEM;
	map->start = event->library.start;
	map->end = map->start + lien_range_bytes(map->start, event->library.length);
	map->offset = event->library.offset;
	map->inode = event->library.inode;
	map->dev_major = event->library.dev_major;
	map->dev_minor = event->library.dev_minor;
	map->t_mapped = event->t_return;
	map->file =
		lien_graph_name(process->graph, event->library.name, sizeof(event->library.name));
	if (!map->file) {
		free(map);
		return -ENOMEM;
	}
	for (old = lien_library_below(process, map->end); old && old->end > map->start;
		old = next) {
		next = RB_PREV(lien_library_tree, &process->libraries, old);
		library_drop(process, old);
	}
	if (map->inode) {
		RB_INSERT(lien_library_tree, &process->libraries, map);
		if (!map->t_mapped)
			lien_process_found_library(process, map);
	} else {
		free(map);
	}
	return 0;
}

static void apply_process(struct lien_process *process, const struct lien_event *event)
{
	process->uid = event->process.uid;
	process->t_first = event->process.complete ? event->t_entry : 0;
	lien_copy_printable(process->command, event->process.comm, sizeof(process->command));
	process->cuda = true;
	if (event->process.complete)
		process->incomplete &= ~LIEN_INCOMPLETE_LATE;
	else
		process->incomplete |= LIEN_INCOMPLETE_LATE;
}

/* --- re-reading a process from the driver, apart from the made-up calls ----------------------- */

/* The memory turned out to be on another device. */
static void bindings_moved(struct lien_allocation *memory)
{
	struct lien_binding *binding;

	LIST_FOREACH (binding, &memory->bindings, of_memory) {
		RB_REMOVE(lien_binding_tree, &binding->object->bound, binding);
		binding->device = memory->prop.location_id;
		RB_INSERT(lien_binding_tree, &binding->object->bound, binding);
	}
}

static int apply_property(struct lien_process *process, const struct lien_event *event)
{
	struct lien_mapping *mapping = lien_process_mapping(process, event->property.va);

	struct lien_allocation *allocation = mapping ? mapping->holding->allocation : NULL;

	if (!mapping)
		return lien_process_odd(process);
	allocation->prop = event->property.prop;
	if (allocation->origin != LIEN_ORIGIN_MULTICAST)
		bindings_moved(allocation);
	return 0;
}

static int apply_adopt(struct lien_process *process, const struct lien_event *event)
{
	struct lien_handle *handle = lien_handle_find(process, event->adopt.handle);
	struct lien_allocation *allocation = handle ? handle->holding->allocation : NULL;

	if (!handle)
		return lien_process_odd(process);
	lien_handle_refer(handle, event->adopt.references);
	allocation->adopted = true;
	allocation->round = event->adopt.round;
	allocation->open = event->adopt.open;
	if (!handle->imported) /* an importer may map less than the whole */
		allocation->part = event->adopt.part;
	if (process->graph->stats.round < event->adopt.round)
		process->graph->stats.round = event->adopt.round;
	return 0;
}

static int apply_reread(struct lien_process *process, const struct lien_event *event)
{
	process->incomplete &= ~LIEN_INCOMPLETE_REREAD;
	process->no_context = false; /* it may have made one in a call that was lost */
	process->incomplete |=
		event->reread.doubts & (LIEN_INCOMPLETE_NCCL | LIEN_INCOMPLETE_CARDS);
	return 0;
}

/* --- the end, in steps ------------------------------------------------------------------------ */

static void disown(struct lien_graph *graph, struct lien_allocation *allocation)
{
	LIST_REMOVE(allocation, of_owner);
	allocation->owner = NULL;
	lien_allocation_drop_unheld(graph, allocation);
}

/* Ends one part of the process, or frees it if it has none left. */
static void end_step(struct lien_process *process)
{
	struct lien_reservation *reservation = SPLAY_ROOT(&process->reservations);
	struct lien_context *context = RB_ROOT(&process->contexts);
	struct lien_capture *capture = RB_ROOT(&process->captures);
	struct lien_pool *pool = RB_ROOT(&process->pools);
	struct lien_pending *pending = TAILQ_FIRST(&process->pending);

	if (!RB_EMPTY(&process->mappings)) {
		lien_mapping_drop(RB_ROOT(&process->mappings));
	} else if (!SPLAY_EMPTY(&process->handles)) {
		lien_handle_drop(SPLAY_ROOT(&process->handles));
	} else if (reservation) {
		lien_reservation_drop(process, reservation);
	} else if (!RB_EMPTY(&process->cards)) {
		lien_registration_drop(&process->cards, RB_ROOT(&process->cards));
	} else if (lien_comms_drop_one(process)) {
		return;
	} else if (context) {
		free(RB_REMOVE(lien_context_tree, &process->contexts, context));
	} else if (capture) {
		free(RB_REMOVE(lien_capture_tree, &process->captures, capture));
	} else if (pool) {
		free(RB_REMOVE(lien_pool_tree, &process->pools, pool));
	} else if (!RB_EMPTY(&process->libraries)) {
		library_drop(process, RB_ROOT(&process->libraries));
	} else if (pending) {
		TAILQ_REMOVE(&process->pending, pending, next);
		free(pending);
	} else if (!LIST_EMPTY(&process->owned)) {
		disown(process->graph, LIST_FIRST(&process->owned));
	} else {
		TAILQ_REMOVE(&process->graph->ending, process, of_ending);
		free(process->card_spans.span);
		free(process);
	}
}

/* Drops everything that the process holds; allocations that others still hold stay. */
static void process_end(struct lien_process *process)
{
	process->ended = true;
	if (process->graph->on_process_end)
		process->graph->on_process_end(process->graph->on_process_end_context, process);
	RB_REMOVE(lien_process_tree, &process->graph->processes, process);
	process->graph->stats.processes--;
	TAILQ_INSERT_TAIL(&process->graph->ending, process, of_ending);
	lien_graph_finish(process->graph, process->graph->patient ? LIEN_AT_ONCE : UINT_MAX);
}

static void free_step(struct lien_graph *graph, struct lien_allocation *allocation)
{
	if (!LIST_EMPTY(&allocation->shares)) {
		lien_share_drop(graph, LIST_FIRST(&allocation->shares));
		return;
	}
	TAILQ_REMOVE(&graph->freed, allocation, of_graph);
	lien_slab_put(&graph->slabs.allocations, allocation);
}

bool lien_graph_unfinished(const struct lien_graph *graph)
{
	return graph->unmapping.process || !TAILQ_EMPTY(&graph->freed) ||
	       !TAILQ_EMPTY(&graph->ending);
}

bool lien_graph_finish(struct lien_graph *graph, unsigned steps)
{
	for (; steps && lien_graph_unfinished(graph); steps--)
		if (graph->unmapping.process)
			lien_graph_unmap_step(graph);
		else if (!TAILQ_EMPTY(&graph->freed))
			free_step(graph, TAILQ_FIRST(&graph->freed));
		else
			end_step(TAILQ_FIRST(&graph->ending));
	return !lien_graph_unfinished(graph);
}

void lien_graph_be_patient(struct lien_graph *graph)
{
	graph->patient = true;
}

void lien_graph_free(struct lien_graph *graph)
{
	struct lien_process *process;

	if (!graph)
		return;
	graph->patient = false;
	lien_graph_loaded(graph);
	while ((process = RB_ROOT(&graph->processes)))
		process_end(process);
	lien_graph_free_let_go(graph);
	lien_graph_free_interned(graph);
	lien_slab_clear(&graph->slabs.allocations);
	lien_slab_clear(&graph->slabs.mappings);
	lien_slab_clear(&graph->slabs.handles);
	lien_slab_clear(&graph->slabs.holdings);
	lien_slab_clear(&graph->slabs.reservations);
	lien_slab_clear(&graph->slabs.shares);
	free(graph);
}

/* --- all events ------------------------------------------------------------------------------- */

/* Returns true for an event that tells nothing about an unknown process. */
static bool tells_nothing(unsigned type)
{
	return type == LIEN_EVENT_EXIT || type == LIEN_EVENT_EXEC || type == LIEN_EVENT_LOST;
}

/* Returns the process of an event, and makes it at the first event. A pid with another start time
 * is another process: the end of the old one was missed. */
static struct lien_process *process_of(struct lien_graph *graph, const struct lien_event *event)
{
	struct lien_process *process = lien_graph_process(graph, event->pid);

	if (process && process->start != event->start) {
		process_end(process);
		process = NULL;
	}
	if (process || tells_nothing(event->type))
		return process;
	process = lien_process_new(graph, event->pid, event->start);
	if (process)
		process->incomplete = LIEN_INCOMPLETE_LATE;
	return process;
}

static int apply_call(struct lien_process *process, const struct lien_event *event)
{
	if (lien_event_library(event->type) == LIEN_LIB_CUDA)
		process->cuda = true;
	if (lien_call_releases(event->type))
		return lien_pending_call(process, event, effect_of(event->type));
	/* An error ends a capture, too. */
	if (!lien_event_succeeded(event) && lien_call_kind(event->type) != LIEN_KIND_capture_end)
		return 0;
	if (event->flags & LIEN_EVENT_PARTIAL)
		process->incomplete |= LIEN_INCOMPLETE_ARGS;
	return effect_of(event->type)(process, event);
}

int lien_graph_apply(struct lien_graph *graph, const struct lien_event *event)
{
	struct lien_process *process;
	struct lien_pending *pending;

	if (!lien_event_valid(event))
		return -EBADMSG;
	lien_graph_finish(graph, UINT_MAX);
	if (LIEN_IS_STATE(event->type))
		return lien_graph_load(graph, event);
	lien_graph_loaded(graph);
	if (event->type == LIEN_EVENT_LOST)
		graph->stats.lost += event->lost.count;
	else
		graph->stats.events++;
	if (event->type == LIEN_EVENT_END)
		return 0;
	process = process_of(graph, event);
	if (!process)
		return tells_nothing(event->type) ? 0 : -ENOMEM;
	lien_process_earn_visits(process);
	switch (event->type) {
	case LIEN_EVENT_PROCESS:
		apply_process(process, event);
		return 0;
	case LIEN_EVENT_EXEC:
	case LIEN_EVENT_EXIT:
		process_end(process);
		return 0;
	case LIEN_EVENT_LIBRARY:
		return apply_library(process, event);
	case LIEN_EVENT_LOST:
		TAILQ_FOREACH (pending, &process->pending, next)
			pending->event.flags |= LIEN_EVENT_DOUBTFUL;
		process->incomplete |= LIEN_INCOMPLETE_LOST;
		return 0;
	case LIEN_EVENT_PROP:
		return apply_property(process, event);
	case LIEN_EVENT_REREAD:
		return apply_reread(process, event);
	case LIEN_EVENT_INCOMPLETE:
		process->incomplete = event->incomplete.reasons;
		return 0;
	case LIEN_EVENT_ADOPT:
		return apply_adopt(process, event);
	}
	return apply_call(process, event);
}
