// SPDX-License-Identifier: BSD-2-Clause
/* Finds the processes that take part in a restore. */
#include <errno.h>
#include <stdlib.h>

#include "agent/offload/plan.h"

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

bool lien_plan_holds_parked(const struct lien_process *process)
{
	return process->parked > 0;
}

int lien_plan_restore(
	struct lien_graph *graph, const uint32_t *pids, unsigned pids_count, uint32_t *all)
{
	uint64_t processes = lien_graph_stats(graph)->processes;
	struct restorers restorers = {.all = all, .room = 64};
	struct lien_process *process;
	unsigned i;

	while (restorers.room < 2 * processes)
		restorers.room *= 2;
	restorers.known = calloc(restorers.room, sizeof(*restorers.known));
	if (!restorers.known)
		return -ENOMEM;
	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		if (process->held_items || (!pids_count && lien_plan_holds_parked(process)))
			add(&restorers, process->pid);
	for (i = 0; i < pids_count; i++) {
		process = lien_graph_process(graph, pids[i]);
		if (process && lien_plan_holds_parked(process))
			add(&restorers, process->pid);
	}
	for (i = 0; i < restorers.count; i++)
		add_partners(&restorers, lien_graph_process(graph, all[i]));
	free(restorers.known);
	return restorers.count;
}
