// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdlib.h>

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

uint32_t lien_graph_round(const struct lien_graph *graph)
{
	return graph->round;
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

struct lien_comm *lien_comm_find(struct lien_process *process, uint64_t address)
{
	struct lien_comm key = {.address = address};

	return RB_FIND(lien_comm_tree, &process->comms, &key);
}

struct lien_comm *lien_process_comm(struct lien_process *process, uint32_t number)
{
	struct lien_comm key = {.number = number};

	return RB_FIND(lien_comm_number_tree, &process->comm_numbers, &key);
}

struct lien_handle *lien_handle_find(struct lien_process *process, uint64_t value)
{
	struct lien_handle key = {.value = value};

	return SPLAY_FIND(lien_handle_tree, &process->handles, &key);
}

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

bool lien_process_whole(const struct lien_process *process)
{
	return !(process->incomplete & ~(LIEN_INCOMPLETE_ADOPTED | LIEN_INCOMPLETE_MULTICAST |
					       LIEN_INCOMPLETE_MULTICAST_OWN));
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

uint64_t lien_range_bytes(uint64_t va, uint64_t bytes)
{
	if (bytes > LIEN_ADDRESS_END - va)
		bytes = LIEN_ADDRESS_END - va;
	return bytes ? bytes : 1;
}

void lien_library_drop(struct lien_process *process, struct lien_library_map *map)
{
	RB_REMOVE(lien_library_tree, &process->libraries, map);
	RB_REMOVE(lien_place_tree, &process->places, map);
	free(map);
}

void lien_registration_drop(
	struct lien_registration_tree *list, struct lien_registration *registration)
{
	RB_REMOVE(lien_registration_tree, list, registration);
	free(registration);
}
