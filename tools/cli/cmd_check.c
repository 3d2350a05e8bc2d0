// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/commands.h"
#include "tools/cli/idle.h"
#include "tools/cli/nodes_view.h"
#include "tools/cli/options.h"
#include "tools/cli/query.h"
#include "tools/text/output.h"

#define TIMEOUT_MS   60000
#define IDLE_MINUTES 10

static const char *const examples[] = {"lien check",
	"leaks and anomalies: memory held by the dead, buffers registered twice, ...",
	"lien check --idle 60", "communicators are idle after an hour, not after ten minutes",
	"lien check --deep", "compare what lien knows with what the driver says",
	"lien check --deep --pid 812 --repair", "and take the driver's word for process 812", NULL};

static const struct lien_usage usage = {
	.command = "lien check",
	.arguments = "",
	.summary =
		"Looks for leaks and anomalies in the memory of this node, with evidence and "
		"remedy. "
		"With --deep: asks the CUDA driver, in every process with the control library, "
		"what is mapped and compares it with the graph. Exit code 1: something was found "
		"that is more than a note, or there are differences.",
	.tables = true,
	.apart = (const char *const[]){"deep", "from", "deep", "idle", "nodes", "deep", "nodes",
		"from", "slurm", "deep", "slurm", "from", NULL},
	.needs = (const char *const[]){"pid", "deep", "repair", "deep", "timeout", "deep", NULL},
	.examples = examples,
};

#define EXIT_DIFFERENT 1
#define EXIT_ERROR     2

/* Describes the driver's side of a difference. */
static char *driver_says(const json_t *difference)
{
	const json_t *found = json_object_get(difference, "driver"), *place;
	char *text;
	size_t i;

	if (!json_is_object(found))
		return lien_format("nothing");
	text = lien_format("%s, handle %s", lien_bytes(lien_get_number(found, "bytes")).text,
		lien_get_text(found, "handle"));
	if (json_is_integer(json_object_get(found, "device")))
		text = lien_append(
			text, ", ", "of device %" PRIu64, lien_get_number(found, "device"));
	json_array_foreach (json_object_get(found, "access"), i, place)
		text = lien_append(text, ", ", "%s by %" PRIu64, lien_get_text(place, "access"),
			lien_get_number(place, "device"));
	return text;
}

static char *graph_has(const json_t *difference)
{
	static const struct {
		const char *kind, *text;
	} texts[] = {{"missing", "nothing there"}, {"gone", "memory there"},
		{"size", "another size"}, {"allocation", "another allocation"},
		{"properties", "other properties"}, {"access", "other access"}};
	const char *kind = lien_get_text(difference, "kind");
	unsigned i;

	for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (!strcmp(texts[i].kind, kind))
			return lien_format("%s", texts[i].text);
	return lien_format("%s", kind);
}

static void print_differences(const json_t *processes)
{
	static const struct lien_column columns[] = {
		{"PID", LIEN_NUMBER, .member = "pid"},
		{"ADDRESS", LIEN_TEXT, .member = "address"},
		{"SIZE", LIEN_BYTES, .member = "bytes", .drop = 1},
		{"LIEN KNOWS", LIEN_TEXT, .text = graph_has},
		{"THE DRIVER HAS", LIEN_TEXT, .text = driver_says},
	};
	struct lien_table *table = lien_table_new(LIEN_COLUMNS(columns));
	const json_t *process, *difference;
	size_t i, j;

	json_array_foreach (processes, i, process)
		json_array_foreach (json_object_get(process, "differences"), j, difference)
			lien_table_row(table, difference, process);
	lien_table_end(table, stdout);
	printf("\n");
}

