// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/graph/array.h"
#include "agent/graph/bytes.h"
#include "agent/graph/known.h"
#include "agent/graph/pids.h"
#include "agent/plan/plan_internal.h"

#define BOUND_STEPS 1000000 /* some 10 ms, on bindings to multicast objects */

/* A process that imported memory of an owner that is not known; one of each user. */
struct stranger {
	const struct lien_process *process;
	uint32_t round; /* the last one in which that memory was compared */
};

struct planner {
	struct lien_graph *graph;
	const struct lien_selection *selection;
	struct lien_choice choice;
	struct lien_plan *plan;
	struct lien_places processes, left; /* of the plan's arrays */
	struct lien_unknown_rows unknown_rows;
	struct lien_freeing freeing;
	unsigned processes_room, left_room;
	char *error;
	size_t error_size;
	struct stranger *strangers;
	unsigned strangers_count;
	/* Processes that may have imported in a call that was not seen, sorted by address. */
	const struct lien_process **unseen;
	bool *unseen_holds; /* parallel to them: holds the current allocation */
	unsigned unseen_count;
	unsigned bound_steps;
};

__attribute__((format(printf, 4, 5))) static int refuse(
	struct planner *planner, int code, struct lien_blame blame, const char *format, ...)
{
	va_list args;

	planner->plan->blame = blame;
	va_start(args, format);
	vsnprintf(planner->error, planner->error_size, format, args);
	va_end(args);
	return code;
}

/* Of a process that cannot take part. */
static enum lien_cause cause_of(const struct lien_process *process)
{
	const uint32_t read = LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_SHARE;

	return process->presence == LIEN_CONTROL_NONE || process->incomplete & read
		       ? LIEN_CAUSE_NO_CONTROL
		       : LIEN_CAUSE_UNABLE;
}

/* A process may have imported memory in calls that were not seen; */
#define UNSEEN (LIEN_INCOMPLETE_LOST | LIEN_INCOMPLETE_UNPROBED | LIEN_INCOMPLETE_REWRITTEN)
/* one that has only this, before the agent was there. */
#define UNREAD LIEN_INCOMPLETE_LATE

static int process_cmp(const void *a, const void *b)
{
	uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;

	return (x > y) - (x < y);
}

static int look_for_unseen(struct planner *planner)
{
	uint64_t room = lien_graph_stats(planner->graph)->processes + 1;
	struct lien_process *process;

	planner->unseen = calloc(room, sizeof(*planner->unseen));
	planner->unseen_holds = calloc(room, sizeof(*planner->unseen_holds));
	if (!planner->unseen || !planner->unseen_holds)
		return -ENOMEM;
	for (process = lien_graph_first(planner->graph); process;
		process = lien_graph_next(process))
		if (process->cuda && process->incomplete & (UNSEEN | UNREAD))
			planner->unseen[planner->unseen_count++] = process;
	qsort(planner->unseen, planner->unseen_count, sizeof(*planner->unseen), process_cmp);
	return 0;
}

/* Marks the process if it may have called unseen, and returns its index; -1: it may not. */
static int mark_unseen(struct planner *planner, const struct lien_process *process, bool holds)
{
	const struct lien_process **found = bsearch(&process, planner->unseen,
		planner->unseen_count, sizeof(*planner->unseen), process_cmp);

	if (!found)
		return -1;
	planner->unseen_holds[found - planner->unseen] = holds;
	return found - planner->unseen;
}

static void mark_holders(
	struct planner *planner, const struct lien_allocation *allocation, bool holds)
{
	const struct lien_holding *holding;

	mark_unseen(planner, allocation->owner, holds);
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (holding->mapped)
			mark_unseen(planner, holding->process, holds);
}

/* Other users' processes could keep everybody's memory where it is, by changing their own code or
 * by making more calls than are followed; but not by being older than the agent. */
static bool may_get(const struct lien_process *process, const struct lien_process *owner)
{
	return !process->uid || process->uid == owner->uid ||
	       (process->incomplete & (UNSEEN | UNREAD)) == UNREAD;
}

