/* SPDX-License-Identifier: BSD-2-Clause */
/* tools/text: tables that fit, JSON with short numbers, suggestions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agent/graph/nearest.h"
#include "tools/text/output.h"

static enum lien_color red(const json_t *row)
{
	(void)row;
	return LIEN_COLOR_RED; /* no terminal: no colors */
}

static const struct lien_column columns[] = {
	{"PID", LIEN_NUMBER, .member = "pid", .total = LIEN_TOTAL_SUM},
	{"COMMAND", LIEN_TEXT, .member = "command", .color = red, .total = LIEN_TOTAL_LABEL},
	{"GPU", LIEN_BYTES, .member = "bytes", .drop = 1},
	{"PATH", LIEN_PATH, .member = "path", .drop = 2},
	{"A", LIEN_NUMBER, .drop = 3},
	{"B", LIEN_NUMBER, .drop = 3},
};

static void fit(size_t available, size_t command, size_t gpu, size_t path, size_t a)
{
	size_t widths[] = {7, 12, 9, 40, 5, 5};

	lien_table_fit(columns, 6, widths, available);
	assert_int_equal(widths[0], 7);
	assert_int_equal(widths[1], command);
	assert_int_equal(widths[2], gpu);
	assert_int_equal(widths[3], path);
	assert_int_equal(widths[4], a);
	assert_int_equal(widths[5], a);
}

/* Texts give way down to 32 columns, then columns go, those that are alike together, then texts
 * down to 8. */
static void test_what_matters_stays(void **state)
{
	(void)state;
	fit(SIZE_MAX, 12, 9, 40, 5);
	fit(88, 12, 9, 40, 5);
	fit(87, 12, 9, 39, 5);
	fit(80, 12, 9, 32, 5);
	fit(79, 12, 9, 40, 0);
	fit(66, 12, 9, 32, 0);
}

static void test_columns_go_before_texts(void **state)
{
	(void)state;
	fit(65, 12, 9, 0, 0);
	fit(32, 12, 9, 0, 0);
	fit(31, 12, 0, 0, 0);
	fit(21, 12, 0, 0, 0);
	fit(20, 11, 0, 0, 0);
	fit(1, 8, 0, 0, 0); /* too narrow for what must be there */
}

static char *printed(size_t available)
{
	struct lien_table *table = lien_table_new(columns, 4);
	json_t *row = json_pack("{s:i, s:s, s:I}", "pid", 7, "command", "pyth\xc3\xb6n\x1b[2J",
		"bytes", (json_int_t)5 << 29);
	json_t *whole =
		json_pack("{s:i, s:s}", "pid", 8, "path", "/usr/lib/x86_64-linux-gnu/libcuda.so.1");
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	assert_non_null(out);
	lien_table_row(table, row, whole);
	lien_table_add(table, "4194304");
	lien_table_end_in(table, out, available);
	fclose(out);
	json_decref(row);
	json_decref(whole);
	return text;
}

static void test_cells(void **state)
{
	char *text = printed(SIZE_MAX);

	(void)state;
	assert_string_equal(text, "    PID  COMMAND         GPU  PATH\n"
				  "      7  pyth\xc3\xb6n?[2J  2.5 GiB  "
				  "/usr/lib/x86_64-linux-gnu/libcuda.so.1\n"
				  "4194304\n");
	free(text);
	text = printed(63);
	assert_string_equal(text,
		"    PID  COMMAND         GPU  PATH\n"
		"      7  pyth\xc3\xb6n?[2J  2.5 GiB  .../x86_64-linux-gnu/libcuda.so.1\n"
		"4194304\n");
	free(text);
}

