// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/named.h"
#include "tools/cli/commands.h"
#include "tools/cli/idle.h"
#include "tools/cli/nodes_view.h"
#include "tools/cli/options.h"
#include "tools/cli/query.h"
#include "tools/text/output.h"

#define PENDING_MS 3000 /* until NCCL's RAS has answered */

static const char *const examples[] = {"lien comms",
	"every communicator: its ranks, what it costs, who is behind",
	"lien comms --group 5ac1d2e0", "the group whose name begins so", "lien comms --pid 812",
	"those of one process", "lien comms --json | jq '.groups[] | select(.behind != [])'",
	"the groups in which a rank is behind", NULL};

static const struct lien_usage usage = {
	.command = "lien comms",
	.arguments = "",
	.summary = "Shows NCCL's communicators by group: where the group came from, which ranks of "
		   "it are "
		   "on this node, what memory and registrations each has, what it was asked for, "
		   "and "
		   "which rank is behind. Calls are counted when they are made, not when the GPU "
		   "ends them.",
	.tables = true,
	.apart = (const char *const[]){"nodes", "pid", "slurm", "pid", "nodes", "from", "slurm",
		"from", NULL},
	.examples = examples,
};

/* --- selection -------------------------------------------------------------------------------- */

struct selection {
	const char *group; /* prefix of its name; NULL: all */
	pid_t pid;	   /* 0: all */
};

static bool in_group(const struct selection *selection, const json_t *entry)
{
	return !selection->group ||
	       !strncmp(lien_get_text(entry, "group"), selection->group, strlen(selection->group));
}

static bool of_process(const struct selection *selection, const json_t *entry)
{
	return !selection->pid || lien_get_number(entry, "pid") == (uint64_t)selection->pid;
}

static json_t *select_comms(const json_t *comms, const struct selection *selection)
{
	json_t *kept = json_array(), *comm;
	size_t i;

	json_array_foreach (comms, i, comm) {
		if (in_group(selection, comm) && of_process(selection, comm))
			json_array_append(kept, comm);
	}
	return kept;
}

static bool has_comm(const json_t *group, const json_t *comms)
{
	const json_t *comm;
	size_t i;

	json_array_foreach (comms, i, comm) {
		if (!strcmp(lien_get_text(comm, "group"), lien_get_text(group, "group")))
			return true;
	}
	return false;
}

static json_t *select_behind(const json_t *behind, const struct selection *selection)
{
	json_t *kept = json_array(), *one;
	size_t i;

	json_array_foreach (behind, i, one) {
		if (of_process(selection, one))
			json_array_append(kept, one);
	}
	return kept;
}

/* Selects a group's entries that come from NCCL's RAS. */
static json_t *select_late(const json_t *late, const struct selection *selection)
{
	json_t *kept = json_array(), *process, *unmatched, *copy;
	size_t i;

	json_array_foreach (late, i, process) {
		struct selection group = {.group = selection->group};

		if (!of_process(selection, process))
			continue;
		unmatched = select_comms(json_object_get(process, "unmatched"), &group);
		copy = json_copy(process);
		json_object_set_new(copy, "unmatched", unmatched);
		if (selection->group)
			json_object_set_new(copy, "others", json_false());
		if (!selection->group || json_array_size(unmatched))
			json_array_append(kept, copy);
		json_decref(copy);
	}
	return kept;
}

/* The agent returns everything; this keeps only the requested part. */
static void select_from(json_t *result, const struct selection *selection)
{
	json_t *comms = select_comms(json_object_get(result, "communicators"), selection);
	json_t *groups = json_array(), *group, *behind;
	size_t i;

	json_array_foreach (json_object_get(result, "groups"), i, group) {
		if (!has_comm(group, comms))
			continue;
		behind = json_object_get(group, "behind");
		if (json_is_array(behind))
			json_object_set_new(group, "behind", select_behind(behind, selection));
		json_array_append(groups, group);
	}
	json_object_set_new(result, "groups", groups);
	json_object_set_new(result, "communicators", comms);
	json_object_set_new(
		result, "late", select_late(json_object_get(result, "late"), selection));
}

