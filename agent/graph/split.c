// SPDX-License-Identifier: BSD-2-Clause
/* ncclCommSplit(): the ranks in the new groups, once all ranks of the parent have called. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/internal.h"

static int lien_split_cmp(const struct lien_split *a, const struct lien_split *b)
{
	int order = memcmp(a->id, b->id, sizeof(a->id));

	return order ? order : (a->nranks > b->nranks) - (a->nranks < b->nranks);
}
RB_GENERATE(lien_split_tree, lien_split, by_id, lien_split_cmp)

static int lien_split_rank_cmp(const struct lien_split_member *a, const struct lien_split_member *b)
{
	return (a->parent_rank > b->parent_rank) - (a->parent_rank < b->parent_rank);
}
RB_GENERATE(lien_split_rank_tree, lien_split_member, by_rank, lien_split_rank_cmp)

static int by_number_cmp(const struct lien_split_member *a, const struct lien_split_member *b)
{
	if (a->number != b->number)
		return a->number < b->number ? -1 : 1;
	return a->serial < b->serial ? -1 : a->serial > b->serial;
}
LIEN_TREE(lien_split_comm_tree, lien_split_member, by_number, by_number_cmp)

static int by_parent_cmp(const struct lien_split_member *a, const struct lien_split_member *b)
{
	if (a->parent != b->parent)
		return a->parent < b->parent ? -1 : 1;
	return a->serial < b->serial ? -1 : a->serial > b->serial;
}
LIEN_TREE(lien_split_parent_tree, lien_split_member, by_parent, by_parent_cmp)

static struct lien_split *split_of(
	struct lien_graph *graph, const uint8_t *id, int32_t nranks, unsigned number)
{
	struct lien_split *split = calloc(1, sizeof(*split)), *known;

	if (!split)
		return NULL;
	memcpy(split->id, id, sizeof(split->id));
	split->number = number;
	split->nranks = nranks;
	known = RB_INSERT(lien_split_tree, &graph->splits, split);
	if (!known)
		return split;
	free(split);
	return known;
}

/* The member refers to its communicators no longer. */
static void forget_comm(struct lien_process *process, struct lien_split_member *member)
{
	RB_REMOVE(lien_split_comm_tree, &process->split_comms, member);
	member->number = 0;
	member->split->known -= !member->parent;
}

static void forget_parent(struct lien_process *process, struct lien_split_member *member)
{
	RB_REMOVE(lien_split_parent_tree, &process->split_parents, member);
	member->parent = 0;
	member->split->known -= !member->number;
}

static void member_free(struct lien_split_member *member)
{
	if (member->number)
		forget_comm(member->process, member);
	if (member->parent)
		forget_parent(member->process, member);
	LIST_REMOVE(member, of_process);
	RB_REMOVE(lien_split_rank_tree, &member->split->members, member);
	member->split->members_count--;
	free(member);
}

/* Not inline: gcc 12 would not see that this removes the members from their processes' lists. */
static __attribute__((noinline)) void split_free(struct lien_graph *graph, struct lien_split *split)
{
	while (!RB_EMPTY(&split->members))
		member_free(RB_ROOT(&split->members));
	RB_REMOVE(lien_split_tree, &graph->splits, split);
	free(split);
}

/* A rank calls once, so an earlier member with that rank is stale. -ENOMEM. */
static int member_add(struct lien_graph *graph, struct lien_process *process,
	struct lien_split *split, const struct lien_split_member *wanted)
{
	struct lien_split_member *member = malloc(sizeof(*member)), *stale;

	if (!member)
		return -ENOMEM;
	stale = RB_FIND(lien_split_rank_tree, &split->members, (struct lien_split_member *)wanted);
	if (stale)
		member_free(stale);
	*member = *wanted;
	member->split = split;
	member->process = process;
	member->serial = ++graph->next_split_member;
	split->members_count++;
	split->known += member->number || member->parent;
	RB_INSERT(lien_split_rank_tree, &split->members, member);
	LIST_INSERT_HEAD(&process->splits, member, of_process);
	if (member->number)
		RB_INSERT(lien_split_comm_tree, &process->split_comms, member);
	if (member->parent)
		RB_INSERT(lien_split_parent_tree, &process->split_parents, member);
	return 0;
}

static int member_cmp(const void *a, const void *b)
{
	const struct lien_split_member *x = *(struct lien_split_member *const *)a;
	const struct lien_split_member *y = *(struct lien_split_member *const *)b;

	if (x->color != y->color)
		return x->color < y->color ? -1 : 1;
	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return (x->parent_rank > y->parent_rank) - (x->parent_rank < y->parent_rank);
}

