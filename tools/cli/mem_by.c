// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/mem_by.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

/* Function names may be long, but are informative: do not shorten them. */
static void print_sites(const json_t *rows)
{
	const json_t *row;
	size_t i;

	json_array_foreach (rows, i, row) {
		uint64_t offloaded = lien_get_number(row, "offloaded_bytes");

		lien_print_wrapped(stdout, 4, "%s in %" PRIu64 " %s of %s memory%s%s: %s",
			lien_size(lien_get_number(row, "bytes")).text,
			LIEN_PLURAL(
				lien_get_number(row, "allocations"), "allocation", "allocations"),
			lien_get_text(row, "kind"), offloaded ? ", offloaded " : "",
			offloaded ? lien_size(offloaded).text : "", lien_get_text(row, "key"));
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

void lien_print_total(const json_t *result, uint64_t offloaded)
{
	const uint64_t all = lien_get_number(result, "offload_frees"), nccl = frees_nccl(result);
	char *text = lien_format(
		"total: %s on the GPUs", lien_size(lien_get_number(result, "bytes")).text);

	if (!json_is_null(json_object_get(result, "offload_frees")))
		text = lien_append(
			text, ", ", "of which an offload frees %s", lien_size(nccl).text);
	if (nccl < all)
		text = lien_append(text, ", ", "and with --owner all %s", lien_size(all).text);
	if (offloaded)
		text = lien_append(text, "; ", "%s offloaded now", lien_size(offloaded).text);
	printf("\n");
	lien_print_wrapped(stdout, 2, "%s", text);
	free(text);
}

void lien_print_mem_by(const json_t *result)
{
	const char *by = lien_get_text(result, "by");
	const json_t *rows = json_object_get(result, "rows");

	if (!strcmp(by, "callsite"))
		print_sites(rows);
	else
		print_table(by, rows);
	lien_print_total(result, 0);
	lien_print_host_bytes(result);
}

void lien_print_host_bytes(const json_t *result)
{
	uint64_t bytes = lien_get_number(result, "host_bytes");
	uint64_t arena = lien_get_number(result, "arena_bytes");

	if (bytes)
		printf("and %s of the host's memory, pinned for the GPUs\n", lien_size(bytes).text);
	if (arena)
		lien_print_wrapped(stdout, 2,
			json_is_null(json_object_get(result, "offload_frees")) /* a recording */
				? "lien kept %s of the host's memory pinned for offloads"
				: "lien keeps %s of the host's memory pinned for offloads: see "
				  "`lien arena`",
			lien_size(arena).text);
}
