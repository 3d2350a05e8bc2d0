// SPDX-License-Identifier: BSD-2-Clause
/*
 * `attach`: gives processes that were started without lien the same standing as others, for a
 * client. A process that lacks the control library gets it. For a process that ran before it was
 * watched, its mappings are read from the driver; then all such processes are adopted together, in
 * a transaction (agent/reread/adoption.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/core/jobs.h"
#include "agent/core/proc.h"
#include "agent/graph/array.h"
#include "agent/join/job.h"
#include "agent/join/walks.h"
#include "agent/orders/orders.h"
#include "loader/inject/inject.h"
#include "loader/probes/gate.h"

#define INJECT_MS 5000
#define READY_NS  5000000000ull	 /* for its control thread to answer */
#define READ_NS	  60000000000ull /* for its memory to be read */
#define SLOW_NS	  10000000000ull /* for its mappings to be read at last */
#define ADOPT_NS  30000000000ull /* for other transactions to end */
#define REST_MS	  10000		 /* for all processes to come to rest */

/* --- the adoption ----------------------------------------------------------------------------- */

/* A user's adoption does not bring other users' jobs to rest. */
static void drop_others(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	struct lien_adoption *adoption = &agent->adoption;
	unsigned i, n = 0;

	for (i = 0; i < adoption->count; i++)
		if (lien_proc_owned(
			    lien_graph_process(agent->graph, adoption->processes[i].pid), viewer))
			adoption->processes[n++] = adoption->processes[i];
	adoption->count = n;
}

/* Can the process take part? 0, or -errno and why not. */
static int check_part(const struct lien_process *process, char *error, size_t error_size)
{
	const int err = lien_proc_check_goes_on(process->pid, error, error_size);

	if (err || (!process->held_items && !process->parked))
		return err;
	snprintf(error, error_size,
		"process %u has memory away, and has to take part: `lien restore` first",
		process->pid);
	return -EBUSY;
}

static void adoption_done(void *context, struct lien_transaction *transaction);

/* Begins the transaction, in the processes of agent->adoption. */
static int begin_adoption(struct lien_agent *agent, char *error, size_t error_size)
{
	const struct lien_adoption *adoption = &agent->adoption;
	struct lien_transaction_ops ops = lien_orders_ops(agent);
	uint32_t *pids = calloc(adoption->count, sizeof(*pids));
	struct lien_process *process;
	int err = pids ? 0 : -ENOMEM;
	unsigned i;

	if (!err && !ops.gate) {
		snprintf(error, error_size,
			"this kernel cannot hold threads back (%s), so memory that was there "
			"before "
			"the agent is shown, and not moved",
			lien_probes_facts(agent->probes)->gate_lacks);
		err = -EOPNOTSUPP;
	}
	ops.adopt = lien_adopt_plan;
	ops.adopted = lien_adopt_answered;
	ops.done = adoption_done;
	for (i = 0; i < adoption->count && !err; i++) {
		pids[i] = adoption->processes[i].pid;
		err = check_part(lien_graph_process(agent->graph, pids[i]), error, error_size);
	}
	if (!err)
		err = lien_transaction_new(
			&agent->transaction, LIEN_TRANSACTION_ADOPTION, pids, i, REST_MS, &ops);
	free(pids);
	for (i = 0; i < adoption->count && !err; i++) {
		process = lien_graph_process(agent->graph, adoption->processes[i].pid);
		((struct lien_tracked *)process->agent)->gate_all = true;
	}
	return err;
}

/*
 * Adopts these processes, whose mappings must all be in the graph, and finds out what is still
 * unknown of others. Brings only the viewer's own processes to rest. Returns 0, and calls
 * adoption_done() at the end, possibly before this returns; or sets *nothing if there is nothing to
 * find out; or returns -errno with one line in error.
 */