/* NULL: it takes no part, or was destroyed (lien_splits_forget()). */
static struct lien_comm *comm_of(const struct lien_split_member *member)
{
	return member->number ? lien_comm_find(member->process, member->comm) : NULL;
}

/* All have called: sorts by color, then key, then rank in the parent (ncclCommSplit()). */
static int split_finish(struct lien_graph *graph, struct lien_split *split)
{
	struct lien_split_member **members = calloc(split->members_count, sizeof(*members));
	unsigned count = 0, i, first, end;
	struct lien_split_member *member;
	struct lien_comm *comm;

	if (!members)
		return -ENOMEM;
	RB_FOREACH (member, lien_split_rank_tree, &split->members)
		members[count++] = member;
	qsort(members, count, sizeof(*members), member_cmp);
	for (first = 0; first < count; first = end) {
		for (end = first; end < count; end++)
			if (members[end]->color != members[first]->color)
				break;
		for (i = first; i < end; i++) {
			comm = comm_of(members[i]);
			if (!comm)
				continue;
			comm->rank = i - first;
			comm->nranks = end - first;
		}
	}
	free(members);
	split_free(graph, split);
	return 0;
}

bool lien_splits_drop_one(struct lien_graph *graph, struct lien_process *process)
{
	if (LIST_EMPTY(&process->splits))
		return false;
	split_free(graph, LIST_FIRST(&process->splits)->split);
	return true;
}

void lien_splits_forget(struct lien_graph *graph, struct lien_process *process, uint32_t number)
{
	struct lien_split_member key = {.number = number, .parent = number}, *member;
	struct lien_split *split;

	while ((member = RB_NFIND(lien_split_comm_tree, &process->split_comms, &key)) &&
		member->number == number) {
		split = member->split;
		forget_comm(process, member);
		if (!split->known)
			split_free(graph, split);
	}
	while ((member = RB_NFIND(lien_split_parent_tree, &process->split_parents, &key)) &&
		member->parent == number) {
		split = member->split;
		forget_parent(process, member);
		if (!split->known)
			split_free(graph, split);
	}
}

int lien_split_join(struct lien_graph *graph, struct lien_process *process,
	const struct lien_split_member *member, const uint8_t *id, int32_t nranks, unsigned number)
{
	struct lien_split *split = split_of(graph, id, nranks, number);
	int err = split ? member_add(graph, process, split, member) : -ENOMEM;

	if (split && !split->members_count)
		split_free(graph, split);
	if (err)
		return err;
	return split->members_count == (unsigned)split->nranks ? split_finish(graph, split) : 0;
}

/* A snapshot has only splits that lack members, and each member once. */
static bool split_fits(struct lien_graph *graph, const struct lien_state_split *body)
{
	struct lien_split_member rank = {.parent_rank = body->parent_rank};
	struct lien_split key = {.nranks = body->nranks}, *split;

	if (body->parent_rank < 0 || body->parent_rank >= body->nranks || body->nranks < 2)
		return false;
	memcpy(key.id, body->id, sizeof(key.id));
	split = RB_FIND(lien_split_tree, &graph->splits, &key);
	return !split || (split->number == body->number &&
				 split->members_count + 1 < (unsigned)split->nranks &&
				 !RB_FIND(lien_split_rank_tree, &split->members, &rank));
}

int lien_split_load(
	struct lien_graph *graph, struct lien_process *process, const struct lien_state_split *body)
{
	const struct lien_comm *comm = body->comm ? lien_process_comm(process, body->comm) : NULL;
	const struct lien_split_member member = {
		.comm = comm ? comm->address : 0,
		.number = body->comm,
		.parent = body->parent,
		.color = body->color,
		.key = body->key,
		.parent_rank = body->parent_rank,
	};

	if (!split_fits(graph, body) || (body->comm && !comm) ||
		(body->parent && !lien_process_comm(process, body->parent)))
		return -EBADMSG;
	return lien_split_join(graph, process, &member, body->id, body->nranks, body->number);
}

bool lien_split_place(
	const struct lien_process *process, uint64_t address, struct lien_split_place *place)
{
	const struct lien_comm *comm = lien_comm_find((struct lien_process *)process, address);
	struct lien_split_comm_tree *tree = (struct lien_split_comm_tree *)&process->split_comms;
	struct lien_split_member key = {.number = comm ? comm->number : 0};
	const struct lien_split_member *member =
		comm ? RB_NFIND(lien_split_comm_tree, tree, &key) : NULL;

	if (!member || member->number != comm->number)
		return false;
	*place = (struct lien_split_place){.split = member->split->id,
		.nranks = member->split->nranks,
		.members = member->split->members_count,
		.key = member->key,
		.parent_rank = member->parent_rank};
	return true;
}
