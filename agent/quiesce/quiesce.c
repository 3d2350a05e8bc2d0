// SPDX-License-Identifier: BSD-2-Clause
/* Looks at whether a job is at rest, and answers the transaction's other questions about that. */
#include "agent/quiesce/quiesce.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/quiesce/elsewhere.h"
#include "agent/quiesce/rest_internal.h"
#include "loader/probes/calls.h"
#include "loader/probes/follow.h"
#include "loader/probes/gate.h"

/* The time that ranks have to come level if no counts show when they are. It doubles with each step
 * LEVEL, LEVELS_MAX times at most. */
#define LEVEL_NS   100000000ull
#define LEVELS_MAX 5

static uint64_t level_ns(const struct lien_resting *resting)
{
	return LEVEL_NS << (resting->levels < LEVELS_MAX ? resting->levels : LEVELS_MAX);
}

/*
 * First the ranks come to the same point, while all but the calls in which they meet goes on: a
 * rank that lags gets there at full speed. Returns true when it is time to hold the rest: nobody is
 * behind, or nobody shows that somebody may be.
 */
static bool is_level(const struct rest *rest, bool any_busy)
{
	unsigned i;

	if (!any_busy)
		return true;
	/* Its threads make calls that would be held. */
	for (i = 0; i < rest->count; i++)
		if (rest->resting->working[i])
			return false;
	return !lien_targets_lag(&rest->targets) &&
	       (lien_targets_counted(&rest->targets) ||
		       rest->resting->ns > level_ns(rest->resting));
}

/* Is a thread about to free the communicator? NCCL must not be asked about it then. A held thread
 * has not begun to. */
static bool is_ending(const struct lien_agent *agent, const struct lien_process *process,
	const struct lien_comm *comm)
{
	const struct lien_pending *pending;

	TAILQ_FOREACH (pending, &process->pending, next)
		if ((pending->event.type == LIEN_CALL_NCCL_DESTROY ||
			    pending->event.type == LIEN_CALL_NCCL_ABORT) &&
			pending->event.comm_end.comm == comm->address &&
			!lien_probes_is_held(agent->probes, process->pid, pending->event.tid))
			return true;
	return false;
}

unsigned lien_quiesce_background(void *context, uint32_t pid, uint64_t *comms, unsigned max)
{
	struct lien_agent *agent = context;
	struct lien_probe_process known;
	struct lien_process *process;
	struct lien_comm *comm;
	unsigned n = 0;

	if (!lien_probes_process(agent->probes, pid, &known) || !known.nonblocking)
		return 0;
	lien_agent_catch_up(agent); /* with threads that have begun to free one */
	process = lien_graph_process(agent->graph, pid);
	if (!process)
		return 0;
	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		if (n < max && !is_ending(agent, process, comm))
			comms[n++] = comm->address;
	return n;
}

static void say_who(const struct rest *rest, char *why, size_t size)
{
	const struct waiting *first = rest->waiting;
	const struct lien_standing *standing;

	if (!rest->waiting_count)
		return;
	standing = rest->targets.held[0].standing;
	rest->resting->who = first->who.pid;
	if (standing && standing->rank >= 0)
		snprintf(why, size,
			"rank %d (process %u) waits before %s, which others may wait for",
			standing->rank, first->who.pid, lien_calls_name(first->held.call));
	else
		snprintf(why, size, "process %u waits before %s, which others may wait for",
			first->who.pid, lien_calls_name(first->held.call));
}

const char *lien_quiesce_not_now(void *context, uint32_t pid)
{
	struct lien_agent *agent = context;
	struct lien_process *process;

	/* A capture may have begun just before the gate was shut. If the agent is far behind, it is
	 * noticed when the job is at rest. */
	lien_agent_catch_up(agent);
	process = lien_graph_process(agent->graph, pid);
	return process && !RB_EMPTY(&process->captures)
		       ? "is capturing a CUDA graph: try again when it is done"
		       : NULL;
}

/* What the kernel side says, and what follows from it. Returns false if out of memory. */
static bool take_all(struct rest *rest)
{
	struct lien_targets *targets = &rest->targets;

	/* Whoever comes from now on is held. */
	rest->since = lien_now_ns();
	if (lien_probes_allow_none(rest->agent->probes) ||
		lien_probes_held(rest->agent->probes, lien_rest_gather, rest) < 0)
		return false;
	lien_rest_sort(rest);
	if (!lien_rest_take_standings(rest) ||
		(rest->agent->elsewhere && !lien_rest_take_others(rest)) ||
		!lien_rest_take_held(rest))
		return false;
	targets->of = calloc(rest->count + 2, sizeof(*targets->of));
	targets->order = calloc(2 * (targets->standings_count + 1), sizeof(*targets->order));
	if (!targets->of || !targets->order)
		return false;
	rest->behind = lien_targets_compute(targets);
	return true;
}