/* May it have been exported before the agent was there? */
static bool is_older(const struct lien_allocation *allocation)
{
	return allocation->found && allocation->prop.handle_types;
}

/* Returns a process that may have imported it in a call that was not seen; NULL: there is none. */
static const struct lien_process *may_import(
	struct planner *planner, const struct lien_allocation *allocation)
{
	const uint32_t reasons = is_older(allocation) ? UNSEEN | UNREAD : UNSEEN;
	unsigned i;

	if (!allocation->exports && !is_older(allocation))
		return NULL;
	mark_holders(planner, allocation, true);
	for (i = 0; i < planner->unseen_count; i++)
		if (!planner->unseen_holds[i] && planner->unseen[i]->incomplete & reasons &&
			may_get(planner->unseen[i], allocation->owner))
			break;
	mark_holders(planner, allocation, false);
	return i < planner->unseen_count ? planner->unseen[i] : NULL;
}

struct left_key {
	uint32_t pid, holder;
	bool other_user;
	const char *reason;
};

static bool is_left(const void *rows, unsigned row, const void *key)
{
	const struct lien_left *left = (const struct lien_left *)rows + row;
	const struct left_key *wanted = key;

	return left->pid == wanted->pid && left->holder == wanted->holder &&
	       left->other_user == wanted->other_user && !strcmp(left->reason, wanted->reason);
}

static uint64_t mix_text(const char *text)
{
	uint64_t hash = 0;

	while (*text)
		hash = lien_places_mix(hash, *text++);
	return hash;
}

/* NULL: out of memory. */
static struct lien_left *left_of(
	struct planner *planner, const struct lien_allocation *allocation, struct left_key key)
{
	struct lien_plan *plan = planner->plan;
	unsigned room = planner->left_room ? 2 * planner->left_room : 16;
	struct lien_left *grown;
	int row;

	if (plan->left_count == planner->left_room) {
		grown = realloc(plan->left, room * sizeof(*grown));
		if (!grown)
			return NULL;
		plan->left = grown;
		planner->left_room = room;
	}
	row = lien_places_find(&planner->left,
		lien_places_mix(lien_places_mix(mix_text(key.reason), key.pid), key.holder),
		is_left, plan->left, &key);
	if (row < 0)
		return NULL;
	if ((unsigned)row == plan->left_count) {
		plan->left[row] = (struct lien_left){.pid = key.pid,
			.holder = key.holder,
			.other_user = key.other_user,
			.reason = key.reason,
			.address = lien_plan_address(allocation)};
		plan->left_count++;
	}
	return &plan->left[row];
}

static int refuse_to_leave(
	struct planner *planner, const struct lien_allocation *allocation, struct left_key key)
{
	char by[40] = "";

	if (key.holder)
		snprintf(by, sizeof(by), " (process %u)", key.holder);
	return refuse(planner, -EBUSY, (struct lien_blame){LIEN_CAUSE_STRICT, key.pid, key.holder},
		"--strict: %s of process %u at 0x%" PRIx64
		" would be left behind: %s%s: without --strict all else is moved",
		lien_bytes(allocation->bytes).text, key.pid, lien_plan_address(allocation),
		key.reason, key.other_user ? " (a process of another user)" : by);
}

static int leave(struct planner *planner, const struct lien_allocation *allocation,
	const char *reason, uint32_t holder)
{
	struct left_key key = {.pid = allocation->owner_pid, .reason = reason};
	struct lien_left *left;

	if (holder && holder != allocation->owner_pid) {
		key.other_user = !lien_viewer_sees(
			&planner->selection->viewer, lien_graph_process(planner->graph, holder));
		key.holder = key.other_user ? 0 : holder;
	}
	if (planner->selection->strict)
		return refuse_to_leave(planner, allocation, key);
	left = left_of(planner, allocation, key);
	if (!left)
		return -ENOMEM;
	left->allocations++;
	left->bytes += allocation->bytes;
	return 0;
}

static const char *unreachable(const struct planner *planner, const struct lien_process *process)
{
	return planner->selection->ahead ? lien_plan_unreachable_then(process)
					 : lien_plan_unreachable(process);
}

