// SPDX-License-Identifier: BSD-2-Clause
/* Ranks on other nodes: tells them how far those of this node are, and compares both. */
#include "agent/quiesce/rest_internal.h"

#include <stdlib.h>

#include "agent/quiesce/elsewhere.h"

static struct lien_node_group group_of(const struct lien_standing *standing)
{
	return lien_node_group_of(standing->group, LIEN_TARGETS_GROUP);
}

/* Returns false if out of memory. */
static bool report_pairs(const struct rest *rest, const struct lien_standing *standing,
	struct lien_node_standing *told)
{
	const struct begun *pairs;
	unsigned i, count;
	uint32_t peer;

	pairs = lien_rest_pairs(rest, rest->pids[standing->process], standing->comm, &count);
	for (i = 0; i < count; i++) {
		peer = pairs[i].which.peer;
		if (lien_node_standing_pair(told, peer / 2, peer % 2,
			    rest->targets.transfers((void *)rest, standing, peer / 2, peer % 2)))
			return false;
	}
	return true;
}

/* Finds a communicator's place in a split, if its rank can only be derived from ranks on other
 * nodes. Returns false if it is not such a communicator. */
static bool place_of(const struct rest *rest, const struct lien_standing *standing,
	struct lien_split_place *place)
{
	const struct lien_process *process =
		lien_graph_process(rest->agent->graph, rest->pids[standing->process]);

	return standing->rank < 0 && standing->comm && process &&
	       lien_split_place(process, standing->comm, place);
}

static void report_place(const struct rest *rest, const struct lien_standing *standing,
	struct lien_node_standing *told)
{
	struct lien_split_place place;

	if (!place_of(rest, standing, &place))
		return;
	told->placed = true;
	told->split = lien_node_group_of(place.split, LIEN_TARGETS_GROUP);
	told->split_nranks = place.nranks;
	told->split_members = place.members;
	told->key = place.key;
	told->parent_rank = place.parent_rank;
}

/* Reports what this node counts. Returns false if out of memory. */
static bool report_standings(struct rest *rest)
{
	const struct lien_standing *standing = rest->targets.standings;
	bool good = lien_rest_list_pairs(rest);
	struct lien_node_standing *told;
	const struct lien_process *process;
	unsigned i;

	for (i = 0; good && i < rest->here; i++, standing++) {
		if (!standing->group) {
			rest->report.unnamed = true;
			continue;
		}
		told = lien_node_report_add(&rest->report);
		if (!told)
			good = false;
		if (!good)
			break;
		process = lien_graph_process(rest->agent->graph, rest->pids[standing->process]);
		told->group = group_of(standing);
		told->rank = standing->rank;
		told->counted = standing->counted;
		told->since = standing->since && process && process->agent
				      ? ((struct lien_tracked *)process->agent)->since_number
				      : 0;
		told->collectives = standing->collectives;
		report_place(rest, standing, told);
		good = !standing->transfers || report_pairs(rest, standing, told);
	}
	return good;
}

/* The process that stands for all others has one communicator for each number. */
static bool add_elsewhere(struct rest *rest, const struct lien_standing *here,
	const struct lien_others_group *group, const struct lien_others_pair *pair, uint64_t number)
{
	const struct lien_standing standing = {.process = lien_rest_elsewhere(rest),
		.comm = number,
		.group = here->group,
		.rank = pair ? (int32_t)pair->rank : -1,
		.counted = true,
		.transfers = pair != NULL,
		.elsewhere = true,
		.collectives = group->collectives};

	return lien_rest_add(rest, &standing);
}

/* Adds a standing for the group, and one for each rank that has transfers with ranks here. */
static bool add_group(
	struct rest *rest, const struct lien_standing *here, const struct lien_others_group *group)
{
	const struct lien_node_others *others = &rest->agent->elsewhere->others;
	const uint64_t number = others->pairs_count + (group - others->groups);
	const struct lien_others_pair *pairs;
	unsigned i, count;

	if (!add_elsewhere(rest, here, group, NULL, number))
		return false;
	pairs = lien_node_others_pairs(others, &group->group, &count);
	for (i = 0; i < count; i++)
		if ((!i || pairs[i].rank != pairs[i - 1].rank) &&
			!add_elsewhere(rest, here, group, &pairs[i], &pairs[i] - others->pairs))
			return false;
	return true;
}

bool lien_rest_take_others(struct rest *rest)
{
	const struct lien_elsewhere *elsewhere = rest->agent->elsewhere;
	const struct lien_others_group *group;
	bool *added = calloc(elsewhere->others.groups_count + 1, sizeof(*added));
	struct lien_split_place place;
	struct lien_standing here;
	struct lien_node_group name;
	bool good = added;
	unsigned i;

	rest->here = rest->targets.standings_count;
	good = good && report_standings(rest);
	for (i = 0; good && i < rest->here; i++) {
		here = rest->targets.standings[i];
		if (!here.group)
			continue;
		name = group_of(&here);
		if (place_of(rest, &here, &place))
			rest->targets.standings[i].rank =
				lien_node_others_rank(&elsewhere->others, &name, place.parent_rank);
		group = lien_node_others_group(&elsewhere->others, &name);
		if (!group)
			continue;
		rest->targets.standings[i].counted &= group->counted;
		if (!group->counted || added[group - elsewhere->others.groups])
			continue;
		added[group - elsewhere->others.groups] = true;
		good = add_group(rest, &here, group);
	}
	free(added);
	/* Until other nodes have reported, they count as busy, and put nobody behind. Once this
	 * node saves, all nodes were at rest. */
	if (elsewhere->part.status.state == LIEN_PART_GOING) {
		rest->busy[lien_rest_elsewhere(rest)] =
			!elsewhere->compared || elsewhere->others.busy;
		rest->targets.uncounted_elsewhere =
			elsewhere->compared && !elsewhere->others.counted;
	}
	rest->targets.processes = rest->count + 1;
	return good;
}

void lien_rest_tell_others(struct rest *rest, bool reached)
{
	unsigned i;

	for (i = 0; i < rest->count; i++)
		rest->report.busy |= rest->busy[i];
	if (rest->targets.of)
		lien_elsewhere_looked(rest->agent, reached,
			rest->miscounted ? NULL : lien_node_report_json(&rest->report));
	lien_node_report_clear(&rest->report);
}
