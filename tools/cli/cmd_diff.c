// SPDX-License-Identifier: BSD-2-Clause
/* What two snapshots or recordings differ in: the rows of `mem --by`, subtracted. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/commands.h"
#include "tools/cli/offline.h"
#include "tools/cli/options.h"
#include "tools/text/complain.h"
#include "tools/text/output.h"

#define EXIT_DIFFERENT 1
#define EXIT_ERROR     2

static const char *const examples[] = {"lien diff before.lien after.lien",
	"what has grown between two files of `lien snapshot`",
	"lien diff job.lien job.lien --at-a +60", "what a recorded job got after its first minute",
	"lien diff a.lien b.lien --by callsite", "only by where the memory was asked for", NULL};

static const struct lien_usage usage = {
	.command = "lien diff",
	.arguments = "A B",
	.summary =
		"Shows what memory is in file B and not in A, or the other way round, by library, "
		"call site, communicator and tag. Each file is a snapshot or a recording, taken as "
		"of its end or, where all processes have ended by then, its peak. Exit code 0: "
		"there is no difference; 1: there is one; 2: no answer.",
	.min = 2,
	.max = 2,
	.tables = true,
	.examples = examples,
};

static const struct aspect {
	const char *by, *title;
} aspects[] = {
	{"owner", "LIBRARY"}, {"callsite", "CALL SITE"}, {"comm", "COMMUNICATOR"}, {"tag", "TAG"}};

#define ASPECTS (sizeof(aspects) / sizeof(aspects[0]))

static const char *const figures[] = {"allocations", "bytes", "offloaded_bytes"};

/* --- the difference --------------------------------------------------------------------------- */

/* Returns the row for what the other row is about; NULL: there is none. */
static json_t *find(const json_t *rows, const json_t *like)
{
	json_t *row;
	size_t i;

	json_array_foreach (rows, i, row)
		if (json_equal(json_object_get(row, "key"), json_object_get(like, "key")) &&
			json_equal(json_object_get(row, "kind"), json_object_get(like, "kind")))
			return row;
	return NULL;
}

/* Two places may have one name, such as those in two files of a name: they are one row here. */
static json_t *merged(const json_t *rows)
{
	json_t *list = json_array(), *row, *same;
	unsigned j;
	size_t i;

	json_array_foreach (rows, i, row) {
		same = find(list, row);
		if (!same) {
			json_array_append_new(list, json_deep_copy(row));
			continue;
		}
		for (j = 0; j < sizeof(figures) / sizeof(figures[0]); j++)
			json_object_set_new(same, figures[j],
				json_integer(lien_get_number(same, figures[j]) +
					     lien_get_number(row, figures[j])));
	}
	return list;
}

