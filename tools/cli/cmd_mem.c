// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/commands.h"
#include "tools/cli/gpus.h"
#include "tools/cli/left.h"
#include "tools/cli/mem_by.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"

#define PENDING_MS	2000
#define PENDING_STEP_MS 20

static const char *const examples[] = {"lien mem",
	"all processes: by owner (the library that asked for the memory) and kind",
	"lien mem --pid 812", "one process; with --json, too, only its rows and their totals",
	"lien mem --json | jq .offload_frees",
	"the bytes that `lien offload --owner all` would free", "lien mem --by callsite",
	"which function of which library asked for it, the largest part first",
	"lien mem --explain",
	"why nvidia-smi shows more: what each process uses beside the memory seen", NULL};

static const struct lien_usage usage = {
	.command = "lien mem",
	.arguments = "",
	.summary =
		"Shows who owns how much GPU memory, what an offload would free, and what it "
		"would\n"
		"leave behind and why. Kinds: local (never exported), exported (other processes "
		"may\n"
		"map it), imported (another process's memory, counted in that one's total).\n"
		"Memory of the host that is pinned for the GPUs has kinds and a total of its own:\n"
		"pinned host (the driver's), registered host (the program's), host "
		"(cuMemCreate).",
	.examples = examples,
};

static bool is_imported(const json_t *row)
{
	return !strcmp(lien_get_text(row, "kind"), "imported");
}

/* Returns true for host memory, which is not on the GPUs. */
static bool is_host(const json_t *row)
{
	const char *kind = lien_get_text(row, "kind");
	size_t length = strlen(kind);

	return length >= 4 && !strcmp(kind + length - 4, "host");
}

/* Returns true for memory counted in another row. */
static bool is_again(const json_t *row)
{
	return is_imported(row) || !strcmp(lien_get_text(row, "kind"), "imported host");
}

static json_t *only_pid(const json_t *list, pid_t pid)
{
	json_t *kept = json_array();
	json_t *row;
	size_t i;

	json_array_foreach (list, i, row) {
		if (lien_get_number(row, "pid") == (uint64_t)pid)
			json_array_append(kept, row);
	}
	return kept;
}

static uint64_t sum(const json_t *rows, const char *key, bool host)
{
	const json_t *row;
	uint64_t total = 0;
	size_t i;

	json_array_foreach (rows, i, row)
		if (!is_again(row) && is_host(row) == host)
			total += lien_get_number(row, key);
	return total;
}

/* The agent answers for all processes; this keeps one process's part. */
static void select_pid(json_t *result, pid_t pid)
{
	json_t *rows = only_pid(json_object_get(result, "rows"), pid);

	json_object_set_new(result, "left", only_pid(json_object_get(result, "left"), pid));
	json_object_set_new(result, "bytes", json_integer(sum(rows, "bytes", false)));
	json_object_set_new(result, "host_bytes", json_integer(sum(rows, "bytes", true)));
	if (!json_is_null(json_object_get(result, "offload_frees")))
		json_object_set_new(
			result, "offload_frees", json_integer(sum(rows, "offload_frees", false)));
	json_object_set_new(result, "rows", rows);
}

static void print_rows(const json_t *result)
{
	static const struct lien_column columns[] = {{"PID", LIEN_RIGHT}, {"OWNER", LIEN_LEFT},
		{"KIND", LIEN_LEFT}, {"ALLOCATIONS", LIEN_RIGHT}, {"MAPPINGS", LIEN_RIGHT},
		{"BYTES", LIEN_RIGHT}, {"OFFLOAD FREES", LIEN_RIGHT}, {"OFFLOADED", LIEN_RIGHT}};
	struct lien_table *table = lien_table_new(columns, 8);
	const json_t *rows = json_object_get(result, "rows"), *row;
	uint64_t offloaded = sum(rows, "offloaded_bytes", false);
	size_t i;

	json_array_foreach (rows, i, row) {
		lien_table_add(table, "%" PRIu64, lien_get_number(row, "pid"));
		lien_table_add(table, "%s", lien_get_text(row, "owner"));
		lien_table_add(table, "%s", lien_get_text(row, "kind"));
		lien_table_add(table, "%" PRIu64, lien_get_number(row, "allocations"));
		lien_table_add(table, "%" PRIu64, lien_get_number(row, "mappings"));
		lien_table_add(table, "%s", lien_size(lien_get_number(row, "bytes")).text);
		if (is_again(row) || is_host(row) ||
			json_is_null(json_object_get(row, "offload_frees")))
			lien_table_add(table, "-");
		else
			lien_table_add(
				table, "%s", lien_size(lien_get_number(row, "offload_frees")).text);
		lien_table_add(
			table, "%s", lien_size(lien_get_number(row, "offloaded_bytes")).text);
	}
	lien_table_end(table, stdout);
	lien_print_total(result);
	if (offloaded)
		printf("; %s offloaded now", lien_size(offloaded).text);
	printf("\n");
	lien_print_host_bytes(result);
	lien_print_left("an offload leaves behind:", json_object_get(result, "left"));
}

