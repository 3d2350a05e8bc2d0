// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "agent/graph/internal.h"

/* The driver did something that contradicts the graph. This is expected if the process's beginning
 * was missed. */
void lien_graph_odd(struct lien_graph *graph, struct lien_process *process)
{
	if (process->incomplete & (LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_ADOPTED))
		return;
	graph->stats.odd++;
	process->incomplete |= LIEN_INCOMPLETE_ODD;
}

void lien_process_earn_visits(struct lien_process *process)
{
	process->visits += LIEN_VISITS_EVENT;
	if (process->visits > LIEN_VISITS_MAX)
		process->visits = LIEN_VISITS_MAX;
}

bool lien_process_visits(struct lien_graph *graph, struct lien_process *process)
{
	if (process->visits) {
		process->visits--;
		return true;
	}
	graph->stats.lost++;
	process->incomplete |= LIEN_INCOMPLETE_LOST;
	return false;
}

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

/* At most this many releases are pending at a time. Beyond it, the oldest returns were missed or
 * never happened (longjmp). */
#define PENDING_MAX 1024

static struct lien_pending *pending_take(struct lien_process *process, struct lien_pending *pending)
{
	TAILQ_REMOVE(&process->pending, pending, next);
	process->pending_count--;
	return pending;
}

static bool acquired_by_register(unsigned call)
{
	const enum lien_kind kind = lien_call_kind(call);

	return kind == LIEN_KIND_deregister || kind == LIEN_KIND_deregister_mr;
}

bool lien_release_may_succeed(struct lien_process *process, const struct lien_event *event)
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
bool lien_graph_apply_pending(struct lien_graph *graph, struct lien_process *process, unsigned call,
	uint64_t name, uint64_t bytes)
{
	const bool patient = graph->patient;
	struct lien_pending *pending, *doubtful = NULL;
	uint64_t at;

	TAILQ_FOREACH (pending, &process->pending, next) {
		if (pending->event.type != call)
			continue;
		/* The name is the first member of every release's body, except for registrations.
		 */
		at = acquired_by_register(call) ? pending->event.reg.handle
						: pending->event.release.handle;
		if (call == LIEN_CALL_CU_MEM_UNMAP
				? name >= at + pending->event.range.bytes || at >= name + bytes
				: at != name)
			continue;
		if (lien_release_may_succeed(process, &pending->event))
			break;
		doubtful = doubtful ? doubtful : pending;
	}
	if (!pending)
		pending = doubtful;
	if (!pending)
		return false;
	pending_take(process, pending);
	graph->patient = false; /* the caller needs the room at once */
	effect_of(call)(graph, process, &pending->event);
	graph->patient = patient;
	free(pending);
	return true;
}

static int apply_released(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_pending *pending;

	if (event->flags & LIEN_EVENT_ENTRY) {
		pending = calloc(1, sizeof(*pending));
		if (!pending)
			return -ENOMEM;
		memcpy(&pending->event, event, event->size);
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
			lien_graph_odd(graph, process);
		return 0;
	}
	free(pending_take(process, pending));
	return lien_event_succeeded(event) ? effect_of(event->type)(graph, process, event) : 0;
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
		return apply_released(graph, process, event);
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
		return lien_graph_apply_property(graph, process, event);
	case LIEN_EVENT_REREAD:
		return lien_graph_apply_reread(graph, process, event);
	case LIEN_EVENT_INCOMPLETE:
		process->incomplete = event->incomplete.reasons;
		return 0;
	case LIEN_EVENT_ADOPT:
		return lien_graph_apply_adopt(graph, process, event);
	}
	return apply_call(graph, process, event);
}
