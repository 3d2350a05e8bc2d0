// SPDX-License-Identifier: BSD-2-Clause
/* What is noted when a job is at rest: counts since then can be compared. */
#include "agent/quiesce/quiesce.h"

#include <stdlib.h>
#include <string.h>

#include "agent/quiesce/elsewhere.h"
#include "agent/quiesce/rest_internal.h"
#include "agent/graph/array.h"
#include "loader/probes/gate.h"

static void note_comm(
	const struct rest *rest, struct lien_tracked *tracked, const struct lien_comm *comm)
{
	struct lien_counts counts = lien_rest_count_comm(rest, tracked->pid, comm);
	const struct begun *pairs =
		lien_rest_pairs(rest, tracked->pid, comm->address, &counts.pairs_count);
	unsigned i;

	counts.pairs = calloc(counts.pairs_count + 1, sizeof(*counts.pairs));
	if (!counts.pairs)
		return;
	for (i = 0; i < counts.pairs_count; i++)
		counts.pairs[i] = (struct lien_counts_pair){pairs[i].which.peer,
			lien_rest_without_held(rest, pairs[i].calls, tracked->pid, comm->address,
				pairs[i].which.peer)};
	lien_since_note(tracked, comm, &counts);
}

/* Groups by NCCL's id. */
struct ids {
	const uint8_t **id;
	unsigned count, room;
};

static int id_cmp(const void *a, const void *b)
{
	return memcmp(*(const uint8_t *const *)a, *(const uint8_t *const *)b, LIEN_TARGETS_GROUP);
}

/* Lists the groups of which processes that are not at rest are members. Returns false if out of
 * memory. */
static bool list_outside(const struct rest *rest, struct ids *ids)
{
	struct lien_process *process;
	struct lien_comm *comm;

	for (process = lien_graph_first(rest->agent->graph); process;
		process = lien_graph_next(process)) {
		if (RB_EMPTY(&process->comms) || lien_rest_index_of(rest, process->pid) >= 0)
			continue;
		RB_FOREACH (comm, lien_comm_tree, &process->comms) {
			if (!lien_comm_is_found(comm))
				continue;
			if (lien_array_grow(&ids->id, ids->count, &ids->room, sizeof(*ids->id)))
				return false;
			ids->id[ids->count++] = comm->id;
		}
	}
	if (ids->count)
		qsort(ids->id, ids->count, sizeof(*ids->id), id_cmp);
	return true;
}

static bool have_id(const struct ids *ids, const uint8_t *id)
{
	return ids->count && bsearch(&id, ids->id, ids->count, sizeof(*ids->id), id_cmp);
}

/* Returns a number for this rest. It is the same on all nodes of a transaction, which were at rest
 * at once. */
static uint64_t number_of_rest(const struct lien_agent *agent)
{
	const char *id = agent->elsewhere ? agent->elsewhere->id : NULL;
	const uint64_t now = lien_now_ns();
	const struct lien_node_group name =
		id ? lien_node_group_of((const uint8_t *)id, strlen(id))
		   : lien_node_group_of((const uint8_t *)&now, sizeof(now));

	return (name.half[0] >> 2) + 1;
}

/* Counts since different rests cannot be compared. So a group's counts are noted only if all its
 * known members are at rest. */
void lien_quiesce_rested(void *context, const uint32_t *pids, unsigned count)
{
	struct lien_agent *agent = context;
	struct rest rest = {.agent = agent, .pids = pids, .count = count};
	const uint64_t number = number_of_rest(agent);
	bool known = lien_rest_index_pids(&rest) &&
		     lien_probes_held(agent->probes, lien_rest_gather, &rest) >= 0 &&
		     lien_probes_pairs(agent->probes, lien_rest_note_pair, &rest) >= 0;
	struct lien_process *process;
	struct ids outside = {0};
	struct lien_comm *comm;
	unsigned i;

	known = known && list_outside(&rest, &outside);
	lien_rest_sort(&rest);
	for (i = 0; i < count; i++) {
		process = lien_graph_process(agent->graph, pids[i]);
		if (!process || !process->agent)
			continue;
		lien_since_clear(process->agent, number);
		RB_FOREACH (comm, lien_comm_tree, &process->comms)
			if (known && lien_comm_is_found(comm) && !have_id(&outside, comm->id))
				note_comm(&rest, process->agent, comm);
	}
	free(outside.id);
	free(rest.places);
	free(rest.begun);
	free(rest.waiting);
}