static void print_process(const json_t *process)
{
	size_t differences = json_array_size(json_object_get(process, "differences"));
	uint64_t unsettled = lien_get_number(process, "unsettled");
	const char *error = lien_get_text(process, "error");
	uint64_t pid = lien_get_number(process, "pid");

	if (error[0]) {
		lien_print_wrapped(stdout, 2, "process %" PRIu64 " (%s) cannot be compared: %s",
			pid, lien_get_text(process, "command"), error);
		return;
	}
	lien_print_wrapped(stdout, 2,
		"process %" PRIu64 " (%s): %" PRIu64 " %s, %" PRIu64 " %s%s, read in %s", pid,
		lien_get_text(process, "command"),
		LIEN_PLURAL(lien_get_number(process, "mappings"), "mapping", "mappings"),
		LIEN_PLURAL(differences, "difference", "differences"),
		lien_get_true(process, "repaired") ? ", mended" : "",
		lien_time(lien_get_real(process, "ms")).text);
	if (unsettled)
		lien_print_wrapped(stdout, 2, "  %" PRIu64 " %s changing all the time: not judged",
			LIEN_PLURAL(unsettled, "address was", "addresses were"));
	if (!lien_get_true(process, "complete"))
		lien_print_wrapped(stdout, 2,
			"  it stays incomplete (see `lien ps`): the driver cannot tell what is "
			"missing");
}

static int exit_code(const json_t *result, bool named)
{
	if (lien_get_number(result, "differences"))
		return EXIT_DIFFERENT;
	if (!lien_get_number(result, "not_compared"))
		return LIEN_EXIT_OK;
	return named || !lien_get_number(result, "compared") ? EXIT_ERROR : LIEN_EXIT_OK;
}

static json_t *request_of(const struct lien_pids *pids, bool repair, unsigned long timeout)
{
	json_t *request = json_pack(
		"{s:s, s:b, s:i}", "op", "compare", "repair", repair, "timeout_ms", (int)timeout);

	lien_query_add_pids(request, pids);
	return request;
}

static void print(const json_t *result)
{
	const json_t *processes = json_object_get(result, "processes"), *process;
	size_t i;

	if (lien_get_number(result, "differences"))
		print_differences(processes);
	json_array_foreach (processes, i, process)
		print_process(process);
	if (!json_array_size(processes))
		lien_print_no_process(result, NULL);
	else
		lien_print_hidden(result);
}

static const char *const levels[] = {"leak", "warning", "note"};
static const enum lien_color colors[] = {LIEN_COLOR_RED, LIEN_COLOR_YELLOW, LIEN_COLOR_PLAIN};

#define LEVELS (sizeof(levels) / sizeof(levels[0]))

/* "0x7f00 (2.0 MiB), fd 31, and 4 more" */
static char *evidence_of(const json_t *finding)
{
	const json_t *list = json_object_get(finding, "evidence"), *entry;
	uint64_t count = lien_get_number(finding, "count");
	char *text = NULL;
	size_t i;

	json_array_foreach (list, i, entry) {
		if (json_object_get(entry, "fd"))
			text = lien_append(text, ", ", "fd %" PRIu64, lien_get_number(entry, "fd"));
		else if (json_object_get(entry, "idle_ms"))
			text = lien_append(text, ", ", "group %s, rank %" PRIu64,
				lien_get_text(entry, "group"), lien_get_number(entry, "rank"));
		else
			text = lien_append(text, ", ", "%s (%s)", lien_get_text(entry, "address"),
				lien_bytes(lien_get_number(entry, "bytes")).text);
	}
	if (text && count > json_array_size(list))
		text = lien_append(
			text, ", ", "and %" PRIu64 " more", count - json_array_size(list));
	return text;
}

static void print_finding(const json_t *finding, enum lien_color color)
{
	char *evidence = evidence_of(finding);

	lien_print_marked(stdout, 2, color, "%s: %s: %s", lien_get_text(finding, "level"),
		lien_get_text(finding, "kind"), lien_get_text(finding, "text"));
	if (evidence)
		lien_print_wrapped(stdout, 4, "  at %s", evidence);
	lien_print_wrapped(stdout, 4, "  remedy: %s", lien_get_text(finding, "remedy"));
	free(evidence);
}

