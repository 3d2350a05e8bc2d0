// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/nodes_replies.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <lien/clock.h>

#include "agent/nodes/part.h"
#include "tools/cli/nodes_mend.h"
#include "tools/text/output.h"

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
		lien_nodes_mend_take(mover, i, line);
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