/* --- output ----------------------------------------------------------------------------------- */

static char *rank_text(const json_t *comm)
{
	const char *mark = lien_get_true(comm, "complete") ? "" : "*";

	if (!json_is_integer(json_object_get(comm, "rank")))
		return lien_format("-%s", mark);
	return lien_format("%" PRIu64 "%s", lien_get_number(comm, "rank"), mark);
}

static char *memory_text(const json_t *comm)
{
	return lien_format("%s",
		lien_bytes(lien_get_number(comm, "bytes") + lien_get_number(comm, "host_bytes"))
			.text);
}

static char *inferred_text(const json_t *comm)
{
	return lien_format("%s", lien_bytes(lien_get_number(comm, "inferred_bytes") +
					    lien_get_number(comm, "inferred_host_bytes"))
					 .text);
}

static char *registered_text(const json_t *comm)
{
	const json_t *registered = json_object_get(comm, "registrations");
	uint64_t count = lien_get_number(registered, "count");

	if (!count)
		return lien_format("-");
	return lien_format(
		"%" PRIu64 ": %s", count, lien_bytes(lien_get_number(registered, "bytes")).text);
}

/* Short form: communicators are used all the time, or not for hours. */
static struct lien_text ago(double ms)
{
	unsigned long minutes = ms > 0 ? ms / 60000 : 0;
	struct lien_text text;

	if (!minutes)
		text = lien_time(ms);
	else if (minutes < 120)
		snprintf(text.text, sizeof(text.text), "%lu min", minutes);
	else if (minutes < 48 * 60)
		snprintf(text.text, sizeof(text.text), "%lu h", minutes / 60);
	else
		snprintf(text.text, sizeof(text.text), "%lu d", minutes / 1440);
	return text;
}

static char *last_text(const json_t *comm)
{
	const json_t *last = json_object_get(comm, "last_ms");

	return json_is_real(last) ? lien_format("%s ago", ago(json_real_value(last)).text)
				  : lien_format("-");
}

static void print_title(const json_t *group)
{
	const char *made_by = lien_get_text(group, "made_by"), *parent;
	const json_t *id = json_object_get(group, "id");
	const char *address = lien_get_text(id, "address");
	uint64_t here = lien_get_number(group, "here");
	const char *where = json_object_get(group, "nodes") ? "these nodes" : "this node";
	char *text;

	if (!strcmp(lien_get_text(group, "group"), "0000000000000000")) {
		lien_print_wrapped(stdout, 2, "%" PRIu64 " unknown %s, made before lien watched",
			LIEN_PLURAL(here, "communicator", "communicators"));
		return;
	}
	text = lien_format("group %s: ", lien_get_text(group, "group"));
	if (json_is_integer(json_object_get(group, "nranks")))
		text = lien_append(text, "", "%" PRIu64 " of %" PRIu64 " %s on %s", here,
			LIEN_PLURAL(lien_get_number(group, "nranks"), "rank", "ranks"), where);
	else
		text = lien_append(text, "", "%" PRIu64 " %s on %s, size not known",
			LIEN_PLURAL(here, "rank", "ranks"), where);
	if (lien_get_text(group, "by")[0])
		text = lien_append(text, ", ", "named by NCCL's RAS");
	text = lien_append(
		text, ", ", "made %s%s", made_by[0] ? "by " : "before lien watched", made_by);
	if (address[0])
		text = lien_append(text, ", ", "set up at %s", address);
	if (!strcmp(made_by, "ncclCommSplit") || !strcmp(made_by, "ncclCommShrink")) {
		parent = lien_get_text(group, "parent");
		text = lien_append(text, " ", "%s%s",
			parent[0] ? "from group " : "from a group that is gone", parent);
	}
	lien_print_wrapped(stdout, 2, "%s", text);
	free(text);
}

