// SPDX-License-Identifier: BSD-2-Clause
#include "agent/detach.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/eject.h"
#include "agent/walks.h"
#include "agent/pids.h"
#include "loader/gate.h"

#define ANSWER_NS    10000000000ull
#define NS_PER_CHUNK 100000000ull /* that an answer may take, for each chunk of the arena */
#define CHUNK	     (128ull << 20)

struct part {
	uint32_t pid;
	uint64_t start, t_start, until;
	enum { PART_ORDERED, PART_EJECTED, PART_DONE } state;
};

struct lien_detach {
	LIST_ENTRY(lien_detach) next;
	struct lien_agent *agent;
	struct lien_client *client; /* NULL: gone */
	json_t *processes;
	unsigned count, detached;
	struct part part[];
};

static void detach_free(struct lien_detach *detach)
{
	LIST_REMOVE(detach, next);
	json_decref(detach->processes);
	free(detach);
}

static void answer_if_done(struct lien_detach *detach)
{
	struct lien_client *client = detach->client;
	unsigned i;

	for (i = 0; i < detach->count; i++)
		if (detach->part[i].state != PART_DONE)
			return;
	if (client) {
		client->detach = NULL;
		lien_reply_result(client,
			json_pack("{s:O, s:i, s:i}", "processes", detach->processes, "detached",
				detach->detached, "refused", detach->count - detach->detached));
		lien_client_go_on(client);
	}
	detach_free(detach);
}

/* `stays`: why the library does; NULL: it is gone, or of an error. */
static void end_part(
	struct lien_detach *detach, struct part *part, const char *error, const char *stays)
{
	struct lien_process *process =
		lien_graph_living(detach->agent->graph, part->pid, part->start);

	part->state = PART_DONE;
	detach->detached += !error;
	json_array_append_new(detach->processes,
		json_pack("{s:i, s:s, s:s?, s:s?, s:s?, s:f}", "pid", part->pid, "command",
			process ? process->command : "", "error", error, "library",
			error	? NULL
			: stays ? "mapped"
				: "gone",
			"why", stays, "ms", (lien_now_ns() - part->t_start) / 1e6));
}

/* That waits for this process; NULL: nobody any more. */
static struct part *find_part(struct lien_agent *agent, uint32_t pid, uint64_t start, int state,
	struct lien_detach **detach)
{
	unsigned i;

	LIST_FOREACH (*detach, &agent->detaches, next)
		for (i = 0; i < (*detach)->count; i++)
			if ((*detach)->part[i].pid == pid && (*detach)->part[i].start == start &&
				(int)(*detach)->part[i].state == state)
				return &(*detach)->part[i];
	return NULL;
}

/* Of a part in this state, if it is waited for. */
static void conclude(struct lien_agent *agent, uint32_t pid, uint64_t start, int state,
	const char *error, const char *stays)
{
	struct lien_detach *detach;
	struct part *part = find_part(agent, pid, start, state, &detach);

	if (!part)
		return;
	end_part(detach, part, error, stays);
	answer_if_done(detach);
}

void lien_detach_ejected(
	struct lien_agent *agent, uint32_t pid, uint64_t start, int err, const char *why)
{
	if (err)
		lien_log(5, "process %u keeps the control library, which does nothing: %s", pid,
			why);
	conclude(agent, pid, start, PART_EJECTED, err == -ESRCH ? "it has ended" : NULL,
		err ? why : NULL);
}

/* --- the order, and its answer ------------------------------------------------------------------
 */

/* Takes no orders any more. Its last calls are known as its own before that; and its end, if that
 * is among them: NULL then. */
static struct lien_process *let_go(struct lien_agent *agent, uint32_t pid, uint64_t start)
{
	struct lien_process *process;
	struct lien_tracked *tracked;

	lien_agent_consume(agent);
	process = lien_graph_living(agent->graph, pid, start);
	tracked = process ? process->agent : NULL;
	if (!tracked)
		return NULL;
	lien_orders_unlink(tracked);
	lien_probes_ungate(agent->probes, pid);
	lien_watch_passes_on(agent, process);
	tracked->t_woken = 0;
	process->presence = LIEN_CONTROL_NONE;
	process->detached = true;
	process->held_bytes = process->held_items = 0;
	process->arena_bytes = process->arena_used = 0;
	lien_log(6, "process %u was detached", pid);
	return process;
}

