// SPDX-License-Identifier: BSD-2-Clause
/* The graph told as events, for recordings that start in the middle. */
#include <stdio.h>
#include <string.h>

#include "agent/graph_internal.h"

struct dump {
	int (*fn)(void *context, const struct lien_event *event);
	void *context;
};

#define DUMP_HANDLE (0x4c49ull << 48) /* offloaded: the real one is gone */

static struct lien_event event_of(const struct lien_process *process, unsigned type)
{
	struct lien_event event;

	memset(&event, 0, sizeof(event));
	event.type = type;
	event.pid = process->pid;
	event.tid = process->pid;
	event.start = process->start;
	return event;
}

static int tell(struct dump *dump, struct lien_event *event, size_t size)
{
	event->size = size;
	if (event->type >= LIEN_CALL_CU_INIT && !event->outer)
		event->outer = event->type;
	return dump->fn(dump->context, event);
}

static int tell_process(struct dump *dump, struct lien_process *process)
{
	struct lien_event event = event_of(process, LIEN_EVENT_PROCESS);
	struct lien_reservation *reservation;
	struct lien_library_map *map;
	int err = 0;

	event.t_entry = event.t_return = process->t_first;
	event.process.uid = process->uid;
	event.process.complete = !(process->incomplete & LIEN_INCOMPLETE_LATE);
	memcpy(event.process.comm, process->command, sizeof(event.process.comm));
	if (process->cuda)
		err = tell(dump, &event, LIEN_EVENT_SIZE(process));
	RB_FOREACH (map, lien_library_tree, &process->libraries) {
		event = event_of(process, LIEN_EVENT_LIBRARY);
		event.t_entry = event.t_return = map->t_mapped;
		event.library.start = map->start;
		event.library.length = map->end - map->start;
		event.library.offset = map->offset;
		event.library.inode = map->inode;
		event.library.dev_major = map->dev_major;
		event.library.dev_minor = map->dev_minor;
		strncpy(event.library.name, map->file->text, sizeof(event.library.name) - 1);
		if (!err)
			err = tell(dump, &event, LIEN_EVENT_SIZE(library));
	}
	RB_FOREACH (reservation, lien_reservation_tree, &process->reservations) {
		event = event_of(process, LIEN_CALL_CU_MEM_RESERVE);
		event.reserve.va = reservation->va;
		event.reserve.bytes = reservation->bytes;
		if (!err)
			err = tell(dump, &event, LIEN_EVENT_SIZE(reserve));
	}
	return err;
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

static uint64_t handle_value(
	const struct lien_allocation *allocation, const struct lien_process *process, bool imported)
{
	const struct lien_handle *handle = handle_in(allocation, process, imported);

	return handle ? handle->value : DUMP_HANDLE | allocation->id;
}

static int tell_mapping(struct dump *dump, const struct lien_mapping *mapping)
{
	struct lien_event event = event_of(mapping->process, LIEN_CALL_CU_MEM_MAP);
	unsigned n = 0;
	int err;

	event.map.va = mapping->va;
	event.map.bytes = mapping->bytes;
	event.map.offset = mapping->offset;
	event.map.handle = handle_value(mapping->allocation, mapping->process, mapping->imported);
	err = tell(dump, &event, LIEN_EVENT_SIZE(map));
	if (err || !mapping->access || !mapping->access->count)
		return err;
	event = event_of(mapping->process, LIEN_CALL_CU_MEM_SET_ACCESS);
	event.access.va = mapping->va;
	event.access.bytes = mapping->bytes;
	while (n < mapping->access->count && n < LIEN_ACCESS_MAX) {
		event.access.access[n] = mapping->access->access[n];
		n++;
	}
	event.access.count = n;
	return tell(dump, &event, LIEN_EVENT_SIZE(access));
}

/* Under the numbers that imports to come will have; exports that cannot be followed have none. */
static int tell_exports(struct dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner)
{
	const struct lien_share *share;
	struct lien_event event;
	unsigned told = 0;
	int err = 0;

	event = event_of(owner, LIEN_CALL_CU_MEM_EXPORT);
	event.share.handle = handle_value(allocation, owner, false);
	event.share.handle_type = 1;
	event.share.fd = -1;
	LIST_FOREACH (share, &allocation->shares, of_allocation) {
		event.flags = (share->control ? LIEN_EVENT_CONTROL : 0) |
			      (share->imports ? LIEN_EVENT_IMPORTED : 0);
		event.share.share = share->number;
		told += !share->control;
		if (!err)
			err = tell(dump, &event, LIEN_EVENT_SIZE(share));
	}
	event.flags = 0;
	event.share.share = 0;
	for (; told < allocation->exports && !err; told++)
		err = tell(dump, &event, LIEN_EVENT_SIZE(share));
	return err;
}

/* An export by which it can have been imported. */
static uint64_t share_number(const struct lien_allocation *allocation)
{
	const struct lien_share *share, *best = LIST_FIRST(&allocation->shares);

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (share->imports)
			best = share;
	return best ? best->number : 0;
}

static int tell_import(struct dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process, uint64_t handle)
{
	struct lien_event event = event_of(process, LIEN_CALL_CU_MEM_IMPORT);

	event.share.handle = handle;
	event.share.handle_type = 1;
	event.share.fd = -1;
	event.share.share = share_number(allocation);
	if (!event.share.share) { /* then it is all that is known of the memory */
		event.outer = allocation->outer;
		event.caller = allocation->caller;
	}
	return tell(dump, &event, LIEN_EVENT_SIZE(share));
}

/* The imports of a process: one for each handle, and one for what is mapped and has none any more.
 */
static int tell_imports(
	struct dump *dump, const struct lien_allocation *allocation, struct lien_process *process)
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
		err = tell_import(dump, allocation, process, DUMP_HANDLE | allocation->id);
	return err;
}

