// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/pids.h"
#include "agent/plan.h"

struct planner {
	struct lien_graph *graph;
	const struct lien_selection *selection;
	struct lien_plan *plan;
	char *error;
	size_t error_size;
	/* Who may have imported what was there before the agent; NULL: nobody. */
	const struct lien_process *late;    /* ran before it was watched, and was not read */
	const struct lien_process *unknown; /* imported something of an owner that is not known, */
	uint32_t round;			    /* which was compared in this round last */
};

__attribute__((format(printf, 3, 4))) static int refuse(
	struct planner *planner, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(planner->error, planner->error_size, format, args);
	va_end(args);
	return code;
}

const char *lien_plan_unreachable(const struct lien_process *process)
{
	if (process->incomplete & LIEN_INCOMPLETE_LATE)
		return "the process may have used CUDA before it was watched: `lien attach` reads "
		       "what it has";
	if (process->incomplete & LIEN_INCOMPLETE_LOST)
		return "events of the process were lost";
	if (process->incomplete & LIEN_INCOMPLETE_SHARE &&
		!(process->incomplete & LIEN_INCOMPLETE_ADOPTED))
		return "the process imported memory whose export was not seen";
	if (process->incomplete & LIEN_INCOMPLETE_CARDS)
		return "the process may have registered memory with a network card before that was "
		       "watched";
	if (process->incomplete & (LIEN_INCOMPLETE_ODD | LIEN_INCOMPLETE_ARGS))
		return "the process did something lien could not follow";
	if (process->presence == LIEN_CONTROL_NONE && process->detached)
		return "the process was detached by `lien detach`: `lien attach` gives it the "
		       "library again";
	if (process->presence == LIEN_CONTROL_NONE)
		return "the process has no control library: `lien attach` gives it one";
	if (process->presence == LIEN_CONTROL_OTHER)
		return "the process has a control library of another version of lien: use the "
		       "agent "
		       "of that version";
	if (process->presence == LIEN_CONTROL_TAKEN)
		return "the process takes orders from another agent on this node: stop that one";
	if (process->presence == LIEN_CONTROL_LOADED)
		return "the process has made no CUDA call since the agent started, so its control "
		       "thread does not run yet";
	return NULL;
}

/* One handle at most per process, or names and references cannot be told apart afterwards. */
static bool handles_plain(const struct lien_allocation *allocation)
{
	const struct lien_handle *handle, *other;

	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		for (other = LIST_NEXT(handle, of_allocation); other;
			other = LIST_NEXT(other, of_allocation))
			if (other->process == handle->process)
				return false;
	return true;
}

static bool mapped_in(const struct lien_allocation *allocation, const struct lien_process *process)
{
	const struct lien_mapping *mapping;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == process)
			return true;
	return false;
}

/* A process with a handle that it does not map; NULL: there is none. */
static const struct lien_process *handle_unmapped(const struct lien_allocation *allocation)
{
	const struct lien_handle *handle;

	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		if (!mapped_in(allocation, handle->process))
			return handle->process;
	return NULL;
}

static bool copyable(const struct lien_mapping *mapping)
{
	unsigned i;

	for (i = 0; mapping->access && i < mapping->access->count; i++)
		if (mapping->access->access[i].location_type == CU_MEM_LOCATION_TYPE_DEVICE &&
			mapping->access->access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return true;
	return false;
}

/* The owner's mapping through which all bytes can be copied. */
static const struct lien_mapping *whole_mapping(const struct lien_allocation *allocation)
{
	const struct lien_mapping *mapping;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == allocation->owner && mapping->bytes == allocation->bytes &&
			copyable(mapping))
			return mapping;
	return NULL;
}

static bool in_window(const struct lien_mapping *mapping)
{
	const struct lien_registration *registration;
	struct lien_comm *comm;

	RB_FOREACH (comm, lien_comm_tree, &mapping->process->comms)
		LIST_FOREACH (registration, &comm->registrations, next)
			if (registration->window &&
				lien_registration_touches(registration, mapping))
				return true;
	return false;
}

