// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/graph/pids.h"
#include "agent/offload/plan_internal.h"

struct planner {
	struct lien_graph *graph;
	const struct lien_selection *selection;
	struct lien_choice choice;
	struct lien_plan *plan;
	struct lien_places processes, left; /* of the plan's arrays */
	unsigned processes_room, left_room;
	char *error;
	size_t error_size;
	/* Processes that may have imported memory from before the agent; NULL: none. */
	const struct lien_process *late;    /* ran before it was watched, and has not been read */
	const struct lien_process *unknown; /* imported memory of an unknown owner; */
	uint32_t round;			    /* the last round in which that was compared */
	/* Processes that lost events, sorted by address. */
	const struct lien_process **lost;
	bool *lost_holds; /* parallel to them: holds the current allocation */
	unsigned lost_count;
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

static int process_cmp(const void *a, const void *b)
{
	uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;

	return (x > y) - (x < y);
}

static int look_for_lost(struct planner *planner)
{
	uint64_t room = lien_graph_stats(planner->graph)->processes + 1;
	struct lien_process *process;

	planner->lost = calloc(room, sizeof(*planner->lost));
	planner->lost_holds = calloc(room, sizeof(*planner->lost_holds));
	if (!planner->lost || !planner->lost_holds)
		return -ENOMEM;
	for (process = lien_graph_first(planner->graph); process;
		process = lien_graph_next(process))
		if (process->cuda && process->incomplete & LIEN_INCOMPLETE_LOST)
			planner->lost[planner->lost_count++] = process;
	qsort(planner->lost, planner->lost_count, sizeof(*planner->lost), process_cmp);
	return 0;
}

/* Marks the process if it has lost events, and returns its index; -1: it has not. */
static int mark_lost(struct planner *planner, const struct lien_process *process, bool holds)
{
	const struct lien_process **found = bsearch(
		&process, planner->lost, planner->lost_count, sizeof(*planner->lost), process_cmp);

	if (!found)
		return -1;
	planner->lost_holds[found - planner->lost] = holds;
	return found - planner->lost;
}

static void mark_holders(
	struct planner *planner, const struct lien_allocation *allocation, bool holds)
{
	const struct lien_holding *holding;

	mark_lost(planner, allocation->owner, holds);
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (holding->mapped)
			mark_lost(planner, holding->process, holds);
}

/* Returns a process that may have imported it in a call that was lost; NULL: there is none. */
static const struct lien_process *may_import(
	struct planner *planner, const struct lien_allocation *allocation)
{
	unsigned i;

