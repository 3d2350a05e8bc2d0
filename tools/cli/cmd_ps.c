// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>

#include "tools/cli/commands.h"
#include "tools/cli/gpus.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/text/process_text.h"
#include "tools/cli/query.h"

#define RANKS_SHOWN 2

static const char *const examples[] = {"lien ps",
	"every process that uses CUDA, its ranks and its memory",
	"lien ps --json | jq '.processes[].pid'", "their process ids", "lien ps --from now.lien",
	"what `lien snapshot now.lien` or `lien record` wrote", NULL};

static const struct lien_usage usage = {
	.command = "lien ps",
	.arguments = "",
	.summary = "Lists the processes that use CUDA on this node, as the agent sees them: what "
		   "they\n"
		   "hold on the GPUs, how much of it NCCL allocated, what they map of others' "
		   "memory,\n"
		   "and what is offloaded to the host now.",
	.examples = examples,
};

static void print_processes(const json_t *result)
{
	const json_t *processes = json_object_get(result, "processes");
	static const struct lien_column columns[] = {{"PID", LIEN_RIGHT}, {"COMMAND", LIEN_LEFT},
		{"STATE", LIEN_LEFT}, {"CONTROL", LIEN_LEFT}, {"DEVICES", LIEN_LEFT},
		{"RANKS", LIEN_LEFT}, {"GPU", LIEN_RIGHT}, {"NCCL", LIEN_RIGHT},
		{"IMPORTED", LIEN_RIGHT}, {"OFFLOADED", LIEN_RIGHT}};
	struct lien_table *table = lien_table_new(columns, 10);
	const json_t *process;
	bool incomplete = false;
	size_t i;

	json_array_foreach (processes, i, process) {
		bool partial = json_is_false(json_object_get(process, "complete"));
		char *devices = lien_devices_text(process),
		     *ranks = lien_ranks_text(process, RANKS_SHOWN);

		incomplete |= partial;
		lien_table_add(table, "%" PRIu64, lien_get_number(process, "pid"));
		lien_table_add(table, "%s", lien_get_text(process, "command"));
		lien_table_add(table, "%s%s", lien_state_text(process), partial ? "*" : "");
		lien_table_add(table, "%s", lien_get_text(process, "control"));
		lien_table_add(table, "%s", devices);
		lien_table_add(table, "%s", ranks);
		lien_table_add(table, "%s", lien_size(lien_get_number(process, "bytes")).text);
		lien_table_add(table, "%s", lien_size(lien_get_number(process, "nccl_bytes")).text);
		lien_table_add(
			table, "%s", lien_size(lien_get_number(process, "imported_bytes")).text);
		lien_table_add(
			table, "%s", lien_size(lien_get_number(process, "offloaded_bytes")).text);
		free(devices);
		free(ranks);
	}
	lien_table_end(table, stdout);
	lien_print_gpus(result);
	if (incomplete) {
		printf("\n");
		lien_print_wrapped(stdout, 2,
			"* incomplete: it may have called CUDA or NCCL before they were watched, "
			"or events "
			"were lost. What is shown may not be all; unless only calls of NCCL were "
			"missed, "
			"it is not offloaded.");
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
			lien_size(lien_get_number(row, "bytes")).text, lien_get_number(row, "pid"),
			lien_get_text(row, "owner"));
}

int lien_cmd_ps(int argc, char **argv)
{
	const char *socket = NULL, *from = NULL;
	bool json = false;
	const struct lien_option options[] = {
		LIEN_CLIENT_OPTIONS(&json, &socket), LIEN_FROM_OPTION(&from), {}};
	struct lien_query query = {.command = usage.command, .timeout_ms = LIEN_QUERY_MS};
	json_t *result;
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	query.socket = socket;
	query.from = from;
	result = lien_query(&query, json_pack("{s:s}", "op", "ps"));
	if (!result)
		return LIEN_EXIT_FAILURE;
	if (json)
		lien_print_json(stdout, result);
	else if (!json_array_size(json_object_get(result, "processes")))
		printf("no process uses CUDA %s, as far as %s\n", from ? "there" : "on this node",
			from ? "the recording tells" : "the agent has seen");
	else
		print_processes(result);
	if (!json)
		print_dead(json_object_get(result, "dead"));
	json_decref(result);
	return LIEN_EXIT_OK;
}
