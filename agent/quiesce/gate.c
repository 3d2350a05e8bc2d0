// SPDX-License-Identifier: BSD-2-Clause
#include "agent/quiesce/gate_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/link/link.h"
#include "agent/quiesce/holds.h"
#include "loader/probes/calls.h"

#define PASSES_MAX 1024

/* Has the gate held since all were at rest? Threads that are held but not listed wait for the end
 * like others. */
static int still_holds(struct lien_agent *agent, uint32_t pid, char *why, size_t size)
{
	struct lien_tracked *tracked = lien_gate_tracked(agent, pid);
	struct lien_probe_gate gate;

	if (!tracked || !lien_probes_gate_get(agent->probes, pid, &gate))
		return 0; /* the process has ended */
	if (gate.unheld)
		snprintf(why, size,
			"thread %u, which blocks the signal that would hold it back, has entered "
			"%s",
			gate.unheld_tid, lien_calls_name(gate.unheld_call));
	else if (gate.mapped != tracked->gate_mapped)
		snprintf(why, size, "it has loaded another library of CUDA's or NCCL's");
	return gate.unheld || gate.mapped != tracked->gate_mapped ? -EAGAIN : 0;
}

/* Finds the range of addresses that the plan moves in this process. */
static void range_of(const struct lien_agent *agent, uint32_t pid, struct lien_probe_shut *range)
{
	const struct lien_plan_process *part = lien_plan_part(&agent->plan, pid);
	unsigned i;

	range->low = agent->adopting ? 0 : UINT64_MAX;
	range->high = agent->adopting ? UINT64_MAX : 0;
	for (i = 0; part && i < part->items_count; i++) {
		if (part->items[i].object) { /* reached by the object's mappings, too */
			range->low = 0;
			range->high = UINT64_MAX;
			return;
		}
		if (!part->items[i].va)
			continue; /* its control library's, for memory without a mapping */
		if (part->items[i].va < range->low)
			range->low = part->items[i].va;
		if (part->items[i].va + part->items[i].bytes > range->high)
			range->high = part->items[i].va + part->items[i].bytes;
	}
}

/* Do all processes that use CUDA take part, several of them? */
static bool is_whole_node(struct lien_agent *agent)
{
	const struct lien_plan *plan = &agent->plan;
	struct lien_process *process;
	unsigned left = plan->processes_count;

	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
		if (!process->cuda)
			continue;
		if (!lien_plan_part(plan, process->pid))
			return false;
		left--;
	}
	return !left && plan->processes_count > 1;
}

void lien_gate_set(struct lien_agent *agent, bool all)
{
	const bool shared = is_whole_node(agent);
	struct lien_tracked *tracked;
	unsigned i;

	for (i = 0; i < agent->plan.processes_count; i++) {
		tracked = lien_gate_tracked(agent, agent->plan.processes[i].pid);
		if (!tracked)
			continue;
		tracked->gate_was_shut =
			lien_probes_gate_holds(agent->probes, tracked->pid, &tracked->gate_held);
		tracked->gate_was_all = tracked->gate_all;
		tracked->gate_all |= all;
		tracked->gate_shared = shared;
	}
}

/* The process may have ended. */
static void open_gate(struct lien_agent *agent, uint32_t pid)
{
	struct lien_tracked *tracked = lien_gate_tracked(agent, pid);

	lien_probes_ungate(agent->probes, pid, false);
	if (tracked) {
		tracked->t_gate = 0;
		tracked->gate_all = tracked->gate_shared = tracked->gate_mixed = false;
		tracked->use_all = false;
		tracked->gate_unheld = 0;
		tracked->comms_away = 0;
	}
}

/* --- letting go ------------------------------------------------------------------------------- */

struct passing {
	struct lien_agent *agent;
	const struct lien_tracked *tracked;
	struct lien_probe_shut shut;
	uint32_t keys[PASSES_MAX], tids[PASSES_MAX]; /* in our pid namespace, and in its own */
	unsigned count;
};

static int find_passing(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held)
{
	struct passing *passing = context;

	if (who->pid != passing->tracked->pid ||
		lien_holds(
			passing->agent, who->pid, &passing->shut, passing->tracked->gate_all, held))
		return 0;
	passing->keys[passing->count] = who->tid;
	passing->tids[passing->count++] = held->tid;
	return passing->count == PASSES_MAX;
}

/* No order is under way that this one would have to wait for. */
static bool is_free(const struct lien_link *link)
{
	return !link->asked && !link->waiting.asker;
}

void lien_gate_let_go(struct lien_agent *agent, struct lien_tracked *tracked)
{
	struct passing passing = {.agent = agent, .tracked = tracked};
	struct lien_wire_header order = {.type = LIEN_WIRE_GATE, .arg = LIEN_WIRE_GATE_PASS};
	unsigned i;

	tracked->let_go_later = false;
	if (!lien_probes_gate_holds(agent->probes, tracked->pid, &passing.shut))
		return;
	lien_probes_held(agent->probes, find_passing, &passing);
	if (!passing.count || !tracked->link)
		return;
	tracked->let_go_later = !is_free(tracked->link);
	if (tracked->let_go_later)
		return;
	/* They count as inside from now on, until they return. */
	for (i = 0; i < passing.count; i++)
		lien_probes_let_in(agent->probes, tracked->pid, passing.keys[i]);
	order.length = sizeof(order) + passing.count * sizeof(passing.tids[0]);
	lien_link_send(tracked->link, LIEN_ASK_GATE, &order, passing.tids, NULL, 0);
}

