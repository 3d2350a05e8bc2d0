// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/nodes_move.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include <lien/clock.h>

#include "tools/cli/interrupt.h"
#include "tools/cli/nodes_decision.h"
#include "tools/cli/nodes_members.h"
#include "tools/cli/nodes_mover.h"
#include "tools/cli/nodes_orders.h"
#include "tools/cli/nodes_replies.h"
#include "tools/cli/nodes_result.h"
#include "tools/text/complain.h"
#include "tools/text/output.h"

#define LEASE_MS 10000
#define PLAN_MS	 60000

/*
 * A slow disk may take longer to write than the leases last, and then nodes have undone by
 * themselves: so the leases are looked at again between the steps. The decision has its name only
 * once it is on disk and in time. The rename takes time, too, and the disk has to write the
 * directory: hence the last look, in lien_coordinator_decided(), at which the file can still go. No
 * node has been told until then, and none reads the file. Its only readers are people, and `lien
 * restore --nodes`, which takes it for what may be away: should the command die just before the
 * file goes, the restore finds nothing to do, and removes it.
 */
static void decide(struct mover *mover)
{
	const uint64_t began = lien_clock_ns();
	json_t *names = json_array(), *decision;
	unsigned i;
	int err, late;

	for (i = 0; i < mover->count; i++)
		json_array_append_new(
			names, json_string(mover->nodes->links[mover->members[i].node].name));
	decision = json_pack("{s:s, s:s, s:o, s:s}", "id", mover->id, "decision", "offload",
		"nodes", names, "launch", mover->nodes->launch.command);
	err = lien_decision_write(mover->directory, mover->id, decision);
	json_decref(decision);
	if (!err && lien_coordinator_late(&mover->coordinator, lien_clock_ns()) < 0)
		err = lien_decision_publish(mover->directory, mover->id);
	mover->write_error = err;
	mover->wrote = lien_coordinator_decided(&mover->coordinator, !err, lien_clock_ns());
	if (!mover->wrote)
		lien_decision_remove(mover->directory, mover->id);
	late = err || mover->wrote ? -1 : mover->coordinator.failed;
	if (late >= 0 && !mover->members[late].error)
		mover->members[late].error = lien_format(
			"its lease ends before it can hear of the decision, which took %" PRIu64
			" ms to be written to %s: another --state, or a longer --lease",
			(lien_clock_ns() - began) / 1000000, mover->directory);
}

/* --- the loop --------------------------------------------------------------------------------- */

static void on_signal(struct mover *mover)
{
	if (!lien_interrupt_take(mover->signals))
		return;
	if (mover->caught++)
		fprintf(stderr, "left: each node undoes what is not decided yet\n");
	else if (lien_coordinator_cancel(&mover->coordinator, lien_clock_ns()))
		fprintf(stderr, "cancelling on all nodes; Ctrl-C again leaves it to them\n");
	else
		fprintf(stderr, "too late to cancel; Ctrl-C again leaves it to the nodes\n");
}

static void begin(struct mover *mover)
{
	struct member *member;
	unsigned i;

	for (i = 0; i < mover->count; i++) {
		member = &mover->members[i];
		json_object_set_new(member->request, "coordinate",
			json_pack("{s:s, s:i}", "id", mover->id, "lease_ms", (int)mover->lease_ms));
		lien_nodes_send(mover->nodes, member->node, LIEN_ON_MOVE, member->request);
		member->t_begun = lien_clock_ns();
	}
}

/* Launches lost nodes again, to ask them what they have done. */
static void reach_again(struct mover *mover)
{
	const uint64_t now = lien_clock_ns();
	struct member *member;
	unsigned i;

	if (mover->coordinator.phase != LIEN_COORDINATOR_COMMITTING &&
		mover->coordinator.phase != LIEN_COORDINATOR_MENDING)
		return;
	for (i = 0; i < mover->count; i++) {
		member = &mover->members[i];
		if (!mover->states[i].lost || !mover->nodes->links[member->node].lost ||
			now < member->t_again)
			continue;
		lien_nodes_restart(mover->nodes, member->node);
		member->ordered = false;
	}
}