static bool on_card(const struct lien_mapping *mapping)
{
	const struct lien_registration *registration;

	LIST_FOREACH (registration, &mapping->process->cards, next)
		if (lien_registration_touches(registration, mapping))
			return true;
	return false;
}

static bool too_many_references(const struct lien_allocation *allocation)
{
	const struct lien_handle *handle;

	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		if (handle->references > LIEN_WIRE_REFERENCES_MAX)
			return true;
	return false;
}

/* NULL, or why it is not known who has the memory that was exported. */
static const char *exports_unknown(const struct lien_allocation *allocation)
{
	const struct lien_share *share;
	unsigned followed = 0;

	LIST_FOREACH (share, &allocation->shares, of_allocation) {
		if (share->control)
			continue;
		if (!share->imports)
			return "exported, and not imported by anybody yet";
		followed++;
	}
	return followed < allocation->exports
		       ? "exported by a handle that cannot be followed (fabric)"
		       : NULL;
}

static bool partly_away(const struct lien_allocation *allocation)
{
	const struct lien_mapping *mapping;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->parked)
			return !lien_allocation_offloaded(allocation);
	return false;
}

/* The driver chooses the address of these. */
static const char *unmovable_origin(const struct lien_allocation *allocation)
{
	const struct lien_share *share = LIST_FIRST(&allocation->shares);

	if (allocation->origin == LIEN_ORIGIN_MANAGED)
		return "managed memory: the driver itself moves it, and cannot put it back at the "
		       "same address";
	if (allocation->origin == LIEN_ORIGIN_POOL)
		return "memory of a stream-ordered pool cannot be put back at the same address";
	if (share && share->call == LIEN_CALL_CU_IPC_GET)
		return "cudaMalloc memory shared by legacy IPC cannot be put back at the same "
		       "address";
	return "cudaMalloc memory cannot be put back at the same address";
}

static bool by_fabric(const struct lien_allocation *allocation)
{
	const struct lien_share *share;

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (share->number & LIEN_SHARE_BY_KEY)
			return true;
	return false;
}

/* Windows that were registered before the agent are not known as such. */
static bool may_be_window(const struct lien_allocation *allocation)
{
	const struct lien_mapping *mapping;
	unsigned n = 0;

	if (!allocation->found || !(allocation->owner->incomplete & LIEN_INCOMPLETE_NCCL))
		return false;
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		n += mapping->process == allocation->owner;
	return n > 1;
}

/* *holder: the process because of which it is, if another one than the owner. */
static const char *unmovable(const struct lien_allocation *allocation, uint32_t *holder)
{
	const struct lien_process *process;
	const struct lien_mapping *mapping;
	const char *reason;

	*holder = 0;
	if (!lien_allocation_on_device(allocation))
		return allocation->origin == LIEN_ORIGIN_MULTICAST ? "a multicast object"
								   : "host memory";
	if (lien_allocation_by_address(allocation))
		return unmovable_origin(allocation);
	if (!allocation->owner)
		return allocation->owner_pid ? "its owner has exited" : "its owner is not known";
	if (allocation->found && !allocation->adopted)
		return "found by re-reading: how many references are held to it is not known "
		       "(`lien attach` counts them)";
	if (allocation->found && allocation->owner->incomplete & LIEN_INCOMPLETE_MULTICAST)
		return "made before it was watched, and may be bound to a multicast object "
		       "(NVLS), which would keep the old memory: start the job after the agent, "
		       "or with NCCL_NVLS_ENABLE=0";
	if (allocation->part)
		return "only a part of it was mapped when it was adopted";
	if (allocation->open)
		return "a descriptor that exports it was open when it was adopted, and would keep "
		       "the old memory: once it is closed, `lien attach` looks again";
	if (may_be_window(allocation))
		return "mapped twice before it was watched, as NCCL maps windows, of which it "
		       "keeps "
		       "the handle";
	if (allocation->found && allocation->prop.handle_types & CU_MEM_HANDLE_TYPE_FABRIC)
		return "may have been exported by a fabric handle before it was watched";
	if (!handles_plain(allocation))
		return "imported by its own process";
	process = handle_unmapped(allocation);
	if (process) {
		*holder = process->pid;
		return "a process holds a handle to it without mapping it";
	}
	if (too_many_references(allocation))
		return "more references are held to it than can be restored";
	if (!whole_mapping(allocation))
		return "no mapping through which all of it can be copied";
	if (!LIST_EMPTY(&allocation->bindings))
		return "bound to a multicast object, which keeps the old memory";
	if (allocation->dmabufs)
		return "handed out as a dma-buf, which keeps the old memory";
	if (by_fabric(allocation))
		return "exported by a fabric handle, which cannot be made again";
	reason = exports_unknown(allocation);
	if (reason)
		return reason;
	if (partly_away(allocation))
		return "an earlier offload of it was not put back whole: `lien restore` first";
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation) {
		*holder = mapping->process->pid;
		if (on_card(mapping))
			return "registered with a network card (RDMA), which keeps the old memory";
		if (in_window(mapping))
			return "registered as an NCCL window, which keeps its handle";
		if (mapping->access && mapping->access->count > LIEN_WIRE_PLACES)
			return "access for more places than can be restored";
	}
	*holder = 0;
	return NULL;
}

