// SPDX-License-Identifier: BSD-2-Clause
/* Starts restores, and releases of host arenas. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/core/node.h"
#include "agent/core/proc.h"
#include "agent/graph/bytes.h"
#include "agent/graph/named.h"
#include "agent/graph/array.h"
#include "agent/orders/orders.h"

static bool wanted(const struct lien_selection *selection, const struct lien_process *process)
{
	return selection->pids_count
		       ? lien_pids_have(selection->pids, selection->pids_count, process->pid)
		       : lien_viewer_sees(&selection->viewer, process);
}

/* Moves one to the end of those at the list's beginning that are kept. */
static void keep(uint32_t *all, unsigned *kept, unsigned i)
{
	uint32_t pid = all[*kept];

	all[(*kept)++] = all[i];
	all[i] = pid;
}

/*
 * Keeps those of `all` that are wanted or may share with a wanted one, so that no others can delay
 * them.
 */
static unsigned narrow(struct lien_agent *agent, const struct lien_selection *selection,
	uint32_t *all, unsigned count)
{
	unsigned kept = 0, i, j;

	for (i = 0; i < count; i++)
		if (wanted(selection, lien_graph_process(agent->graph, all[i])))
			keep(all, &kept, i);
	for (i = 0; i < kept; i++)
		for (j = kept; j < count; j++)
			if (lien_orders_may_share(agent, all[i], all[j]))
				keep(all, &kept, j);
	return kept;
}

/* May one of these have something of an earlier agent's, and share it? Only it knows with whom. */
static bool may_share_any(
	struct lien_agent *agent, uint32_t pid, const uint32_t *stopped, unsigned count)
{
	const struct lien_process *process;
	unsigned i;

	for (i = 0; i < count; i++) {
		process = lien_graph_process(agent->graph, stopped[i]);
		if (process && process->held_items && lien_orders_may_share(agent, stopped[i], pid))
			return true;
	}
	return false;
}

/*
 * Moves to the end of `all` those that are stopped, and those that may share with them what is
 * offloaded: they stay offloaded. Fills `stopped`, which has as much room, and what lets the first
 * go on, and returns how many are left; -ENOMEM.
 */
static int set_aside(struct lien_agent *agent, uint32_t *all, unsigned count, uint32_t *stopped,
	unsigned *stopped_count, char remedy[static LIEN_REMEDY_SIZE])
{
	struct lien_selection these = {.pids = stopped};
	char other[LIEN_REMEDY_SIZE];
	uint32_t *with;
	unsigned i, kept = 0;
	int with_count;

	*stopped_count = 0;
	for (i = 0; i < count; i++)
		if (lien_proc_halted(all[i], *stopped_count ? other : remedy))
			stopped[(*stopped_count)++] = all[i];
	if (!*stopped_count)
		return count;
	with = calloc(lien_graph_stats(agent->graph)->processes + 1, sizeof(*with));
	these.pids_count = *stopped_count;
	with_count = with ? lien_plan_restore(agent->graph, &these, with) : -ENOMEM;
	if (with_count > 0)
		qsort(with, with_count, sizeof(*with), lien_pid_cmp);
	for (i = 0; with_count >= 0 && i < count; i++)
		if (!lien_pids_find(with, with_count, all[i]) &&
			!lien_pids_have(stopped, *stopped_count, all[i]) &&
			!may_share_any(agent, all[i], stopped, *stopped_count))
			keep(all, &kept, i);
	free(with);
	return with_count < 0 ? with_count : (int)kept;
}

/* Nothing can be restored but what a stopped process may share. */
static int refuse_stopped(struct lien_agent *agent, uint32_t pid, const char *remedy,
	unsigned others, char *error, size_t size)
{
	char also[100] = "";

	if (others)
		snprintf(also, sizeof(also), "; %u other %s share memory with it", others,
			others == 1 ? "process may" : "processes may");
	snprintf(
		error, size, "process %u is stopped: let it go on first (%s)%s", pid, remedy, also);
	agent->blame = (struct lien_blame){LIEN_CAUSE_NO_ANSWER, pid, 0};
	return -EBUSY;
}

/* Of what an earlier agent has moved, only the control library may know the tag. */
static int check_tags(struct lien_agent *agent, const struct lien_selection *selection, char *error,
	size_t error_size)
{
	struct lien_process *process;

	if (!selection->tags_count || lien_known_any_tag(agent->graph, &selection->viewer,
					      selection->tags, selection->tags_count))
		return 0;
	LIEN_FOREACH_PROCESS (process, agent->graph)
		if (process->held_items)
			return 0;
	agent->blame.cause = LIEN_CAUSE_INVALID;
	lien_known_tags(agent->graph, &selection->viewer, selection->tags[0], error, error_size);
	return -ESRCH;
}

