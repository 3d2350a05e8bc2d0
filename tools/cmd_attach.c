// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/query.h"

#define TIMEOUT_MS 60000

static const char *const examples[] = {"lien attach 812 813",
	"processes that were started without `lien run`", "lien attach --all",
	"every process that uses CUDA and has no control library", NULL};

static const struct lien_usage usage = {
	.command = "lien attach",
	.arguments = "PID... | --all",
	.summary =
		"Puts the control library into processes that run already, and reads from the\n"
		"driver what memory they have. The process waits for about a millisecond. What\n"
		"cannot be done safely is refused, and the process is as it was. Exit code 1: one\n"
		"was refused, or could not be read.",
	.max = -1,
	.examples = examples,
};

static bool read_pids(int argc, char **argv, struct lien_pids *pids)
{
	for (; argc--; argv++, pids->count++)
		if (pids->count == LIEN_PIDS_MAX || !lien_parse_pid(*argv, &pids->pid[pids->count]))
			return false;
	return true;
}

static const json_t *find(const json_t *processes, uint64_t pid)
{
	const json_t *process;
	size_t i;

	json_array_foreach (processes, i, process)
		if (lien_get_number(process, "pid") == pid)
			return process;
	return NULL;
}

static void print_read(const json_t *read)
{
	if (!read)
		return;
	if (json_is_string(json_object_get(read, "error")))
		lien_print_wrapped(stdout, 4, "    its memory could not be read: %s",
			lien_get_text(read, "error"));
	else
		lien_print_wrapped(stdout, 4,
			"    %" PRIu64 " %s read from the driver in %s, %zu of them new to lien",
			LIEN_PLURAL(lien_get_number(read, "mappings"), "mapping", "mappings"),
			lien_time(lien_get_real(read, "ms")).text,
			json_array_size(json_object_get(read, "differences")));
}

static void print(const json_t *attached, const json_t *read)
{
	const json_t *process, *processes = json_object_get(attached, "processes");
	size_t i;

	json_array_foreach (processes, i, process) {
		uint64_t pid = lien_get_number(process, "pid");
		const char *command = lien_get_text(process, "command");

		if (json_is_string(json_object_get(process, "error"))) {
			lien_print_wrapped(stdout, 2, "%" PRIu64 " %s: refused: %s", pid, command,
				lien_get_text(process, "error"));
			continue;
		}
		if (json_is_true(json_object_get(process, "present")))
			printf("%" PRIu64 " %s: has the control library already\n", pid, command);
		else
			printf("%" PRIu64 " %s: attached in %s, of which it waited %s\n", pid,
				command, lien_time(lien_get_real(process, "ms")).text,
				lien_time(lien_get_real(process, "pause_ms")).text);
		print_read(find(json_object_get(read, "processes"), pid));
	}
	if (!json_array_size(processes))
		printf("no process that uses CUDA lacks the control library\n");
}

/* Of those that have it now, what they have mapped. NULL: there are none, or after a message. */
static json_t *read_memory(const char *socket, const json_t *attached)
{
	struct lien_query query = {
		.command = usage.command, .socket = socket, .timeout_ms = 2 * TIMEOUT_MS};
	json_t *pids = json_array(), *process;
	size_t i;

	json_array_foreach (json_object_get(attached, "processes"), i, process)
		if (!json_is_string(json_object_get(process, "error")))
			json_array_append(pids, json_object_get(process, "pid"));
	if (!json_array_size(pids)) {
		json_decref(pids);
		return NULL;
	}
	return lien_query(&query, json_pack("{s:s, s:b, s:i, s:o}", "op", "compare", "repair", 1,
					  "timeout_ms", TIMEOUT_MS, "pids", pids));
}

int lien_cmd_attach(int argc, char **argv)
{
	static struct lien_pids pids;
	const char *socket = NULL;
	bool json = false, all = false;
	const struct lien_option options[] = {
		{"all", LIEN_OPTION_FLAG, &all, NULL, "all that have no control library yet", 0},
		LIEN_CLIENT_OPTIONS(&json, &socket), {}};
	struct lien_query query = {.command = usage.command};
	json_t *request, *attached, *read;
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (!argc == !all)
		return lien_usage_error(&usage, "name processes, or give --all");
	if (!read_pids(argc, argv, &pids))
		return lien_usage_error(&usage, "a PID is a number");
	query.socket = socket;
	request = json_pack("{s:s}", "op", "attach");
	lien_query_add_pids(request, &pids);
	attached = lien_query(&query, request);
	if (!attached)
		return LIEN_EXIT_FAILURE;
	read = read_memory(socket, attached);
	code = lien_get_number(attached, "refused") ||
			       (lien_get_number(attached, "attached") &&
				       (!read || lien_get_number(read, "not_compared")))
		       ? LIEN_EXIT_FAILURE
		       : LIEN_EXIT_OK;
	if (json && read)
		json_object_set(attached, "read", json_object_get(read, "processes"));
	if (json)
		lien_print_json(stdout, attached);
	else
		print(attached, read);
	json_decref(read);
	json_decref(attached);
	return code;
}
