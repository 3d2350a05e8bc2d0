// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/bytes.h"
#include "agent/graph/array.h"
#include "agent/plan/plan_internal.h"

#define BOUND_STEPS 1000000 /* some 10 ms, on bindings to multicast objects */

uint64_t lien_plan_address(const struct lien_allocation *allocation)
{
	uint64_t own = UINT64_MAX, any = UINT64_MAX;
	const struct lien_holding *holding;
	const struct lien_mapping *mapping;

	/* The lowest pid: the order of lists does not last. */
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		LIST_FOREACH (mapping, &holding->mappings, of_holding) {
			if (holding->process == allocation->owner && mapping->va < own)
				own = mapping->va;
			if (mapping->va < any)
				any = mapping->va;
		}
	if (own != UINT64_MAX)
		return own;
	return any != UINT64_MAX ? any : 0;
}

/* process, holder: as in struct lien_blame. */
__attribute__((format(printf, 6, 7))) static int refuse(struct planner *planner, int code,
	enum lien_cause cause, uint32_t process, uint32_t holder, const char *format, ...)
{
	va_list args;

	planner->plan->blame = (struct lien_blame){cause, process, holder};
	va_start(args, format);
	vsnprintf(planner->error, planner->error_size, format, args);
	va_end(args);
	return code;
}

/* The cause to report for a process that cannot take part. */
static enum lien_cause cause_of(const struct lien_process *process)
{
	const uint32_t read = LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_SHARE;

	return process->presence == LIEN_CONTROL_NONE || process->incomplete & read
		       ? LIEN_CAUSE_NO_CONTROL
		       : LIEN_CAUSE_UNABLE;
}

static bool is_left(const void *row, const void *key)
{
	const struct lien_left *left = row, *wanted = key;

	return left->pid == wanted->pid && left->holder == wanted->holder &&
	       left->other_user == wanted->other_user && !strcmp(left->reason, wanted->reason);
}

static int refuse_to_leave(
	struct planner *planner, const struct lien_allocation *allocation, struct lien_left key)
{
	char by[40] = "";

	if (key.holder)
		snprintf(by, sizeof(by), " (process %u)", key.holder);
	return refuse(planner, -EBUSY, LIEN_CAUSE_STRICT, key.pid, key.holder,
		"--strict: %s of process %u at 0x%" PRIx64
		" would be left behind: %s%s: without --strict all else is moved",
		lien_bytes(allocation->bytes).text, key.pid, lien_plan_address(allocation),
		key.reason, key.other_user ? " (a process of another user)" : by);
}

static int leave(struct planner *planner, const struct lien_allocation *allocation,
	const char *reason, uint32_t holder)
{
	struct lien_left key = {.pid = allocation->owner_pid, .reason = reason}, *left;
	struct lien_plan *plan = planner->plan;
	uint64_t hash;

	if (holder && holder != allocation->owner_pid) {
		key.other_user = !lien_viewer_sees(
			&planner->selection->viewer, lien_graph_process(planner->graph, holder));
		key.holder = key.other_user ? 0 : holder;
	}
	if (planner->selection->strict)
		return refuse_to_leave(planner, allocation, key);
	hash = lien_rows_mix(lien_rows_mix(0, key.pid), key.holder);
	for (; *reason; reason++)
		hash = lien_rows_mix(hash, *reason);
	left = lien_rows_find(
		&planner->left, hash, is_left, &key, &plan->left, &plan->left_count, sizeof(*left));
	if (!left)
		return -ENOMEM;
	if (!left->reason) {
		*left = key;
		left->address = lien_plan_address(allocation);
	}
	left->allocations++;
	left->bytes += allocation->bytes;
	return 0;
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
		return refuse(planner, -EPERM, LIEN_CAUSE_PERMISSION, allocation->owner_pid, 0,
			"%s of process %u at 0x%" PRIx64
			" is mapped by a process of another user (see `lien holders`): "
			"only root can move what is shared with it",
			lien_bytes(allocation->bytes).text, allocation->owner_pid,
			lien_plan_address(allocation));
	reason = holder == allocation->owner ? NULL : lien_movable_unreachable(planner, holder);
	if (reason || !in)
		snprintf(what, sizeof(what),
			"%s of process %u at 0x%" PRIx64 " is mapped by process %u at 0x%" PRIx64,
			lien_bytes(allocation->bytes).text, allocation->owner_pid,
			lien_plan_address(allocation), holder->pid, first ? first->va : 0);
	if (reason)
		return refuse(planner, -EBUSY, cause_of(holder), allocation->owner_pid, holder->pid,
			"%s, which cannot take part: %s", what, reason);
	if (!in)
		return refuse(planner, -EBUSY, LIEN_CAUSE_NOT_SELECTED, allocation->owner_pid,
			holder->pid, "%s, which is not selected: add --pid %u or --with-closure",
			what, holder->pid);
	if (selection->within &&
		!lien_pids_find(selection->within, selection->within_count, holder->pid))
		return refuse(planner, -EBUSY, LIEN_CAUSE_NOT_SELECTED, allocation->owner_pid,
			holder->pid, "process %u has come to share %s of process %u meanwhile",
			holder->pid, lien_bytes(allocation->bytes).text, allocation->owner_pid);
	if (!RB_EMPTY(&holder->captures))
		return refuse(planner, -EBUSY, LIEN_CAUSE_CAPTURING, holder->pid, 0,
			"process %u is capturing a CUDA graph: try again when it is done",
			holder->pid);
	return 0;
}

