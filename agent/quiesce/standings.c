// SPDX-License-Identifier: BSD-2-Clause
/* How far each rank is, here and on other nodes, and where its threads are held. */
#include "agent/quiesce/rest_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"
#include "agent/quiesce/elsewhere.h"
#include "agent/quiesce/gate.h"
#include "loader/probes/calls.h"
#include "loader/probes/follow.h"

/* --- what the kernel side says ---------------------------------------------------------------- */

int lien_rest_index_of(const struct rest *rest, uint32_t pid)
{
	const uint32_t *found = bsearch(&pid, rest->pids, rest->count, sizeof(pid), lien_pid_cmp);

	return found ? (int)(found - rest->pids) : -1;
}

/* This and note_pair() skip processes that are not in .pids. */
static int note_held(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held)
{
	struct rest *rest = context;

	if (lien_rest_index_of(rest, who->pid) < 0)
		return 0;
	if (lien_array_grow(&rest->waiting, rest->waiting_count, &rest->waiting_room,
		    sizeof(*rest->waiting)))
		return -ENOMEM;
	rest->waiting[rest->waiting_count++] = (struct waiting){*who, *held};
	return 0;
}

static int note_pair(void *context, const void *key, const void *calls)
{
	const struct lien_probe_pair *which = key;
	struct rest *rest = context;

	if (lien_rest_index_of(rest, which->pid) < 0)
		return 0;
	if (lien_array_grow(
		    &rest->begun, rest->begun_count, &rest->begun_room, sizeof(*rest->begun)))
		return -ENOMEM;
	rest->begun[rest->begun_count++] = (struct begun){*which, *(const uint64_t *)calls};
	return 0;
}

static int waiting_cmp(const void *a, const void *b)
{
	const struct waiting *x = a, *y = b;

	if (x->who.pid != y->who.pid)
		return x->who.pid < y->who.pid ? -1 : 1;
	if (x->held.comm != y->held.comm)
		return x->held.comm < y->held.comm ? -1 : 1;
	if (x->held.call != y->held.call)
		return x->held.call < y->held.call ? -1 : 1;
	return (x->held.peer > y->held.peer) - (x->held.peer < y->held.peer);
}

unsigned lien_rest_first_waiting(
	const struct rest *rest, uint32_t pid, uint64_t comm, uint32_t call, uint32_t peer)
{
	const struct waiting key = {
		.who.pid = pid, .held.comm = comm, .held.call = call, .held.peer = peer};

	return lien_array_at_least(
		rest->waiting, rest->waiting_count, sizeof(key), &key, waiting_cmp);
}

/* NULL: there is none further on that is held on the communicator. */
static const struct waiting *waiting_on(
	const struct rest *rest, unsigned i, uint32_t pid, uint64_t comm)
{
	const struct waiting *waiting = rest->waiting + i;

	return i < rest->waiting_count && waiting->who.pid == pid && waiting->held.comm == comm
		       ? waiting
		       : NULL;
}

static int begun_cmp(const void *a, const void *b)
{
	const struct begun *x = a, *y = b;

	return memcmp(&x->which, &y->which, sizeof(x->which));
}

/* Lists the held threads. Returns false if out of memory. */
static bool list_held(struct rest *rest)
{
	if (lien_probes_held(rest->agent->probes, note_held, rest) < 0)
		return false;
	if (rest->waiting_count)
		qsort(rest->waiting, rest->waiting_count, sizeof(*rest->waiting), waiting_cmp);
	return true;
}

bool lien_rest_list_pairs(struct rest *rest)
{
	if (lien_probes_pairs(rest->agent->probes, note_pair, rest) < 0)
		return false;
	if (rest->begun_count)
		qsort(rest->begun, rest->begun_count, sizeof(*rest->begun), begun_cmp);
	return true;
}

const struct begun *lien_rest_pairs(
	const struct rest *rest, uint32_t pid, uint64_t comm, unsigned *count)
{
	const struct begun key = {.which = {.comm = comm, .pid = pid}}, *all = rest->begun;
	unsigned first, end;

	first = end = lien_array_at_least(all, rest->begun_count, sizeof(key), &key, begun_cmp);
	while (end < rest->begun_count && all[end].which.pid == pid && all[end].which.comm == comm)
		end++;
	*count = end - first;
	return all + first;
}

