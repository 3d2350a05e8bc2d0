// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/comms_late.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

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
static const char *reason(const json_t *process)
{
	const char *problem = lien_get_text(process, "problem");

	if (problem[0])
		return problem;
	return strcmp(lien_get_text(process, "ras"), "answered") ? "NCCL's RAS was not asked"
								 : "NCCL's RAS does not name all";
}

/* Returns true if an earlier process has the same reason: those are printed together. */
static bool told_before(const json_t *late, size_t end, const char *why)
{
	const json_t *process;
	size_t i;

	json_array_foreach (late, i, process) {
		if (i >= end)
			break;
		if (lien_get_true(process, "others") && !strcmp(reason(process), why))
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
		if (!lien_get_true(process, "others") || strcmp(reason(process), why))
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

bool lien_print_late(const json_t *late, bool more)
{
	bool printed = print_unmatched(late, more), first = true;
	const json_t *process;
	size_t i;

	json_array_foreach (late, i, process) {
		if (!lien_get_true(process, "others") || told_before(late, i, reason(process)))
			continue;
		if (first && (printed || more))
			printf("\n");
		first = false;
		printed = true;
		print_unknown(late, reason(process));
	}
	return printed;
}
