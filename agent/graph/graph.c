// SPDX-License-Identifier: BSD-2-Clause
/* The parts of the graph: how they are found, and what can be said of one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/devices.h"
#include "agent/graph/internal.h"
#include "agent/graph/graph.h"

#define COMPARE(tree, type, member, entry)                                                         \
	int tree##_cmp(const struct type *a, const struct type *b)                                 \
	{                                                                                          \
		return a->member < b->member ? -1 : a->member > b->member;                         \
	}
#define TREE(tree, type, member, entry) RB_GENERATE(tree##_tree, type, entry, tree##_cmp)
#define COMPARED_TREE(tree, type, member, entry)                                                   \
	static COMPARE(tree, type, member, entry) TREE(tree, type, member, entry)
#define SPLAY_TREE(tree, type, member, entry)                                                      \
	COMPARE(tree, type, member, entry) SPLAY_GENERATE(tree##_tree, type, entry, tree##_cmp)

static int lien_registration_cmp(
	const struct lien_registration *a, const struct lien_registration *b)
{
	LIEN_ORDER(handle);
	return a->number < b->number ? -1 : a->number > b->number;
}

static int lien_binding_cmp(const struct lien_binding *a, const struct lien_binding *b)
{
	LIEN_ORDER(device);
	LIEN_ORDER(offset);
	return a->number < b->number ? -1 : a->number > b->number;
}

LIEN_TREES(COMPARED_TREE)
LIEN_ORDERED_TREES(TREE)
LIEN_SPLAY_TREES(SPLAY_TREE)

/* --- room for them ---------------------------------------------------------------------------- */

/* The first chunk is small, for graphs of a few processes; each further one is twice as large. */
#define CHUNK_BYTES_FIRST 1024
#define CHUNK_BYTES_MAX	  65536

struct lien_slab_chunk {
	struct lien_slab_chunk *next;
	char objects[];
};

#ifdef __SANITIZE_ADDRESS__
static const int by_malloc = 1;
#else
static const int by_malloc;
#endif

void lien_slab_init(struct lien_slab *slab, size_t size)
{
	memset(slab, 0, sizeof(*slab));
	slab->size = size;
}

void *lien_slab_get(struct lien_slab *slab)
{
	struct lien_slab_chunk *chunk;
	void *object = slab->put_back;

	if (by_malloc)
		return calloc(1, slab->size);
	if (object) {
		memcpy(&slab->put_back, object, sizeof(void *));
		memset(object, 0, slab->size);
		return object;
	}
	if (slab->used + slab->size > slab->room) {
		if (!slab->room)
			slab->room = CHUNK_BYTES_FIRST;
		else if (slab->room < CHUNK_BYTES_MAX)
			slab->room *= 2;
		chunk = calloc(1, sizeof(*chunk) + slab->room);
		if (!chunk)
			return NULL;
		chunk->next = slab->chunks;
		slab->chunks = chunk;
		slab->used = 0;
	}
	object = slab->chunks->objects + slab->used;
	slab->used += slab->size;
	return object;
}

void lien_slab_put(struct lien_slab *slab, void *object)
{
	if (by_malloc) {
		free(object);
		return;
	}
	memcpy(object, &slab->put_back, sizeof(void *));
	slab->put_back = object;
}

void lien_slab_clear(struct lien_slab *slab)
{
	struct lien_slab_chunk *chunk;

	while ((chunk = slab->chunks)) {
		slab->chunks = chunk->next;
		free(chunk);
	}
	lien_slab_init(slab, slab->size);
}

/* --- the graph -------------------------------------------------------------------------------- */

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
	RB_INIT(&graph->interned);
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

struct lien_process *lien_graph_process(struct lien_graph *graph, uint32_t pid)
{
	return RB_FIND(lien_process_tree, &graph->processes, &(struct lien_process){.pid = pid});
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
	return RB_NFIND(
		lien_process_tree, &graph->processes, &(struct lien_process){.pid = pid + 1});
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

struct lien_library_map *lien_library_below(struct lien_process *process, uint64_t address)
{
	struct lien_library_map key = {.start = address}, *map;

	map = RB_NFIND(lien_library_tree, &process->libraries, &key);
	return map ? RB_PREV(lien_library_tree, &process->libraries, map)
		   : RB_MAX(lien_library_tree, &process->libraries);
}

struct lien_library_map *lien_process_library(struct lien_process *process, uint64_t address)
{
	struct lien_library_map *map = lien_library_below(process, address + 1);

