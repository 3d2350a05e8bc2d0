// SPDX-License-Identifier: BSD-2-Clause
#include "agent/daemon/coordinate.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/orders/orders.h"
#include "agent/quiesce/elsewhere.h"

#define LEASE_MS     10000
#define LEASE_MS_MIN 100
#define LEASE_MS_MAX 600000

/* May `who` steer what `viewer` began? Users may steer their own, and root everything. */
static bool is_of(const struct lien_viewer *viewer, const struct lien_viewer *who)
{
	return !who->one_user || (viewer->one_user && viewer->uid == who->uid);
}

bool lien_coordinate_begin(struct lien_client *client, json_t *request, bool restore)
{
	struct lien_agent *agent = client->agent;
	const json_t *coordinate = json_object_get(request, "coordinate");
	const json_t *lease = json_object_get(coordinate, "lease_ms");
	const char *id = json_string_value(json_object_get(coordinate, "id"));
	const json_int_t ms = lease ? json_integer_value(lease) : LEASE_MS;

	if (!coordinate || agent->transaction) /* which is refused later */
		return true;
	if (!lien_nodes_is_id(id)) {
		lien_reply_invalid(
			client, "coordinate.id must be 1 to 64 letters, digits and any of - . _");
		return false;
	}
	if ((lease && !json_is_integer(lease)) || ms < LEASE_MS_MIN || ms > LEASE_MS_MAX) {
		lien_reply_invalid(client, "coordinate.lease_ms must be between 100 and 600000");
		return false;
	}
	if (lien_elsewhere_begin(agent, id, restore, ms)) {
		lien_reply_error(client, "out of memory");
		return false;
	}
	return true;
}

void lien_coordinate_begun(struct lien_agent *agent, bool none)
{
	if (none && !agent->transaction)
		lien_elsewhere_end(agent);
}

/* Replies for a transaction that is not under way. */
static void reply_outcome(struct lien_client *client, const char *id)
{
	const enum lien_part_state state = lien_outcomes_find(
		client->agent->outcomes, id, client->viewer.one_user, client->viewer.uid);

	lien_reply_result(
		client, json_pack("{s:s?}", "state",
				state == LIEN_PART_STATES ? NULL : lien_part_state_name(state)));
}

/* Returns false if it is not a number. */
static bool read_number(json_t *request, const char *name, uint64_t *number)
{
	const json_t *value = json_object_get(request, name);

	*number = json_integer_value(value);
	return !value || (json_is_integer(value) && json_integer_value(value) >= 0);
}

/* Returns false after an error reply. */
static bool take_others(struct lien_client *client, const json_t *json)
{
	struct lien_node_others others;
	char why[80];
	int err;

	if (!json)
		return true;
	err = lien_node_others_read(&others, json);
	if (!err) {
		lien_elsewhere_compare(client->agent, &others);
		return true;
	}
	lien_node_others_clear(&others);
	if (err == -E2BIG) {
		snprintf(why, sizeof(why), "others has more than %d groups, pairs and ranks",
			LIEN_NODE_OTHERS_MAX);
		lien_reply_invalid(client, why);
	} else if (err == -ENOMEM) {
		lien_reply_error(client, "out of memory");
	} else {
		lien_reply_invalid(client, "others is not what docs/protocol.md says");
	}
	return false;
}

void lien_coordinate_request(struct lien_client *client, json_t *request)
{
	struct lien_agent *agent = client->agent;
	struct lien_elsewhere *elsewhere = agent->elsewhere;
	const json_t *word = json_object_get(request, "word");
	const char *id = json_string_value(json_object_get(request, "id"));
	struct lien_node_order order = {.word = lien_node_word_of(json_string_value(word))};

	if (!lien_nodes_is_id(id)) {
		lien_reply_invalid(client, "id must be 1 to 64 letters, digits and any of - . _");
		return;
	}
	if ((word && (order.word == LIEN_WORDS || order.word == LIEN_WORD_RESTORE)) ||
		!read_number(request, "round", &order.round) ||
		!read_number(request, "version", &order.version)) {
		lien_reply_invalid(client,
			"word must be wait, go, hold, save, commit or undo; round and version are "
			"numbers");
		return;
	}
	if (!elsewhere || !agent->transaction || strcmp(elsewhere->id, id) != 0 ||
		!is_of(&agent->transaction_of, &client->viewer)) {
		reply_outcome(client, id);
		return;
	}
	if (!take_others(client, json_object_get(request, "others")))
		return;
	if (word) {
		lien_part_hear(&elsewhere->part, &order, lien_now_ns());
		lien_elsewhere_tick(agent);
	}
	lien_reply_result(client, lien_elsewhere_status(&elsewhere->part.status));
}
