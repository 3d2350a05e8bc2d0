// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/commands.h"
#include "tools/cli/filter.h"
#include "tools/cli/gpus.h"
#include "tools/cli/idle.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/text/process_text.h"
#include "tools/cli/nodes_view.h"
#include "tools/cli/query.h"
#include "tools/cli/watch.h"

#define RANKS_SHOWN 2
#define PENDING_MS  500 /* NVML is slow where no process keeps a GPU awake */

static bool is_incomplete(const json_t *process)
{
	return json_is_false(json_object_get(process, "complete"));
}

static const char *const examples[] = {"lien ps",
	"every process that uses CUDA, its ranks and its memory",
	"lien ps --json | jq '.processes[].pid'", "their process ids", "lien ps --from now.lien",
	"what `lien snapshot now.lien` or `lien record` wrote",
	"lien ps --gpu 0 --sort gpu --watch=2", "who has most of GPU 0, every two seconds", NULL};

static const struct lien_usage usage = {
	.command = "lien ps",
	.arguments = "",
	.summary = "Lists the processes that use CUDA on this node, as the agent sees them: what "
		   "they "
		   "hold on the GPUs, how much of it NCCL allocated, what they map of others' "
		   "memory, "
		   "and what is offloaded to the host now. Those without GPU memory are left out; "
		   "--json has them, too.",
	.tables = true,
	.apart = (const char *const[]){"watch", "from", "nodes", "from", "nodes", "gpu", "nodes",
		"user", "slurm", "from", "slurm", "gpu", "slurm", "user", NULL},
	.examples = examples,
};

/* What the incompleteness means for an offload, by reason. */
static void print_incomplete(const json_t *processes)
{
	const json_t *process, *other;
	size_t i, j;

	json_array_foreach (processes, i, process) {
		const char *reason = lien_get_text(process, "reason");
		char *pids = NULL;
		bool said = false;

		if (!is_incomplete(process) || json_is_null(json_object_get(process, "movable")))
			continue;
		json_array_foreach (processes, j, other) {
			if (!is_incomplete(other) || strcmp(reason, lien_get_text(other, "reason")))
				continue;
			said |= j < i;
			pids = lien_append(pids, ", ", "%" PRIu64, lien_get_number(other, "pid"));
		}
		if (!said && *reason)
			lien_print_wrapped(
				stdout, 2, "  %s: cannot be offloaded: %s", pids, reason);
		else if (!said)
			lien_print_wrapped(stdout, 2,
				"  %s: can still be offloaded: only NCCL calls were missed", pids);
		free(pids);
	}
}

static char *state_text(const json_t *process)
{
	return lien_format("%s%s", lien_state_text(process), is_incomplete(process) ? "*" : "");
}

static char *ranks_text(const json_t *process)
{
	return lien_ranks_text(process, RANKS_SHOWN);
}

static char *nccl_text(const json_t *process)
{
	return lien_format("%s%s", lien_bytes(lien_get_number(process, "nccl_bytes")).text,
		lien_get_number(process, "nccl_inferred_bytes") ? "?" : "");
}

static void print_processes(const json_t *processes)
{
	static const struct lien_column columns[] = {
		{"NODE", LIEN_TEXT, .member = "node", .optional = true},
		{"PID", LIEN_NUMBER, .member = "pid"},
		{"USER", LIEN_TEXT, .member = "user", .drop = 6},
		{"COMMAND", LIEN_TEXT, .member = "command", .total = LIEN_TOTAL_LABEL},
		{"STATE", LIEN_TEXT, .text = state_text, .color = lien_state_color},
		{"CONTROL", LIEN_TEXT, .member = "control", .drop = 4},
		{"DEVICES", LIEN_TEXT, .text = lien_devices_text, .drop = 2},
		{"RANKS", LIEN_TEXT, .text = ranks_text, .drop = 3},
		{"GPU", LIEN_BYTES, .member = "bytes", .total = LIEN_TOTAL_SUM},
		{"NCCL", LIEN_BYTES, .member = "nccl_bytes", .text = nccl_text, .drop = 1,
			.total = LIEN_TOTAL_SUM},
		{"IMPORTED", LIEN_BYTES, .member = "imported_bytes", .drop = 5,
			.total = LIEN_TOTAL_SUM},
		{"OFFLOADED", LIEN_BYTES, .member = "offloaded_bytes", .total = LIEN_TOTAL_SUM},
	};
	struct lien_table *table = lien_table_new(LIEN_COLUMNS(columns));
	const json_t *process;
	bool incomplete = false, seems = false;
	size_t i;

	json_array_foreach (processes, i, process) {
		incomplete |= is_incomplete(process);
		seems |= lien_get_number(process, "nccl_inferred_bytes");
		lien_table_row(table, process, NULL);
	}
	if (json_array_size(processes) > 1)
		lien_table_total(table, processes);
	lien_table_end(table, stdout);
	if (seems) {
		printf("\n");
		lien_print_wrapped(stdout, 2,
			"? some of it is probably NCCL's: it was made before the agent was "
			"there, and another rank maps it.");
	}
	if (incomplete) {
		printf("\n");
		lien_print_wrapped(stdout, 2,
			"* incomplete: it may have called CUDA or NCCL before they were watched, "
			"or events were lost. What is shown may not be all.");
		print_incomplete(processes);
	}
}

