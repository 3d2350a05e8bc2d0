// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/commands.h"
#include "tools/cli/idle.h"
#include "tools/cli/moved.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"

#define TIMEOUT_MS 150000

static const char *const examples[] = {"lien attach 812 813",
	"processes that were started without `lien run`", "lien attach --all",
	"every process that uses CUDA and needs it", NULL};

static const struct lien_usage usage = {
	.command = "lien attach",
	.arguments = "PID... | --all",
	.summary =
		"Makes processes that run already like those that lien has seen from the start: "
		"puts the control library into them, reads from the driver what memory they have, "
		"and, while the job is at rest for a moment, counts references and finds out who "
		"imported what from whom. All ranks of a job have to be attached together. What "
		"cannot be done safely is refused, and the process is as it was. Exit code 1: one "
		"was refused, or not adopted.",
	.max = -1,
	.examples = examples,
};

static void print_process(const json_t *process)
{
	const char *command = lien_get_text(process, "command");
	uint64_t pid = lien_get_number(process, "pid");

	if (json_is_string(json_object_get(process, "error"))) {
		lien_print_wrapped(stdout, 2, "%" PRIu64 " %s: refused: %s", pid, command,
			lien_get_text(process, "error"));
		return;
	}
	if (json_is_true(json_object_get(process, "present")))
		printf("%" PRIu64 " %s: already has the control library\n", pid, command);
	else
		printf("%" PRIu64 " %s: attached in %s, of which it waited %s\n", pid, command,
			lien_time(lien_get_real(process, "ms")).text,
			lien_time(lien_get_real(process, "pause_ms")).text);
	if (lien_get_true(process, "read"))
		lien_print_wrapped(stdout, 4,
			"    %" PRIu64 " %s read from the driver in %s, %" PRIu64
			" of them new to lien",
			LIEN_PLURAL(lien_get_number(process, "mappings"), "mapping", "mappings"),
			lien_time(lien_get_real(process, "read_ms")).text,
			lien_get_number(process, "new"));
}

/* Prints the findings from while the job was at rest. */
static void print_adoption(const json_t *adoption)
{
	uint64_t outsider = lien_get_number(adoption, "outsider");
	uint64_t unmatched = lien_get_number(adoption, "unmatched");

	if (!json_is_object(adoption))
		return;
	if (json_is_string(json_object_get(adoption, "error"))) {
		lien_print_wrapped(stdout, 2,
			"not adopted: %s; memory from before the agent is shown, but not moved",
			lien_get_text(adoption, "error"));
		return;
	}
	lien_print_wrapped(stdout, 2,
		"adopted: %" PRIu64 " %s waited %s; the references of %" PRIu64
		" %s were counted, %" PRIu64 " of %" PRIu64 " %s found by %" PRIu64 " marks in %s",
		LIEN_PLURAL(lien_get_number(adoption, "processes"), "process", "processes"),
		lien_time(lien_get_real(adoption, "pause_ms")).text,
		LIEN_PLURAL(lien_get_number(adoption, "counted"), "allocation", "allocations"),
		lien_get_number(adoption, "matched"),
		lien_get_number(adoption, "matched") + unmatched,
		unmatched + lien_get_number(adoption, "matched") == 1 ? "import's owner was"
								      : "imports' owners were",
		lien_get_number(adoption, "marked"),
		lien_time(lien_get_real(adoption, "match_ms")).text);
	if (json_is_integer(json_object_get(adoption, "outsider")) && !outsider)
		lien_print_wrapped(stdout, 2,
			"owners were not looked for: another user's process ran before the agent "
			"and is not attached, so exportable memory cannot be moved: root can "
			"attach all");
	else if (outsider)
		lien_print_wrapped(stdout, 2,
			"owners were not looked for: process %" PRIu64
			" ran before the agent and is not attached, so what can be exported stays "
			"where it is: `lien attach --all`",
			outsider);
	else if (unmatched)
		lien_print_wrapped(stdout, 2,
			"%" PRIu64 " %s no owner that could be found: that memory is not moved",
			LIEN_PLURAL(unmatched, "import has", "imports have"));
}

static void print_nothing(const json_t *attached)
{
	uint64_t before = lien_get_number(attached, "attached_before");

	if (!before) {
		lien_print_no_process(attached, NULL);
		return;
	}
	lien_print_wrapped(stdout, 2,
		"nothing to attach: %" PRIu64 " %s the control library, and what was there before "
		"the agent is known (see `lien ps`)",
		LIEN_PLURAL(before, "process that uses CUDA has", "processes that use CUDA have"));
	lien_print_hidden(attached);
}

static void print(const json_t *attached)
{
	const json_t *process, *processes = json_object_get(attached, "processes");
	const json_t *adoption = json_object_get(attached, "adoption");
	size_t i;

	json_array_foreach (processes, i, process)
		print_process(process);
	if (!json_array_size(processes) && !json_is_object(adoption))
		print_nothing(attached);
	print_adoption(adoption);
}

static bool was_attached(const json_t *processes, uint64_t pid)
{
	const json_t *process;
	size_t i;

	json_array_foreach (processes, i, process)
		if (lien_get_number(process, "pid") == pid &&
			!json_is_string(json_object_get(process, "error")))
			return true;
	return false;
}

/* Says at once what of their memory no offload will move, before somebody counts on it. */
static void print_left(const struct lien_query *query, const json_t *processes)
{
	json_t *mem = lien_query(query, json_pack("{s:s}", "op", "mem")), *left = json_array();
	bool all = !json_array_size(processes); /* they were attached before */
	json_t *row;
	size_t i;

	json_array_foreach (json_object_get(mem, "left"), i, row)
		if (all || was_attached(processes, lien_get_number(row, "pid")))
			json_array_append(left, row);
	lien_print_left("no offload will move:", left);
	json_decref(left);
	json_decref(mem);
}

int lien_cmd_attach(int argc, char **argv)
{
	static struct lien_pids pids;
	bool json = false, all = false;
	int code, ignored;
	struct lien_query query = {
		.command = usage.command, .code = &code, .timeout_ms = TIMEOUT_MS};
	const struct lien_option options[] = {
		{"all", LIEN_OPTION_FLAG, &all, NULL, "all that need it", 0},
		LIEN_CLIENT_OPTIONS(&json, &query.socket), {}};
	json_t *request, *attached;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (!lien_read_pids_or_all(&usage, argc, argv, all, &pids))
		return LIEN_EXIT_USAGE;
	request = json_pack("{s:s}", "op", "attach");
	lien_query_add_pids(request, &pids);
	attached = lien_query(&query, request);
	if (!attached)
		return code;
	code = lien_get_number(attached, "refused") ||
			       json_is_string(json_object_get(
				       json_object_get(attached, "adoption"), "error"))
		       ? LIEN_EXIT_FAILURE
		       : LIEN_EXIT_OK;
	if (json)
		lien_print_json(stdout, attached);
	else {
		print(attached);
		query.code = &ignored;
		if (json_array_size(json_object_get(attached, "processes")) ||
			lien_get_number(attached, "attached_before"))
			print_left(&query, json_object_get(attached, "processes"));
	}
	json_decref(attached);
	return code;
}
