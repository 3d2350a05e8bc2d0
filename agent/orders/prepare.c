// SPDX-License-Identifier: BSD-2-Clause
/*
 * Pins host memory ahead of the first offload, in small orders between others, as much as an
 * offload of all memory would take now, within a share of what the machine and the process's
 * cgroups have. It begins only when a process has calmed down, so that it delays no start, and
 * never while the process captures: pinning would wait for the device.
 */
#include <errno.h>
#include <string.h>

#include "agent/plan/host.h"
#include "agent/orders/orders.h"

#define CALM_NS	 1000000000ull	/* since the amount it could offload last changed */
#define AGAIN_NS 10000000000ull /* after an attempt that was not possible */

uint64_t lien_prepare_held(struct lien_agent *agent)
{
	struct lien_process *process;
	const struct lien_tracked *tracked;
	uint64_t held = 0;

	LIEN_FOREACH_PROCESS (process, agent->graph) {
		tracked = process->agent;
		held += process->arena_bytes;
		if (tracked && lien_orders_asked(tracked) == LIEN_ASK_PREPARE)
			held += tracked->preparing_bytes;
	}
	return held;
}

uint64_t lien_prepare_wanted(const struct lien_process *process, int *device)
{
	uint64_t on[LIEN_WIRE_DEVICES] = {0}, bytes = 0;
	const struct lien_allocation *allocation;
	int id;

	*device = 0;
	LIST_FOREACH (allocation, &process->owned, of_owner) {
		id = allocation->prop.location_id;
		if (!lien_allocation_held(allocation) || !lien_allocation_on_device(allocation) ||
			lien_allocation_offloaded(allocation) || id < 0 ||
			id >= LIEN_WIRE_DEVICES || lien_plan_unmovable(allocation))
			continue;
		bytes += allocation->bytes;
		on[id] += allocation->bytes;
		if (on[id] > on[*device])
			*device = id;
	}
	return bytes;
}

static bool possible(struct lien_agent *agent, const struct lien_process *process)
{
	const struct lien_tracked *tracked = process->agent;

	return agent->prepare_percent && !agent->transaction && !agent->t_finish && tracked &&
	       tracked->link && !tracked->walk && !lien_orders_asked(tracked) &&
	       !lien_orders_waiting(tracked) && !tracked->arena_released && process->cuda &&
	       process->presence == LIEN_CONTROL_READY && !lien_plan_unreachable(process) &&
	       RB_EMPTY(&process->captures);
}

bool lien_prepare_excluded(const struct lien_agent *agent, const struct lien_process *process)
{
	return !agent->prepare_limited && lien_host_limited(&agent->host, process->pid);
}

/* Returns the bytes that may still be pinned in the process before anybody asks for an offload. */
static uint64_t allowed_bytes(struct lien_agent *agent, const struct lien_process *process)
{
	uint64_t held = lien_prepare_held(agent), more;

	more = lien_host_share(
		lien_host_room(&agent->host, process->pid), held, agent->prepare_percent);
	if (!agent->host_limit)
		return more;
	if (agent->host_limit <= held)
		return 0;
	return more < agent->host_limit - held ? more : agent->host_limit - held;
}

static void send(struct lien_process *process, uint64_t missing, int device)
{
	struct lien_wire_header order = {.length = sizeof(order),
		.type = LIEN_WIRE_PREPARE,
		.seq = 1,
		/* Not more than was allowed, whatever the process has by now. */
		.arg = process->arena_bytes + missing,
		.arg2 = device};
	struct lien_tracked *tracked = process->agent;

	tracked->preparing_bytes = missing;
	lien_link_send(tracked->link, LIEN_ASK_PREPARE, &order, NULL, NULL, 0);
}

/* Gives the next order if it is time for one. */
static void proceed(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	uint64_t events = lien_graph_stats(agent->graph)->events, now = lien_now_ns();
	uint64_t bytes, missing, allowed;
	int device;

	if (!possible(agent, process) || now < tracked->t_prepare ||
		tracked->prepared_at == events + 1)
		return;
	bytes = lien_prepare_wanted(process, &device);
	if (bytes != tracked->prepare_bytes) {
		tracked->prepare_bytes = bytes;
		tracked->t_prepare = now + CALM_NS;
		return;
	}
	missing = bytes ? lien_host_missing(process, bytes) : 0;
	if (!missing) {
		tracked->prepared_at = events + 1; /* until the next event */
		tracked->t_prepare = now + CALM_NS;
		return;
	}
	allowed = lien_prepare_excluded(agent, process) ? 0 : allowed_bytes(agent, process);
	if (missing > allowed)
		missing = LIEN_WIRE_ARENA_FLOOR(allowed);
	if (missing)
		send(process, missing, device);
	else
		tracked->t_prepare = now + AGAIN_NS;
}

void lien_prepare_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);
	struct lien_tracked *tracked = process->agent;

	if (reply->header.result) {
		lien_log(5, "process %u: host memory could not be prepared: %.*s", pid,
			(int)sizeof(reply->header.text), reply->header.text);
		tracked->t_prepare = lien_now_ns() + AGAIN_NS;
		return;
	}
	proceed(agent, process);
}

void lien_prepare_tick(struct lien_agent *agent)
{
	struct lien_process *process;

	LIEN_FOREACH_PROCESS (process, agent->graph)
		proceed(agent, process);
}