static bool is_process(const void *row, const void *key)
{
	return ((const struct lien_plan_process *)row)->pid == *(const uint32_t *)key;
}

/* NULL: out of memory. */
static struct lien_plan_process *plan_process(struct planner *planner, uint32_t pid)
{
	struct lien_plan *plan = planner->plan;
	struct lien_plan_process *part = lien_rows_find(&planner->processes, lien_rows_mix(0, pid),
		is_process, &pid, &plan->processes, &plan->processes_count, sizeof(*part));

	if (part)
		part->pid = pid;
	return part;
}

/* Flags that all items of a holding share. */
static uint32_t flags_of(const struct lien_holding *holding, bool discarded)
{
	const struct lien_allocation *allocation = holding->allocation;
	uint32_t flags = LIEN_WIRE_OWNED | (discarded ? LIEN_WIRE_WORTHLESS : 0);
	const struct lien_holding *other;

	if (holding->process != allocation->owner)
		return LIEN_WIRE_IMPORTED;
	LIST_FOREACH (other, &allocation->holdings, of_allocation)
		if (other->process != allocation->owner)
			flags |= LIEN_WIRE_SHARED;
	return flags;
}

static int items_grow(struct planner *planner, struct lien_plan_process *part, unsigned more)
{
	if (more > LIEN_WIRE_ITEMS_MAX - part->items_count)
		return refuse(planner, -EBUSY, LIEN_CAUSE_TOO_MUCH, part->pid, 0,
			"process %u has more than %u mappings to move: select less of it "
			"(--owner)",
			part->pid, LIEN_WIRE_ITEMS_MAX);
	return lien_array_reserve(
		&part->items, part->items_count + more, &part->items_room, sizeof(*part->items));
}