/* Every other holder of the allocation has to take part. */
static int check_holder(struct planner *planner, const struct lien_holding *holding)
{
	const struct lien_allocation *allocation = holding->allocation;
	const struct lien_selection *selection = planner->selection;
	const struct lien_mapping *first = LIST_FIRST(&holding->mappings);
	const struct lien_process *holder = holding->process;
	bool in = selection->with_closure || lien_choice_has_pid(&planner->choice, holder->pid);
	const char *reason;
	char what[200];

	if (!lien_viewer_sees(&selection->viewer, holder))
		return refuse(planner, -EPERM,
			(struct lien_blame){LIEN_CAUSE_PERMISSION, allocation->owner_pid, 0},
			"%s of process %u at 0x%" PRIx64
			" is mapped by a process of another user (see `lien holders`): "
			"only root can move what is shared with it",
			lien_bytes(allocation->bytes).text, allocation->owner_pid,
			lien_plan_address(allocation));
	reason = holder == allocation->owner ? NULL : unreachable(planner, holder);
	if (reason || !in)
		snprintf(what, sizeof(what),
			"%s of process %u at 0x%" PRIx64 " is mapped by process %u at 0x%" PRIx64,
			lien_bytes(allocation->bytes).text, allocation->owner_pid,
			lien_plan_address(allocation), holder->pid, first ? first->va : 0);
	if (reason)
		return refuse(planner, -EBUSY,
			(struct lien_blame){cause_of(holder), allocation->owner_pid, holder->pid},
			"%s, which cannot take part: %s", what, reason);
	if (!in)
		return refuse(planner, -EBUSY,
			(struct lien_blame){
				LIEN_CAUSE_NOT_SELECTED, allocation->owner_pid, holder->pid},
			"%s, which is not selected: add --pid %u or --with-closure", what,
			holder->pid);
	if (selection->within &&
		!lien_pids_find(selection->within, selection->within_count, holder->pid))
		return refuse(planner, -EBUSY,
			(struct lien_blame){
				LIEN_CAUSE_NOT_SELECTED, allocation->owner_pid, holder->pid},
			"process %u has come to share %s of process %u meanwhile", holder->pid,
			lien_bytes(allocation->bytes).text, allocation->owner_pid);
	if (!RB_EMPTY(&holder->captures))
		return refuse(planner, -EBUSY,
			(struct lien_blame){LIEN_CAUSE_CAPTURING, holder->pid, 0},
			"process %u is capturing a CUDA graph: try again when it is done",
			holder->pid);
	return 0;
}

static bool is_process(const void *rows, unsigned row, const void *key)
{
	const struct lien_plan_process *process = (const struct lien_plan_process *)rows + row;

	return process->pid == *(const uint32_t *)key;
}

/* NULL: out of memory. */
static struct lien_plan_process *plan_process(struct planner *planner, uint32_t pid)
{
	unsigned room = planner->processes_room ? 2 * planner->processes_room : 16;
	struct lien_plan *plan = planner->plan;
	struct lien_plan_process *grown;
	int row;

	if (plan->processes_count == planner->processes_room) {
		grown = realloc(plan->processes, room * sizeof(*grown));
		if (!grown)
			return NULL;
		plan->processes = grown;
		planner->processes_room = room;
	}
	row = lien_places_find(
		&planner->processes, lien_places_mix(0, pid), is_process, plan->processes, &pid);
	if (row < 0)
		return NULL;
	if ((unsigned)row == plan->processes_count)
		plan->processes[plan->processes_count++] = (struct lien_plan_process){.pid = pid};
	return &plan->processes[row];
}

