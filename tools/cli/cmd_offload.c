// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/clock.h>

#include "tools/cli/commands.h"
#include "tools/cli/gpus.h"
#include "tools/cli/idle.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/moved.h"
#include "tools/cli/nodes_move.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"

#define COLUMNS	       6 /* beside the phases */
#define PHASES_MAX     12
#define CANCEL_MS      5000
#define TIMEOUT_MS_MAX 3600000 /* the agent's maximum */

static const char *const offload_examples[] = {"lien offload",
	"move NCCL's memory of all processes to the host and free it",
	"lien offload --dry-run --owner all", "show what would move and what would stay, and why",
	"lien offload --pid 812 --with-closure",
	"process 812 and every process that shares memory with it",
	"lien offload --strict --timeout 2000",
	"all of it or nothing; give the job 2 s to come to rest",
	"lien offload --verify --discard libkv.so",
	"checksums, compared by the restore; what libkv.so made is not saved",
	"lien offload --tag weights,kv_cache --discard tag:kv_cache",
	"what programs have given these tags; the second comes back as zeros",
	"lien offload --owner all --free 10G --gpu 0", "as little as makes 10 GiB free on GPU 0",
	"lien offload --nodes node7,node8 --launch 'ssh {node}'",
	"a job on two nodes: on both, or on neither", "lien offload --slurm 4711",
	"the processes of a Slurm job, on all of its nodes", NULL};

static const struct lien_usage offload_usage = {
	.command = "lien offload",
	.arguments = "",
	.summary = "Moves GPU memory to host memory in every process that holds a lien on it, and "
		   "frees it on the GPUs. `lien restore` puts it back: same addresses, same bytes. "
		   "All "
		   "or nothing: after a refusal or a failure the job runs on as before.",
	.tables = true,
	.apart = (const char *const[]){"free", "strict", NULL},
	.examples = offload_examples,
};

static const char *const restore_examples[] = {"lien restore",
	"put everything back that is offloaded", "lien restore --pid 812",
	"process 812 and those it shares offloaded memory with",
	"lien restore --comm 5ac1d2e0b7f0a133",
	"what NCCL needs for this group; the rest stays on the host", "lien restore --tag weights",
	"memory with this tag; the rest stays on the host",
	"lien restore --comm 5ac1d2e0b7f0a133 --tag weights",
	"what NCCL needs for the group and has the tag", "lien restore --lazy",
	"all of it, one communicator after the other", NULL};

static const struct lien_usage restore_usage = {
	.command = "lien restore",
	.arguments = "",
	.summary = "Puts offloaded memory back on the GPUs: same addresses, bytes and access. "
		   "Processes "
		   "that share offloaded memory are always restored together.",
	.tables = true,
	.apart = (const char *const[]){"lazy", "tag", NULL},
	.examples = restore_examples,
};

/* Texts that differ between the two commands. */
static const struct words {
	const struct lien_usage *usage;
	const char *op, *done, *would, *nothing, *unknown, *column, *discarded;
} words_offload = {&offload_usage, "offload", "offloaded", "would offload", "nothing to offload",
	"nothing was offloaded: lien knows of no selected memory that can be moved", "MOVED",
	"discarded: not saved"},
  words_restore = {&restore_usage, "restore", "restored", "would restore", "nothing is offloaded",
	  "", "RESTORED", "discarded before: filled with zeros"};

struct shown {
	bool any; /* a line of progress is on the terminal */
	const struct words *words;
	const char *socket;
	int signals;	 /* signalfd; -1: none */
	unsigned caught; /* signals so far */
	bool cancels;	 /* the agent undoes the offload */
};

static void clear_line(struct shown *shown)
{
	if (shown->any)
		fputs("\r\033[K", stderr);
	shown->any = false;
}

/* Shows progress on one line of a terminal, which the end removes. */
static void show_progress(const json_t *progress, void *arg)
{
	struct shown *shown = arg;
	char *line;

	clear_line(shown);
	if (!progress)
		return;
	line = lien_format("%s: %" PRIu64 " of %" PRIu64 " %s", lien_get_text(progress, "phase"),
		lien_get_number(progress, "done"), lien_get_number(progress, "of"),
		lien_get_number(progress, "of") == 1 ? "process" : "processes");
	fputs(line, stderr);
	free(line);
	shown->any = true;
}