static int no_rows(const struct lien_pids *pids, const char *from)
{
	const char *seen = from ? "the recording tells" : "the agent has seen";
	pid_t pid = pids->count ? pids->pid[pids->count - 1] : 0;

	if (!pid) {
		printf("no process holds GPU memory, as far as %s\n", seen);
	} else if (!from && kill(pid, 0) && errno == ESRCH) {
		return lien_complain(usage.command, "there is no process %d: see lien ps", pid);
	} else {
		printf("process %d holds no GPU memory, as far as %s\n", pid, seen);
	}
	return LIEN_EXIT_OK;
}

/* If the result takes the agent long, it says so, and is asked again. */
static json_t *ask(const struct lien_query *query, const char *by, bool explain, pid_t pid)
{
	json_t *request, *result;
	unsigned waited_ms = 0;

	for (;;) {
		request = json_pack("{s:s}", "op", "mem");
		if (by)
			json_object_set_new(request, "by", json_string(by));
		if (by && pid)
			json_object_set_new(request, "pid", json_integer(pid));
		if (explain)
			json_object_set_new(request, "explain", json_true());
		result = lien_query(query, request);
		if (!result || !lien_get_true(result, "pending") || waited_ms >= PENDING_MS)
			return result;
		json_decref(result);
		usleep(PENDING_STEP_MS * 1000);
		waited_ms += PENDING_STEP_MS;
	}
}

static int print(const json_t *result, const char *by, bool explain, const struct lien_pids *pids,
	const char *from)
{
	if (!json_array_size(json_object_get(result, "rows"))) {
		if (!explain)
			return no_rows(pids, from);
	} else if (by) {
		lien_print_mem_by(result);
	} else {
		print_rows(result);
	}
	if (explain)
		lien_print_explained(result, pids->count ? pids->pid[0] : 0);
	return LIEN_EXIT_OK;
}

int lien_cmd_mem(int argc, char **argv)
{
	static struct lien_pids pids;
	const char *socket = NULL, *from = NULL, *by = NULL;
	bool json = false, explain = false;
	const struct lien_option options[] = {
		{"pid", LIEN_OPTION_PIDS, &pids, "PID", "only this process", 0},
		{"by", LIEN_OPTION_STRING, &by, "WHAT",
			"owner, rank, comm, device or callsite, the largest first", 0},
		{"explain", LIEN_OPTION_FLAG, &explain, NULL,
			"what nvidia-smi shows for each process, and what of it is known", 0},
		LIEN_CLIENT_OPTIONS(&json, &socket), LIEN_FROM_OPTION(&from), {}};
	struct lien_query query = {.command = usage.command, .timeout_ms = LIEN_QUERY_MS};
	json_t *result;
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (pids.count > 1)
		return lien_usage_error(&usage, "--pid is given more than once");
	query.socket = socket;
	query.from = from;
	result = ask(&query, by, explain, pids.count ? pids.pid[0] : 0);
	if (!result)
		return LIEN_EXIT_FAILURE;
	if (pids.count && !by)
		select_pid(result, pids.pid[0]);
	code = LIEN_EXIT_OK;
	if (json)
		lien_print_json(stdout, result);
	else
		code = print(result, by, explain, &pids, from);
	json_decref(result);
	return code;
}
