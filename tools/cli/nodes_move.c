// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/nodes_move.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <lien/clock.h>

#include "tools/cli/interrupt.h"
#include "tools/cli/nodes_decision.h"
#include "tools/cli/nodes_mover.h"
#include "tools/text/complain.h"
#include "tools/text/output.h"

#define LEASE_MS 10000
#define PLAN_MS	 60000

static bool is_node(const char *with_pid, const char *name)
{
	const size_t length = strlen(name);

	return !strncmp(with_pid, name, length) && with_pid[length] == ':';
}

/* Is each pid on a node that is named? Otherwise prints which one is not. */
static bool check_members(const struct lien_nodes *nodes, const struct lien_nodes_move *move)
{
	unsigned i, j;

	for (i = 0; i < move->pids->count; i++) {
		if (!move->pids->node[i]) {
			lien_complain(move->command, "--pid %d: on which node? --pid NODE:%d",
				(int)move->pids->pid[i], (int)move->pids->pid[i]);
			return false;
		}
		for (j = 0; j < nodes->count; j++)
			if (is_node(move->pids->node[i], nodes->links[j].name))
				break;
		if (j < nodes->count)
			continue;
		lien_complain(move->command, "--pid %s: that node is not one of --nodes",
			move->pids->node[i]);
		return false;
	}
	return true;
}

/* The pids on a node; NULL: all. */
static json_t *pids_of(const struct lien_nodes *nodes, const struct lien_nodes_move *move,
	unsigned node, const json_t *of_job)
{
	json_t *pids = json_array();
	unsigned i;

	for (i = 0; i < move->pids->count; i++)
		if (is_node(move->pids->node[i], nodes->links[node].name))
			json_array_append_new(pids, json_integer(move->pids->pid[i]));
	if (move->pids->count)
		return pids;
	json_decref(pids);
	return of_job ? json_incref(json_array_get(of_job, node)) : NULL;
}

/*
 * Adds the nodes that have one of the processes: those of --pid; without it those of of_job, an
 * array of pids for each node; without both, any. Returns false if there are no such nodes, or out
 * of memory. Call free_members() in any case.
 */
static bool add_members(struct mover *mover, const json_t *of_job)
{
	struct member *member;
	json_t *pids;
	unsigned i;

	mover->members = calloc(mover->nodes->count, sizeof(*mover->members));
	mover->states = calloc(mover->nodes->count, sizeof(*mover->states));
	mover->member_of = calloc(mover->nodes->count, sizeof(*mover->member_of));
	if (!mover->members || !mover->states || !mover->member_of)
		return false;
	for (i = 0; i < mover->nodes->count; i++) {
		pids = pids_of(mover->nodes, mover->move, i, of_job);
		mover->member_of[i] = -1;
		if (pids && !json_array_size(pids)) {
			json_decref(pids);
			continue;
		}
		member = &mover->members[mover->count];
		member->node = i;
		member->request = json_copy((json_t *)mover->move->request);
		if (pids)
			json_object_set_new(member->request, "pids", pids);
		mover->member_of[i] = mover->count++;
	}
	return mover->count;
}

static void free_members(struct mover *mover)
{
	unsigned i;

	for (i = 0; i < mover->count; i++) {
		json_decref(mover->members[i].request);
		json_decref(mover->members[i].result);
		json_decref(mover->members[i].others);
		json_decref(mover->members[i].sent);
		free(mover->members[i].error);
		free(mover->members[i].absent);
		lien_node_report_clear(&mover->members[i].report);
	}
	free(mover->members);
	free(mover->states);
	free(mover->member_of);
}

static bool same_order(const struct lien_node_order *a, const struct lien_node_order *b)
{
	return a->word == b->word && a->round == b->round && a->version == b->version;
}

static void send_word(
	struct mover *mover, struct member *member, const struct lien_node_order *order)
{
	json_t *request = json_pack("{s:s, s:s, s:s, s:I, s:I}", "op", "coordinate", "id",
		mover->id, "word", lien_node_word_name(order->word), "round",
		(json_int_t)order->round, "version", (json_int_t)order->version);