/* mapping NULL: one that the control library is to make. */
static void add_item(struct lien_plan_process *part, const struct lien_holding *holding,
	const struct lien_mapping *mapping, unsigned index, uint32_t flags)
{
	const struct lien_access_set *set = mapping ? lien_mapping_access(mapping) : NULL;
	const struct lien_allocation *allocation = holding->allocation;
	const struct lien_comm *comm = lien_allocation_comm(allocation);
	struct lien_wire_item *item = &part->items[part->items_count++];
	const struct lien_prop *prop = &allocation->prop;
	const struct lien_handle *handle;
	unsigned i;

	*item = (struct lien_wire_item){
		.token = allocation->id,
		.va = mapping ? mapping->va : 0,
		.bytes = mapping ? mapping->bytes : allocation->bytes,
		.allocation_bytes = allocation->bytes,
		.prop_type = prop->type,
		.handle_types = prop->handle_types,
		.location_type = prop->location_type,
		.location_id = prop->location_id,
		.compression = prop->compression,
		.rdma = prop->rdma,
		.usage = prop->usage,
		.places = set ? set->count : 0,
		.group = comm ? lien_comm_group(comm) : 0,
		.tag = allocation->tag ? lien_plan_tag_hash(lien_allocation_tag(allocation)) : 0,
		.owner_pid = allocation->owner_pid,
		.owner_start = allocation->owner_start,
		.index = index,
		.flags = flags,
	};
	for (i = 0; set && i < set->count; i++) {
		item->place[i].location_type = set->access[i].location_type;
		item->place[i].location_id = set->access[i].location_id;
		item->place[i].flags = set->access[i].flags;
	}
	TAILQ_FOREACH (handle, &holding->handles, of_holding)
		item->handle[item->handles++] = (struct lien_wire_handle){
			.value = handle->value, .references = handle->references};
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
	const char *owner = planner->selection->owner;
	const struct lien_holding *holding, *own;
	int err = check_holders(planner, allocation);

	if (err)
		return err;
	/* Its owner is inferred, and it is selected for that. */
	if (owner && strcmp(owner, lien_allocation_library(allocation)) != 0 &&
		!strcmp(owner, lien_choice_library(&planner->choice, allocation)))
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

static int check_owner(struct planner *planner, const struct lien_allocation *allocation)
{
	const char *reason = lien_movable_unreachable(planner, allocation->owner);

	if (!reason)
		return 0;
	return refuse(planner, -EBUSY, cause_of(allocation->owner), allocation->owner_pid, 0,
		"process %u cannot take part: %s (%s at 0x%" PRIx64 ")", allocation->owner_pid,
		reason, lien_bytes(allocation->bytes).text, lien_plan_address(allocation));
}

/* If enough can be freed without this memory, it is passed over; otherwise it would be a refusal.
 */
static int may_free(
	struct planner *planner, const struct lien_allocation *allocation, uint64_t team)
{
	int err = check_owner(planner, allocation);

	if (!err)
		err = check_holders(planner, allocation);
	if (!err)
		return lien_freeing_add(planner, allocation, team, false);
	if (!planner->held_bytes)
		snprintf(planner->held, sizeof(planner->held), "%s", planner->error);
	planner->held_bytes += allocation->bytes;
	planner->plan->blame = (struct lien_blame){0};
	planner->error[0] = '\0';
	return lien_freeing_add(planner, allocation, team, true);
}

static int consider(struct planner *planner, const struct lien_allocation *allocation)
{
	const char *reason;
	uint64_t team;
	uint32_t holder;

	if (!lien_choice_has(&planner->choice, allocation, false))
		return 0;
	reason = lien_movable_not(planner, allocation, &team, &holder);
	if (reason)
		return leave(planner, allocation, reason, holder);
	if (planner->selection->free)
		return may_free(planner, allocation, team);
	reason = lien_movable_unreachable(planner, allocation->owner);
	if (reason && planner->selection->pids_count)
		return check_owner(planner, allocation);
	if (reason)
		return leave(planner, allocation, reason, 0);
	return add_allocation(planner, allocation, team);
}

static int add_freed(struct planner *planner)
{
	const struct lien_free_item *item = planner->items;
	int err = lien_freeing_choose(planner);
	unsigned i;

	for (i = 0; i < planner->items_count && !err; i++)
		if (item[i].chosen)
			err = add_allocation(planner, item[i].of,
				LIST_EMPTY(&item[i].of->bindings) ? 0 : item[i].whole);
	return err;
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

/* --- what has nothing to move, or is not selected ------------------------------------------- */

static void add_owner(struct lien_idle *idle, const char *owner)
{
	unsigned i;

	for (i = 0; i < idle->owners_count; i++)
		if (!strcmp(idle->owners[i], owner))
			return;
	if (idle->owners_count == LIEN_IDLE_OWNERS)
		idle->more_owners = true;
	else
		idle->owners[idle->owners_count++] = owner;
}

static void count_idle(struct planner *planner, const struct lien_process *process,
	struct lien_idle *idle, bool alone)
{
	const struct lien_allocation *allocation;
	bool inferred;

	LIST_FOREACH (allocation, &process->owned, of_owner) {
		if (!lien_allocation_held(allocation) || !lien_allocation_on_device(allocation))
			continue;
		if (lien_allocation_offloaded(allocation)) {
			idle->offloaded += allocation->bytes;
			continue;
		}
		idle->bytes += allocation->bytes;
		if (lien_choice_has(&planner->choice, allocation, false))
			continue;
		idle->others += allocation->bytes;
		add_owner(idle, lien_allocation_attributed(allocation, &inferred));
		if (!lien_movable_stays(planner, allocation, alone))
			idle->movable += allocation->bytes;
	}
	if (!idle->offloaded)
		idle->offloaded = process->held_bytes; /* only its control library knows of it */
}

/* Counts memory that is not selected, and might be if lien knew who asked for it. A selection of
 * owner "unknown" leaves none. */
static void count_unknown(
	struct planner *planner, const struct lien_process *process, struct lien_unknown *unknown)
{
	const struct lien_choice *choice = &planner->choice;
	const struct lien_allocation *allocation;

	LIST_FOREACH (allocation, &process->owned, of_owner) {
		if (!allocation->found || allocation->let_go ||
			strcmp(lien_choice_library(choice, allocation), "unknown") != 0 ||
			lien_choice_has(choice, allocation, false) ||
			!lien_choice_has(choice, allocation, true))
			continue;
		unknown->allocations++;
		unknown->bytes += allocation->bytes;
		if (lien_movable_stays(planner, allocation, false))
			continue;
		unknown->movable += allocation->bytes;
		planner->plan->nameless += allocation->bytes;
	}
}

bool lien_plan_unread(const struct lien_process *process)
{
	return process->cuda && !process->ended && !process->held_items &&
	       process->incomplete & LIEN_INCOMPLETE_LATE;
}

/* Fills lien_plan.idle and .unknown. The plan's processes are sorted. -ENOMEM. */
static int add_idle(struct planner *planner)
{
	const bool narrow = planner->selection->owner || planner->selection->tags_count;
	const size_t room = lien_graph_stats(planner->graph)->processes + 1;
	struct lien_plan *plan = planner->plan;
	struct lien_process *process;
	struct lien_unknown *unknown;
	struct lien_idle *idle;
	unsigned part = 0; /* both are in the order of pids */
	bool selected;

	plan->idle = calloc(room, sizeof(*plan->idle));
	plan->unknown = calloc(room, sizeof(*plan->unknown));
	if (!plan->idle || !plan->unknown)
		return -ENOMEM;
	LIEN_FOREACH_PROCESS (process, planner->graph) {
		selected = lien_viewer_sees(&planner->selection->viewer, process) &&
			   lien_choice_has_pid(&planner->choice, process->pid);
		unknown = &plan->unknown[plan->unknown_count];
		*unknown = (struct lien_unknown){
			.pid = process->pid, .read = !selected || !lien_plan_unread(process)};
		if (narrow)
			count_unknown(planner, process, unknown);
		plan->unknown_count += unknown->allocations || !unknown->read;
		idle = &plan->idle[plan->idle_count];
		*idle = (struct lien_idle){.pid = process->pid, .command = process->command};
		if (part < plan->processes_count && plan->processes[part].pid == process->pid) {
			part++;
			count_idle(planner, process, idle, true);
			plan->idle_count += idle->others > 0;
		} else if (!plan->processes_count && selected && process->cuda && !process->ended) {
			idle->reason = lien_movable_unreachable(planner, process);
			count_idle(planner, process, idle, false);
			plan->idle_count++;
		}
	}
	return 0;
}

/* --- the whole plan --------------------------------------------------------------------------- */

static int make(struct planner *planner)
{
	struct lien_plan *plan = planner->plan;
	struct lien_allocation *allocation;
	int err = lien_choice_make(&planner->choice, planner->selection);

	if (err)
		return err;
	err = lien_movable_begin(planner);
	for (allocation = lien_graph_first_allocation(planner->graph); allocation && !err;
		allocation = lien_graph_next_allocation(allocation))
		err = consider(planner, allocation);
	if (!err && planner->selection->free)
		err = add_freed(planner);
	if (plan->processes_count)
		qsort(plan->processes, plan->processes_count, sizeof(plan->processes[0]), by_pid);
	if (!err)
		err = add_idle(planner);
	lien_movable_end(planner);
	lien_choice_clear(&planner->choice);
	free(planner->processes.place);
	free(planner->left.place);
	free(planner->freed.place);
	free(planner->items);
	return err;
}

int lien_plan_offload(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_plan *plan, char *error, size_t error_size)
{
	const struct planner begun = {.graph = graph,
		.selection = selection,
		.plan = plan,
		.error = error,
		.error_size = error_size};
	struct planner planner = begun;
	int err;

	memset(plan, 0, sizeof(*plan));
	err = lien_choice_check(graph, selection, &plan->blame, error, error_size);
	if (err == -ESRCH)
		return err;
	planner.bound_steps = BOUND_STEPS;
	if (!err)
		err = make(&planner);
	/* Memory may have been taken before its turn came that an object joins with it. */
	if (!err && !planner.bound_steps) {
		lien_plan_clear(plan);
		planner = begun;
		err = make(&planner);
	}
	if (err)
		lien_plan_clear(plan);
	return err == -ENOMEM ? refuse(&planner, err, LIEN_CAUSE_FAILED, 0, 0, "out of memory")
			      : err;
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
	const struct lien_handle *handle = process ? lien_handle_find(process, value) : NULL;

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