static int choose(struct lien_transaction *transaction, const struct lien_selection *selection)
{
	uint64_t *tags = calloc(selection->tags_count + 1, sizeof(*tags));
	unsigned i;
	int err;

	if (!tags)
		return -ENOMEM;
	for (i = 0; i < selection->tags_count; i++)
		tags[i] = lien_plan_tag_hash(selection->tags[i]);
	err = lien_transaction_choose(transaction, selection->pids, selection->pids_count,
		selection->groups, selection->groups_count, tags, selection->tags_count);
	free(tags);
	return err;
}

int lien_orders_restore(struct lien_agent *agent, const struct lien_selection *selection,
	const struct lien_how *how, bool *nothing, char *error, size_t error_size)
{
	struct lien_transaction_ops ops = lien_orders_ops(agent);
	const unsigned room = lien_graph_stats(agent->graph)->processes + 1;
	unsigned stopped_count = 0;
	char remedy[LIEN_REMEDY_SIZE];
	uint32_t *all, *stopped;
	int count, kept;
	int err = lien_orders_ready(agent, error, error_size);

	if (err)
		return err;
	err = lien_plan_check_pids(agent->graph, selection, &agent->blame, error, error_size);
	if (!err)
		err = check_tags(agent, selection, error, error_size);
	if (err)
		return err;
	all = calloc(2 * room, sizeof(*all));
	if (!all)
		return -ENOMEM;
	stopped = all + room;
	count = lien_plan_restore(agent->graph, selection, all);
	if (count > 0)
		count = narrow(agent, selection, all, count);
	*nothing = !count;
	kept = count > 0 ? set_aside(agent, all, count, stopped, &stopped_count, remedy) : count;
	if (count > 0 && !kept) {
		refuse_stopped(agent, stopped[0], remedy, count - 1, error, error_size);
		free(all);
		return -EBUSY;
	}
	err = kept <= 0 ? kept
			: lien_transaction_new(&agent->transaction, LIEN_TRANSACTION_RESTORE, all,
				  kept, how->timeout_ms, &ops);
	if (!err && stopped_count)
		lien_transaction_set_aside(
			agent->transaction, stopped[0], count - kept - 1, remedy);
	free(all);
	if (!err && !*nothing) {
		err = choose(agent->transaction, selection);
		if (err)
			lien_orders_end(agent);
	}
	if (err)
		snprintf(error, error_size, "%s", strerror(-err));
	if (err || *nothing)
		return err;
	if (!lien_node_now(agent) || !lien_node_now(agent)->count)
		lien_node_refresh(agent); /* an error may have to name a GPU */
	if (how->lazy)
		lien_transaction_divide(agent->transaction);
	agent->t_transaction = lien_now_ns();
	agent->transaction_of = selection->viewer;
	lien_transaction_start(agent->transaction);
	return 0;
}

int lien_orders_release(struct lien_agent *agent, const struct lien_selection *selection,
	bool *nothing, char *error, size_t error_size)
{
	struct lien_transaction_ops ops = lien_orders_ops(agent);
	struct lien_process *process;
	uint64_t held = 0, used = 0;
	unsigned count = 0, i;
	uint32_t *chosen;
	int err = lien_orders_ready(agent, error, error_size);

	if (!err)
		err = lien_plan_check_pids(
			agent->graph, selection, &agent->blame, error, error_size);
	if (err)
		return err;
	chosen = calloc(lien_graph_stats(agent->graph)->processes + 1, sizeof(*chosen));
	if (!chosen)
		return -ENOMEM;
	LIEN_FOREACH_PROCESS (process, agent->graph) {
		if (!process->arena_bytes || !wanted(selection, process) ||
			!lien_proc_owned(process, &selection->viewer))
			continue;
		held += process->arena_bytes;
		used += process->arena_used;
		if (process->arena_used < process->arena_bytes)
			chosen[count++] = process->pid;
	}
	*nothing = !held;
	if (held && !count) {
		snprintf(error, error_size,
			"all host memory that is held, %s, is in use: `lien restore` first",
			lien_bytes(used).text);
		err = -EBUSY;
	}
	/* A process that is stopped answers no order. */
	for (i = 0; !err && i < count; i++)
		if (lien_proc_check_goes_on(chosen[i], error, error_size))
			err = -EBUSY;
	if (!err && count) {
		err = lien_transaction_new(
			&agent->transaction, LIEN_TRANSACTION_RELEASE, chosen, count, 0, &ops);
		if (err)
			snprintf(error, error_size, "%s", strerror(-err));
	}
	free(chosen);
	if (err || *nothing)
		return err;
	agent->t_transaction = lien_now_ns();
	agent->transaction_of = selection->viewer;
	lien_transaction_start(agent->transaction);
	return 0;
}
