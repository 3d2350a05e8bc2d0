// SPDX-License-Identifier: BSD-2-Clause
/* Dumps the graph as events, for recordings that start in the middle. */
#include <string.h>

#include "agent/graph/dump/dump.h"

struct lien_event lien_dump_event(const struct lien_process *process, unsigned type)
{
	struct lien_event event;

	memset(&event, 0, sizeof(event));
	event.type = type;
	event.pid = process->pid;
	event.tid = process->pid;
	event.start = process->start;
	return event;
}

int lien_dump_emit(struct lien_dump *dump, struct lien_event *event, size_t size)
{
	event->size = size;
	if (event->type >= LIEN_CALL_CU_INIT && !event->outer)
		event->outer = event->type;
	return dump->fn(dump->context, event);
}

static int emit_library(struct lien_dump *dump, const struct lien_process *process,
	const struct lien_library_map *map)
{
	struct lien_event event = lien_dump_event(process, LIEN_EVENT_LIBRARY);

	event.t_entry = event.t_return = map->t_mapped;
	event.library.start = map->start;
	event.library.length = map->end - map->start;
	event.library.offset = map->offset;
	event.library.inode = map->inode;
	event.library.dev_major = map->dev_major;
	event.library.dev_minor = map->dev_minor;
	if (map->file)
		strncpy(event.library.name, map->file->text, sizeof(event.library.name) - 1);
	return lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(library));
}

static bool map_has_site(const struct lien_library_map *map, const struct lien_site *site)
{
	return map->file == site->file && map->inode == site->inode &&
	       map->dev_major == site->dev_major && map->dev_minor == site->dev_minor &&
	       site->offset >= map->offset && site->offset - map->offset < map->end - map->start;
}

/* Returns the site's address in the process; 0: its file is no longer mapped there. */
static uint64_t site_address(const struct lien_process *process, const struct lien_site *site)
{
	struct lien_place_tree *places = (struct lien_place_tree *)&process->places;
	struct lien_library_map key = {.inode = site->inode,
		.dev_major = site->dev_major,
		.dev_minor = site->dev_minor,
		.file = site->file,
		.offset = site->offset,
		.start = UINT64_MAX};
	struct lien_library_map *map;

	if (!site->file)
		return site->offset;
	/* The last mapping that begins at or before it: mappings of one file seldom overlap. */
	map = RB_NFIND(lien_place_tree, places, &key);
	map = map ? RB_PREV(lien_place_tree, places, map) : RB_MAX(lien_place_tree, places);
	return map && map_has_site(map, site) ? map->start + (site->offset - map->offset) : 0;
}

static int emit_hidden(struct lien_dump *dump)
{
	int err = dump->hidden ? emit_library(dump, dump->hidden_in, dump->hidden) : 0;

	dump->hidden = NULL;
	return err;
}

/*
 * Maps the site's file at a made-up address if it is no longer mapped; or unmaps the file that is
 * now at the address of a site without one.
 */
static int emit_site(struct lien_dump *dump, struct lien_event *event,
	const struct lien_process *process, const struct lien_site *site)
{
	struct lien_library_map map = {.start = site->offset, .end = site->offset + 1};
	int err = emit_hidden(dump);

	event->outer = site->outer;
	event->caller = site_address(process, site);
	if (site->file && !event->caller) {
		event->caller = LIEN_DUMP_CODE;
		map = (struct lien_library_map){.start = LIEN_DUMP_CODE,
			.end = LIEN_DUMP_CODE + 1,
			.offset = site->offset,
			.inode = site->inode,
			.dev_major = site->dev_major,
			.dev_minor = site->dev_minor,
			.file = site->file};
	} else if (site->file || !(dump->hidden = lien_process_library(
					   (struct lien_process *)process, site->offset))) {
		return err;
	}
	dump->hidden_in = process;
	return err ? err : emit_library(dump, process, &map);
}

int lien_dump_asked(struct lien_dump *dump, struct lien_event *event,
	const struct lien_allocation *allocation, const struct lien_process *process)
{
	const struct lien_init *init;
	struct lien_comm *comm;

	if (allocation->found)
		event->flags |= LIEN_EVENT_FOUND;
	if (allocation->comm) {
		comm = lien_process_comm((struct lien_process *)process, allocation->comm);
		if (allocation->comm_inferred)
			event->flags |= LIEN_EVENT_INFERRED;
		/* A destroyed communicator gets a time at which no call was made. */
		event->scope = comm ? comm->address : LIEN_SCOPE_INIT | allocation->comm;
		init = comm ? NULL : lien_process_init(process, allocation->comm);
		if (init)
			event->scope = init->scope;
	}
	return allocation->site ? emit_site(dump, event, process, allocation->site) : 0;
}

