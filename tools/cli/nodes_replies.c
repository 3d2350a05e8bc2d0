// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/nodes_mover.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <lien/clock.h>

#include "agent/nodes/part.h"
#include "tools/text/complain.h"
#include "tools/text/output.h"

/* The processes of which an agent has said that it has moved their memory; NULL: it has said
 * nothing. */
static json_t *moved_pids(const json_t *result)
{
	json_t *pids = json_array();
	const json_t *process;
	size_t i;

	json_array_foreach (json_object_get(result, "processes"), i, process)
		json_array_append(pids, json_object_get(process, "pid"));
	if (json_array_size(pids))
		return pids;
	json_decref(pids);
	return NULL;
}

/*
 * Returns a restore that puts back what the offload has dropped there: everything that its
 * processes have away; if they are not known, memory of the communicators and with the tags that
 * were selected. NULL: neither is known, and a restore would put back what others have offloaded.
 */
static json_t *make_mend(const struct member *member)
{
	json_t *pids = moved_pids(member->result);
	json_t *comms = json_object_get(member->request, "comms");
	json_t *tags = json_object_get(member->request, "tags");

	if (!pids)
		pids = json_incref(json_object_get(member->request, "pids"));
	if (pids)
		return json_pack("{s:s, s:o}", "op", "restore", "pids", pids);
	/* What was discarded has other tags, and can be of other communicators. */
	if ((!comms && !tags) || json_object_get(member->request, "discard"))
		return NULL;
	return json_pack("{s:s, s:O*, s:O*}", "op", "restore", "comms", comms, "tags", tags);
}

void lien_nodes_mend(struct mover *mover, struct member *member)
{
	const uint64_t now = lien_clock_ns();
	json_t *request;

	if (member->mending ||
		(member->t_restore && now < member->t_restore + LIEN_MOVER_AGAIN_MS * 1000000ull))
		return;
	member->t_mend = member->t_mend ? member->t_mend : now;
	if (!member->answered && now < member->t_mend + LIEN_MOVER_RESULT_MS * 1000000ull)
		return; /* its result names the processes */
	request = make_mend(member);
	if (!request) {
		member->unknown = true;
		lien_coordinator_mended(&mover->coordinator, member - mover->members, false, now);
		return;
	}
	lien_nodes_send(mover->nodes, member->node, LIEN_ON_MEND, request);
	json_decref(request);
	member->mending = true;
	member->t_restore = now;
}

static void take_mend(struct mover *mover, unsigned i, const json_t *line)
{
	struct member *member = &mover->members[i];
	const bool ok = lien_get_true(line, "ok");

	member->mending = false;
	if (!ok && !strcmp(lien_get_text(line, "code"), "busy"))
		return; /* again, a second later */
	if (!ok) {
		free(member->error);
		member->error = lien_format("%s", lien_get_text(line, "error"));
	}
	lien_coordinator_mended(&mover->coordinator, i, ok, lien_clock_ns());
}

static struct member *member_of(struct mover *mover, unsigned node)
{
	return mover->member_of[node] < 0 ? NULL : &mover->members[mover->member_of[node]];
}

static bool read_status(struct lien_node_status *status, const json_t *json)
{
	*status = (struct lien_node_status){
		.state = lien_part_state_of(lien_get_text(json, "state")),
		.version = lien_get_number(json, "version"),
		.at_rest = lien_get_true(json, "at_rest"),
		.round = lien_get_number(json, "round"),
		.held = lien_get_true(json, "held"),
	};
	return status->state != LIEN_PART_STATES;
}

static void hear(struct mover *mover, unsigned i, const json_t *json, uint64_t sent_ns)
{
	struct member *member = &mover->members[i];
	const json_t *report = json_object_get(json, "report");
	struct lien_node_status status;

	if (report) {
		lien_node_report_clear(&member->report);
		member->compared = !lien_node_report_read(&member->report, report);
		mover->reports_changed = true;
	}
	if (read_status(&status, json))
		lien_coordinator_hear(&mover->coordinator, i, &status, sent_ns, lien_clock_ns());
}

/*
 * The agent has refused or failed, or knows nothing of the transaction. If the node had not
 * committed, the transaction has left nothing there. If it had, memory is away, whatever this agent
 * knows of it.
 */
static void hear_of_none(struct mover *mover, unsigned i)
{
	const enum lien_part_state before = mover->states[i].status.state;
	const bool committed = before == LIEN_PART_COMMITTED || before == LIEN_PART_DONE;
	const struct lien_node_status status = {
		.state = committed ? LIEN_PART_BROKEN : LIEN_PART_UNDONE,
		.version = UINT64_MAX >> 1};

	lien_coordinator_hear(&mover->coordinator, i, &status, lien_clock_ns(), lien_clock_ns());
}

/*
 * Says why a node has nothing to move, if it should have: there is no process of the job, or one
 * that has memory and cannot take part. NULL: its memory is away already, or none is selected.
 */