/* Asks the agent to cancel the offload, on a connection of its own. Returns false if it is too
 * late. */
static bool cancel(const char *socket)
{
	struct lien_client *client = lien_client_new(socket);
	json_t *request = json_pack("{s:s}", "op", "cancel"), *result = NULL;
	bool cancelled;

	if (client && request) {
		lien_client_timeout(client, CANCEL_MS);
		lien_client_call(client, request, &result);
	}
	cancelled = lien_get_true(result, "cancelled");
	json_decref(result);
	json_decref(request);
	lien_client_free(client);
	return cancelled;
}

/* The first Ctrl-C cancels an offload, the second leaves it. */
static int on_signal(void *arg)
{
	struct shown *shown = arg;
	const bool offload = shown->words == &words_offload;

	if (!lien_interrupt_take(shown->signals))
		return 0;
	clear_line(shown);
	if (shown->caught++) {
		lien_complain(shown->words->usage->command,
			"no longer waiting: the agent finishes the %s; `lien ps` shows the state "
			"of the job",
			shown->cancels ? "cancellation" : shown->words->op);
		return 1;
	}
	if (!offload)
		fprintf(stderr, "a restore cannot be cancelled, because the job waits for it; "
				"Ctrl-C again leaves it to the agent\n");
	else if ((shown->cancels = cancel(shown->socket)))
		fprintf(stderr, "cancelling; Ctrl-C again leaves it to the agent\n");
	else
		fprintf(stderr, "too late to cancel; Ctrl-C again leaves it to the agent\n");
	return 0;
}

/* The driver knows how much of a GPU is free, not who has freed it. */
static void explain_freed(const json_t *processes)
{
	const json_t *process;
	char *freed;
	bool same;
	size_t i;

	json_array_foreach (processes, i, process) {
		freed = lien_freed_text(process);
		same = !strcmp(freed, "-") ||
		       !strcmp(freed, lien_bytes(lien_moved_bytes(process)).text);
		free(freed);
		if (same)
			continue;
		lien_print_wrapped(stdout, 2,
			"FREED: how much more of the process's GPUs is free, as the driver says, "
			"at most what it has moved. What others take there meanwhile makes it "
			"less.");
		printf("\n");
		break;
	}
}

static void print_processes(const struct words *words, const json_t *processes)
{
	const bool freed = words == &words_offload;
	struct lien_column columns[COLUMNS + PHASES_MAX] = {
		{"PID", LIEN_NUMBER, .member = "pid"},
		{words->column, LIEN_BYTES, .member = "bytes"},
		{"FREED", LIEN_BYTES, .text = lien_freed_text, .hidden = !freed},
		{"ALLOCS", LIEN_NUMBER, .member = "allocations", .drop = 2},
		{"IMPORTS", LIEN_NUMBER, .member = "imports", .drop = 3},
		{"MAPPINGS", LIEN_NUMBER, .member = "mappings", .drop = 3},
	};
	char *titles[PHASES_MAX];
	unsigned phases = 0;
	struct lien_table *table;
	const json_t *process;
	const char *phase;
	json_t *ms;
	size_t i;

	/* In the reply's order: offload and restore have different ones. */
	json_object_foreach (json_object_get(json_array_get(processes, 0), "ms"), phase, ms) {
		if (phases == PHASES_MAX)
			break;
		titles[phases] = lien_format("%s ms", phase);
		columns[COLUMNS + phases] = (struct lien_column){
			titles[phases], LIEN_NUMBER, .member = phase, .drop = 1};
		phases++;
	}
	table = lien_table_new(columns, COLUMNS + phases);
	json_array_foreach (processes, i, process)
		lien_table_row(table, process, json_object_get(process, "ms"));
	lien_table_end(table, stdout);
	while (phases)
		free(titles[--phases]);
	printf("\n");
	if (freed)
		explain_freed(processes);
}

