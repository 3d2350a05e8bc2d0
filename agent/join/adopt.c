// SPDX-License-Identifier: BSD-2-Clause
#include "agent/join/adopt.h"
#include "agent/join/join.h"
#include "agent/core/proc.h"
#include "agent/orders/orders.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/join/attach.h"
#include "agent/core/node.h"
#include "agent/join/walks.h"
#include "loader/discover/untrusted.h"
#include "loader/probes/gate.h"

/* Limit for all processes to come to rest. */
#define REST_MS 10000

/* According to the environment that the process started with. */
static bool nvls_is_off(uint32_t pid)
{
	size_t size;
	char *text = lien_environ_read(pid, &size);
	const char *value = lien_environ_variable(text, size, "NCCL_NVLS_ENABLE");
	bool off = value && !strcmp(value, "0");

	free(text);
	return off;
}

/*
 * Facts that the driver cannot report of an adopted process. Memory bound to a multicast object
 * looks like any other. NCCL (2.17 to 2.30) binds some where the devices support it and the node
 * has at least two, unless NCCL_NVLS_ENABLE=0; its objects are for several processes.
 */
static uint32_t doubts_of(struct lien_agent *agent, struct lien_process *process)
{
	const struct lien_node *node = lien_node_now(agent);
	const struct lien_tracked *tracked = process->agent;
	bool nccl = lien_walk_maps(process, LIEN_LIB_NCCL);
	uint32_t doubts = nccl ? LIEN_INCOMPLETE_NCCL : 0;

	if (tracked->objects || (nccl && tracked->multicast && !(node && node->count == 1) &&
					!nvls_is_off(process->pid)))
		doubts |= LIEN_INCOMPLETE_MULTICAST;
	if (tracked->own_objects)
		doubts |= LIEN_INCOMPLETE_MULTICAST_OWN;
	return doubts;
}

/* Memory that cards may access gets no marks, so this must be known first. */
static void doubt_cards(struct lien_agent *agent)
{
	struct lien_process *process;
	struct lien_event event;
	unsigned i;

	for (i = 0; i < agent->at_rest_count; i++) {
		process = lien_graph_process(agent->graph, agent->at_rest[i]);
		if (!process || !(process->incomplete & LIEN_INCOMPLETE_LATE) ||
			process->incomplete & LIEN_INCOMPLETE_CARDS ||
			!lien_proc_uses_cards(process->pid))
			continue;
		event = lien_agent_event_of(process->pid, process->start, LIEN_EVENT_INCOMPLETE);
		event.size = LIEN_EVENT_SIZE(incomplete);
		event.incomplete.reasons = process->incomplete | LIEN_INCOMPLETE_CARDS;
		lien_agent_event(agent, &event);
	}
}

/* Nothing changes any more: plans what to find out. */
int lien_adopt_plan(void *context, struct lien_adoption **out, char *why, size_t size)
{
	struct lien_agent *agent = context;
	struct lien_process *process;
	unsigned i;
	int err;

	doubt_cards(agent);
	err = lien_adoption_plan(agent->graph, agent->adopted, agent->adopted_count, agent->at_rest,
		agent->at_rest_count, &agent->adoption);
	if (err) {
		snprintf(why, size, "%s", strerror(-err));
		return err;
	}
	for (i = 0; i < agent->adoption.count; i++) {
		process = lien_graph_process(agent->graph, agent->adoption.processes[i].pid);
		agent->adoption.processes[i].doubts = doubts_of(agent, process);
		agent->adoption.processes[i].awaits =
			agent->adoption.untyped && lien_proc_awaits_files(process->pid);
	}
	*out = &agent->adoption;
	return 0;
}

static void emit_adopted(void *agent, struct lien_event *event)
{
	lien_agent_event(agent, event);
}

/*
 * The answers go into the graph before any thread goes on, so that addresses still mean the same.
 */
void lien_adopt_answered(void *context)
{
	struct lien_agent *agent = context;
	struct lien_emitter emitter = {lien_now_ns(), emit_adopted, agent};

	lien_adoption_emit(&agent->adoption, agent->graph, &emitter);
}

/* A user's adoption does not bring other users' jobs to rest. */
static unsigned those_owned(
	struct lien_agent *agent, const struct lien_viewer *viewer, uint32_t *pids, unsigned count)
{
	unsigned i, n = 0;

	for (i = 0; i < count; i++)
		if (lien_proc_owned(lien_graph_process(agent->graph, pids[i]), viewer))
			pids[n++] = pids[i];
	return n;
}

int lien_adopt_start(struct lien_agent *agent, const struct lien_viewer *viewer,
	const uint32_t *pids, unsigned count, bool *nothing, char *error, size_t error_size)
{
	struct lien_transaction_ops ops = lien_orders_ops(agent);
	struct lien_process *process;
	struct lien_tracked *tracked;
	unsigned i;
	int err = lien_orders_ready(agent, error, error_size);

	*nothing = false;
	if (err)
		return err;
	agent->at_rest = calloc(lien_graph_stats(agent->graph)->processes + 1, sizeof(uint32_t));
	agent->adopted = calloc(count + 1, sizeof(uint32_t));
	if (!agent->at_rest || !agent->adopted) {
		lien_orders_end(agent);
		return -ENOMEM;
	}
	for (i = 0; i < count; i++)
		agent->adopted[i] = pids[i];
	agent->adopted_count = count;
	agent->transaction_of = *viewer;
	agent->at_rest_count = lien_adoption_pids(agent->graph, pids, count, agent->at_rest);
	agent->at_rest_count = those_owned(agent, viewer, agent->at_rest, agent->at_rest_count);
	*nothing = !agent->at_rest_count;
	if (!*nothing && !ops.gate) {
		snprintf(error, error_size,
			"this kernel cannot hold threads back (%s), so memory that was there "
			"before "
			"the agent is shown, and not moved",
			lien_probes_gate_lacks(agent->probes));
		err = -EOPNOTSUPP;
	}
	for (i = 0; i < agent->at_rest_count && !err; i++) {
		process = lien_graph_process(agent->graph, agent->at_rest[i]);
		err = lien_proc_check_goes_on(process->pid, error, error_size);
		if (err)
			break;
		if (!process->held_items && !process->parked)
			continue;
		snprintf(error, error_size,
			"process %u has memory away, and has to take part: `lien restore` first",
			process->pid);
		err = -EBUSY;
	}
	if (!err && !*nothing)
		err = lien_transaction_new(&agent->transaction, LIEN_TRANSACTION_ADOPTION,
			agent->at_rest, agent->at_rest_count, REST_MS, &ops);
	if (err || *nothing) {
		if (err == -ENOMEM)
			snprintf(error, error_size, "out of memory");
		lien_orders_end(agent);
		return err;
	}
	for (i = 0; i < agent->at_rest_count; i++) {
		tracked = lien_graph_process(agent->graph, agent->at_rest[i])->agent;
		tracked->gate_all = true;
	}
	agent->adopting = true;
	agent->t_transaction = lien_now_ns();
	agent->transaction_of = *viewer;
	lien_transaction_start(agent->transaction);
	return 0;
}