	if (!allocation->exports && !(allocation->found && allocation->prop.handle_types))
		return NULL;
	mark_holders(planner, allocation, true);
	for (i = 0; i < planner->lost_count && planner->lost_holds[i]; i++)
		;
	mark_holders(planner, allocation, false);
	return i < planner->lost_count ? planner->lost[i] : NULL;
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
		lien_places_mix(lien_places_mix(0, key.pid), key.holder), is_left, plan->left,
		&key);
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
	return refuse(planner, -EBUSY,
		"--strict: %" PRIu64 " bytes of process %u at 0x%" PRIx64
		" would be left behind: %s%s: without --strict all else is moved",
		allocation->bytes, key.pid, lien_plan_address(allocation), key.reason,
		key.other_user ? " (a process of another user)" : by);
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

/* Every other holder of the allocation has to take part. */
static int check_holder(struct planner *planner, const struct lien_holding *holding)
{
	const struct lien_allocation *allocation = holding->allocation;
	const struct lien_selection *selection = planner->selection;
	const struct lien_process *holder = holding->process;
	bool in = selection->with_closure || lien_choice_has_pid(&planner->choice, holder->pid);
	const char *reason;
	char what[160];

	if (!lien_viewer_sees(&selection->viewer, holder))
		return refuse(planner, -EPERM,
			"%" PRIu64 " bytes of process %u at 0x%" PRIx64
			" are mapped by a process of another user (see `lien holders`): "
			"only root can move what is shared with it",
			allocation->bytes, allocation->owner_pid, lien_plan_address(allocation));
	reason = holder == allocation->owner ? NULL : lien_plan_unreachable(holder);
	if (reason || !in)
		snprintf(what, sizeof(what),
			"%" PRIu64 " bytes of process %u at 0x%" PRIx64
			" are mapped by process %u at 0x%" PRIx64,
			allocation->bytes, allocation->owner_pid, lien_plan_address(allocation),
			holder->pid, LIST_FIRST(&holding->mappings)->va);
	if (reason)
		return refuse(planner, -EBUSY, "%s, which cannot take part: %s", what, reason);
	if (!in)
		return refuse(planner, -EBUSY,
			"%s, which is not selected: add --pid %u or --with-closure", what,
			holder->pid);
	if (!RB_EMPTY(&holder->captures))
		return refuse(planner, -EBUSY,
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

static void describe(struct lien_wire_item *item, const struct lien_allocation *allocation,
	const struct lien_mapping *mapping)
{
	const struct lien_access_set *set = lien_mapping_access(mapping);
	const struct lien_prop *prop = &allocation->prop;
	unsigned i;

	memset(item, 0, sizeof(*item));
	item->token = allocation->id;
	item->va = mapping->va;
	item->bytes = mapping->bytes;
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
	const struct lien_handle *handle = TAILQ_FIRST(&holding->handles);
	struct lien_wire_item *item = &part->items[part->items_count++];

	describe(item, holding->allocation, mapping);
	item->references = handle ? handle->references : 0;
	item->index = index;
	item->mappings = holding->mapped;
	item->flags = flags;
}

/* Adds the mappings of an allocation in one process, with `first` before the others. */
static int add_items(struct planner *planner, const struct lien_holding *holding,
	const struct lien_mapping *first)
{
	struct lien_plan_process *part = plan_process(planner, holding->process->pid);
	const struct lien_allocation *allocation = holding->allocation;
	const bool discarded = lien_choice_discards(&planner->choice, allocation);
	const uint32_t flags = flags_of(holding, discarded);
	const struct lien_mapping *mapping;
	unsigned index = 0;
	int err = part ? items_grow(planner, part, holding->mapped) : -ENOMEM;

	if (err)
		return err;
	add_item(part, holding, first, index++, flags);
	LIST_FOREACH (mapping, &holding->mappings, of_holding)
		if (mapping != first)
			add_item(part, holding, mapping, index++, flags);
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

static int add_allocation(struct planner *planner, const struct lien_allocation *allocation)
{
	const struct lien_mapping *whole = lien_plan_whole(allocation);
	const struct lien_holding *holding;
	int err;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation) {
		err = check_holder(planner, holding);
		if (err)
			return err;
	}
	err = add_items(planner, whole->holding, whole);
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (!err && holding != whole->holding)
			err = add_items(planner, holding, LIST_FIRST(&holding->mappings));
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

/* Finds processes that may have imported memory unseen. */
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

/* Returns NULL, or a reason: others may have what was handed out before the agent started. */
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

/* Returns NULL, or why it stays where it is. */
static const char *reason_to_leave(
	struct planner *planner, const struct lien_allocation *allocation, uint32_t *holder)
{
	const char *reason = lien_plan_reason(allocation, holder);
	const struct lien_process *process;

	if (!reason)
		reason = lien_choice_open(&planner->choice, allocation, holder);
	if (!reason)
		reason = imported_unseen(planner, allocation, holder);
	process = reason ? NULL : may_import(planner, allocation);
	if (!process)
		return reason;
	*holder = process->pid;
	return "exported, and a process of which events were lost may have imported it: `lien "
	       "check --deep --repair` reads that one again";
}

/*
 * Returns the bytes that would be selected, and could be moved, if it were known who asked for
 * them.
 */
static uint64_t nameless(struct planner *planner, const struct lien_allocation *allocation)
{
	uint32_t holder;

	return planner->selection->owner && allocation->found &&
			       lien_choice_has(&planner->choice, allocation, true) &&
			       !reason_to_leave(planner, allocation, &holder)
		       ? allocation->bytes
		       : 0;
}

static int consider(struct planner *planner, const struct lien_allocation *allocation)
{
	const char *reason;
	uint32_t holder;

	if (!lien_choice_has(&planner->choice, allocation, false)) {
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
	return add_allocation(planner, allocation);
}

/* The address of a discard must name selected memory that its process owns. */
static int check_discards(struct planner *planner)
{
	const struct lien_allocation *allocation;
	const struct lien_discard *discard;
	unsigned i;

	for (i = 0; i < planner->selection->discard_count; i++) {
		discard = &planner->selection->discard[i];
		if (discard->owner)
			continue;
		allocation = lien_choice_named(planner->graph, discard);
		if (!allocation || !lien_choice_has(&planner->choice, allocation, false))
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

static int make(struct planner *planner)
{
	struct lien_allocation *allocation;
	int err = lien_choice_make(&planner->choice, planner->graph, planner->selection);

	if (err)
		return err;
	err = look_for_lost(planner);
	look_for_importers(planner);
	if (!err)
		err = check_discards(planner);
	for (allocation = lien_graph_first_allocation(planner->graph); allocation && !err;
		allocation = lien_graph_next_allocation(allocation))
		err = consider(planner, allocation);
	lien_choice_clear(&planner->choice);
	lien_places_free(&planner->processes);
	lien_places_free(&planner->left);
	free(planner->lost);
	free(planner->lost_holds);
	return err;
}

int lien_plan_offload(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_plan *plan, char *error, size_t error_size)
{
	struct planner planner = {.graph = graph,
		.selection = selection,
		.plan = plan,
		.error = error,
		.error_size = error_size};
	struct lien_process *process;
	unsigned i;
	int err;

	memset(plan, 0, sizeof(*plan));
	for (i = 0; i < selection->pids_count; i++) {
		process = lien_graph_process(graph, selection->pids[i]);
		if (!process || !lien_viewer_sees(&selection->viewer, process))
			return refuse(&planner, -ESRCH, LIEN_UNKNOWN_PROCESS, selection->pids[i]);
	}
	err = make(&planner);
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
	unsigned i;

	for (i = 0; i < plan->processes_count; i++)
		free(plan->processes[i].items);
	free(plan->processes);
	free(plan->left);
	memset(plan, 0, sizeof(*plan));
}
