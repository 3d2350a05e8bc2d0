// SPDX-License-Identifier: BSD-2-Clause
/* Removes what an agent left, and says whom that would cost something. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/core/agent.h"
#include "agent/core/log.h"
#include "agent/core/proc.h"
#include "agent/daemon/clean.h"
#include "agent/daemon/run.h"
#include "agent/journal/recording.h"
#include "agent/plan/plan.h"
#include "loader/probes/probes.h"

#define PIDS_SHOWN 8

static bool uses_cuda(const struct lien_process *process)
{
	return process->cuda && lien_proc_runs(process->pid, process->start);
}

static bool holds_parked(const struct lien_process *process)
{
	return process->parked && lien_proc_runs(process->pid, process->start);
}

static unsigned list(struct lien_graph *graph, bool (*is_one)(const struct lien_process *),
	char *text, size_t size)
{
	struct lien_process *process;
	unsigned count = 0;
	char pids[100] = "";
	size_t used = 0;

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		if (is_one(process) && count++ < PIDS_SHOWN)
			used += snprintf(pids + used, sizeof(pids) - used, "%s%u", used ? ", " : "",
				process->pid);
	used = snprintf(text, size, "%s %s", count == 1 ? "process" : "processes", pids);
	if (count > PIDS_SHOWN)
		snprintf(text + used, size - used, " and %u more", count - PIDS_SHOWN);
	return count;
}

unsigned lien_clean_users(struct lien_graph *graph, char *text, size_t size)
{
	return list(graph, uses_cuda, text, size);
}

/* As far as the journal can be read. What it lacks, the next agent would lack, too. */
static void read_journal(struct lien_graph *graph, const char *socket)
{
	struct lien_recording *journal = NULL;
	static struct lien_event event;
	char *path;

	if (asprintf(&path, "%s.journal", socket) < 0)
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
	char who[LIEN_CLEAN_TEXT];
	int err = lien_graph_new(&graph), priority = force ? 4 : 3;

	if (err)
		return err;
	read_journal(graph, socket);
	if (list(graph, holds_parked, who, sizeof(who)))
		lien_log(priority,
			"memory of %s is offloaded, and threads that need it would no longer wait: "
			"start the agent, and `lien restore` first%s",
			who, force ? "" : "; --force removes everything all the same");
	else if (lien_clean_users(graph, who, sizeof(who)))
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
		if (asprintf(&name, "%s%s", socket, more[i]) < 0)
			break;
		unlink(name);
		free(name);
	}
	return err;
}
