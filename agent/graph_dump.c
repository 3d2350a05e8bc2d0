// SPDX-License-Identifier: BSD-2-Clause
/* The graph told as events, for recordings that start in the middle. */
#include <stdio.h>
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/graph_dump.h"

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

int lien_dump_tell(struct lien_dump *dump, struct lien_event *event, size_t size)
{
	event->size = size;
	if (event->type >= LIEN_CALL_CU_INIT && !event->outer)
		event->outer = event->type;
	return dump->fn(dump->context, event);
}

void lien_dump_asked(struct lien_event *event, const struct lien_allocation *allocation)
{
	const struct lien_comm *comm = lien_allocation_comm(allocation);
	const struct lien_init *init;

	if (allocation->found)
		event->flags |= LIEN_EVENT_FOUND;
	event->outer = allocation->site ? allocation->site->outer : 0;
	event->caller = allocation->caller;
	if (!allocation->comm)
		return;
	if (allocation->comm_inferred)
		event->flags |= LIEN_EVENT_INFERRED;
	/* Of one that has been destroyed, a time that no call was made at. */
	event->scope = comm ? comm->address : LIEN_SCOPE_INIT | allocation->comm;
	if (allocation->owner)
		LIST_FOREACH (init, &allocation->owner->inits, next)
			if (init->number == allocation->comm && !comm)
				event->scope = init->scope;
}

/* What a process has besides memory. */
static int tell_contexts(struct lien_dump *dump, const struct lien_process *process)
{
	const struct lien_context *context;
	const struct lien_pool *pool;
	struct lien_event event;
	int err = 0;

	LIST_FOREACH (context, &process->contexts, next) {
		event = lien_dump_event(process, context->primary ? LIEN_CALL_CU_CONTEXT_PRIMARY
								  : LIEN_CALL_CU_CONTEXT_CREATE);
		event.context.context = context->value;
		event.context.device = context->device;
		if (!err)
			err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(context));
	}
	LIST_FOREACH (pool, &process->pools, next) {
		event = lien_dump_event(process,
			pool->imported ? LIEN_CALL_CU_POOL_IMPORT : LIEN_CALL_CU_POOL_CREATE);
		event.pool.pool = pool->value;
		event.pool.share = pool->share;
		event.pool.device = pool->device;
		event.pool.fd = -1;
		if (!err)
			err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(pool));
	}
	return err;
}

static int tell_process(struct lien_dump *dump, struct lien_process *process)
{
	struct lien_event event = lien_dump_event(process, LIEN_EVENT_PROCESS);
	struct lien_reservation *reservation;
	struct lien_library_map *map;
	int err = 0;

	event.t_entry = event.t_return = process->t_first;
	event.process.uid = process->uid;
	event.process.complete = !(process->incomplete & LIEN_INCOMPLETE_LATE);
	memcpy(event.process.comm, process->command, sizeof(event.process.comm));
	if (process->cuda)
		err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(process));
	RB_FOREACH (map, lien_library_tree, &process->libraries) {
		event = lien_dump_event(process, LIEN_EVENT_LIBRARY);
		event.t_entry = event.t_return = map->t_mapped;
		event.library.start = map->start;
		event.library.length = map->end - map->start;
		event.library.offset = map->offset;
		event.library.inode = map->inode;
		event.library.dev_major = map->dev_major;
		event.library.dev_minor = map->dev_minor;
		strncpy(event.library.name, map->file->text, sizeof(event.library.name) - 1);
		if (!err)
			err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(library));
	}
	RB_FOREACH (reservation, lien_reservation_tree, &process->reservations) {
		event = lien_dump_event(process, LIEN_CALL_CU_MEM_RESERVE);
		event.reserve.va = reservation->va;
		event.reserve.bytes = reservation->bytes;
		if (!err)
			err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(reserve));
	}
	return err ? err : tell_contexts(dump, process);
}

static const struct lien_handle *handle_in(
	const struct lien_allocation *allocation, const struct lien_process *process, bool imported)
{
	const struct lien_handle *handle;

	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		if (handle->process == process && handle->imported == imported)
			return handle;
	return NULL;
}

