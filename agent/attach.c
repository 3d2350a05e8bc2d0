// SPDX-License-Identifier: BSD-2-Clause
#include "agent/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/walks.h"
#include "agent/worker.h"
#include "loader/inject.h"

#define INJECT_MS 5000
#define READY_NS  5000000000ull /* until its control thread has answered */

struct part {
	uint32_t pid;
	uint64_t start;
	enum { PART_INJECTED, PART_STARTS, PART_DONE } state;
	uint64_t until;
	struct lien_inject_result result;
};

struct lien_attach {
	LIST_ENTRY(lien_attach) next;
	struct lien_agent *agent;
	struct lien_client *client; /* NULL: gone */
	json_t *then; /* the offload that waits for this; NULL: the client asked for it alone */
	json_t *processes;
	unsigned count, attached;
	struct part part[];
};

struct inject {
	struct lien_job job;
	struct lien_attach *attach;
	unsigned part;
	uint32_t pid;
	int pidfd, library, err;
	struct lien_inject_result result;
	char why[300];
};

static struct lien_process *process_of(struct lien_attach *attach, const struct part *part)
{
	struct lien_process *process = lien_graph_process(attach->agent->graph, part->pid);

	return process && process->start == part->start && !process->ended ? process : NULL;
}

static void attach_free(struct lien_attach *attach)
{
	LIST_REMOVE(attach, next);
	json_decref(attach->processes);
	json_decref(attach->then);
	free(attach);
}

static void answer_if_done(struct lien_attach *attach)
{
	struct lien_client *client = attach->client;
	unsigned i;

	for (i = 0; i < attach->count; i++)
		if (attach->part[i].state != PART_DONE)
			return;
	if (client) {
		client->waiting = false;
		client->attach = NULL;
		attach->agent->resume = true;
	}
	if (client && attach->then)
		lien_request_attached(client, attach->then);
	else if (client)
		lien_reply_result(client,
			json_pack("{s:O, s:i, s:i}", "processes", attach->processes, "attached",
				attach->attached, "refused", attach->count - attach->attached));
	attach_free(attach);
}

static void end_part(struct lien_attach *attach, struct part *part, const char *error)
{
	struct lien_process *process = process_of(attach, part);

	part->state = PART_DONE;
	attach->attached += !error;
	if (error && attach->then)
		lien_log(5, "process %u gets no control library: %s", part->pid, error);
	if (!error && process)
		process->detached = false;
	if (!error && !part->result.present)
		lien_log(6, "process %u has got a control library", part->pid);
	json_array_append_new(attach->processes,
		json_pack("{s:i, s:s, s:s?, s:b, s:f, s:f}", "pid", part->pid, "command",
			process ? process->command : "", "error", error, "present",
			part->result.present, "pause_ms", part->result.pause_ns / 1e6, "ms",
			part->result.total_ns / 1e6));
}

/* In the worker's thread. */
static void work(struct lien_job *job)
{
	struct inject *inject = (struct inject *)job;

	inject->err = lien_inject(inject->pid, inject->pidfd, inject->library, INJECT_MS,
		&inject->result, inject->why, sizeof(inject->why));
}

static void drop(struct lien_job *job)
{
	struct inject *inject = (struct inject *)job;

	if (inject->pidfd >= 0)
		close(inject->pidfd);
	if (inject->library >= 0)
		close(inject->library);
	free(inject);
}

static void done(struct lien_agent *agent, struct lien_job *job)
{
	struct inject *inject = (struct inject *)job;
	struct lien_attach *attach = inject->attach;
	struct part *part = &attach->part[inject->part];
	struct lien_process *process = process_of(attach, part);

	part->result = inject->result;
	if (inject->err) {
		end_part(attach, part, inject->why);
	} else if (!process) {
		end_part(attach, part, "it has ended");
	} else {
		lien_watch_look(agent, process);
		part->state = PART_STARTS;
		part->until = lien_now_ns() + READY_NS;
	}
	drop(job);
	answer_if_done(attach);
}

static int submit(struct lien_attach *attach, unsigned part)
{
	struct lien_agent *agent = attach->agent;
	struct inject *inject = calloc(1, sizeof(*inject));
	uint32_t pid = attach->part[part].pid;
	int err;

	if (!inject)
		return -ENOMEM;
	*inject = (struct inject){.job = {.work = work, .done = done, .drop = drop},
		.attach = attach,
		.part = part,
		.pid = pid,
		.pidfd = syscall(SYS_pidfd_open, pid, 0),
		.library = agent->control < 0 ? -1 : fcntl(agent->control, F_DUPFD_CLOEXEC, 0)};
	if (inject->pidfd < 0 || lien_watch_has_ended(pid, attach->part[part].start))
		err = -ESRCH;
	else if (inject->library < 0)
		err = agent->control < 0 ? -ENOENT : -EMFILE;
	else
		err = agent->injector ? 0 : lien_worker_new(agent, &agent->injector);
	if (!err)
		err = lien_worker_submit(agent->injector, &inject->job);
	if (err)
		drop(&inject->job);
	return err;
}

