// SPDX-License-Identifier: BSD-2-Clause
#include "agent/quiesce/elsewhere.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/server/server.h"

int lien_elsewhere_begin(struct lien_agent *agent, const char *id, bool restore, unsigned lease_ms)
{
	struct lien_elsewhere *elsewhere = calloc(1, sizeof(*elsewhere));

	if (!elsewhere)
		return -ENOMEM;
	snprintf(elsewhere->id, sizeof(elsewhere->id), "%s", id);
	lien_part_begin(&elsewhere->part, restore, lease_ms * 1000000ull, lien_now_ns());
	agent->elsewhere = elsewhere;
	return 0;
}

void lien_elsewhere_end(struct lien_agent *agent)
{
	struct lien_elsewhere *elsewhere = agent->elsewhere;

	if (!elsewhere)
		return;
	lien_node_others_clear(&elsewhere->others);
	json_decref(elsewhere->report);
	free(elsewhere);
	agent->elsewhere = NULL;
}

/* --- the coordinator -------------------------------------------------------------------------- */

json_t *lien_elsewhere_status(const struct lien_node_status *status)
{
	return json_pack("{s:s, s:I, s:b, s:I, s:b}", "state", lien_part_state_name(status->state),
		"version", (json_int_t)status->version, "at_rest", status->at_rest, "round",
		(json_int_t)status->round, "held", status->held);
}

/* Tells the coordinator where the part stands, if that has changed. */
static void tell(struct lien_agent *agent)
{
	struct lien_elsewhere *elsewhere = agent->elsewhere;
	json_t *status;

	if (!elsewhere->report_due &&
		!memcmp(&elsewhere->said, &elsewhere->part.status, sizeof(elsewhere->said)))
		return;
	status = lien_elsewhere_status(&elsewhere->part.status);
	if (elsewhere->report_due && status) {
		json_object_set(status, "report", elsewhere->report);
		elsewhere->report_due = false;
	}
	elsewhere->said = elsewhere->part.status;
	lien_server_tell(agent, json_pack("{s:o}", "node", status));
}

void lien_elsewhere_compare(struct lien_agent *agent, struct lien_node_others *others)
{
	struct lien_elsewhere *elsewhere = agent->elsewhere;

	lien_node_others_clear(&elsewhere->others);
	elsewhere->others = *others;
	*others = (struct lien_node_others){0};
	elsewhere->compared = true;
}

bool lien_elsewhere_holds(const struct lien_agent *agent)
{
	const struct lien_elsewhere *elsewhere = agent->elsewhere;

	return elsewhere &&
	       (elsewhere->part.status.held || elsewhere->part.status.state == LIEN_PART_SAVING);
}

void lien_elsewhere_looked(struct lien_agent *agent, bool reached, json_t *report)
{
	struct lien_elsewhere *elsewhere = agent->elsewhere;
	const json_t *before = json_object_get(elsewhere->report, "standings");

	if (lien_elsewhere_holds(agent)) {
		json_decref(report);
		return; /* nobody was let in */
	}
	if (!report || json_equal(elsewhere->report, report)) {
		json_decref(report);
		if (!reached && elsewhere->part.status.at_rest)
			lien_part_changed(&elsewhere->part);
	} else {
		if (!reached || !json_equal(before, json_object_get(report, "standings")))
			lien_part_changed(&elsewhere->part);
		json_decref(elsewhere->report);
		elsewhere->report = report;
		elsewhere->report_due = true;
	}
	tell(agent);
}

/* --- the transaction -------------------------------------------------------------------------- */

static bool note(struct lien_agent *agent)
{
	const struct lien_elsewhere *elsewhere = agent->elsewhere;
	const int err = lien_outcomes_note(agent->outcomes, elsewhere->id,
		agent->transaction_of.uid, elsewhere->part.status.state);

	if (err)
		lien_log(4, "cannot note the outcome of %s: %s", elsewhere->id, strerror(-err));
	return !err;
}

enum lien_go_on lien_elsewhere_may_go_on(void *context, enum lien_point point)
{
	struct lien_agent *agent = context;
	struct lien_elsewhere *elsewhere = agent->elsewhere;
	enum lien_go_on may = lien_part_may_go_on(&elsewhere->part, point);

	/* Before anything is dropped: a later agent must not take it for undone. */
	if (point == LIEN_POINT_READY && may == LIEN_GO_ON_YES && !note(agent)) {
		lien_part_not_noted(&elsewhere->part);
		may = lien_part_may_go_on(&elsewhere->part, point);
	}
	tell(agent);
	return may;
}

bool lien_elsewhere_is_committed(const struct lien_agent *agent)
{
	return agent->elsewhere && agent->elsewhere->part.status.state >= LIEN_PART_COMMITTED;
}

void lien_elsewhere_tick(struct lien_agent *agent)
{
	struct lien_elsewhere *elsewhere = agent->elsewhere;
	const bool gone = !lien_server_waiting(agent);
	char why[160];

	/* Nobody is left to whom the end could be reported. */
	if (gone)
		elsewhere->part.lease_ns = 0;
	lien_part_tick(&elsewhere->part, lien_now_ns());
	if (lien_part_must_undo(&elsewhere->part)) {
		if (gone)
			snprintf(why, sizeof(why), "undone: the coordinator of %s has gone",
				elsewhere->id);
		else if (elsewhere->part.late)
			snprintf(why, sizeof(why),
				"undone: the coordinator of %s has let it wait for %llu s",
				elsewhere->id, LIEN_PART_WAIT_NS / 1000000000);
		else if (elsewhere->part.expired)
			snprintf(why, sizeof(why),
				"undone: the coordinator of %s was not heard for %llu ms",
				elsewhere->id,
				(unsigned long long)elsewhere->part.lease_ns / 1000000);
		else if (elsewhere->part.not_noted)
			snprintf(why, sizeof(why),
				"undone: what becomes of %s cannot be noted (the agent's log says "
				"why)",
				elsewhere->id);
		else
			snprintf(why, sizeof(why), "undone, as its coordinator wants");
		lien_transaction_cancel(agent->transaction, -ECANCELED, why);
	}
	lien_transaction_wake(agent->transaction);
}

void lien_elsewhere_ended(struct lien_agent *agent, const struct lien_transaction_result *result)
{
	struct lien_part *part = &agent->elsewhere->part;
	const bool restore = part->restore;

	/* A restore that failed leaves things away, as they were. */
	lien_part_ended(part, !result->error, !restore && !result->undo_failed && !result->lost);
	note(agent);
	tell(agent);
}