/* Has every capture that it may have begun been seen? Asking its devices spoils those that have
 * not.
 */
static bool captures_are_known(const struct lien_process *process)
{
	return process && process->t_first && !(process->incomplete & LIEN_INCOMPLETE_REREAD);
}

static enum lien_rest look(struct rest *rest, char *why, size_t size)
{
	bool quiet, covered = true, any_busy = false, known = true;
	const struct lien_process *process;
	enum lien_rest advanced;
	unsigned i;

	lien_turn_part(rest->agent, "rest", "held threads");
	if (!take_all(rest))
		return LIEN_REST_FAR;
	rest->resting->counted = lien_targets_counted(&rest->targets);
	rest->resting->launches = lien_targets_unsure(&rest->targets);
	say_who(rest, why, size);
	lien_turn_part(rest->agent, "rest", "gates");
	for (i = 0, quiet = true; i < rest->count; i++) {
		process = lien_graph_process(rest->agent->graph, rest->pids[i]);
		rest->resting->launches |= process && process->captured;
		known &= captures_are_known(process);
		rest->busy[i] = rest->resting->busy[i];
		if (!lien_rest_is_quiet(rest, rest->pids[i], &rest->busy[i], &covered, why, size))
			quiet = false;
	}
	rest->resting->launches |= known;
	any_busy |= rest->busy[lien_rest_elsewhere(rest)];
	lien_turn_part(rest->agent, "rest", "threads");
	if (!lien_rest_all_seen(rest, covered ? why : NULL, size))
		quiet = false;
	if (rest->miscounted)
		return LIEN_REST_NEAR;
	for (i = 0; i < rest->count; i++)
		any_busy |= rest->busy[i];
	rest->resting->idle = lien_targets_idle(&rest->targets);
	lien_turn_part(rest->agent, "rest", "let in");
	/* A rank that waits for others is busy: if none is, counts that differ mean nothing. */
	advanced = any_busy && !lien_elsewhere_holds(rest->agent) ? lien_rest_advance(rest)
								  : LIEN_REST_FAR;
	if (advanced != LIEN_REST_FAR)
		return advanced;
	/* One order at a time: not together with others that are let in. */
	if (!lien_elsewhere_holds(rest->agent) && lien_rest_let_late_in(rest))
		return LIEN_REST_NEAR;
	if (rest->resting->levelling)
		return covered && is_level(rest, any_busy) ? LIEN_REST_LEVEL : LIEN_REST_NEAR;
	/* Whoever is allowed to enter could do so at any time. */
	return quiet && !rest->allowed && lien_rest_can_hold(rest, why, size) ? LIEN_REST_REACHED
									      : LIEN_REST_FAR;
}

enum lien_rest lien_quiesce_look(void *context, struct lien_resting *resting)
{
	struct lien_agent *agent = context;
	struct rest rest = {.agent = agent,
		.resting = resting,
		.pids = resting->pids,
		.busy = calloc(resting->count + 1, sizeof(bool)),
		.count = resting->count};
	enum lien_rest found = LIEN_REST_FAR;

	/* The kernel's next answers describe the present, so the graph must, too. */
	lien_turn_part(agent, "rest", "records");
	if (!lien_agent_catch_up(agent)) {
		snprintf(resting->why, resting->size,
			"the agent has yet to read what the jobs have done");
		if (agent->elsewhere)
			lien_elsewhere_looked(agent, false, NULL);
	} else if (rest.busy && lien_rest_index_pids(&rest)) {
		rest.targets = (struct lien_targets){.busy = rest.busy,
			.working = resting->working,
			.processes = resting->count,
			.disbelieved = resting->disbelieved,
			.transfers = lien_rest_transfers,
			.context = &rest};
		found = look(&rest, resting->why, resting->size);
		if (agent->elsewhere)
			lien_rest_tell_others(&rest, found == LIEN_REST_REACHED);
	}
	free(rest.busy);
	free(rest.places);
	free(rest.begun);
	free(rest.waiting);
	free(rest.by_thread);
	free(rest.targets.held);
	free(rest.targets.of);
	free(rest.targets.order);
	free(rest.targets.standings);
	free(rest.start);
	return found;
}
