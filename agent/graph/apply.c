// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "agent/graph/event_check.h"
#include "agent/graph/internal.h"

/* Some kinds differ in their arguments, but not in their effect. */
#define lien_graph_apply_init		 lien_graph_apply_nothing
#define lien_graph_apply_alloc_pitch	 lien_graph_apply_alloc
#define lien_graph_apply_alloc_managed	 lien_graph_apply_alloc
#define lien_graph_apply_alloc_async	 lien_graph_apply_alloc
#define lien_graph_apply_alloc_from_pool lien_graph_apply_alloc
#define lien_graph_apply_alloc_host	 lien_graph_apply_alloc
#define lien_graph_apply_register_host	 lien_graph_apply_alloc
#define lien_graph_apply_pool_import	 lien_graph_apply_pool_create
#define lien_graph_apply_register_mr	 lien_graph_apply_register
#define lien_graph_apply_deregister_mr	 lien_graph_apply_deregister

static int lien_graph_apply_nothing(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	(void)graph, (void)process, (void)event;
	return 0;
}

/* lien follows neither what holds the memory nor when that lets go of it. */
static int lien_graph_apply_holds(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	(void)graph, (void)event;
	process->incomplete |= LIEN_INCOMPLETE_HELD;
	return 0;
}

static int lien_graph_apply_device_comm(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	(void)graph, (void)event;
	process->device_comm = true;
	return 0;
}

static lien_apply_fn *const effects[LIEN_KIND_COUNT] = {
#define EFFECT(kind, least, origin) [LIEN_KIND_##kind] = lien_graph_apply_##kind,
	LIEN_KINDS(EFFECT)
#undef EFFECT
};

static lien_apply_fn *effect_of(unsigned call)
{
	return effects[lien_call_kind(call)];
}

/* Returns the last library that begins below the address. */
static struct lien_library_map *library_below(struct lien_process *process, uint64_t address)
{
	struct lien_library_map key = {.start = address}, *map;

	map = RB_NFIND(lien_library_tree, &process->libraries, &key);
	return map ? RB_PREV(lien_library_tree, &process->libraries, map)
		   : RB_MAX(lien_library_tree, &process->libraries);
}

static int apply_library(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
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
	map->file = lien_graph_name(graph, event->library.name, sizeof(event->library.name));
	if (!map->file) {
		free(map);
		return -ENOMEM;
	}
	for (old = library_below(process, map->end); old && old->end > map->start; old = next) {
		next = RB_PREV(lien_library_tree, &process->libraries, old);
		lien_library_drop(process, old);
	}
	if (map->inode) {
		RB_INSERT(lien_library_tree, &process->libraries, map);
		RB_INSERT(lien_place_tree, &process->places, map);
		if (!map->t_mapped)
			lien_process_found_library(graph, process, map);
	} else {
		free(map);
	}
	return 0;
}

static void apply_process(struct lien_process *process, const struct lien_event *event)
{
	unsigned i;

	process->uid = event->process.uid;
	process->t_first = event->process.complete ? event->t_entry : 0;
	for (i = 0; i < sizeof(process->command) - 1 && event->process.comm[i]; i++)
		process->command[i] = lien_printable(event->process.comm[i]);
	process->command[i] = '\0';
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

static int apply_property(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_mapping *mapping = lien_process_mapping(process, event->property.va);

	struct lien_allocation *allocation = mapping ? mapping->holding->allocation : NULL;

	if (!mapping) {
		lien_graph_odd(graph, process);
		return 0;
	}
	allocation->prop = event->property.prop;
	if (allocation->origin != LIEN_ORIGIN_MULTICAST)
		bindings_moved(allocation);
	return 0;
}

static int apply_adopt(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_handle *handle = lien_handle_find(process, event->adopt.handle);
	struct lien_allocation *allocation = handle ? handle->holding->allocation : NULL;

	if (!handle) {
		lien_graph_odd(graph, process);
		return 0;
	}
	lien_handle_refer(handle, event->adopt.references);
	allocation->adopted = true;
	allocation->round = event->adopt.round;
	allocation->open = event->adopt.open;
	if (!handle->imported) /* an importer may map less than the whole */
		allocation->part = event->adopt.part;
	if (graph->round < event->adopt.round)
		graph->round = event->adopt.round;
	return 0;
}

static int apply_reread(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	(void)graph;
	process->incomplete &= ~LIEN_INCOMPLETE_REREAD;
	process->no_context = false; /* it may have made one in a call that was lost */
	process->incomplete |=
		event->reread.doubts & (LIEN_INCOMPLETE_NCCL | LIEN_INCOMPLETE_CARDS);
	return 0;
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
		lien_process_end(graph, process);
		process = NULL;
	}
	if (process || tells_nothing(event->type))
		return process;
	process = lien_process_new(graph, event->pid, event->start);
	if (process)
		process->incomplete = LIEN_INCOMPLETE_LATE;
	return process;
}

static int apply_call(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	if (lien_event_library(event->type) == LIEN_LIB_CUDA)
		process->cuda = true;
	if (lien_call_releases(event->type))
		return lien_pending_call(graph, process, event, effect_of(event->type));
	/* An error ends a capture, too. */
	if (!lien_event_succeeded(event) && lien_call_kind(event->type) != LIEN_KIND_capture_end)
		return 0;
	if (event->flags & LIEN_EVENT_PARTIAL)
		process->incomplete |= LIEN_INCOMPLETE_ARGS;
	return effect_of(event->type)(graph, process, event);
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
		lien_process_end(graph, process);
		return 0;
	case LIEN_EVENT_LIBRARY:
		return apply_library(graph, process, event);
	case LIEN_EVENT_LOST:
		TAILQ_FOREACH (pending, &process->pending, next)
			pending->event.flags |= LIEN_EVENT_DOUBTFUL;
		process->incomplete |= LIEN_INCOMPLETE_LOST;
		return 0;
	case LIEN_EVENT_PROP:
		return apply_property(graph, process, event);
	case LIEN_EVENT_REREAD:
		return apply_reread(graph, process, event);
	case LIEN_EVENT_INCOMPLETE:
		process->incomplete = event->incomplete.reasons;
		return 0;
	case LIEN_EVENT_ADOPT:
		return apply_adopt(graph, process, event);
	}
	return apply_call(graph, process, event);
}