/* Emits the contexts of a process. */
static int emit_contexts(struct lien_dump *dump, struct lien_process *process)
{
	struct lien_context *context;
	struct lien_pool *pool;
	struct lien_event event;
	int err = 0;

	/* In the order of their numbers. */
	RB_FOREACH (context, lien_context_number_tree, &process->context_numbers) {
		event = lien_dump_event(process, context->primary ? LIEN_CALL_CU_CONTEXT_PRIMARY
								  : LIEN_CALL_CU_CONTEXT_CREATE);
		event.context.context = context->value;
		event.context.device = context->device;
		if (!err)
			err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(context));
	}
	RB_FOREACH (pool, lien_pool_tree, &process->pools) {
		event = lien_dump_event(process,
			pool->imported ? LIEN_CALL_CU_POOL_IMPORT : LIEN_CALL_CU_POOL_CREATE);
		event.pool.pool = pool->value;
		event.pool.share = pool->share;
		event.pool.device = pool->device;
		event.pool.fd = -1;
		if (!err)
			err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(pool));
	}
	return err;
}

static int emit_libraries(struct lien_dump *dump, struct lien_process *process)
{
	struct lien_library_map *map;
	int err = 0;

	RB_FOREACH (map, lien_library_tree, &process->libraries)
		if (!err)
			err = emit_library(dump, process, map);
	return err;
}

static int emit_process(struct lien_dump *dump, struct lien_process *process)
{
	struct lien_event event = lien_dump_event(process, LIEN_EVENT_PROCESS);
	struct lien_reservation *reservation;
	int err = 0;

	event.t_entry = event.t_return = process->t_first;
	event.process.uid = process->uid;
	event.process.complete = !(process->incomplete & LIEN_INCOMPLETE_LATE);
	memcpy(event.process.comm, process->command, sizeof(event.process.comm));
	if (process->cuda)
		err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(process));
	if (!err)
		err = emit_libraries(dump, process);
	SPLAY_FOREACH (reservation, lien_reservation_tree, &process->reservations) {
		event = lien_dump_event(process, LIEN_CALL_CU_MEM_RESERVE);
		event.reserve.va = reservation->va;
		event.reserve.bytes = reservation->bytes;
		if (!err)
			err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(reserve));
	}
	if (!err)
		err = emit_contexts(dump, process);
	return err ? err : lien_dump_comms(dump, process);
}

/* Removes the libraries that were emitted at made-up addresses. */
static int emit_no_code(struct lien_dump *dump)
{
	const struct lien_library_map nothing = {
		.start = LIEN_DUMP_CODE, .end = LIEN_DUMP_CODE + 1};
	struct lien_process *process;
	int err = emit_hidden(dump);

	for (process = lien_graph_first(dump->graph); process && dump->hidden_in && !err;
		process = lien_graph_next(process))
		err = emit_library(dump, process, &nothing);
	return err;
}

static int emit_create(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner)
{
	struct lien_event event = lien_dump_event(owner, LIEN_CALL_CU_MEM_CREATE);
	int err;

	if (allocation->origin == LIEN_ORIGIN_MULTICAST)
		return lien_dump_multicast(dump, allocation, owner);
	event.flags = lien_dump_made_flags(dump, allocation, owner);
	err = lien_dump_asked(dump, &event, allocation, owner);
	event.create.handle = lien_dump_handle(dump, allocation, owner, false);
	event.create.bytes = allocation->bytes;
	event.create.prop = allocation->prop;
	if (!err)
		err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(create));
	return err ? err : lien_dump_adopted(dump, allocation, owner, event.create.handle);
}

const struct lien_process *lien_dump_owner(const struct lien_dump *dump,
	const struct lien_allocation *allocation, struct lien_process *dead)
{
	if (allocation->owner)
		return allocation->owner;
	dead->pid = allocation->owner_pid;
	dead->start = allocation->owner_start;
	return dead->pid && !lien_graph_process(dump->graph, dead->pid) ? dead : NULL;
}

static int emit_deaths(struct lien_dump *dump)
{
	struct lien_allocation *allocation;
	struct lien_event event;
	int err = 0;

	for (allocation = lien_graph_first_allocation(dump->graph); allocation && !err;
		allocation = lien_graph_next_allocation(allocation)) {
		struct lien_process dead = {0};

		if (allocation->owner || !lien_dump_owner(dump, allocation, &dead))
			continue;
		event = lien_dump_event(&dead, LIEN_EVENT_EXIT);
		err = lien_dump_emit(dump, &event, LIEN_EVENT_HEADER);
	}
	return err;
}

/*
 * Returns a process that has the allocation; NULL: none (it is bound, and its owner is no longer
 * known).
 */
