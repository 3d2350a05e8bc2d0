// SPDX-License-Identifier: BSD-2-Clause
/*
 * `detach`: makes control libraries leave their process, for a client. Their code stays mapped and
 * does nothing. The kernel side goes on watching the process. Until it is attached again by name
 * (`attach`), no offload attaches it (lien_process.detached).
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/core/proc.h"
#include "agent/link/link.h"
#include "agent/orders/orders.h"
#include "agent/join/job.h"
#include "agent/join/walks.h"
#include "loader/probes/gate.h"

#define ANSWER_NS    10000000000ull
#define NS_PER_CHUNK 100000000ull /* limit for an answer, per chunk of the arena */
#define CHUNK	     (128ull << 20)

struct part {
	struct lien_join_part base;
	uint64_t t_start, until;
};

struct detach {
	struct lien_join_job base;
	unsigned detached;
};

static void answer(struct lien_join_job *job)
{
	const struct detach *detach = (struct detach *)job;

	lien_reply_result(
		job->client, json_pack("{s:O, s:i, s:i}", "processes", job->processes, "detached",
				     detach->detached, "refused", job->count - detach->detached));
	lien_client_go_on(job->client);
}

/* error NULL: the process is detached. */
static void end_part(struct lien_join_job *job, struct lien_join_part *part, const char *error)
{
	const struct lien_process *process = lien_join_process(job, part);
	struct detach *detach = (struct detach *)job;

	part->done = true;
	detach->detached += !error;
	json_array_append_new(
		job->processes, json_pack("{s:i, s:s, s:s?, s:f}", "pid", part->pid, "command",
					process ? process->command : "", "error", error, "ms",
					(lien_now_ns() - ((struct part *)part)->t_start) / 1e6));
}

static const struct lien_join_kind kind;

/* Ends the parts of all jobs that wait for this process. */
static void conclude(struct lien_agent *agent, uint32_t pid, uint64_t start, const char *error)
{
	struct lien_join_job *job;
	struct lien_join_part *part;

	LIST_FOREACH (job, &agent->joins, next) {
		part = job->kind == &kind ? lien_join_find(job, pid, start) : NULL;
		if (part)
			end_part(job, part, error);
	}
}

/* --- the order and its answer ----------------------------------------------------------------- */

/* The process takes no orders any more. */
static void let_go(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;

	lien_orders_unlink(tracked);
	lien_probes_ungate(agent->probes, process->pid, true);
	lien_presence_passes_on(agent, process);
	tracked->t_woken = 0;
	process->presence = LIEN_CONTROL_NONE;
	process->detached = true;
	process->held_bytes = process->held_items = 0;
	process->arena_bytes = process->arena_used = 0;
	lien_log(6, "process %u was detached", process->pid);
}

/* The process keeps its control library. */
static void refused(struct lien_agent *agent, struct lien_process *process,
	const struct lien_wire_header *reply)
{
	char text[sizeof(reply->text) + 1];

	snprintf(text, sizeof(text), "%.*s", (int)sizeof(reply->text), reply->text);
	process->detached = false;
	process->presence = LIEN_CONTROL_READY;
	conclude(agent, process->pid, process->start,
		reply->result == -EPROTO ? "its control library is of a build that cannot end"
		: text[0]		 ? text
					 : strerror(reply->result < 0 ? -reply->result : EIO));
}

void lien_detach_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply)
{
	/* a copy: the next reply reuses the buffer */
	struct lien_wire_header header = reply->header;
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	if (!process || !(header.flags & LIEN_WIRE_LAST))
		return;
	if (header.result) {
		refused(agent, process, &header);
		return;
	}
	let_go(agent, process);
	conclude(agent, pid, process->start, NULL);
}

bool lien_detach_under_way(const struct lien_tracked *tracked)
{
	return lien_orders_asked(tracked) == LIEN_ASK_END ||
	       lien_orders_waiting(tracked) == LIEN_ASK_END;
}

