// SPDX-License-Identifier: BSD-2-Clause
#include "agent/quiesce/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/transaction/transaction.h"
#include "agent/quiesce/by_comm.h"
#include "loader/probes/gate.h"

#define GROUPS_MAX 1024
#define NEVER	   UINT64_MAX

/* A group that has memory away. */
struct group {
	uint64_t group;
	unsigned set; /* place of another one that comes back with it, or its own */
	/* Of all groups that come back together, at the place that stands for them: */
	uint64_t bytes; /* to be mapped, in all processes */
	uint64_t t;	/* since when a thread waits; NEVER: none does */
};

#define SLOTS (2 * GROUPS_MAX)

struct list {
	struct lien_agent *agent;
	struct group *group; /* in the order of being found: .set counts on it */
	unsigned count;
	uint16_t slot[SLOTS]; /* place of a group, plus 1, at or behind its hash; 0: none */
};

/* Returns where the group is, or where its place goes. */
static uint16_t *slot_of(struct list *list, uint64_t group)
{
	unsigned at = (group * 0x9e3779b97f4a7c15ull) >> 32;

	while (list->slot[at % SLOTS] && list->group[list->slot[at % SLOTS] - 1].group != group)
		at++;
	return &list->slot[at % SLOTS];
}

/* -1: it has nothing away. */
static int find(struct list *list, uint64_t group)
{
	return (int)*slot_of(list, group) - 1;
}

/* Returns its place, -1: there are too many. */
static int add(struct list *list, uint64_t group)
{
	const unsigned at = list->count;

	if (at == GROUPS_MAX)
		return -1;
	*slot_of(list, group) = at + 1;
	list->group[at] = (struct group){.group = group, .set = at, .t = NEVER};
	list->count++;
	return at;
}

static unsigned root_of(const struct list *list, unsigned i)
{
	while (list->group[i].set != i)
		i = list->group[i].set;
	return i;
}

static void unite(struct list *list, unsigned a, unsigned b)
{
	a = root_of(list, a);
	b = root_of(list, b);
	if (a == b)
		return;
	list->group[b].set = a;
	list->group[a].bytes += list->group[b].bytes;
}

/* Adds what the process lacks. Returns false if there are too many groups. */
static bool add_memory(struct list *list, struct lien_process *process)
{
	struct lien_mapping *mapping;
	uint64_t group;
	int at;

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		if (!mapping->parked)
			continue;
		group = lien_comm_group(lien_allocation_comm(mapping->holding->allocation));
		at = find(list, group);
		if (at < 0)
			at = add(list, group);
		if (at < 0)
			return false;
		list->group[root_of(list, at)].bytes += mapping->bytes;
	}
	return true;
}

/* Communicators of one family come back together: until then their gate stays shut. */
static void unite_families(struct list *list, struct lien_process *process)
{
	struct {
		uint32_t family;
		int at;
	} seen[64];
	unsigned count = 0, i;
	struct lien_comm *comm;
	uint32_t family;
	int at;

	RB_FOREACH (comm, lien_comm_tree, &process->comms) {
		at = find(list, lien_comm_group(comm));
		if (at < 0)
			continue;
		family = lien_by_comm_family(process, comm);
		for (i = 0; i < count && seen[i].family != family; i++)
			;
		if (i < count) {
			unite(list, seen[i].at, at);
		} else if (count < sizeof(seen) / sizeof(seen[0])) {
			seen[count].family = family;
			seen[count++].at = at;
		}
	}
}

static int note_waiting(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held)
{
	struct list *list = context;
	struct lien_process *process = lien_graph_process(list->agent->graph, who->pid);
	const struct lien_comm key = {.address = held->comm}, *comm;
	struct group *group;
	int at;

	if (!process || !held->comm)
		return 0;
	comm = RB_FIND(lien_comm_tree, &process->comms, (struct lien_comm *)&key);
	at = comm ? find(list, lien_comm_group(comm)) : -1;
	if (at < 0)
		return 0;
	group = &list->group[root_of(list, at)];
	if (held->t < group->t)
		group->t = held->t;
	return 0;
}