static char *why_absent(const json_t *idle)
{
	const json_t *process;
	size_t i;

	if (!json_array_size(idle))
		return lien_format(
			"no process there that you may move uses CUDA: leave it out of --nodes");
	json_array_foreach (idle, i, process)
		if (lien_get_text(process, "reason")[0] &&
			lien_get_number(process, "bytes") >
				lien_get_number(process, "not_selected_bytes"))
			return lien_format("process %" PRIu64 " cannot take part: %s",
				lien_get_number(process, "pid"), lien_get_text(process, "reason"));
	return NULL;
}

static void take_result(struct mover *mover, unsigned i, const json_t *line)
{
	struct member *member = &mover->members[i];
	json_t *result = json_object_get(line, "result");
	const bool nothing = !strcmp(lien_get_text(result, "outcome"), "nothing to do") ||
			     !strcmp(lien_get_text(result, "outcome"), "unknown");

	member->answered = true;
	if (lien_get_true(line, "ok")) {
		member->result = json_incref(result);
		if (nothing)
			lien_coordinator_nothing(&mover->coordinator, i, lien_clock_ns());
		if (nothing && !mover->move->restore)
			member->absent = why_absent(json_object_get(result, "idle"));
		return;
	}
	member->invalid = lien_get_true(line, "invalid");
	if (!member->error)
		member->error = lien_format("%s", lien_get_text(line, "error"));
	if (!lien_part_is_over(mover->states[i].status.state))
		hear_of_none(mover, i);
}

static void take_word_reply(struct mover *mover, unsigned i, const json_t *line)
{
	struct member *member = &mover->members[i];
	const json_t *result = json_object_get(line, "result");
	uint64_t sent = 0;

	if (member->asked_count) {
		sent = member->asked[0];
		memmove(member->asked, member->asked + 1,
			--member->asked_count * sizeof(member->asked[0]));
	}
	if (json_is_null(json_object_get(result, "state")))
		hear_of_none(mover, i);
	else
		hear(mover, i, result, sent);
}

static void on_line(void *context, unsigned node, unsigned on, const json_t *line)
{
	struct mover *mover = context;
	const json_t *progress = json_object_get(line, "progress");
	const struct member *member = member_of(mover, node);
	const unsigned i = member ? member - mover->members : 0;
	const json_t *status = json_object_get(progress, "node");

	if (!member)
		return;
	/* It says so by itself: what it has heard is not known. */
	if (progress && on == LIEN_ON_MOVE && status)
		hear(mover, i, status, member->ordered ? 0 : member->t_begun);
	else if (progress)
		return;
	else if (on == LIEN_ON_MOVE)
		take_result(mover, i, line);
	else if (on == LIEN_ON_WORD)
		take_word_reply(mover, i, line);
	else if (on == LIEN_ON_MEND)
		take_mend(mover, i, line);
}

void lien_nodes_replies_lost(struct mover *mover, unsigned node, const char *why)
{
	struct member *member = member_of(mover, node);

	if (!member)
		return;
	if (!member->error)
		member->error = lien_format("%s", why);
	member->asked_count = 0;
	member->mending = false;
	member->t_again = lien_clock_ns() + LIEN_MOVER_AGAIN_MS * 1000000ull;
	lien_coordinator_lost(&mover->coordinator, member - mover->members, lien_clock_ns());
}

static void on_lost(void *context, unsigned node)
{
	struct mover *mover = context;

	lien_nodes_replies_lost(mover, node, mover->nodes->links[node].problem);
}

static void on_gone(void *context, unsigned node, unsigned on, const char *why)
{
	struct member *member = member_of(context, node);

	/* A node that has its result is not needed any more. */
	if (member && !(on == LIEN_ON_MOVE && member->answered))
		lien_nodes_replies_lost(context, node, why);
}

struct lien_nodes_calls lien_nodes_replies(struct mover *mover)
{
	return (struct lien_nodes_calls){.line = on_line,
		.gone = on_gone,
		.lost = on_lost,
		.wake_fd = mover->signals,
		.context = mover};
}

static const char *outcome_name(enum lien_coordinator_outcome outcome)
{
	switch (outcome) {
	case LIEN_NODES_DONE:
		return "done";
	case LIEN_NODES_NOTHING:
		return "nothing to do";
	case LIEN_NODES_UNDONE:
		return "undone";
	case LIEN_NODES_MENDED:
		return "mended";
	case LIEN_NODES_NONE:
	case LIEN_NODES_PART:
		break;
	}
	return "part";
}

