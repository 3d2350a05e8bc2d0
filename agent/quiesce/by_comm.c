// SPDX-License-Identifier: BSD-2-Clause
#include "agent/quiesce/gate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"

/* Limits for one process, which may make any number of communicators. Beyond them its gate holds
 * all communicators. */
#define COMMS_MAX   512
#define AWAY_MAX    256
#define PARENTS_MAX 16 /* each split or shrunk from the next */

/* Sorted. */
struct numbers {
	uint64_t number[AWAY_MAX];
	unsigned count;
};

/* Adds it once. Returns false if there is no room. */
static bool add(struct numbers *numbers, uint64_t number)
{
	const unsigned at = lien_array_at_least(
		numbers->number, numbers->count, sizeof(number), &number, lien_u64_cmp);

	if (at < numbers->count && numbers->number[at] == number)
		return true;
	if (numbers->count == AWAY_MAX)
		return false;
	memmove(&numbers->number[at + 1], &numbers->number[at],
		(numbers->count - at) * sizeof(numbers->number[0]));
	numbers->number[at] = number;
	numbers->count++;
	return true;
}

static const char too_many[] = "it has more communicators than can be told apart";

/* Lists the groups whose memory the process lacks. Returns NULL, or why that is not certain. */
static const char *list_groups(struct lien_process *process, struct numbers *groups)
{
	const struct lien_allocation *allocation;
	const struct lien_comm *comm;
	struct lien_mapping *mapping;

	if (!process->parked)
		return "what is away is not known to be NCCL's";
	if (process->joined)
		return "it has multicast objects";
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		if (!mapping->parked)
			continue;
		allocation = mapping->holding->allocation;
		comm = lien_allocation_comm(allocation);
		if (!comm)
			return "memory is away that is no communicator's";
		if (allocation->comm_inferred)
			return "lien is not certain which communicator some of its memory belongs "
			       "to";
		if (lien_comm_unnamed(comm))
			return "one of its communicators is of no known group";
		if (!add(groups, lien_comm_group(comm)))
			return too_many;
	}
	return NULL;
}

/* --- memory of several communicators ---------------------------------------------------------- */

#define CHUNK (2ull << 20)

/* The control library's chunks of small blocks keep no handle; NCCL's blocks for several
 * communicators share them (control/plain/heap.h). */
static bool is_chunk(const struct lien_wire_item *item)
{
	unsigned i;

	for (i = 0; i < item->handles; i++)
		if (item->handle[i].references)
			return false;
	return !item->index && item->flags & LIEN_WIRE_OWNED && item->allocation_bytes <= CHUNK;
}

/* Lists their tokens, sorted. -ENOMEM. */
static int list_chunks(const struct lien_plan *plan, uint64_t **tokens, unsigned *count)
{
	const struct lien_plan_process *part = plan->processes;
	unsigned i, j, room = 0;

	for (i = 0; i < plan->processes_count; i++)
		for (j = 0; j < part[i].items_count; j++) {
			if (!is_chunk(&part[i].items[j]))
				continue;
			if (lien_array_grow(tokens, *count, &room, sizeof(**tokens)))
				return -ENOMEM;
			(*tokens)[(*count)++] = part[i].items[j].token;
		}
	if (*count)
		qsort(*tokens, *count, sizeof(**tokens), lien_u64_cmp);
	return 0;
}

void lien_by_comm_moved(struct lien_agent *agent)
{
	const struct lien_plan *plan = &agent->plan;
	const struct lien_plan_process *part = plan->processes;
	uint64_t *tokens = NULL;
	unsigned i, j, count = 0;
	const bool unsure = list_chunks(plan, &tokens, &count);
	struct lien_tracked *tracked;

	for (i = 0; i < plan->processes_count; i++) {
		tracked = lien_gate_tracked(agent, part[i].pid);
		if (tracked)
			tracked->gate_mixed |= unsure;
		for (j = 0; tracked && j < part[i].items_count; j++)
			tracked->gate_mixed |= lien_u64_find(tokens, count, part[i].items[j].token);
	}
	free(tokens);
}

/* --- communicators ---------------------------------------------------------------------------- */

#define FAMILY_UNKNOWN UINT32_MAX

/* Returns the number that a communicator has in common with all of the process that may share
 * memory with it, because they were split or shrunk from each other; those whose origin no longer
 * exists have one together. 0: there are too many in between. */
static uint32_t family_of(const struct lien_process *process, const struct lien_comm *comm)
{
	struct lien_comm_number_tree *tree = (struct lien_comm_number_tree *)&process->comm_numbers;
	struct lien_comm key;
	unsigned i;

	for (i = 0; i < PARENTS_MAX; i++) {
		if (!comm->parent)
			return comm->number;
		key.number = comm->parent;
		comm = RB_FIND(lien_comm_number_tree, tree, &key);
		if (!comm)
			return FAMILY_UNKNOWN;
	}
	return 0;
}

