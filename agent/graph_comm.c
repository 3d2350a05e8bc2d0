// SPDX-License-Identifier: BSD-2-Clause
/* Communicators: who is in which group, at which rank, and whose memory is whose. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph_internal.h"

/* No group is larger; a forged recording may say so. */
#define RANKS_MAX 65536

struct member {
	uint32_t pid;
	uint64_t comm; /* 0: it takes no part (NCCL_SPLIT_NOCOLOR) */
	int32_t color, key, parent_rank;
};

struct lien_split {
	LIST_ENTRY(lien_split) next;
	uint8_t id[128]; /* before the color is added */
	unsigned members_count;
	unsigned ranks; /* of the parent, as the first one said */
	struct member members[];
};

struct lien_comm *lien_comm_find(struct lien_process *process, uint64_t address)
{
	struct lien_comm key = {.address = address};

	return RB_FIND(lien_comm_tree, &process->comms, &key);
}

struct lien_comm *lien_comm_new(
	struct lien_graph *graph, struct lien_process *process, uint64_t address)
{
	struct lien_comm *comm = calloc(1, sizeof(*comm));

	if (!comm)
		return NULL;
	comm->address = address;
	comm->number = ++graph->next_comm;
	comm->rank = comm->nranks = comm->device = -1;
	LIST_INIT(&comm->registrations);
	RB_INSERT(lien_comm_tree, &process->comms, comm);
	return comm;
}

static struct lien_init *init_find(struct lien_process *process, uint64_t scope)
{
	struct lien_init *init;

	LIST_FOREACH (init, &process->inits, next)
		if (init->scope == scope)
			break;
	return init;
}

uint32_t lien_comm_of_scope(struct lien_graph *graph, struct lien_process *process, uint64_t scope)
{
	struct lien_comm *comm;
	struct lien_init *init;

	if (!(scope & LIEN_SCOPE_INIT)) {
		comm = lien_comm_find(process, scope);
		return comm ? comm->number : 0;
	}
	init = init_find(process, scope);
	if (!init) {
		init = calloc(1, sizeof(*init));
		if (!init)
			return 0;
		init->scope = scope;
		init->number = ++graph->next_comm;
		LIST_INSERT_HEAD(&process->inits, init, next);
	}
	return init->number;
}

/*
 * NCCL's threads go on making memory for a communicator after the call that makes it has returned
 * (non-blocking ones, and groups), so the entry stays: it is how they name it.
 */
static void adopt_number(struct lien_comm *comm, struct lien_process *process, uint64_t t_entry)
{
	struct lien_init *init = init_find(process, LIEN_SCOPE_INIT | t_entry);
	struct lien_comm *other;

	if (!init)
		return;
	RB_FOREACH (other, lien_comm_tree, &process->comms)
		if (other->number == init->number)
			return; /* ncclCommInitAll: the first one stands for all */
	comm->number = init->number;
}

/* A new one takes the place of whatever had its address. NULL: out of memory. */
static struct lien_comm *comm_made(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	uint64_t address = event->comm.comm;
	struct lien_comm *comm = lien_comm_find(process, address);

	if (comm && !lien_graph_apply_pending(graph, process, LIEN_CALL_NCCL_DESTROY, address, 0))
		lien_graph_apply_pending(graph, process, LIEN_CALL_NCCL_ABORT, address, 0);
	comm = lien_comm_find(process, address);
	if (comm)
		lien_comm_drop(process, comm);
	comm = lien_comm_new(graph, process, event->comm.comm);
	if (!comm)
		return NULL;
	adopt_number(comm, process, event->t_entry);
	comm->made_by = event->type;
	comm->rank = event->comm.rank;
	comm->nranks = event->comm.nranks;
	comm->device = event->comm.device;
	comm->t_init = event->t_return;
	memcpy(comm->id, event->comm.id, sizeof(comm->id));
	return comm;
}

/* To be asked once the new one is there, which may have its parent's place. NULL: not known. */
static struct lien_comm *parent_of(struct lien_process *process, const struct lien_event *event)
{
	return event->comm.parent == event->comm.comm ? NULL
						      : lien_comm_find(process, event->comm.parent);
}

/* Told after the fact (lien_graph_dump()), with everything that is known of it. */
static int comm_told(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *comm = comm_made(graph, process, event), *parent;

	if (!comm)
		return -ENOMEM;
	parent = parent_of(process, event);
	comm->parent = parent ? parent->number : 0;
	comm->splits = event->comm.key;
	comm->shrinks = event->comm.excluded;
	return 0;
}

int lien_graph_apply_comm_init(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	if (!event->comm.comm)
		return 0;
	if (event->flags & LIEN_EVENT_IMPORTED)
		return comm_told(graph, process, event);
	return comm_made(graph, process, event) ? 0 : -ENOMEM;
}

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
	const uint8_t *bytes = data;

	while (size--)
		hash = (hash ^ *bytes++) * 0x100000001b3ull;
	return hash;
}

/* The name of a group that NCCL gives none. */
static void derive_id(uint8_t *id, const struct lien_comm *parent, unsigned call, unsigned number)
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