	return map && address < map->end ? map : NULL;
}

/* This is expected if the process's beginning was missed. */
int lien_process_odd(struct lien_process *process)
{
	if (process->incomplete & (LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_ADOPTED))
		return 0;
	process->graph->stats.odd++;
	process->incomplete |= LIEN_INCOMPLETE_ODD;
	return 0;
}

bool lien_process_visits(struct lien_process *process)
{
	if (process->visits) {
		process->visits--;
		return true;
	}
	process->graph->stats.lost++;
	process->incomplete |= LIEN_INCOMPLETE_LOST;
	return false;
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

bool lien_comm_unnamed(const struct lien_comm *comm)
{
	static const uint8_t none[sizeof(comm->id)];

	return !memcmp(comm->id, none, sizeof(none));
}

/*
 * Follows the hashes. No ncclUniqueId has it at this offset: there it is zero, behind a socket's
 * address.
 */
#define FOUND_AT   64
#define FOUND_MARK "by NCCL's RAS"

void lien_comm_found_id(uint8_t id[128], uint64_t hash, uint64_t host_hash, uint64_t pid_hash)
{
	memset(id, 0, sizeof(((struct lien_comm *)0)->id));
	memcpy(id, &hash, sizeof(hash));
	memcpy(id + 16, &host_hash, sizeof(host_hash));
	memcpy(id + 24, &pid_hash, sizeof(pid_hash));
	memcpy(id + FOUND_AT, FOUND_MARK, sizeof(FOUND_MARK));
}

bool lien_comm_is_found(const struct lien_comm *comm)
{
	return !memcmp(comm->id + FOUND_AT, FOUND_MARK, sizeof(FOUND_MARK));
}

struct lien_process *lien_process_new(struct lien_graph *graph, uint32_t pid, uint64_t start)
{
	struct lien_process *process = calloc(1, sizeof(*process));

	if (!process)
		return NULL;
	process->graph = graph;
	process->pid = pid;
	process->start = start;
	TAILQ_INIT(&process->pending);
	LIST_INIT(&process->owned);
	RB_INSERT(lien_process_tree, &graph->processes, process);
	graph->stats.processes++;
	return process;
}

const char *lien_process_takes_no_orders(const struct lien_process *process)
{
	switch (process->presence) {
	case LIEN_CONTROL_NONE:
		if (process->detached)
			return "it was detached by `lien detach`: `lien attach` gives it the "
			       "library again";
		return "it has no control library: `lien attach` gives it one";
	case LIEN_CONTROL_LOADED:
		return "its control thread does not run yet: `lien attach` starts it, as does the "
		       "next call that allocates, frees, maps or shares GPU memory";
	case LIEN_CONTROL_OTHER:
		return "its control library is of another version of lien: use the agent of that "
		       "version";
	case LIEN_CONTROL_TAKEN:
		return "it takes orders from another agent on this node: stop that one";
	case LIEN_CONTROL_UNKNOWN:
	case LIEN_CONTROL_READY:
		break;
	}
	return NULL;
}

/* --- who sees what ---------------------------------------------------------------------------- */

static bool sees_holder(const struct lien_viewer *viewer, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (lien_viewer_sees(viewer, holding->process))
			return true;
	return false;
}

bool lien_viewer_sees_owner(
	const struct lien_viewer *viewer, const struct lien_allocation *allocation)
{
	if (lien_viewer_sees(viewer, allocation->owner))
		return true;
	return !allocation->owner && sees_holder(viewer, allocation);
}

bool lien_viewer_sees_part(
	const struct lien_viewer *viewer, const struct lien_allocation *allocation)
{
	return lien_viewer_sees(viewer, allocation->owner) || sees_holder(viewer, allocation);
}

/* --- whose memory it is, where nobody saw who asked for it ------------------------------------ */

#define GROUPS_MAX 128 /* names of groups that are compared, for each process */

static const char nccl[] = "nccl";

/* The groups that a process is in, by NCCL's name for them and by their unique ids. */
struct groups {
	uint64_t name[GROUPS_MAX];
	unsigned count;
	bool unnamed; /* it may be in groups that nobody could name */
};

static void add_name(struct groups *groups, uint64_t name)
{
	if (name && groups->count < GROUPS_MAX)
		groups->name[groups->count++] = name;
}

static void list_groups(struct lien_process *process, struct groups *groups)
{
	struct lien_comm *comm;
	uint64_t name;

	groups->count = 0;
	groups->unnamed = false;
	RB_FOREACH (comm, lien_comm_tree, &process->comms) {
		memcpy(&name, comm->id, sizeof(name));
		add_name(groups, name);
		add_name(groups, comm->hash);
		groups->unnamed |= lien_comm_unnamed(comm);
		if (groups->count == GROUPS_MAX)
			return;
	}
	if (!groups->count)
		groups->unnamed |= process->incomplete & LIEN_INCOMPLETE_NCCL;
}

/* Are they ranks of one communicator, or is nothing known of their communicators that says no? */
static bool may_be_ranks(struct lien_process *a, struct lien_process *b)
{
	struct groups of_a, of_b;
	unsigned i, j;

	list_groups(a, &of_a);
	list_groups(b, &of_b);
	for (i = 0; i < of_a.count; i++)
		for (j = 0; j < of_b.count; j++)
			if (of_a.name[i] == of_b.name[j])
				return true;
	return of_a.unnamed && of_b.unnamed;
}

/* NCCL shares memory with the ranks on other devices, and programs also with their helpers on the
 * same one. Returns false only if no other device has access. */
static bool reaches_another_device(
	const struct lien_allocation *allocation, const struct lien_holding *holding)
{
	const struct lien_uuid *home =
		lien_ordinals_uuid(allocation->owner->ordinals, allocation->prop.location_id);
	const struct lien_access_set *set;
	const struct lien_mapping *mapping;
	const struct lien_uuid *other;
	unsigned i;

	LIST_FOREACH (mapping, &holding->mappings, of_holding) {
		set = lien_mapping_access(mapping);
		for (i = 0; set && i < set->count; i++) {
			if (set->access[i].location_type != allocation->prop.location_type)
				continue;
			other = lien_ordinals_uuid(
				holding->process->ordinals, set->access[i].location_id);
			if (!home || !other || !lien_uuid_equal(home, other))
				return true;
		}
	}
	return false;
}

static bool seems_nccls(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;

	if (!allocation->found || !allocation->owner || lien_allocation_by_address(allocation))
		return false;
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (holding->process != allocation->owner &&
			reaches_another_device(allocation, holding) &&
			may_be_ranks(allocation->owner, holding->process))
			return true;
	return false;
}

const char *lien_allocation_attributed(const struct lien_allocation *allocation, bool *inferred)
{
	const char *library = lien_allocation_library(allocation);

	*inferred = !strcmp(library, "unknown") && seems_nccls(allocation);
	return *inferred ? nccl : library;
}
