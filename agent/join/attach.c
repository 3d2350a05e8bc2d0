// SPDX-License-Identifier: BSD-2-Clause
#include "agent/join/attach.h"
#include "agent/core/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/join/adopt.h"
#include "agent/join/detach.h"
#include "agent/join/walks.h"
#include "agent/core/worker.h"
#include "agent/graph/pids.h"
#include "loader/inject/inject.h"

#define INJECT_MS 5000
#define READY_NS  5000000000ull	 /* until its control thread has answered */
#define READ_NS	  60000000000ull /* until its memory has been read */
#define ADOPT_NS  30000000000ull /* until no other transaction is under way */

struct part {
	uint32_t pid;
	uint64_t start;
	enum { PART_INJECTED, PART_STARTS, PART_WAITS, PART_READS, PART_DONE } state;
	uint64_t until;
	struct lien_inject_result result;
	char command[16], error[300]; /* "": it is attached */
	bool read;
	unsigned mappings, differences;
	double read_ms;
};

struct lien_attach {
	struct lien_client_job waited_for;
	LIST_ENTRY(lien_attach) next;
	struct lien_agent *agent;
	struct lien_client *client; /* NULL: gone */
	json_t *then; /* the offload that waits for this; NULL: the client asked for it alone */
	void (*go_on)(struct lien_client *client, json_t *request); /* with that */
	enum { ATTACH_PARTS, ATTACH_WAITS, ATTACH_ADOPTS, ATTACH_DONE } state;
	uint64_t until;
	json_t *adoption; /* what came of it; NULL: none was needed */
	unsigned count;
	struct part part[];
};

/* A user's processes are injected into one after the other: one that takes its time keeps those of
 * others waiting no longer. */
struct lien_injector {
	LIST_ENTRY(lien_injector) next;
	uint32_t uid;
	struct lien_worker *worker;
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

/* The client is gone: what has begun goes on. */
static void drop_client(struct lien_client_job *job)
{
	struct lien_attach *attach = (struct lien_attach *)job;

	attach->client = NULL;
}

static struct lien_process *process_of(struct lien_attach *attach, const struct part *part)
{
	return lien_graph_living(attach->agent->graph, part->pid, part->start);
}

static void attach_free(struct lien_attach *attach)
{
	LIST_REMOVE(attach, next);
	json_decref(attach->adoption);
	json_decref(attach->then);
	free(attach);
}

static json_t *part_json(const struct part *part, bool complete)
{
	return json_pack("{s:i, s:s, s:s?, s:b, s:f, s:f, s:b, s:i, s:i, s:f, s:b}", "pid",
		part->pid, "command", part->command, "error", part->error[0] ? part->error : NULL,
		"present", part->result.present, "pause_ms", part->result.pause_ns / 1e6, "ms",
		part->result.total_ns / 1e6, "read", part->read, "mappings", part->mappings, "new",
		part->differences, "read_ms", part->read_ms, "complete", complete);
}

static json_t *view(struct lien_attach *attach)
{
	json_t *processes = json_array();
	const struct lien_process *process;
	unsigned i, attached = 0;

	for (i = 0; i < attach->count; i++) {
		process = process_of(attach, &attach->part[i]);
		attached += !attach->part[i].error[0];
		json_array_append_new(processes,
			part_json(&attach->part[i], process && lien_process_whole(process)));
	}
	return json_pack("{s:o, s:i, s:i, s:O?}", "processes", processes, "attached", attached,
		"refused", attach->count - attached, "adoption", attach->adoption);
}

static void answer(struct lien_attach *attach)
{
	struct lien_client *client = attach->client;

	if (client) {
		client->job = NULL;
		if (attach->then)
			attach->go_on(client, attach->then);
		else
			lien_reply_result(client, view(attach));
	}
	if (client && !attach->then)
		lien_client_go_on(client);
	attach_free(attach);
}

/* The pid because of which owners were not looked for; 0: one that the client may not know of. */
static uint32_t outsider_of(const struct lien_attach *attach, const struct lien_adoption *adoption)
{
	const struct lien_process *process =
		lien_graph_process(attach->agent->graph, adoption->outsider);

	return process && attach->client && lien_sees(&attach->client->viewer, process)
		       ? adoption->outsider
		       : 0;
}

static json_t *adoption_json(
	struct lien_attach *attach, const struct lien_transaction_result *result, const char *error)
{
	const struct lien_adoption *adoption = &attach->agent->adoption;

