// SPDX-License-Identifier: BSD-2-Clause
/* The agent's own state, and what it counts: `status`, `metrics`, `comms`. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/version.h>

#include "agent/core/agent.h"
#include "agent/core/node.h"
#include "agent/core/proc.h"
#include "agent/core/jobs.h"
#include "agent/daemon/daemon.h"
#include "agent/daemon/requests.h"
#include "agent/graph/array.h"
#include "agent/join/join.h"
#include "agent/orders/orders.h"
#include "agent/processes/probing.h"
#include "agent/quiesce/gate.h"
#include "agent/server/server.h"
#include "agent/views/views.h"
#include "loader/discover/status.h"
#include "loader/discover/untrusted.h"
#include "loader/probes/follow.h"

/* --- other agents ----------------------------------------------------------------------------- */

/*
 * Other agents that watch the same processes: those in the agent's pid namespace and in those below
 * it. A process takes orders from one agent only, and each agent traces all calls. Agents in a pid
 * namespace above are not seen; they see this one. /proc is searched in a thread; the log names
 * each agent that comes and goes.
 */

#define FRESH_NS    3000000000ull  /* asked for more often, the last list will do */
#define TICK_NS	    60000000000ull /* looked for unasked */
#define COMMAND_MAX 4096

struct seen {
	uint32_t pid, parent;
};

struct looking {
	struct lien_job job;
	struct seen seen[LIEN_OTHERS_MAX];
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

	while (proc && looking->count < LIEN_OTHERS_MAX && (entry = readdir(proc))) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		seen.pid = strtoul(entry->d_name, NULL, 10);
		if (seen.pid != (uint32_t)getpid() && is_agent(seen.pid, &seen.parent))
			looking->seen[looking->count++] = seen;
	}
	if (proc)
		closedir(proc);
}

static void looked(struct lien_agent *agent, struct lien_job *job)
{
	struct looking *looking = (struct looking *)job;
	struct lien_others *others = &agent->daemon->others;
	uint32_t pids[LIEN_OTHERS_MAX];
	unsigned count = 0, i;

	for (i = 0; i < looking->count; i++)
		if (!is_child(looking, &looking->seen[i]))
			pids[count++] = looking->seen[i].pid;
	for (i = 0; i < count; i++)
		if (!lien_pids_have(others->pids, others->count, pids[i]))
			lien_log(4,
				"another agent, pid %u, watches the same processes: each of them "
				"takes "
				"orders from one agent only, and its calls are traced twice: stop "
				"one",
				pids[i]);
	for (i = 0; i < others->count; i++)
		if (!lien_pids_have(pids, count, others->pids[i]))
			lien_log(6, "the other agent, pid %u, has ended", others->pids[i]);
	memcpy(others->pids, pids, sizeof(*pids) * count);
	others->count = count;
	others->t_looked = lien_now_ns();
}

static void refresh(struct lien_agent *agent, uint64_t age_ns)
{
	const struct lien_others *others = &agent->daemon->others;
	struct looking *looking;

	if (agent->is_copy || lien_jobs_pending(agent, LIEN_JOB_OTHERS) ||
		(others->t_looked && lien_now_ns() - others->t_looked < age_ns))
		return;
	looking = calloc(1, sizeof(*looking));
	if (!looking)
		return;
	looking->job = (struct lien_job){.kind = LIEN_JOB_OTHERS, .work = look, .done = looked};
	lien_job_start(agent, &looking->job);
}

void lien_others_tick(struct lien_agent *agent)
{
	refresh(agent, TICK_NS);
}

/* Their pids, as of a few seconds ago; has them looked for again. */
static json_t *status_others(struct lien_agent *agent)
{
	json_t *pids = json_array();
	unsigned i;

	refresh(agent, FRESH_NS);
	for (i = 0; i < agent->daemon->others.count; i++)
		json_array_append_new(pids, json_integer(agent->daemon->others.pids[i]));
	return pids;
}

/* --- status ----------------------------------------------------------------------------------- */

static uint64_t rss_bytes(void)
{
	unsigned long long pages = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (file) {
		if (fscanf(file, "%*u %llu", &pages) != 1)
			pages = 0;
		fclose(file);
	}
	return pages * sysconf(_SC_PAGESIZE);
}

/*
 * Lists the inodes of the files that the viewer's processes map and returns their number. With NULL
 * only counts.
 */
static size_t list_inodes(
	struct lien_agent *agent, const struct lien_viewer *viewer, uint64_t *inodes)
{
	struct lien_library_map *map;
	struct lien_process *process;
	size_t count = 0;

	LIEN_FOREACH_PROCESS (process, agent->graph) {
		if (!lien_viewer_sees(viewer, process))
			continue;
		RB_FOREACH (map, lien_library_tree, &process->libraries) {
			if (inodes)
				inodes[count] = map->inode;
			count++;
		}
	}
	return count;
}