static struct lien_split *split_of(
	struct lien_graph *graph, const uint8_t *id, const struct lien_comm *parent)
{
	struct lien_split *split;

	LIST_FOREACH (split, &graph->splits, next)
		if (!memcmp(split->id, id, sizeof(split->id)))
			return split;
	split = calloc(1, sizeof(*split) + parent->nranks * sizeof(split->members[0]));
	if (!split)
		return NULL;
	memcpy(split->id, id, sizeof(split->id));
	split->ranks = parent->nranks;
	LIST_INSERT_HEAD(&graph->splits, split, next);
	return split;
}

static int member_cmp(const void *a, const void *b)
{
	const struct member *x = a, *y = b;

	if (x->color != y->color)
		return x->color < y->color ? -1 : 1;
	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return (x->parent_rank > y->parent_rank) - (x->parent_rank < y->parent_rank);
}

/* All have called: by color, then key, then their rank in the parent (ncclCommSplit()). */
static void split_finish(struct lien_graph *graph, struct lien_split *split)
{
	unsigned i, first, end;

	qsort(split->members, split->members_count, sizeof(split->members[0]), member_cmp);
	for (first = 0; first < split->members_count; first = end) {
		for (end = first; end < split->members_count; end++)
			if (split->members[end].color != split->members[first].color)
				break;
		for (i = first; i < end; i++) {
			const struct member *member = &split->members[i];
			struct lien_process *process = lien_graph_process(graph, member->pid);
			struct lien_comm *comm = process && member->comm
							 ? lien_comm_find(process, member->comm)
							 : NULL;

			if (!comm)
				continue;
			comm->rank = i - first;
			comm->nranks = end - first;
		}
	}
	LIST_REMOVE(split, next);
	free(split);
}

void lien_splits_drop(struct lien_graph *graph, uint32_t pid)
{
	struct lien_split *split, *next;
	unsigned i;

	LIST_FOREACH_SAFE(split, &graph->splits, next, next)
	for (i = 0; i < split->members_count; i++)
		if (!pid || split->members[i].pid == pid) {
			LIST_REMOVE(split, next);
			free(split);
			break;
		}
}

static int split_join(struct lien_graph *graph, const struct lien_process *process,
	const struct lien_event *event, const struct lien_comm *parent, const uint8_t *id)
{
	struct lien_split *split;

	if (parent->rank < 0 || parent->nranks < 1 || parent->nranks > RANKS_MAX)
		return 0; /* then it is not known who its members are */
	split = split_of(graph, id, parent);
	if (!split)
		return -ENOMEM;
	split->members[split->members_count++] = (struct member){
		.pid = process->pid,
		.comm = event->comm.color < 0 ? 0 : event->comm.comm,
		.color = event->comm.color,
		.key = event->comm.key,
		.parent_rank = parent->rank,
	};
	if (split->members_count == split->ranks)
		split_finish(graph, split);
	return 0;
}

int lien_graph_apply_comm_split(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *parent, *comm = NULL;
	uint8_t id[sizeof(parent->id)];

	if (event->flags & LIEN_EVENT_IMPORTED)
		return comm_told(graph, process, event);
	if (event->comm.comm && event->comm.color >= 0) {
		comm = comm_made(graph, process, event);
		if (!comm)
			return -ENOMEM;
	}
	parent = parent_of(process, event);
	if (!parent)
		return 0;
	derive_id(id, parent, event->type, ++parent->splits);
	if (comm) {
		comm->parent = parent->number;
		memcpy(comm->id, id, sizeof(id));
		add_color(comm->id, event->comm.color);
	}
	return split_join(graph, process, event, parent, id);
}

#define EXCLUDED_TOLD (sizeof(((struct lien_event *)0)->comm.id) / sizeof(int32_t))

int lien_graph_apply_comm_shrink(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *parent, *comm;
	int32_t excluded[EXCLUDED_TOLD], count = event->comm.excluded, i;

	if (!event->comm.comm)
		return 0;
	if (event->flags & LIEN_EVENT_IMPORTED)
		return comm_told(graph, process, event);
	comm = comm_made(graph, process, event);
	if (!comm)
		return -ENOMEM;
	memcpy(excluded, event->comm.id, sizeof(excluded));
	memset(comm->id, 0, sizeof(comm->id));
	parent = parent_of(process, event);
	if (!parent)
		return 0;
	comm->parent = parent->number;
	derive_id(comm->id, parent, event->type, ++parent->shrinks);
	if (parent->rank < 0 || count < 0 || count > (int32_t)EXCLUDED_TOLD)
		return 0;
	comm->nranks = parent->nranks - count;
	comm->rank = parent->rank;
	for (i = 0; i < count; i++)
		comm->rank -= excluded[i] < parent->rank;
	return 0;
}

int lien_graph_apply_comm_finalize(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *comm = lien_comm_find(process, event->comm_end.comm);

	(void)graph;
	if (comm)
		comm->finalized = true;
	return 0;
}

int lien_graph_apply_comm_end(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *comm = lien_comm_find(process, event->comm_end.comm);

	(void)graph;
	if (comm)
		lien_comm_drop(process, comm);
	return 0;
}
