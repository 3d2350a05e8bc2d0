// SPDX-License-Identifier: BSD-2-Clause
/*
 * Communicators: the members of each group, their ranks, and the memory of each communicator. After
 * an ncclCommSplit() the ranks in the new groups are known once all ranks of the parent have
 * called.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/hash.h"
#include "agent/graph/internal.h"

/* --- splits ----------------------------------------------------------------------------------- */

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

static void member_free(struct lien_split_member *member)
{
	if (member->comm)
		member->comm->member = NULL;
	if (member->parent)
		LIST_REMOVE(member, of_parent);
	LIST_REMOVE(member, of_process);
	RB_REMOVE(lien_split_rank_tree, &member->split->members, member);
	member->split->members_count--;
	member->split->known -= member->comm || member->parent;
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

/* A rank calls once, so an earlier member with that rank is stale. A split makes a communicator
 * once, too; only a forged recording says otherwise. -ENOMEM. */
static int member_add(struct lien_process *process, struct lien_split *split,
	const struct lien_split_member *wanted)
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
	if (member->comm && member->comm->member)
		member->comm = NULL;
	split->members_count++;
	split->known += member->comm || member->parent;
	RB_INSERT(lien_split_rank_tree, &split->members, member);
	LIST_INSERT_HEAD(&process->splits, member, of_process);
	if (member->comm)
		member->comm->member = member;
	if (member->parent)
		LIST_INSERT_HEAD(&member->parent->splitting, member, of_parent);
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

/* All have called: sorts by color, then key, then rank in the parent (ncclCommSplit()). */
static int split_finish(struct lien_graph *graph, struct lien_split *split)
{
	struct lien_split_member **members = calloc(split->members_count, sizeof(*members));
	unsigned count = 0, i, first, end;
	struct lien_split_member *member;

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
			if (!members[i]->comm)
				continue;
			members[i]->comm->rank = i - first;
			members[i]->comm->nranks = end - first;
		}
	}
	free(members);
	split_free(graph, split);
	return 0;
}

/* The member has lost a communicator. A split with no known members left will never be complete. */
static void member_lost(struct lien_graph *graph, struct lien_split_member *member)
{
	struct lien_split *split = member->split;

	if (!member->comm && !member->parent && !--split->known)
		split_free(graph, split);
}

static void splits_forget(struct lien_graph *graph, struct lien_comm *comm)
{
	struct lien_split_member *member = comm->member;

	if (member) {
		member->comm = NULL;
		member_lost(graph, member);
	}
	while ((member = LIST_FIRST(&comm->splitting))) {
		LIST_REMOVE(member, of_parent);
		member->parent = NULL;
		member_lost(graph, member);
	}
}

/* A rank takes part in a split of a parent with nranks ranks: its number-th, or the one of that id.
 * The last of them to do so learns all ranks. -ENOMEM. */