/* What the driver itself keeps is not in the plan, but is what remains of a job on the device. */
static void add_rest(json_t *result, const char *socket)
{
	struct lien_query query = {
		.command = "lien offload", .socket = socket, .timeout_ms = LIEN_QUERY_MS};
	json_t *gpus = lien_query(&query, json_pack("{s:s, s:b}", "op", "mem", "explain", 1));

	json_object_set_new(result, "unexplained", lien_unexplained_of(result, gpus));
	json_decref(gpus);
}

static void print_left(const json_t *result)
{
	const char *title = "left on the GPUs:";

	if (lien_print_left(title, json_object_get(result, "left")))
		title = NULL;
	if (lien_print_not_selected(title, result))
		title = NULL;
	if (json_object_get(result, "unexplained"))
		lien_print_unexplained(title, json_object_get(result, "unexplained"));
}

/* wall_ms: what the caller has waited, with the time until the agent began and any retries. */
static void print_sum(const struct words *words, const json_t *result, double wall_ms)
{
	uint64_t count = json_array_size(json_object_get(result, "processes"));
	uint64_t discarded = lien_get_number(result, "discarded_bytes");
	bool dry = !strcmp(lien_get_text(result, "outcome"), "dry run");
	char *text = lien_format("%s %s of %" PRIu64 " %s", dry ? words->would : words->done,
		lien_bytes(lien_get_number(result, "bytes") + discarded).text,
		LIEN_PLURAL(count, "process", "processes"));

	if (discarded)
		text = lien_append(
			text, " ", "(%s of that %s)", lien_bytes(discarded).text, words->discarded);
	if (lien_get_number(result, "inferred_bytes"))
		text = lien_append(text, " ", "(%s of that is probably NCCL's)",
			lien_bytes(lien_get_number(result, "inferred_bytes")).text);
	if (!dry)
		text = lien_append(text, " ", "in %s", lien_time(wall_ms).text);
	lien_print_wrapped(stdout, 2, "%s", text);
	free(text);
}

/* What a restore with --lazy did. */
static void print_lazy(const json_t *lazy)
{
	const char *undivided = lien_get_text(lazy, "undivided");
	const json_t *first = json_object_get(lazy, "first_ms");
	const uint64_t parts = lien_get_number(lazy, "parts");

	if (undivided[0])
		lien_print_wrapped(stdout, 2,
			parts > 1 ? "the last part came at once: %s" : "all came at once: %s",
			undivided);
	else if (parts > 1 && json_is_number(first))
		lien_print_wrapped(stdout, 2,
			"in %" PRIu64 " parts; the first could be used after %s", parts,
			lien_time(json_number_value(first)).text);
}

static void print_free(const json_t *result)
{
	const json_t *gpus = json_object_get(result, "free"), *gpu;
	bool dry = !strcmp(lien_get_text(result, "outcome"), "dry run");
	uint64_t bytes, movable;
	char name[64];
	char *text;
	size_t i;

	json_array_foreach (gpus, i, gpu) {
		if (json_is_integer(json_object_get(gpu, "gpu")))
			snprintf(name, sizeof(name), "GPU %" PRIu64, lien_get_number(gpu, "gpu"));
		else
			snprintf(name, sizeof(name), "device %" PRIu64 " of process %" PRIu64,
				lien_get_number(gpu, "device"), lien_get_number(gpu, "pid"));
		bytes = lien_get_number(gpu, "bytes");
		movable = lien_get_number(gpu, "movable_bytes");
		text = lien_format("%s: %s asked for, %s %s (%" PRIu64 " %s)", name,
			lien_bytes(lien_get_number(gpu, "asked_bytes")).text,
			lien_bytes(bytes).text, dry ? "would move" : "moved",
			LIEN_PLURAL(
				lien_get_number(gpu, "allocations"), "allocation", "allocations"));
		text = lien_append(
			text, ", ", "%s more could be moved", lien_bytes(movable - bytes).text);
		lien_print_wrapped(stdout, 2, "%s", text);
		free(text);
	}
}

