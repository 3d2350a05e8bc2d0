// SPDX-License-Identifier: BSD-2-Clause
#include "agent/nodes/compare.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"

/* FNV-1a, twice: the groups of one job have different ids, and nobody gains by a collision. */
struct lien_node_group lien_node_group_of(const uint8_t *id, size_t size)
{
	struct lien_node_group group = {{0xcbf29ce484222325, 0x6c62272e07bb0142}};
	size_t i;

	for (i = 0; i < size; i++) {
		group.half[0] = (group.half[0] ^ id[i]) * 0x100000001b3;
		group.half[1] = (group.half[1] ^ id[size - 1 - i]) * 0x100000001b3;
	}
	return group;
}

/* --- reports ---------------------------------------------------------------------------------- */

struct lien_node_standing *lien_node_report_add(struct lien_node_report *report)
{
	if (lien_array_grow(
		    &report->standings, report->count, &report->room, sizeof(*report->standings)))
		return NULL;
	report->standings[report->count] = (struct lien_node_standing){.rank = -1};
	return &report->standings[report->count++];
}

int lien_node_standing_pair(
	struct lien_node_standing *standing, uint32_t peer, bool receives, uint64_t calls)
{
	struct lien_node_pair *pair;
	int err;

	if (!standing->pairs_count || standing->pairs[standing->pairs_count - 1].peer != peer) {
		err = lien_array_grow(&standing->pairs, standing->pairs_count,
			&standing->pairs_room, sizeof(*standing->pairs));
		if (err)
			return err;
		standing->pairs[standing->pairs_count++] = (struct lien_node_pair){.peer = peer};
	}
	pair = &standing->pairs[standing->pairs_count - 1];
	*(receives ? &pair->receives : &pair->sends) = calls;
	return 0;
}

static int order(int64_t a, int64_t b)
{
	return (a > b) - (a < b);
}

static int pair_cmp(const void *a, const void *b)
{
	const struct lien_node_pair *x = a, *y = b;

	return order(x->peer, y->peer);
}

static void sort(void *array, unsigned count, size_t size, int (*cmp)(const void *, const void *))
{
	if (count)
		qsort(array, count, size, cmp);
}

static const void *find(const void *key, const void *array, unsigned count, size_t size,
	int (*cmp)(const void *, const void *))
{
	return count ? bsearch(key, array, count, size, cmp) : NULL;
}