/* --- counts ----------------------------------------------------------------------------------- */

struct counts_pair {
	uint32_t peer; /* rank x 2, plus 1 for receives from it */
	uint64_t calls;
};

/* A communicator's counts of calls that have begun, as they are or as they were at the last rest.
 */
struct lien_counts {
	uint32_t comm; /* its number in the graph, which no other ever has */
	bool any;
	bool transfers; /* it has made some */
	uint64_t collectives;
	struct counts_pair *pairs; /* sorted; at a rest */
	unsigned pairs_count;
};

/*
 * The counts of a process when its job was last at rest. On a communicator that was in use before
 * anybody watched, the counts of its ranks began at different calls. At rest, all that was begun is
 * done, in all ranks: counts since then can be compared.
 */
struct lien_since {
	struct lien_counts *counts; /* sorted */
	unsigned count, room;
};

static int counts_cmp(const void *a, const void *b)
{
	const struct lien_counts *x = a, *y = b;

	return (x->comm > y->comm) - (x->comm < y->comm);
}

static int pair_cmp(const void *a, const void *b)
{
	const struct counts_pair *x = a, *y = b;

	return (x->peer > y->peer) - (x->peer < y->peer);
}

/* NULL: it has not been at rest while it was watched. */
static const struct lien_counts *at_last_rest(
	const struct lien_tracked *tracked, const struct lien_comm *comm)
{
	const struct lien_since *since = tracked ? tracked->since : NULL;
	const struct lien_counts key = {.comm = comm->number};

	return since && since->count
		       ? bsearch(&key, since->counts, since->count, sizeof(key), counts_cmp)
		       : NULL;
}

void lien_since_clear(struct lien_tracked *tracked, uint64_t number)
{
	struct lien_since *since = tracked->since;
	unsigned i;

	for (i = 0; since && i < since->count; i++)
		free(since->counts[i].pairs);
	if (since)
		free(since->counts);
	free(since);
	tracked->since = NULL;
	tracked->since_number = number;
}

static bool is_collective(uint32_t call)
{
	return LIEN_CALL_IS_TRAFFIC(call) && !LIEN_CALL_IS_TRANSFER(call);
}

/* Held calls have not begun. Leaves .pairs empty. */
static struct lien_counts count_comm(
	const struct rest *rest, uint32_t pid, const struct lien_comm *comm)
{
	struct lien_counts counts = {.comm = comm->number};
	struct lien_probe_traffic traffic;
	const struct waiting *waiting;
	unsigned i;

	if (!lien_probes_traffic_of(rest->agent->probes, pid, comm->address, &traffic))
		return counts;
	counts.any = true;
	for (i = 0; i < LIEN_TRAFFIC_KINDS; i++)
		if (is_collective(LIEN_TRAFFIC_FIRST + i))
			counts.collectives += traffic.calls[i];
		else
			counts.transfers |= traffic.calls[i] != 0;
	i = lien_rest_first_waiting(rest, pid, comm->address, 0, 0);
	for (; (waiting = waiting_on(rest, i, pid, comm->address)); i++)
		counts.collectives -= counts.collectives && is_collective(waiting->held.call);
	return counts;
}

/* Returns `sum` less the transfers that are held. `peer`: as in struct lien_probe_pair. */
static uint64_t without_held(
	const struct rest *rest, uint64_t sum, uint32_t pid, uint64_t comm, uint32_t peer)
{
	const uint32_t call = peer % 2 ? LIEN_CALL_NCCL_RECV : LIEN_CALL_NCCL_SEND;
	const struct waiting *waiting;
	unsigned i = lien_rest_first_waiting(rest, pid, comm, call, peer / 2);

	for (; (waiting = waiting_on(rest, i, pid, comm)) && waiting->held.call == call &&
		waiting->held.peer == peer / 2;
		i++)
		sum -= sum != 0;
	return sum;
}

/* Returns the calls since `start`; 0 if the communicator has ended, and its counts with it. */
static uint64_t after(uint64_t count, uint64_t start)
{
	return count > start ? count - start : 0;
}