static void print_result(const struct words *words, const json_t *result, double wall_ms)
{
	const json_t *processes = json_object_get(result, "processes");
	const char *outcome = lien_get_text(result, "outcome");

	if (!strcmp(outcome, "nothing to do") || !strcmp(outcome, "unknown")) {
		const bool none = strcmp(outcome, "unknown") &&
				  !json_array_size(json_object_get(result, "left"));

		printf("%s\n", none || words != &words_offload ? words->nothing : words->unknown);
		if (words == &words_offload)
			lien_print_idle(result);
		else
			lien_print_hidden(result);
		lien_print_left("not movable:", json_object_get(result, "left"));
		lien_print_unknown(json_object_get(result, "unknown"));
		return;
	}
	if (json_array_size(processes))
		print_processes(words, processes);
	if (lien_get_number(result, "verified_bytes"))
		printf("%s compared with what was saved: no difference\n",
			lien_bytes(lien_get_number(result, "verified_bytes")).text);
	print_sum(words, result, wall_ms);
	if (json_is_object(json_object_get(result, "lazy")))
		print_lazy(json_object_get(result, "lazy"));
	if (json_is_array(json_object_get(result, "free"))) {
		print_free(result); /* the rest was not asked for */
		lien_print_short("did not come free:", json_object_get(result, "short"));
		return;
	}
	print_left(result);
	lien_print_short("did not come free:", json_object_get(result, "short"));
	lien_print_unknown(json_object_get(result, "unknown"));
}

static json_t *name_of(const char *text, size_t length)
{
	return json_stringn(text, length);
}

/* An index as nvidia-smi has it, or the beginning of a UUID. */
static json_t *gpu_of(const char *text, size_t length)
{
	return strspn(text, "0123456789") == length && length < 10 ? json_integer(atoi(text))
								   : name_of(text, length);
}

/* Parses ITEM,ITEM into a member of the request; the agent reports wrong items. */
static bool add_list(json_t *request, const char *member, const struct lien_names *names,
	json_t *(*item)(const char *text, size_t length))
{
	json_t *list = json_array();
	const char *at;
	size_t length;

	for (unsigned i = 0; i < names->count; i++)
		for (at = names->name[i];; at += length + 1) {
			length = strcspn(at, ",");
			if (json_array_append_new(list, item(at, length))) {
				json_decref(list);
				return false;
			}
			if (!at[length])
				break;
		}
	if (names->count)
		json_object_set_new(request, member, list);
	else
		json_decref(list);
	return true;
}

/* Returns true if an offload was to move memory, and all of it must stay. */
static bool moved_nothing_selected(const json_t *result)
{
	const json_t *idle = json_object_get(result, "idle"), *entry;
	size_t i;

	if (strcmp(lien_get_text(result, "outcome"), "nothing to do"))
		return false;
	json_array_foreach (idle, i, entry)
		if (lien_get_number(entry, "bytes") > lien_get_number(entry, "not_selected_bytes"))
			return true;
	return false;
}

/* Takes ownership of request. */
static int carry_out(const struct words *words, json_t *request, const char *socket, bool json,
	unsigned retry_ms)
{
	sigset_t before;
	struct shown shown = {
		.words = words, .socket = socket, .signals = lien_interrupt_open(&before)};
	int code;
	/* No limit here: the agent limits every wait, and copies take as long as they need. */
	struct lien_query query = {.command = words->usage->command,
		.socket = socket,
		.retry_ms = retry_ms,
		.progress = isatty(STDERR_FILENO) ? show_progress : NULL,
		.progress_arg = &shown,
		.wake_fd = shown.signals,
		.wake = shown.signals < 0 ? NULL : on_signal,
		.wake_arg = &shown,
		.code = &code};
	uint64_t began = lien_clock_ns();
	const bool dry = lien_get_true(request, "dry_run");
	json_t *result;
	double wall_ms;

	json_object_set_new(request, "op", json_string(words->op));
	result = lien_query(&query, request);
	wall_ms = (lien_clock_ns() - began) / 1e6;
	lien_interrupt_close(shown.signals, &before);
	if (!result)
		return code;
	if (words == &words_offload && !strcmp(lien_get_text(result, "outcome"), "done"))
		add_rest(result, socket);
	if (json)
		lien_print_json(stdout, result);
	else
		print_result(words, result, wall_ms);
	code = LIEN_EXIT_OK;
	if (!dry && moved_nothing_selected(result)) {
		lien_complain(words->usage->command, "nothing was moved: none of the selected "
						     "memory can be moved; `lien mem` says why");
		code = LIEN_EXIT_FAILURE;
	}
	json_decref(result);
	return code;
}