static void ended(struct lien_agent *agent, struct lien_process *process,
	const struct lien_wire_header *reply)
{
	struct lien_tracked *tracked = process->agent;
	const struct lien_inject_library library = {.handle = reply->arg,
		.text = tracked->place.text,
		.text_end = tracked->place.text_end,
		.thread = reply->arg2};
	uint32_t pid = process->pid;
	uint64_t start = process->start;
	struct lien_detach *detach;
	struct part *part;

	process = let_go(agent, pid, start);
	if (!process)
		return;
	if (!reply->arg || lien_eject_submit(agent, process, &library)) {
		conclude(agent, pid, start, PART_ORDERED, NULL,
			reply->arg ? "nothing could be started to take it away"
				   : "it came with the program, or its functions were in use");
		return;
	}
	part = find_part(agent, pid, start, PART_ORDERED, &detach);
	if (part)
		part->state = PART_EJECTED;
}

/* It is as it was: with its control library. */
static void refused(struct lien_agent *agent, struct lien_process *process,
	const struct lien_wire_header *reply)
{
	char text[sizeof(reply->text) + 1];

	snprintf(text, sizeof(text), "%.*s", (int)sizeof(reply->text), reply->text);
	process->detached = false;
	process->presence = LIEN_CONTROL_READY;
	conclude(agent, process->pid, process->start, PART_ORDERED,
		reply->result == -EPROTO ? "its control library is of a build that cannot end"
		: text[0]		 ? text
					 : strerror(reply->result < 0 ? -reply->result : EIO),
		NULL);
}

void lien_detach_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply)
{
	struct lien_wire_header header = reply->header; /* the next one comes where it is */
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	if (!process || !(header.flags & LIEN_WIRE_LAST))
		return;
	if (header.result)
		refused(agent, process, &header);
	else
		ended(agent, process, &header);
}

bool lien_detach_under_way(const struct lien_tracked *tracked)
{
	return lien_orders_asked(tracked) == LIEN_ASK_END ||
	       lien_orders_waiting(tracked) == LIEN_ASK_END;
}

/* NULL: the order is under way. */
static const char *order(struct lien_agent *agent, struct lien_process *process)
{
	const struct lien_wire_header end = {
		.length = sizeof(end), .type = LIEN_WIRE_END, .seq = 1};
	struct lien_tracked *tracked = process->agent;

	if (tracked && lien_detach_under_way(tracked))
		return "it is being detached already";
	if (process->presence == LIEN_CONTROL_NONE)
		return process->detached ? "it is detached already" : "it has no control library";
	if (process->presence != LIEN_CONTROL_READY)
		return lien_walk_impossible(process);
	if (!tracked || !tracked->link)
		return "its control library does not answer: see `lien ps`";
	if (process->held_items)
		return "memory of it is offloaded: `lien restore` first";
	lien_walk_end(agent, process, "it is being detached");
	if (lien_link_send(tracked->link, LIEN_ASK_END, &end, NULL, NULL, 0))
		return "its control library is busy: try again";
	process->presence = LIEN_CONTROL_NONE; /* for whoever has orders meanwhile */
	process->detached = true;
	return NULL;
}

static void start_part(struct lien_detach *detach, struct part *part)
{
	struct lien_process *process =
		lien_graph_living(detach->agent->graph, part->pid, part->start);
	const char *why;

	part->t_start = lien_now_ns();
	part->until = part->t_start + ANSWER_NS +
		      (process ? process->arena_bytes / CHUNK * NS_PER_CHUNK : 0);
	if (!process)
		why = "it has ended";
	else if (!lien_watch_owned(process, &detach->client->viewer))
		why = "it does not run as you alone (set-user-id?): only root can detach it";
	else
		why = order(detach->agent, process);
	if (why)
		end_part(detach, part, why, NULL);
}

