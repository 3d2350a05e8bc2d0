// SPDX-License-Identifier: BSD-2-Clause
/* Starts restores, and releases of host arenas. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/core/node.h"
#include "agent/core/proc.h"
#include "agent/graph/pids.h"
#include "agent/orders/orders.h"

static bool wanted(const struct lien_selection *selection, const struct lien_process *process)
{
	return selection->pids_count
		       ? lien_pids_have(selection->pids, selection->pids_count, process->pid)
		       : lien_viewer_sees(&selection->viewer, process);
}

/*
 * Keeps those of `all` that are wanted or may share with a wanted one, so that no others can delay
 * them.
 */
static unsigned narrow(struct lien_agent *agent, const struct lien_selection *selection,
	uint32_t *all, unsigned count)
{
	unsigned kept = 0, i, j;
	uint32_t pid;

	for (i = 0; i < count; i++)
		if (wanted(selection, lien_graph_process(agent->graph, all[i]))) {
			pid = all[kept];
			all[kept++] = all[i];
			all[i] = pid;
		}
	for (i = 0; i < kept; i++)
		for (j = kept; j < count; j++)
			if (lien_orders_may_share(agent, all[i], all[j])) {
				pid = all[kept];
				all[kept++] = all[j];
				all[j] = pid;
			}
	return kept;
}

static int check_pids(struct lien_agent *agent, const struct lien_selection *selection, char *error,
	size_t error_size)
{
	const struct lien_process *process;
	unsigned i;

	for (i = 0; i < selection->pids_count; i++) {
		process = lien_graph_process(agent->graph, selection->pids[i]);
		if (!process || !lien_viewer_sees(&selection->viewer, process)) {
			snprintf(error, error_size, LIEN_UNKNOWN_PROCESS, selection->pids[i]);
			return -ESRCH;
		}
	}
	return 0;
}

int lien_orders_restore(struct lien_agent *agent, const struct lien_selection *selection,
	uint32_t flags, unsigned timeout_ms, bool *nothing, char *error, size_t error_size)
{
	const unsigned pids_count = selection->pids_count;
	const uint32_t *pids = selection->pids;
	struct lien_transaction_ops ops = lien_orders_ops(agent);
	uint32_t *all;
	int count;
	int err = lien_orders_ready(agent, error, error_size);

	if (err)
		return err;
	err = check_pids(agent, selection, error, error_size);
	if (err)
		return err;
	all = calloc(lien_graph_stats(agent->graph)->processes + 1, sizeof(*all));
	if (!all)
		return -ENOMEM;
	count = lien_plan_restore(agent->graph, pids, pids_count, all);
	if (count > 0)
		count = narrow(agent, selection, all, count);
	*nothing = !count;
	err = count <= 0 ? count
			 : lien_transaction_restore(&agent->transaction, all, count, pids,
				   pids_count, timeout_ms, &ops);
	free(all);
	if (err)
		snprintf(error, error_size, "%s", strerror(-err));
	if (err || *nothing)
		return err;
	if (!lien_node_now(agent) || !lien_node_now(agent)->count)
		lien_node_refresh(agent); /* an error may have to name a GPU */
	lien_transaction_set_flags(agent->transaction, flags);
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
	unsigned count = 0;
	uint32_t *chosen;
	int err = lien_orders_ready(agent, error, error_size);

	if (!err)
		err = check_pids(agent, selection, error, error_size);
	if (err)
		return err;
	chosen = calloc(lien_graph_stats(agent->graph)->processes + 1, sizeof(*chosen));
	if (!chosen)
		return -ENOMEM;
	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
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
			"all host memory that is held, %llu MiB, is in use: `lien restore` first",
			(unsigned long long)(used >> 20));
		err = -EBUSY;
	} else if (count) {
		err = lien_transaction_release(&agent->transaction, chosen, count, &ops);
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