/* Returns what a rank on another node has begun. Its .comm is the number of its first pair. */
static uint64_t transfers_elsewhere(
	const struct rest *rest, const struct lien_standing *standing, uint32_t peer, bool receives)
{
	const struct lien_node_others *others = &rest->agent->elsewhere->others;
	const struct lien_others_pair *pair =
		standing->transfers
			? lien_node_others_pair(others, &others->pairs[standing->comm].group,
				  standing->rank, peer)
			: NULL;

	return !pair ? 0 : receives ? pair->receives : pair->sends;
}

/* For struct lien_targets. */
static uint64_t transfers(
	void *context, const struct lien_standing *standing, uint32_t peer, bool receives)
{
	const struct rest *rest = context;
	const struct lien_counts *start = standing->since;
	const struct counts_pair *before, key = {.peer = 2 * peer + receives};
	uint64_t sum;
	uint32_t pid;

	if (standing->elsewhere)
		return transfers_elsewhere(rest, standing, peer, receives);
	pid = rest->pids[standing->process];
	sum = lien_probes_pair(rest->agent->probes, pid, standing->comm, peer, receives);
	sum = without_held(rest, sum, pid, standing->comm, key.peer);
	if (!start || !start->pairs_count)
		return sum;
	before = bsearch(&key, start->pairs, start->pairs_count, sizeof(key), pair_cmp);
	return before ? after(sum, before->calls) : sum;
}

/* --- standings -------------------------------------------------------------------------------- */

bool lien_rest_add(struct rest *rest, const struct lien_standing *standing)
{
	struct lien_targets *targets = &rest->targets;

	if (lien_array_grow(&targets->standings, targets->standings_count, &rest->standings_room,
		    sizeof(*standing)))
		return false;
	targets->standings[targets->standings_count++] = *standing;
	return true;
}

/* Adds 1 to *seen if the kernel side counts its calls. */
static bool add_comm(
	struct rest *rest, unsigned process, const struct lien_comm *comm, unsigned *seen)
{
	const struct lien_process *owner =
		lien_graph_process(rest->agent->graph, rest->pids[process]);
	/* NULL: the counts cover all that the group has ever done, or it is not known since when
	 * they count. */
	const struct lien_counts *start = comm->made_by ? NULL : at_last_rest(owner->agent, comm);
	struct lien_counts counts = count_comm(rest, rest->pids[process], comm);
	struct lien_standing standing = {.process = process,
		.comm = comm->address,
		.group = comm->id,
		.rank = comm->rank,
		/* Otherwise it was in use before it was watched. */
		.counted = comm->made_by || (start && comm->nranks > 0),
		.since = start,
		.transfers = counts.transfers,
		.collectives = after(counts.collectives, start ? start->collectives : 0)};

	*seen += counts.any;
	return lien_rest_add(rest, &standing);
}

/* Communicators that were made before the process was watched are in the graph only if NCCL's RAS
 * names them. */
static bool add_unnamed(struct rest *rest, unsigned process, unsigned seen)
{
	const struct lien_standing standing = {.process = process, .rank = -1};
	struct lien_probe_process known;

	return !lien_probes_process(rest->agent->probes, rest->pids[process], &known) ||
	       known.comms <= seen || lien_rest_add(rest, &standing);
}

static bool take_standings(struct rest *rest)
{
	struct lien_process *process;
	struct lien_comm *comm;
	unsigned i, seen;

	for (i = 0; i < rest->count; i++) {
		process = lien_graph_process(rest->agent->graph, rest->pids[i]);
		if (!process)
			continue;
		seen = 0;
		RB_FOREACH (comm, lien_comm_tree, &process->comms)
			if (!add_comm(rest, i, comm, &seen))
				return false;
		if (!add_unnamed(rest, i, seen))
			return false;
	}
	return true;
}

/* Graphs may contain collectives, and whatever is held of NCCL's may be a call in which ranks meet,
 * or on the way to one. The end of a group is held only if the probes missed its beginning: its
 * calls are counted, but begin only now. */
static bool may_meet(const struct lien_probe_held *held)
{
	return held->flags & LIEN_PROBE_HELD_MEETS && !LIEN_CALL_BEGINS_CAPTURE(held->call);
}