static json_t *figures_of(const json_t *row)
{
	json_t *some = json_object();
	unsigned i;

	for (i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
		json_object_set_new(
			some, figures[i], json_integer(lien_get_number(row, figures[i])));
	return some;
}

static int64_t change(const json_t *row, const char *name)
{
	return (int64_t)lien_get_number(json_object_get(row, "b"), name) -
	       (int64_t)lien_get_number(json_object_get(row, "a"), name);
}

/* Adds what a row of one file and that of the other, or NULL, differ in. */
static void add(json_t *list, const json_t *named, const json_t *a, const json_t *b)
{
	json_t *before = figures_of(a), *after = figures_of(b), *row;

	if (json_equal(before, after)) {
		json_decref(before);
		json_decref(after);
		return;
	}
	row = json_pack("{s:O, s:O, s:o, s:o}", "key", json_object_get(named, "key"), "kind",
		json_object_get(named, "kind"), "a", before, "b", after);
	json_object_set_new(row, "change_bytes", json_integer(change(row, "bytes")));
	json_array_append_new(list, row);
}

/* The largest change first. */
static int by_change(const void *x, const void *y)
{
	const json_t *a = *(json_t *const *)x, *b = *(json_t *const *)y;
	const int64_t m = llabs(change(a, "bytes")), n = llabs(change(b, "bytes"));
	int order;

	if (m != n)
		return m > n ? -1 : 1;
	order = strcmp(lien_get_text(a, "key"), lien_get_text(b, "key"));
	return order ? order : strcmp(lien_get_text(a, "kind"), lien_get_text(b, "kind"));
}

static json_t *sorted(json_t *list)
{
	const size_t count = json_array_size(list);
	json_t **rows = calloc(count + 1, sizeof(*rows)), *result = json_array();
	size_t i;

	for (i = 0; rows && i < count; i++)
		rows[i] = json_array_get(list, i);
	if (rows)
		qsort(rows, count, sizeof(*rows), by_change);
	for (i = 0; rows && i < count; i++)
		json_array_append(result, rows[i]);
	free(rows);
	json_decref(list);
	return result;
}

static json_t *difference(const json_t *a, const json_t *b)
{
	json_t *before = merged(json_object_get(a, "rows"));
	json_t *after = merged(json_object_get(b, "rows"));
	json_t *list = json_array(), *row;
	size_t i;

	json_array_foreach (after, i, row)
		add(list, row, find(before, row), row);
	json_array_foreach (before, i, row)
		if (!find(after, row))
			add(list, row, row, NULL);
	json_decref(before);
	json_decref(after);
	return sorted(list);
}

static json_t *sums_of(const char *path, const json_t *mem)
{
	return json_pack("{s:s, s:I, s:I}", "path", path, "bytes",
		(json_int_t)lien_get_number(mem, "bytes"), "host_bytes",
		(json_int_t)lien_get_number(mem, "host_bytes"));
}

/* --- text ------------------------------------------------------------------------------------- */

static char *signed_size(int64_t bytes)
{
	return lien_format("%s%s",
		bytes < 0 ? "-"
		: bytes	  ? "+"
			  : "",
		lien_bytes(llabs(bytes)).text);
}

static void add_signed(struct lien_table *table, int64_t bytes)
{
	char *text = signed_size(bytes);

	lien_table_add(table, "%s", text);
	free(text);
}

static void print_table(const char *title, const json_t *rows)
{
	const struct lien_column columns[] = {{title, LIEN_TEXT, .drop = 0},
		{"KIND", LIEN_TEXT, .drop = 0}, {"ALLOCS", LIEN_NUMBER, .drop = 2},
		{"A", LIEN_NUMBER, .drop = 1}, {"B", LIEN_NUMBER, .drop = 1},
		{"CHANGE", LIEN_NUMBER, .drop = 0}, {"OFFLOADED", LIEN_NUMBER, .drop = 3}};
	struct lien_table *table = lien_table_new(LIEN_COLUMNS(columns));
	const json_t *row;
	size_t i;

	json_array_foreach (rows, i, row) {
		lien_table_add(table, "%s", lien_get_text(row, "key"));
		lien_table_add(table, "%s", lien_get_text(row, "kind"));
		lien_table_add(table, change(row, "allocations") ? "%+" PRId64 : "%" PRId64,
			change(row, "allocations"));
		lien_table_add(table, "%s",
			lien_bytes(lien_get_number(json_object_get(row, "a"), "bytes")).text);
		lien_table_add(table, "%s",
			lien_bytes(lien_get_number(json_object_get(row, "b"), "bytes")).text);
		add_signed(table, change(row, "bytes"));
		add_signed(table, change(row, "offloaded_bytes"));
	}
	lien_table_end(table, stdout);
}

/* Function names may be long, but are informative: a paragraph each, as in `lien mem`. */
static void print_sites(const json_t *rows)
{
	const json_t *row;
	size_t i;

	printf("CALL SITE\n");
	json_array_foreach (rows, i, row) {
		char *bytes = signed_size(change(row, "bytes"));
		char *offloaded = signed_size(change(row, "offloaded_bytes"));
		const int64_t allocations = change(row, "allocations");

		lien_print_wrapped(stdout, 4, "%s of %s memory%s%s, %+" PRId64 " %s: %s", bytes,
			lien_get_text(row, "kind"),
			change(row, "offloaded_bytes") ? ", offloaded " : "",
			change(row, "offloaded_bytes") ? offloaded : "", allocations,
			llabs(allocations) == 1 ? "allocation" : "allocations",
			lien_get_text(row, "key"));
		free(offloaded);
		free(bytes);
	}
}

/* Where no memory has a tag, the totals by tag say nothing that those by library do not. */
static bool any_tag(const json_t *rows)
{
	const json_t *row;
	size_t i;

	json_array_foreach (rows, i, row)
		if (strcmp(lien_get_text(row, "key"), "no tag") &&
			strcmp(lien_get_text(row, "key"), "tag not known"))
			return true;
	return false;
}

static void print(const json_t *result, const char *only)
{
	const json_t *a = json_object_get(result, "a"), *b = json_object_get(result, "b"), *rows;
	const uint64_t before = lien_get_number(a, "bytes"), after = lien_get_number(b, "bytes");
	char *text;
	unsigned i;

	for (i = 0; i < ASPECTS; i++) {
		rows = json_object_get(result, aspects[i].by);
		if (!json_array_size(rows) ||
			(!only && !strcmp(aspects[i].by, "tag") && !any_tag(rows)))
			continue;
		if (!strcmp(aspects[i].by, "callsite"))
			print_sites(rows);
		else
			print_table(aspects[i].title, rows);
		printf("\n");
	}
	text = signed_size(after - before);
	if (lien_get_true(result, "equal"))
		lien_print_wrapped(
			stdout, 2, "no difference: %s on the GPUs", lien_bytes(after).text);
	else
		lien_print_wrapped(stdout, 2, "total: %s on the GPUs: %s in A, %s in B", text,
			lien_bytes(before).text, lien_bytes(after).text);
	free(text);
}

/* --- the command ------------------------------------------------------------------------------ */

static bool asked_for(const char *only, unsigned i)
{
	return !only || !strcmp(only, aspects[i].by);
}

/* Returns NULL after a message. */
static json_t *read_file(const struct lien_from *from, const char *only)
{
	json_t *requests = json_array(), *answers;
	unsigned i;

	for (i = 0; i < ASPECTS; i++)
		if (asked_for(only, i))
			json_array_append_new(requests,
				json_pack("{s:s, s:s}", "op", "mem", "by", aspects[i].by));
	answers = lien_offline_queries(usage.command, from, requests, NULL);
	json_decref(requests);
	return answers;
}

static json_t *compare(const struct lien_from *from, const char *only)
{
	json_t *a = read_file(&from[0], only), *b = a ? read_file(&from[1], only) : NULL;
	json_t *result = NULL, *rows;
	bool equal = true;
	unsigned i, at = 0;

	if (a && b)
		result = json_pack("{s:o, s:o}", "a", sums_of(from[0].path, json_array_get(a, 0)),
			"b", sums_of(from[1].path, json_array_get(b, 0)));
	for (i = 0; result && i < ASPECTS; i++) {
		if (!asked_for(only, i))
			continue;
		rows = difference(json_array_get(a, at), json_array_get(b, at));
		equal &= !json_array_size(rows);
		json_object_set_new(result, aspects[i].by, rows);
		at++;
	}
	if (result)
		json_object_set_new(result, "equal", json_boolean(equal));
	json_decref(a);
	json_decref(b);
	return result;
}

int lien_cmd_diff(int argc, char **argv)
{
	struct lien_from from[2] = {{.option = "--at-a"}, {.option = "--at-b"}};
	const char *by = NULL;
	bool json = false, equal;
	const struct lien_option options[] = {
		{"by", LIEN_OPTION_CHOICE, &by, "owner|callsite|comm|tag",
			"only by this aspect (owner: the library)", 0},
		{"at-a", LIEN_OPTION_MOMENT, &from[0].at, "TIME",
			"A as of then: +12.5, seconds since the recording's beginning; 240.661, a "
			"time of `lien events`",
			0},
		{"at-b", LIEN_OPTION_MOMENT, &from[1].at, "TIME", "the same of B", 0},
		{"json", LIEN_OPTION_JSON, &json, NULL, "print the differences as JSON", 0}, {}};
	json_t *result;
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	from[0].path = argv[0];
	from[1].path = argv[1];
	result = compare(from, by);
	if (!result)
		return EXIT_ERROR;
	equal = lien_get_true(result, "equal");
	if (json)
		lien_print_json(stdout, result);
	else
		print(result, by);
	json_decref(result);
	return equal ? LIEN_EXIT_OK : EXIT_DIFFERENT;
}
