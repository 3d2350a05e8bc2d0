// SPDX-License-Identifier: BSD-2-Clause
/*
 * Takes over where an earlier agent was stopped or killed: the journal has its graph, the pinned
 * ring has what happened since. If that fails, the agent begins anew, as it does without a journal.
 * Or removes all of it, and says whom that would cost something.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/daemon/resume.h"

#include "agent/daemon/daemon.h"
#include "agent/processes/watch.h"
#include "agent/core/proc.h"
#include "agent/journal/recording.h"
#include "agent/plan/plan.h"
#include "agent/server/server.h"
#include "agent/processes/sites.h"
#include "agent/nodes/outcomes.h"
#include "loader/probes/gate.h"

/* --- removing --------------------------------------------------------------------------------- */

static char *path_of(const char *socket, const char *what)
{
	char *path = NULL;

	return asprintf(&path, "%s%s", socket, what) < 0 ? NULL : path;
}

#define PIDS_SHOWN 8
#define WHO_SIZE   160

/* Returns how many running processes use CUDA, or (parked) have memory away, and names them:
 * "processes 20, 21". */
static unsigned list(struct lien_graph *graph, bool parked, char *text, size_t size)
{
	struct lien_process *process;
	unsigned count = 0;
	char pids[100] = "";
	size_t used = 0;

	LIEN_FOREACH_PROCESS (process, graph)
		if ((parked ? process->parked : process->cuda) &&
			lien_proc_runs(process->pid, process->start) && count++ < PIDS_SHOWN)
			used += snprintf(pids + used, sizeof(pids) - used, "%s%u", used ? ", " : "",
				process->pid);
	used = snprintf(text, size, "%s %s", count == 1 ? "process" : "processes", pids);
	if (count > PIDS_SHOWN)
		snprintf(text + used, size - used, " and %u more", count - PIDS_SHOWN);
	return count;
}

/* As far as the journal can be read. What it lacks, the next agent would lack, too. */
static void read_journal(struct lien_graph *graph, const char *socket)
{
	struct lien_recording *journal = NULL;
	static struct lien_event event;
	char *path = path_of(socket, ".journal");

	if (!path)
		return;
	if (!lien_recording_open(path, &journal))
		while (lien_recording_read(journal, &event) == 1 &&
			lien_graph_apply(graph, &event) != -ENOMEM)
			continue;
	if (lien_recording_close(journal))
		lien_log(4, "cannot read %s", path);
	free(path);
}

/* Warns, too, where nothing can be done about it. */
static int costs_nobody(const char *socket, bool force)
{
	struct lien_graph *graph;
	char who[WHO_SIZE];
	int err = lien_graph_new(&graph), priority = force ? 4 : 3;

	if (err)
		return err;
	read_journal(graph, socket);
	if (list(graph, true, who, sizeof(who)))
		lien_log(priority,
			"memory of %s is offloaded, and threads that need it would no longer wait: "
			"start the agent, and `lien restore` first%s",
			who, force ? "" : "; --force removes everything all the same");
	else if (list(graph, false, who, sizeof(who)))
		lien_log(priority,
			"what is known of %s is lost: `lien attach` reads some of it again, and "
			"memory that NVLS may use cannot be moved any more%s",
			who, force ? "" : "; --force removes everything all the same");
	else
		force = true;
	lien_graph_free(graph);
	return force ? 0 : -ECANCELED;
}

static int may_by_force(const char *socket)
{
	return costs_nobody(socket, true);
}

static int may(const char *socket)
{
	return costs_nobody(socket, false);
}

int lien_agent_clean(const char *socket, bool force)
{
	static const char *const more[] = {
		".journal", ".journal.new", ".outcomes", ".outcomes.new"};
	int err = lien_probes_clean(socket, force ? may_by_force : may);
	char *name;
	unsigned i;

	if (err == -EBUSY)
		lien_log(3, "an agent runs on %s: stop it first", socket);
	else if (err && err != -ECANCELED)
		lien_log(3, "cannot remove what agents on %s left: %s", socket, strerror(-err));
	for (i = 0; i < sizeof(more) / sizeof(more[0]) && !err; i++) {
		name = path_of(socket, more[i]);
		if (name)
			unlink(name);
		free(name);
	}
	return err;
}

/* --- taking over ------------------------------------------------------------------------------ */