/* Prints the answer to the operation `check`, worst first, with the remedies; from an agent or a
 * recording. */
static void print_findings(const json_t *result, bool recorded)
{
	const json_t *list = json_object_get(result, "findings"), *finding;
	size_t i, level;

	for (level = 0; level < LEVELS; level++)
		json_array_foreach (list, i, finding)
			if (!strcmp(lien_get_text(finding, "level"), levels[level]))
				print_finding(finding, colors[level]);
	if (!json_array_size(list))
		printf("nothing odd was found\n");
	if (!lien_get_true(result, "open_files_known"))
		lien_print_wrapped(stdout, 0,
			"Exported descriptors that are still open could not be looked for: %s.",
			recorded ? "a recording does not have them"
				 : "this kernel does not let lien read them");
}

/* Returns true if one of them is more than a note. */
static bool any_finding(const json_t *result)
{
	const json_t *finding;
	size_t i;

	json_array_foreach (json_object_get(result, "findings"), i, finding)
		if (strcmp(lien_get_text(finding, "level"), "note") != 0)
			return true;
	return false;
}

static void print_node(void *context, const char *node, const json_t *result)
{
	(void)context;
	printf("%s:\n", node);
	print_findings(result, NULL);
	lien_print_hidden(result);
	printf("\n");
}

static int find(const struct lien_query *query, bool json, unsigned long idle)
{
	json_t *result = lien_query(
		query, json_pack("{s:s, s:i}", "op", "check", "idle_minutes", (int)idle));
	bool any;

	if (!result)
		return EXIT_ERROR;
	if (json)
		lien_print_json(stdout, result);
	else if (json_object_get(result, "nodes")) {
		lien_nodes_view_each(query->nodes, print_node, NULL);
	} else {
		print_findings(result, query->from.path);
		lien_print_hidden(result);
	}
	any = any_finding(result);
	json_decref(result);
	return any ? EXIT_DIFFERENT : LIEN_EXIT_OK;
}

int lien_cmd_check(int argc, char **argv)
{
	static struct lien_pids pids;
	unsigned long timeout = TIMEOUT_MS, idle = IDLE_MINUTES;
	bool json = false, deep = false, repair = false;
	/* What is odd is what stays. */
	static struct lien_nodes_view nodes;
	struct lien_query query = {
		.command = usage.command, .from.end = true, .nodes = &nodes, .usage = &usage};
	const struct lien_option options[] = {
		{"idle", LIEN_OPTION_NUMBER, &idle, "MINUTES",
			"after which a communicator is idle (default 10)", 525600},
		{"deep", LIEN_OPTION_FLAG, &deep, NULL, "compare with the driver", 0},
		{"pid", LIEN_OPTION_PIDS, &pids, "PID", "only this process; may be repeated", 0},
		{"repair", LIEN_OPTION_FLAG, &repair, NULL, "make the graph what the driver says",
			0},
		{"timeout", LIEN_OPTION_NUMBER, &timeout, "MS",
			"give up after this time (default 60000)", 3600000},
		LIEN_CLIENT_OPTIONS(&json, &query.socket), LIEN_FROM_OPTION(&query.from),
		LIEN_NODES_OPTIONS(&nodes.options), {}};
	json_t *result;
	int code;

	pids.count = 0;
	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (!deep) {
		query.timeout_ms = LIEN_QUERY_MS;
		code = find(&query, json, idle);
		lien_nodes_view_free(&nodes);
		return code;
	}
	query.timeout_ms = timeout + LIEN_QUERY_MS;
	result = lien_query(&query, request_of(&pids, repair, timeout));
	if (!result)
		return EXIT_ERROR;
	if (json)
		lien_print_json(stdout, result);
	else
		print(result);
	code = exit_code(result, pids.count);
	json_decref(result);
	return code;
}