static void tick(struct mover *mover)
{
	const uint64_t now = lien_clock_ns();
	unsigned i;

	for (i = 0; i < mover->count; i++)
		if (!mover->states[i].heard && !mover->states[i].nothing &&
			now > mover->members[i].t_begun + PLAN_MS * 1000000ull)
			lien_nodes_replies_lost(
				mover, mover->members[i].node, "its agent gave no answer in time");
	lien_coordinator_tick(&mover->coordinator, now);
	reach_again(mover);
}

/* When all have planned, a node that is named and has no process of the job is a mistake. */
static void check_absent(struct mover *mover)
{
	unsigned i;

	if (mover->coordinator.phase != LIEN_COORDINATOR_GOING || mover->checked)
		return;
	mover->checked = true;
	for (i = 0; i < mover->count; i++) {
		if (!mover->members[i].absent)
			continue;
		mover->members[i].error = lien_format("%s", mover->members[i].absent);
		lien_coordinator_refuse(&mover->coordinator, i, lien_clock_ns());
		return;
	}
}

static bool has_all_results(const struct mover *mover)
{
	unsigned i;

	for (i = 0; i < mover->count; i++)
		if (!mover->members[i].answered && !mover->members[i].t_mend &&
			!mover->states[i].lost)
			return false;
	return true;
}

static void run(struct mover *mover)
{
	const struct lien_nodes_calls calls = lien_nodes_replies(mover);
	uint64_t t_tick = 0, t_work, t_compare = 0, until = 0;
	const uint64_t every = mover->lease_ms / 4 < 250 ? mover->lease_ms / 4 : 250;
	unsigned i;

	begin(mover);
	while (mover->caught < 2) {
		t_work = lien_clock_ns();
		/* Reports come one by one: of many nodes, a few comparisons are enough. */
		if (mover->reports_changed && t_work >= t_compare) {
			lien_nodes_orders_compare(mover);
			t_compare = lien_clock_ns() + 3 * (lien_clock_ns() - t_work);
		}
		if (mover->coordinator.phase == LIEN_COORDINATOR_DECIDING)
			decide(mover);
		check_absent(mover);
		for (i = 0; i < mover->count; i++)
			lien_nodes_order(mover, i);
		if (t_work > t_tick + every * 1000000) {
			tick(mover);
			t_tick = t_work;
		}
		mover->busy_ns += lien_clock_ns() - t_work;
		if (mover->coordinator.phase == LIEN_COORDINATOR_ENDED) {
			until = until ? until : lien_clock_ns() + LIEN_MOVER_RESULT_MS * 1000000ull;
			if (has_all_results(mover) || lien_clock_ns() > until)
				return;
		}
		lien_nodes_poll(mover->nodes,
			mover->reports_changed ? 1 + (t_compare - t_work) / 1000000 : every,
			&calls);
		on_signal(mover);
	}
}

/* --- a move ----------------------------------------------------------------------------------- */

/* Each agent only plans. */
static json_t *dry_run(struct mover *mover, int *code)
{
	json_t *requests = json_array(), *results, *list = json_array(), *result;
	uint64_t bytes = 0;
	size_t i;

	for (i = 0; i < mover->nodes->count; i++)
		json_array_append(requests, mover->member_of[i] < 0
						    ? json_null()
						    : mover->members[mover->member_of[i]].request);
	results = lien_nodes_query_each(mover->nodes, mover->move->command, requests, code);
	json_decref(requests);
	json_array_foreach (results, i, result) {
		if (json_is_null(result))
			continue;
		bytes += lien_get_number(result, "bytes");
		json_array_append_new(list, json_pack("{s:s, s:O}", "node",
						    mover->nodes->links[i].name, "result", result));
	}
	result = results ? json_pack("{s:s, s:I, s:o}", "outcome", "dry run", "bytes",
				   (json_int_t)bytes, "nodes", json_incref(list))
			 : NULL;
	json_decref(list);
	json_decref(results);
	return result;
}