uint64_t lien_dump_handle(
	const struct lien_allocation *allocation, const struct lien_process *process, bool imported)
{
	const struct lien_handle *handle = handle_in(allocation, process, imported);

	return handle ? handle->value : LIEN_DUMP_HANDLE | allocation->id;
}

static int tell_mapping(struct lien_dump *dump, const struct lien_mapping *mapping)
{
	struct lien_event event = lien_dump_event(mapping->process, LIEN_CALL_CU_MEM_MAP);
	unsigned n = 0;
	int err;

	event.map.va = mapping->va;
	event.map.bytes = mapping->bytes;
	event.map.offset = mapping->offset;
	event.map.handle =
		lien_dump_handle(mapping->allocation, mapping->process, mapping->imported);
	err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(map));
	if (err || !mapping->access || !mapping->access->count)
		return err;
	event = lien_dump_event(mapping->process, LIEN_CALL_CU_MEM_SET_ACCESS);
	event.access.va = mapping->va;
	event.access.bytes = mapping->bytes;
	while (n < mapping->access->count && n < LIEN_ACCESS_MAX) {
		event.access.access[n] = mapping->access->access[n];
		n++;
	}
	event.access.count = n;
	return lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(access));
}

static int tell_fabric(
	struct lien_dump *dump, const struct lien_event *export, const struct lien_share *share)
{
	struct lien_event event = *export;

	event.flags = share->imports ? LIEN_EVENT_IMPORTED : 0;
	event.share.handle_type = CU_MEM_HANDLE_TYPE_FABRIC;
	event.share.share = 0;
	event.share.fd = -1;
	memcpy(event.share.key, share->key, LIEN_KEY_BYTES);
	return lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(share));
}

/* Under the numbers that imports to come will have; exports that cannot be followed have none. */
static int tell_exports(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner)
{
	const struct lien_share *share;
	struct lien_event event;
	unsigned told = 0;
	int err = 0;

	event = lien_dump_event(owner, LIEN_CALL_CU_MEM_EXPORT);
	event.share.handle = lien_dump_handle(allocation, owner, false);
	event.share.handle_type = 1;
	event.share.fd = -1;
	LIST_FOREACH (share, &allocation->shares, of_allocation) {
		if (share->number & LIEN_SHARE_BY_KEY) {
			told++;
			if (!err)
				err = tell_fabric(dump, &event, share);
			continue;
		}
		event.flags = (share->control ? LIEN_EVENT_CONTROL : 0) |
			      (share->imports ? LIEN_EVENT_IMPORTED : 0);
		event.share.share = share->number;
		told += !share->control;
		if (!err)
			err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(share));
	}
	event.flags = 0;
	event.share.share = 0;
	for (; told < allocation->exports && !err; told++)
		err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(share));
	return err;
}

/* An export by which it can have been imported; NULL: none is known. */
static const struct lien_share *share_of(const struct lien_allocation *allocation)
{
	const struct lien_share *share, *best = LIST_FIRST(&allocation->shares);

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (share->imports)
			best = share;
	return best;
}

static int tell_import(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process, uint64_t handle)
{
	struct lien_event event = lien_dump_event(process, LIEN_CALL_CU_MEM_IMPORT);
	const struct lien_share *share = share_of(allocation);

	event.share.handle = handle;
	event.share.handle_type = 1;
	event.share.fd = -1;
	if (!share) /* then it is all that is known of the memory */
		lien_dump_asked(&event, allocation);
	else if (share->number & LIEN_SHARE_BY_KEY)
		return tell_fabric(dump, &event, share);
	else
		event.share.share = share->number;
	return lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(share));
}

/* The imports of a process: one for each handle, and one for what is mapped and has none any more.
 */
static int tell_imports(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process)
{
	const struct lien_handle *handle;
	bool any = process == allocation->owner;
	int err = 0;

	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		if (handle->process == process && handle->imported && !err) {
			err = tell_import(dump, allocation, process, handle->value);
			any = true;
		}
	if (!any)
		err = tell_import(dump, allocation, process, LIEN_DUMP_HANDLE | allocation->id);
	return err;
}

