// SPDX-License-Identifier: BSD-2-Clause
/* Selects the memory of an offload, and the processes of a restore. Both sides may be long: a
 * client names up to thousands of processes, and a job makes any number of allocations. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/named.h"
#include "agent/graph/array.h"
#include "agent/plan/plan_internal.h"

static int name_cmp(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void add_discards(struct lien_choice *choice)
{
	const struct lien_discard *discard = choice->selection->discard;
	unsigned i;

	for (i = 0; i < choice->selection->discard_count; i++)
		if (discard[i].owner)
			choice->discarded_owners[choice->owners_count++] = discard[i].owner;
		else
			choice->discarded_tags[choice->discarded_tags_count++] = discard[i].tag;
	qsort(choice->discarded_owners, choice->owners_count, sizeof(char *), name_cmp);
	qsort(choice->discarded_tags, choice->discarded_tags_count, sizeof(char *), name_cmp);
}

/* Returns a sorted copy, which is not NULL without an error. */
static void *sorted(
	const void *list, unsigned count, size_t size, int (*cmp)(const void *, const void *))
{
	void *copy = calloc(count + 1, size);

	if (copy && count) {
		memcpy(copy, list, count * size);
		qsort(copy, count, size, cmp);
	}
	return copy;
}

int lien_choice_make(struct lien_choice *choice, const struct lien_selection *selection)
{
	*choice = (struct lien_choice){.selection = selection,
		.pids = lien_pids_sorted(selection->pids, selection->pids_count),
		.gpus = sorted(selection->gpus, selection->gpus_count, sizeof(*choice->gpus),
			lien_uuid_cmp),
		.groups = sorted(selection->groups, selection->groups_count,
			sizeof(*choice->groups), lien_u64_cmp),
		.tags = sorted(selection->tags, selection->tags_count, sizeof(char *), name_cmp),
		.discarded_owners = calloc(selection->discard_count + 1, sizeof(char *)),
		.discarded_tags = calloc(selection->discard_count + 1, sizeof(char *))};
	if (!choice->pids || !choice->gpus || !choice->groups || !choice->tags ||
		!choice->discarded_owners || !choice->discarded_tags) {
		lien_choice_clear(choice);
		return -ENOMEM;
	}
	add_discards(choice);
	return 0;
}

void lien_choice_clear(struct lien_choice *choice)
{
	free(choice->pids);
	free(choice->gpus);
	free(choice->groups);
	free(choice->tags);
	free(choice->discarded_owners);
	free(choice->discarded_tags);
}

bool lien_choice_has_pid(const struct lien_choice *choice, uint32_t pid)
{
	unsigned count = choice->selection->pids_count;

	return !count || lien_pids_find(choice->pids, count, pid);
}

/* Does the allocation have one of these tags, which are sorted? */
static bool has_tag(
	const char *const *tags, unsigned count, const struct lien_allocation *allocation)
{
	const char *tag = lien_allocation_tag(allocation);

	return tag && bsearch(&tag, tags, count, sizeof(tag), name_cmp);
}

bool lien_choice_discards(
	const struct lien_choice *choice, const struct lien_allocation *allocation)
{
	const char *owner = lien_allocation_library(allocation);

	return bsearch(&owner, choice->discarded_owners, choice->owners_count, sizeof(owner),
		       name_cmp) ||
	       has_tag(choice->discarded_tags, choice->discarded_tags_count, allocation);
}

const char *lien_choice_library(
	const struct lien_choice *choice, const struct lien_allocation *allocation)
{
	bool inferred;

	if (!choice->selection->certain)
		return lien_allocation_attributed(allocation, &inferred);
	return lien_allocation_handed_out(allocation) ? "handed out"
						      : lien_allocation_library(allocation);
}

static bool is_on_gpu(const struct lien_choice *choice, const struct lien_allocation *allocation)
{
	const struct lien_selection *selection = choice->selection;
	const unsigned ordinal = allocation->prop.location_id;
	const struct lien_uuid *gpu =
		allocation->owner ? lien_ordinals_uuid(allocation->owner->ordinals, ordinal) : NULL;

	if (ordinal < LIEN_ORDINALS_MAX && selection->ordinals >> ordinal & 1)
		return true;
	return gpu && lien_uuids_find(choice->gpus, selection->gpus_count, gpu);
}