static int start_adoption(struct lien_agent *agent, const struct lien_viewer *viewer,
	const uint32_t *pids, unsigned count, bool *nothing, char *error, size_t error_size)
{
	int err = lien_orders_ready(agent, error, error_size);

	*nothing = false;
	if (err)
		return err;
	agent->transaction_of = *viewer;
	err = lien_adoption_begin(agent->graph, pids, count, &agent->adoption);
	drop_others(agent, viewer);
	*nothing = !err && !agent->adoption.count;
	if (!err && !*nothing)
		err = begin_adoption(agent, error, error_size);
	if (err == -ENOMEM)
		snprintf(error, error_size, "out of memory");
	if (err || *nothing) {
		lien_orders_end(agent);
		return err;
	}
	agent->t_transaction = lien_now_ns();
	lien_transaction_start(agent->transaction);
	return 0;
}

/* --- the request ------------------------------------------------------------------------------ */

struct part {
	struct lien_join_part base;
	enum { PART_INJECTED, PART_STARTS, PART_WAITS, PART_READS } state;
	uint64_t until;
	uint64_t t_slow; /* it was too slow to be read for the first time; 0: never */
	struct lien_inject_result result;
	char command[16], error[300]; /* "": attached */
	bool read;
	unsigned mappings, differences;
	double read_ms;
};

struct attach {
	struct lien_join_job base;
	bool before; /* an offload waits for this; else the client asked only to attach */
	enum { ATTACH_PARTS, ATTACH_WAITS, ATTACH_ADOPTS, ATTACH_DONE } state;
	uint64_t until;
	json_t *adoption; /* the adoption's result; NULL: none was needed */
};

struct inject {
	struct lien_job job;
	struct attach *attach;
	unsigned part;
	uint32_t pid;
	int pidfd, library, err;
	struct lien_inject_result result;
	char why[300];
};

static struct part *part_at(const struct attach *attach, unsigned i)
{
	return &((struct part *)attach->base.parts)[i];
}

static struct lien_process *process_of(const struct attach *attach, const struct part *part)
{
	return lien_join_process(&attach->base, &part->base);
}

static void release(struct lien_join_job *job)
{
	struct attach *attach = (struct attach *)job;

	json_decref(attach->adoption);
}

static json_t *part_json(const struct part *part, bool complete)
{
	return json_pack("{s:i, s:s, s:s?, s:b, s:f, s:f, s:b, s:i, s:i, s:f, s:b}", "pid",
		part->base.pid, "command", part->command, "error",
		part->error[0] ? part->error : NULL, "present", part->result.present, "pause_ms",
		part->result.pause_ns / 1e6, "ms", part->result.total_ns / 1e6, "read", part->read,
		"mappings", part->mappings, "new", part->differences, "read_ms", part->read_ms,
		"complete", complete);
}

/* Returns how many processes need nothing, if none was wanted. */
static unsigned attached_before(const struct attach *attach)
{
	struct lien_process *process;
	unsigned count = 0;

	for (process = lien_graph_first(attach->base.agent->graph); process && !attach->base.count;
		process = lien_graph_next(process))
		count += process->cuda && !process->ended &&
			 lien_viewer_sees(&attach->base.client->viewer, process);
	return count;
}

static json_t *view(const struct attach *attach)
{
	json_t *processes = json_array();
	const struct lien_process *process;
	const struct part *part;
	unsigned i, attached = 0;

	for (i = 0; i < attach->base.count; i++) {
		part = part_at(attach, i);
		process = process_of(attach, part);
		attached += !part->error[0];
		json_array_append_new(
			processes, part_json(part, process && lien_process_whole(process)));
	}
	return json_pack("{s:o, s:i, s:i, s:i, s:O?}", "processes", processes, "attached", attached,
		"refused", attach->base.count - attached, "attached_before",
		attached_before(attach), "adoption", attach->adoption);
}

static void answer(struct lien_join_job *job)
{
	const struct attach *attach = (struct attach *)job;

	if (!attach->before)
		lien_reply_result(job->client, view(attach));
	lien_client_go_on(job->client);
}

/*
 * The pid of the process that kept owners from being searched; 0 if the client may not know of it.
 */
