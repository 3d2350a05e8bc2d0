// SPDX-License-Identifier: BSD-2-Clause
/* How far each rank is, and where its threads are held. */
#include "agent/quiesce/rest_internal.h"

#include <stdlib.h>

#include "agent/quiesce/elsewhere.h"
#include "agent/quiesce/holds.h"
#include "agent/graph/array.h"
#include "loader/probes/calls.h"
#include "loader/probes/follow.h"
#include "loader/probes/gate.h"

struct lien_probe_pair lien_rest_calls(const struct rest *rest,
	const struct lien_standing *standing, enum lien_held_at at, uint32_t peer)
{
	return (struct lien_probe_pair){.comm = standing->comm,
		.pid = rest->pids[standing->process],
		.peer = at == LIEN_HELD_COLLECTIVE ? LIEN_PROBE_COLLECTIVES
						   : peer * 2 + (at == LIEN_HELD_RECEIVE)};
}

static bool is_collective(uint32_t call)
{
	return LIEN_CALL_IS_TRAFFIC(call) && !LIEN_CALL_IS_TRANSFER(call);
}

struct lien_counts lien_rest_count_comm(
	const struct rest *rest, uint32_t pid, const struct lien_comm *comm)
{
	struct lien_counts counts = {0};
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
	for (; (waiting = lien_rest_waiting_on(rest, i, pid, comm->address)); i++)
		counts.collectives -= counts.collectives && is_collective(waiting->held.call);
	return counts;
}

uint64_t lien_rest_without_held(
	const struct rest *rest, uint64_t sum, uint32_t pid, uint64_t comm, uint32_t peer)
{
	const uint32_t call = peer % 2 ? LIEN_CALL_NCCL_RECV : LIEN_CALL_NCCL_SEND;
	const struct waiting *waiting;
	unsigned i = lien_rest_first_waiting(rest, pid, comm, call, peer / 2);

	for (; (waiting = lien_rest_waiting_on(rest, i, pid, comm)) && waiting->held.call == call &&
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

uint64_t lien_rest_transfers(
	void *context, const struct lien_standing *standing, uint32_t peer, bool receives)
{
	const struct rest *rest = context;
	const struct lien_counts *start;
	uint64_t sum;
	uint32_t pid;

	if (standing->elsewhere)
		return transfers_elsewhere(rest, standing, peer, receives);
	start = rest->start[standing - rest->targets.standings];
	pid = rest->pids[standing->process];
	sum = lien_probes_pair(rest->agent->probes, pid, standing->comm, peer, receives);
	sum = lien_rest_without_held(rest, sum, pid, standing->comm, 2 * peer + receives);
	if (start)
		sum = after(sum, lien_counts_pair(start, 2 * peer + receives));
	return sum;
}

bool lien_rest_add(
	struct rest *rest, const struct lien_standing *standing, const struct lien_counts *start)
{
	struct lien_targets *targets = &rest->targets;
	unsigned room = rest->standings_room;

	if (lien_array_grow(&targets->standings, targets->standings_count, &rest->standings_room,
		    sizeof(*targets->standings)) ||
		lien_array_grow(
			&rest->start, targets->standings_count, &room, sizeof(*rest->start)))
		return false;
	rest->start[targets->standings_count] = start;
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
	const struct lien_counts *start =
		comm->made_by || !owner->agent ? NULL : lien_since_rest(owner->agent, comm);
	struct lien_counts counts = lien_rest_count_comm(rest, rest->pids[process], comm);
	struct lien_standing standing = {.process = process,
		.comm = comm->address,
		.group = comm->id,
		.rank = comm->rank,
		/* Otherwise it was in use before it was watched. */
		.counted = comm->made_by || (start && comm->nranks > 0),
		.since = start != NULL,
		.transfers = counts.transfers,
		.collectives = after(counts.collectives, start ? start->collectives : 0)};

	*seen += counts.any;
	return lien_rest_add(rest, &standing, start);
}

/* Communicators that were made before the process was watched are in the graph only if NCCL's RAS
 * names them. */
static bool add_unnamed(struct rest *rest, unsigned process, unsigned seen)
{
	const struct lien_standing standing = {.process = process, .rank = -1};
	struct lien_probe_process known;

	return !lien_probes_process(rest->agent->probes, rest->pids[process], &known) ||
	       known.comms <= seen || lien_rest_add(rest, &standing, NULL);
}

bool lien_rest_take_standings(struct rest *rest)
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

bool lien_rest_take_held(struct rest *rest)
{
	const uint64_t now = lien_now_ns();
	const struct waiting *waiting;
	unsigned i;

	rest->targets.held = calloc(rest->waiting_count + 1, sizeof(*rest->targets.held));
	if (!rest->targets.held || !lien_rest_index_threads(rest))
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
			.stays = lien_holds_from_before(
				rest->agent, waiting->who.pid, &waiting->held),
			.age_ns = now - waiting->held.t};
	}
	rest->targets.held_count = rest->waiting_count;
	return true;
}
