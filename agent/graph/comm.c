// SPDX-License-Identifier: BSD-2-Clause
/* Communicators: the members of each group, their ranks, and the memory of each communicator. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/internal.h"

struct lien_comm *lien_comm_new(
	struct lien_graph *graph, struct lien_process *process, uint64_t address)
{
	struct lien_comm *comm = calloc(1, sizeof(*comm));

	if (!comm)
		return NULL;
	comm->address = address;
	comm->number = ++graph->next_comm;
	comm->rank = comm->nranks = comm->device = -1;
	RB_INSERT(lien_comm_tree, &process->comms, comm);
	RB_INSERT(lien_comm_number_tree, &process->comm_numbers, comm);
	return comm;
}

static struct lien_init *init_find(struct lien_process *process, uint64_t scope)
{
	struct lien_init key = {.scope = scope};

	return RB_FIND(lien_init_tree, &process->inits, &key);
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

void lien_init_drop(struct lien_process *process, struct lien_init *init)
{
	RB_REMOVE(lien_init_tree, &process->inits, init);
	RB_REMOVE(lien_init_number_tree, &process->init_numbers, init);
	free(init);
}

void lien_comm_drop(struct lien_graph *graph, struct lien_process *process, struct lien_comm *comm)
{
	struct lien_init key = {.number = comm->number}, *init;

	lien_splits_forget(graph, process, comm->number);
	while (!RB_EMPTY(&comm->registrations))
		lien_registration_drop(&comm->registrations, RB_ROOT(&comm->registrations));
	while ((init = RB_FIND(lien_init_number_tree, &process->init_numbers, &key)))
		lien_init_drop(process, init);
	RB_REMOVE(lien_comm_tree, &process->comms, comm);
	RB_REMOVE(lien_comm_number_tree, &process->comm_numbers, comm);
	free(comm);
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
	if (init)
		return init->number;
	return lien_init_new(process, scope, ++graph->next_comm) ? 0 : graph->next_comm;
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

static struct lien_comm *comm_made(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *comm = lien_comm_find(process, event->comm.comm);

	if (comm &&
		!lien_pending_apply(graph, process, LIEN_CALL_NCCL_DESTROY, comm->address, 0,
			lien_graph_apply_comm_end) &&
		!lien_pending_apply(graph, process, LIEN_CALL_NCCL_ABORT, comm->address, 0,
			lien_graph_apply_comm_end))
		lien_comm_drop(graph, process, comm);
	comm = lien_comm_new(graph, process, event->comm.comm);
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

static struct lien_comm *comm_derived(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *comm = comm_made(graph, process, event);

	if (!comm)
		return NULL;
	comm->rank = comm->nranks = -1;
	memset(comm->id, 0, sizeof(comm->id));
	return comm;
}

uint64_t lien_comm_group(const struct lien_comm *comm)
{
	uint64_t magic;

	memcpy(&magic, comm->id, sizeof(magic));
	return magic;
}

bool lien_comm_unnamed(const struct lien_comm *comm)
{
	static const uint8_t none[sizeof(comm->id)];

	return !memcmp(comm->id, none, sizeof(none));
}

/*
 * Follows the hashes. No ncclUniqueId has it at this offset: there it is zero, behind a socket's
 * address.
 */
#define FOUND_AT   64
#define FOUND_MARK "by NCCL's RAS"

void lien_comm_found_id(uint8_t id[128], uint64_t hash, uint64_t host_hash, uint64_t pid_hash)
{
	memset(id, 0, sizeof(((struct lien_comm *)0)->id));
	memcpy(id, &hash, sizeof(hash));
	memcpy(id + 16, &host_hash, sizeof(host_hash));
	memcpy(id + 24, &pid_hash, sizeof(pid_hash));
	memcpy(id + FOUND_AT, FOUND_MARK, sizeof(FOUND_MARK));
}

bool lien_comm_is_found(const struct lien_comm *comm)
{
	return !memcmp(comm->id + FOUND_AT, FOUND_MARK, sizeof(FOUND_MARK));
}

/* NCCL's RAS names the communicator. If its making was seen, more is known already. */
static int comm_found(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *comm = lien_comm_find(process, event->comm.comm);

	if (!comm)
		comm = lien_comm_new(graph, process, event->comm.comm);
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

static int comm_recorded(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *parent = comm_parent(process, event), *comm;

	if (!event->comm.comm)
		return 0;
	comm = comm_made(graph, process, event);
	if (!comm)
		return -ENOMEM;
	comm->parent = parent ? parent->number : 0;
	comm->splits = event->comm.key;
	comm->shrinks = event->comm.excluded;
	if (!event->t_return)
		comm->made_by = 0;
	return 0;
}

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
	const uint8_t *bytes = data;

	while (size--)
		hash = (hash ^ *bytes++) * 0x100000001b3ull;
	return hash;
}

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

int lien_graph_apply_comm_init(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	if (event->flags & LIEN_EVENT_FOUND)
		return event->comm.comm ? comm_found(graph, process, event) : 0;
	if (event->flags & LIEN_EVENT_IMPORTED)
		return comm_recorded(graph, process, event);
	if (!event->comm.comm)
		return 0;
	return comm_made(graph, process, event) ? 0 : -ENOMEM;
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

int lien_graph_apply_comm_shrink(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *parent = comm_parent(process, event), *comm;

	if (event->flags & LIEN_EVENT_IMPORTED)
		return comm_recorded(graph, process, event);
	if (!event->comm.comm)
		return 0;
	comm = comm_derived(graph, process, event);
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

	if (comm)
		lien_comm_drop(graph, process, comm);
	return 0;
}

/* Adds the part of the process's communicator to the split. */
static int split_join(struct lien_graph *graph, struct lien_process *process,
	const struct lien_event *event, const struct lien_comm *parent,
	const struct lien_comm *comm, unsigned number)
{
	const struct lien_split_member member = {
		.comm = comm ? comm->address : 0,
		.number = comm ? comm->number : 0,
		.parent = parent->number,
		.color = event->comm.color,
		.key = event->comm.key,
		.parent_rank = parent->rank,
	};
	uint8_t id[sizeof(parent->id)];

	if (parent->rank < 0 || parent->rank >= parent->nranks || !comm_has_count(parent))
		return 0; /* its members are unknown then */
	derive_id(id, parent, LIEN_CALL_NCCL_SPLIT, number);
	return lien_split_join(graph, process, &member, id, parent->nranks, number);
}

static int split_recorded(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *parent = comm_parent(process, event), *comm;

	if (event->comm.nranks != LIEN_COMM_AWAITED)
		return comm_recorded(graph, process, event);
	comm = event->comm.color < 0 ? NULL : lien_comm_find(process, event->comm.comm);
	return parent ? split_join(graph, process, event, parent, comm, event->comm.excluded) : 0;
}

int lien_graph_apply_comm_split(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_comm *parent = comm_parent(process, event), *comm = NULL;

	if (event->flags & LIEN_EVENT_IMPORTED)
		return split_recorded(graph, process, event);
	if (event->comm.comm && event->comm.color >= 0) {
		comm = comm_derived(graph, process, event);
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
	return split_join(graph, process, event, parent, comm, parent->splits);
}
