// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/nodes_members.h"

#include <stdlib.h>
#include <string.h>

#include "tools/text/complain.h"

static bool is_node(const char *with_pid, const char *name)
{
	const size_t length = strlen(name);

	return !strncmp(with_pid, name, length) && with_pid[length] == ':';
}

bool lien_nodes_members_check(const struct lien_nodes *nodes, const struct lien_nodes_move *move)
{
	unsigned i, j;

	for (i = 0; i < move->pids->count; i++) {
		if (!move->pids->node[i]) {
			lien_complain(move->command, "--pid %d: on which node? --pid NODE:%d",
				(int)move->pids->pid[i], (int)move->pids->pid[i]);
			return false;
		}
		for (j = 0; j < nodes->count; j++)
			if (is_node(move->pids->node[i], nodes->links[j].name))
				break;
		if (j < nodes->count)
			continue;
		lien_complain(move->command, "--pid %s: that node is not one of --nodes",
			move->pids->node[i]);
		return false;
	}
	return true;
}

/* The pids on a node; NULL: all. */
static json_t *pids_of(const struct lien_nodes *nodes, const struct lien_nodes_move *move,
	unsigned node, const json_t *of_job)
{
	json_t *pids = json_array();
	unsigned i;

	for (i = 0; i < move->pids->count; i++)
		if (is_node(move->pids->node[i], nodes->links[node].name))
			json_array_append_new(pids, json_integer(move->pids->pid[i]));
	if (move->pids->count)
		return pids;
	json_decref(pids);
	return of_job ? json_incref(json_array_get(of_job, node)) : NULL;
}

bool lien_nodes_members_add(struct mover *mover, const json_t *of_job)
{
	struct member *member;
	json_t *pids;
	unsigned i;

	mover->members = calloc(mover->nodes->count, sizeof(*mover->members));
	mover->states = calloc(mover->nodes->count, sizeof(*mover->states));
	mover->member_of = calloc(mover->nodes->count, sizeof(*mover->member_of));
	if (!mover->members || !mover->states || !mover->member_of)
		return false;
	for (i = 0; i < mover->nodes->count; i++) {
		pids = pids_of(mover->nodes, mover->move, i, of_job);
		mover->member_of[i] = -1;
		if (pids && !json_array_size(pids)) {
			json_decref(pids);
			continue;
		}
		member = &mover->members[mover->count];
		member->node = i;
		member->request = json_copy((json_t *)mover->move->request);
		if (pids)
			json_object_set_new(member->request, "pids", pids);
		mover->member_of[i] = mover->count++;
	}
	return mover->count;
}

void lien_nodes_members_free(struct mover *mover)
{
	unsigned i;

	for (i = 0; i < mover->count; i++) {
		json_decref(mover->members[i].request);
		json_decref(mover->members[i].result);
		json_decref(mover->members[i].others);
		json_decref(mover->members[i].sent);
		free(mover->members[i].error);
		free(mover->members[i].absent);
		lien_node_report_clear(&mover->members[i].report);
	}
	free(mover->members);
	free(mover->states);
	free(mover->member_of);
}