void lien_gate_stays(struct lien_agent *agent, uint32_t pid)
{
	struct lien_probe_shut range;

	if (!lien_probes_gate_holds(agent->probes, pid, &range))
		return;
	range.busy = 0;
	lien_probes_gate_shut(agent->probes, pid, &range, NULL);
}

void lien_gate_set_on_use(struct lien_agent *agent, enum lien_on_use on_use)
{
	const bool named =
		agent->request.selection.groups_count || agent->request.selection.tags_count;
	struct lien_probe_shut range;
	struct lien_tracked *tracked;
	struct lien_process *process;
	unsigned i;

	for (i = 0; i < agent->plan.processes_count; i++) {
		tracked = lien_gate_tracked(agent, agent->plan.processes[i].pid);
		if (!tracked)
			continue;
		tracked->on_use = on_use;
		process = lien_graph_process(agent->graph, tracked->pid);
		if (process)
			process->used_in = NULL;
		tracked->use_all = on_use == LIEN_ON_USE_RESTORE && !named &&
				   (tracked->use_all || !tracked->gate_was_shut);
		if (on_use != LIEN_ON_USE_IGNORE ||
			!lien_probes_gate_holds(agent->probes, tracked->pid, &range))
			continue;
		range.trusting = 1;
		if (!lien_probes_gate_shut(agent->probes, tracked->pid, &range, NULL))
			lien_gate_let_go(agent, tracked);
	}
}

void lien_gate_restored(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_probe_shut range;

	if (tracked && lien_probes_gate_holds(agent->probes, process->pid, &range) &&
		range.trusting)
		lien_gate_let_go(agent, tracked);
}

/* Threads that the earlier offload holds stay held. Threads at calls that only this transaction
 * holds go on. */
static void go_back(struct lien_agent *agent, struct lien_tracked *tracked, char *why, size_t size)
{
	if (!tracked->gate_was_shut ||
		lien_gate_shut_to(agent, tracked->pid, &tracked->gate_held, NULL, why, size))
		return;
	if (!tracked->gate_was_all) {
		tracked->gate_all = false;
		lien_probes_gate_nccl_alone(agent->probes, tracked->pid);
	}
	lien_gate_let_go(agent, tracked);
}

int lien_gate_step(void *context, uint32_t pid, enum lien_gate_step step, char *why, size_t size)
{
	struct lien_agent *agent = context;
	struct lien_process *process = lien_graph_process(agent->graph, pid);
	struct lien_probe_shut range = {.meetings_alone = step == LIEN_GATE_LEVEL, .busy = 1}, now;
	struct lien_tracked *tracked = process ? process->agent : NULL;
	const struct lien_probe_shut *held;

	if (!process) {
		snprintf(why, size, "it has ended");
		return -ESRCH;
	}
	if (step == LIEN_GATE_BEGIN || step == LIEN_GATE_MAKE) {
		if (tracked) {
			tracked->gate_was_shut =
				lien_probes_gate_holds(agent->probes, pid, &tracked->gate_held);
			tracked->late_count = 0; /* it knows of nobody */
		}
		return lien_gate_make(agent, process, step == LIEN_GATE_MAKE, why, size);
	}
	if (step == LIEN_GATE_OPEN) {
		open_gate(agent, pid);
		return 0;
	}
	if (step == LIEN_GATE_BACK) {
		if (tracked)
			go_back(agent, tracked, why, size);
		return 0;
	}
	if (step == LIEN_GATE_HOLDS)
		return still_holds(agent, pid, why, size);
	/* An earlier transaction, or agent, may have ended on the way to rest. */
	if (step == LIEN_GATE_LEVEL && lien_probes_allow_none(agent->probes)) {
		snprintf(why, size, "what was let in before cannot be taken back");
		return -EIO;
	}
	if (!tracked || !tracked->gate_all)
		range.meetings_alone = 0; /* nothing else is held */
	range_of(agent, pid, &range);
	/* LEVEL again: what this transaction has held meanwhile is not held any more. */
	if (step == LIEN_GATE_LEVEL && tracked)
		held = tracked->gate_was_shut ? &tracked->gate_held : NULL;
	else
		held = lien_probes_gate_holds(agent->probes, pid, &now) ? &now : NULL;
	return lien_gate_shut_to(agent, pid, &range, held, why, size);
}

bool lien_gate_found(struct lien_agent *agent, struct lien_process *process, bool away, bool shut)
{
	struct lien_wire_header open = {
		.length = sizeof(open), .type = LIEN_WIRE_GATE, .arg = LIEN_WIRE_GATE_OPEN};
	struct lien_tracked *tracked = process->agent;
	char why[200];

	if (!lien_probes_can_gate(agent->probes))
		return false;
	if (away) {
		if (lien_gate_make_for_all(agent, process, why, sizeof(why)))
			lien_log(4, "process %u, whose memory is away: %s", process->pid, why);
		return false;
	}
	open_gate(agent, process->pid);
	/* An earlier agent has shut it. */
	return shut && !lien_link_send(tracked->link, LIEN_ASK_GATE, &open, NULL, NULL, 0);
}
