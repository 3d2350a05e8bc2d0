// SPDX-License-Identifier: BSD-2-Clause
/* Why processes have nothing to move, what stays because it is not selected, and what an offload
 * does not select because nobody knows whose it is. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/plan/plan_internal.h"

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

/* Would it stay where it is if it were selected? */
static bool stays(struct planner *planner, const struct lien_allocation *allocation, bool alone)
{
	uint64_t team;
	uint32_t holder;

	return (alone ? lien_movable_not_alone(planner, allocation, &holder)
		      : lien_movable_not(planner, allocation, &team, &holder)) ||
	       lien_movable_unreachable(planner, allocation->owner);
}

static void count(struct planner *planner, const struct lien_process *process,
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
		if (!stays(planner, allocation, alone))
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
		if (stays(planner, allocation, false))
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

int lien_idle_add(struct planner *planner)
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
	for (process = lien_graph_first(planner->graph); process;
		process = lien_graph_next(process)) {
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
			count(planner, process, idle, true);
			plan->idle_count += idle->others > 0;
		} else if (!plan->processes_count && selected && process->cuda && !process->ended) {
			idle->reason = lien_movable_unreachable(planner, process);
			count(planner, process, idle, false);
			plan->idle_count++;
		}
	}
	return 0;
}
