// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>

#include "tools/cli/commands.h"
#include "tools/cli/idle.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"

static const char *const examples[] = {"lien arena", "how much host memory which process holds",
	"lien arena --release", "give back what holds nothing that is offloaded now",
	"lien arena --release --pid 812", "of process 812", NULL};

static const struct lien_usage usage = {
	.command = "lien arena",
	.arguments = "",
	.summary = "Shows the host memory that processes keep pinned for offloads: the agent pins "
		   "it before the first one, and the next ones use it again. OFFLOAD is what an "
		   "offload of all memory would take now, MISSING what is not pinned yet. "
		   "--release gives back the part that holds nothing; the process's next offload "
		   "pins it again.",
	.tables = true,
	.needs = (const char *const[]){"pid", "release", NULL},
	.examples = examples,
};

static void print_rows(const json_t *processes, bool release)
{
	const struct lien_column columns[] = {
		{"PID", LIEN_NUMBER, .member = "pid"},
		{"COMMAND", LIEN_TEXT, .member = "command"},
		{"HELD", LIEN_BYTES, .member = "held_bytes"},
		{"IN USE", LIEN_BYTES, .member = "used_bytes"},
		{"OFFLOAD", LIEN_BYTES, .member = "offload_bytes", .drop = 1},
		{"MISSING", LIEN_BYTES, .member = "missing_bytes", .drop = 2},
		{"GIVEN BACK", LIEN_BYTES, .member = "released_bytes", .hidden = !release},
	};

	lien_table_print(LIEN_COLUMNS(columns), processes);
	printf("\n");
}

/* What is pinned in advance counts towards the job's cgroup, and nobody expects it there. */
static void print_limited(const json_t *processes)
{
	char *pids = NULL;
	const json_t *row;
	size_t i;

	json_array_foreach (processes, i, row)
		if (lien_get_true(row, "cgroup_limited"))
			pids = lien_append(pids, ", ", "%" PRIu64, lien_get_number(row, "pid"));
	if (pids)
		lien_print_wrapped(stdout, 2,
			"in a memory cgroup with a limit, where nothing is pinned in advance "
			"unless `lien agent --prepare` is given: %s",
			pids);
	free(pids);
}

static void print_arena(const json_t *result, bool release)
{
	const json_t *processes = json_object_get(result, "processes");
	const json_t *host = json_object_get(result, "host");
	uint64_t limit = lien_get_number(host, "limit_bytes");
	char *text = NULL;

	if (json_array_size(processes))
		print_rows(processes, release);
	if (lien_get_number(host, "prepare_percent"))
		print_limited(processes);
	if (release)
		text = lien_format("%s given back",
			lien_bytes(lien_get_number(result, "released_bytes")).text);
	text = lien_append(
		text, ", ", "%s held", lien_bytes(lien_get_number(host, "held_bytes")).text);
	text = lien_append(
		text, ", ", "%s in use", lien_bytes(lien_get_number(host, "used_bytes")).text);
	if (limit)
		text = lien_append(text, ", ", "%s allowed", lien_bytes(limit).text);
	else
		text = lien_append(text, ", ", "no limit");
	if (lien_get_number(host, "prepare_percent"))
		text = lien_append(text, "; ",
			"in advance at most %" PRIu64 " %% of what is available",
			lien_get_number(host, "prepare_percent"));
	else
		text = lien_append(text, "; ", "nothing is pinned in advance");
	lien_print_wrapped(stdout, 2, "%s", text);
	free(text);
	lien_print_hidden(result);
}

int lien_cmd_arena(int argc, char **argv)
{
	static struct lien_pids pids;
	bool json = false, release = false;
	int code;
	struct lien_query query = {.command = usage.command, .code = &code};
	const struct lien_option options[] = {
		{"release", LIEN_OPTION_FLAG, &release, NULL,
			"give back what holds nothing that is offloaded", 0},
		{"pid", LIEN_OPTION_PIDS, &pids, "PID",
			"only of this process; may be repeated; needs --release", 0},
		LIEN_CLIENT_OPTIONS(&json, &query.socket), {}};
	json_t *request, *result;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	request = json_pack("{s:s, s:b}", "op", "arena", "release", release);
	lien_query_add_pids(request, &pids);
	result = lien_query(&query, request);
	if (!result)
		return code;
	if (json)
		lien_print_json(stdout, result);
	else
		print_arena(result, release);
	json_decref(result);
	return LIEN_EXIT_OK;
}