static enum lien_held_at held_at(const struct lien_probe_held *held)
{
	if (held->call == LIEN_CALL_NCCL_SEND)
		return LIEN_HELD_SEND;
	if (held->call == LIEN_CALL_NCCL_RECV)
		return LIEN_HELD_RECEIVE;
	if (is_collective(held->call))
		return LIEN_HELD_COLLECTIVE;
	return may_meet(held) ? LIEN_HELD_UNCOUNTED : LIEN_HELD_OTHER;
}

static bool take_held(struct rest *rest)
{
	const uint64_t now = lien_now_ns();
	const struct waiting *waiting;
	unsigned i;

	rest->targets.held = calloc(rest->waiting_count + 1, sizeof(*rest->targets.held));
	if (!rest->targets.held)
		return false;
	for (i = 0; i < rest->waiting_count; i++) {
		waiting = &rest->waiting[i];
		rest->targets.held[i] = (struct lien_held_thread){
			.process = lien_rest_index_of(rest, waiting->who.pid),
			.comm = waiting->held.comm,
			.at = held_at(&waiting->held),
			.peer = waiting->held.peer,
			.meets = waiting->held.flags & LIEN_PROBE_HELD_MEETS,
			.unsure = waiting->held.flags & LIEN_PROBE_HELD_UNSURE,
			.stays = lien_gate_held_before(
				rest->agent, waiting->who.pid, &waiting->held),
			.age_ns = now - waiting->held.t};
	}
	rest->targets.held_count = rest->waiting_count;
	return true;
}

bool lien_rest_take(struct rest *rest)
{
	rest->targets = (struct lien_targets){.busy = rest->busy,
		.working = rest->resting->working,
		.processes = rest->count,
		.disbelieved = rest->resting->disbelieved,
		.transfers = transfers,
		.context = rest};
	/* Whoever comes from now on is held. */
	rest->since = lien_now_ns();
	return !lien_probes_allow_none(rest->agent->probes) && list_held(rest) &&
	       take_standings(rest) && take_held(rest);
}

void lien_rest_clear(struct rest *rest)
{
	free(rest->busy);
	free(rest->begun);
	free(rest->waiting);
	free(rest->targets.held);
	free(rest->targets.of);
	free(rest->targets.order);
	free(rest->targets.standings);
}

/* --- at rest ---------------------------------------------------------------------------------- */

/* Out of memory: it has no counts. */
static void note_comm(
	const struct rest *rest, struct lien_tracked *tracked, const struct lien_comm *comm)
{
	struct lien_counts counts = count_comm(rest, tracked->pid, comm);
	const struct begun *pairs =
		lien_rest_pairs(rest, tracked->pid, comm->address, &counts.pairs_count);
	struct lien_since *since = tracked->since;
	unsigned i;

	if (!since)
		since = tracked->since = calloc(1, sizeof(*since));
	counts.pairs = calloc(counts.pairs_count + 1, sizeof(*counts.pairs));
	if (!since || !counts.pairs ||
		lien_array_grow(&since->counts, since->count, &since->room, sizeof(counts))) {
		free(counts.pairs);
		return;
	}
	for (i = 0; i < counts.pairs_count; i++)
		counts.pairs[i] = (struct counts_pair){
			pairs[i].which.peer, without_held(rest, pairs[i].calls, tracked->pid,
						     comm->address, pairs[i].which.peer)};
	qsort(counts.pairs, counts.pairs_count, sizeof(*counts.pairs), pair_cmp);
	since->counts[since->count++] = counts;
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

	LIEN_FOREACH_PROCESS (process, rest->agent->graph) {
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
	struct lien_tracked *tracked;
	struct lien_process *process;
	struct ids outside = {0};
	struct lien_comm *comm;
	bool known =
		list_held(&rest) && lien_rest_list_pairs(&rest) && list_outside(&rest, &outside);
	unsigned i;

	for (i = 0; i < count; i++) {
		process = lien_graph_process(agent->graph, pids[i]);
		tracked = process ? process->agent : NULL;
		if (!tracked)
			continue;
		lien_since_clear(tracked, number);
		RB_FOREACH (comm, lien_comm_tree, &process->comms)
			if (known && lien_comm_is_found(comm) && !have_id(&outside, comm->id))
				note_comm(&rest, tracked, comm);
		if (tracked->since)
			qsort(tracked->since->counts, tracked->since->count,
				sizeof(*tracked->since->counts), counts_cmp);
	}
	free(outside.id);
	lien_rest_clear(&rest);
}