static bool wanted(const struct lien_client *client, const struct lien_process *process,
	const uint32_t *pids, unsigned count)
{
	if (count)
		return lien_pids_have(pids, count, process->pid);
	return process->presence == LIEN_CONTROL_READY &&
	       lien_watch_owned(process, &client->viewer);
}

static struct lien_detach *detach_new(
	struct lien_client *client, const uint32_t *pids, unsigned count)
{
	struct lien_agent *agent = client->agent;
	unsigned room = lien_graph_stats(agent->graph)->processes;
	struct lien_process *process;
	struct lien_detach *detach;

	detach = calloc(1, sizeof(*detach) + (room + 1) * sizeof(detach->part[0]));
	if (!detach || !(detach->processes = json_array())) {
		free(detach);
		return NULL;
	}
	for (process = lien_graph_first(agent->graph); process; process = lien_graph_next(process))
		if (detach->count < room && wanted(client, process, pids, count))
			detach->part[detach->count++] =
				(struct part){.pid = process->pid, .start = process->start};
	detach->agent = agent;
	detach->client = client;
	LIST_INSERT_HEAD(&agent->detaches, detach, next);
	return detach;
}

void lien_detach_start(struct lien_client *client, const uint32_t *pids, unsigned count)
{
	struct lien_agent *agent = client->agent;
	struct lien_detach *detach;
	unsigned i;

	if (agent->transaction) {
		lien_reply_busy(client, "a transaction is under way: see `lien status`");
		return;
	}
	detach = detach_new(client, pids, count);
	if (!detach) {
		lien_reply_error(client, "out of memory");
		return;
	}
	client->detach = detach;
	client->waiting = true;
	for (i = 0; i < detach->count; i++)
		start_part(detach, &detach->part[i]);
	answer_if_done(detach);
}

void lien_detach_drop(struct lien_detach *detach)
{
	detach->client = NULL;
}

/* The link is gone, and no answer came by it. */
static void look_closer(struct lien_detach *detach, struct part *part, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_control_state state;

	if (tracked && lien_link_state(part->pid, &tracked->place, &state) == -ENOTCONN) {
		if (let_go(detach->agent, part->pid, part->start))
			end_part(
				detach, part, NULL, "its control library did not wait to be asked");
		else
			end_part(detach, part, "it has ended", NULL);
	} else {
		process->detached = false;
		end_part(detach, part, "its control library has gone away: see `lien ps`", NULL);
	}
}

/* An order that it has not got yet, it will not get. */
static void give_up(struct lien_detach *detach, struct part *part, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	char busy[200];

	if (lien_orders_waiting(tracked) != LIEN_ASK_END) {
		end_part(detach, part,
			"its control library does not answer; it may still leave: see `lien ps`",
			NULL);
		return;
	}
	lien_link_cancel(tracked->link, LIEN_ASK_END);
	process->detached = false;
	process->presence = LIEN_CONTROL_READY;
	snprintf(busy, sizeof(busy), "its control library is still busy (%s): try again",
		lien_orders_words(lien_orders_asked(tracked)));
	end_part(detach, part, busy, NULL);
}

static void look_at(struct lien_detach *detach, struct part *part)
{
	struct lien_process *process =
		lien_graph_living(detach->agent->graph, part->pid, part->start);
	struct lien_tracked *tracked = process ? process->agent : NULL;

	if (!process)
		end_part(detach, part, "it has ended", NULL);
	else if (part->state == PART_ORDERED && (!tracked || !lien_detach_under_way(tracked)))
		look_closer(detach, part, process);
	else if (part->state == PART_ORDERED && lien_now_ns() >= part->until)
		give_up(detach, part, process);
}

void lien_detach_tick(struct lien_agent *agent)
{
	struct lien_detach *detach, *next;
	unsigned i;

	LIST_FOREACH_SAFE (detach, &agent->detaches, next, next) {
		for (i = 0; i < detach->count; i++)
			if (detach->part[i].state != PART_DONE)
				look_at(detach, &detach->part[i]);
		answer_if_done(detach);
	}
}

void lien_detach_stop(struct lien_agent *agent)
{
	struct lien_detach *detach;

	while ((detach = LIST_FIRST(&agent->detaches))) {
		if (detach->client)
			detach->client->detach = NULL;
		detach_free(detach);
	}
}