static bool is_of_group(const struct lien_choice *choice, const struct lien_allocation *allocation)
{
	const struct lien_comm *comm = lien_allocation_comm(allocation);

	return comm && lien_u64_find(choice->groups, choice->selection->groups_count,
			       lien_comm_group(comm));
}

/* Is it for a selected group, and does it have a selected tag? Without groups, or tags, any is. */
static bool narrows_to(const struct lien_choice *choice, const struct lien_allocation *allocation)
{
	const struct lien_selection *selection = choice->selection;

	return (!selection->groups_count || is_of_group(choice, allocation)) &&
	       (!selection->tags_count || has_tag(choice->tags, selection->tags_count, allocation));
}

/* FNV-1a */
uint64_t lien_plan_tag_hash(const char *tag)
{
	uint64_t hash = 0xcbf29ce484222325ull;

	for (; *tag; tag++)
		hash = (hash ^ (unsigned char)*tag) * 0x100000001b3ull;
	return hash ? hash : 1;
}

bool lien_choice_has(
	const struct lien_choice *choice, const struct lien_allocation *allocation, bool any_owner)
{
	const struct lien_selection *selection = choice->selection;
	const char *owner = any_owner ? NULL : selection->owner;
	bool other;

	if (!lien_allocation_held(allocation) || !lien_allocation_on_device(allocation) ||
		lien_allocation_offloaded(allocation) ||
		!lien_viewer_sees_owner(&selection->viewer, allocation))
		return false;
	if (selection->by_gpu && !is_on_gpu(choice, allocation))
		return false;
	other = (owner && strcmp(owner, lien_choice_library(choice, allocation))) ||
		(!any_owner && !narrows_to(choice, allocation));
	if (other && !lien_choice_discards(choice, allocation))
		return false;
	return lien_choice_has_pid(choice, allocation->owner_pid);
}

static int share_cmp(const void *a, const void *b)
{
	const struct lien_probe_open_file *x = a, *y = b;

	return (x->share > y->share) - (x->share < y->share);
}

const char *lien_plan_open(const struct lien_allocation *allocation,
	const struct lien_probe_open_file *open, unsigned count, uint32_t *holder)
{
	const struct lien_probe_open_file *lowest = NULL;
	const struct lien_share *share;
	unsigned i;

	LIST_FOREACH (share, &allocation->shares, of_allocation) {
		const struct lien_probe_open_file key = {.share = share->number};

		i = lien_array_at_least(open, count, sizeof(key), &key, share_cmp);
		for (; i < count && open[i].share == share->number; i++)
			if (!lowest || open[i].pid - 1u < lowest->pid - 1u) /* 0 comes last */
				lowest = &open[i];
	}
	if (!lowest)
		return NULL;
	*holder = lowest->pid;
	return lowest->pid ? "an exported descriptor of it is still open, which keeps the old "
			     "memory: close it once it is imported"
			   : "an exported descriptor of it is on its way to another process (in a "
			     "socket), and would keep the old memory";
}

/* --- names that have to exist ----------------------------------------------------------------- */

/* These are no misspelling, whatever there is. */
static bool always_is(const char *owner)
{
	return !strcmp(owner, "nccl") || !strcmp(owner, "unknown");
}

static int check_owners(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_blame *blame, char *error, size_t size)
{
	const char **owners = calloc(selection->discard_count + 1, sizeof(*owners)), *missing;
	unsigned i, count = 0;

	if (!owners)
		return -ENOMEM;
	if (selection->owner && !always_is(selection->owner))
		owners[count++] = selection->owner;
	for (i = 0; i < selection->discard_count; i++)
		if (selection->discard[i].owner && !always_is(selection->discard[i].owner))
			owners[count++] = selection->discard[i].owner;
	missing = lien_known_missing(graph, &selection->viewer, owners, count);
	free(owners);
	if (!missing)
		return 0;
	blame->cause = LIEN_CAUSE_INVALID;
	lien_known_owners(graph, &selection->viewer, missing, error, size);
	return -ESRCH;
}

