// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/commands.h"
#include "tools/cli/gpus.h"
#include "tools/cli/left.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"

#define PHASES_MAX     12
#define TIMEOUT_MS_MAX 3600000 /* the agent's maximum */

static const char *const offload_examples[] = {"lien offload",
	"move NCCL's memory of all processes to the host and free it",
	"lien offload --dry-run --owner all", "show what would move and what would stay, and why",
	"lien offload --pid 812 --with-closure",
	"process 812 and every process that shares memory with it",
	"lien offload --strict --timeout 2000",
	"all of it or nothing; give the job 2 s to come to rest",
	"lien offload --verify --discard libkv.so",
	"checksums, compared by the restore; what libkv.so made is not saved", NULL};

static const struct lien_usage offload_usage = {
	.command = "lien offload",
	.arguments = "",
	.summary = "Moves GPU memory to host memory in every process that holds a lien on it, and\n"
		   "frees it on the GPUs. `lien restore` puts it back: same addresses, same bytes. "
		   "All\n"
		   "or nothing: after a refusal or a failure the job runs on as before.",
	.examples = offload_examples,
};

static const char *const restore_examples[] = {"lien restore",
	"put everything back that is offloaded", "lien restore --pid 812",
	"process 812 and those it shares offloaded memory with", NULL};

static const struct lien_usage restore_usage = {
	.command = "lien restore",
	.arguments = "",
	.summary = "Puts offloaded memory back on the GPUs: same addresses, bytes and access. "
		   "Processes\n"
		   "that share offloaded memory are always restored together.",
	.examples = restore_examples,
};

/* Texts that differ between the two commands. */
static const struct words {
	const struct lien_usage *usage;
	const char *op, *done, *would, *nothing, *column, *discarded;
} words_offload = {&offload_usage, "offload", "offloaded", "would offload", "nothing to offload",
	"MOVED", "declared worthless and not saved"},
  words_restore = {&restore_usage, "restore", "restored", "would restore", "nothing is offloaded",
	  "RESTORED", "back with zeros in it: it was declared worthless"};

struct shown {
	bool terminal, any;
	char *phase; /* the last one printed on a line of its own */
};

static void show_progress(const json_t *progress, void *arg)
{
	struct shown *shown = arg;
	const char *phase = lien_get_text(progress, "phase");
	char *line;

	if (!progress) {
		if (shown->terminal && shown->any)
			fprintf(stderr, "\r\033[K");
		free(shown->phase);
		return;
	}
	if (!shown->terminal && shown->phase && !strcmp(shown->phase, phase))
		return;
	line = lien_format("%s: %" PRIu64 " of %" PRIu64 " %s", phase,
		lien_get_number(progress, "done"), lien_get_number(progress, "of"),
		lien_get_number(progress, "of") == 1 ? "process" : "processes");
	if (shown->terminal)
		fprintf(stderr, "\r\033[K%s", line);
	else
		fprintf(stderr, "%s\n", phase);
	shown->any = true;
	free(line);
	free(shown->phase);
	shown->phase = lien_format("%s", phase);
}

/* Lists the phases of a reply in its order: offload and restore have different ones. */
static unsigned phases_of(const json_t *processes, const char **phases)
{
	const json_t *ms = json_object_get(json_array_get(processes, 0), "ms");
	unsigned count = 0;

	/* Read-only: the iterator takes a writable object for its other uses. */
	for (void *it = json_object_iter((json_t *)ms); it && count < PHASES_MAX;
		it = json_object_iter_next((json_t *)ms, it))
		phases[count++] = json_object_iter_key(it);
	return count;
}

static void add_process(struct lien_table *table, const json_t *process, const char **phases,
	unsigned count, bool freed)
{
	const json_t *ms = json_object_get(process, "ms");
	const json_t *bytes = json_object_get(process, "freed_bytes");

	lien_table_add(table, "%" PRIu64, lien_get_number(process, "pid"));
	lien_table_add(table, "%s", lien_size(lien_get_number(process, "bytes")).text);
	if (freed)
		lien_table_add(table, "%s",
			json_is_integer(bytes)
				? lien_size(lien_get_number(process, "freed_bytes")).text
				: "-");
	lien_table_add(table, "%" PRIu64, lien_get_number(process, "allocations"));
	lien_table_add(table, "%" PRIu64, lien_get_number(process, "imports"));
	lien_table_add(table, "%" PRIu64, lien_get_number(process, "mappings"));
	for (unsigned i = 0; i < count; i++)
		lien_table_add(table, "%.1f", lien_get_real(ms, phases[i]));
}