static void print_dead(const json_t *dead)
{
	const json_t *row;
	size_t i;

	if (json_array_size(dead))
		printf("\n");
	json_array_foreach (dead, i, row)
		lien_print_wrapped(stdout, 2,
			"held by the dead: %s of process %" PRIu64
			" (%s), which has exited: see `lien check` for who keeps it",
			lien_bytes(lien_get_number(row, "bytes")).text, lien_get_number(row, "pid"),
			lien_get_text(row, "owner"));
}

static void print_used(const json_t *processes)
{
	const json_t *process;
	const char *call;
	size_t i;

	json_array_foreach (processes, i, process) {
		call = lien_get_text(process, "used_in");
		if (!*call)
			continue;
		printf("\n");
		lien_print_wrapped(stdout, 2,
			"process %" PRIu64
			" (%s) has its memory back: it called %s, which needs it",
			lien_get_number(process, "pid"), lien_get_text(process, "command"), call);
	}
}

/* It is memory of these processes, and only lien has asked for it. */
static void print_arenas(const json_t *processes)
{
	uint64_t held = 0, used = 0;
	const json_t *process;
	size_t i;

	json_array_foreach (processes, i, process) {
		held += lien_get_number(process, "arena_bytes");
		used += lien_get_number(process, "arena_used_bytes");
	}
	if (!held)
		return;
	printf("\n");
	lien_print_wrapped(stdout, 2,
		"lien keeps %s of host memory pinned in these processes for offloads, %s of it in "
		"use: see `lien arena`",
		lien_bytes(held).text, lien_bytes(used).text);
}

struct ps {
	struct lien_query query;
	struct lien_filter filter;
	const char *sort;
	bool all, json;
	int code; /* if there is no result */
};

static const struct lien_sort ways[] = {{"pid", "pid", true}, {"user", "uid", true},
	{"command", "command", true}, {"gpu", "bytes", false}, {"nccl", "nccl_bytes", false},
	{"imported", "imported_bytes", false}, {"offloaded", "offloaded_bytes", false}, {}};

/* Returns those of the processes that are shown, with their users' names. */
static json_t *shown_of(const struct ps *ps, const json_t *processes)
{
	json_t *shown = json_array(), *process;
	char *user;
	size_t i;

	json_array_foreach (processes, i, process) {
		if (!ps->all && !lien_uses_memory(process))
			continue;
		user = lien_user_name(lien_get_number(process, "uid"), ps->query.from.path);
		json_object_set_new(process, "user", json_string(user));
		json_array_append(shown, process);
		free(user);
	}
	return shown;
}

static void print_list(const struct ps *ps, const json_t *result)
{
	const json_t *processes = json_object_get(result, "processes");
	json_t *shown = shown_of(ps, processes);
	size_t left_out = json_array_size(processes) - json_array_size(shown);
	char *text;

	if (json_array_size(shown))
		print_processes(shown);
	else if (!left_out && (ps->filter.gpu || ps->filter.user))
		printf("none of the selected processes uses CUDA\n");
	else if (!left_out)
		lien_print_no_process(result, ps->query.from.path);
	if (left_out) {
		text = lien_left_out_text(left_out);
		printf("%s%s\n", json_array_size(shown) ? "\n" : "", text);
		free(text);
	}
	json_decref(shown);
}

static void print(const struct ps *ps, const json_t *result)
{
	print_list(ps, result);
	if (!json_object_get(result, "nodes"))
		lien_print_gpus(result);
	print_dead(json_object_get(result, "dead"));
	if (json_array_size(json_object_get(result, "processes"))) {
		print_used(json_object_get(result, "processes"));
		print_arenas(json_object_get(result, "processes"));
		lien_print_hidden(result);
	}
}

static int show(void *context)
{
	const struct ps *ps = context;
	json_t *result = lien_query(&ps->query, json_pack("{s:s, s:b}", "op", "ps", "fresh", 1));

	if (!result)
		return ps->code;
	if (!lien_filter_ps(&usage, &ps->filter, result)) {
		json_decref(result);
		return LIEN_EXIT_USAGE;
	}
	lien_sort(json_object_get(result, "processes"), ways, ps->sort);
	if (ps->json)
		lien_print_json(stdout, result);
	else
		print(ps, result);
	json_decref(result);
	return LIEN_EXIT_OK;
}

int lien_cmd_ps(int argc, char **argv)
{
	static struct lien_nodes_view nodes;
	struct ps ps = {.query = {.command = usage.command,
				.timeout_ms = LIEN_QUERY_MS,
				.pending_ms = PENDING_MS,
				.nodes = &nodes,
				.usage = &usage}};
	unsigned long seconds = 0;
	const struct lien_option options[] = {
		{"all", LIEN_OPTION_FLAG, &ps.all, NULL, "also processes without GPU memory", 0},
		LIEN_FILTER_OPTIONS(&ps.filter),
		{"sort", LIEN_OPTION_CHOICE, &ps.sort,
			"pid|user|command|gpu|nccl|imported|offloaded", "memory: the largest first",
			0},
		LIEN_WATCH_OPTION(&seconds), LIEN_CLIENT_OPTIONS(&ps.json, &ps.query.socket),
		LIEN_FROM_OPTION(&ps.query.from), LIEN_NODES_OPTIONS(&nodes.options), {}};
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (!lien_filter_read(&usage, &ps.filter))
		return LIEN_EXIT_USAGE;
	ps.query.code = &ps.code;
	code = lien_watch(seconds, show, &ps);
	lien_nodes_view_free(&nodes);
	return code;
}
