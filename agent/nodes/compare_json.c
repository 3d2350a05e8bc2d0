// SPDX-License-Identifier: BSD-2-Clause
/* Reports and the results of their comparison, as JSON (docs/protocol.md). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/nodes/compare.h"

#define DIGITS 33    /* of a group, with the end */
#define MAX    65536 /* standings of a report, pairs of a standing */

static void write_group(const struct lien_node_group *group, char text[DIGITS])
{
	snprintf(text, DIGITS, "%016" PRIx64 "%016" PRIx64, group->half[0], group->half[1]);
}

static bool read_group(const json_t *json, struct lien_node_group *group)
{
	const char *text = json_string_value(json);
	char rest;

	return text && json_string_length(json) == DIGITS - 1 &&
	       sscanf(text, "%16" SCNx64 "%16" SCNx64 "%c", &group->half[0], &group->half[1],
		       &rest) == 2;
}

static bool read_number(const json_t *json, uint64_t *number)
{
	const json_int_t value = json_integer_value(json);

	*number = value;
	return json_is_integer(json) && value >= 0;
}

static bool read_small(const json_t *json, uint32_t *number)
{
	uint64_t value;

	if (!read_number(json, &value) || value > INT32_MAX)
		return false;
	*number = value;
	return true;
}

/* --- reports ---------------------------------------------------------------------------------- */

static json_t *standing_json(const struct lien_node_standing *standing)
{
	json_t *pairs = json_array(), *place = json_null();
	char group[DIGITS], split[DIGITS];
	unsigned i;

	write_group(&standing->group, group);
	write_group(&standing->split, split);
	if (standing->placed)
		place = json_pack("{s:s, s:i, s:i, s:i, s:i}", "split", split, "nranks",
			(int)standing->split_nranks, "members", (int)standing->split_members, "key",
			(int)standing->key, "parent_rank", (int)standing->parent_rank);
	for (i = 0; i < standing->pairs_count; i++)
		json_array_append_new(
			pairs, json_pack("[I, I, I]", (json_int_t)standing->pairs[i].peer,
				       (json_int_t)standing->pairs[i].sends,
				       (json_int_t)standing->pairs[i].receives));
	return json_pack("{s:s, s:i, s:b, s:I, s:I, s:o, s:o}", "group", group, "rank",
		(int)standing->rank, "counted", standing->counted, "since",
		(json_int_t)standing->since, "collectives", (json_int_t)standing->collectives,
		"pairs", pairs, "place", place);
}

json_t *lien_node_report_json(struct lien_node_report *report)
{
	json_t *standings = json_array();
	unsigned i;

	lien_node_report_sort(report);
	for (i = 0; i < report->count; i++)
		json_array_append_new(standings, standing_json(&report->standings[i]));
	return json_pack("{s:b, s:b, s:o}", "busy", report->busy, "unnamed", report->unnamed,
		"standings", standings);
}

/* Returns false if it is not one. */
static bool read_place(struct lien_node_standing *standing, const json_t *json)
{
	const json_t *key = json_object_get(json, "key");
	uint32_t nranks, rank;

	standing->placed = json_is_object(json);
	if (!standing->placed)
		return !json || json_is_null(json);
	if (!read_group(json_object_get(json, "split"), &standing->split) ||
		!read_small(json_object_get(json, "nranks"), &nranks) ||
		!read_small(json_object_get(json, "members"), &standing->split_members) ||
		!read_small(json_object_get(json, "parent_rank"), &rank) || !json_is_integer(key))
		return false;
	standing->split_nranks = nranks;
	standing->parent_rank = rank;
	standing->key = json_integer_value(key);
	return true;
}

static int read_standing(struct lien_node_report *report, const json_t *json)
{
	struct lien_node_standing *standing = lien_node_report_add(report);
	const json_t *rank = json_object_get(json, "rank"), *pair;
	uint64_t sends, receives;
	uint32_t peer;
	size_t i;
	int err = 0;

	if (!standing)
		return -ENOMEM;
	standing->rank = json_integer_value(rank) < 0 ? -1 : (int32_t)json_integer_value(rank);
	standing->counted = json_is_true(json_object_get(json, "counted"));
	if (!read_group(json_object_get(json, "group"), &standing->group) ||
		!json_is_integer(rank) || json_integer_value(rank) > INT32_MAX ||
		!read_number(json_object_get(json, "since"), &standing->since) ||
		!read_number(json_object_get(json, "collectives"), &standing->collectives) ||
		!read_place(standing, json_object_get(json, "place")) ||
		json_array_size(json_object_get(json, "pairs")) > MAX)
		return -EINVAL;
	json_array_foreach (json_object_get(json, "pairs"), i, pair) {
		if (!read_small(json_array_get(pair, 0), &peer) ||
			!read_number(json_array_get(pair, 1), &sends) ||
			!read_number(json_array_get(pair, 2), &receives))
			return -EINVAL;
		err = err ? err : lien_node_standing_pair(standing, peer, false, sends);
		err = err ? err : lien_node_standing_pair(standing, peer, true, receives);
	}
	return err;
}

