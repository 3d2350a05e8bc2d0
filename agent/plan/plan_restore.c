// SPDX-License-Identifier: BSD-2-Clause
/* Finds the processes that take part in a restore. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/plan/plan_internal.h"

struct restorers {
	uint32_t *all; /* owned by the caller */
	unsigned count;
	uint32_t *known; /* the pids in it: a hash set */
	unsigned room;	 /* a power of 2 */
};

/* Returns false if it was already there. */
static bool add(struct restorers *restorers, uint32_t pid)
{
	unsigned at = pid * 0x9e3779b1u >> 4;

	for (;; at++) {
		uint32_t *place = &restorers->known[at & (restorers->room - 1)];

		if (*place == pid)
			return false;
		if (*place)
			continue;
		*place = pid;
		restorers->all[restorers->count++] = pid;
		return true;
	}
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
				add(restorers, other->process->pid);
	}
}

/* Bindings to multicast objects are not known any more: whoever had some may belong to the same. */
static void add_joined(struct lien_graph *graph, struct restorers *restorers)
{
	struct lien_process *process;

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		if (process->joined && process->parked)
			add(restorers, process->pid);
}

bool lien_plan_holds_parked(const struct lien_process *process)
{
	return process->parked > 0;
}

/* Does it hold something that is away, of the selected groups and tags? */
static bool holds_chosen(const struct lien_choice *choice, struct lien_process *process)
{
	const struct lien_holding *holding;
	struct lien_mapping *mapping;

	if (!choice->selection->groups_count && !choice->selection->tags_count)
		return lien_plan_holds_parked(process);
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		holding = mapping->holding;
		if (mapping->parked && mapping == LIST_FIRST(&holding->mappings) &&
			lien_choice_narrows_to(choice, holding->allocation))
			return true;
	}
	return false;
}

int lien_plan_restore(
	struct lien_graph *graph, const struct lien_selection *selection, uint32_t *all)
{
	const unsigned pids_count = selection->pids_count;
	uint64_t processes = lien_graph_stats(graph)->processes;
	struct restorers restorers = {.all = all, .room = 64};
	struct lien_process *process;
	struct lien_choice choice;
	unsigned i;

	if (lien_choice_make(&choice, graph, selection))
		return -ENOMEM;
	while (restorers.room < 2 * processes)
		restorers.room *= 2;
	restorers.known = calloc(restorers.room, sizeof(*restorers.known));
	if (!restorers.known) {
		lien_choice_clear(&choice);
		return -ENOMEM;
	}
	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		if (process->held_items || (!pids_count && holds_chosen(&choice, process)))
			add(&restorers, process->pid);
	for (i = 0; i < pids_count; i++) {
		process = lien_graph_process(graph, selection->pids[i]);
		if (process && holds_chosen(&choice, process))
			add(&restorers, process->pid);
	}
	for (i = 0; i < restorers.count; i++) {
		process = lien_graph_process(graph, all[i]);
		add_partners(&restorers, process);
		if (process->joined)
			add_joined(graph, &restorers);
	}
	free(restorers.known);
	lien_choice_clear(&choice);
	return restorers.count;
}