static void start_part(struct lien_attach *attach, unsigned i)
{
	struct part *part = &attach->part[i];
	struct lien_process *process = process_of(attach, part);
	char why[300];
	int err;

	if (process->agent && ((struct lien_tracked *)process->agent)->ending) {
		end_part(attach, part, "it is being detached: try again");
		return;
	}
	if (process->presence == LIEN_CONTROL_READY) {
		part->result.present = true;
		end_part(attach, part, NULL);
		return;
	}
	if (process->presence == LIEN_CONTROL_OTHER || process->presence == LIEN_CONTROL_TAKEN) {
		end_part(attach, part, lien_walk_impossible(process));
		return;
	}
	err = submit(attach, i);
	if (!err)
		return;
	snprintf(why, sizeof(why), "the control library cannot be given to it: %s",
		err == -ENOENT ? "this agent has found none beside it: see `lien doctor`"
			       : strerror(-err));
	end_part(attach, part, why);
}

/* Those named, or, of none, those that have no control library yet. */
static bool wanted(const struct lien_client *client, const struct lien_process *process,
	const uint32_t *pids, unsigned count)
{
	unsigned i;

	if (!process->cuda || !lien_watch_owned(process, &client->viewer))
		return false;
	for (i = 0; i < count; i++)
		if (pids[i] == process->pid)
			return true;
	return !count && process->presence == LIEN_CONTROL_NONE;
}

/* It has memory of which all is known: a control library is all that it lacks, and nobody has taken
 * that away from it on purpose. */
static bool lacks_nothing_else(const struct lien_process *process)
{
	return process->presence == LIEN_CONTROL_NONE && !process->detached &&
	       !process->incomplete && !RB_EMPTY(&process->mappings);
}

/* `only`: of those wanted. NULL: out of memory. */
static struct lien_attach *attach_new(struct lien_client *client, const uint32_t *pids,
	unsigned count, bool (*only)(const struct lien_process *process))
{
	struct lien_agent *agent = client->agent;
	unsigned room = lien_graph_stats(agent->graph)->processes;
	struct lien_attach *attach;
	struct lien_process *process;

	attach = calloc(1, sizeof(*attach) + (room + 1) * sizeof(attach->part[0]));
	if (!attach || !(attach->processes = json_array())) {
		free(attach);
		return NULL;
	}
	for (process = lien_graph_first(agent->graph); process; process = lien_graph_next(process))
		if (attach->count < room && wanted(client, process, pids, count) &&
			(!only || only(process)))
			attach->part[attach->count++] =
				(struct part){.pid = process->pid, .start = process->start};
	attach->agent = agent;
	attach->client = client;
	LIST_INSERT_HEAD(&agent->attaches, attach, next);
	return attach;
}

static void begin(struct lien_attach *attach)
{
	unsigned i;

	attach->client->attach = attach;
	attach->client->waiting = true;
	for (i = 0; i < attach->count; i++)
		start_part(attach, i);
	answer_if_done(attach);
}

void lien_attach_start(struct lien_client *client, const uint32_t *pids, unsigned count)
{
	struct lien_attach *attach = attach_new(client, pids, count, NULL);

	if (attach)
		begin(attach);
	else
		lien_reply_error(client, "out of memory");
}

bool lien_attach_before(
	struct lien_client *client, const uint32_t *pids, unsigned count, json_t *request)
{
	struct lien_attach *attach = attach_new(client, pids, count, lacks_nothing_else);

	if (!attach)
		return false;
	if (!attach->count) {
		attach_free(attach);
		return false;
	}
	attach->then = json_incref(request);
	begin(attach);
	return true;
}

void lien_attach_drop(struct lien_attach *attach)
{
	attach->client = NULL;
}

static void look_at(struct lien_attach *attach, struct part *part)
{
	struct lien_process *process = process_of(attach, part);

	if (!process)
		end_part(attach, part, "it has ended");
	else if (process->presence == LIEN_CONTROL_READY)
		end_part(attach, part, NULL);
	else if (lien_now_ns() >= part->until)
		end_part(attach, part,
			"the control library is in it, but does not answer: see `lien ps`");
}

void lien_attach_tick(struct lien_agent *agent)
{
	struct lien_attach *attach, *next;
	unsigned i;

	LIST_FOREACH_SAFE (attach, &agent->attaches, next, next) {
		for (i = 0; i < attach->count; i++)
			if (attach->part[i].state == PART_STARTS)
				look_at(attach, &attach->part[i]);
		answer_if_done(attach);
	}
}

void lien_attach_stop(struct lien_agent *agent)
{
	struct lien_attach *attach;

	lien_worker_free(agent->injector); /* its jobs name what follows */
	agent->injector = NULL;
	while ((attach = LIST_FIRST(&agent->attaches)))
		attach_free(attach);
}