const char *lien_plan_unmovable(const struct lien_allocation *allocation)
{
	uint32_t holder;

	return unmovable(allocation, &holder);
}

const char *lien_plan_open(const struct lien_allocation *allocation,
	const struct lien_probe_open_file *open, unsigned count, uint32_t *holder)
{
	const struct lien_share *share;
	unsigned i;

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		for (i = 0; i < count; i++)
			if (open[i].share == share->number) {
				*holder = open[i].pid;
				return "an exported descriptor of it is still open, which keeps "
				       "the old memory: close it once it is imported";
			}
	return NULL;
}

/* A process that may have imported it in a call that was lost; NULL: there is none. */
static const struct lien_process *may_import(
	struct lien_graph *graph, const struct lien_allocation *allocation)
{
	struct lien_process *process;

	if (allocation->exports || (allocation->found && allocation->prop.handle_types))
		for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
			if (process != allocation->owner && process->cuda &&
				process->incomplete & LIEN_INCOMPLETE_LOST &&
				!mapped_in(allocation, process))
				return process;
	return NULL;
}

uint64_t lien_plan_address(const struct lien_allocation *allocation)
{
	uint64_t own = UINT64_MAX, any = UINT64_MAX;
	const struct lien_mapping *mapping;

	/* The lowest: lists have no order that lasts. */
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation) {
		if (mapping->process == allocation->owner && mapping->va < own)
			own = mapping->va;
		if (mapping->va < any)
			any = mapping->va;
	}
	if (own != UINT64_MAX)
		return own;
	return any != UINT64_MAX ? any : 0;
}

static bool pid_selected(const struct lien_selection *selection, uint32_t pid)
{
	return !selection->pids_count ||
	       lien_pids_have(selection->pids, selection->pids_count, pid);
}

static bool mapped_at(const struct lien_allocation *allocation, uint64_t address)
{
	const struct lien_mapping *mapping;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == allocation->owner && address - mapping->va < mapping->bytes)
			return true;
	return false;
}

static bool meant(const struct lien_discard *discard, const struct lien_allocation *allocation)
{
	if (discard->owner)
		return !strcmp(discard->owner, lien_allocation_library(allocation));
	return allocation->owner && allocation->owner->pid == discard->pid &&
	       mapped_at(allocation, discard->address);
}

static bool worthless(
	const struct lien_selection *selection, const struct lien_allocation *allocation)
{
	unsigned i;

	for (i = 0; i < selection->discard_count; i++)
		if (meant(&selection->discard[i], allocation))
			return true;
	return false;
}

static bool selected(
	const struct lien_selection *selection, const struct lien_allocation *allocation)
{
	if (!lien_allocation_held(allocation) || !lien_allocation_on_device(allocation) ||
		lien_allocation_offloaded(allocation) ||
		!lien_sees_owned(&selection->viewer, allocation))
		return false;
	if (selection->owner && strcmp(selection->owner, lien_allocation_library(allocation)) &&
		!worthless(selection, allocation))
		return false;
	return pid_selected(selection, allocation->owner_pid);
}