static uint64_t more(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static void sort_pairs(struct lien_node_standing *standing)
{
	struct lien_node_pair *pairs = standing->pairs;
	unsigned i, n = 0;

	for (i = 1; i < standing->pairs_count && pairs[i - 1].peer < pairs[i].peer;)
		i++;
	if (i >= standing->pairs_count)
		return; /* they are sorted */
	qsort(pairs, standing->pairs_count, sizeof(*pairs), pair_cmp);
	for (i = 1; i < standing->pairs_count; i++) {
		if (pairs[n].peer != pairs[i].peer) {
			pairs[++n] = pairs[i];
			continue;
		}
		pairs[n].sends = more(pairs[n].sends, pairs[i].sends);
		pairs[n].receives = more(pairs[n].receives, pairs[i].receives);
	}
	standing->pairs_count = n + 1;
}

static void report_sort(struct lien_node_report *report)
{
	unsigned i;

	for (i = 0; i < report->count; i++)
		sort_pairs(&report->standings[i]);
}

void lien_node_report_clear(struct lien_node_report *report)
{
	unsigned i;

	for (i = 0; i < report->count; i++)
		free(report->standings[i].pairs);
	free(report->standings);
	*report = (struct lien_node_report){0};
}

void lien_node_others_clear(struct lien_node_others *others)
{
	free(others->groups);
	free(others->pairs);
	free(others->ranks);
	*others = (struct lien_node_others){0};
}

/* --- comparing -------------------------------------------------------------------------------- */

struct member {
	struct lien_node_standing *standing;
	unsigned node;
};

/* The members of a split that one node has. */
struct part {
	const struct lien_node_standing *standing;
	unsigned node;
	uint64_t members; /* those that all nodes have */
};

static int group_cmp(const struct lien_node_group *a, const struct lien_node_group *b)
{
	return memcmp(a, b, sizeof(*a));
}

static int member_cmp(const void *a, const void *b)
{
	const struct member *x = a, *y = b;
	int cmp = group_cmp(&x->standing->group, &y->standing->group);

	return cmp ? cmp : order(x->standing->rank, y->standing->rank);
}

/* --- ranks in splits -------------------------------------------------------------------------- */

static int part_cmp(const void *a, const void *b)
{
	const struct part *x = a, *y = b;
	int cmp = group_cmp(&x->standing->split, &y->standing->split);

	return cmp ? cmp : order(x->node, y->node);
}

/* Counts the members of each split, from sorted parts: once for each node. */
static void count_members(struct part *parts, unsigned count)
{
	unsigned first, end, i;
	uint64_t members;

	for (first = 0; first < count; first = end) {
		members = 0;
		for (end = first; end < count && !group_cmp(&parts[end].standing->split,
							 &parts[first].standing->split);
			end++)
			if (end == first || parts[end].node != parts[end - 1].node)
				members += parts[end].standing->split_members;
		for (i = first; i < end; i++)
			parts[i].members = members;
	}
}

/* Have all ranks of the parent been reported, by whatever nodes? */
static bool is_complete(const struct part *parts, unsigned count, const struct member *member)
{
	const struct part key = {.standing = member->standing, .node = member->node};
	const struct part *part = find(&key, parts, count, sizeof(*parts), part_cmp);

	return part->members == (uint64_t)member->standing->split_nranks;
}

static int place_cmp(const void *a, const void *b)
{
	const struct lien_node_standing *x = ((const struct member *)a)->standing;
	const struct lien_node_standing *y = ((const struct member *)b)->standing;

	return x->key != y->key ? order(x->key, y->key) : order(x->parent_rank, y->parent_rank);
}

/* Gives the members of a group their ranks, if all are known. 0, -ENOMEM. */
static int rank_group(struct member *first, struct member *end, const struct part *parts,
	unsigned parts_count, struct lien_node_others *others)
{
	struct lien_node_others *to;
	struct member *one;
	int err;

	for (one = first; one < end; one++)
		if (!one->standing->placed || !is_complete(parts, parts_count, one))
			return 0;
	qsort(first, end - first, sizeof(*first), place_cmp);
	for (one = first; one < end; one++) {
		one->standing->rank = one - first;
		to = &others[one->node];
		err = lien_array_grow(
			&to->ranks, to->ranks_count, &to->ranks_room, sizeof(*to->ranks));
		if (err)
			return err;
		to->ranks[to->ranks_count++] = (struct lien_others_rank){
			one->standing->group, one->standing->parent_rank, one->standing->rank};
	}
	return 0;
}

/* NULL: no node has reported the rank. */
static const struct member *member_of(
	const struct member *first, const struct member *end, uint32_t rank)
{
	struct lien_node_standing standing = {.group = first->standing->group, .rank = rank};
	const struct member key = {.standing = &standing};

	return rank > INT32_MAX ? NULL : find(&key, first, end - first, sizeof(key), member_cmp);
}

/* Tells other nodes of the transfers that a rank has begun with their ranks. 0, -errno. */
static int hand_pairs(const struct member *first, const struct member *end,
	const struct member *member, struct lien_node_others *others)
{
	const struct lien_node_standing *standing = member->standing;
	struct lien_node_others *to;
	const struct member *peer;
	unsigned i;
	int err;

	for (i = 0; standing->rank >= 0 && i < standing->pairs_count; i++) {
		peer = member_of(first, end, standing->pairs[i].peer);
		if (!peer || peer->node == member->node)
			continue;
		to = &others[peer->node];
		err = lien_array_grow(
			&to->pairs, to->pairs_count, &to->pairs_room, sizeof(*to->pairs));
		if (err)
			return err;
		to->pairs[to->pairs_count++] = (struct lien_others_pair){.group = standing->group,
			.rank = standing->rank,
			.peer = standing->pairs[i].peer,
			.sends = standing->pairs[i].sends,
			.receives = standing->pairs[i].receives};
	}
	return 0;
}

static int hand_group(struct lien_node_others *to, const struct lien_others_group *group)
{
	int err;

	if (to->groups_count && !group_cmp(&to->groups[to->groups_count - 1].group, &group->group))
		return 0; /* another rank of the same node */
	err = lien_array_grow(&to->groups, to->groups_count, &to->groups_room, sizeof(*to->groups));
	if (err)
		return err;
	to->groups[to->groups_count++] = *group;
	return 0;
}

/* Transfers can only be compared if the rank is known. */
static bool is_counted(const struct lien_node_standing *standing)
{
	return standing->counted && (standing->rank >= 0 || !standing->pairs_count);
}

/* Compares the members of one group on all nodes. 0, -errno. */
static int compare_group(const struct member *first, const struct member *end,
	struct lien_node_others *others, bool *counted)
{
	struct lien_others_group group = {.group = first->standing->group, .counted = true};
	uint64_t most[2] = {0}; /* of all nodes, and of all but `of` */
	unsigned of = first->node;
	const struct member *one;
	bool spans = false;
	int err = 0;

	for (one = first; one < end; one++) {
		spans |= one->node != first->node;
		group.counted &=
			is_counted(one->standing) && one->standing->since == first->standing->since;
		if (one->standing->collectives > most[0]) {
			if (one->node != of)
				most[1] = most[0];
			most[0] = one->standing->collectives;
			of = one->node;
		} else if (one->node != of && one->standing->collectives > most[1]) {
			most[1] = one->standing->collectives;
		}
	}
	/* A group on one node alone needs no comparison. */
	for (one = first; !spans && one < end; one++)
		counted[one->node] &= is_counted(one->standing);
	for (one = first; spans && !err && one < end; one++) {
		counted[one->node] &= group.counted;
		group.collectives = most[one->node == of];
		err = hand_group(&others[one->node], &group);
		if (!err && group.counted)
			err = hand_pairs(first, end, one, others);
	}
	return err;
}

static int others_group_cmp(const void *a, const void *b)
{
	const struct lien_others_group *x = a, *y = b;

	return group_cmp(&x->group, &y->group);
}

static int others_pair_cmp(const void *a, const void *b)
{
	const struct lien_others_pair *x = a, *y = b;
	int cmp = group_cmp(&x->group, &y->group);

	cmp = cmp ? cmp : order(x->rank, y->rank);
	return cmp ? cmp : order(x->peer, y->peer);
}

static int others_rank_cmp(const void *a, const void *b)
{
	const struct lien_others_rank *x = a, *y = b;
	const int cmp = group_cmp(&x->group, &y->group);

	return cmp ? cmp : order(x->parent_rank, y->parent_rank);
}

static void others_sort(struct lien_node_others *others)
{
	sort(others->groups, others->groups_count, sizeof(*others->groups), others_group_cmp);
	sort(others->pairs, others->pairs_count, sizeof(*others->pairs), others_pair_cmp);
	sort(others->ranks, others->ranks_count, sizeof(*others->ranks), others_rank_cmp);
}

/* -E2BIG: a node would have to know too much. */
static int end_others(struct lien_node_others *others, unsigned count, int *too_many)
{
	unsigned i;

	for (i = 0; i < count; i++) {
		if (others[i].groups_count + others[i].pairs_count + others[i].ranks_count >
			LIEN_NODE_OTHERS_MAX) {
			*too_many = i;
			return -E2BIG;
		}
		others_sort(&others[i]);
	}
	return 0;
}

int lien_node_compare(struct lien_node_report *reports, unsigned count,
	struct lien_node_others *others, int *too_many)
{
	unsigned i, j, n = 0, parts_count = 0, busy = 0, uncounted = 0;
	struct member *members, *first, *last;
	struct part *parts;
	bool *counted = calloc(count + 1, sizeof(*counted));
	int err = 0;

	for (i = 0; i < count; i++)
		n += reports[i].count;
	members = calloc(n + 1, sizeof(*members));
	parts = calloc(n + 1, sizeof(*parts));
	memset(others, 0, count * sizeof(*others));
	if (!members || !parts || !counted)
		err = -ENOMEM;
	for (i = n = 0; !err && i < count; i++) {
		report_sort(&reports[i]);
		counted[i] = !reports[i].unnamed;
		busy += reports[i].busy;
		for (j = 0; j < reports[i].count; j++) {
			struct lien_node_standing *standing = &reports[i].standings[j];

			members[n++] = (struct member){standing, i};
			if (!standing->placed)
				continue;
			standing->rank = -1; /* of an earlier comparison */
			parts[parts_count++] = (struct part){standing, i, 0};
		}
	}
	sort(members, n, sizeof(*members), member_cmp);
	sort(parts, parts_count, sizeof(*parts), part_cmp);
	count_members(parts, parts_count);
	for (first = members; !err && first < members + n; first = last) {
		for (last = first + 1; last < members + n &&
				       !group_cmp(&last->standing->group, &first->standing->group);)
			last++;
		err = rank_group(first, last, parts, parts_count, others);
		if (!err)
			err = compare_group(first, last, others, counted);
	}
	for (i = 0; !err && i < count; i++)
		uncounted += !counted[i];
	for (i = 0; !err && i < count; i++) {
		others[i].busy = busy > reports[i].busy;
		others[i].counted = uncounted == !counted[i];
	}
	free(members);
	free(parts);
	free(counted);
	return err ? err : end_others(others, count, too_many);
}

/* --- looking up ------------------------------------------------------------------------------- */

const struct lien_others_group *lien_node_others_group(
	const struct lien_node_others *others, const struct lien_node_group *group)
{
	const struct lien_others_group key = {.group = *group};

	return find(&key, others->groups, others->groups_count, sizeof(key), others_group_cmp);
}

const struct lien_others_pair *lien_node_others_pairs(
	const struct lien_node_others *others, const struct lien_node_group *group, unsigned *count)
{
	const struct lien_others_pair key = {.group = *group}, *pairs = others->pairs;
	const unsigned first =
		lien_array_at_least(pairs, others->pairs_count, sizeof(key), &key, others_pair_cmp);
	unsigned end = first;

	while (end < others->pairs_count && !group_cmp(&pairs[end].group, group))
		end++;
	*count = end - first;
	return pairs + first;
}

const struct lien_others_pair *lien_node_others_pair(const struct lien_node_others *others,
	const struct lien_node_group *group, uint32_t rank, uint32_t peer)
{
	const struct lien_others_pair key = {.group = *group, .rank = rank, .peer = peer};

	return find(&key, others->pairs, others->pairs_count, sizeof(key), others_pair_cmp);
}

int32_t lien_node_others_rank(const struct lien_node_others *others,
	const struct lien_node_group *group, int32_t parent_rank)
{
	const struct lien_others_rank key = {.group = *group, .parent_rank = parent_rank};
	const struct lien_others_rank *rank =
		find(&key, others->ranks, others->ranks_count, sizeof(key), others_rank_cmp);

	return rank ? rank->rank : -1;
}

/* --- as JSON (docs/protocol.md) --------------------------------------------------------------- */

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

	report_sort(report);
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

int lien_node_others_read(struct lien_node_others *others, const json_t *json)
{
	const json_t *groups = json_object_get(json, "groups"), *entry, *collectives;
	const json_t *pairs = json_object_get(json, "pairs");
	const json_t *ranks = json_object_get(json, "ranks");
	struct lien_others_group *group;
	struct lien_others_rank *rank;
	uint32_t parent, number;
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
	json_array_foreach (ranks, i, entry) {
		rank = &others->ranks[others->ranks_count++];
		if (!read_group(json_array_get(entry, 0), &rank->group) ||
			!read_small(json_array_get(entry, 1), &parent) ||
			!read_small(json_array_get(entry, 2), &number))
			return -EINVAL;
		rank->parent_rank = parent;
		rank->rank = number;
	}
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
	others_sort(others);
	return 0;
}