/* The file of agent/nodes/outcomes.h. */
static int outcomes_begin(struct lien_agent *agent, const char *socket)
{
	char *path = socket ? path_of(socket, ".outcomes") : NULL;

	agent->outcomes = lien_outcomes_open(path);
	free(path);
	return agent->outcomes ? 0 : -ENOMEM;
}

static int apply_again(void *context, const struct lien_event *event)
{
	struct lien_agent *agent = context;

	agent->taken_over++;
	/* An event that could not be applied then cannot be applied now either. */
	return lien_graph_apply(agent->graph, event) == -ENOMEM ? -ENOMEM : 0;
}

static int graph_renew(struct lien_agent *agent)
{
	int err;

	lien_sites_stop(agent); /* they belong to the graph */
	lien_graph_free(agent->graph);
	agent->graph = NULL;
	agent->taken_over = 0;
	err = lien_graph_new(&agent->graph);
	return err ? err : lien_sites_start(agent);
}

static const char *unusable(int err)
{
	switch (err) {
	case -EBADMSG:
		return "it is damaged";
	case -EPROTONOSUPPORT:
		return "a newer version of lien wrote it";
	default:
		return strerror(-err);
	}
}

int lien_resume_read(struct lien_agent *agent, const struct lien_agent_config *config,
	struct lien_probes_config *probes)
{
	struct timespec now;
	int err;

	if (config->no_journal) {
		snprintf(agent->daemon->journal_problem, sizeof(agent->daemon->journal_problem),
			"not wanted (--no-journal)");
		lien_agent_clean(config->socket, true);
		return outcomes_begin(agent, NULL);
	}
	err = outcomes_begin(agent, config->socket);
	if (err)
		return err;
	agent->daemon->journal_path = path_of(config->socket, ".journal");
	if (!agent->daemon->journal_path)
		return -ENOMEM;
	agent->daemon->journal_limit = config->journal_limit;
	clock_gettime(CLOCK_REALTIME, &now);
	probes->socket = config->socket;
	probes->new_journal = now.tv_sec * 1000000000ull + now.tv_nsec;
	err = lien_journal_open(
		&agent->daemon->journal, agent->daemon->journal_path, apply_again, agent);
	if (!err) {
		probes->journal = lien_journal_number(agent->daemon->journal);
	} else if (err != -ENOENT) {
		lien_log(4, "the journal %s cannot be used: %s: what was before is not known",
			agent->daemon->journal_path, unusable(err));
		return graph_renew(agent);
	}
	return 0;
}

/* From now on the next agent cannot know what this one knows. */
static void journal_end(struct lien_agent *agent, const char *why)
{
	lien_journal_close(agent->daemon->journal);
	agent->daemon->journal = NULL;
	unlink(agent->daemon->journal_path);
	snprintf(agent->daemon->journal_problem, sizeof(agent->daemon->journal_problem), "%s", why);
	lien_log(4, "no journal is kept: %s: the next agent will not know what was before it", why);
}

int lien_resume_begin(struct lien_agent *agent, uint64_t new_journal)
{
	const struct lien_probes_facts *probes = lien_probes_facts(agent->probes);
	char why[300];
	int err;

	if (!agent->daemon->journal_path)
		return 0;
	if (probes->resumed) {
		agent->daemon->ring_resumed = true;
		lien_log(6, "goes on with %s: %llu events, %llu processes",
			agent->daemon->journal_path, (unsigned long long)agent->taken_over,
			(unsigned long long)lien_graph_stats(agent->graph)->processes);
		return 0;
	}
	err = agent->daemon->journal ? graph_renew(agent) : 0;
	lien_graph_on_process_end(agent->graph, lien_watch_process_end, agent);
	lien_journal_close(agent->daemon->journal);
	agent->daemon->journal = NULL;
	if (err)
		return err;
	if (!probes->pinned) {
		journal_end(
			agent, *probes->problem ? probes->problem : "its probes are not pinned");
		return 0;
	}
	if (*probes->problem)
		lien_log(4, "%s", probes->problem);
	err = lien_journal_create(
		&agent->daemon->journal, agent->daemon->journal_path, new_journal);
	if (err) {
		snprintf(why, sizeof(why), "cannot write %s: %s", agent->daemon->journal_path,
			strerror(-err));
		journal_end(agent, why);
	}
	return 0;
}

#define QUIET_NS 100000000ull /* without a record */

/* The graph must have exactly the records that have left the ring. */
static void bound(struct lien_agent *agent, uint64_t limit)
{
	int err = lien_journal_bound(agent->daemon->journal, agent->graph, limit);

	if (err)
		lien_log(4, "cannot replace %s by a snapshot: %s: it goes on growing",
			agent->daemon->journal_path, strerror(-err));
}

