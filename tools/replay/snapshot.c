// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/graph/graph.h"
#include "tools/replay/build.h"
#include "tools/replay/snapshot.h"

/* A handle that was released, or offloaded: the driver gives out no such value. */
#define MADE_UP (0x4c49ull << 48) /* | id of the allocation */

struct calls {
	struct lien_script *script;
	int err; /* the first one */
};

/* A process's lowest own and imported handles of an allocation. 0: none. */
struct names {
	uint64_t own, imported;
};

static struct lien_event event_of(uint32_t pid, uint64_t start, unsigned type)
{
	struct lien_event ev;

	memset(&ev, 0, sizeof(ev));
	ev.size = sizeof(ev);
	ev.type = ev.outer = type;
	ev.pid = ev.tid = pid;
	ev.start = start;
	return ev;
}

static struct lien_event call_of(const struct lien_process *process, unsigned type)
{
	return event_of(process->pid, process->start, type);
}

static void add(struct calls *calls, const struct lien_event *ev)
{
	if (!calls->err)
		calls->err = lien_script_take(calls->script, ev);
}

/* --- processes -------------------------------------------------------------------------------- */

static void add_comm(
	struct calls *calls, const struct lien_process *process, const struct lien_comm *comm)
{
	struct lien_event ev =
		call_of(process, comm->made_by ? comm->made_by : LIEN_CALL_NCCL_INIT_RANK);

	ev.comm.comm = comm->address;
	ev.comm.rank = comm->rank;
	ev.comm.nranks = comm->nranks;
	ev.comm.device = comm->device;
	memcpy(ev.comm.id, comm->id, sizeof(ev.comm.id));
	add(calls, &ev);
}

static void add_process(struct calls *calls, struct lien_process *process)
{
	struct lien_event ev = call_of(process, LIEN_EVENT_PROCESS);
	struct lien_reservation *reservation;
	struct lien_comm *comm;

	memcpy(ev.process.comm, process->command, sizeof(ev.process.comm));
	ev.outer = 0;
	add(calls, &ev);
	SPLAY_FOREACH (reservation, lien_reservation_tree, &process->reservations) {
		ev = call_of(process, LIEN_CALL_CU_MEM_RESERVE);
		ev.reserve.va = reservation->va;
		ev.reserve.bytes = reservation->bytes;
		add(calls, &ev);
	}
	RB_FOREACH (comm, lien_comm_number_tree, &process->comm_numbers)
		add_comm(calls, process, comm);
	ev = call_of(process, LIEN_CALL_CU_INIT);
	if (!RB_EMPTY(&process->contexts))
		add(calls, &ev);
}

static void add_registrations(struct calls *calls, struct lien_process *process)
{
	struct lien_registration *registration;
	struct lien_comm *comm;
	struct lien_event ev;

	RB_FOREACH (comm, lien_comm_number_tree, &process->comm_numbers)
		RB_FOREACH (registration, lien_registration_tree, &comm->registrations) {
			ev = call_of(process, registration->window ? LIEN_CALL_NCCL_WINDOW_REGISTER
								   : LIEN_CALL_NCCL_REGISTER);
			ev.reg.comm = comm->address;
			ev.reg.va = registration->va;
			ev.reg.bytes = registration->bytes;
			ev.reg.handle = registration->handle;
			add(calls, &ev);
		}
}

/* --- memory ----------------------------------------------------------------------------------- */

static struct names names_of(const struct lien_holding *holding)
{
	struct names names = {0};
	const struct lien_handle *handle;
	uint64_t *name;

	if (holding)
		TAILQ_FOREACH (handle, &holding->handles, of_holding) {
			name = handle->imported ? &names.imported : &names.own;
			if (!*name || handle->value < *name)
				*name = handle->value;
		}
	return names;
}

static uint64_t or_made_up(uint64_t name, const struct lien_allocation *allocation)
{
	return name ? name : MADE_UP | allocation->id;
}

/* Tells which library asked for the memory, as far as a replay distinguishes them. */
static void ask(struct lien_event *ev, const struct lien_allocation *allocation)
{
	if (!strcmp(lien_allocation_library(allocation), "nccl"))
		ev->outer = LIEN_CALL_NCCL_INIT_RANK;
}

