// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/moved.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

uint64_t lien_moved_bytes(const json_t *result)
{
	return lien_get_number(result, "bytes") + lien_get_number(result, "discarded_bytes");
}

char *lien_freed_text(const json_t *process)
{
	if (!json_is_integer(json_object_get(process, "freed_bytes")))
		return lien_format("-");
	return lien_format("%s", lien_bytes(lien_get_number(process, "freed_bytes")).text);
}

#define PIDS_SHOWN 8

struct reason {
	const char *text; /* from the reply */
	uint64_t bytes, allocations, processes;
	const json_t *first;
	char *pids;
	bool unknown; /* nor is it known whose the rest is */
};

static int by_bytes(const void *a, const void *b)
{
	const struct reason *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return strcmp(x->text, y->text);
}

static struct reason *find_reason(
	struct reason *reasons, size_t *count, const char *text, const json_t *entry)
{
	for (size_t i = 0; i < *count; i++) {
		if (!strcmp(reasons[i].text, text))
			return &reasons[i];
	}
	reasons[*count].text = text;
	reasons[*count].first = entry;
	return &reasons[(*count)++];
}

static void add_to_reason(struct reason *reason, const json_t *entry)
{
	uint64_t pid = lien_get_number(entry, "pid");

	reason->bytes += lien_get_number(entry, "bytes");
	reason->allocations += lien_get_number(entry, "allocations");
	if (!pid) {
		reason->unknown = true;
		return;
	}
	if (++reason->processes <= PIDS_SHOWN)
		reason->pids = lien_append(reason->pids, ", ", "%" PRIu64, pid);
}

/* "processes 812, 813 and an unknown one" */
static char *owners(const struct reason *reason)
{
	char *text;

	if (!reason->processes)
		return lien_format("an unknown process");
	text = lien_format("%s %s", reason->processes == 1 ? "process" : "processes", reason->pids);
	if (reason->processes > PIDS_SHOWN)
		text = lien_append(
			text, " ", "and %" PRIu64 " more", reason->processes - PIDS_SHOWN);
	return reason->unknown ? lien_append(text, " ", "and an unknown one") : text;
}

/* " (at 0x7f00, because of process 813)": one example, for `lien holders`. */
static char *example(const struct reason *reason)
{
	const char *address = lien_get_text(reason->first, "address");
	uint64_t holder = lien_get_number(reason->first, "holder");
	uint64_t pid = lien_get_number(reason->first, "pid");
	const char *at = reason->allocations == 1 ? "at" : "first at";
	char *text;

	if (!*address)
		return lien_format("%s", "");
	text = lien_format(" (%s %s", at, address);
	if (pid && reason->processes + reason->unknown > 1)
		text = lien_append(text, " ", "of process %" PRIu64, pid);
	if (lien_get_true(reason->first, "other_user"))
		text = lien_append(text, ", ", "because of a process of another user");
	else if (holder)
		text = lien_append(text, ", ", "because of process %" PRIu64, holder);
	return lien_append(text, "", ")");
}

bool lien_print_left(const char *title, const json_t *left)
{
	struct reason *reasons;
	const json_t *entry;
	size_t i, count = 0;

	if (!json_array_size(left))
		return false;
	reasons = calloc(json_array_size(left), sizeof(*reasons));
	if (!reasons)
		return false;
	json_array_foreach (left, i, entry)
		add_to_reason(
			find_reason(reasons, &count, lien_get_text(entry, "reason"), entry), entry);
	qsort(reasons, count, sizeof(*reasons), by_bytes);
	printf("\n%s\n", title);
	for (i = 0; i < count; i++) {
		const struct reason *r = &reasons[i];
		char *where = example(r), *who = owners(r);

		lien_print_wrapped(stdout, 4, "  %s in %" PRIu64 " %s of %s%s: %s",
			lien_bytes(r->bytes).text,
			LIEN_PLURAL(r->allocations, "allocation", "allocations"), who, where,
			r->text);
		free(who);
		free(where);
		free(r->pids);
	}
	free(reasons);
	return true;
}

void lien_print_short(const char *title, const json_t *rows)
{
	const json_t *row;
	size_t i;

	if (json_array_size(rows))
		printf("\n%s\n", title);
	json_array_foreach (rows, i, row) {
		const uint64_t more = lien_get_number(row, "processes") - 1;
		char *others =
			more ? lien_format(" and %" PRIu64 " more", more) : lien_format("%s", "");

		lien_print_wrapped(stdout, 4,
			"  %s of %s dropped on the GPU of process %" PRIu64
			"%s: another program has allocated meanwhile, or something that lien does "
			"not see holds the old memory (`lien check --deep`, `lien doctor`)",
			lien_bytes(lien_get_number(row, "missing_bytes")).text,
			lien_bytes(lien_get_number(row, "dropped_bytes")).text,
			lien_get_number(row, "pid"), others);
		free(others);
	}
}

