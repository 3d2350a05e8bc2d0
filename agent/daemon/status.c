// SPDX-License-Identifier: BSD-2-Clause
/* The agent's own state, and what it counts: `status`, `metrics`, `comms`. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/version.h>
#include "agent/daemon/daemon.h"
#include "agent/core/node.h"
#include "agent/graph/array.h"
#include "agent/join/join.h"
#include "agent/quiesce/gate.h"
#include "agent/orders/prepare.h"
#include "agent/daemon/others.h"
#include "agent/processes/probing.h"
#include "agent/server/server.h"
#include "agent/daemon/requests.h"
#include "agent/views/views.h"
#include "loader/probes/follow.h"

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

	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
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
	const struct lien_skipped *skipped = lien_probes_skipped(agent->probes);
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
	const char *problem = agent->daemon->journal_problem[0]
				      ? agent->daemon->journal_problem
				      : lien_probes_problem(agent->probes);

	return json_pack("{s:s?, s:I, s:s?, s:I, s:s?}", "path",
		agent->daemon->journal ? agent->daemon->journal_path : NULL, "bytes",
		(json_int_t)(agent->daemon->journal ? lien_journal_bytes(agent->daemon->journal)
						    : 0),
		"pinned", lien_probes_pinned(agent->probes), "taken_over",
		(json_int_t)agent->taken_over, "problem", problem);
}

/* Returns null if the contexts of all processes are followed. */
static json_t *status_followed(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	struct lien_process *process;
	json_t *pids;

	if (!lien_probes_can_follow(agent->probes))
		return json_null();
	pids = json_array();
	for (process = lien_graph_first(agent->graph); process; process = lien_graph_next(process))
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

json_t *lien_agent_host(struct lien_agent *agent)
{
	struct lien_process *process;
	uint64_t used = 0;

	for (process = lien_graph_first(agent->graph); process; process = lien_graph_next(process))
		used += process->arena_used;
	return json_pack("{s:I, s:I, s:o, s:b, s:i}", "held_bytes",
		(json_int_t)lien_prepare_held(agent), "used_bytes", (json_int_t)used, "limit_bytes",
		agent->host_limit ? json_integer(agent->host_limit) : json_null(), "prepare",
		agent->prepare_percent > 0, "prepare_percent", agent->prepare_percent);
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
	struct lien_view_ras ras = lien_ras_refresh(agent, viewer);
	struct lien_counted *counted;
	json_t *view = NULL;
	size_t count;
	int err;

	err = lien_agent_counted(agent, &counted, &count);
	if (err)
		lien_log(4, "cannot read what was counted of collectives: %s", strerror(-err));
	if (err != -ENOMEM)
		view = lien_view_comms(agent->graph, viewer, counted, count, &ras, lien_now_ns());
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

	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
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
		lien_probes_method(agent->probes), "contexts_followed",
		status_followed(agent, viewer), "libraries", status_libraries(agent, viewer),
		"skipped", status_skipped(agent, viewer), "skipped_files",
		(int)lien_probes_skipped(agent->probes)->count, "unprobed",
		lien_probing_view(agent, viewer), "transaction", status_transaction(agent),
		"journal", status_journal(agent), "host", lien_agent_host(agent), "held",
		lien_gate_view(agent, viewer), "loop", status_loop(agent), "other_agents",
		lien_others_view(agent), "short", status_short(agent, viewer));
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