int lien_node_report_read(struct lien_node_report *report, const json_t *json)
{
	const json_t *standings = json_object_get(json, "standings"), *standing;
	int err = 0;
	size_t i;

	*report = (struct lien_node_report){.busy = json_is_true(json_object_get(json, "busy")),
		.unnamed = json_is_true(json_object_get(json, "unnamed"))};
	if (!json_is_array(standings) || json_array_size(standings) > MAX)
		return -EINVAL;
	json_array_foreach (standings, i, standing)
		err = err ? err : read_standing(report, standing);
	return err;
}

/* --- others ----------------------------------------------------------------------------------- */

json_t *lien_node_others_json(const struct lien_node_others *others)
{
	json_t *groups = json_array(), *pairs = json_array(), *ranks = json_array();
	char group[DIGITS];
	unsigned i;

	for (i = 0; i < others->groups_count; i++) {
		write_group(&others->groups[i].group, group);
		json_array_append_new(
			groups, json_pack("{s:s, s:o}", "group", group, "collectives",
					others->groups[i].counted
						? json_integer(others->groups[i].collectives)
						: json_null()));
	}
	for (i = 0; i < others->pairs_count; i++) {
		write_group(&others->pairs[i].group, group);
		json_array_append_new(pairs,
			json_pack("[s, I, I, I, I]", group, (json_int_t)others->pairs[i].rank,
				(json_int_t)others->pairs[i].peer,
				(json_int_t)others->pairs[i].sends,
				(json_int_t)others->pairs[i].receives));
	}
	for (i = 0; i < others->ranks_count; i++) {
		write_group(&others->ranks[i].group, group);
		json_array_append_new(
			ranks, json_pack("[s, i, i]", group, (int)others->ranks[i].parent_rank,
				       (int)others->ranks[i].rank));
	}
	return json_pack("{s:b, s:b, s:o, s:o, s:o}", "busy", others->busy, "counted",
		others->counted, "groups", groups, "pairs", pairs, "ranks", ranks);
}

static bool read_pair(struct lien_others_pair *pair, const json_t *json)
{
	return read_group(json_array_get(json, 0), &pair->group) &&
	       read_small(json_array_get(json, 1), &pair->rank) &&
	       read_small(json_array_get(json, 2), &pair->peer) &&
	       read_number(json_array_get(json, 3), &pair->sends) &&
	       read_number(json_array_get(json, 4), &pair->receives);
}

static bool read_rank(struct lien_others_rank *rank, const json_t *json)
{
	uint32_t parent, number;

	if (!read_group(json_array_get(json, 0), &rank->group) ||
		!read_small(json_array_get(json, 1), &parent) ||
		!read_small(json_array_get(json, 2), &number))
		return false;
	rank->parent_rank = parent;
	rank->rank = number;
	return true;
}

int lien_node_others_read(struct lien_node_others *others, const json_t *json)
{
	const json_t *groups = json_object_get(json, "groups"), *entry, *collectives;
	const json_t *pairs = json_object_get(json, "pairs");
	const json_t *ranks = json_object_get(json, "ranks");
	struct lien_others_group *group;
	size_t i;

	*others = (struct lien_node_others){.busy = json_is_true(json_object_get(json, "busy")),
		.counted = json_is_true(json_object_get(json, "counted"))};
	if (!json_is_array(groups) || !json_is_array(pairs))
		return -EINVAL;
	if (json_array_size(groups) + json_array_size(pairs) + json_array_size(ranks) >
		LIEN_NODE_OTHERS_MAX)
		return -E2BIG;
	others->ranks = calloc(json_array_size(ranks) + 1, sizeof(*others->ranks));
	others->groups = calloc(json_array_size(groups) + 1, sizeof(*others->groups));
	others->pairs = calloc(json_array_size(pairs) + 1, sizeof(*others->pairs));
	if (!others->groups || !others->pairs || !others->ranks)
		return -ENOMEM;
	json_array_foreach (ranks, i, entry)
		if (!read_rank(&others->ranks[others->ranks_count++], entry))
			return -EINVAL;
	json_array_foreach (groups, i, entry) {
		group = &others->groups[others->groups_count++];
		collectives = json_object_get(entry, "collectives");
		group->counted = !json_is_null(collectives);
		if (!read_group(json_object_get(entry, "group"), &group->group) ||
			(group->counted && !read_number(collectives, &group->collectives)))
			return -EINVAL;
	}
	json_array_foreach (pairs, i, entry)
		if (!read_pair(&others->pairs[others->pairs_count++], entry))
			return -EINVAL;
	lien_node_others_sort(others);
	return 0;
}
