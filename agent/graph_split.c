// SPDX-License-Identifier: BSD-2-Clause
/* ncclCommSplit(): the new groups' names, and the ranks in them once all of the parent's have
 * called.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph_internal.h"

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
	const uint8_t *bytes = data;

	while (size--)
		hash = (hash ^ *bytes++) * 0x100000001b3ull;
	return hash;
}

void lien_comm_derive_id(
	uint8_t *id, const struct lien_comm *parent, unsigned call, unsigned number)
{
	uint64_t hash = mix(0xcbf29ce484222325ull, parent->id, sizeof(parent->id));

	hash = mix(hash, &call, sizeof(call));
	hash = mix(hash, &number, sizeof(number));
	memset(id, 0, sizeof(parent->id));
	memcpy(id, &hash, sizeof(hash));
}

static void add_color(uint8_t *id, int32_t color)
{
	uint64_t hash;

	memcpy(&hash, id, sizeof(hash));
	hash = mix(hash, &color, sizeof(color));
	memcpy(id, &hash, sizeof(hash));
}

static struct lien_split *split_of(struct lien_graph *graph, const uint8_t *id,
	const struct lien_comm *parent, unsigned number)
{
	struct lien_split *split;

	LIST_FOREACH (split, &graph->splits, next)
		if (split->nranks == parent->nranks && !memcmp(split->id, id, sizeof(split->id)))
			return split;
	split = calloc(1, sizeof(*split));
	if (!split)
		return NULL;
	memcpy(split->id, id, sizeof(split->id));
	split->number = number;
	split->nranks = parent->nranks;
	LIST_INSERT_HEAD(&graph->splits, split, next);
	return split;
}

static void split_free(struct lien_split *split)
{
	LIST_REMOVE(split, next);
	free(split->members);
	free(split);
}

/* Its place among the members; a rank calls once, so an earlier one of that rank is stale. NULL:
 * out of memory. */
static struct lien_split_member *member_of(struct lien_split *split, int32_t parent_rank)
{
	struct lien_split_member *members;
	unsigned i;

	for (i = 0; i < split->members_count; i++)
		if (split->members[i].parent_rank == parent_rank)
			return &split->members[i];
	if (!(i & (i - 1))) { /* full at every power of two */
		members = realloc(split->members, (i ? 2 * i : 1) * sizeof(*members));
		if (!members)
			return NULL;
		split->members = members;
	}
	split->members_count++;
	return &split->members[i];
}

static int member_cmp(const void *a, const void *b)
{
	const struct lien_split_member *x = a, *y = b;

	if (x->color != y->color)
		return x->color < y->color ? -1 : 1;
	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return (x->parent_rank > y->parent_rank) - (x->parent_rank < y->parent_rank);
}

/* NULL: it takes no part, or has been destroyed (lien_splits_forget()). */
static struct lien_comm *comm_of(struct lien_graph *graph, const struct lien_split_member *member)
{
	struct lien_process *process = lien_graph_process(graph, member->pid);

	return process && member->number ? lien_comm_find(process, member->comm) : NULL;
}

/* All have called: by color, then key, then their rank in the parent (ncclCommSplit()). */
static void split_finish(struct lien_graph *graph, struct lien_split *split)
{
	unsigned i, first, end;
	struct lien_comm *comm;

	qsort(split->members, split->members_count, sizeof(split->members[0]), member_cmp);
	for (first = 0; first < split->members_count; first = end) {
		for (end = first; end < split->members_count; end++)
			if (split->members[end].color != split->members[first].color)
				break;
		for (i = first; i < end; i++) {
			comm = comm_of(graph, &split->members[i]);
			if (!comm)
				continue;
			comm->rank = i - first;
			comm->nranks = end - first;
		}
	}
	split_free(split);
}

void lien_splits_drop(struct lien_graph *graph, uint32_t pid)
{
	struct lien_split *split, *next;
	unsigned i;

	LIST_FOREACH_SAFE (split, &graph->splits, next, next)
		for (i = 0; i < split->members_count; i++)
			if (!pid || split->members[i].pid == pid) {
				split_free(split);
				break;
			}
}

void lien_splits_forget(struct lien_graph *graph, uint32_t number)
{
	struct lien_split *split, *next;
	bool known;
	unsigned i;

	LIST_FOREACH_SAFE (split, &graph->splits, next, next) {
		known = false;
		for (i = 0; i < split->members_count; i++) {
			struct lien_split_member *member = &split->members[i];

			if (member->number == number)
				member->number = 0;
			if (member->parent == number)
				member->parent = 0;
			known |= member->number || member->parent;
		}
		if (!known)
			split_free(split);
	}
}

/* Of the process's communicator that the split is of, its part in it. */
static int split_join(struct lien_graph *graph, const struct lien_process *process,
	const struct lien_event *event, const struct lien_comm *parent,
	const struct lien_comm *comm, unsigned number)
{
	struct lien_split_member *member;
	struct lien_split *split;
	uint8_t id[sizeof(parent->id)];

	if (parent->rank < 0 || parent->rank >= parent->nranks || !lien_comm_has_count(parent))
		return 0; /* then it is not known who its members are */
	lien_comm_derive_id(id, parent, LIEN_CALL_NCCL_SPLIT, number);
	split = split_of(graph, id, parent, number);
	member = split ? member_of(split, parent->rank) : NULL;
	if (!member)
		return -ENOMEM;
	*member = (struct lien_split_member){
		.pid = process->pid,
		.comm = comm ? comm->address : 0,
		.number = comm ? comm->number : 0,
		.parent = parent->number,
		.color = event->comm.color,
		.key = event->comm.key,
		.parent_rank = parent->rank,
	};
	if (split->members_count == (unsigned)split->nranks)
		split_finish(graph, split);
	return 0;
}

static int split_told(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *parent = lien_comm_parent(process, event), *comm;

	if (event->comm.nranks != LIEN_COMM_AWAITED)
		return lien_comm_told(graph, process, event);
	comm = event->comm.color < 0 ? NULL : lien_comm_find(process, event->comm.comm);
	return parent ? split_join(graph, process, event, parent, comm, event->comm.excluded) : 0;
}

int lien_graph_apply_comm_split(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *parent = lien_comm_parent(process, event), *comm = NULL;

	if (event->flags & LIEN_EVENT_IMPORTED)
		return split_told(graph, process, event);
	if (event->comm.comm && event->comm.color >= 0) {
		comm = lien_comm_made(graph, process, event);
		if (!comm)
			return -ENOMEM;
		comm->rank = comm->nranks = -1;
		memset(comm->id, 0, sizeof(comm->id));
	}
	if (!parent)
		return 0;
	parent->splits++;
	if (comm)
		comm->parent = parent->number;
	if (!lien_comm_has_count(parent))
		return 0; /* NCCL's RAS may name it later */
	if (comm) {
		lien_comm_derive_id(comm->id, parent, event->type, parent->splits);
		add_color(comm->id, event->comm.color);
	}
	return split_join(graph, process, event, parent, comm, parent->splits);
}
