// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/nodes_print.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/left.h"
#include "tools/cli/moved.h"
#include "tools/text/output.h"

static char *moved_text(const json_t *process)
{
	return lien_format("%s", lien_size(lien_moved_bytes(process)).text);
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
		lien_size(lien_moved_bytes(result)).text,
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