/* On several nodes. Takes ownership of request. */
static int carry_out_on_nodes(const struct words *words, json_t *request,
	const struct lien_nodes_options *options, const struct lien_pids *pids, const char *socket,
	bool json)
{
	struct lien_nodes nodes = {0};
	const struct lien_nodes_move move = {.command = words->usage->command,
		.request = request,
		.pids = pids,
		.slurm = options->slurm,
		.state = options->state,
		.lease_ms = options->lease_ms,
		.restore = words == &words_restore};
	json_t *result = NULL;
	int code;

	json_object_set_new(request, "op", json_string(words->op));
	if (lien_nodes_prepare(words->usage, options, socket, &nodes, &code))
		result = lien_nodes_move(&nodes, &move, &code);
	lien_nodes_free(&nodes);
	json_decref(request);
	if (!result)
		return code;
	if (json)
		lien_print_json(stdout, result);
	else
		lien_print_nodes_move(result, move.restore);
	json_decref(result);
	return LIEN_EXIT_OK;
}

/* Returns false after a message: a process is named with its node, and there are no nodes. */
static bool check_no_nodes(const struct words *words, const struct lien_pids *pids)
{
	unsigned i;

	for (i = 0; i < pids->count; i++)
		if (pids->node[i]) {
			lien_usage_error(words->usage, "--pid '%s' needs --nodes", pids->node[i]);
			return false;
		}
	return true;
}