static uint32_t outsider_of(const struct attach *attach, const struct lien_adoption *adoption)
{
	const struct lien_process *process =
		lien_graph_process(attach->base.agent->graph, adoption->outsider);

	return process && attach->base.client &&
			       lien_viewer_sees(&attach->base.client->viewer, process)
		       ? adoption->outsider
		       : 0;
}

static json_t *adoption_json(
	struct attach *attach, const struct lien_transaction_result *result, const char *error)
{
	const struct lien_adoption *adoption = &attach->base.agent->adoption;

	return json_pack("{s:s?, s:f, s:f, s:f, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o}", "error",
		error, "ms", result ? result->ns / 1e6 : 0, "pause_ms",
		result ? result->pause_ns / 1e6 : 0, "match_ms",
		result ? result->match_ns / 1e6 : 0, "processes", result ? adoption->count : 0,
		"counted", adoption->counted, "marked", adoption->marks ? adoption->marked : 0,
		"matched", adoption->matched, "unmatched",
		adoption->looked - adoption->matched - adoption->made, "disputed",
		adoption->disputed, "open", adoption->open, "outsider",
		adoption->outsider ? json_integer(outsider_of(attach, adoption)) : json_null());
}

/* The processes that could be attached remain unadopted; the next attempt may succeed. */
static void adoption_failed(struct attach *attach, const char *error)
{
	attach->adoption = adoption_json(attach, NULL, error);
	lien_log(4, "what was there before the agent cannot be adopted: %s", error);
	attach->state = ATTACH_DONE;
}

static void try_to_adopt(struct attach *attach)
{
	struct lien_client *client = attach->base.client;
	uint32_t *pids = calloc(attach->base.count + 1, sizeof(*pids));
	const struct lien_process *process;
	char error[400] = "out of memory";
	bool nothing = false;
	unsigned i, n = 0;
	int err = pids ? 0 : -ENOMEM;

	for (i = 0; pids && i < attach->base.count; i++) {
		process = process_of(attach, part_at(attach, i));
		if (process && part_at(attach, i)->read)
			pids[n++] = process->pid;
	}
	if (!client) { /* no client waits for it any more */
		attach->state = ATTACH_DONE;
		free(pids);
		return;
	}
	attach->state = ATTACH_ADOPTS; /* set first: it may end while it is being started */
	if (!err)
		err = start_adoption(attach->base.agent, &client->viewer, pids, n, &nothing, error,
			sizeof(error));
	free(pids);
	if (err)
		adoption_failed(attach, error);
	else if (nothing)
		attach->state = ATTACH_DONE;
}

static const struct lien_join_kind kind;

static void adoption_done(void *context, struct lien_transaction *transaction)
{
	const struct lien_transaction_result *result = lien_transaction_result(transaction);
	struct lien_agent *agent = context;
	const struct lien_adoption *adoption = &agent->adoption;
	struct attach *attach = NULL;
	struct lien_join_job *job;

	lien_orders_ops(agent).done(agent, transaction);
	LIST_FOREACH (job, &agent->joins, next)
		if (job->kind == &kind && ((struct attach *)job)->state == ATTACH_ADOPTS)
			attach = (struct attach *)job;
	if (!attach)
		return;
	if (result->error) {
		adoption_failed(attach, result->text);
		return;
	}
	attach->adoption = adoption_json(attach, result, NULL);
	attach->state = ATTACH_DONE;
	lien_log(5,
		"%u processes were at rest for %.1f ms: %u allocations of before the agent have "
		"been adopted, the owners of %u of %u imports are known",
		adoption->count, result->pause_ns / 1e6, adoption->counted, adoption->matched,
		adoption->looked);
}

/* All parts have ended: adopts the processes that were read. */
static bool conclude(struct lien_join_job *job)
{
	struct attach *attach = (struct attach *)job;

	if (attach->state == ATTACH_PARTS) {
		attach->state = ATTACH_WAITS;
		attach->until = lien_now_ns() + ADOPT_NS;
	}
	if (attach->state == ATTACH_WAITS && !job->agent->transaction)
		try_to_adopt(attach);
	if (attach->state == ATTACH_WAITS && lien_now_ns() >= attach->until)
		adoption_failed(attach, "another transaction is under way: see `lien status`");
	return attach->state == ATTACH_DONE;
}