static int split_add(struct lien_process *process, const struct lien_split_member *member,
	const uint8_t *id, int32_t nranks, unsigned number)
{
	struct lien_graph *graph = process->graph;
	struct lien_split *split = split_of(graph, id, nranks, number);
	int err = split ? member_add(process, split, member) : -ENOMEM;

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

int lien_split_load(struct lien_process *process, const struct lien_state_split *body)
{
	const struct lien_split_member member = {
		.comm = body->comm ? lien_process_comm(process, body->comm) : NULL,
		.parent = body->parent ? lien_process_comm(process, body->parent) : NULL,
		.color = body->color,
		.key = body->key,
		.parent_rank = body->parent_rank,
	};

	if (!split_fits(process->graph, body) || (body->parent && !member.parent) ||
		(body->comm && (!member.comm || member.comm->member)))
		return -EBADMSG;
	return split_add(process, &member, body->id, body->nranks, body->number);
}

bool lien_split_place(
	const struct lien_process *process, uint64_t address, struct lien_split_place *place)
{
	const struct lien_comm *comm = lien_comm_find((struct lien_process *)process, address);
	const struct lien_split_member *member = comm ? comm->member : NULL;

	if (!member)
		return false;
	*place = (struct lien_split_place){.split = member->split->id,
		.nranks = member->split->nranks,
		.members = member->split->members_count,
		.key = member->key,
		.parent_rank = member->parent_rank};
	return true;
}

/* --- communicators ---------------------------------------------------------------------------- */

struct lien_comm *lien_comm_new(struct lien_process *process, uint64_t address)
{
	struct lien_comm *comm = calloc(1, sizeof(*comm));

	if (!comm)
		return NULL;
	comm->address = address;
	comm->number = ++process->graph->next_comm;
	comm->rank = comm->nranks = comm->device = -1;
	RB_INSERT(lien_comm_tree, &process->comms, comm);
	RB_INSERT(lien_comm_number_tree, &process->comm_numbers, comm);
	return comm;
}

static struct lien_init *init_find(struct lien_process *process, uint64_t scope)
{
	return RB_FIND(lien_init_tree, &process->inits, &(struct lien_init){.scope = scope});
}

int lien_init_new(struct lien_process *process, uint64_t scope, uint32_t number)
{
	struct lien_init *init = calloc(1, sizeof(*init));

	if (!init)
		return -ENOMEM;
	init->scope = scope;
	init->number = number;
	RB_INSERT(lien_init_tree, &process->inits, init);
	RB_INSERT(lien_init_number_tree, &process->init_numbers, init);
	return 0;
}

static void init_drop(struct lien_process *process, struct lien_init *init)
{
	RB_REMOVE(lien_init_tree, &process->inits, init);
	RB_REMOVE(lien_init_number_tree, &process->init_numbers, init);
	free(init);
}

static void comm_drop(struct lien_process *process, struct lien_comm *comm)
{
	struct lien_init key = {.number = comm->number}, *init;

	splits_forget(process->graph, comm);
	while (!RB_EMPTY(&comm->registrations))
		lien_registration_drop(&comm->registrations, RB_ROOT(&comm->registrations));
	while ((init = RB_FIND(lien_init_number_tree, &process->init_numbers, &key)))
		init_drop(process, init);
	RB_REMOVE(lien_comm_tree, &process->comms, comm);
	RB_REMOVE(lien_comm_number_tree, &process->comm_numbers, comm);
	free(comm);
}

bool lien_comms_drop_one(struct lien_process *process)
{
	struct lien_comm *comm = RB_ROOT(&process->comms);

	if (comm && !RB_EMPTY(&comm->registrations))
		lien_registration_drop(&comm->registrations, RB_ROOT(&comm->registrations));
	else if (comm)
		comm_drop(process, comm);
	else if (!RB_EMPTY(&process->inits))
		init_drop(process, RB_ROOT(&process->inits));
	else if (!LIST_EMPTY(&process->splits))
		split_free(process->graph, LIST_FIRST(&process->splits)->split);
	else
		return false;
	return true;
}

uint32_t lien_comm_of_scope(struct lien_process *process, uint64_t scope)
{
	struct lien_comm *comm;
	struct lien_init *init;

	if (!(scope & LIEN_SCOPE_INIT)) {
		comm = lien_comm_find(process, scope);
		return comm ? comm->number : 0;
	}
	init = init_find(process, scope);
	if (init)
		return init->number;
	return lien_init_new(process, scope, ++process->graph->next_comm)
		       ? 0
		       : process->graph->next_comm;
}

/*
 * NCCL's threads make memory for a communicator before and after the call that makes it returns
 * (non-blocking communicators and groups), and refer to it by that call. So the entry lives as long
 * as the communicator.
 */
static int adopt_number(struct lien_comm *comm, struct lien_process *process, uint64_t t_entry)
{
	struct lien_init *init = init_find(process, LIEN_SCOPE_INIT | t_entry);

	if (!t_entry)
		return 0;
	if (!init)
		return lien_init_new(process, LIEN_SCOPE_INIT | t_entry, comm->number);
	/* ncclCommInitAll: the first communicator stands for all. */
	if (!lien_process_comm(process, init->number)) {
		RB_REMOVE(lien_comm_number_tree, &process->comm_numbers, comm);
		comm->number = init->number;
		RB_INSERT(lien_comm_number_tree, &process->comm_numbers, comm);
	}
	return 0;
}

static struct lien_comm *comm_made(struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *comm = lien_comm_find(process, event->comm.comm);

	if (comm && !lien_pending_apply(process, LIEN_KIND_comm_end, comm->address, 0))
		comm_drop(process, comm);
	comm = lien_comm_new(process, event->comm.comm);
	if (!comm || adopt_number(comm, process, event->t_entry))
		return NULL;
	comm->made_by = event->type;
	comm->rank = event->comm.rank;
	comm->nranks = event->comm.nranks;
	comm->device = event->comm.device;
	comm->t_init = event->t_return;
	memcpy(comm->id, event->comm.id, sizeof(comm->id));
	return comm;
}

static struct lien_comm *comm_derived(struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *comm = comm_made(process, event);

	if (!comm)
		return NULL;
	comm->rank = comm->nranks = -1;
	memset(comm->id, 0, sizeof(comm->id));
	return comm;
}

/* NCCL's RAS names the communicator. If its making was seen, more is known already. */
static int comm_found(struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *comm = lien_comm_find(process, event->comm.comm);

	if (!comm)
		comm = lien_comm_new(process, event->comm.comm);
	if (!comm)
		return -ENOMEM;
	memcpy(&comm->hash, event->comm.id, sizeof(comm->hash));
	if (!lien_comm_unnamed(comm))
		return 0;
	memcpy(comm->id, event->comm.id, sizeof(comm->id));
	comm->nranks = event->comm.nranks;
	if (event->comm.rank >= 0)
		comm->rank = event->comm.rank;
	if (event->comm.device >= 0)
		comm->device = event->comm.device;
	return 0;
}

static bool comm_has_count(const struct lien_comm *comm)
{
	return !lien_comm_unnamed(comm) && !lien_comm_is_found(comm);
}

static struct lien_comm *comm_parent(struct lien_process *process, const struct lien_event *event)
{
	return event->comm.parent != event->comm.comm ? lien_comm_find(process, event->comm.parent)
						      : NULL;
}

static int comm_recorded(struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *parent = comm_parent(process, event), *comm;

	if (!event->comm.comm)
		return 0;
	comm = comm_made(process, event);
	if (!comm)
		return -ENOMEM;
	comm->parent = parent ? parent->number : 0;
	comm->splits = event->comm.key;
	comm->shrinks = event->comm.excluded;
	if (!event->t_return)
		comm->made_by = 0;
	return 0;
}

static void derive_id(uint8_t *id, const struct lien_comm *parent, unsigned call, unsigned number)
{
	uint64_t hash = lien_hash(LIEN_HASH_START, parent->id, sizeof(parent->id));

	hash = lien_hash(hash, &call, sizeof(call));
	hash = lien_hash(hash, &number, sizeof(number));
	memset(id, 0, sizeof(parent->id));
	memcpy(id, &hash, sizeof(hash));
}

static void add_color(uint8_t *id, int32_t color)
{
	uint64_t hash;

	memcpy(&hash, id, sizeof(hash));
	hash = lien_hash(hash, &color, sizeof(color));
	memcpy(id, &hash, sizeof(hash));
}

static int apply_comm_init(struct lien_process *process, const struct lien_event *event)
{
	if (event->flags & LIEN_EVENT_FOUND)
		return event->comm.comm ? comm_found(process, event) : 0;
	if (event->flags & LIEN_EVENT_IMPORTED)
		return comm_recorded(process, event);
	if (!event->comm.comm)
		return 0;
	return comm_made(process, event) ? 0 : -ENOMEM;
}

#define EXCLUDED_TOLD (sizeof(((struct lien_event *)0)->comm.id) / sizeof(int32_t))

/* The remaining ranks close up. An implausible list leaves the rank unknown. */
static void shrink_rank(
	struct lien_comm *comm, const struct lien_comm *parent, const struct lien_event *event)
{
	int32_t excluded[EXCLUDED_TOLD], count = event->comm.excluded, rank = parent->rank, i;

	memcpy(excluded, event->comm.id, sizeof(excluded));
	if (rank < 0 || count < 0 || count >= parent->nranks)
		return;
	comm->nranks = parent->nranks - count;
	if (count > (int32_t)EXCLUDED_TOLD)
		return;
	for (i = 0; i < count; i++) {
		if (excluded[i] < 0 || excluded[i] >= parent->nranks || excluded[i] == parent->rank)
			return;
		rank -= excluded[i] < parent->rank;
	}
	if (rank >= 0 && rank < comm->nranks)
		comm->rank = rank;
}

static int apply_comm_shrink(struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *parent = comm_parent(process, event), *comm;

	if (event->flags & LIEN_EVENT_IMPORTED)
		return comm_recorded(process, event);
	if (!event->comm.comm)
		return 0;
	comm = comm_derived(process, event);
	if (!comm)
		return -ENOMEM;
	if (!parent)
		return 0;
	comm->parent = parent->number;
	parent->shrinks++;
	if (comm_has_count(parent))
		derive_id(comm->id, parent, event->type, parent->shrinks);
	shrink_rank(comm, parent, event);
	return 0;
}

static int apply_comm_finalize(struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *comm = lien_comm_find(process, event->comm_end.comm);

	if (comm)
		comm->finalized = true;
	return 0;
}

static int apply_comm_end(struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *comm = lien_comm_find(process, event->comm_end.comm);

	if (comm)
		comm_drop(process, comm);
	return 0;
}

/* Adds the part of the process's communicator to the split. */
static int split_join(struct lien_process *process, const struct lien_event *event,
	struct lien_comm *parent, struct lien_comm *comm, unsigned number)
{
	const struct lien_split_member member = {
		.comm = comm,
		.parent = parent,
		.color = event->comm.color,
		.key = event->comm.key,
		.parent_rank = parent->rank,
	};
	uint8_t id[sizeof(parent->id)];

	if (parent->rank < 0 || parent->rank >= parent->nranks || !comm_has_count(parent))
		return 0; /* its members are unknown then */
	derive_id(id, parent, LIEN_CALL_NCCL_SPLIT, number);
	return split_add(process, &member, id, parent->nranks, number);
}

static int split_recorded(struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *parent = comm_parent(process, event), *comm;

	if (event->comm.nranks != LIEN_COMM_AWAITED)
		return comm_recorded(process, event);
	comm = event->comm.color < 0 ? NULL : lien_comm_find(process, event->comm.comm);
	return parent ? split_join(process, event, parent, comm, event->comm.excluded) : 0;
}

static int apply_comm_split(struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *parent = comm_parent(process, event), *comm = NULL;

	if (event->flags & LIEN_EVENT_IMPORTED)
		return split_recorded(process, event);
	if (event->comm.comm && event->comm.color >= 0) {
		comm = comm_derived(process, event);
		if (!comm)
			return -ENOMEM;
	}
	if (!parent)
		return 0;
	parent->splits++;
	if (comm)
		comm->parent = parent->number;
	if (!comm_has_count(parent))
		return 0; /* NCCL's RAS may name it later */
	if (comm) {
		derive_id(comm->id, parent, event->type, parent->splits);
		add_color(comm->id, event->comm.color);
	}
	return split_join(process, event, parent, comm, parent->splits);
}

lien_apply_fn *const lien_comm_effects[LIEN_KIND_COUNT] = {LIEN_COMM_KINDS(LIEN_EFFECT)};
