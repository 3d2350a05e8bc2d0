// SPDX-License-Identifier: BSD-2-Clause
/* Starts offloads: plan, host memory, transaction. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/core/node.h"
#include "agent/core/open_files.h"
#include "agent/core/proc.h"
#include "agent/graph/bytes.h"
#include "agent/orders/orders.h"
#include "agent/quiesce/gate.h"
#include "loader/probes/gate.h"

/* Returns the bytes being added to the participants' arenas: they are part of what these need. */
static uint64_t being_prepared(struct lien_agent *agent, const struct lien_plan *plan)
{
	const struct lien_tracked *tracked;
	uint64_t bytes = 0;
	unsigned i;

	for (i = 0; i < plan->processes_count; i++) {
		tracked = lien_orders_tracked(agent, plan->processes[i].pid);
		if (tracked && lien_orders_asked(tracked) == LIEN_ASK_PREPARE)
			bytes += tracked->preparing_bytes;
	}
	return bytes;
}

static int check_limit(struct lien_agent *agent, const struct lien_plan *plan, uint64_t limit,
	uint64_t need, char *error, size_t size)
{
	uint64_t held = lien_prepare_held(agent) - being_prepared(agent, plan);

	if (agent->host_limit && (!limit || limit > agent->host_limit))
		limit = agent->host_limit;
	if (!limit || !plan->bytes || held + need <= limit)
		return 0;
	snprintf(error, size,
		"host memory: %s is to be moved, which needs %s more than the %s held now, and %s "
		"is allowed (--host-limit): see `lien arena`",
		lien_bytes(plan->bytes).text, lien_bytes(need).text, lien_bytes(held).text,
		lien_bytes(limit).text);
	return -ENOMEM;
}

int lien_orders_check_host(struct lien_agent *agent, const struct lien_plan *plan,
	const struct lien_how *how, char *error, size_t size)
{
	uint64_t bounce = how->flags & LIEN_WIRE_VERIFY ? LIEN_WIRE_ARENA_BOUNCE : 0, need = 0;
	struct lien_host_need *needs = calloc(plan->processes_count + 1, sizeof(*needs));
	struct lien_process *process;
	unsigned i;
	int err;

	if (!needs) {
		snprintf(error, size, "out of memory");
		return -ENOMEM;
	}
	for (i = 0; i < plan->processes_count; i++) {
		process = lien_graph_process(agent->graph, plan->processes[i].pid);
		needs[i].pid = plan->processes[i].pid;
		if (process && plan->processes[i].bytes)
			needs[i].bytes =
				lien_host_missing(process, plan->processes[i].bytes + bounce);
		need += needs[i].bytes;
	}
	err = check_limit(agent, plan, how->host_limit, need, error, size);
	if (!err)
		err = lien_host_check(&agent->host, needs, plan->processes_count, error, size);
	free(needs);
	return err;
}

static bool any_exports(const struct lien_agent *agent)
{
	struct lien_allocation *allocation;

	LIEN_FOREACH_ALLOCATION (allocation, agent->graph)
		if (!LIST_EMPTY(&allocation->shares))
			return true;
	return false;
}

/* Can it take part? */
static int check_process(const struct lien_process *process, const struct lien_viewer *viewer,
	char *error, size_t size)
{
	if (!lien_proc_owned(process, viewer)) {
		snprintf(error, size,
			"process %u does not run as you alone (set-user-id?): only root can move "
			"its memory",
			process->pid);
		return -EPERM;
	}
	return lien_proc_check_goes_on(process->pid, error, size);
}

int lien_orders_plan(struct lien_agent *agent, const struct lien_selection *selection,
	struct lien_plan *plan, char *error, size_t error_size)
{
	struct lien_selection with_files = *selection;
	struct lien_process *process;
	unsigned i;
	int err = lien_open_files_last(agent, &with_files.open, &with_files.open_count);

	if (err && any_exports(agent)) {
		snprintf(error, error_size,
			"cannot find out which exported memory is still open somewhere: %s",
			strerror(-err));
		agent->blame = (struct lien_blame){0};
		return err;
	}
	with_files.node = lien_node_now(agent);
	lien_turn_part(agent, "plan", "choice");
	err = lien_plan_offload(agent->graph, &with_files, plan, error, error_size);
	lien_turn_part(agent, "plan", "users");
	for (i = 0; !err && i < plan->processes_count; i++) {
		process = lien_graph_process(agent->graph, plan->processes[i].pid);
		err = check_process(process, &selection->viewer, error, error_size);
		if (err) {
			plan->blame = (struct lien_blame){
				err == -EPERM ? LIEN_CAUSE_PERMISSION : LIEN_CAUSE_NO_ANSWER,
				process->pid, 0};
			lien_plan_clear(plan);
		}
	}
	agent->blame = plan->blame;
	return err;
}

/* With `none`, the process's memory stays, also in this offload: the plan is made again at rest. */
static void no_context(void *context, uint32_t pid, bool none)
{
	struct lien_agent *agent = context;
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	if (process)
		process->no_context = none;
	if (!none)
		return;
	agent->transfer->no_context = true;
	agent->transfer->events = UINT64_MAX; /* the graph has changed since the plan */
}

