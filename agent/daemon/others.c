// SPDX-License-Identifier: BSD-2-Clause
#include "agent/daemon/others.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/daemon/daemon.h"
#include "agent/core/agent.h"
#include "agent/core/proc.h"
#include "agent/core/worker.h"
#include "loader/discover/status.h"
#include "loader/discover/untrusted.h"

#define FRESH_NS    3000000000ull  /* asked for more often, the last list will do */
#define TICK_NS	    60000000000ull /* looked for unasked */
#define OTHERS_MAX  16
#define COMMAND_MAX 4096

struct seen {
	uint32_t pid, parent;
};

struct lien_others {
	struct lien_worker *worker;
	bool looking;
	uint64_t t_looked; /* 0: never */
	uint32_t pids[OTHERS_MAX];
	unsigned count;
};

struct looking {
	struct lien_job job;
	struct seen seen[OTHERS_MAX];
	unsigned count;
};

/* Is this the command line of an agent, and of none that only cleans up or explains itself? */
static bool is_agents(const char *line, size_t size)
{
	const char *word = line, *end = line + size;
	unsigned i;

	for (i = 0; word < end; word += strnlen(word, end - word) + 1, i++) {
		if (i == 1 && strcmp(word, "agent") != 0)
			return false;
		if (i > 1 && (!strcmp(word, "--clean") || !strcmp(word, "--help")))
			return false;
	}
	return i > 1;
}

/*
 * The name is read first, and the command line only of a process of our own user: others can keep
 * its readers waiting, and could claim to be agents.
 */
static bool is_agent(uint32_t pid, uint32_t *parent)
{
	char text[LIEN_STATUS_SIZE], path[40], line[COMMAND_MAX];
	unsigned real, effective;
	const char *uids;
	ssize_t size;

	lien_proc_command(pid, line, sizeof(line));
	if (strcmp(line, "lien") != 0 || lien_status_read(pid, 0, text))
		return false;
	uids = lien_status_field(text, "Uid");
	if (!uids || sscanf(uids, "%u %u", &real, &effective) != 2 || real != getuid() ||
		effective != geteuid())
		return false;
	*parent = lien_status_last(text, "PPid", 10);
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	size = lien_untrusted_read(path, line, sizeof(line));
	return size > 0 && is_agents(line, size);
}

/* An agent's copies and helpers have its name and command line; ours are children of ours. */
static bool is_child(const struct looking *looking, const struct seen *seen)
{
	unsigned i;

	if (seen->parent == (uint32_t)getpid())
		return true;
	for (i = 0; i < looking->count; i++)
		if (looking->seen[i].pid == seen->parent)
			return true;
	return false;
}

static void look(struct lien_job *job)
{
	struct looking *looking = (struct looking *)job;
	struct dirent *entry;
	struct seen seen;
	DIR *proc = opendir("/proc");

	while (proc && looking->count < OTHERS_MAX && (entry = readdir(proc))) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		seen.pid = strtoul(entry->d_name, NULL, 10);
		if (seen.pid != (uint32_t)getpid() && is_agent(seen.pid, &seen.parent))
			looking->seen[looking->count++] = seen;
	}
	if (proc)
		closedir(proc);
}

static void looking_free(struct lien_job *job)
{
	free((struct looking *)job);
}

static bool is_among(uint32_t pid, const uint32_t *pids, unsigned count)
{
	while (count--)
		if (pids[count] == pid)
			return true;
	return false;
}

static void looked(struct lien_agent *agent, struct lien_job *job)
{
	struct looking *looking = (struct looking *)job;
	struct lien_others *others = agent->daemon->others;
	uint32_t pids[OTHERS_MAX];
	unsigned count = 0, i;

	for (i = 0; i < looking->count; i++)
		if (!is_child(looking, &looking->seen[i]))
			pids[count++] = looking->seen[i].pid;
	for (i = 0; i < count; i++)
		if (!is_among(pids[i], others->pids, others->count))
			lien_log(4,
				"another agent, pid %u, watches the same processes: each of them "
				"takes "
				"orders from one agent only, and its calls are traced twice: stop "
				"one",
				pids[i]);
	for (i = 0; i < others->count; i++)
		if (!is_among(others->pids[i], pids, count))
			lien_log(6, "the other agent, pid %u, has ended", others->pids[i]);
	memcpy(others->pids, pids, sizeof(*pids) * count);
	others->count = count;
	others->t_looked = lien_now_ns();
	others->looking = false;
	looking_free(job);
}

static void refresh(struct lien_agent *agent, uint64_t age_ns)
{
	struct lien_others *others = agent->daemon->others;
	struct looking *looking;

	if (agent->is_copy || others->looking ||
		(others->t_looked && lien_now_ns() - others->t_looked < age_ns))
		return;
	looking = calloc(1, sizeof(*looking));
	if (!looking)
		return;
	looking->job = (struct lien_job){.work = look, .done = looked, .drop = looking_free};
	others->looking = !lien_worker_submit(others->worker, &looking->job);
	if (!others->looking)
		free(looking);
}

void lien_others_tick(struct lien_agent *agent)
{
	refresh(agent, TICK_NS);
}

json_t *lien_others_view(struct lien_agent *agent)
{
	json_t *pids = json_array();
	unsigned i;

	refresh(agent, FRESH_NS);
	for (i = 0; i < agent->daemon->others->count; i++)
		json_array_append_new(pids, json_integer(agent->daemon->others->pids[i]));
	return pids;
}

int lien_others_start(struct lien_agent *agent)
{
	agent->daemon->others = calloc(1, sizeof(*agent->daemon->others));
	return agent->daemon->others ? lien_worker_new(agent, &agent->daemon->others->worker)
				     : -ENOMEM;
}

void lien_others_stop(struct lien_agent *agent)
{
	if (!agent->daemon->others)
		return;
	lien_worker_free(agent->daemon->others->worker);
	free(agent->daemon->others);
	agent->daemon->others = NULL;
}