static const struct lien_process *holder(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (!TAILQ_EMPTY(&holding->handles))
			return holding->process;
	holding = LIST_FIRST(&allocation->holdings);
	return holding ? holding->process : NULL;
}

/* Legacy IPC: only the mapping is known. */
static bool was_opened(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (!TAILQ_EMPTY(&holding->handles))
			return false;
	return LIST_FIRST(&LIST_FIRST(&allocation->holdings)->mappings)->opened;
}

/* Releases come last: until then every other process has imported the memory, and multicast objects
 * reach it. */
static int emit_allocation(struct lien_dump *dump, const struct lien_allocation *allocation)
{
	struct lien_process dead = {0};
	const struct lien_process *owner = lien_dump_owner(dump, allocation, &dead), *by;
	int err = 0;

	by = owner ? owner : holder(allocation);
	if (!by)
		return 0;
	if (lien_allocation_by_address(allocation))
		return owner ? lien_dump_by_address(dump, allocation, owner) : 0;
	if (!owner && was_opened(allocation))
		return lien_dump_opened(dump, allocation);
	if (owner)
		err = emit_create(dump, allocation, owner);
	if (owner == &dead && !err)
		err = lien_dump_exports(dump, allocation, owner);
	if (!err)
		err = lien_dump_part_of_all(dump, allocation, lien_dump_holder);
	if (err || allocation->origin == LIEN_ORIGIN_MULTICAST)
		return err;
	err = lien_dump_dmabufs(dump, allocation, by);
	if (!err)
		err = lien_dump_bindings(dump, allocation, by);
	return err ? err : lien_dump_part_of_all(dump, allocation, lien_dump_releases);
}

enum pass {
	OBJECTS, /* multicast: other allocations are bound to them */
	RENAMED, /* their key is given to other memory afterwards */
	OTHERS,
	OBJECTS_RELEASED,
	PASSES,
};

static enum pass pass_of(const struct lien_allocation *allocation)
{
	const struct lien_share *share;

	if (allocation->origin == LIEN_ORIGIN_MULTICAST)
		return OBJECTS;
	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (share->stale)
			return RENAMED;
	return OTHERS;
}

static int emit_allocations(struct lien_dump *dump)
{
	struct lien_allocation *allocation;
	enum pass pass, of;
	int err = 0;

	for (pass = 0; pass < PASSES; pass++)
		for (allocation = lien_graph_first_allocation(dump->graph); allocation && !err;
			allocation = lien_graph_next_allocation(allocation)) {
			if (!lien_allocation_held(allocation) && !allocation->owner)
				continue;
			of = pass_of(allocation);
			if (of == pass)
				err = emit_allocation(dump, allocation);
			else if (of == OBJECTS && pass == OBJECTS_RELEASED)
				err = lien_dump_part_of_all(dump, allocation, lien_dump_releases);
		}
	return err;
}

static int emit_under_way(struct lien_dump *dump, struct lien_process *process)
{
	const struct lien_pending *pending;
	struct lien_capture *capture;
	struct lien_event event;
	int err = 0;

	RB_FOREACH (capture, lien_capture_tree, &process->captures) {
		event = lien_dump_event(process, LIEN_CALL_CU_CAPTURE_BEGIN);
		event.capture.stream = capture->stream;
		if (!err)
			err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(capture));
	}
	TAILQ_FOREACH (pending, &process->pending, next)
		if (!err)
			err = dump->fn(dump->context, &pending->event);
	return err;
}

/* Last, and with the exact reasons: the events before may have set some of their own. */
static int emit_incomplete(struct lien_dump *dump, const struct lien_process *process)
{
	struct lien_event event = lien_dump_event(process, LIEN_EVENT_INCOMPLETE);

	event.incomplete.reasons = process->incomplete;
	return process->cuda ? lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(incomplete)) : 0;
}

int lien_graph_dump(const struct lien_graph *graph,
	int (*fn)(void *context, const struct lien_event *), void *context)
{
	/* The macros that walk the trees take no const. */
	struct lien_dump dump = {.fn = fn, .context = context, .graph = (struct lien_graph *)graph};
	struct lien_process *process;
	int err = 0;

	for (process = lien_graph_first(dump.graph); process && !err;
		process = lien_graph_next(process))
		err = emit_process(&dump, process);
	if (!err)
		err = emit_allocations(&dump);
	if (!err)
		err = emit_deaths(&dump);
	if (!err)
		err = emit_no_code(&dump);
	for (process = lien_graph_first(dump.graph); process && !err;
		process = lien_graph_next(process)) {
		err = lien_dump_registered(&dump, process);
		if (!err)
			err = emit_under_way(&dump, process);
		if (!err)
			err = emit_incomplete(&dump, process);
	}
	return err;
}