/* The job is at rest: is the plan still the same? */
static int replan(void *context, const struct lien_plan **out, struct lien_blame *blame, char *why,
	size_t size)
{
	struct lien_agent *agent = context;
	struct lien_transfer *transfer = agent->transfer;
	struct lien_plan plan;
	int err;

	if (lien_graph_stats(agent->graph)->events == transfer->events)
		return 0;
	if (!transfer->t_rest)
		transfer->t_rest = lien_now_ns();
	if (lien_open_files_ask(agent, transfer->t_rest))
		return -EINPROGRESS;
	err = lien_orders_plan(agent, &transfer->selection, &plan, why, size);
	*blame = agent->blame;
	if (err)
		return err;
	lien_plan_clear(&agent->plan);
	agent->plan = plan;
	*out = &agent->plan;
	if (!plan.processes_count) {
		blame->cause = LIEN_CAUSE_NOT_AT_REST;
		snprintf(why, size, "nothing is left that could be moved%s%s",
			plan.left_count ? ": " : "", plan.left_count ? plan.left[0].reason : "");
		return -EAGAIN;
	}
	err = lien_orders_check_host(agent, &agent->plan, &transfer->how, why, size);
	if (err)
		blame->cause = LIEN_CAUSE_HOST_MEMORY;
	transfer->t_rest = 0; /* threads may be let in before the next time */
	return err ? err : 1;
}

/* Keeps it for the plan at rest. lien_orders_end() frees it. */
static int keep(struct lien_agent *agent, const struct lien_transfer *transfer)
{
	struct lien_transfer *kept = malloc(sizeof(*kept));
	const struct lien_plan *plan = &agent->plan;
	uint32_t *within;
	unsigned i;

	if (!kept)
		return -ENOMEM;
	*kept = *transfer;
	lien_transfer_point(kept);
	if (kept->selection.free) {
		/* However often it is planned again, only these take part. */
		within = calloc(plan->processes_count + 1, sizeof(*within));
		if (!within) {
			free(kept);
			return -ENOMEM;
		}
		for (i = 0; i < plan->processes_count; i++)
			within[i] = plan->processes[i].pid;
		kept->selection.within = within;
		kept->selection.within_count = plan->processes_count;
	}
	json_incref(kept->request);
	agent->transfer = kept;
	return 0;
}

/* A process has one gate for all of it that is away: it cannot both trust its threads and hold
 * them. */
static int check_promise(
	struct lien_agent *agent, enum lien_on_use on_use, char *error, size_t size)
{
	const struct lien_plan *plan = &agent->plan;
	const struct lien_process *process;
	struct lien_probe_shut shut;
	unsigned i;

	for (i = 0; lien_probes_can_gate(agent->probes) && i < plan->processes_count; i++) {
		process = lien_graph_process(agent->graph, plan->processes[i].pid);
		if (!process || !process->parked ||
			!lien_probes_gate_holds(agent->probes, process->pid, &shut) ||
			!shut.trusting == (on_use != LIEN_ON_USE_IGNORE))
			continue;
		snprintf(error, size,
			"process %u has other memory away, which was offloaded with%s on_use "
			"\"ignore\": restore that first, or ask for the same",
			process->pid, shut.trusting ? "" : "out");
		agent->blame = (struct lien_blame){LIEN_CAUSE_UNABLE, process->pid, 0};
		return -EBUSY;
	}
	return 0;
}

int lien_orders_offload(struct lien_agent *agent, const struct lien_transfer *transfer,
	bool *nothing, char *error, size_t error_size)
{
	const struct lien_selection *selection = &transfer->selection;
	const struct lien_how *how = &transfer->how;
	struct lien_transaction_ops ops = lien_orders_ops(agent);
	int err = lien_orders_ready(agent, error, error_size);
	const uint64_t events = lien_graph_stats(agent->graph)->events;
	bool all;

	if (err)
		return err;
	ops.no_context = no_context;
	ops.replan = replan;
	err = lien_orders_plan(agent, selection, &agent->plan, error, error_size);
	if (err)
		return err;
	*nothing = !agent->plan.processes_count;
	if (*nothing)
		return 0;
	err = check_promise(agent, how->on_use, error, error_size);
	if (err) {
		lien_plan_clear(&agent->plan);
		return err;
	}
	err = lien_orders_check_host(agent, &agent->plan, how, error, error_size);
	if (err) {
		agent->blame.cause = LIEN_CAUSE_HOST_MEMORY;
		lien_plan_clear(&agent->plan);
		return err;
	}
	err = keep(agent, transfer);
	/* Calls of other libraries than NCCL go on only if they cannot use what is moved. */
	all = !selection->owner || strcmp(selection->owner, "nccl") || selection->discard_count ||
	      agent->plan.inferred || agent->plan.handed_out;
	if (!err) {
		agent->transfer->events = events;
		agent->transfer->selection.certain = !all;
		err = lien_transaction_offload(&agent->transaction, &agent->plan, agent->token_base,
			how->flags | (all ? LIEN_WIRE_ALL : 0), how->timeout_ms, &ops);
	}
	if (err) {
		agent->blame.cause = lien_cause_of(err);
		snprintf(error, error_size, "%s", strerror(-err));
		lien_orders_end(agent);
		return err;
	}
	lien_turn_part(agent, "offload", "start");
	lien_gate_set(agent, all);
	agent->t_transaction = lien_now_ns();
	agent->transaction_of = selection->viewer;
	lien_transaction_start(agent->transaction);
	return 0;
}