/* A part of a job may have no memory of a tag at the moment. That there is none of any of them is a
 * misspelling. */
static int check_tags(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_blame *blame, char *error, size_t size)
{
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
	if (count && !lien_known_any_tag(graph, &selection->viewer, tags, count)) {
		blame->cause = LIEN_CAUSE_INVALID;
		lien_known_tags(graph, &selection->viewer, tags[0], error, size);
		err = -ESRCH;
	}
	free(tags);
	return err;
}

int lien_plan_check_pids(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_blame *blame, char *error, size_t size)
{
	const struct lien_process *process;
	unsigned i;

	for (i = 0; i < selection->pids_count; i++) {
		process = lien_graph_process(graph, selection->pids[i]);
		if (process && lien_viewer_sees(&selection->viewer, process))
			continue;
		*blame = (struct lien_blame){LIEN_CAUSE_INVALID, selection->pids[i], 0};
		lien_known_processes(
			graph, &selection->viewer, NULL, selection->pids[i], error, size);
		return -ESRCH;
	}
	return 0;
}

int lien_choice_check(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_blame *blame, char *error, size_t size)
{
	int err = lien_plan_check_pids(graph, selection, blame, error, size);

	if (!err)
		err = check_tags(graph, selection, blame, error, size);
	return err ? err : check_owners(graph, selection, blame, error, size);
}

/* --- the processes of a restore --------------------------------------------------------------- */

struct restorers {
	uint32_t *all; /* owned by the caller; their processes are marked */
	unsigned count;
};

static void add(struct restorers *restorers, struct lien_process *process)
{
	if (!process->mark)
		restorers->all[restorers->count++] = process->pid;
	process->mark = 1;
}

/* Adds the processes that hold the same offloaded memory as this one. */
static void add_partners(struct restorers *restorers, struct lien_process *process)
{
	const struct lien_holding *holding, *other;
	struct lien_mapping *mapping;

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		holding = mapping->holding;
		/* Once per holding, not for each mapping. */
		if (holding->live == holding->mapped || mapping != LIST_FIRST(&holding->mappings))
			continue;
		LIST_FOREACH (other, &holding->allocation->holdings, of_allocation)
			if (other->mapped)
				add(restorers, other->process);
	}
}

/* Bindings to multicast objects are not known any more: whoever had some may belong to the same. */
static void add_joined(struct lien_graph *graph, struct restorers *restorers)
{
	struct lien_process *process;

	LIEN_FOREACH_PROCESS (process, graph)
		if (process->joined && process->parked)
			add(restorers, process);
}

/* Does it hold something that is away, of the selected groups and tags? */
static bool holds_chosen(const struct lien_choice *choice, struct lien_process *process)
{
	const struct lien_holding *holding;
	struct lien_mapping *mapping;

	if (!choice->selection->groups_count && !choice->selection->tags_count)
		return process->parked;
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		holding = mapping->holding;
		if (mapping->parked && mapping == LIST_FIRST(&holding->mappings) &&
			narrows_to(choice, holding->allocation))
			return true;
	}
	return false;
}

int lien_plan_restore(
	struct lien_graph *graph, const struct lien_selection *selection, uint32_t *all)
{
	const unsigned pids_count = selection->pids_count;
	struct restorers restorers = {.all = all};
	struct lien_process *process;
	struct lien_choice choice;
	unsigned i;

	if (lien_choice_make(&choice, selection))
		return -ENOMEM;
	LIEN_FOREACH_PROCESS (process, graph) {
		process->mark = 0;
		if (process->held_items || (!pids_count && holds_chosen(&choice, process)))
			add(&restorers, process);
	}
	for (i = 0; i < pids_count; i++) {
		process = lien_graph_process(graph, selection->pids[i]);
		if (process && holds_chosen(&choice, process))
			add(&restorers, process);
	}
	for (i = 0; i < restorers.count; i++) {
		process = lien_graph_process(graph, all[i]);
		add_partners(&restorers, process);
		if (process->joined)
			add_joined(graph, &restorers);
	}
	lien_choice_clear(&choice);
	return restorers.count;
}