/* Members of each type, null and missing; columns that no row fills; a total. */
static void test_rows(void **state)
{
	static const struct lien_column typed[] = {
		{"NODE", LIEN_TEXT, .member = "node", .optional = true},
		{"NUMBER", LIEN_NUMBER, .member = "number", .total = LIEN_TOTAL_LABEL},
		{"BYTES", LIEN_BYTES, .member = "bytes", .unknown = "?", .total = LIEN_TOTAL_SUM},
		{"TEXT", LIEN_TEXT, .member = "text"},
		{"TAG", LIEN_TEXT, .member = "tag", .optional = true},
		{"NOT", LIEN_NUMBER, .member = "number", .hidden = true},
	};
	struct lien_table *table = lien_table_new(LIEN_COLUMNS(typed));
	json_t *rows = json_loads("[{\"number\": 3, \"bytes\": -4096, \"tag\": null},"
				  "{\"number\": [1, 2], \"text\": \"x\", \"tag\": \"y\"},"
				  "{\"number\": null, \"bytes\": 1024, \"node\": \"\"},"
				  "{\"number\": 1.25, \"bytes\": null}]",
		0, NULL);
	char *text = NULL;
	size_t size, i;
	FILE *out = open_memstream(&text, &size);
	json_t *row;

	(void)state;
	assert_non_null(out);
	json_array_foreach (rows, i, row)
		lien_table_row(table, row, NULL);
	lien_table_total(table, rows);
	lien_table_end_in(table, out, SIZE_MAX);
	fclose(out);
	assert_string_equal(text, "NUMBER     BYTES  TEXT  TAG\n"
				  "     3  -4.0 KiB\n"
				  "     2         ?  x     y\n"
				  "     -   1.0 KiB\n"
				  "   1.2         ?\n"
				  " total   1.0 KiB\n");
	free(text);
	json_decref(rows);
}

static void same_json(const char *text, size_t flags, const char *expected)
{
	json_t *json = json_loads(text, 0, NULL);
	char *written;

	assert_non_null(json);
	written = lien_json_text(json, flags);
	assert_string_equal(written, expected);
	free(written);
	json_decref(json);
}

static void test_numbers_are_short(void **state)
{
	(void)state;
	same_json("{\"ms\": 0.085117, \"a\": [1.0, -2.5, 0.1, 108.4, 1e300, 5]}", JSON_COMPACT,
		"{\"ms\":0.085117,\"a\":[1.0,-2.5,0.1,108.4,1e+300,5]}");
	same_json("[0.30000000000000004, 1790000000123.456, 123456789012.123]", JSON_COMPACT,
		"[0.3,1790000000123.456,123456789012.123]");
	same_json(
		"[0.0, -0.0, 18446744.073709551615]", JSON_COMPACT, "[0.0,-0.0,18446744.0737096]");
	/* text is left as it is */
	same_json("{\"0.10000000000000001\": \"\\\"0.085116999999999998\\\\\", \"n\": null}",
		JSON_COMPACT,
		"{\"0.10000000000000001\":\"\\\"0.085116999999999998\\\\\",\"n\":null}");
	same_json("[0.1, true]", JSON_INDENT(2), "[\n  0.1,\n  true\n]");
}

static const char *nearest(const char *word)
{
	static const char *const names[] = {"offload", "ps", "status", "from", "nccl", NULL};
	struct lien_nearest nearest = {.word = word};
	char *longest;

	for (unsigned i = 0; names[i]; i++)
		lien_nearest_try(&nearest, names[i]);
	longest = calloc(1, 1001);
	memset(longest, 'x', 1000);
	lien_nearest_try(&nearest, longest);
	free(longest);
	return nearest.found;
}

static void test_did_you_mean(void **state)
{
	(void)state;
	assert_string_equal(nearest("offlaod"), "offload");
	assert_string_equal(nearest("sp"), "ps");
	assert_string_equal(nearest("Ps"), "ps");
	assert_string_equal(nearest("stauts"), "status");
	assert_string_equal(nearest("ncll"), "nccl");
	assert_null(nearest("foo"));
	assert_null(nearest(""));
	assert_null(nearest("x"));
	assert_null(nearest("frobnicate"));
	assert_null(nearest("offloadoffloadoffloadoffloadoffloadoffload"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_matters_stays),
		cmocka_unit_test(test_columns_go_before_texts),
		cmocka_unit_test(test_cells),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_numbers_are_short),
		cmocka_unit_test(test_did_you_mean),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