static void end_part(struct attach *attach, struct part *part, const char *error)
{
	struct lien_process *process = process_of(attach, part);

	part->base.done = true;
	snprintf(part->error, sizeof(part->error), "%s", error ? error : "");
	if (error && attach->before)
		lien_log(5, "process %u is not attached: %s", part->base.pid, error);
	if (!error && process)
		process->detached = false;
}

static void on_walked(void *to, struct lien_process *process, const struct lien_walked *walked)
{
	struct attach *attach = to;
	struct part *part =
		(struct part *)lien_join_find(&attach->base, process->pid, process->start);
	char error[300];

	if (!part || part->state != PART_READS)
		return;
	part->read_ms = walked->ns / 1e6;
	if (walked->error) {
		snprintf(error, sizeof(error),
			"it takes orders, but its memory could not be read: %s", walked->error);
		end_part(attach, part, error);
		return;
	}
	part->differences = walked->reread->certain.count;
	part->mappings = walked->reread->mappings;
	part->read = !walked->reread->open.count;
	end_part(attach, part,
		part->read ? NULL
			   : "it takes orders, but its memory changed whenever it was read: try "
			     "again");
}

/* Reads what the process did before it was watched. */
static void read_part(struct attach *attach, struct part *part, struct lien_process *process)
{
	int err;

	if (!(process->incomplete & LIEN_INCOMPLETE_LATE)) {
		end_part(attach, part, NULL);
		return;
	}
	part->state = PART_READS;
	part->until = lien_now_ns() + READ_NS;
	err = lien_walk_start(attach->base.agent, process, true, on_walked, attach);
	if (err == -ETIMEDOUT && !part->t_slow)
		part->t_slow = lien_now_ns();
	if (err == -EBUSY || (err == -ETIMEDOUT && lien_now_ns() - part->t_slow < SLOW_NS))
		part->state = PART_WAITS;
	else if (err)
		end_part(attach, part,
			err == -ESRCH	    ? "it has ended"
			: err == -ETIMEDOUT ? "its mappings cannot be read in time: try again"
					    : strerror(-err));
}

/* Runs in a thread. */
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
	struct attach *attach = inject->attach;
	struct part *part = part_at(attach, inject->part);
	struct lien_process *process = process_of(attach, part);

	part->result = inject->result;
	if (inject->err) {
		end_part(attach, part, inject->why);
	} else if (!process) {
		end_part(attach, part, "it has ended");
	} else {
		if (!part->result.present)
			lien_log(6, "process %u has got a control library", part->base.pid);
		agent->above->look(agent, process);
		part->state = PART_STARTS;
		part->until = lien_now_ns() + READY_NS;
	}
}

static int submit(struct attach *attach, struct lien_process *process, unsigned index)
{
	struct lien_agent *agent = attach->base.agent;
	struct inject *inject = calloc(1, sizeof(*inject));
	const struct lien_join_part *joined = &part_at(attach, index)->base;
	int err;

	if (!inject)
		return -ENOMEM;
	*inject = (struct inject){.job = {.kind = LIEN_JOB_INJECT,
					  .user = process->uid,
					  .work = work,
					  .done = done,
					  .drop = drop},
		.attach = attach,
		.part = index,
		.pid = joined->pid,
		.pidfd = syscall(SYS_pidfd_open, joined->pid, 0),
		.library = agent->control < 0 ? -1 : fcntl(agent->control, F_DUPFD_CLOEXEC, 0)};
	if (inject->pidfd < 0 || lien_proc_has_ended(joined->pid, joined->start))
		err = -ESRCH;
	else if (inject->library < 0)
		err = agent->control < 0 ? -ENOENT : -EMFILE;
	else
		return lien_job_start(agent, &inject->job);
	drop(&inject->job);
	return err;
}

static void start(
	struct lien_join_job *job, struct lien_join_part *joined, struct lien_process *process)
{
	struct attach *attach = (struct attach *)job;
	struct part *part = (struct part *)joined;
	char why[300];
	int err;

