// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/nodes_result.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tools/text/complain.h"
#include "tools/text/output.h"

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