bool lien_resume_record(struct lien_agent *agent, const struct lien_event *event)
{
	bool again = agent->daemon->ring_resumed && agent->daemon->journal &&
		     lien_journal_has(agent->daemon->journal, event);

	/* After an agent was killed, at most one record is in both the ring and the journal. */
	agent->daemon->ring_resumed = false;
	if (again || !agent->daemon->journal)
		return !again;
	agent->daemon->t_recorded = event->t_entry;
	/* A snapshot takes a while, and jobs are held meanwhile. */
	bound(agent, agent->transaction ? 2 * agent->daemon->journal_limit
					: agent->daemon->journal_limit);
	return true;
}

void lien_resume_tick(struct lien_agent *agent)
{
	if (agent->daemon->journal && !agent->transaction && !lien_server_has_requests(agent) &&
		lien_now_ns() > agent->daemon->t_recorded + QUIET_NS)
		bound(agent, agent->daemon->journal_limit);
}

void lien_resume_note(struct lien_agent *agent, const struct lien_event *event)
{
	char why[300];
	int err;

	if (!agent->daemon->journal)
		return;
	err = lien_journal_append(agent->daemon->journal, event);
	if (!err)
		return;
	snprintf(why, sizeof(why), "cannot write %s: %s", agent->daemon->journal_path,
		strerror(-err));
	journal_end(agent, why);
}

static void stranded(void *context, uint32_t pid, uint64_t start)
{
	struct lien_agent *agent = context;
	struct lien_process *process = lien_graph_process(agent->graph, pid);
	struct lien_event event;

	if (!process || process->start != start)
		return;
	lien_log(4, "process %u was in a call while probes were replaced: it is incomplete now",
		pid);
	event = lien_agent_event_of(pid, start, LIEN_EVENT_LOST);
	event.size = LIEN_EVENT_SIZE(lost);
	event.lost.count = 1;
	lien_agent_event(agent, &event);
}

void lien_resume_finish(struct lien_agent *agent)
{
	int err;

	if (!lien_probes_facts(agent->probes)->resumed)
		return;
	lien_watch_follow(agent);
	err = lien_probes_finish_takeover(agent->probes, stranded, agent);
	if (err)
		lien_log(4, "cannot tell which calls were under way meanwhile: %s", strerror(-err));
	lien_watch_resume(agent);
}

/* A restore needs the journal, and the gates hold threads until then. */
static bool memory_is_away(const struct lien_agent *agent)
{
	struct lien_process *process;

	LIEN_FOREACH_PROCESS (process, agent->graph)
		if (process->held_items || process->parked)
			return true;
	return lien_probes_facts(agent->probes)->gates;
}

/* Are the probes kept? Only after an orderly stop; a start that failed leaves what it found. */
static bool leaves_probes(const struct lien_agent *agent, bool started)
{
	char who[WHO_SIZE];
	unsigned users;

	if (!agent->daemon->journal || !agent->probes)
		return false;
	if (!started)
		return lien_probes_facts(agent->probes)->resumed;
	users = list(agent->graph, false, who, sizeof(who));
	if (agent->daemon->on_stop == LIEN_ON_STOP_KEEP ||
		(agent->daemon->on_stop == LIEN_ON_STOP_USED && users)) {
		lien_log(6,
			"probes stay%s%s for the next agent, which goes on from here: `lien "
			"agent --clean` takes them off",
			users ? " in " : "", users ? who : "");
		return true;
	}
	if (memory_is_away(agent)) {
		lien_log(5, "memory is offloaded: probes stay in running jobs, and threads that "
			    "need it wait, until the next agent restores it");
		return true;
	}
	if (users)
		lien_log(5,
			"probes are taken off (--on-stop detach), and what is known of %s is "
			"lost: `lien attach` reads some of it again, and memory that NVLS may "
			"use cannot be moved any more",
			who);
	return false;
}

void lien_resume_stop(struct lien_agent *agent, bool started)
{
	bool left = leaves_probes(agent, started);

	if (agent->probes && !left)
		lien_probes_unpin(agent->probes);
	if (agent->daemon->journal && agent->probes && !left)
		unlink(agent->daemon->journal_path);
	lien_outcomes_close(agent->outcomes, !left);
	lien_journal_close(agent->daemon->journal);
	agent->daemon->journal = NULL;
	free(agent->daemon->journal_path);
}
