// SPDX-License-Identifier: BSD-2-Clause
#include "agent/quiesce/holds.h"

#include "loader/probes/gate.h"

/* Is memory of [from, end) away? */
static bool is_away(struct lien_process *process, uint64_t from, uint64_t end)
{
	const struct lien_mapping key = {.va = from};
	const struct lien_mapping *mapping = lien_process_mapping(process, from);

	if (!mapping)
		mapping = RB_NFIND(
			lien_mapping_tree, &process->mappings, (struct lien_mapping *)&key);
	for (; mapping && mapping->va < end;
		mapping = RB_NEXT(
			lien_mapping_tree, &process->mappings, (struct lien_mapping *)mapping))
		if (mapping->parked)
			return true;
	return false;
}

static bool registers_or_closes(const struct lien_probe_held *held)
{
	return held->bytes || held->call == LIEN_CALL_CU_IPC_CLOSE;
}

bool lien_holds_away(
	const struct lien_agent *agent, uint32_t pid, const struct lien_probe_held *held)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	return process && (registers_or_closes(held) || held->call == LIEN_CALL_CU_MEM_UNMAP) &&
	       is_away(process, held->address, held->address + (held->bytes ? held->bytes : 1));
}

bool lien_holds_other(
	const struct lien_agent *agent, uint32_t pid, const struct lien_probe_held *held)
{
	return registers_or_closes(held) && !lien_holds_away(agent, pid, held);
}

bool lien_holds(const struct lien_agent *agent, uint32_t pid, const struct lien_probe_shut *shut,
	bool all, const struct lien_probe_held *held)
{
	if (shut->trusting)
		return lien_holds_away(agent, pid, held);
	if (!all && LIEN_CALL_BEGINS_CAPTURE(held->call))
		return shut->busy;
	if (!all && !(held->flags & LIEN_PROBE_HELD_MEETS))
		return false;
	/* While a transaction runs, memory goes and comes. */
	if (!agent->transaction && lien_holds_other(agent, pid, held))
		return false;
	return !shut->by_comm ||
	       !(LIEN_CALL_MAKES_COMM(held->call) ||
		       (held->comm && !lien_probes_comm_away(agent->probes, pid, held->comm)));
}

bool lien_holds_from_before(
	const struct lien_agent *agent, uint32_t pid, const struct lien_probe_held *held)
{
	const struct lien_process *process = lien_graph_process(agent->graph, pid);
	const struct lien_tracked *tracked = process ? process->agent : NULL;
	struct lien_probe_shut before;

	if (!tracked || !tracked->gate_was_shut)
		return process && process->parked;
	before = tracked->gate_held;
	before.busy = 0; /* that transaction is over, even if an agent did not live to say so */
	return lien_holds(agent, pid, &before, tracked->gate_was_all, held);
}