static void print_unknown_read(const json_t *entry)
{
	uint64_t bytes = lien_get_number(entry, "bytes");
	uint64_t movable = lien_get_number(entry, "movable_bytes");

	printf("  process %" PRIu64 ": %s in %" PRIu64 " %s", lien_get_number(entry, "pid"),
		lien_bytes(bytes).text,
		LIEN_PLURAL(lien_get_number(entry, "allocations"), "allocation", "allocations"));
	if (movable == bytes)
		printf(", all movable\n");
	else
		printf(", %s movable\n", lien_bytes(movable).text);
}

static void print_unknown_unread(const json_t *entry)
{
	uint64_t pid = lien_get_number(entry, "pid");

	lien_print_wrapped(stdout, 4,
		"  process %" PRIu64 ": ran before the agent, and its memory has not been read: "
		"`lien attach %" PRIu64 "` reads it",
		pid, pid);
}

void lien_print_unknown(const json_t *unknown)
{
	uint64_t movable = 0, stays = 0;
	const json_t *entry;
	size_t i;

	if (!json_array_size(unknown))
		return;
	printf("\nnot selected, because its owner is unknown:\n");
	json_array_foreach (unknown, i, entry) {
		movable += lien_get_number(entry, "movable_bytes");
		stays += lien_get_number(entry, "bytes") - lien_get_number(entry, "movable_bytes");
		if (lien_get_number(entry, "bytes"))
			print_unknown_read(entry);
		if (json_is_false(json_object_get(entry, "read")))
			print_unknown_unread(entry);
	}
	if (movable)
		lien_print_wrapped(stdout, 2,
			"`lien offload --owner unknown` moves %s of this; `lien offload "
			"--owner all` moves it with everything else",
			lien_bytes(movable).text);
	if (stays)
		lien_print_wrapped(stdout, 2,
			"`lien offload --owner unknown --dry-run` says why %s cannot be moved",
			lien_bytes(stays).text);
}

static char *moved_text(const json_t *process)
{
	return lien_format("%s", lien_bytes(lien_moved_bytes(process)).text);
}

void lien_print_nodes_move(const json_t *result, bool restore)
{
	const struct lien_column columns[] = {
		{"NODE", LIEN_TEXT, .member = "node"},
		{"PID", LIEN_NUMBER, .member = "pid"},
		{restore ? "RESTORED" : "MOVED", LIEN_BYTES, .text = moved_text},
		{"FREED", LIEN_BYTES, .text = lien_freed_text, .hidden = restore},
		{"ALLOCS", LIEN_NUMBER, .member = "allocations", .drop = 1},
		{"IMPORTS", LIEN_NUMBER, .member = "imports", .drop = 2},
	};
	const json_t *nodes = json_object_get(result, "nodes"), *node;
	const char *outcome = lien_get_text(result, "outcome");
	const bool dry = !strcmp(outcome, "dry run");
	struct lien_table *table;
	uint64_t processes = 0, with = 0;
	const json_t *list, *process;
	char *text;
	size_t i, j;

	if (!strcmp(outcome, "nothing to do")) {
		printf("%s\n", restore ? "nothing is offloaded on any of the nodes"
				       : "nothing to offload on any of the nodes");
		return;
	}
	table = lien_table_new(LIEN_COLUMNS(columns));
	json_array_foreach (nodes, i, node) {
		list = json_object_get(json_object_get(node, "result"), "processes");
		json_array_foreach (list, j, process)
			lien_table_row(table, process, node);
		processes += json_array_size(list);
		with += json_array_size(list) > 0;
	}
	lien_table_end(table, stdout);
	text = lien_format("%s %s of %" PRIu64 " %s on %" PRIu64 " %s",
		dry	  ? "would offload"
		: restore ? "restored"
			  : "offloaded",
		lien_bytes(lien_moved_bytes(result)).text,
		LIEN_PLURAL(processes, "process", "processes"), LIEN_PLURAL(with, "node", "nodes"));
	if (!dry)
		text = lien_append(text, " ", "in %s", lien_time(lien_get_real(result, "ms")).text);
	printf("\n");
	lien_print_wrapped(stdout, 2, "%s", text);
	free(text);
	json_array_foreach (nodes, i, node)
		if (json_is_null(json_object_get(node, "result")))
			lien_print_wrapped(stdout, 2,
				"%s has %s as well; how much is not known, for its result has not "
				"come",
				lien_get_text(node, "node"), restore ? "restored" : "offloaded");
	json_array_foreach (nodes, i, node) {
		text = lien_format("left on the GPUs of %s:", lien_get_text(node, "node"));
		lien_print_left(text, json_object_get(json_object_get(node, "result"), "left"));
		free(text);
	}
}