static void print_processes(const struct words *words, const json_t *processes)
{
	struct lien_column columns[6 + PHASES_MAX] = {{"PID", LIEN_RIGHT}};
	const char *phases[PHASES_MAX];
	unsigned phase_count = phases_of(processes, phases), count = 1;
	bool freed = words == &words_offload;
	struct lien_table *table;
	const json_t *process;
	size_t i;

	columns[count++] = (struct lien_column){words->column, LIEN_RIGHT};
	if (freed)
		columns[count++] = (struct lien_column){"FREED", LIEN_RIGHT};
	columns[count++] = (struct lien_column){"ALLOCS", LIEN_RIGHT};
	columns[count++] = (struct lien_column){"IMPORTS", LIEN_RIGHT};
	columns[count++] = (struct lien_column){"MAPPINGS", LIEN_RIGHT};
	for (i = 0; i < phase_count; i++)
		columns[count++] = (struct lien_column){phases[i], LIEN_RIGHT};
	table = lien_table_new(columns, count);
	json_array_foreach (processes, i, process)
		add_process(table, process, phases, phase_count, freed);
	lien_table_end(table, stdout);
	printf("\n");
}

/* For memory older than the agent the requester is unknown, so no name selects it. */
static void print_nameless(const json_t *result)
{
	uint64_t bytes = lien_get_number(result, "nameless_bytes");

	if (bytes)
		lien_print_wrapped(stdout, 2,
			"%s more could be moved: made before the agent was there, so that it is "
			"not "
			"known by which library: --owner unknown, or --owner all",
			lien_size(bytes).text);
}

/* What the driver itself keeps is not in the plan, but is what remains of a job on the device. */
static void print_rest(const json_t *result, const char *socket)
{
	struct lien_query query = {
		.command = "lien offload", .socket = socket, .timeout_ms = LIEN_QUERY_MS};
	json_t *gpus = lien_query(&query, json_pack("{s:s, s:b}", "op", "mem", "explain", 1));

	if (!json_array_size(json_object_get(result, "left")))
		printf("\nleft on the GPUs:\n");
	if (gpus)
		lien_print_unexplained(result, gpus);
	json_decref(gpus);
}

static void print_result(const struct words *words, const json_t *result, const char *socket)
{
	const json_t *processes = json_object_get(result, "processes");
	const char *outcome = lien_get_text(result, "outcome");
	uint64_t count = json_array_size(processes);

	if (!strcmp(outcome, "nothing to do")) {
		printf("%s\n", words->nothing);
		lien_print_left("not movable:", json_object_get(result, "left"));
		print_nameless(result);
		return;
	}
	if (count)
		print_processes(words, processes);
	if (lien_get_number(result, "discarded_bytes"))
		printf("%s %s\n", lien_size(lien_get_number(result, "discarded_bytes")).text,
			words->discarded);
	if (lien_get_number(result, "verified_bytes"))
		printf("%s compared with what was saved: no difference\n",
			lien_size(lien_get_number(result, "verified_bytes")).text);
	printf("%s %s of %" PRIu64 " %s", strcmp(outcome, "dry run") ? words->done : words->would,
		lien_size(lien_get_number(result, "bytes")).text,
		LIEN_PLURAL(count, "process", "processes"));
	if (strcmp(outcome, "dry run"))
		printf(" in %s", lien_time(lien_get_real(result, "ms")).text);
	printf("\n");
	lien_print_left("left on the GPUs:", json_object_get(result, "left"));
	if (words == &words_offload && !strcmp(outcome, "done"))
		print_rest(result, socket);
	print_nameless(result);
}

/* Parses SELECTOR,SELECTOR; the agent reports wrong selectors. */
static bool add_discards(json_t *request, const struct lien_names *names)
{
	json_t *list = json_array();
	const char *at;
	size_t length;

	for (unsigned i = 0; i < names->count; i++)
		for (at = names->name[i];; at += length + 1) {
			length = strcspn(at, ",");
			if (json_array_append_new(list, json_stringn(at, length))) {
				json_decref(list);
				return false;
			}
			if (!at[length])
				break;
		}
	if (names->count)
		json_object_set_new(request, "discard", list);
	else
		json_decref(list);
	return true;
}

/* Takes ownership of request. */
static int carry_out(const struct words *words, json_t *request, const char *socket, bool json,
	unsigned retry_ms)
{
	struct shown shown = {.terminal = isatty(STDERR_FILENO)};
	/* No limit here: the agent limits every wait, and copies take as long as they need. */
	struct lien_query query = {.command = words->usage->command,
		.socket = socket,
		.retry_ms = retry_ms,
		.progress = show_progress,
		.progress_arg = &shown};
	json_t *result;

	json_object_set_new(request, "op", json_string(words->op));
	result = lien_query(&query, request);
	if (!result)
		return LIEN_EXIT_FAILURE;
	if (json)
		lien_print_json(stdout, result);
	else
		print_result(words, result, socket);
	json_decref(result);
	return LIEN_EXIT_OK;
}