/* The references that a process holds, after the one that its create or import brought. */
static int tell_references(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process)
{
	const struct lien_handle *handle;
	const struct lien_mapping *mapping;
	struct lien_event event;
	uint32_t told;
	int err = 0;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == process)
			break;
	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		for (told = 1; handle->process == process && told < handle->references && !err;
			told++) {
			event = lien_dump_event(process, LIEN_CALL_CU_MEM_RETAIN);
			event.retain.handle = handle->value;
			event.retain.va = mapping ? mapping->va : 0;
			err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(retain));
		}
	return err;
}

static int tell_release(struct lien_dump *dump, struct lien_event *event, size_t size)
{
	int err;

	event->flags |= LIEN_EVENT_ENTRY;
	err = lien_dump_tell(dump, event, size);
	event->flags &= ~LIEN_EVENT_ENTRY;
	return err ? err : lien_dump_tell(dump, event, size);
}

static int tell_handle_release(
	struct lien_dump *dump, struct lien_process *process, uint64_t handle, bool parked)
{
	struct lien_event event = lien_dump_event(process, LIEN_CALL_CU_MEM_RELEASE);

	event.flags = parked ? LIEN_EVENT_CONTROL : 0;
	event.release.handle = handle;
	return tell_release(dump, &event, LIEN_EVENT_SIZE(release));
}

/* What the control library took away, and the references that the application gave back. */
static int tell_releases(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process)
{
	const struct lien_handle *handle;
	const struct lien_mapping *mapping;
	struct lien_event event;
	bool parked = false, any = false;
	int err = 0;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == process && mapping->parked && !err) {
			parked = true;
			event = lien_dump_event(process, LIEN_CALL_CU_MEM_UNMAP);
			event.flags = LIEN_EVENT_CONTROL;
			event.range.va = mapping->va;
			event.range.bytes = mapping->bytes;
			err = tell_release(dump, &event, LIEN_EVENT_SIZE(range));
		}
	LIST_FOREACH (handle, &allocation->handles, of_allocation) {
		if (handle->process != process)
			continue;
		any |= handle->imported == (process != allocation->owner);
		if (!handle->references && !err)
			err = tell_handle_release(dump, process, handle->value, parked);
	}
	if (!any && !err)
		err = tell_handle_release(dump, process, LIEN_DUMP_HANDLE | allocation->id, parked);
	return err;
}

static int tell_holder(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process)
{
	const struct lien_mapping *mapping;
	int err = 0;

	if (process == allocation->owner)
		err = tell_exports(dump, allocation, process);
	if (!err)
		err = tell_imports(dump, allocation, process);
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == process && !err)
			err = tell_mapping(dump, mapping);
	return err ? err : tell_references(dump, allocation, process);
}

static bool holds(const struct lien_allocation *allocation, const struct lien_process *process)
{
	const struct lien_mapping *mapping;
	const struct lien_handle *handle;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == process)
			return true;
	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		if (handle->process == process)
			return true;
	return false;
}

typedef int tell_part(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process);

static int tell_part_of_all(struct lien_dump *dump, struct lien_graph *graph,
	const struct lien_allocation *allocation, tell_part *part)
{
	struct lien_process *process;
	int err = 0;

	if (allocation->owner)
		err = part(dump, allocation, allocation->owner);
	for (process = lien_graph_first(graph); process && !err; process = lien_graph_next(process))
		if (process != allocation->owner && holds(allocation, process))
			err = part(dump, allocation, process);
	return err;
}

static int tell_create(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner)
{
	struct lien_event event = lien_dump_event(owner, LIEN_CALL_CU_MEM_CREATE);

	if (allocation->origin == LIEN_ORIGIN_MULTICAST)
		return lien_dump_multicast(dump, allocation, owner);
	lien_dump_asked(&event, allocation);
	event.create.handle = lien_dump_handle(allocation, owner, false);
	event.create.bytes = allocation->bytes;
	event.create.prop = allocation->prop;
	return lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(create));
}