static bool make_id(struct mover *mover)
{
	uint64_t number;

	if (getrandom(&number, sizeof(number), 0) != sizeof(number))
		return false;
	snprintf(mover->id, sizeof(mover->id), "%016" PRIx64, number);
	return true;
}

/* Does it select everything that these nodes have? */
static bool is_of_all(const struct lien_nodes_move *move)
{
	return !move->pids->count && !move->slurm && !json_object_get(move->request, "comms") &&
	       !json_object_get(move->request, "tags");
}

/* Removes what earlier coordinators decided and could not carry out: this restore has mended it. */
static void forget_decisions(const struct mover *mover)
{
	json_t *names = json_array();
	unsigned i;

	for (i = 0; i < mover->count; i++)
		json_array_append_new(
			names, json_string(mover->nodes->links[mover->members[i].node].name));
	lien_decision_remove_of(mover->directory, names);
	json_decref(names);
}

static json_t *carry_out(struct mover *mover, int *code)
{
	const uint64_t began = lien_clock_ns();
	enum lien_coordinator_outcome outcome;
	sigset_t before;

	lien_coordinator_begin(&mover->coordinator, mover->states, mover->count,
		mover->move->restore, mover->lease_ms * 1000000ull, began);
	mover->signals = lien_interrupt_open(&before);
	run(mover);
	lien_interrupt_close(mover->signals, &before);
	outcome = mover->coordinator.outcome;
	if (mover->wrote && (outcome == LIEN_NODES_DONE || outcome == LIEN_NODES_MENDED))
		lien_decision_remove(mover->directory, mover->id);
	if (mover->move->restore && is_of_all(mover->move) &&
		(outcome == LIEN_NODES_DONE || outcome == LIEN_NODES_NOTHING))
		forget_decisions(mover);
	if (outcome == LIEN_NODES_DONE || outcome == LIEN_NODES_NOTHING) {
		*code = LIEN_EXIT_OK;
		return lien_nodes_result(mover, (lien_clock_ns() - began) / 1e6);
	}
	*code = lien_nodes_result_complain(mover);
	return NULL;
}

json_t *lien_nodes_move(struct lien_nodes *nodes, const struct lien_nodes_move *move, int *code)
{
	struct mover mover = {.nodes = nodes,
		.move = move,
		.lease_ms = move->lease_ms ? move->lease_ms : LEASE_MS};
	json_t *of_job = NULL, *result = NULL;
	int err;

	*code = LIEN_EXIT_USAGE;
	if (!lien_nodes_members_check(nodes, move))
		return NULL;
	*code = LIEN_EXIT_FAILURE;
	err = lien_decision_directory(move->state, mover.directory, sizeof(mover.directory));
	if (err) {
		lien_complain(move->command, "cannot write to %s: %s: see --state", mover.directory,
			strerror(-err));
		return NULL;
	}
	if (!lien_nodes_connect(nodes, move->command))
		return NULL;
	if (move->slurm && !move->pids->count) {
		of_job = lien_nodes_slurm(nodes, move->command, move->slurm, code);
		if (!of_job)
			return NULL;
	}
	if (!make_id(&mover))
		lien_complain(move->command, "no random number: %s", strerror(errno));
	else if (!lien_nodes_members_add(&mover, of_job))
		lien_complain(move->command,
			move->slurm ? "no process of job %s uses CUDA"
				    : "no node has such a process%s",
			move->slurm ? move->slurm : "");
	else if (lien_get_true(move->request, "dry_run"))
		result = dry_run(&mover, code);
	else
		result = carry_out(&mover, code);
	lien_nodes_members_free(&mover);
	json_decref(of_job);
	return result;
}