	return json_pack("{s:s?, s:f, s:f, s:f, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o}", "error",
		error, "ms", result ? result->ns / 1e6 : 0, "pause_ms",
		result ? result->pause_ns / 1e6 : 0, "match_ms",
		result ? result->match_ns / 1e6 : 0, "processes", adoption->count, "counted",
		adoption->counted, "marked", adoption->marks ? adoption->marked : 0, "matched",
		adoption->matched, "unmatched", adoption->looked - adoption->matched, "disputed",
		adoption->disputed, "open", adoption->open, "outsider",
		adoption->outsider ? json_integer(outsider_of(attach, adoption)) : json_null());
}

/* Those that could be attached are not adopted: they are as before, and the next try may do it. */
static void adoption_failed(struct lien_attach *attach, const char *error)
{
	attach->adoption = adoption_json(attach, NULL, error);
	lien_log(4, "what was there before the agent cannot be adopted: %s", error);
	attach->state = ATTACH_DONE;
}

static void try_to_adopt(struct lien_attach *attach)
{
	struct lien_agent *agent = attach->agent;
	uint32_t *pids = calloc(attach->count + 1, sizeof(*pids));
	const struct lien_process *process;
	char error[400] = "out of memory";
	bool nothing = false;
	unsigned i, n = 0;
	int err = pids ? 0 : -ENOMEM;

	for (i = 0; pids && i < attach->count; i++) {
		process = process_of(attach, &attach->part[i]);
		if (process && attach->part[i].read)
			pids[n++] = process->pid;
	}
	if (!attach->client) { /* nobody asks for it any more */
		attach->state = ATTACH_DONE;
		free(pids);
		return;
	}
	attach->state = ATTACH_ADOPTS; /* before: it may end while it is being started */
	if (!err)
		err = lien_adopt_start(
			agent, &attach->client->viewer, pids, n, &nothing, error, sizeof(error));
	free(pids);
	if (err)
		adoption_failed(attach, error);
	else if (nothing)
		attach->state = ATTACH_DONE;
}

void lien_attach_adopted(struct lien_agent *agent, const struct lien_transaction_result *result)
{
	const struct lien_adoption *adoption = &agent->adoption;
	struct lien_attach *attach;

	LIST_FOREACH (attach, &agent->attaches, next)
		if (attach->state == ATTACH_ADOPTS)
			break;
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

/* Each part is as far as it comes. */
static void go_on(struct lien_attach *attach)
{
	unsigned i;

	for (i = 0; i < attach->count; i++)
		if (attach->part[i].state != PART_DONE)
			return;
	if (attach->state == ATTACH_PARTS) {
		attach->state = ATTACH_WAITS;
		attach->until = lien_now_ns() + ADOPT_NS;
	}
	if (attach->state == ATTACH_WAITS && !attach->agent->transaction)
		try_to_adopt(attach);
	if (attach->state == ATTACH_WAITS && lien_now_ns() >= attach->until)
		adoption_failed(attach, "another transaction is under way: see `lien status`");
	if (attach->state == ATTACH_DONE)
		answer(attach);
}

static void end_part(struct lien_attach *attach, struct part *part, const char *error)
{
	struct lien_process *process = process_of(attach, part);

	part->state = PART_DONE;
	snprintf(part->error, sizeof(part->error), "%s", error ? error : "");
	if (error && attach->then)
		lien_log(5, "process %u is not attached: %s", part->pid, error);
	if (!error && process)
		process->detached = false;
}

static void on_walked(void *to, struct lien_process *process, const struct lien_walked *walked)
{
	struct lien_attach *attach = to;
	struct part *part = NULL;
	char error[300];
	unsigned i;

	for (i = 0; i < attach->count; i++)
		if (attach->part[i].pid == process->pid && attach->part[i].state == PART_READS)
			part = &attach->part[i];
	if (!part)
		return;
	part->read_ms = walked->ns / 1e6;
	if (walked->error) {
		snprintf(error, sizeof(error),
			"it takes orders, but its memory could not be read: %s", walked->error);
		end_part(attach, part, error);
		return;
	}
	lien_reread_differences(walked->reread, &part->differences);
	part->mappings = lien_reread_mappings(walked->reread);
	part->read = !lien_reread_unsettled(walked->reread);
	end_part(attach, part,
		part->read ? NULL
			   : "it takes orders, but its memory changed whenever it was read: try "
			     "again");
}

/* What it did before it was watched is to be read. */
static void read_part(struct lien_attach *attach, struct part *part, struct lien_process *process)
{
	int err;

	if (!(process->incomplete & LIEN_INCOMPLETE_LATE)) {
		end_part(attach, part, NULL);
		return;
	}
	part->state = PART_READS;
	part->until = lien_now_ns() + READ_NS;
	err = lien_walk_start(attach->agent, process, true, on_walked, attach);
	if (err == -EBUSY)
		part->state = PART_WAITS;
	else if (err)
		end_part(attach, part, err == -ESRCH ? "it has ended" : strerror(-err));
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
		if (!part->result.present)
			lien_log(6, "process %u has got a control library", part->pid);
		agent->above->look(agent, process);
		part->state = PART_STARTS;
		part->until = lien_now_ns() + READY_NS;
	}
	drop(job);
}

int lien_attach_submit(struct lien_agent *agent, uint32_t uid, struct lien_job *job)
{
	struct lien_injector *injector;
	int err;

	LIST_FOREACH (injector, &agent->injectors, next)
		if (injector->uid == uid)
			return lien_worker_submit(injector->worker, job);
	injector = calloc(1, sizeof(*injector));
	if (!injector)
		return -ENOMEM;
	injector->uid = uid;
	err = lien_worker_new(agent, &injector->worker);
	if (err) {
		free(injector);
		return err;
	}
	LIST_INSERT_HEAD(&agent->injectors, injector, next);
	return lien_worker_submit(injector->worker, job);
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
	if (inject->pidfd < 0 || lien_proc_has_ended(pid, attach->part[part].start))
		err = -ESRCH;
	else if (inject->library < 0)
		err = agent->control < 0 ? -ENOENT : -EMFILE;
	else
		err = lien_attach_submit(
			agent, process_of(attach, &attach->part[part])->uid, &inject->job);
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
	if (!process->cuda || !lien_proc_owned(process, &client->viewer))
		return false;
	if (count)
		return lien_pids_have(pids, count, process->pid);
	return process->presence == LIEN_CONTROL_NONE ||
	       process->incomplete & (LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_SHARE);
}

/* All that it lacks is a control library, or to be asked what it had before it was watched; and
 * nobody has taken the library away from it on purpose. */
static bool lacks_nothing_else(const struct lien_process *process)
{
	if (process->detached)
		return false;
	if (process->incomplete & LIEN_INCOMPLETE_LATE)
		return true;
	return process->presence == LIEN_CONTROL_NONE && lien_process_whole(process) &&
	       !RB_EMPTY(&process->mappings);
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
	if (!attach)
		return NULL;
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

	attach->waited_for.drop = drop_client;
	attach->client->job = &attach->waited_for;
	attach->client->waiting = true;
	for (i = 0; i < attach->count; i++)
		start_part(attach, i);
}

void lien_attach_start(struct lien_client *client, const uint32_t *pids, unsigned count)
{
	struct lien_attach *attach = attach_new(client, pids, count, NULL);

	if (attach)
		begin(attach);
	else
		lien_reply_error(client, "out of memory");
}

bool lien_attach_before(struct lien_client *client, const uint32_t *pids, unsigned count,
	json_t *request, void (*go_on)(struct lien_client *client, json_t *request))
{
	struct lien_attach *attach = attach_new(client, pids, count, lacks_nothing_else);

	if (!attach)
		return false;
	if (!attach->count) {
		attach_free(attach);
		return false;
	}
	attach->then = json_incref(request);
	attach->go_on = go_on;
	begin(attach);
	return true;
}

static void look_at(struct lien_attach *attach, struct part *part)
{
	struct lien_process *process = process_of(attach, part);

	if (process && part->state == PART_READS) {
		if (lien_now_ns() >= part->until)
			lien_walk_end(attach->agent, process, "it took longer than a minute");
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

void lien_attach_tick(struct lien_agent *agent)
{
	struct lien_attach *attach, *next;
	unsigned i;

	LIST_FOREACH_SAFE (attach, &agent->attaches, next, next) {
		for (i = 0; i < attach->count; i++)
			if (attach->part[i].state != PART_INJECTED &&
				attach->part[i].state != PART_DONE)
				look_at(attach, &attach->part[i]);
		go_on(attach);
	}
}

void lien_attach_stop(struct lien_agent *agent)
{
	struct lien_injector *injector;
	struct lien_attach *attach;

	/* Their jobs name what follows. */
	while ((injector = LIST_FIRST(&agent->injectors))) {
		LIST_REMOVE(injector, next);
		lien_worker_free(injector->worker);
		free(injector);
	}
	while ((attach = LIST_FIRST(&agent->attaches)))
		attach_free(attach);
}
