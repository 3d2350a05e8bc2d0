// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/nodes_orders.h"

#include <errno.h>
#include <stdlib.h>

#include <lien/clock.h>

#include "tools/cli/nodes_mend.h"
#include "tools/text/output.h"

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

void lien_nodes_order(struct mover *mover, unsigned i)
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

void lien_nodes_orders_compare(struct mover *mover)
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