static json_t *status_libraries(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	json_t *list = json_array(), *missing;
	const struct lien_probed_file *file;
	uint64_t *inodes, inode;
	unsigned i, j;
	size_t count;

	inodes = calloc(list_inodes(agent, viewer, NULL) + 1, sizeof(*inodes));
	count = inodes ? list_inodes(agent, viewer, inodes) : 0;
	if (inodes)
		qsort(inodes, count, sizeof(*inodes), lien_u64_cmp);
	for (i = 0; inodes && (file = lien_probes_each(agent->probes, i)); i++) {
		inode = file->inode;
		/* Other users' paths are not shown. */
		if (!lien_viewer_sees(viewer, NULL) &&
			!bsearch(&inode, inodes, count, sizeof(*inodes), lien_u64_cmp))
			continue;
		missing = json_array();
		for (j = 0; file->missing[j]; j++)
			json_array_append_new(missing, json_string(file->missing[j]));
		json_array_append_new(
			list, json_pack("{s:s, s:s, s:s, s:i, s:o}", "path", file->path, "library",
				      lien_library_name(file->library), "build_id", file->build_id,
				      "calls", file->calls, "missing", missing));
	}
	free(inodes);
	return list;
}

static json_t *status_skipped(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	const struct lien_skipped *skipped = &lien_probes_facts(agent->probes)->skipped;
	json_t *list = json_array();
	unsigned i;

	for (i = 0; lien_viewer_sees(viewer, NULL) && i < skipped->count && i < LIEN_SKIPPED_MAX;
		i++)
		json_array_append_new(list, json_pack("{s:s, s:s}", "path", skipped->files[i].path,
						    "reason", skipped->files[i].reason));
	return list;
}

static json_t *status_transaction(struct lien_agent *agent)
{
	if (!agent->transaction || agent->transaction_ended)
		return json_null();
	return json_pack("{s:s, s:s, s:f, s:i}", "kind",
		lien_transaction_kind_name(lien_transaction_kind(agent->transaction)), "phase",
		lien_phase_name(lien_transaction_phase(agent->transaction)), "ms",
		(lien_now_ns() - agent->t_transaction) / 1e6, "clients",
		(int)lien_server_waiting(agent));
}

static json_t *status_journal(struct lien_agent *agent)
{
	const struct lien_probes_facts *probes = lien_probes_facts(agent->probes);
	const char *problem = agent->daemon->journal_problem[0] ? agent->daemon->journal_problem
								: probes->problem;

	return json_pack("{s:s?, s:I, s:s?, s:I, s:s?}", "path",
		agent->daemon->journal ? agent->daemon->journal_path : NULL, "bytes",
		(json_int_t)(agent->daemon->journal ? lien_journal_bytes(agent->daemon->journal)
						    : 0),
		"pinned", probes->pinned, "taken_over", (json_int_t)agent->taken_over, "problem",
		*problem ? problem : NULL);
}

/* Returns null if the contexts of all processes are followed. */
static json_t *status_followed(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	struct lien_process *process;
	json_t *pids;

	if (!lien_probes_facts(agent->probes)->can_follow)
		return json_null();
	pids = json_array();
	LIEN_FOREACH_PROCESS (process, agent->graph)
		if (lien_viewer_sees(viewer, process) &&
			lien_probes_follows(agent->probes, process->pid))
			json_array_append_new(pids, json_integer(process->pid));
	return pids;
}

/* How long the agent did not attend to others, and why. */
static json_t *status_loop(const struct lien_agent *agent)
{
	const struct lien_turns *turns = &agent->turns;

	return json_pack("{s:I, s:f, s:f, s:s, s:f, s:I, s:i, s:i, s:I, s:i}", "turns",
		(json_int_t)turns->count, "longest_turn_ms", turns->longest_ns / 1e6,
		"longest_turn_cpu_ms", turns->longest_cpu_ns / 1e6, "longest_turn_in",
		turns->longest_in, "longest_turn_ready_ms", turns->longest_ready_ns / 1e6,
		"requests", (json_int_t)turns->requests, "most_requests", turns->most_requests,
		"most_records", turns->most_records, "answers", (json_int_t)turns->answers,
		"most_answers", turns->most_answers);
}

static json_t *view_host(struct lien_agent *agent)
{
	struct lien_process *process;
	uint64_t used = 0;

	LIEN_FOREACH_PROCESS (process, agent->graph)
		used += process->arena_used;
	return json_pack("{s:I, s:I, s:o, s:b, s:i}", "held_bytes",
		(json_int_t)lien_prepare_held(agent), "used_bytes", (json_int_t)used, "limit_bytes",
		agent->host_limit ? json_integer(agent->host_limit) : json_null(), "prepare",
		agent->prepare_percent > 0, "prepare_percent", agent->prepare_percent);
}