/* mapping NULL: one that the control library is to make. */
static void describe(struct lien_wire_item *item, const struct lien_allocation *allocation,
	const struct lien_mapping *mapping)
{
	const struct lien_access_set *set = mapping ? lien_mapping_access(mapping) : NULL;
	const struct lien_comm *comm = lien_allocation_comm(allocation);
	const struct lien_prop *prop = &allocation->prop;
	unsigned i;

	memset(item, 0, sizeof(*item));
	item->token = allocation->id;
	item->va = mapping ? mapping->va : 0;
	item->bytes = mapping ? mapping->bytes : allocation->bytes;
	item->allocation_bytes = allocation->bytes;
	item->prop_type = prop->type;
	item->handle_types = prop->handle_types;
	item->location_type = prop->location_type;
	item->location_id = prop->location_id;
	item->compression = prop->compression;
	item->rdma = prop->rdma;
	item->usage = prop->usage;
	for (i = 0; set && i < set->count; i++) {
		item->place[i].location_type = set->access[i].location_type;
		item->place[i].location_id = set->access[i].location_id;
		item->place[i].flags = set->access[i].flags;
	}
	item->places = i;
	item->group = comm ? lien_comm_group(comm) : 0;
	item->tag = allocation->tag ? lien_plan_tag_hash(lien_allocation_tag(allocation)) : 0;
	item->owner_pid = allocation->owner_pid;
	item->owner_start = allocation->owner_start;
}

static bool shared(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (holding->process != allocation->owner)
			return true;
	return false;
}

/* Flags that all items of a holding share. */
static uint32_t flags_of(const struct lien_holding *holding, bool discarded)
{
	const struct lien_allocation *allocation = holding->allocation;

	if (holding->process != allocation->owner)
		return LIEN_WIRE_IMPORTED;
	return LIEN_WIRE_OWNED | (shared(allocation) ? LIEN_WIRE_SHARED : 0) |
	       (discarded ? LIEN_WIRE_WORTHLESS : 0);
}

static int items_grow(struct planner *planner, struct lien_plan_process *part, unsigned more)
{
	struct lien_wire_item *items;
	unsigned room;

	if (more > LIEN_WIRE_ITEMS_MAX - part->items_count)
		return refuse(planner, -EBUSY,
			(struct lien_blame){LIEN_CAUSE_TOO_MUCH, part->pid, 0},
			"process %u has more than %u mappings to move: select less of it "
			"(--owner)",
			part->pid, LIEN_WIRE_ITEMS_MAX);
	if (part->items_count + more <= part->items_room)
		return 0;
	room = 2 * part->items_room + more;
	items = realloc(part->items, room * sizeof(*items));
	if (!items)
		return -ENOMEM;
	part->items = items;
	part->items_room = room;
	return 0;
}

static void add_item(struct lien_plan_process *part, const struct lien_holding *holding,
	const struct lien_mapping *mapping, unsigned index, uint32_t flags)
{
	struct lien_wire_item *item = &part->items[part->items_count++];
	const struct lien_handle *handle;

	describe(item, holding->allocation, mapping);
	TAILQ_FOREACH (handle, &holding->handles, of_holding)
		item->handle[item->handles++] = (struct lien_wire_handle){
			.value = handle->value, .references = handle->references};
	item->index = index;
	item->flags = flags;
}

static void add_binding(struct lien_plan_process *part, const struct lien_holding *holding,
	const struct lien_binding *binding, unsigned index, uint32_t flags)
{
	struct lien_wire_item *item = &part->items[part->items_count];

	add_item(part, holding, NULL, index, flags);
	item->va = binding->memory_offset;
	item->bytes = binding->bytes;
	item->object = lien_plan_object(binding->object, holding->process);
	item->object_offset = binding->offset;
}

/* Adds the mappings of an allocation in one process, with `first` before the others. NULL: one that
 * the control library is to make comes first. */
