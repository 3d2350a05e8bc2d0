// SPDX-License-Identifier: BSD-2-Clause
#include "agent/quiesce/by_comm.h"

#include <stdlib.h>
#include <string.h>

#include "agent/quiesce/gate.h"
#include "loader/probes/gate.h"

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

/* Returns the place of the first number that is not less. */
static unsigned place_of(const struct numbers *numbers, uint64_t number)
{
	unsigned low = 0, high = numbers->count, mid;

	while (low < high) {
		mid = (low + high) / 2;
		if (numbers->number[mid] < number)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static bool have(const struct numbers *numbers, uint64_t number)
{
	const unsigned at = place_of(numbers, number);

	return at < numbers->count && numbers->number[at] == number;
}

/* Adds it once. Returns false if there is no room. */
static bool add(struct numbers *numbers, uint64_t number)
{
	const unsigned at = place_of(numbers, number);

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

/* --- memory of several communicators -----------------------------------------------------------
 */

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

static int token_cmp(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static unsigned count_items(const struct lien_plan *plan)
{
	unsigned i, n = 0;

	for (i = 0; i < plan->processes_count; i++)
		n += plan->processes[i].items_count;
	return n;
}

static unsigned list_chunks(const struct lien_plan *plan, uint64_t *tokens)
{
	const struct lien_plan_process *part = plan->processes;
	unsigned i, j, n = 0;

	for (i = 0; i < plan->processes_count; i++)
		for (j = 0; j < part[i].items_count; j++)
			if (is_chunk(&part[i].items[j]))
				tokens[n++] = part[i].items[j].token;
	if (n)
		qsort(tokens, n, sizeof(*tokens), token_cmp);
	return n;
}

void lien_by_comm_moved(struct lien_agent *agent)
{
	const struct lien_plan *plan = &agent->plan;
	uint64_t *tokens = calloc(count_items(plan) + 1, sizeof(*tokens));
	const unsigned count = tokens ? list_chunks(plan, tokens) : 0;
	const struct lien_plan_process *part = plan->processes;
	struct lien_process *process;
	struct lien_tracked *tracked;
	unsigned i, j;

	for (i = 0; i < plan->processes_count; i++) {
		process = lien_graph_process(agent->graph, part[i].pid);
		tracked = process ? process->agent : NULL;
		for (j = 0; tracked && count && j < part[i].items_count; j++)
			tracked->gate_mixed |= bsearch(&part[i].items[j].token, tokens, count,
						       sizeof(*tokens), token_cmp) != NULL;
		if (tracked && !tokens)
			tracked->gate_mixed = true;
	}
	free(tokens);
}

/* --- communicators -----------------------------------------------------------------------------
 */

#define FAMILY_UNKNOWN UINT32_MAX

uint32_t lien_by_comm_family(const struct lien_process *process, const struct lien_comm *comm)
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
		family = lien_by_comm_family(process, comm);
		if (!family || ++all > COMMS_MAX)
			return too_many;
		if (have(&groups, lien_comm_group(comm)) && !add(&families, family))
			return too_many;
	}
	RB_FOREACH (comm, lien_comm_tree, &process->comms) {
		if (!lien_comm_unnamed(comm) &&
			!have(&families, lien_by_comm_family(process, comm)))
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

	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
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

const char *lien_by_comm_why(struct lien_agent *agent, struct lien_process *process)
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
