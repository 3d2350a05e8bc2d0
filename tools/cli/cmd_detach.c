// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>

#include "tools/cli/commands.h"
#include "tools/cli/idle.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"

static const char *const examples[] = {"lien detach 812 813", "these two processes",
	"lien detach --all", "every process that takes orders", NULL};

static const struct lien_usage usage = {
	.command = "lien detach",
	.arguments = "PID... | --all",
	.summary =
		"Leaves processes as they were before they had the control library: without its "
		"thread, host memory, sockets and signal. Its code stays mapped and does nothing. "
		"They are still watched; no offload moves their memory before `lien attach`. "
		"Refused where memory is offloaded or handles from before a restore are in use. "
		"Exit code 1: one was refused.",
	.max = -1,
	.examples = examples,
};

static void print(const json_t *detached)
{
	const json_t *process, *processes = json_object_get(detached, "processes");
	size_t i;

	json_array_foreach (processes, i, process) {
		uint64_t pid = lien_get_number(process, "pid");
		const char *command = lien_get_text(process, "command");

		if (json_is_string(json_object_get(process, "error")))
			lien_print_wrapped(stdout, 2, "%" PRIu64 " %s: refused: %s", pid, command,
				lien_get_text(process, "error"));
		else
			printf("%" PRIu64 " %s: detached in %s\n", pid, command,
				lien_time(lien_get_real(process, "ms")).text);
	}
	if (!json_array_size(processes))
		printf("no process%s has a control library that takes orders\n",
			lien_of_yours(detached));
	lien_print_hidden(detached);
}

int lien_cmd_detach(int argc, char **argv)
{
	static struct lien_pids pids;
	bool json = false, all = false;
	int code;
	struct lien_query query = {.command = usage.command, .code = &code};
	const struct lien_option options[] = {
		{"all", LIEN_OPTION_FLAG, &all, NULL, "all that take orders", 0},
		LIEN_CLIENT_OPTIONS(&json, &query.socket), {}};
	json_t *request, *detached;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (!lien_read_pids_or_all(&usage, argc, argv, all, &pids))
		return LIEN_EXIT_USAGE;
	request = json_pack("{s:s}", "op", "detach");
	lien_query_add_pids(request, &pids);
	detached = lien_query(&query, request);
	if (!detached)
		return code;
	code = lien_get_number(detached, "refused") ? LIEN_EXIT_FAILURE : LIEN_EXIT_OK;
	if (json)
		lien_print_json(stdout, detached);
	else
		print(detached);
	json_decref(detached);
	return code;
}