static int add_items(struct planner *planner, const struct lien_holding *holding,
	const struct lien_mapping *first, uint64_t team)
{
	struct lien_plan_process *part = plan_process(planner, holding->process->pid);
	const struct lien_allocation *allocation = holding->allocation;
	const bool discarded = lien_choice_discards(&planner->choice, allocation);
	const uint32_t flags = flags_of(holding, discarded);
	const struct lien_mapping *mapping;
	const struct lien_binding *binding;
	unsigned index = 0, count = holding->mapped + !first;
	int err;

	LIST_FOREACH (binding, &allocation->bindings, of_memory)
		count += holding->process == allocation->owner;
	err = part ? items_grow(planner, part, count) : -ENOMEM;
	if (err)
		return err;
	add_item(part, holding, first, index++, flags);
	LIST_FOREACH (mapping, &holding->mappings, of_holding)
		if (mapping != first)
			add_item(part, holding, mapping, index++, flags);
	LIST_FOREACH (binding, &allocation->bindings, of_memory)
		if (holding->process == allocation->owner)
			add_binding(part, holding, binding, index++, flags);
	for (; index; index--) {
		part->items[part->items_count - index].mappings = count;
		part->items[part->items_count - index].team = team;
	}
	if (holding->process != allocation->owner) {
		part->imports++;
		return 0;
	}
	part->allocations++;
	if (discarded) {
		part->discarded += allocation->bytes;
		planner->plan->discarded += allocation->bytes;
	} else {
		part->bytes += allocation->bytes;
		planner->plan->bytes += allocation->bytes;
	}
	return 0;
}

static int check_holders(struct planner *planner, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;
	int err = 0;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (!err)
			err = check_holder(planner, holding);
	return err;
}

static int add_allocation(
	struct planner *planner, const struct lien_allocation *allocation, uint64_t team)
{
	const struct lien_holding *holding, *own;
	int err = check_holders(planner, allocation);

	if (err)
		return err;
	if (lien_choice_infers(&planner->choice, allocation))
		planner->plan->inferred += allocation->bytes;
	planner->plan->handed_out |= lien_allocation_handed_out(allocation);
	own = lien_allocation_holding(allocation, allocation->owner);
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (!err)
			err = add_items(planner, holding,
				holding == own ? lien_plan_whole(allocation)
					       : LIST_FIRST(&holding->mappings),
				team);
	return err;
}

/* Returns the process that imported this allocation of unknown owner. NULL: there is none, or it
 * has no handles (legacy IPC, pools). A handle without a mapping counts as well: it will be mapped.
 */
static const struct lien_process *importer_of(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding = LIST_FIRST(&allocation->holdings);
	const struct lien_mapping *mapping = holding ? LIST_FIRST(&holding->mappings) : NULL;

	if (allocation->origin != LIEN_ORIGIN_IMPORT || !holding)
		return NULL;
	return mapping && mapping->opened ? NULL : holding->process;
}

static struct stranger *stranger_of(struct planner *planner, uint32_t uid)
{
	unsigned i;

	for (i = 0; i < planner->strangers_count; i++)
		if (planner->strangers[i].process->uid == uid)
			return &planner->strangers[i];
	return NULL;
}

/* Finds out who imported memory of owners that are not known. */
static int look_for_strangers(struct planner *planner)
{
	struct lien_allocation *allocation;
	const struct lien_process *importer;
	struct stranger *stranger;
	unsigned room = 0;
	int err;

	for (allocation = lien_graph_first_allocation(planner->graph); allocation;
		allocation = lien_graph_next_allocation(allocation)) {
		importer = importer_of(allocation);
		stranger = importer ? stranger_of(planner, importer->uid) : NULL;
		if (!importer || (stranger && stranger->round <= allocation->round))
			continue;
		if (!stranger) {
			err = lien_array_grow(&planner->strangers, planner->strangers_count, &room,
				sizeof(*stranger));
			if (err)
				return err;
			stranger = &planner->strangers[planner->strangers_count++];
		}
		*stranger = (struct stranger){importer, allocation->round};
	}
	return 0;
}

/* Returns one that may have imported this before the agent was there; NULL: there is none. */
static const struct lien_process *may_have(
	struct planner *planner, const struct lien_allocation *allocation)
{
	const struct stranger *stranger;
	unsigned i;

	for (i = 0; is_older(allocation) && i < planner->strangers_count; i++) {
		stranger = &planner->strangers[i];
		if (may_get(stranger->process, allocation->owner) &&
			(!allocation->round || stranger->round < allocation->round))
			return stranger->process;
	}
	return NULL;
}

/* Returns NULL, or why it stays where it is, whatever other memory does. */
static const char *own_reason(
	struct planner *planner, const struct lien_allocation *allocation, uint32_t *holder)
{
	const char *reason = lien_plan_reason(allocation, planner->selection->multicast, holder);
	const struct lien_process *process;

