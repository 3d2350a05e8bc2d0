// SPDX-License-Identifier: BSD-2-Clause
#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/commands.h"
#include "tools/cli/filter.h"
#include "tools/cli/gpus.h"
#include "tools/cli/idle.h"
#include "tools/cli/moved.h"
#include "tools/cli/nodes_view.h"
#include "tools/cli/options.h"
#include "tools/cli/query.h"
#include "tools/cli/watch.h"
#include "tools/text/output.h"

#define PENDING_MS 2000 /* until call sites have names, and NVML has answered */
#define PIDS_SHOWN 8

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
		"would "
		"leave behind and why. Kinds: local (never exported), exported (other processes "
		"may "
		"map it), imported (another process's memory, counted in that one's total). "
		"Memory of the host that is pinned for the GPUs has kinds and a total of its own: "
		"pinned host (the driver's), registered host (the program's), host "
		"(cuMemCreate).",
	.tables = true,
	.apart = (const char *const[]){"by", "gpu", "by", "user", "explain", "gpu", "explain",
		"user", "watch", "from", "nodes", "pid", "nodes", "by", "nodes", "explain", "nodes",
		"gpu", "nodes", "user", "nodes", "from", "slurm", "pid", "slurm", "by", "slurm",
		"explain", "slurm", "gpu", "slurm", "user", "slurm", "from", NULL},
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

static json_t *selected_of(const json_t *list, const json_t *ps)
{
	json_t *kept = json_array();
	json_t *row;
	size_t i;

	json_array_foreach (list, i, row)
		if (lien_filter_has(ps, lien_get_number(row, "pid")))
			json_array_append(kept, row);
	return kept;
}