	if (member->others && member->others != member->sent) {
		json_object_set(request, "others", member->others);
		json_decref(member->sent);
		member->sent = json_incref(member->others);
	}
	lien_nodes_send(mover->nodes, member->node, LIEN_ON_WORD, request);
	json_decref(request);
	member->order = *order;
	member->ordered = true;
	member->t_order = lien_clock_ns();
	if (member->asked_count < LIEN_MOVER_ASKED_MAX)
		member->asked[member->asked_count++] = member->t_order;
}

/* Sends a member its order if that is new, or was last sent a quarter of the lease (at most a
 * second) ago. */
static void send_order(struct mover *mover, unsigned i)
{
	const uint64_t now = lien_clock_ns();
	struct member *member = &mover->members[i];
	struct lien_node_order order;
	const uint64_t every = mover->lease_ms / 4 < 1000 ? mover->lease_ms / 4 : 1000;

	if (!mover->nodes->links[member->node].hello ||
		!lien_coordinator_order(&mover->coordinator, i, &order))
		return;
	if (order.word == LIEN_WORD_RESTORE) {
		lien_nodes_mend(mover, member);
		member->order = order;
		return;
	}
	if (!member->ordered || !same_order(&order, &member->order) ||
		(member->others != member->sent && member->others) ||
		now > member->t_order + every * 1000000)
		send_word(mover, member, &order);
}

/* Works out what each node has to know of the others, once all have reported. send_order()
 * sends it. */
static void compare_reports(struct mover *mover)
{
	struct lien_node_report *reports;
	struct lien_node_others *others;
	json_t *json;
	unsigned i;
	int err = -ENOMEM, too_many;

	mover->reports_changed = false;
	if (mover->coordinator.restore)
		return;
	for (i = 0; i < mover->count; i++)
		if (!mover->members[i].compared && !mover->states[i].nothing)
			return;
	reports = calloc(mover->count, sizeof(*reports));
	others = calloc(mover->count, sizeof(*others));
	for (i = 0; reports && i < mover->count; i++)
		reports[i] = mover->members[i].report;
	if (reports && others)
		err = lien_node_compare(reports, mover->count, others, &too_many);
	if (err == -E2BIG && !mover->members[too_many].error) {
		mover->members[too_many].error = lien_format(
			"its ranks have transfers with ranks on other nodes in more than %d pairs, "
			"too many to compare: name fewer processes (--pid)",
			LIEN_NODE_OTHERS_MAX);
		lien_coordinator_refuse(&mover->coordinator, too_many, lien_clock_ns());
	}
	if (!err) {
		for (i = 0; i < mover->count; i++) {
			json = lien_node_others_json(&others[i]);
			if (json_equal(json, mover->members[i].others)) {
				json_decref(json);
				continue;
			}
			json_decref(mover->members[i].others);
			mover->members[i].others = json;
		}
	}
	for (i = 0; others && i < mover->count; i++)
		lien_node_others_clear(&others[i]);
	free(others);
	free(reports);
}

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
			compare_reports(mover);
			t_compare = lien_clock_ns() + 3 * (lien_clock_ns() - t_work);
		}
		if (mover->coordinator.phase == LIEN_COORDINATOR_DECIDING)
			decide(mover);
		check_absent(mover);
		for (i = 0; i < mover->count; i++)
			send_order(mover, i);
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
	if (!check_members(nodes, move))
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
	else if (!add_members(&mover, of_job))
		lien_complain(move->command,
			move->slurm ? "no process of job %s uses CUDA"
				    : "no node has such a process%s",
			move->slurm ? move->slurm : "");
	else if (lien_get_true(move->request, "dry_run"))
		result = dry_run(&mover, code);
	else
		result = carry_out(&mover, code);
	free_members(&mover);
	json_decref(of_job);
	return result;
}