/* Returns an export by which the application may have imported it. */
static const struct lien_share *share_of(const struct lien_allocation *allocation)
{
	const struct lien_share *share, *best = NULL;

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (!share->control && (!best || (share->imports && !best->imports) ||
					       (!share->imports == !best->imports &&
						       share->number < best->number)))
			best = share;
	return best;
}

static void set_share(struct lien_event *ev, const struct lien_share *share)
{
	ev->share.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	ev->share.fd = -1;
	if (share && share->has_key)
		ev->share.handle_type = CU_MEM_HANDLE_TYPE_FABRIC;
	else if (share)
		ev->share.share = share->number;
}

static void add_exports(
	struct calls *calls, const struct lien_allocation *allocation, uint64_t handle)
{
	const struct lien_share *share;
	struct lien_event ev;

	LIST_FOREACH (share, &allocation->shares, of_allocation) {
		if (share->control)
			continue; /* a replay makes the application's calls */
		ev = event_of(
			allocation->owner_pid, allocation->owner_start, LIEN_CALL_CU_MEM_EXPORT);
		ev.share.handle = handle;
		set_share(&ev, share);
		add(calls, &ev);
	}
}

/* Adds the owner's calls, whether it is still there or not. */
static void add_making(struct calls *calls, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding = lien_allocation_holding(allocation, allocation->owner);
	struct lien_event ev =
		event_of(allocation->owner_pid, allocation->owner_start, LIEN_CALL_CU_MEM_CREATE);

	ev.create.handle = or_made_up(names_of(holding).own, allocation);
	ev.create.bytes = allocation->bytes;
	ev.create.prop = allocation->prop;
	ask(&ev, allocation);
	if (allocation->origin == LIEN_ORIGIN_CREATE)
		add(calls, &ev);
	add_exports(calls, allocation, ev.create.handle);
}

static void add_import(struct calls *calls, const struct lien_holding *holding, uint64_t handle)
{
	struct lien_event ev = call_of(holding->process, LIEN_CALL_CU_MEM_IMPORT);

	ev.share.handle = handle;
	set_share(&ev, share_of(holding->allocation));
	ask(&ev, holding->allocation);
	add(calls, &ev);
}

static void add_imports(
	struct calls *calls, const struct lien_holding *holding, const struct names *names)
{
	const struct lien_handle *handle;

	TAILQ_FOREACH (handle, &holding->handles, of_holding)
		if (handle->imported)
			add_import(calls, holding, handle->value);
	if (!names->imported && holding->process != holding->allocation->owner)
		add_import(calls, holding, or_made_up(0, holding->allocation));
}

static void add_mapping(
	struct calls *calls, const struct lien_mapping *mapping, const struct names *names)
{
	const struct lien_access_set *access = lien_mapping_access(mapping);
	struct lien_event ev = call_of(mapping->holding->process, LIEN_CALL_CU_MEM_MAP);
	unsigned n;

	ev.map.va = mapping->va;
	ev.map.bytes = mapping->bytes;
	ev.map.handle = or_made_up(
		mapping->imported ? names->imported : names->own, mapping->holding->allocation);
	add(calls, &ev);
	if (!access || !access->count)
		return;
	ev = call_of(mapping->holding->process, LIEN_CALL_CU_MEM_SET_ACCESS);
	ev.access.va = mapping->va;
	ev.access.bytes = mapping->bytes;
	for (n = 0; n < access->count && n < LIEN_ACCESS_MAX; n++)
		ev.access.access[n] = access->access[n];
	ev.access.count = n;
	add(calls, &ev);
}

/* Adds the references after the first, which came with the create or import. */
static void add_references(struct calls *calls, const struct lien_holding *holding,
	const struct names *names, uint64_t va)
{
	struct lien_event ev = call_of(holding->process, LIEN_CALL_CU_MEM_RETAIN);
	const struct lien_handle *handle;
	uint32_t n;

	TAILQ_FOREACH (handle, &holding->handles, of_holding)
		for (n = handle->imported || handle->value == names->own;
			n < handle->references && !calls->err; n++) {
			ev.retain.handle = handle->value;
			ev.retain.va = va;
			add(calls, &ev);
		}
}