static int leave(struct planner *planner, const struct lien_allocation *allocation,
	const char *reason, uint32_t holder)
{
	struct lien_plan *plan = planner->plan;
	char by[40] = "";
	struct lien_left *left;
	unsigned i;

	if (holder == allocation->owner_pid)
		holder = 0;
	if (holder)
		snprintf(by, sizeof(by), " (process %u)", holder);
	if (planner->selection->strict)
		return refuse(planner, -EBUSY,
			"--strict: %" PRIu64 " bytes of process %u at 0x%" PRIx64
			" would be left behind: %s%s: without --strict all else is moved",
			allocation->bytes, allocation->owner_pid, lien_plan_address(allocation),
			reason, by);
	for (i = 0; i < plan->left_count; i++)
		if (plan->left[i].pid == allocation->owner_pid && plan->left[i].holder == holder &&
			!strcmp(plan->left[i].reason, reason))
			break;
	if (i == plan->left_count) {
		left = realloc(plan->left, (i + 1) * sizeof(*left));
		if (!left)
			return -ENOMEM;
		plan->left = left;
		left[i] = (struct lien_left){.pid = allocation->owner_pid,
			.holder = holder,
			.reason = reason,
			.address = lien_plan_address(allocation)};
		plan->left_count++;
	}
	plan->left[i].allocations++;
	plan->left[i].bytes += allocation->bytes;
	return 0;
}

/* Everybody else who holds the allocation has to act as well. */
static int check_holders(struct planner *planner, const struct lien_allocation *allocation)
{
	const struct lien_selection *selection = planner->selection;
	const struct lien_mapping *mapping;
	const char *reason;
	char what[160];

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation) {
		const struct lien_process *holder = mapping->process;

		snprintf(what, sizeof(what),
			"%" PRIu64 " bytes of process %u at 0x%" PRIx64
			" are mapped by process %u at 0x%" PRIx64,
			allocation->bytes, allocation->owner_pid, lien_plan_address(allocation),
			holder->pid, mapping->va);
		if (!lien_sees(&selection->viewer, holder))
			return refuse(planner, -EPERM,
				"%" PRIu64 " bytes of process %u at 0x%" PRIx64
				" are mapped by process %u, which is another user's: only root can "
				"move what is shared with it",
				allocation->bytes, allocation->owner_pid,
				lien_plan_address(allocation), holder->pid);
		reason = holder == allocation->owner ? NULL : lien_plan_unreachable(holder);
		if (reason)
			return refuse(
				planner, -EBUSY, "%s, which cannot take part: %s", what, reason);
		if (!pid_selected(selection, holder->pid) && !selection->with_closure)
			return refuse(planner, -EBUSY,
				"%s, which is not selected: add --pid %u or --with-closure", what,
				holder->pid);
		if (!LIST_EMPTY(&holder->captures))
			return refuse(planner, -EBUSY,
				"process %u is capturing a CUDA graph: try again when it is done",
				holder->pid);
	}
	return 0;
}

static struct lien_plan_process *plan_process(struct lien_plan *plan, uint32_t pid)
{
	struct lien_plan_process *processes;
	unsigned i;

	for (i = 0; i < plan->processes_count; i++)
		if (plan->processes[i].pid == pid)
			return &plan->processes[i];
	processes = realloc(plan->processes, (i + 1) * sizeof(*processes));
	if (!processes)
		return NULL;
	plan->processes = processes;
	plan->processes_count++;
	processes[i] = (struct lien_plan_process){.pid = pid};
	return &processes[i];
}

static uint32_t references(
	const struct lien_allocation *allocation, const struct lien_process *process)
{
	const struct lien_handle *handle;

	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		if (handle->process == process)
			return handle->references;
	return 0;
}