/* Lists the communicators to hold. Returns NULL, or why they are not told apart. */
static const char *list_comms(struct lien_process *process, uint64_t *comms, unsigned *count)
{
	struct numbers groups = {.count = 0}, families = {.count = 0};
	struct lien_comm *comm;
	const char *why;
	unsigned all = 0;
	uint32_t family;

	*count = 0;
	why = list_groups(process, &groups);
	if (why)
		return why;
	RB_FOREACH (comm, lien_comm_tree, &process->comms) {
		family = family_of(process, comm);
		if (!family || ++all > COMMS_MAX)
			return too_many;
		if (lien_u64_find(groups.number, groups.count, lien_comm_group(comm)) &&
			!add(&families, family))
			return too_many;
	}
	RB_FOREACH (comm, lien_comm_tree, &process->comms) {
		if (!lien_comm_unnamed(comm) &&
			!lien_u64_find(families.number, families.count, family_of(process, comm)))
			continue;
		if (*count == AWAY_MAX)
			return too_many;
		comms[(*count)++] = comm->address;
	}
	return NULL;
}

/* So that one user's processes leave room for others'. */
#define USER_MAX (LIEN_PROBE_COMMS_AWAY_MAX / 8)

/* Returns how many the gates of the user's other processes tell apart. */
static unsigned of_user(const struct lien_agent *agent, const struct lien_process *but)
{
	const struct lien_tracked *tracked;
	struct lien_process *process;
	unsigned sum = 0;

	LIEN_FOREACH_PROCESS (process, agent->graph) {
		tracked = process->agent;
		if (tracked && process != but && process->uid == but->uid)
			sum += tracked->comms_away;
	}
	return sum;
}

/* Lists what the process's gate is to hold. Returns NULL, or why it is to hold all communicators.
 * `known`: the graph has heard of everything. */
static const char *decide(struct lien_agent *agent, struct lien_process *process, bool known,
	uint64_t *comms, unsigned *count)
{
	const struct lien_tracked *tracked = process->agent;
	const char *why;

	*count = 0;
	if (!known)
		return "more calls are being reported than the agent has read";
	if (process->held_items)
		return "an earlier agent, or a transaction that has failed, has moved some of its "
		       "memory";
	if (tracked->gate_mixed)
		return "memory is away in which small blocks of several communicators may lie";
	if (tracked->gate_all)
		return "memory is away that is not NCCL's, or only seems to be";
	why = list_comms(process, comms, count);
	if (!why && *count && of_user(agent, process) + *count > USER_MAX)
		why = "its user's processes have more communicators than can be told apart";
	return why;
}

void lien_by_comm_set(struct lien_agent *agent, uint32_t pid)
{
	/* What the graph has not heard of yet may be away as well. */
	const bool known = lien_agent_catch_up(agent);
	struct lien_process *process = lien_graph_process(agent->graph, pid);
	struct lien_tracked *tracked = process ? process->agent : NULL;
	uint64_t comms[AWAY_MAX];
	struct lien_probe_shut shut;
	unsigned count;
	bool all;

	if (!tracked || !lien_probes_gate_holds(agent->probes, pid, &shut))
		return;
	all = decide(agent, process, known, comms, &count);
	tracked->comms_away = all ? 0 : count;
	if (all)
		lien_probes_gate_all_comms(agent->probes, pid);
	else /* or, if there are too many, it holds all */
		lien_probes_gate_comms(agent->probes, pid, comms, count);
	lien_gate_let_go(agent, tracked);
}

/* Returns why the process's gate, which is shut, holds all communicators: a clause. NULL: it does
 * not. */
static const char *why_all(struct lien_agent *agent, struct lien_process *process)
{
	uint64_t comms[AWAY_MAX];
	struct lien_probe_shut shut;
	const char *why;
	unsigned count;

	if (!process->agent || !lien_probes_gate_holds(agent->probes, process->pid, &shut))
		return "its threads are not held";
	if (shut.trusting)
		return "its threads are not held (on_use \"ignore\")";
	why = decide(agent, process, lien_agent_catch_up(agent), comms, &count);
	if (why || shut.by_comm)
		return why;
	/* Not everything was known when the offload ended. */
	lien_by_comm_set(agent, process->pid);
	if (lien_probes_gate_holds(agent->probes, process->pid, &shut) && shut.by_comm)
		return NULL;
	return "its gate holds all of its communicators";
}

/* --- restores in parts ------------------------------------------------------------------------ */

#define GROUPS_MAX 1024
#define NEVER	   UINT64_MAX

/* A group that has memory away. */
struct group {
	uint64_t group;
	unsigned set; /* place of another one that comes back with it, or its own */
	/* These two count all groups that come back together, at the place that stands for them. */
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
static int add_group(struct list *list, uint64_t group)
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

/* Adds what the process lacks, of the groups that the restore is for. Returns false if there are
 * too many. */
static bool add_memory(struct list *list, const struct lien_transaction_result *result,
	struct lien_process *process)
{
	const unsigned asked = result->groups_count;
	struct lien_mapping *mapping;
	uint64_t group;
	int at;

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		if (!mapping->parked)
			continue;
		group = lien_comm_group(lien_allocation_comm(mapping->holding->allocation));
		if (asked && !lien_u64_have(result->groups, asked, group))
			continue;
		at = find(list, group);
		if (at < 0)
			at = add_group(list, group);
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
		family = family_of(process, comm);
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
	const struct lien_comm *comm;
	struct group *group;
	int at;

	if (!process || !held->comm)
		return 0;
	comm = lien_comm_find(process, held->comm);
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
		reason = why_all(list->agent, process);
		if (reason) {
			snprintf(why, size, "process %u: %s", process->pid, reason);
			return false;
		}
		if (!add_memory(list, result, process)) {
			snprintf(why, size, "there are too many communicators");
			return false;
		}
	}
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