int lien_dump_dead(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *owner)
{
	const struct lien_site *site = allocation->site;
	struct lien_event event;

	owner->pid = allocation->owner_pid;
	owner->start = allocation->owner_start;
	if (!site || !site->file)
		return 0;
	event = lien_dump_event(owner, LIEN_EVENT_LIBRARY);
	event.library.start = allocation->caller;
	event.library.length = 1;
	event.library.offset = site->offset;
	event.library.inode = site->inode;
	event.library.dev_major = site->dev_major;
	event.library.dev_minor = site->dev_minor;
	strncpy(event.library.name, site->file->text, sizeof(event.library.name) - 1);
	return lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(library));
}

static int tell_dead_owner(struct lien_dump *dump, const struct lien_allocation *allocation)
{
	struct lien_process owner = {0};
	int err = lien_dump_dead(dump, allocation, &owner);

	if (!err)
		err = tell_create(dump, allocation, &owner);
	return err ? err : tell_exports(dump, allocation, &owner);
}

static int tell_deaths(struct lien_dump *dump, struct lien_graph *graph)
{
	struct lien_allocation *allocation;
	struct lien_event event;
	int err = 0;

	for (allocation = lien_graph_first_allocation(graph); allocation && !err;
		allocation = lien_graph_next_allocation(allocation)) {
		struct lien_process owner = {
			.pid = allocation->owner_pid, .start = allocation->owner_start};

		if (allocation->owner || !owner.pid || lien_graph_process(graph, owner.pid))
			continue;
		event = lien_dump_event(&owner, LIEN_EVENT_EXIT);
		err = lien_dump_tell(dump, &event, LIEN_EVENT_HEADER);
	}
	return err;
}

/* What was given back is told last: until then everybody else has taken the memory in, and
 * multicast objects reach it. */
static int tell_allocation(
	struct lien_dump *dump, struct lien_graph *graph, const struct lien_allocation *allocation)
{
	int err = 0;

	if (lien_allocation_by_address(allocation))
		return lien_dump_by_address(dump, graph, allocation);
	if (allocation->owner)
		err = tell_create(dump, allocation, allocation->owner);
	else if (allocation->owner_pid && !lien_graph_process(graph, allocation->owner_pid))
		err = tell_dead_owner(dump, allocation);
	if (!err)
		err = tell_part_of_all(dump, graph, allocation, tell_holder);
	if (err || allocation->origin == LIEN_ORIGIN_MULTICAST)
		return err;
	err = lien_dump_bindings(dump, allocation);
	if (!err)
		err = lien_dump_dmabufs(dump, allocation);
	return err ? err : tell_part_of_all(dump, graph, allocation, tell_releases);
}

/* Multicast objects come first and are let go of last: the others' memory is bound to them. */
static int tell_allocations(struct lien_dump *dump, struct lien_graph *graph)
{
	struct lien_allocation *allocation;
	bool multicast;
	int err = 0, pass;

	for (pass = 0; pass < 3; pass++)
		for (allocation = lien_graph_first_allocation(graph); allocation && !err;
			allocation = lien_graph_next_allocation(allocation)) {
			multicast = allocation->origin == LIEN_ORIGIN_MULTICAST;
			if (multicast != (pass != 1) ||
				(!lien_allocation_held(allocation) && !allocation->owner))
				continue;
			err = pass < 2 ? tell_allocation(dump, graph, allocation)
				       : tell_part_of_all(dump, graph, allocation, tell_releases);
		}
	return err;
}

static int tell_registrations(struct lien_dump *dump, struct lien_process *process,
	const struct lien_registration_list *list, uint64_t comm)
{
	const struct lien_registration *registration;
	struct lien_event event;
	int err = 0;

	LIST_FOREACH (registration, list, next) {
		event = lien_dump_event(process, !comm ? LIEN_CALL_IBV_REG_MR
						 : registration->window
							 ? LIEN_CALL_NCCL_WINDOW_REGISTER
							 : LIEN_CALL_NCCL_REGISTER);
		event.reg.comm = comm;
		event.reg.va = registration->va;
		event.reg.bytes = registration->bytes;
		event.reg.handle = registration->handle;
		if (!err)
			err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(reg));
	}
	return err;
}