	if (!reason)
		reason = lien_choice_open(&planner->choice, allocation, holder);
	if (reason)
		return reason;
	process = may_have(planner, allocation);
	if (process) {
		*holder = process->pid;
		return "it can be exported, and a process has imported memory of an owner that is "
		       "not known: `lien attach` finds out";
	}
	process = may_import(planner, allocation);
	if (!process)
		return NULL;
	*holder = process->pid;
	if (!(process->incomplete & UNSEEN))
		return "it can be exported, and a process may have imported it before that was "
		       "watched: `lien attach` reads what that one has";
	return process->incomplete & LIEN_INCOMPLETE_LOST
		       ? "exported, and a process of which events were lost may have imported it: "
			 "`lien check --deep --repair` reads that one again"
		       : "exported, and a process whose calls are not seen may have imported it: "
			 "`lien doctor` says why";
}

static bool stays(void *context, const struct lien_allocation *other)
{
	struct planner *planner = context;
	uint32_t holder;

	return !lien_choice_has(&planner->choice, other, false) ||
	       own_reason(planner, other, &holder) || unreachable(planner, other->owner);
}

/* An object is exported and imported like memory. */
static const char *object_unsure(
	void *context, const struct lien_allocation *object, uint32_t *holder)
{
	struct planner *planner = context;
	const struct lien_process *process;

	if (lien_plan_exports_unknown(object) || lien_choice_open(&planner->choice, object, holder))
		return "bound to a multicast object that is exported, and may be imported yet";
	process = object->owner ? may_import(planner, object) : NULL;
	if (!process && object->owner)
		return NULL;
	*holder = process ? process->pid : 0;
	return "bound to a multicast object that unknown processes may hold";
}

/* Returns NULL, or why it stays where it is. */
static const char *reason_to_leave(struct planner *planner,
	const struct lien_allocation *allocation, uint64_t *team, uint32_t *holder)
{
	const struct lien_bound bound = {stays, object_unsure, planner, &planner->bound_steps};
	const char *reason = own_reason(planner, allocation, holder);

	return reason ? reason : lien_plan_bound(allocation, &bound, team, holder);
}

/* Counts memory that is not selected, and might be if lien knew who asked for it. A selection of
 * owner "unknown" leaves none. */
static int leave_unknown(struct planner *planner, const struct lien_allocation *allocation)
{
	const char *reason;
	uint64_t team;
	uint32_t holder;

	if ((!planner->selection->owner && !planner->selection->tags_count) || !allocation->found ||
		!allocation->owner || !lien_choice_unknown(&planner->choice, allocation) ||
		!lien_choice_has(&planner->choice, allocation, true))
		return 0;
	reason = reason_to_leave(planner, allocation, &team, &holder);
	if (!reason)
		reason = unreachable(planner, allocation->owner);
	return lien_unknown_add(planner->plan, &planner->unknown_rows, allocation, !reason);
}

static int check_owner(struct planner *planner, const struct lien_allocation *allocation)
{
	const char *reason = unreachable(planner, allocation->owner);

	if (!reason)
		return 0;
	return refuse(planner, -EBUSY,
		(struct lien_blame){cause_of(allocation->owner), allocation->owner_pid, 0},
		"process %u cannot take part: %s (%s at 0x%" PRIx64 ")", allocation->owner_pid,
		reason, lien_bytes(allocation->bytes).text, lien_plan_address(allocation));
}

/* What would be a refusal otherwise is not needed, as long as there is enough. */
static int may_free(
	struct planner *planner, const struct lien_allocation *allocation, uint64_t team)
{
	struct lien_freeing *freeing = &planner->freeing;
	int gpu = lien_freeing_gpu(freeing, planner->plan, planner->selection, allocation), err;

	if (gpu < 0)
		return gpu;
	err = check_owner(planner, allocation);
	if (!err)
		err = check_holders(planner, allocation);
	if (!err)
		return lien_freeing_add(freeing, gpu, allocation, team, false);
	if (!freeing->held_bytes)
		snprintf(freeing->held, sizeof(freeing->held), "%s", planner->error);
	freeing->held_bytes += allocation->bytes;
	planner->plan->blame = (struct lien_blame){0};
	planner->error[0] = '\0';
	return team ? lien_freeing_add(freeing, gpu, allocation, team, true) : 0;
}