	if (!process) {
		end_part(attach, part, "it has ended");
		return;
	}
	snprintf(part->command, sizeof(part->command), "%s", process->command);
	if (process->agent && lien_detach_under_way(process->agent)) {
		end_part(attach, part, "it is being detached: try again");
		return;
	}
	if (process->presence == LIEN_CONTROL_READY) {
		part->result.present = true;
		read_part(attach, part, process);
		return;
	}
	if (process->presence == LIEN_CONTROL_OTHER || process->presence == LIEN_CONTROL_TAKEN) {
		end_part(attach, part, lien_process_takes_no_orders(process));
		return;
	}
	err = submit(attach, process, part - part_at(attach, 0));
	if (!err)
		return;
	snprintf(why, sizeof(why), "the control library cannot be given to it: %s",
		err == -ENOENT ? "this agent has found none beside it: see `lien doctor`"
			       : strerror(-err));
	end_part(attach, part, why);
}

/*
 * Selects the named processes; if none are named, those without a control library or with unknown
 * memory.
 */
static bool wanted(const struct lien_viewer *viewer, const struct lien_process *process, bool named)
{
	return process->cuda && lien_proc_owned(process, viewer) &&
	       (named || process->presence == LIEN_CONTROL_NONE ||
		       process->incomplete & (LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_SHARE));
}

/* Does it lack only a control library, or a reading of what it had before it was watched? A process
 * that was detached on purpose does not count. */
static bool lacks_nothing_else(const struct lien_process *process)
{
	if (process->detached)
		return false;
	if (process->incomplete & LIEN_INCOMPLETE_LATE)
		return true;
	return process->presence == LIEN_CONTROL_NONE && lien_process_whole(process) &&
	       !RB_EMPTY(&process->mappings);
}

static bool wanted_before(
	const struct lien_viewer *viewer, const struct lien_process *process, bool named)
{
	return wanted(viewer, process, named) && lacks_nothing_else(process);
}

void lien_attach_expect(struct lien_agent *agent, const struct lien_viewer *viewer,
	const uint32_t *pids, unsigned count)
{
	const bool attaches = agent->control >= 0 && !agent->no_attach;
	struct lien_process *process;

	LIEN_FOREACH_PROCESS (process, agent->graph)
		process->joins =
			attaches && (!count || lien_pids_have(pids, count, process->pid)) &&
			wanted_before(viewer, process, count) && !lien_proc_stopped(process->pid);
}

static void look(
	struct lien_join_job *job, struct lien_join_part *joined, struct lien_process *process)
{
	struct attach *attach = (struct attach *)job;
	struct part *part = (struct part *)joined;

	if (part->state == PART_INJECTED)
		return;
	if (process && part->state == PART_READS) {
		if (lien_now_ns() >= part->until)
			lien_walk_end(job->agent, process, "it took longer than a minute");
		return;
	}
	if (!process)
		end_part(attach, part, "it has ended");
	else if (process->presence == LIEN_CONTROL_READY)
		read_part(attach, part, process);
	else if (lien_now_ns() >= part->until)
		end_part(attach, part,
			"the control library is in it, but does not answer: see `lien ps`");
}

static const struct lien_join_kind kind = {
	.job_size = sizeof(struct attach),
	.part_size = sizeof(struct part),
	.start = start,
	.look = look,
	.conclude = conclude,
	.answer = answer,
	.release = release,
};

void lien_attach_start(struct lien_client *client, const uint32_t *pids, unsigned count)
{
	lien_join_begin(client, lien_join_new(client, &kind, pids, count, wanted));
}

bool lien_attach_before(struct lien_client *client, const uint32_t *pids, unsigned count)
{
	struct lien_join_job *job = lien_join_new(client, &kind, pids, count, wanted_before);

	if (!job)
		return false;
	if (!job->count) {
		lien_join_free(job);
		return false;
	}
	((struct attach *)job)->before = true;
	lien_join_begin(client, job);
	return true;
}