json_t *lien_nodes_result(const struct mover *mover, double ms)
{
	json_t *list = json_array();
	uint64_t bytes = 0, discarded = 0;
	const struct member *member;
	struct rusage used = {0};
	unsigned i;

	getrusage(RUSAGE_SELF, &used);
	for (i = 0; i < mover->count; i++) {
		member = &mover->members[i];
		bytes += lien_get_number(member->result, "bytes");
		discarded += lien_get_number(member->result, "discarded_bytes");
		json_array_append_new(list,
			json_pack("{s:s, s:O?}", "node", mover->nodes->links[member->node].name,
				"result", member->result));
	}
	return json_pack("{s:s, s:s, s:I, s:I, s:o, s:f, s:{s:I, s:I, s:I, s:f, s:f}}", "outcome",
		outcome_name(mover->coordinator.outcome), "id", mover->id, "bytes",
		(json_int_t)bytes, "discarded_bytes", (json_int_t)discarded, "nodes", list, "ms",
		ms, "coordinator", "rounds", (json_int_t)mover->coordinator.rounds, "reports",
		(json_int_t)mover->coordinator.reports, "messages", (json_int_t)mover->nodes->lines,
		"ms", mover->busy_ns / 1e6, "cpu_ms",
		used.ru_utime.tv_sec * 1e3 + used.ru_utime.tv_usec / 1e3 +
			used.ru_stime.tv_sec * 1e3 + used.ru_stime.tv_usec / 1e3);
}

/* Its memory is away, or may be. */
static bool is_away(const struct lien_coordinator_node *node)
{
	return !node->nothing && !node->mended && node->status.state != LIEN_PART_UNDONE;
}

/* Returns the names of the nodes whose processes are not known; NULL: memory is away elsewhere,
 * too. */
static char *unknown_nodes(const struct mover *mover)
{
	char *names = NULL;
	unsigned i;

	for (i = 0; i < mover->count; i++) {
		if (!is_away(&mover->states[i]))
			continue;
		if (!mover->members[i].unknown) {
			free(names);
			return NULL;
		}
		names = lien_append(
			names, ", ", "%s", mover->nodes->links[mover->members[i].node].name);
	}
	return names;
}

/* How the job stands after a failure, and what to do; to be freed. */
static char *how_it_stands(const struct mover *mover)
{
	char *names, *text;

	if (mover->coordinator.outcome == LIEN_NODES_MENDED)
		return lien_format("what other nodes had dropped was put back, the job runs on");
	if (mover->move->restore)
		return lien_format("`lien restore` on all nodes again, once that is mended");
	if (mover->coordinator.outcome != LIEN_NODES_PART)
		return lien_format("nothing was moved on any node, the job runs on");
	names = unknown_nodes(mover);
	text = names ? lien_format("`lien restore` on %s puts back all that is away there: it is "
				   "not known of which processes the offload has moved memory",
			       names)
		     : lien_format("`lien restore` on all nodes puts back what is away");
	free(names);
	return text;
}

/* Did it fail only because another node did? */
static bool is_bystander(const struct member *member)
{
	return !member->error || strstr(member->error, "other nodes are not") ||
	       strstr(member->error, "as its coordinator wants");
}

/* Returns the node to be named; -1: none. */
static int culprit(const struct mover *mover)
{
	unsigned i;

	if (mover->coordinator.cancelled || mover->coordinator.failed < 0 ||
		!is_bystander(&mover->members[mover->coordinator.failed]))
		return mover->coordinator.cancelled ? -1 : mover->coordinator.failed;
	for (i = 0; i < mover->count; i++)
		if (!is_bystander(&mover->members[i]))
			return i;
	return mover->coordinator.failed;
}

/* Cuts off what an agent says about its own node's memory: the message says it of all nodes. */
static void shorten(char *error)
{
	static const char *const ends[] = {"; nothing was moved, the job runs on",
		"; everything was put back, the job runs on"};
	char *found;
	unsigned i;

	for (i = 0; error && i < 2; i++) {
		found = strstr(error, ends[i]);
		if (found)
			*found = '\0';
	}
}

int lien_nodes_result_complain(struct mover *mover)
{
	const int failed = culprit(mover);
	const struct member *member = failed < 0 ? NULL : &mover->members[failed];
	const bool lost = member && mover->states[failed].lost;
	char lease[120] = "", *stands = how_it_stands(mover);

	if (member)
		shorten(member->error);
	if (lost && !mover->move->restore && mover->coordinator.outcome == LIEN_NODES_UNDONE)
		snprintf(lease, sizeof(lease), "; it undoes by itself within %u ms",
			mover->lease_ms);
	if (mover->caught > 1)
		lien_complain(mover->move->command,
			"no longer waiting: `lien ps --nodes` shows the state of the job");
	else if (mover->write_error)
		lien_complain(mover->move->command, "cannot write the decision to %s: %s; %s",
			mover->directory, strerror(-mover->write_error), stands);
	else if (!member)
		lien_complain(mover->move->command, "cancelled; %s", stands);
	else
		lien_complain(mover->move->command, "%s: %s%s%s; %s",
			mover->nodes->links[member->node].name,
			lost ? "not reached any more: " : "",
			member->error ? member->error : "its part has failed", lease, stands);
	free(stands);
	return member && member->invalid ? LIEN_EXIT_USAGE : LIEN_EXIT_FAILURE;
}