int lien_cmd_offload(int argc, char **argv)
{
	static struct lien_pids pids;
	const char *socket = NULL, *owner = NULL, *on_use = NULL;
	static struct lien_names discards, gpus, comms, tags;
	static struct lien_nodes_options nodes;
	bool json = false, dry_run = false, strict = false, closure = false, verify = false;
	bool multicast = false;
	uint64_t host_limit = 0, free_bytes = 0;
	unsigned long timeout = 0, retry = 0;
	const struct lien_option options[] = {
		{"owner", LIEN_OPTION_STRING, &owner, "NAME",
			"whose memory: nccl (default), all, or an owner of `lien mem`", 0},
		{"pid", LIEN_OPTION_PIDS, &pids, "[NODE:]PID", "only this process; may be repeated",
			0},
		{"gpu", LIEN_OPTION_NAMES, &gpus, "GPU",
			"only memory on it: nvidia-smi's index, or a UUID; may be repeated", 0},
		{"comm", LIEN_OPTION_NAMES, &comms, "GROUP",
			"only communicators of this group (`lien comms`); may be repeated", 0},
		{"free", LIEN_OPTION_SIZE, &free_bytes, "SIZE",
			"only as much as makes SIZE free, on each GPU: 10G", 0},
		{"tag", LIEN_OPTION_NAMES, &tags, "TAG",
			"only memory with this tag (`lien mem --by tag`), of any owner unless "
			"--owner is given; "
			"may be repeated",
			0},
		{"timeout", LIEN_OPTION_NUMBER, &timeout, "MS",
			"how long the job may take to come to rest (default 10000)",
			TIMEOUT_MS_MAX},
		{"retry", LIEN_OPTION_NUMBER, &retry, "MS",
			"try again for so long when the job does not come to rest", TIMEOUT_MS_MAX},
		{"on-use", LIEN_OPTION_CHOICE, &on_use, "wait|restore|ignore",
			"when a thread needs offloaded memory: it waits (default), or a restore "
			"starts; ignore: threads run on, and none of them may use it",
			0},
		{"dry-run", LIEN_OPTION_FLAG, &dry_run, NULL, "only show what would be done", 0},
		{"strict", LIEN_OPTION_FLAG, &strict, NULL,
			"refuse when anything selected would be left behind", 0},
		{"with-closure", LIEN_OPTION_FLAG, &closure, NULL,
			"include the processes that share memory with those of --pid", 0},
		{"multicast", LIEN_OPTION_FLAG, &multicast, NULL,
			"also what NVLS or fabric handles hold; not tried on hardware", 0},
		{"discard", LIEN_OPTION_NAMES, &discards, "WHAT",
			"free it without saving: an owner, or tag:TAG; may be repeated", 0},
		{"verify", LIEN_OPTION_FLAG, &verify, NULL,
			"keep checksums, with which the restore compares", 0},
		{"host-limit", LIEN_OPTION_SIZE, &host_limit, "SIZE",
			"refuse if all processes would then hold more host memory: 64G", 0},
		LIEN_NODES_OPTIONS(&nodes), LIEN_NODES_MOVE_OPTIONS(&nodes),
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
	if (!add_list(request, "discard", &discards, name_of) ||
		!add_list(request, "gpus", &gpus, gpu_of) ||
		!add_list(request, "comms", &comms, name_of) ||
		!add_list(request, "tags", &tags, name_of)) {
		json_decref(request);
		return lien_usage_error(
			&offload_usage, "--discard, --gpu, --comm or --tag is not UTF-8");
	}
	if (timeout)
		json_object_set_new(request, "timeout_ms", json_integer(timeout));
	if (host_limit)
		json_object_set_new(request, "host_limit_bytes", json_integer(host_limit));
	if (free_bytes)
		json_object_set_new(request, "free_bytes", json_integer(free_bytes));
	if (verify)
		json_object_set_new(request, "verify", json_true());
	if (dry_run)
		json_object_set_new(request, "dry_run", json_true());
	if (strict)
		json_object_set_new(request, "strict", json_true());
	if (closure)
		json_object_set_new(request, "with_closure", json_true());
	if (multicast)
		json_object_set_new(request, "multicast", json_true());
	if (on_use)
		json_object_set_new(request, "on_use", json_string(on_use));
	if (lien_nodes_wanted(&nodes))
		return carry_out_on_nodes(&words_offload, request, &nodes, &pids, socket, json);
	if (!check_no_nodes(&words_offload, &pids)) {
		json_decref(request);
		return LIEN_EXIT_USAGE;
	}
	lien_query_add_pids(request, &pids);
	return carry_out(&words_offload, request, socket, json, retry);
}

int lien_cmd_restore(int argc, char **argv)
{
	static struct lien_pids pids;
	static struct lien_names comms, tags;
	static struct lien_nodes_options nodes;
	const char *socket = NULL;
	bool json = false, lazy = false;
	unsigned long timeout = 0;
	const struct lien_option options[] = {{"pid", LIEN_OPTION_PIDS, &pids, "[NODE:]PID",
						      "only this process; may be repeated", 0},
		{"comm", LIEN_OPTION_NAMES, &comms, "GROUP",
			"only what NCCL needs for this group (`lien comms`); may be repeated", 0},
		{"tag", LIEN_OPTION_NAMES, &tags, "TAG",
			"only memory with this tag (`lien mem --by tag`); may be repeated", 0},
		{"lazy", LIEN_OPTION_FLAG, &lazy, NULL,
			"communicator by communicator: each can be used when its memory is back, "
			"and those for which threads wait come first",
			0},
		{"timeout", LIEN_OPTION_NUMBER, &timeout, "MS",
			"accepted as for `lien offload`; the steps have limits of their own",
			TIMEOUT_MS_MAX},
		LIEN_NODES_OPTIONS(&nodes), LIEN_NODES_MOVE_OPTIONS(&nodes),
		LIEN_CLIENT_OPTIONS(&json, &socket), {}};
	json_t *request;
	int code;

	if (!lien_options_read(&restore_usage, options, &argc, &argv, &code))
		return code;
	request = json_object();
	if (timeout)
		json_object_set_new(request, "timeout_ms", json_integer(timeout));
	if (!add_list(request, "comms", &comms, name_of) ||
		!add_list(request, "tags", &tags, name_of)) {
		json_decref(request);
		return lien_usage_error(&restore_usage, "--comm or --tag is not UTF-8");
	}
	if (lazy)
		json_object_set_new(request, "lazy", json_true());
	if (lien_nodes_wanted(&nodes))
		return carry_out_on_nodes(&words_restore, request, &nodes, &pids, socket, json);
	if (!check_no_nodes(&words_restore, &pids)) {
		json_decref(request);
		return LIEN_EXIT_USAGE;
	}
	lien_query_add_pids(request, &pids);
	return carry_out(&words_restore, request, socket, json, 0);
}