static char *calls_in_words(const char *call, uint64_t count)
{
	static const struct {
		const char *call, *one, *many;
	} words[] = {
		{"ncclAllReduce", "all-reduce", "all-reduces"},
		{"ncclBroadcast", "broadcast", "broadcasts"},
		{"ncclReduce", "reduce", "reduces"},
		{"ncclAllGather", "all-gather", "all-gathers"},
		{"ncclReduceScatter", "reduce-scatter", "reduce-scatters"},
		{"ncclAlltoAll", "all-to-all", "all-to-alls"},
		{"ncclGather", "gather", "gathers"},
		{"ncclScatter", "scatter", "scatters"},
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (!strcmp(call, words[i].call))
			return lien_format(
				"%" PRIu64 " %s", LIEN_PLURAL(count, words[i].one, words[i].many));
	return lien_format("%" PRIu64 " calls of %s", count, call);
}

/* Describes everything that one communicator is behind with, in one sentence. */
static char *behind_of(const json_t *group, const json_t *comm)
{
	const char *address = lien_get_text(comm, "address");
	char *text = NULL, *words;
	const json_t *one;
	size_t i;

	json_array_foreach (json_object_get(group, "behind"), i, one) {
		if (lien_get_number(one, "pid") != lien_get_number(comm, "pid") ||
			strcmp(lien_get_text(one, "node"), lien_get_text(comm, "node")) ||
			strcmp(lien_get_text(one, "address"), address))
			continue;
		words = calls_in_words(lien_get_text(one, "call"), lien_get_number(one, "calls"));
		text = lien_append(text, ", ", "%s", words);
		free(words);
	}
	return text;
}

static void print_remarks(const json_t *group, const json_t *comm)
{
	const char *node = lien_get_text(comm, "node");
	char *behind = behind_of(group, comm), *who;

	if (json_is_integer(json_object_get(comm, "rank")))
		who = lien_format("rank %" PRIu64 " (process %" PRIu64 "%s%s)",
			lien_get_number(comm, "rank"), lien_get_number(comm, "pid"),
			*node ? " on " : "", node);
	else
		who = lien_format("process %" PRIu64 "%s%s", lien_get_number(comm, "pid"),
			*node ? " on " : "", node);
	if (behind)
		lien_print_wrapped(stdout, 2, "%s is behind by %s", who, behind);
	if (!strcmp(lien_get_text(comm, "state"), "finalized"))
		lien_print_wrapped(stdout, 2, "%s has finalized its communicator", who);
	free(behind);
	free(who);
}

static void print_transfers(const json_t *group)
{
	uint64_t sends = lien_get_number(group, "sends"),
		 receives = lien_get_number(group, "receives");

	/* Sends and receives on other nodes are not seen here. */
	if (lien_get_number(group, "here") != lien_get_number(group, "nranks"))
		return;
	if (sends > receives)
		lien_print_wrapped(stdout, 2, "%" PRIu64 " %s without a receive so far",
			LIEN_PLURAL(sends - receives, "send is", "sends are"));
	else if (receives > sends)
		lien_print_wrapped(stdout, 2, "%" PRIu64 " %s without a send so far",
			LIEN_PLURAL(receives - sends, "receive is", "receives are"));
}

static void print_group(const json_t *group, const json_t *comms, bool *incomplete)
{
	static const struct lien_column columns[] = {
		{"NODE", LIEN_TEXT, .member = "node", .optional = true},
		{"RANK", LIEN_NUMBER, .text = rank_text},
		{"PID", LIEN_NUMBER, .member = "pid"},
		{"DEVICE", LIEN_NUMBER, .member = "device", .drop = 3},
		{"MEMORY", LIEN_BYTES, .text = memory_text},
		{"INFERRED", LIEN_BYTES, .text = inferred_text},
		{"REGISTERED", LIEN_NUMBER, .text = registered_text, .drop = 2},
		{"CALLS", LIEN_NUMBER, .member = "calls_total"},
		{"DATA", LIEN_BYTES, .member = "moved_bytes", .drop = 4},
		{"LAST CALL", LIEN_NUMBER, .text = last_text},
	};
	struct lien_table *table = lien_table_new(LIEN_COLUMNS(columns));
	const char *name = lien_get_text(group, "group");
	const json_t *comm;
	size_t i;

	print_title(group);
	json_array_foreach (comms, i, comm) {
		if (strcmp(lien_get_text(comm, "group"), name))
			continue;
		lien_table_row(table, comm, NULL);
		*incomplete |= !lien_get_true(comm, "complete");
	}
	lien_table_end(table, stdout);
	json_array_foreach (comms, i, comm) {
		if (!strcmp(lien_get_text(comm, "group"), name))
			print_remarks(group, comm);
	}
	print_transfers(group);
}

static void print_groups(const json_t *result)
{
	const json_t *comms = json_object_get(result, "communicators"), *group;
	bool incomplete = false, inferred = false;
	const json_t *comm;
	size_t i;

	json_array_foreach (json_object_get(result, "groups"), i, group) {
		if (i)
			printf("\n");
		print_group(group, comms, &incomplete);
	}
	json_array_foreach (comms, i, comm)
		inferred |= lien_get_number(comm, "inferred_bytes") ||
			    lien_get_number(comm, "inferred_host_bytes");
	if (inferred || incomplete)
		printf("\n");
	if (inferred)
		lien_print_wrapped(stdout, 2,
			"inferred: memory that NCCL's own threads, or calls that name no "
			"communicator, asked for: lien counts it for the communicator that the "
			"thread or process named last");
	if (incomplete)
		lien_print_wrapped(stdout, 2,
			"* in use before lien watched it: earlier calls are not counted");
}

static bool print_unmatched(const json_t *late, bool more)
{
	static const struct lien_column columns[] = {
		{"GROUP", LIEN_TEXT, .member = "group"},
		{"RANK", LIEN_NUMBER, .member = "rank"},
		{"OF", LIEN_NUMBER, .member = "nranks"},
		{"PID", LIEN_NUMBER, .member = "pid"},
		{"DEVICE", LIEN_NUMBER, .member = "device"},
	};
	const json_t *process, *comm;
	struct lien_table *table = NULL;
	size_t i, j;

	json_array_foreach (late, i, process) {
		json_array_foreach (json_object_get(process, "unmatched"), j, comm) {
			if (!table) {
				lien_print_wrapped(stdout, 2,
					"%snamed by NCCL's RAS and not used since lien watches:",
					more ? "\n" : "");
				table = lien_table_new(LIEN_COLUMNS(columns));
			}
			lien_table_row(table, comm, process);
		}
	}
	if (table)
		lien_table_end(table, stdout);
	return table;
}

/* Says why unnamed members may exist. */
static const char *reason_of(const json_t *process)
{
	const char *problem = lien_get_text(process, "problem");

	if (problem[0])
		return problem;
	return strcmp(lien_get_text(process, "ras"), "answered") ? "NCCL's RAS was not asked"
								 : "NCCL's RAS does not name all";
}

/* Returns true if an earlier process has the same reason_of: those are printed together. */
static bool told_before(const json_t *late, size_t end, const char *why)
{
	const json_t *process;
	size_t i;

	json_array_foreach (late, i, process) {
		if (i >= end)
			break;
		if (lien_get_true(process, "others") && !strcmp(reason_of(process), why))
			return true;
	}
	return false;
}

static void print_unknown(const json_t *late, const char *why)
{
	const json_t *process;
	unsigned count = 0;
	char *pids = NULL;
	size_t i;

	json_array_foreach (late, i, process) {
		if (!lien_get_true(process, "others") || strcmp(reason_of(process), why))
			continue;
		count++;
		pids = lien_append(pids, ", ", "%" PRIu64, lien_get_number(process, "pid"));
	}
	lien_print_wrapped(stdout, 2,
		"unknown communicators: %s %s ran before lien watched, and may have more than are "
		"listed: %s",
		count == 1 ? "process" : "processes", pids, why);
	free(pids);
}

/* Prints the members that NCCL's RAS names and that nobody has used since, then the processes that
 * may have other members. Returns true if it printed anything; begins with an empty line if
 * `more`. */
static bool print_late(const json_t *late, bool more)
{
	bool printed = print_unmatched(late, more), first = true;
	const json_t *process;
	size_t i;

	json_array_foreach (late, i, process) {
		if (!lien_get_true(process, "others") || told_before(late, i, reason_of(process)))
			continue;
		if (first && (printed || more))
			printf("\n");
		first = false;
		printed = true;
		print_unknown(late, reason_of(process));
	}
	return printed;
}

/* Lists the groups that there are. */
static int unknown_group(const json_t *groups, const char *name)
{
	uint64_t *known = calloc(json_array_size(groups) + 1, sizeof(*known));
	char error[LIEN_KNOWN_SIZE];
	const json_t *group;
	size_t i;

	if (!known)
		return lien_complain(usage.command, "out of memory");
	json_array_foreach (groups, i, group)
		known[i] = strtoull(lien_get_text(group, "group"), NULL, 16);
	lien_known_groups(known, i, name, error, sizeof(error));
	free(known);
	lien_complain(usage.command, "%s", error);
	return LIEN_EXIT_USAGE;
}

/* Returns LIEN_EXIT_OK if what was selected exists, whether or not it has a communicator. */
static int check_selection(
	const struct lien_query *query, const json_t *result, const struct selection *selection)
{
	const json_t *comms = json_object_get(result, "communicators"), *entry;
	const json_t *groups = json_object_get(result, "groups");
	const json_t *late = json_object_get(result, "late");
	struct selection group = {.group = selection->group};
	json_t *named = select_late(late, &group);
	bool found = !selection->group || json_array_size(named);
	size_t i;

	json_decref(named);
	json_array_foreach (groups, i, entry)
		found |= in_group(selection, entry);
	if (!found)
		return unknown_group(groups, selection->group);
	found = !selection->pid;
	json_array_foreach (comms, i, entry)
		found |= of_process(selection, entry);
	json_array_foreach (late, i, entry)
		found |= of_process(selection, entry);
	return found || lien_query_process(query, selection->pid) ? LIEN_EXIT_OK : *query->code;
}

static int nothing(const json_t *result, const struct selection *selection)
{
	if (print_late(json_object_get(result, "late"), false))
		return LIEN_EXIT_OK;
	if (selection->pid && selection->group)
		lien_print_wrapped(stdout, 2,
			"process %d has no communicator of the group %s, as far as the agent has "
			"seen",
			selection->pid, selection->group);
	else if (selection->pid)
		printf("process %d has no communicator, as far as the agent has seen\n",
			selection->pid);
	else
		printf("no process%s has a communicator, as far as the agent has seen\n",
			lien_of_yours(result));
	return LIEN_EXIT_OK;
}

int lien_cmd_comms(int argc, char **argv)
{
	static struct lien_pids pids;
	struct selection selection = {0};
	bool json = false;
	static struct lien_nodes_view nodes;
	int code;
	struct lien_query query = {.command = usage.command,
		.code = &code,
		.timeout_ms = LIEN_QUERY_MS,
		.pending_ms = PENDING_MS,
		.nodes = &nodes,
		.usage = &usage};
	const struct lien_option options[] = {
		{"group", LIEN_OPTION_STRING, &selection.group, "ID",
			"only this group; the beginning of its name will do", 0},
		{"pid", LIEN_OPTION_PIDS, &pids, "PID", "only communicators of this process", 1},
		LIEN_CLIENT_OPTIONS(&json, &query.socket), LIEN_FROM_OPTION(&query.from),
		LIEN_NODES_OPTIONS(&nodes.options), {}};
	json_t *result;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	result = lien_query(&query, json_pack("{s:s}", "op", "comms"));
	lien_nodes_view_free(&nodes);
	if (!result)
		return code;
	selection.pid = pids.count ? pids.pid[0] : 0;
	code = check_selection(&query, result, &selection);
	if (code) {
		json_decref(result);
		return code;
	}
	if (selection.group || selection.pid)
		select_from(result, &selection);
	if (json)
		lien_print_json(stdout, result);
	else if (!json_array_size(json_object_get(result, "communicators")))
		code = nothing(result, &selection);
	else {
		print_groups(result);
		print_late(json_object_get(result, "late"), true);
	}
	if (!json)
		lien_print_hidden(result);
	json_decref(result);
	return code;
}
