// SPDX-License-Identifier: BSD-2-Clause
/* Starts offloads: plan, host memory, transaction. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/core/open_files.h"
#include "agent/core/proc.h"
#include "agent/orders/orders.h"
#include "agent/orders/prepare.h"
#include "agent/quiesce/gate.h"

/* Returns the bytes being added to the participants' arenas: they are part of what these need. */
static uint64_t being_prepared(struct lien_agent *agent)
{
	const struct lien_tracked *tracked;
	uint64_t bytes = 0;
	unsigned i;

	for (i = 0; i < agent->plan.processes_count; i++) {
		tracked = lien_orders_tracked(agent, agent->plan.processes[i].pid);
		if (tracked && lien_orders_asked(tracked) == LIEN_ASK_PREPARE)
			bytes += tracked->preparing_bytes;
	}
	return bytes;
}

static int check_limit(struct lien_agent *agent, uint64_t limit, uint64_t need, uint64_t all,
	char *error, size_t size)
{
	uint64_t held = lien_prepare_held(agent) - being_prepared(agent);

	if (agent->host_limit && (!limit || limit > agent->host_limit))
		limit = agent->host_limit;
	if (!limit || !need || held + need <= limit)
		return 0;
	snprintf(error, size,
		"host memory: %llu MiB are to be moved, which needs %llu MiB more than the %llu "
		"MiB held now, and %llu MiB are allowed (--host-limit): see `lien arena`",
		(unsigned long long)(all >> 20), (unsigned long long)(need >> 20),
		(unsigned long long)(held >> 20), (unsigned long long)(limit >> 20));
	return -ENOMEM;
}

/* Checked before anything is touched: the arena grows in the middle of the offload. */
static int check_host(
	struct lien_agent *agent, uint32_t flags, uint64_t limit, char *error, size_t size)
{
	uint64_t bounce = flags & LIEN_WIRE_VERIFY ? LIEN_WIRE_ARENA_BOUNCE : 0, need = 0;
	const struct lien_plan *plan = &agent->plan;
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
	err = check_limit(agent, limit, need, plan->bytes, error, size);
	if (!err)
		err = lien_host_check(&agent->host, needs, plan->processes_count, error, size);
	free(needs);
	return err;
}

static bool any_exports(const struct lien_agent *agent)
{
	struct lien_allocation *allocation;

	for (allocation = lien_graph_first_allocation(agent->graph); allocation;
		allocation = lien_graph_next_allocation(allocation))
		if (!LIST_EMPTY(&allocation->shares))
			return true;
	return false;
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
		return err;
	}
	lien_turn_part(agent, "plan", "choice");
	err = lien_plan_offload(agent->graph, &with_files, plan, error, error_size);
	lien_turn_part(agent, "plan", "users");
	for (i = 0; !err && i < plan->processes_count; i++) {
		process = lien_graph_process(agent->graph, plan->processes[i].pid);
		if (lien_proc_owned(process, &selection->viewer))
			continue;
		snprintf(error, error_size,
			"process %u does not run as you alone (set-user-id?): only root can move "
			"its memory",
			plan->processes[i].pid);
		lien_plan_clear(plan);
		err = -EPERM;
	}
	return err;
}

/* The job is at rest: is the plan still the same? */
int lien_orders_replan(void *context, const struct lien_plan **out, char *why, size_t size)
{
	struct lien_agent *agent = context;
	struct lien_offload_request *request = &agent->request;
	struct lien_plan plan;
	int err;

	if (lien_graph_stats(agent->graph)->events == request->events)
		return 0;
	if (!request->t_rest)
		request->t_rest = lien_now_ns();
	if (lien_open_files_ask(agent, request->t_rest))
		return -EINPROGRESS;
	err = lien_orders_plan(agent, &request->selection, &plan, why, size);
	if (err)
		return err;
	lien_plan_clear(&agent->plan);
	agent->plan = plan;
	*out = &agent->plan;
	if (!plan.processes_count) {
		snprintf(why, size, "nothing is left that could be moved");
		return -EAGAIN;
	}
	err = check_host(agent, request->how.flags, request->how.host_limit, why, size);
	return err ? err : 1;
}

int lien_orders_offload(struct lien_agent *agent, const struct lien_selection *selection,
	const struct lien_offload_how *how, bool *nothing, char *error, size_t error_size)
{
	struct lien_transaction_ops ops = lien_orders_ops(agent);
	int err = lien_orders_ready(agent, error, error_size);
	uint64_t events;
	bool all;

	if (err)
		return err;
	events = lien_graph_stats(agent->graph)->events;
	err = lien_orders_plan(agent, selection, &agent->plan, error, error_size);
	if (err)
		return err;
	*nothing = !agent->plan.processes_count;
	if (*nothing)
		return 0;
	err = check_host(agent, how->flags, how->host_limit, error, error_size);
	if (err) {
		lien_plan_clear(&agent->plan);
		return err;
	}
	err = lien_offload_request_copy(&agent->request, selection, how);
	if (!err)
		err = lien_transaction_offload(&agent->transaction, &agent->plan, agent->token_base,
			how->timeout_ms, &ops);
	if (err) {
		snprintf(error, error_size, "%s", strerror(-err));
		lien_orders_end(agent);
		return err;
	}
	agent->request.events = events;
	agent->request.t_rest = 0;
	lien_turn_part(agent, "offload", "start");
	all = !selection->owner || strcmp(selection->owner, "nccl") || selection->discard_count;
	lien_gate_set(agent, all);
	lien_transaction_set_flags(agent->transaction, how->flags | (all ? LIEN_WIRE_ALL : 0));
	agent->t_transaction = lien_now_ns();
	agent->transaction_of = selection->viewer;
	lien_transaction_start(agent->transaction);
	return 0;
}