static int consider(struct planner *planner, const struct lien_allocation *allocation)
{
	const char *reason;
	uint64_t team;
	uint32_t holder;

	if (!lien_choice_has(&planner->choice, allocation, false))
		return leave_unknown(planner, allocation);
	reason = reason_to_leave(planner, allocation, &team, &holder);
	if (reason)
		return leave(planner, allocation, reason, holder);
	if (planner->selection->free)
		return may_free(planner, allocation, team);
	reason = unreachable(planner, allocation->owner);
	if (reason && planner->selection->pids_count)
		return check_owner(planner, allocation);
	if (reason)
		return leave(planner, allocation, reason, 0);
	return add_allocation(planner, allocation, team);
}

/* Adds what is chosen, in the order in which it was made. */
static int add_freed(struct planner *planner)
{
	struct lien_freeing *freeing = &planner->freeing;
	unsigned i;
	int err = lien_freeing_choose(
		freeing, planner->plan, &planner->choice, planner->error, planner->error_size);

	for (i = 0; i < freeing->count && !err; i++)
		if (freeing->list[i].chosen)
			err = add_allocation(
				planner, freeing->list[i].allocation, freeing->list[i].team);
	return err;
}

/* These are no misspelling, whatever there is. */
static bool always_is(const char *owner)
{
	return !strcmp(owner, "nccl") || !strcmp(owner, "unknown");
}

static int check_owners(struct planner *planner)
{
	const struct lien_selection *selection = planner->selection;
	const char **owners = calloc(selection->discard_count + 1, sizeof(*owners)), *missing;
	unsigned i, count = 0;

	if (!owners)
		return -ENOMEM;
	if (selection->owner && !always_is(selection->owner))
		owners[count++] = selection->owner;
	for (i = 0; i < selection->discard_count; i++)
		if (selection->discard[i].owner && !always_is(selection->discard[i].owner))
			owners[count++] = selection->discard[i].owner;
	missing = lien_known_missing(planner->graph, &selection->viewer, owners, count);
	free(owners);
	if (!missing)
		return 0;
	planner->plan->blame.cause = LIEN_CAUSE_INVALID;
	lien_known_owners(
		planner->graph, &selection->viewer, missing, planner->error, planner->error_size);
	return -ESRCH;
}

/* A part of a job may have no memory of a tag at the moment. That there is none of any of them is a
 * misspelling. */
static int check_tags(struct planner *planner)
{
	const struct lien_selection *selection = planner->selection;
	unsigned count = selection->tags_count, i;
	const char **tags = calloc(count + selection->discard_count + 1, sizeof(*tags));
	int err = 0;

	if (!tags)
		return -ENOMEM;
	if (count)
		memcpy(tags, selection->tags, count * sizeof(*tags));
	for (i = 0; i < selection->discard_count; i++)
		if (selection->discard[i].tag)
			tags[count++] = selection->discard[i].tag;
	if (count && !lien_known_any_tag(planner->graph, &selection->viewer, tags, count)) {
		planner->plan->blame.cause = LIEN_CAUSE_INVALID;
		lien_known_tags(planner->graph, &selection->viewer, tags[0], planner->error,
			planner->error_size);
		err = -ESRCH;
	}
	free(tags);
	return err;
}

static int check_process(struct planner *planner, uint32_t pid)
{
	const struct lien_viewer *viewer = &planner->selection->viewer;
	struct lien_process *process = lien_graph_process(planner->graph, pid);

	if (process && lien_viewer_sees(viewer, process))
		return 0;
	planner->plan->blame = (struct lien_blame){LIEN_CAUSE_INVALID, pid, 0};
	lien_known_processes(
		planner->graph, viewer, NULL, pid, planner->error, planner->error_size);
	return -ESRCH;
}

