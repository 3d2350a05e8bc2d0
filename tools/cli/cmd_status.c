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

static const char *const examples[] = {"lien status", "what the agent watches, and what it missed",
	"lien status --json | jq .events_lost", "the number of lost events", NULL};

static const struct lien_usage usage = {
	.command = "lien status",
	.arguments = "",
	.summary =
		"Shows the agent's state: events seen and lost, processes it knows only in part, "
		"its journal, the libraries it has probes in, the offload or restore that is "
		"under "
		"way, and the threads that it holds back from memory that is being moved or away.",
	.tables = true,
	.examples = examples,
};

static char *uptime(double ms)
{
	unsigned long s = ms > 0 ? ms / 1000 : 0;

	if (s < 60)
		return lien_format("%lu s", s);
	if (s < 3600)
		return lien_format("%lu min %lu s", s / 60, s % 60);
	if (s < 86400)
		return lien_format("%lu h %lu min", s / 3600, s / 60 % 60);
	return lien_format("%lu d %lu h", s / 86400, s / 3600 % 24);
}

static void print_journal(const json_t *journal)
{
	const char *path = json_string_value(json_object_get(journal, "path"));
	uint64_t taken = lien_get_number(journal, "taken_over");

	if (!path) {
		lien_print_wrapped(stdout, 13, "journal      none: %s",
			json_string_value(json_object_get(journal, "problem")) ?: "?");
		return;
	}
	lien_print_wrapped(stdout, 13, "journal      %s in %s",
		lien_bytes(lien_get_number(journal, "bytes")).text, path);
	if (taken)
		lien_print_wrapped(stdout, 13,
			"             %" PRIu64 " %s taken over from an earlier agent",
			LIEN_PLURAL(taken, "event was", "events were"));
}

static void print_host(const json_t *host)
{
	uint64_t limit = lien_get_number(host, "limit_bytes");

	lien_print_wrapped(stdout, 13, "host memory  %s held for offloads, %s in use, %s%s",
		lien_bytes(lien_get_number(host, "held_bytes")).text,
		lien_bytes(lien_get_number(host, "used_bytes")).text,
		limit ? lien_bytes(limit).text : "no limit", limit ? " allowed" : "");
}

static void print_loop(const json_t *loop)
{
	printf("longest turn %s of %" PRIu64 ", in: %s\n",
		lien_time(lien_get_real(loop, "longest_turn_ms")).text,
		lien_get_number(loop, "turns"), lien_get_text(loop, "longest_turn_in"));
}

static void print_numbers(const json_t *status)
{
	const json_t *transaction = json_object_get(status, "transaction");
	char *up = uptime(lien_get_real(status, "uptime_ms"));

	lien_print_wrapped(stdout, 13,
		"agent        version %s, pid %" PRIu64 ", up for %s, %s of memory",
		lien_get_text(status, "version"), lien_get_number(status, "pid"), up,
		lien_bytes(lien_get_number(status, "rss_bytes")).text);
	if (json_object_get(status, "loop"))
		print_loop(json_object_get(status, "loop"));
	printf("graph        %" PRIu64 " %s, ",
		LIEN_PLURAL(lien_get_number(status, "processes"), "process", "processes"));
	printf("%" PRIu64 " %s, ",
		LIEN_PLURAL(lien_get_number(status, "allocations"), "allocation", "allocations"));
	printf("%" PRIu64 " %s\n",
		LIEN_PLURAL(lien_get_number(status, "mappings"), "mapping", "mappings"));
	printf("events       %" PRIu64 " seen, %" PRIu64 " lost\n",
		lien_get_number(status, "events"), lien_get_number(status, "events_lost"));
	printf("collectives  counted for %" PRIu64 " %s\n",
		LIEN_PLURAL(lien_get_number(status, "counted_communicators"), "communicator",
			"communicators"));
	printf("probes       by %s\n", lien_get_text(status, "attach"));
	print_journal(json_object_get(status, "journal"));
	print_host(json_object_get(status, "host"));
	if (json_is_object(transaction))
		printf("transaction  %s, phase %s, for %s\n", lien_get_text(transaction, "kind"),
			lien_get_text(transaction, "phase"),
			lien_time(lien_get_real(transaction, "ms")).text);
	else
		printf("transaction  none under way\n");
	free(up);
}