static void describe(struct lien_wire_item *item, const struct lien_allocation *allocation,
	const struct lien_mapping *mapping)
{
	const struct lien_prop *prop = &allocation->prop;
	unsigned i;

	memset(item, 0, sizeof(*item));
	item->token = allocation->id;
	item->va = mapping->va;
	item->bytes = mapping->bytes;
	item->allocation_bytes = allocation->bytes;
	item->references = references(allocation, mapping->process);
	item->prop_type = prop->type;
	item->handle_types = prop->handle_types;
	item->location_type = prop->location_type;
	item->location_id = prop->location_id;
	item->compression = prop->compression;
	item->rdma = prop->rdma;
	item->usage = prop->usage;
	for (i = 0; mapping->access && i < mapping->access->count; i++) {
		item->place[i].location_type = mapping->access->access[i].location_type;
		item->place[i].location_id = mapping->access->access[i].location_id;
		item->place[i].flags = mapping->access->access[i].flags;
	}
	item->places = i;
	item->owner_pid = allocation->owner_pid;
	item->owner_start = allocation->owner_start;
}

static bool shared(const struct lien_allocation *allocation)
{
	const struct lien_mapping *mapping;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process != allocation->owner)
			return true;
	return false;
}

/* Adds the mappings of an allocation in one process, `first` before the others. */
static int add_items(struct planner *planner, const struct lien_allocation *allocation,
	const struct lien_process *process, const struct lien_mapping *first)
{
	struct lien_plan_process *part = plan_process(planner->plan, process->pid);
	const bool discarded = worthless(planner->selection, allocation);
	const struct lien_mapping *mapping;
	unsigned n = 0, i;

	if (!part)
		return -ENOMEM;
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		n += mapping->process == process;
	if (part->items_count + n > LIEN_WIRE_ITEMS_MAX)
		return refuse(planner, -EBUSY,
			"process %u has more than %u mappings to move: select less of it "
			"(--owner)",
			process->pid, LIEN_WIRE_ITEMS_MAX);
	if (part->items_count + n > part->items_room) {
		unsigned room = 2 * part->items_room + n;
		struct lien_wire_item *items = realloc(part->items, room * sizeof(*items));

		if (!items)
			return -ENOMEM;
		part->items = items;
		part->items_room = room;
	}
	describe(&part->items[part->items_count], allocation, first);
	i = 1;
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == process && mapping != first)
			describe(&part->items[part->items_count + i++], allocation, mapping);
	for (i = 0; i < n; i++) {
		struct lien_wire_item *item = &part->items[part->items_count++];

		item->index = i;
		item->mappings = n;
		item->flags = process != allocation->owner ? LIEN_WIRE_IMPORTED
			      : shared(allocation)	   ? LIEN_WIRE_OWNED | LIEN_WIRE_SHARED
							   : LIEN_WIRE_OWNED;
		if (process == allocation->owner && discarded)
			item->flags |= LIEN_WIRE_WORTHLESS;
	}
	if (process == allocation->owner && discarded) {
		part->allocations++;
		part->discarded += allocation->bytes;
		planner->plan->discarded += allocation->bytes;
	} else if (process == allocation->owner) {
		part->allocations++;
		part->bytes += allocation->bytes;
		planner->plan->bytes += allocation->bytes;
	} else {
		part->imports++;
	}
	return 0;
}

static int add_allocation(struct planner *planner, const struct lien_allocation *allocation)
{
	const struct lien_mapping *mapping, *earlier;
	int err;

	err = add_items(planner, allocation, allocation->owner, whole_mapping(allocation));
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation) {
		if (err)
			break;
		if (mapping->process == allocation->owner)
			continue;
		LIST_FOREACH (earlier, &allocation->mappings, of_allocation)
			if (earlier == mapping || earlier->process == mapping->process)
				break;
		if (earlier == mapping)
			err = add_items(planner, allocation, mapping->process, mapping);
	}
	return err;
}

/* Who has imported this, of an owner that is not known; NULL: nobody, or it is no memory that has
 * handles (legacy IPC, pools). Also a handle without a mapping will be mapped. */
static const struct lien_process *importer_of(const struct lien_allocation *allocation)
{
	const struct lien_mapping *mapping = LIST_FIRST(&allocation->mappings);
	const struct lien_handle *handle = LIST_FIRST(&allocation->handles);

	if (allocation->origin != LIEN_ORIGIN_IMPORT)
		return NULL;
	if (mapping)
		return mapping->opens ? NULL : mapping->process;
	return handle ? handle->process : NULL;
}