/* The references that a process holds, after the one that its create or import brought. */
static int tell_references(
	struct dump *dump, const struct lien_allocation *allocation, struct lien_process *process)
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
			event = event_of(process, LIEN_CALL_CU_MEM_RETAIN);
			event.retain.handle = handle->value;
			event.retain.va = mapping ? mapping->va : 0;
			err = tell(dump, &event, LIEN_EVENT_SIZE(retain));
		}
	return err;
}

static int tell_release(struct dump *dump, struct lien_event *event, size_t size)
{
	int err;

	event->flags |= LIEN_EVENT_ENTRY;
	err = tell(dump, event, size);
	event->flags &= ~LIEN_EVENT_ENTRY;
	return err ? err : tell(dump, event, size);
}

static int tell_handle_release(
	struct dump *dump, struct lien_process *process, uint64_t handle, bool parked)
{
	struct lien_event event = event_of(process, LIEN_CALL_CU_MEM_RELEASE);

	event.flags = parked ? LIEN_EVENT_CONTROL : 0;
	event.release.handle = handle;
	return tell_release(dump, &event, LIEN_EVENT_SIZE(release));
}

/* What the control library took away, and the references that the application gave back. */
static int tell_releases(
	struct dump *dump, const struct lien_allocation *allocation, struct lien_process *process)
{
	const struct lien_handle *handle;
	const struct lien_mapping *mapping;
	struct lien_event event;
	bool parked = false, any = false;
	int err = 0;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == process && mapping->parked && !err) {
			parked = true;
			event = event_of(process, LIEN_CALL_CU_MEM_UNMAP);
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
		err = tell_handle_release(dump, process, DUMP_HANDLE | allocation->id, parked);
	return err;
}

static int tell_holder(
	struct dump *dump, const struct lien_allocation *allocation, struct lien_process *process)
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

/* What was given back is told last: until then everybody else has taken the memory in. */
static int tell_holders(
	struct dump *dump, struct lien_graph *graph, const struct lien_allocation *allocation)
{
	int (*const tell_parts[])(struct dump *, const struct lien_allocation *,
		struct lien_process *) = {tell_holder, tell_releases};
	struct lien_process *process;
	unsigned part;
	int err = 0;

	for (part = 0; part < 2; part++) {
		if (allocation->owner && !err)
			err = tell_parts[part](dump, allocation, allocation->owner);
		for (process = lien_graph_first(graph); process && !err;
			process = lien_graph_next(process))
			if (process != allocation->owner && holds(allocation, process))
				err = tell_parts[part](dump, allocation, process);
	}
	return err;
}

static int tell_create(struct dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner)
{
	struct lien_event event = event_of(owner, LIEN_CALL_CU_MEM_CREATE);

	event.outer = allocation->outer;
	event.caller = allocation->caller;
	event.create.handle = handle_value(allocation, owner, false);
	event.create.bytes = allocation->bytes;
	event.create.prop = allocation->prop;
	return tell(dump, &event, LIEN_EVENT_SIZE(create));
}

/* The dead come back to make and export what others still have; see tell_deaths(). */
static int tell_dead_owner(struct dump *dump, const struct lien_allocation *allocation)
{
	struct lien_process owner = {
		.pid = allocation->owner_pid, .start = allocation->owner_start};
	struct lien_event event = event_of(&owner, LIEN_EVENT_LIBRARY);
	int err;

	event.library.start = allocation->caller;
	event.library.length = 1;
	snprintf(event.library.name, sizeof(event.library.name), "lib%s.so",
		allocation->library->text);
	err = tell(dump, &event, LIEN_EVENT_SIZE(library));
	if (!err)
		err = tell_create(dump, allocation, &owner);
	return err ? err : tell_exports(dump, allocation, &owner);
}