int lien_cmd_offload(int argc, char **argv)
{
	static struct lien_pids pids;
	const char *socket = NULL, *owner = NULL, *on_use = NULL;
	static struct lien_names discards;
	bool json = false, dry_run = false, strict = false, closure = false, verify = false;
	uint64_t host_limit = 0;
	unsigned long timeout = 0, retry = 0;
	const struct lien_option options[] = {
		{"owner", LIEN_OPTION_STRING, &owner, "NAME",
			"whose memory: nccl (default), all, or an owner of `lien mem`", 0},
		{"pid", LIEN_OPTION_PIDS, &pids, "PID", "only this process; may be repeated", 0},
		{"timeout", LIEN_OPTION_NUMBER, &timeout, "MS",
			"how long the job may take to come to rest (default 10000)",
			TIMEOUT_MS_MAX},
		{"retry", LIEN_OPTION_NUMBER, &retry, "MS",
			"try again for so long when the job does not come to rest", TIMEOUT_MS_MAX},
		{"on-use", LIEN_OPTION_STRING, &on_use, "WHAT",
			"when the job needs what is away: wait (default), restore or fail", 0},
		{"dry-run", LIEN_OPTION_FLAG, &dry_run, NULL, "only show what would be done", 0},
		{"strict", LIEN_OPTION_FLAG, &strict, NULL,
			"refuse when anything selected would be left behind", 0},
		{"with-closure", LIEN_OPTION_FLAG, &closure, NULL,
			"take in the processes that share memory with those of --pid", 0},
		{"discard", LIEN_OPTION_NAMES, &discards, "WHAT",
			"free it without saving: an owner, or PID:ADDRESS; may be repeated", 0},
		{"verify", LIEN_OPTION_FLAG, &verify, NULL,
			"keep checksums, with which the restore compares", 0},
		{"host-limit", LIEN_OPTION_SIZE, &host_limit, "SIZE",
			"refuse if all processes would then hold more host memory: 64G", 0},
		LIEN_CLIENT_OPTIONS(&json, &socket), {}};
	json_t *request;
	int code;

	if (!lien_options_read(&offload_usage, options, &argc, &argv, &code))
		return code;
	request = json_object();
	if (owner && json_object_set_new(request, "owner", json_string(owner))) {
		json_decref(request);
		return lien_usage_error(&offload_usage, "--owner is not UTF-8");
	}
	if (!add_discards(request, &discards)) {
		json_decref(request);
		return lien_usage_error(&offload_usage, "--discard is not UTF-8");
	}
	lien_query_add_pids(request, &pids);
	if (timeout)
		json_object_set_new(request, "timeout_ms", json_integer(timeout));
	if (host_limit)
		json_object_set_new(request, "host_limit_bytes", json_integer(host_limit));
	if (verify)
		json_object_set_new(request, "verify", json_true());
	if (dry_run)
		json_object_set_new(request, "dry_run", json_true());
	if (strict)
		json_object_set_new(request, "strict", json_true());
	if (closure)
		json_object_set_new(request, "with_closure", json_true());
	if (on_use && json_object_set_new(request, "on_use", json_string(on_use))) {
		json_decref(request);
		return lien_usage_error(&offload_usage, "--on-use is not UTF-8");
	}
	return carry_out(&words_offload, request, socket, json, retry);
}

int lien_cmd_restore(int argc, char **argv)
{
	static struct lien_pids pids;
	const char *socket = NULL;
	bool json = false, ignore_damage = false;
	unsigned long timeout = 0;
	const struct lien_option options[] = {
		{"pid", LIEN_OPTION_PIDS, &pids, "PID", "only this process; may be repeated", 0},
		{"timeout", LIEN_OPTION_NUMBER, &timeout, "MS",
			"accepted as for `lien offload`; the steps have limits of their own",
			TIMEOUT_MS_MAX},
		{"ignore-damage", LIEN_OPTION_FLAG, &ignore_damage, NULL,
			"put back what is there, also where --verify finds a difference", 0},
		LIEN_CLIENT_OPTIONS(&json, &socket), {}};
	json_t *request;
	int code;

	if (!lien_options_read(&restore_usage, options, &argc, &argv, &code))
		return code;
	request = json_object();
	lien_query_add_pids(request, &pids);
	if (timeout)
		json_object_set_new(request, "timeout_ms", json_integer(timeout));
	if (ignore_damage)
		json_object_set_new(request, "ignore_damage", json_true());
	return carry_out(&words_restore, request, socket, json, 0);
}