/* Those who may have imported memory without being seen. */
static void look_for_importers(struct planner *planner)
{
	const struct lien_allocation *allocation;
	const struct lien_process *importer;
	struct lien_process *process;

	for (process = lien_graph_first(planner->graph); process;
		process = lien_graph_next(process))
		if (process->cuda && process->incomplete & LIEN_INCOMPLETE_LATE)
			planner->late = process;
	for (allocation = lien_graph_first_allocation(planner->graph); allocation;
		allocation = lien_graph_next_allocation((struct lien_allocation *)allocation)) {
		importer = importer_of(allocation);
		if (!importer || (planner->unknown && allocation->round >= planner->round))
			continue;
		planner->unknown = importer;
		planner->round = allocation->round;
	}
}

/* NULL, or that others may have what was handed out before the agent was there. */
static const char *imported_unseen(
	const struct planner *planner, const struct lien_allocation *allocation, uint32_t *holder)
{
	if (!allocation->found || !allocation->prop.handle_types)
		return NULL;
	if (planner->late) {
		*holder = planner->late->pid;
		return "it can be exported, and a process may have imported it before that was "
		       "watched: `lien attach` reads what that one has";
	}
	if (!planner->unknown || (allocation->round && planner->round >= allocation->round))
		return NULL;
	*holder = planner->unknown->pid;
	return "it can be exported, and a process has imported memory of an owner that is not "
	       "known: `lien attach` finds out";
}

/* NULL, or why it stays where it is. */
static const char *reason_to_leave(
	struct planner *planner, const struct lien_allocation *allocation, uint32_t *holder)
{
	const struct lien_selection *selection = planner->selection;
	const char *reason = unmovable(allocation, holder);
	const struct lien_process *process;

	if (!reason)
		reason = lien_plan_open(allocation, selection->open, selection->open_count, holder);
	if (!reason)
		reason = imported_unseen(planner, allocation, holder);
	process = reason ? NULL : may_import(planner->graph, allocation);
	if (!process)
		return reason;
	*holder = process->pid;
	return "exported, and a process of which events were lost may have imported it: `lien "
	       "check --deep --repair` reads that one again";
}

/* What would be selected, and could be moved, if it were known who asked for it. */
static uint64_t nameless(struct planner *planner, const struct lien_allocation *allocation)
{
	struct lien_selection any = *planner->selection;
	uint32_t holder;

	any.owner = NULL;
	return planner->selection->owner && allocation->found && selected(&any, allocation) &&
			       !reason_to_leave(planner, allocation, &holder)
		       ? allocation->bytes
		       : 0;
}

static int consider(struct planner *planner, const struct lien_allocation *allocation)
{
	const char *reason;
	uint32_t holder;
	int err;

	if (!selected(planner->selection, allocation)) {
		planner->plan->nameless += nameless(planner, allocation);
		return 0;
	}
	reason = reason_to_leave(planner, allocation, &holder);
	if (reason)
		return leave(planner, allocation, reason, holder);
	reason = lien_plan_unreachable(allocation->owner);
	if (reason && planner->selection->pids_count)
		return refuse(planner, -EBUSY,
			"process %u cannot take part: %s (%" PRIu64 " bytes at 0x%" PRIx64 ")",
			allocation->owner_pid, reason, allocation->bytes,
			lien_plan_address(allocation));
	if (reason)
		return leave(planner, allocation, reason, 0);
	err = check_holders(planner, allocation);
	return err ? err : add_allocation(planner, allocation);
}

/* Who names an address means something that is there. */
static int check_discards(struct planner *planner)
{
	const struct lien_discard *discard;
	struct lien_allocation *allocation;
	unsigned i;

	for (i = 0; i < planner->selection->discard_count; i++) {
		discard = &planner->selection->discard[i];
		if (discard->owner)
			continue;
		allocation = lien_graph_first_allocation(planner->graph);
		while (allocation &&
			!(meant(discard, allocation) && selected(planner->selection, allocation)))
			allocation = lien_graph_next_allocation(allocation);
		if (!allocation)
			return refuse(planner, -ESRCH,
				"--discard %u:0x%" PRIx64 ": process %u has no memory of its own "
				"on a GPU there that is selected (see `lien holders`)",
				discard->pid, discard->address, discard->pid);
	}
	return 0;
}

