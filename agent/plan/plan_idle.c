// SPDX-License-Identifier: BSD-2-Clause
/* Why processes have nothing to move, and what stays because it is not selected. */
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

static void count(struct lien_idle *idle, const struct lien_choice *choice,
	const struct lien_process *process,
	bool (*stays)(void *context, const struct lien_allocation *allocation), void *context)
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
		if (lien_choice_has(choice, allocation, false))
			continue;
		idle->others += allocation->bytes;
		add_owner(idle, lien_allocation_attributed(allocation, &inferred));
		if (!stays(context, allocation))
			idle->movable += allocation->bytes;
	}
	if (!idle->offloaded)
		idle->offloaded = process->held_bytes; /* only its control library knows of it */
}

int lien_idle_add(struct lien_plan *plan, struct lien_graph *graph,
	const struct lien_choice *choice,
	bool (*stays)(void *context, const struct lien_allocation *allocation), void *context)
{
	struct lien_process *process;

	plan->idle = calloc(lien_graph_stats(graph)->processes + 1, sizeof(*plan->idle));
	if (!plan->idle)
		return -ENOMEM;
	for (process = lien_graph_first(graph); process; process = lien_graph_next(process)) {
		struct lien_idle *idle = &plan->idle[plan->idle_count];

		if (!process->cuda || process->ended ||
			!lien_viewer_sees(&choice->selection->viewer, process) ||
			!lien_choice_has_pid(choice, process->pid))
			continue;
		*idle = (struct lien_idle){.pid = process->pid,
			.command = process->command,
			.reason = choice->selection->ahead ? lien_plan_unreachable_then(process)
							   : lien_plan_unreachable(process)};
		count(idle, choice, process, stays, context);
		plan->idle_count++;
	}
	return 0;
}

int lien_idle_add_rest(struct lien_plan *plan, struct lien_graph *graph,
	const struct lien_choice *choice,
	bool (*stays)(void *context, const struct lien_allocation *allocation), void *context)
{
	const struct lien_process *process;
	unsigned i;

	plan->idle = calloc(plan->processes_count, sizeof(*plan->idle));
	if (!plan->idle)
		return -ENOMEM;
	for (i = 0; i < plan->processes_count; i++) {
		struct lien_idle *idle = &plan->idle[plan->idle_count];

		process = lien_graph_process(graph, plan->processes[i].pid);
		*idle = (struct lien_idle){.pid = process->pid, .command = process->command};
		count(idle, choice, process, stays, context);
		plan->idle_count += idle->others > 0;
	}
	return 0;
}