static int by_need(const void *a, const void *b)
{
	const struct group *const *x = a, *const *y = b;

	if ((*x)->t != (*y)->t)
		return (*x)->t < (*y)->t ? -1 : 1;
	if ((*x)->bytes != (*y)->bytes)
		return (*x)->bytes < (*y)->bytes ? -1 : 1;
	return (*x > *y) - (*x < *y);
}

static unsigned add_set(
	const struct list *list, unsigned root, uint64_t *groups, unsigned count, unsigned max)
{
	unsigned i;

	for (i = 0; i < list->count; i++) {
		if (root_of(list, i) != root)
			continue;
		if (count == max)
			return UINT32_MAX;
		groups[count++] = list->group[i].group;
	}
	return count;
}

/* Returns the number of groups that come next; 0: all. */
static unsigned choose(struct list *list, unsigned part, uint64_t *groups, unsigned max)
{
	const struct group *order[GROUPS_MAX];
	const unsigned few = part < 2 ? 1 : part < 12 ? 1u << (part - 1) : GROUPS_MAX;
	unsigned sets = 0, taken, count = 0, more, i;

	for (i = 0; i < list->count; i++)
		if (list->group[i].set == i)
			order[sets++] = &list->group[i];
	qsort(order, sets, sizeof(order[0]), by_need);
	for (taken = 0; taken < sets; taken++) {
		/* One for which threads wait is not held up by one for which none does. */
		if (taken == few || (order[0]->t != NEVER && order[taken]->t == NEVER))
			break;
		more = add_set(list, order[taken] - list->group, groups, count, max);
		if (more == UINT32_MAX)
			break;
		count = more;
	}
	return taken == sets ? 0 : count;
}

/* Keeps those that the restore is for. */
static void narrow(struct list *list, const struct lien_transaction_result *result)
{
	const unsigned asked = result->groups_count, count = list->count;
	const uint64_t *groups = result->groups;
	unsigned i, j;
	struct group old;

	if (!asked)
		return;
	list->count = 0;
	memset(list->slot, 0, sizeof(list->slot));
	for (i = 0; i < count; i++) {
		old = list->group[i];
		for (j = 0; j < asked && groups[j] != old.group; j++)
			;
		if (j < asked)
			list->group[add(list, old.group)].bytes = old.bytes;
	}
}

/* Lists what is away. Returns false, and why, if it cannot be told apart. */
static bool list_away(
	struct list *list, const struct lien_transaction_result *result, char *why, size_t size)
{
	const struct lien_transaction_process *processes = result->processes;
	const unsigned count = result->processes_count;
	struct lien_process *process;
	const char *reason;
	unsigned i;

	for (i = 0; i < count; i++) {
		process = lien_graph_process(list->agent->graph, processes[i].pid);
		if (!process || (!process->parked && !process->held_items))
			continue;
		reason = lien_by_comm_why(list->agent, process);
		if (reason) {
			snprintf(why, size, "process %u: %s", process->pid, reason);
			return false;
		}
		if (!add_memory(list, process)) {
			snprintf(why, size, "there are too many communicators");
			return false;
		}
	}
	narrow(list, result);
	for (i = 0; i < count; i++) {
		process = lien_graph_process(list->agent->graph, processes[i].pid);
		if (process)
			unite_families(list, process);
	}
	return true;
}

unsigned lien_parts_next(void *context, const struct lien_transaction_result *result,
	uint64_t *groups, unsigned max, char *why, size_t size)
{
	struct list list = {.agent = context};
	unsigned count = 0;

	why[0] = 0;
	list.group = calloc(GROUPS_MAX, sizeof(*list.group));
	if (!list.group)
		return 0;
	if (list_away(&list, result, why, size)) {
		lien_probes_held(list.agent->probes, note_waiting, &list);
		count = choose(&list, result->parts, groups, max);
	}
	free(list.group);
	return count;
}
