// SPDX-License-Identifier: BSD-2-Clause
/* The graph told as events, for recordings that start in the middle. */
#include <string.h>

#include "agent/graph_internal.h"

struct dump {
	int (*fn)(void *context, const struct lien_event *event);
	void *context;
};

/* Numbers that the kernel side never gives out: its own count up from 1. */
#define DUMP_SHARE  (1ull << 62)
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
	const struct lien_allocation *allocation, const struct lien_process *process)
{
	const struct lien_handle *handle;

	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		if (handle->process == process)
			return handle;
	return NULL;
}

static uint64_t handle_value(
	const struct lien_allocation *allocation, const struct lien_process *process)
{
	const struct lien_handle *handle = handle_in(allocation, process);

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
	event.map.handle = handle_value(mapping->allocation, mapping->process);
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

/* The references that the process holds, after the one that its create or import brought; and what
 * the control library took away. */
static int tell_references(struct dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process, bool parked)
{
	const struct lien_handle *handle = handle_in(allocation, process);
	uint32_t references = handle ? handle->references : 0, i;
	const struct lien_mapping *mapping;
	struct lien_event event;
	int err = 0;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation) {
		if (err || mapping->process != process)
			continue;
		for (i = 1; i < references && !err; i++) {
			event = event_of(process, LIEN_CALL_CU_MEM_RETAIN);
			event.retain.handle = handle->value;
			event.retain.va = mapping->va;
			err = tell(dump, &event, LIEN_EVENT_SIZE(retain));
		}
		references = references ? 1 : 0;
		if (mapping->parked && !err)
			for (i = 0; i < 2 && !err; i++) {
				event = event_of(process, LIEN_CALL_CU_MEM_UNMAP);
				event.flags = LIEN_EVENT_CONTROL | (i ? 0 : LIEN_EVENT_ENTRY);
				event.range.va = mapping->va;
				event.range.bytes = mapping->bytes;
				err = tell(dump, &event, LIEN_EVENT_SIZE(range));
			}
	}
	for (i = 0; !references && i < 2 && !err; i++) {
		event = event_of(process, LIEN_CALL_CU_MEM_RELEASE);
		event.flags = (parked ? LIEN_EVENT_CONTROL : 0) | (i ? 0 : LIEN_EVENT_ENTRY);
		event.release.handle = handle_value(allocation, process);
		err = tell(dump, &event, LIEN_EVENT_SIZE(release));
	}
	return err;
}

static int tell_exports(struct dump *dump, const struct lien_allocation *allocation)
{
	struct lien_event event;
	unsigned i;
	int err = 0;

	for (i = 0; i < allocation->exports && !err; i++) {
		event = event_of(allocation->owner, LIEN_CALL_CU_MEM_EXPORT);
		event.share.handle = handle_value(allocation, allocation->owner);
		event.share.handle_type = 1;
		event.share.fd = -1;
		event.share.share = DUMP_SHARE | (uint64_t)i << 48 | allocation->id;
		err = tell(dump, &event, LIEN_EVENT_SIZE(share));
	}
	return err;
}

static int tell_holder(
	struct dump *dump, const struct lien_allocation *allocation, struct lien_process *process)
{
	const struct lien_mapping *mapping;
	bool parked = false;
	struct lien_event event;
	int err = 0;

	if (process != allocation->owner) {
		event = event_of(process, LIEN_CALL_CU_MEM_IMPORT);
		event.share.handle = handle_value(allocation, process);
		event.share.handle_type = 1;
		event.share.fd = -1;
		event.share.share =
			allocation->exports && allocation->owner ? DUMP_SHARE | allocation->id : 0;
		err = tell(dump, &event, LIEN_EVENT_SIZE(share));
	}
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == process && !err) {
			err = tell_mapping(dump, mapping);
			parked |= mapping->parked;
		}
	if (!err && process == allocation->owner)
		err = tell_exports(dump, allocation);
	return err ? err : tell_references(dump, allocation, process, parked);
}

/* Whether this process has told of the allocation already: each holder is told once. */
static int tell_holders(
	struct dump *dump, struct lien_graph *graph, const struct lien_allocation *allocation)
{
	const struct lien_mapping *mapping;
	struct lien_process *process;
	int err = 0;

	if (allocation->owner)
		err = tell_holder(dump, allocation, allocation->owner);
	for (process = lien_graph_first(graph); process && !err;
		process = lien_graph_next(process)) {
		if (process == allocation->owner)
			continue;
		LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
			if (mapping->process == process)
				break;
		if (mapping || handle_in(allocation, process))
			err = tell_holder(dump, allocation, process);
	}
	return err;
}

static int tell_allocation(
	struct dump *dump, struct lien_graph *graph, const struct lien_allocation *allocation)
{
	struct lien_event event;
	int err;

	if (allocation->origin == LIEN_ORIGIN_ALLOC) {
		event = event_of(allocation->owner, LIEN_CALL_CU_MEM_ALLOC);
		event.outer = allocation->outer;
		event.caller = allocation->caller;
		event.alloc.va = LIST_FIRST(&allocation->mappings)->va;
		event.alloc.bytes = allocation->bytes;
		return tell(dump, &event, LIEN_EVENT_SIZE(alloc));
	}
	if (allocation->owner) {
		event = event_of(allocation->owner, LIEN_CALL_CU_MEM_CREATE);
		event.outer = allocation->outer;
		event.caller = allocation->caller;
		event.create.handle = handle_value(allocation, allocation->owner);
		event.create.bytes = allocation->bytes;
		event.create.prop = allocation->prop;
		err = tell(dump, &event, LIEN_EVENT_SIZE(create));
		if (err)
			return err;
	}
	return tell_holders(dump, graph, allocation);
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
		if (lien_allocation_held(allocation))
			err = tell_allocation(&dump, graph, allocation);
	for (process = lien_graph_first(graph); process && !err;
		process = lien_graph_next(process)) {
		err = tell_comms(&dump, process);
		if (!err)
			err = tell_under_way(&dump, process);
	}
	return err;
}