static int by_pid(const void *a, const void *b)
{
	const struct lien_plan_process *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

int lien_plan_offload(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_plan *plan, char *error, size_t error_size)
{
	struct planner planner = {graph, selection, plan, error, error_size, NULL, NULL, 0};
	struct lien_allocation *allocation;
	struct lien_process *process;
	unsigned i;
	int err = 0;

	memset(plan, 0, sizeof(*plan));
	for (i = 0; i < selection->pids_count; i++) {
		process = lien_graph_process(graph, selection->pids[i]);
		if (!process || !lien_sees(&selection->viewer, process))
			return refuse(&planner, -ESRCH, LIEN_UNKNOWN_PROCESS, selection->pids[i]);
	}
	look_for_importers(&planner);
	err = check_discards(&planner);
	for (allocation = lien_graph_first_allocation(graph); allocation && !err;
		allocation = lien_graph_next_allocation(allocation))
		err = consider(&planner, allocation);
	if (err) {
		lien_plan_clear(plan);
		if (err == -ENOMEM)
			refuse(&planner, err, "out of memory");
		return err;
	}
	if (plan->processes_count)
		qsort(plan->processes, plan->processes_count, sizeof(plan->processes[0]), by_pid);
	return 0;
}

/* It is not known which library made memory that was found by asking the driver. */
static bool may_be_raw(const struct lien_handle *handle)
{
	return handle->references && (handle->raw || handle->allocation->found);
}

int lien_plan_raw(struct lien_process *process, struct lien_wire_raw **list, unsigned *count)
{
	struct lien_handle *handle;
	unsigned n = 0;

	SPLAY_FOREACH (handle, lien_handle_tree, &process->handles)
		n += may_be_raw(handle);
	*count = 0;
	*list = calloc(n + 1, sizeof(**list));
	if (!*list)
		return -ENOMEM;
	SPLAY_FOREACH (handle, lien_handle_tree, &process->handles)
		if (may_be_raw(handle))
			(*list)[(*count)++] = (struct lien_wire_raw){
				.handle = handle->value, .certain = handle->raw != 0};
	return 0;
}

const char *lien_plan_raw_to(struct lien_process *process, uint64_t value)
{
	struct lien_handle key = {.value = value}, *handle;

	handle = process ? SPLAY_FIND(lien_handle_tree, &process->handles, &key) : NULL;
	return handle && handle->raw_to && strcmp(handle->raw_to->text, "unknown")
		       ? handle->raw_to->text
		       : "a library";
}

void lien_plan_clear(struct lien_plan *plan)
{
	unsigned i;

	for (i = 0; i < plan->processes_count; i++)
		free(plan->processes[i].items);
	free(plan->processes);
	free(plan->left);
	memset(plan, 0, sizeof(*plan));
}

/* Adds those who hold the same offloaded memory as a process does. */
static unsigned add_partners(struct lien_process *process, uint32_t *all, unsigned count)
{
	struct lien_mapping *mapping, *other;

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		if (!mapping->parked)
			continue;
		LIST_FOREACH (other, &mapping->allocation->mappings, of_allocation)
			if (!lien_pids_have(all, count, other->process->pid))
				all[count++] = other->process->pid;
	}
	return count;
}

bool lien_plan_holds_parked(struct lien_process *process)
{
	struct lien_mapping *mapping;

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings)
		if (mapping->parked)
			return true;
	return false;
}

unsigned lien_plan_restore(
	struct lien_graph *graph, const uint32_t *pids, unsigned pids_count, uint32_t *all)
{
	struct lien_process *process;
	unsigned count = 0, i;

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		if (process->held_items ||
			(lien_plan_holds_parked(process) &&
				(!pids_count || lien_pids_have(pids, pids_count, process->pid))))
			all[count++] = process->pid;
	for (i = 0; i < count; i++)
		count = add_partners(lien_graph_process(graph, all[i]), all, count);
	return count;
}