/* Whatever is named has to exist: nothing is ignored silently. */
static int check_names(struct planner *planner)
{
	const struct lien_selection *selection = planner->selection;
	unsigned i;
	int err = 0;

	for (i = 0; i < selection->pids_count && !err; i++)
		err = check_process(planner, selection->pids[i]);
	if (!err)
		err = check_tags(planner);
	return err ? err : check_owners(planner);
}

static bool would_stay(void *context, const struct lien_allocation *allocation)
{
	uint64_t team;
	uint32_t holder;

	return reason_to_leave(context, allocation, &team, &holder) ||
	       unreachable(context, allocation->owner);
}

/* The same without what objects join: looking for that has a limit, which is for what is selected.
 */
static bool would_stay_alone(void *context, const struct lien_allocation *allocation)
{
	uint32_t holder;

	return own_reason(context, allocation, &holder) || unreachable(context, allocation->owner);
}

static int by_pid(const void *a, const void *b)
{
	const struct lien_plan_process *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

const struct lien_plan_process *lien_plan_part(const struct lien_plan *plan, uint32_t pid)
{
	const struct lien_plan_process key = {.pid = pid};

	return plan->processes_count
		       ? bsearch(&key, plan->processes, plan->processes_count, sizeof(key), by_pid)
		       : NULL;
}

static int make(struct planner *planner)
{
	struct lien_allocation *allocation;
	int err = lien_choice_make(&planner->choice, planner->graph, planner->selection);

	if (err)
		return err;
	err = look_for_unseen(planner);
	if (!err)
		err = look_for_strangers(planner);
	for (allocation = lien_graph_first_allocation(planner->graph); allocation && !err;
		allocation = lien_graph_next_allocation(allocation))
		err = consider(planner, allocation);
	if (!err && planner->selection->free)
		err = add_freed(planner);
	if (!err)
		err = lien_unknown_add_unread(
			planner->plan, &planner->unknown_rows, planner->graph, &planner->choice);
	if (!err && planner->plan->processes_count) {
		qsort(planner->plan->processes, planner->plan->processes_count,
			sizeof(planner->plan->processes[0]), by_pid);
		err = lien_idle_add_rest(
			planner->plan, planner->graph, &planner->choice, would_stay_alone, planner);
	} else if (!err) {
		err = lien_idle_add(
			planner->plan, planner->graph, &planner->choice, would_stay, planner);
	}
	lien_unknown_end(planner->plan, &planner->unknown_rows);
	lien_choice_clear(&planner->choice);
	lien_places_free(&planner->processes);
	lien_places_free(&planner->left);
	lien_freeing_end(&planner->freeing);
	free(planner->strangers);
	free(planner->unseen);
	free(planner->unseen_holds);
	return err;
}

int lien_plan_offload(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_plan *plan, char *error, size_t error_size)
{
	struct planner planner = {.graph = graph,
		.selection = selection,
		.plan = plan,
		.error = error,
		.error_size = error_size,
		.bound_steps = BOUND_STEPS};
	struct planner without_bound = planner;
	int err;

	without_bound.bound_steps = 0;
	memset(plan, 0, sizeof(*plan));
	err = check_names(&planner);
	if (err)
		return err;
	err = make(&planner);
	/* Memory may have been taken before its turn came that an object joins with it. */
	if (!err && !planner.bound_steps) {
		lien_plan_clear(plan);
		planner = without_bound;
		err = make(&planner);
	}
	if (err) {
		lien_plan_clear(plan);
		if (err == -ENOMEM)
			refuse(&planner, err, (struct lien_blame){0}, "out of memory");
		return err;
	}
	return 0;
}

/* The library is not known for memory that was found by asking the driver. */
static bool may_be_raw(const struct lien_handle *handle)
{
	return handle->references && (handle->raw || handle->holding->allocation->found);
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
	const struct lien_blame blame = plan->blame;
	unsigned i;

	for (i = 0; i < plan->processes_count; i++)
		free(plan->processes[i].items);
	free(plan->processes);
	free(plan->left);
	free(plan->unknown);
	free(plan->idle);
	free(plan->freed);
	memset(plan, 0, sizeof(*plan));
	plan->blame = blame;
}