json_t *lien_agent_arena(
	const struct lien_client *client, const struct lien_transaction_result *result)
{
	struct lien_agent *agent = client->agent;
	json_t *list = json_array(), *row;
	struct lien_process *process;
	uint64_t released, wanted;
	unsigned i;
	int device;

	LIEN_FOREACH_PROCESS (process, agent->graph) {
		for (i = 0, released = 0; result && i < result->processes_count; i++)
			if (result->processes[i].pid == process->pid)
				released = result->processes[i].bytes;
		if (!lien_viewer_sees(&client->viewer, process))
			continue;
		wanted = process->presence == LIEN_CONTROL_READY
				 ? lien_prepare_wanted(process, &device)
				 : 0;
		if (!process->arena_bytes && !wanted && !released)
			continue;
		row = json_pack("{s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:b}", "pid",
			(json_int_t)process->pid, "command", process->command, "held_bytes",
			(json_int_t)process->arena_bytes, "used_bytes",
			(json_int_t)process->arena_used, "released_bytes", (json_int_t)released,
			"offload_bytes", (json_int_t)wanted, "missing_bytes",
			(json_int_t)(wanted ? lien_host_missing(process, wanted) : 0),
			"cgroup_limited", lien_prepare_excluded(agent, process));
		json_array_append_new(list, row);
	}
	return json_pack("{s:o, s:o, s:I}", "host", view_host(agent), "processes", list,
		"released_bytes", (json_int_t)(result ? result->bytes : 0));
}

/* Shows the shortfalls of the last offload that had any; null: none had. */
static json_t *status_short(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	if (!agent->shortfalls.t_ns)
		return json_null();
	return json_pack("{s:f, s:o}", "age_ms", (lien_now_ns() - agent->shortfalls.t_ns) / 1e6,
		"rows", lien_view_shortfalls(agent->graph, viewer, &agent->shortfalls));
}

json_t *lien_agent_comms(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	const bool pending = lien_ras_refresh(agent, viewer);
	struct lien_counted *counted;
	json_t *view = NULL;
	size_t count;
	int err;

	err = lien_agent_counted(agent, &counted, &count);
	if (err)
		lien_log(4, "cannot read what was counted of collectives: %s", strerror(-err));
	if (err != -ENOMEM)
		view = lien_view_comms(
			agent->graph, viewer, counted, count, pending, lien_now_ns());
	free(counted);
	return view;
}

static unsigned comms_counted(struct lien_agent *agent)
{
	struct lien_counted *counted;
	size_t count;

	lien_agent_counted(agent, &counted, &count);
	free(counted);
	return count;
}

json_t *lien_agent_status(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	const struct lien_graph_stats *stats = lien_graph_stats(agent->graph);
	json_t *incomplete = json_array();
	struct lien_process *process;
	unsigned processes = 0;

	LIEN_FOREACH_PROCESS (process, agent->graph) {
		if (!lien_viewer_sees(viewer, process))
			continue;
		processes += process->cuda;
		if (process->cuda && !lien_process_whole(process))
			json_array_append_new(incomplete, json_integer(process->pid));
	}
	return json_pack("{s:s, s:i, s:f, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:I, s:o, s:I, s:I, "
			 "s:i, s:s, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
		"version", LIEN_VERSION, "pid", getpid(), "uptime_ms",
		(lien_now_ns() - agent->daemon->t_start) / 1e6, "rss_bytes",
		(json_int_t)rss_bytes(), "events", (json_int_t)stats->events, "events_lost",
		(json_int_t)stats->lost, "unreadable",
		(json_int_t)lien_probes_counter(agent->probes, LIEN_COUNTER_UNREADABLE), "woken",
		(json_int_t)lien_probes_counter(agent->probes, LIEN_COUNTER_WOKEN), "processes",
		processes, "allocations", (json_int_t)stats->allocations, "mappings",
		(json_int_t)stats->mappings, "incomplete", incomplete, "unmatched_imports",
		(json_int_t)stats->unmatched_imports, "uncounted",
		(json_int_t)lien_probes_counter(agent->probes, LIEN_COUNTER_UNCOUNTED),
		"counted_communicators", comms_counted(agent), "attach",
		lien_probes_facts(agent->probes)->method, "contexts_followed",
		status_followed(agent, viewer), "libraries", status_libraries(agent, viewer),
		"skipped", status_skipped(agent, viewer), "skipped_files",
		(int)lien_probes_facts(agent->probes)->skipped.count, "unprobed",
		lien_probing_view(agent, viewer), "transaction", status_transaction(agent),
		"journal", status_journal(agent), "host", view_host(agent), "held",
		lien_gate_view(agent, viewer), "loop", status_loop(agent), "other_agents",
		status_others(agent), "short", status_short(agent, viewer));
}

json_t *lien_agent_metrics(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	const struct lien_node *node;

	lien_node_refresh(agent); /* for the next time */
	node = lien_node_now(agent);
	return json_pack("{s:o, s:o, s:o, s:o, s:o}", "memory",
		lien_view_mem_devices(agent->graph, viewer, node), "node_memory",
		lien_view_mem_node(agent->graph, node), "gpus",
		lien_view_gpus(agent->graph, viewer, node, false), "totals",
		lien_view_totals(&agent->totals), "status", lien_agent_status(agent, viewer));
}