static json_t *unread_of(const json_t *pids, const json_t *ps)
{
	json_t *kept = json_array();
	json_t *pid;
	size_t i;

	json_array_foreach (pids, i, pid)
		if (lien_filter_has(ps, json_integer_value(pid)))
			json_array_append(kept, pid);
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

/* The agent answers for all processes; this keeps the part of those in a reply to `ps`. */
static void keep_selected(json_t *result, const json_t *ps)
{
	json_t *rows = selected_of(json_object_get(result, "rows"), ps);

	json_object_set_new(result, "left", selected_of(json_object_get(result, "left"), ps));
	json_object_set_new(result, "unread", unread_of(json_object_get(result, "unread"), ps));
	json_object_set_new(result, "bytes", json_integer(sum(rows, "bytes", false)));
	json_object_set_new(result, "host_bytes", json_integer(sum(rows, "bytes", true)));
	json_object_set_new(result, "arena_bytes",
		json_integer(sum(json_object_get(ps, "processes"), "arena_bytes", false)));
	if (!json_is_null(json_object_get(result, "offload_frees")))
		json_object_set_new(
			result, "offload_frees", json_integer(sum(rows, "offload_frees", false)));
	json_object_set_new(result, "rows", rows);
}

/* Function names may be long, but are informative: do not shorten them. */
static void print_sites(const json_t *rows)
{
	const json_t *row;
	size_t i;

	json_array_foreach (rows, i, row) {
		uint64_t offloaded = lien_get_number(row, "offloaded_bytes");

		lien_print_wrapped(stdout, 4, "%s in %" PRIu64 " %s of %s memory%s%s: %s",
			lien_bytes(lien_get_number(row, "bytes")).text,
			LIEN_PLURAL(
				lien_get_number(row, "allocations"), "allocation", "allocations"),
			lien_get_text(row, "kind"), offloaded ? ", offloaded " : "",
			offloaded ? lien_bytes(offloaded).text : "", lien_get_text(row, "key"));
	}
}

static void print_table(const char *by, const json_t *rows)
{
	char *title = lien_format("%s", by), *c;
	const struct lien_column columns[] = {
		{title, LIEN_TEXT, .member = "key"},
		{"KIND", LIEN_TEXT, .member = "kind"},
		{"ALLOCS", LIEN_NUMBER, .member = "allocations", .drop = 2},
		{"BYTES", LIEN_BYTES, .member = "bytes"},
		{"FREES", LIEN_BYTES, .member = "offload_frees", .drop = 1},
		{"OFFLOADED", LIEN_BYTES, .member = "offloaded_bytes"},
		{"INFERRED", LIEN_BYTES, .member = "inferred_bytes", .optional = true},
	};

	for (c = title; *c; c++)
		*c = toupper((unsigned char)*c);
	lien_table_print(LIEN_COLUMNS(columns), rows);
	free(title);
}

/* Returns what an offload without options frees. Rows by one aspect do not tell: then it returns
 * what an offload of all owners frees. */
static uint64_t frees_nccl(const json_t *result)
{
	const json_t *row;
	uint64_t bytes = 0;
	size_t i;

	if (json_object_get(result, "by"))
		return lien_get_number(result, "offload_frees");
	json_array_foreach (json_object_get(result, "rows"), i, row)
		if (!strcmp(lien_get_text(row, "owner"), "nccl"))
			bytes += lien_get_number(row, "offload_frees");
	return bytes;
}

/* Prints "total: ..."; includes the bytes that an offload would free, if known, and those that are
 * offloaded, unless 0. */
static void print_total(const json_t *result, uint64_t offloaded)
{
	const uint64_t all = lien_get_number(result, "offload_frees"), nccl = frees_nccl(result);
	char *text = lien_format(
		"total: %s on the GPUs", lien_bytes(lien_get_number(result, "bytes")).text);

	if (!json_is_null(json_object_get(result, "offload_frees")))
		text = lien_append(
			text, ", ", "of which an offload frees %s", lien_bytes(nccl).text);
	if (nccl < all)
		text = lien_append(text, ", ", "and with --owner all %s", lien_bytes(all).text);
	if (offloaded)
		text = lien_append(text, "; ", "%s offloaded now", lien_bytes(offloaded).text);
	printf("\n");
	lien_print_wrapped(stdout, 2, "%s", text);
	free(text);
}

/* Prints a line about host memory, if there is any. */
static void print_host_bytes(const json_t *result)
{
	uint64_t bytes = lien_get_number(result, "host_bytes");
	uint64_t arena = lien_get_number(result, "arena_bytes");

	if (bytes)
		printf("and %s of the host's memory, pinned for the GPUs\n",
			lien_bytes(bytes).text);
	if (arena)
		lien_print_wrapped(stdout, 2,
			json_is_null(json_object_get(result, "offload_frees")) /* a recording */
				? "lien kept %s of the host's memory pinned for offloads"
				: "lien keeps %s of the host's memory pinned for offloads: see "
				  "`lien arena`",
			lien_bytes(arena).text);
}

/* Prints the answer to a request with `by`. */
static void print_mem_by(const json_t *result)
{
	const char *by = lien_get_text(result, "by");
	const json_t *rows = json_object_get(result, "rows");

	if (!strcmp(by, "callsite"))
		print_sites(rows);
	else
		print_table(by, rows);
	print_total(result, 0);
	print_host_bytes(result);
}

static char *frees_text(const json_t *row)
{
	if (is_again(row) || is_host(row) || json_is_null(json_object_get(row, "offload_frees")))
		return lien_format("-");
	return lien_format("%s", lien_bytes(lien_get_number(row, "offload_frees")).text);
}

static void print_rows(const json_t *result)
{
	static const struct lien_column columns[] = {
		{"NODE", LIEN_TEXT, .member = "node", .optional = true},
		{"PID", LIEN_NUMBER, .member = "pid"},
		{"OWNER", LIEN_TEXT, .text = lien_owner_text},
		{"KIND", LIEN_TEXT, .member = "kind"},
		{"ALLOCATIONS", LIEN_NUMBER, .member = "allocations", .drop = 2},
		{"MAPPINGS", LIEN_NUMBER, .member = "mappings", .drop = 3},
		{"BYTES", LIEN_BYTES, .member = "bytes"},
		{"OFFLOAD FREES", LIEN_BYTES, .text = frees_text, .drop = 1},
		{"OFFLOADED", LIEN_BYTES, .member = "offloaded_bytes"},
		{"TAG", LIEN_TEXT, .member = "tag", .drop = 1, .optional = true},
	};
	const json_t *rows = json_object_get(result, "rows");
	uint64_t offloaded = sum(rows, "offloaded_bytes", false);

	lien_table_print(LIEN_COLUMNS(columns), rows);
	print_total(result, offloaded);
	print_host_bytes(result);
	lien_print_left("an offload leaves behind:", json_object_get(result, "left"));
}

struct mem {
	struct lien_query query;
	struct lien_filter filter;
	struct lien_pids pids; /* at most one */
	const char *by, *sort;
	bool json, explain;
	int code; /* if there is no result */
};

static const struct lien_sort ways[] = {{"pid", "pid", true}, {"owner", "owner", true},
	{"kind", "kind", true}, {"bytes", "bytes", false}, {"frees", "offload_frees", false},
	{"offloaded", "offloaded_bytes", false}, {}};

static void print_no_rows(const struct mem *mem, const json_t *result)
{
	const char *seen = mem->query.from.path ? "the recording shows" : "the agent has seen";

	if (mem->pids.count)
		printf("process %d holds no GPU memory, as far as %s\n", mem->pids.pid[0], seen);
	else
		printf("no process%s holds GPU memory, as far as %s\n",
			mem->filter.gpu || mem->filter.user ? " of those selected"
							    : lien_of_yours(result),
			seen);
}

static void print_unread(const json_t *unread)
{
	const size_t count = json_array_size(unread);
	const json_t *pid;
	char *pids = NULL;
	size_t i;

	json_array_foreach (unread, i, pid)
		if (i < PIDS_SHOWN)
			pids = lien_append(
				pids, ", ", "%" JSON_INTEGER_FORMAT, json_integer_value(pid));
	if (count > PIDS_SHOWN)
		pids = lien_append(pids, " ", "and %zu more", count - PIDS_SHOWN);
	if (count)
		lien_print_wrapped(stdout, 2,
			"not known: what %s %s %s, which ran before the agent: `lien attach --all` "
			"reads it",
			count == 1 ? "process" : "processes", pids, count == 1 ? "has" : "have");
	free(pids);
}

static json_t *ask(const struct mem *mem)
{
	json_t *request = json_pack("{s:s}", "op", "mem");

	if (mem->by)
		json_object_set_new(request, "by", json_string(mem->by));
	if (mem->pids.count)
		json_object_set_new(request, "pid", json_integer(mem->pids.pid[0]));
	if (mem->explain)
		json_object_set_new(request, "explain", json_true());
	return lien_query(&mem->query, request);
}

static void print(const struct mem *mem, const json_t *result)
{
	if (!json_array_size(json_object_get(result, "rows"))) {
		print_no_rows(mem, result);
	} else if (mem->by) {
		print_mem_by(result);
	} else {
		print_rows(result);
	}
	print_unread(json_object_get(result, "unread"));
	if (mem->explain)
		lien_print_explained(result, mem->pids.count ? mem->pids.pid[0] : 0);
	lien_print_hidden(result);
}

/* Which processes are whose, and on which GPU, `ps` says. Returns the exit code. */
static int select_from(const struct mem *mem, json_t *result)
{
	json_t *ps;

	if (!mem->filter.gpu && !mem->filter.user)
		return LIEN_EXIT_OK;
	ps = lien_query(&mem->query, json_pack("{s:s}", "op", "ps"));
	if (!ps)
		return mem->code;
	if (!lien_filter_ps(&usage, &mem->filter, ps)) {
		json_decref(ps);
		return LIEN_EXIT_USAGE;
	}
	keep_selected(result, ps);
	json_decref(ps);
	return LIEN_EXIT_OK;
}

static int show(void *context)
{
	const struct mem *mem = context;
	json_t *result = ask(mem);
	int code;

	if (!result)
		return mem->code;
	code = select_from(mem, result);
	lien_sort(json_object_get(result, "rows"), ways, mem->sort);
	if (!code && mem->json)
		lien_print_json(stdout, result);
	else if (!code)
		print(mem, result);
	json_decref(result);
	return code;
}

int lien_cmd_mem(int argc, char **argv)
{
	static struct lien_nodes_view nodes;
	static struct mem mem = {.query = {.command = "lien mem",
					 .timeout_ms = LIEN_QUERY_MS,
					 .pending_ms = PENDING_MS,
					 .nodes = &nodes,
					 .usage = &usage}};
	unsigned long seconds = 0;
	const struct lien_option options[] = {
		{"pid", LIEN_OPTION_PIDS, &mem.pids, "PID", "only this process", 1},
		LIEN_FILTER_OPTIONS(&mem.filter),
		{"by", LIEN_OPTION_CHOICE, &mem.by, "owner|rank|comm|device|callsite|tag",
			"summed up by one aspect, the largest first", 0},
		{"sort", LIEN_OPTION_CHOICE, &mem.sort, "pid|owner|kind|bytes|frees|offloaded",
			"memory: the largest first; with --by: kind, bytes, frees, offloaded", 0},
		{"explain", LIEN_OPTION_FLAG, &mem.explain, NULL,
			"what nvidia-smi shows for each process, and what of it is known", 0},
		LIEN_WATCH_OPTION(&seconds), LIEN_CLIENT_OPTIONS(&mem.json, &mem.query.socket),
		LIEN_FROM_OPTION(&mem.query.from), LIEN_NODES_OPTIONS(&nodes.options), {}};
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (mem.by && mem.sort && (!strcmp(mem.sort, "pid") || !strcmp(mem.sort, "owner")))
		return lien_usage_error(&usage,
			"--by has no rows by %s: --sort kind, bytes, frees or offloaded", mem.sort);
	if (!lien_filter_read(&usage, &mem.filter))
		return LIEN_EXIT_USAGE;
	mem.query.code = &mem.code;
	code = lien_watch(seconds, show, &mem);
	lien_nodes_view_free(&nodes);
	return code;
}