static struct lien_comm *comm_after(struct lien_process *process, uint32_t number)
{
	struct lien_comm *comm, *best = NULL;

	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		if (comm->number > number && (!best || comm->number < best->number))
			best = comm;
	return best;
}

static uint64_t comm_address(struct lien_process *process, uint32_t number)
{
	struct lien_comm *comm;

	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		if (comm->number == number)
			return comm->address;
	return 0;
}

/* In the order in which they were made: a parent before those that were split off it. */
static int tell_comms(struct lien_dump *dump, struct lien_process *process)
{
	const struct lien_init *init;
	struct lien_comm *comm;
	struct lien_event event;
	int err = 0;

	for (comm = comm_after(process, 0); comm && !err;
		comm = comm_after(process, comm->number)) {
		if (!comm->made_by)
			continue;
		event = lien_dump_event(process, comm->made_by);
		event.flags = LIEN_EVENT_IMPORTED;
		event.t_return = comm->t_init;
		event.t_entry = 0;
		LIST_FOREACH (init, &process->inits, next)
			if (init->number == comm->number)
				event.t_entry = init->scope & ~LIEN_SCOPE_INIT;
		event.comm.comm = comm->address;
		event.comm.parent = comm->parent ? comm_address(process, comm->parent) : 0;
		event.comm.rank = comm->rank;
		event.comm.nranks = comm->nranks;
		event.comm.device = comm->device;
		event.comm.key = comm->splits;
		event.comm.excluded = comm->shrinks;
		memcpy(event.comm.id, comm->id, sizeof(event.comm.id));
		err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(comm));
		if (err || !comm->finalized)
			continue;
		event = lien_dump_event(process, LIEN_CALL_NCCL_FINALIZE);
		event.comm_end.comm = comm->address;
		err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(comm_end));
	}
	return err;
}

static int tell_registered(struct lien_dump *dump, struct lien_process *process)
{
	struct lien_comm *comm;
	int err = 0;

	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		if (!err)
			err = tell_registrations(
				dump, process, &comm->registrations, comm->address);
	return err ? err : tell_registrations(dump, process, &process->cards, 0);
}

static int tell_under_way(struct lien_dump *dump, const struct lien_process *process)
{
	const struct lien_pending *pending;
	const struct lien_capture *capture;
	struct lien_event event;
	int err = 0;

	LIST_FOREACH (capture, &process->captures, next) {
		event = lien_dump_event(process, LIEN_CALL_CU_CAPTURE_BEGIN);
		event.capture.stream = capture->stream;
		if (!err)
			err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(capture));
	}
	TAILQ_FOREACH (pending, &process->pending, next)
		if (!err)
			err = dump->fn(dump->context, &pending->event);
	return err;
}

/* Exactly, and last: what was told before may have left marks of its own. */
static int tell_incomplete(struct lien_dump *dump, const struct lien_process *process)
{
	struct lien_event event = lien_dump_event(process, LIEN_EVENT_INCOMPLETE);

	event.incomplete.reasons = process->incomplete;
	return process->cuda ? lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(incomplete)) : 0;
}

int lien_graph_dump(const struct lien_graph *const_graph,
	int (*fn)(void *context, const struct lien_event *), void *context)
{
	struct lien_graph *graph =
		(struct lien_graph *)const_graph; /* the trees' walks take no const */
	struct lien_dump dump = {fn, context};
	struct lien_process *process;
	int err = 0;

	for (process = lien_graph_first(graph); process && !err;
		process = lien_graph_next(process)) {
		err = tell_process(&dump, process);
		if (!err)
			err = tell_comms(&dump, process);
	}
	if (!err)
		err = tell_allocations(&dump, graph);
	if (!err)
		err = tell_deaths(&dump, graph);
	for (process = lien_graph_first(graph); process && !err;
		process = lien_graph_next(process)) {
		err = tell_registered(&dump, process);
		if (!err)
			err = tell_under_way(&dump, process);
		if (!err)
			err = tell_incomplete(&dump, process);
	}
	return err;
}