static char *list_numbers(const json_t *list)
{
	const json_t *value;
	char *text = NULL;
	size_t i;

	json_array_foreach (list, i, value)
		text = lien_append(text, ", ", "%" JSON_INTEGER_FORMAT, json_integer_value(value));
	return text;
}

static char *list_texts(const json_t *list)
{
	const json_t *value;
	char *text = NULL;
	size_t i;

	json_array_foreach (list, i, value)
		text = lien_append(text, ", ", "%s", json_string_value(value) ?: "?");
	return text;
}

static const char *last_component(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static void print_libraries(const json_t *status)
{
	static const struct lien_column columns[] = {
		{"LIBRARY", LIEN_TEXT, .member = "library"},
		{"CALLS", LIEN_NUMBER, .member = "calls", .drop = 1},
		{"MISSING", LIEN_NUMBER, .member = "missing"},
		{"PATH", LIEN_PATH, .member = "path"},
	};
	const json_t *libraries = json_object_get(status, "libraries"), *library;
	size_t i;

	if (!json_array_size(libraries)) {
		printf("\n");
		if (json_object_get(status, "only_user"))
			lien_print_wrapped(
				stdout, 0, "no process of yours maps a library that has probes");
		else
			lien_print_wrapped(stdout, 0,
				"no library has probes yet: they are set when a process maps one");
		return;
	}
	printf("\n");
	lien_table_print(LIEN_COLUMNS(columns), libraries);
	json_array_foreach (libraries, i, library) {
		char *missing = list_texts(json_object_get(library, "missing"));

		if (missing)
			lien_print_wrapped(stdout, 2, "%s has no %s: it is older than these calls",
				last_component(lien_get_text(library, "path")), missing);
		free(missing);
	}
}

static void print_held(const json_t *held)
{
	static const char *const until[] = {
		"wait", "until a restore", "restore", "and a restore is begun for it", NULL};
	const char *on_use;
	const json_t *thread;
	unsigned j;
	size_t i;

	if (json_array_size(held))
		printf("\n");
	json_array_foreach (held, i, thread) {
		on_use = lien_get_text(thread, "on_use");
		for (j = 0; until[j] && strcmp(until[j], on_use); j += 2)
			;
		lien_print_wrapped(stdout, 2,
			"held back: thread %" PRIu64 " of process %" PRIu64 ", in %s for %s, %s",
			lien_get_number(thread, "tid"), lien_get_number(thread, "pid"),
			lien_get_text(thread, "call"), lien_time(lien_get_real(thread, "ms")).text,
			until[j] ? until[j + 1] : on_use);
	}
}

static void print_skipped(const json_t *status)
{
	const json_t *list = json_object_get(status, "skipped"), *file;
	uint64_t all = lien_get_number(status, "skipped_files");
	size_t i;

	if (all)
		printf("\n");
	json_array_foreach (list, i, file)
		lien_print_wrapped(stdout, 2, "not probed: %s: %s", lien_get_text(file, "path"),
			lien_get_text(file, "reason"));
	if (all > json_array_size(list))
		lien_print_wrapped(stdout, 2, "not probed: %" PRIu64 " more files",
			all - json_array_size(list));
}

static void print_unprobed(const json_t *unprobed)
{
	char *pids = list_numbers(json_object_get(unprobed, "processes"));
	char *rewritten = list_numbers(json_object_get(unprobed, "rewritten"));
	const json_t *user;
	size_t i;

	json_array_foreach (json_object_get(unprobed, "users"), i, user)
		lien_print_marked(stdout, 2, LIEN_COLOR_YELLOW,
			"WARNING: user %" PRIu64 " maps %" PRIu64
			" more copies of CUDA's and NCCL's libraries than the %" PRIu64
			" that are probed of one user: let the processes share files (one virtual "
			"environment, one image), and restart them",
			lien_get_number(user, "uid"), lien_get_number(user, "others"),
			lien_get_number(user, "limit"));
	if (rewritten)
		lien_print_marked(stdout, 2, LIEN_COLOR_YELLOW,
			"WARNING: rewrote functions of CUDA or NCCL in memory, which are not seen: "
			"%s: start them without profilers and memory hooks "
			"(UCX_MEM_CUDA_HOOK_MODE=none for UCX)",
			rewritten);
	if (pids)
		lien_print_marked(stdout, 2, LIEN_COLOR_YELLOW,
			"WARNING: incomplete because of that: %s: what they do is not seen", pids);
	free(rewritten);
	free(pids);
}

/* Prints reasons to distrust the graph, last, so that they stay on the screen. */
static void print_warnings(const json_t *status)
{
	char *incomplete = list_numbers(json_object_get(status, "incomplete"));
	char *others = list_numbers(json_object_get(status, "other_agents"));
	uint64_t lost = lien_get_number(status, "events_lost");
	uint64_t unmatched = lien_get_number(status, "unmatched_imports");
	uint64_t uncounted = lien_get_number(status, "uncounted");

	if (lost || incomplete || unmatched || uncounted || others)
		printf("\n");
	if (others)
		lien_print_marked(stdout, 2, LIEN_COLOR_YELLOW,
			"WARNING: another agent, pid %s, watches the same processes: each of them "
			"takes orders from one agent only, and its calls are traced twice: stop "
			"one",
			others);
	if (lost)
		lien_print_marked(stdout, 2, LIEN_COLOR_YELLOW,
			"WARNING: %" PRIu64 " %s lost: do not trust the graph of the processes "
			"that made them until it has been read again",
			LIEN_PLURAL(lost, "event was", "events were"));
	if (incomplete)
		lien_print_marked(stdout, 2, LIEN_COLOR_YELLOW,
			"WARNING: incomplete: %s: may have called CUDA or NCCL before they were "
			"watched, or "
			"lost events: see `lien ps`",
			incomplete);
	if (unmatched)
		lien_print_marked(stdout, 2, LIEN_COLOR_YELLOW,
			"WARNING: %" PRIu64 " %s: the owner of that memory is unknown",
			LIEN_PLURAL(unmatched, "import has no export that was seen",
				"imports have no export that was seen"));
	if (uncounted)
		lien_print_marked(stdout, 2, LIEN_COLOR_YELLOW,
			"WARNING: %" PRIu64 " %s not counted: `lien comms` shows fewer calls than "
			"were made",
			LIEN_PLURAL(uncounted, "NCCL call was", "NCCL calls were"));
	free(incomplete);
	free(others);
}

int lien_cmd_status(int argc, char **argv)
{
	bool json = false;
	struct lien_query query = {.command = usage.command, .timeout_ms = LIEN_QUERY_MS};
	const struct lien_option options[] = {LIEN_CLIENT_OPTIONS(&json, &query.socket), {}};
	json_t *result;
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	result = lien_query(&query, json_pack("{s:s}", "op", "status"));
	if (!result)
		return LIEN_EXIT_FAILURE;
	if (json) {
		lien_print_json(stdout, result);
	} else {
		print_numbers(result);
		print_libraries(result);
		print_skipped(result);
		print_held(json_object_get(result, "held"));
		print_warnings(result);
		print_unprobed(json_object_get(result, "unprobed"));
		lien_print_short("did not come free when it was offloaded:",
			json_object_get(json_object_get(result, "short"), "rows"));
		if (json_object_get(result, "only_user"))
			printf("\n");
		lien_print_hidden(result);
	}
	json_decref(result);
	return LIEN_EXIT_OK;
}