/* Returns NULL if the order is under way. */
static const char *order(struct lien_agent *agent, struct lien_process *process)
{
	const struct lien_wire_header end = {
		.length = sizeof(end), .type = LIEN_WIRE_END, .seq = 1};
	struct lien_tracked *tracked = process->agent;
	const char *reason;

	if (tracked && lien_detach_under_way(tracked))
		return "it is being detached already";
	if (process->presence == LIEN_CONTROL_NONE)
		return process->detached ? "it is detached already" : "it has no control library";
	if (process->presence != LIEN_CONTROL_READY)
		return lien_process_takes_no_orders(process);
	if (!tracked || !tracked->link)
		return "its control library does not answer: see `lien ps`";
	if (process->held_items)
		return "memory of it is offloaded: `lien restore` first";
	reason = lien_proc_halted_words(process->pid);
	if (reason)
		return reason;
	lien_walk_end(agent, process, "it is being detached");
	if (lien_link_send(tracked->link, LIEN_ASK_END, &end, NULL, NULL, 0))
		return "its control library is busy: try again";
	process->presence = LIEN_CONTROL_NONE; /* so that nobody gives it other orders meanwhile */
	process->detached = true;
	return NULL;
}

static void start(
	struct lien_join_job *job, struct lien_join_part *part, struct lien_process *process)
{
	struct part *own = (struct part *)part;
	const char *why;

	own->t_start = lien_now_ns();
	own->until = own->t_start + ANSWER_NS +
		     (process ? process->arena_bytes / CHUNK * NS_PER_CHUNK : 0);
	if (!process)
		why = "it has ended";
	else if (!lien_proc_owned(process, &job->client->viewer))
		why = "it does not run as you alone (set-user-id?): only root can detach it";
	else
		why = order(job->agent, process);
	if (why)
		end_part(job, part, why);
}

/* The link is gone, and no answer has come. */
static void look_closer(
	struct lien_join_job *job, struct lien_join_part *part, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_control_state state;

	if (tracked && lien_link_state(part->pid, &tracked->place, &state) == -ENOTCONN) {
		let_go(job->agent, process);
		end_part(job, part, NULL);
	} else {
		process->detached = false;
		end_part(job, part, "its control library has gone away: see `lien ps`");
	}
}

/* Gives up waiting, and cancels the order if it has not been sent. */
static void give_up(
	struct lien_join_job *job, struct lien_join_part *part, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	char busy[200];

	if (lien_orders_waiting(tracked) != LIEN_ASK_END) {
		end_part(job, part,
			"its control library does not answer; it may still leave: see `lien ps`");
		return;
	}
	lien_link_cancel(tracked->link, LIEN_ASK_END);
	process->detached = false;
	process->presence = LIEN_CONTROL_READY;
	snprintf(busy, sizeof(busy), "its control library is still busy (%s): try again",
		lien_orders_words(lien_orders_asked(tracked)));
	end_part(job, part, busy);
}

static void look(
	struct lien_join_job *job, struct lien_join_part *part, struct lien_process *process)
{
	const struct lien_tracked *tracked = process ? process->agent : NULL;

	if (!process)
		end_part(job, part, "it has ended");
	else if (!tracked || !lien_detach_under_way(tracked))
		look_closer(job, part, process);
	else if (lien_now_ns() >= ((struct part *)part)->until)
		give_up(job, part, process);
}

static const struct lien_join_kind kind = {
	.job_size = sizeof(struct detach),
	.part_size = sizeof(struct part),
	.start = start,
	.look = look,
	.answer = answer,
};

static bool wanted(const struct lien_viewer *viewer, const struct lien_process *process, bool named)
{
	return named ||
	       (process->presence == LIEN_CONTROL_READY && lien_proc_owned(process, viewer));
}

void lien_detach_start(struct lien_client *client, const uint32_t *pids, unsigned count)
{
	if (client->agent->transaction)
		lien_reply_busy(client, "a transaction is under way: see `lien status`",
			(struct lien_blame){LIEN_CAUSE_BUSY, 0, 0});
	else
		lien_join_begin(client, lien_join_new(client, &kind, pids, count, wanted));
}