static void add_holding(struct calls *calls, const struct lien_holding *holding)
{
	const struct names names = names_of(holding);
	const struct lien_mapping *mapping;
	uint64_t va = 0;

	add_imports(calls, holding, &names);
	LIST_FOREACH (mapping, &holding->mappings, of_holding) {
		add_mapping(calls, mapping, &names);
		va = mapping->va;
	}
	add_references(calls, holding, &names, va);
}

static void add_release(struct calls *calls, uint32_t pid, uint64_t start, uint64_t handle)
{
	struct lien_event ev = event_of(pid, start, LIEN_CALL_CU_MEM_RELEASE);

	ev.release.handle = handle;
	add(calls, &ev);
}

static bool offloaded(const struct lien_holding *holding)
{
	return holding->live < holding->mapped;
}

/* Releases what the application has released. What lien took away stays. */
static void add_releases(struct calls *calls, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding = lien_allocation_holding(allocation, allocation->owner);
	const struct lien_process *process;
	const struct lien_handle *handle;
	struct names names = names_of(holding);

	if (allocation->owner_pid && !names.own && !(holding && offloaded(holding)))
		add_release(calls, allocation->owner_pid, allocation->owner_start,
			or_made_up(0, allocation));
	LIST_FOREACH (holding, &allocation->holdings, of_allocation) {
		process = holding->process;
		names = names_of(holding);
		if (offloaded(holding))
			continue;
		if (!names.imported && process != allocation->owner)
			add_release(calls, process->pid, process->start, or_made_up(0, allocation));
		TAILQ_FOREACH (handle, &holding->handles, of_holding)
			if (!handle->references)
				add_release(calls, process->pid, process->start, handle->value);
	}
}

/* A replay makes cuMemAlloc's memory alone of what has an address and no handle. */
static void add_at_address(struct calls *calls, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding = lien_allocation_holding(allocation, allocation->owner);
	const struct lien_mapping *mapping = holding ? LIST_FIRST(&holding->mappings) : NULL;
	struct lien_event ev;

	if (!mapping || mapping->imported)
		return;
	ev = call_of(allocation->owner, allocation->origin == LIEN_ORIGIN_ALLOC
						? LIEN_CALL_CU_MEM_ALLOC
						: LIEN_CALL_CU_HOST_ALLOC);
	ev.alloc.va = mapping->va;
	ev.alloc.bytes = allocation->bytes;
	ev.alloc.device = allocation->prop.location_id;
	ask(&ev, allocation);
	add(calls, &ev);
}

static void add_allocation(struct calls *calls, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;

	if (lien_allocation_by_address(allocation)) {
		add_at_address(calls, allocation);
		return;
	}
	if (allocation->owner_pid)
		add_making(calls, allocation);
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		add_holding(calls, holding);
	add_releases(calls, allocation);
}

static void add_death(struct calls *calls, const struct lien_allocation *allocation)
{
	const struct lien_event ev =
		event_of(allocation->owner_pid, allocation->owner_start, LIEN_EVENT_EXIT);

	if (allocation->owner_pid && !allocation->owner)
		add(calls, &ev);
}

/* --- all -------------------------------------------------------------------------------------- */

static int add_all(struct lien_script *script, struct lien_graph *graph)
{
	struct calls calls = {.script = script};
	struct lien_allocation *allocation;
	struct lien_process *process;

	LIEN_FOREACH_PROCESS (process, graph)
		add_process(&calls, process);
	LIEN_FOREACH_ALLOCATION (allocation, graph)
		add_allocation(&calls, allocation);
	LIEN_FOREACH_ALLOCATION (allocation, graph)
		add_death(&calls, allocation);
	LIEN_FOREACH_PROCESS (process, graph)
		add_registrations(&calls, process);
	return calls.err;
}

int lien_replay_snapshot_add(struct lien_script *script, const struct lien_event *ev)
{
	int err = lien_graph_apply(script->graph, ev);

	script->snapshot = true;
	return err || ev->type != LIEN_STATE_end ? err : lien_replay_snapshot_end(script);
}

int lien_replay_snapshot_end(struct lien_script *script)
{
	if (!script->snapshot)
		return 0;
	script->snapshot = false;
	return add_all(script, script->graph);
}