static int tell_deaths(struct dump *dump, struct lien_graph *graph)
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
		event = event_of(&owner, LIEN_EVENT_EXIT);
		err = tell(dump, &event, LIEN_EVENT_HEADER);
	}
	return err;
}

static int tell_allocation(
	struct dump *dump, struct lien_graph *graph, const struct lien_allocation *allocation)
{
	struct lien_event event;
	int err = 0;

	if (allocation->origin == LIEN_ORIGIN_ALLOC) {
		event = event_of(allocation->owner, LIEN_CALL_CU_MEM_ALLOC);
		event.outer = allocation->outer;
		event.caller = allocation->caller;
		event.alloc.va = LIST_FIRST(&allocation->mappings)->va;
		event.alloc.bytes = allocation->bytes;
		return tell(dump, &event, LIEN_EVENT_SIZE(alloc));
	}
	if (allocation->owner)
		err = tell_create(dump, allocation, allocation->owner);
	else if (allocation->owner_pid && !lien_graph_process(graph, allocation->owner_pid))
		err = tell_dead_owner(dump, allocation);
	return err ? err : tell_holders(dump, graph, allocation);
}

static int tell_registrations(struct dump *dump, struct lien_process *process,
	const struct lien_registration_list *list, uint64_t comm)
{
	const struct lien_registration *registration;
	struct lien_event event;
	int err = 0;

	LIST_FOREACH (registration, list, next) {
		event = event_of(process, !comm			 ? LIEN_CALL_IBV_REG_MR
					  : registration->window ? LIEN_CALL_NCCL_WINDOW_REGISTER
								 : LIEN_CALL_NCCL_REGISTER);
		event.reg.comm = comm;
		event.reg.va = registration->va;
		event.reg.bytes = registration->bytes;
		event.reg.handle = registration->handle;
		if (!err)
			err = tell(dump, &event, LIEN_EVENT_SIZE(reg));
	}
	return err;
}

static int tell_comms(struct dump *dump, struct lien_process *process)
{
	struct lien_comm *comm;
	struct lien_event event;
	int err = 0;

	RB_FOREACH (comm, lien_comm_tree, &process->comms) {
		event = event_of(process, LIEN_CALL_NCCL_INIT_RANK);
		event.comm.comm = comm->address;
		event.comm.rank = comm->rank;
		event.comm.nranks = comm->nranks;
		memcpy(event.comm.id, comm->id, sizeof(event.comm.id));
		if (!err)
			err = tell(dump, &event, LIEN_EVENT_SIZE(comm));
		if (!err)
			err = tell_registrations(
				dump, process, &comm->registrations, comm->address);
	}
	return err ? err : tell_registrations(dump, process, &process->cards, 0);
}

static int tell_under_way(struct dump *dump, const struct lien_process *process)
{
	const struct lien_pending *pending;
	const struct lien_capture *capture;
	struct lien_event event;
	int err = 0;

	LIST_FOREACH (capture, &process->captures, next) {
		event = event_of(process, LIEN_CALL_CU_CAPTURE_BEGIN);
		event.capture.stream = capture->stream;
		if (!err)
			err = tell(dump, &event, LIEN_EVENT_SIZE(capture));
	}
	TAILQ_FOREACH (pending, &process->pending, next)
		if (!err)
			err = dump->fn(dump->context, &pending->event);
	return err;
}

/* Exactly, and last: what was told before may have left marks of its own. */
static int tell_incomplete(struct dump *dump, const struct lien_process *process)
{
	struct lien_event event = event_of(process, LIEN_EVENT_INCOMPLETE);

	event.incomplete.reasons = process->incomplete;
	return process->cuda ? tell(dump, &event, LIEN_EVENT_SIZE(incomplete)) : 0;
}

int lien_graph_dump(const struct lien_graph *const_graph,
	int (*fn)(void *context, const struct lien_event *), void *context)
{
	struct lien_graph *graph =
		(struct lien_graph *)const_graph; /* the trees' walks take no const */
	struct dump dump = {fn, context};
	struct lien_allocation *allocation;
	struct lien_process *process;
	int err = 0;

	for (process = lien_graph_first(graph); process && !err; process = lien_graph_next(process))
		err = tell_process(&dump, process);
	for (allocation = lien_graph_first_allocation(graph); allocation && !err;
		allocation = lien_graph_next_allocation(allocation))
		if (lien_allocation_held(allocation) || allocation->owner)
			err = tell_allocation(&dump, graph, allocation);
	if (!err)
		err = tell_deaths(&dump, graph);
	for (process = lien_graph_first(graph); process && !err;
		process = lien_graph_next(process)) {
		err = tell_comms(&dump, process);
		if (!err)
			err = tell_under_way(&dump, process);
		if (!err)
			err = tell_incomplete(&dump, process);
	}
	return err;
}
