// SPDX-License-Identifier: BSD-2-Clause
/* What NCCL's RAS answers, whole, cut off and hostile, and the search for it in memory. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agent/ras/ras.h"

static struct lien_ras_answer answer;

static int teardown(void **state)
{
	(void)state;
	lien_ras_answer_clear(&answer);
	return 0;
}

/* In memory that ends with the text: AddressSanitizer sees a byte too many. */
static int parse(int (*parser)(const char *, size_t, struct lien_ras_answer *), const char *text,
	size_t size)
{
	char *copy = malloc(size + !size);
	int err;

	memcpy(copy, text, size);
	lien_ras_answer_clear(&answer);
	err = parser(copy, size, &answer);
	free(copy);
	return err;
}

#define JSON(text) parse(lien_ras_parse_json, text, strlen(text))

#define RANK(rank, pid, status)                                                                    \
	"        {\n          \"rank\": " rank ",\n          \"host\": \"172.16.64.245\",\n"       \
	"          \"pid\": " pid ",\n          \"cuda_dev\": 1,\n" status "\n        }"
#define STATUS                                                                                     \
	"          \"nvml_dev\": 5,\n          \"status\": {\n            \"init_state\": 0,\n"    \
	"            \"rank\": 99\n          },\n          \"collective_counts\": {\n"             \
	"            \"Broadcast\": 0,\n            \"pid\": 77\n          }"
/* NCCL 2.28.7 to 2.28.9: no comma. */
#define NO_COMMA                                                                                   \
	"          \"nvml_dev\": 1\n          \"status\": {\n            \"unresponsive\": "       \
	"true,\n"                                                                                  \
	"            \"considered_dead\": false\n          }"
#define HEAD                                                                                       \
	"{\n  \"nccl_version\": \"2.28.9\",\n  \"cuda_runtime_version\": 13000,\n"                 \
	"  \"timestamp\": \"2025-12-19 13:06:53\",\n  \"communicators_count\": 2,\n"               \
	"  \"communicators\": [\n"
#define COMM(hash)                                                                                 \
	"    {\n      \"hash\": \"" hash "\",\n"                                                   \
	"      \"secondary_hash\": \"0xb7e7187447156001:0xb8242ed28a71381e\",\n"                   \
	"      \"size\": 2,\n      \"ranks_count\": 1,\n      \"missing_ranks_count\": 1,\n"       \
	"      \"ranks\": [\n"
#define TAIL                                                                                       \
	"\n  ],\n  \"ras\": {\n    \"collection_time_sec\": 0.000,\n    \"timeouts_count\": 0\n  " \
	"}\n}\n"

static const char json[] = HEAD COMM("0xae94423cfbb2ef4a") RANK("0", "1524344", STATUS) ",\n" RANK(
	"1", "1524345", STATUS) "\n      ],\n      \"missing_ranks\": [\n\n      ]\n"
				"    },\n" COMM("0x10") RANK("1", "7",
					STATUS) "\n      ],\n      \"missing_ranks\": [\n" RANK("0",
					"8", NO_COMMA) "\n      ]\n"
						       "    }" TAIL;

static void assert_first(void)
{
	assert_true(answer.comm[0].hash == 0xae94423cfbb2ef4aull);
	assert_true(answer.comm[0].host_hash == 0xb7e7187447156001ull);
	assert_true(answer.comm[0].pid_hash == 0xb8242ed28a71381eull);
	assert_int_equal(answer.comm[0].nranks, 2);
}

static void test_json(void **state)
{
	(void)state;
	assert_int_equal(JSON(json), 0);
	assert_true(answer.whole);
	assert_string_equal(answer.version, "2.28.9");
	assert_int_equal(answer.comms, 2);
	assert_int_equal(answer.named, 2);
	assert_first();
	assert_int_equal(answer.ranks, 4);
	assert_int_equal(answer.rank[1].comm, 0);
	assert_int_equal(answer.rank[1].rank, 1);
	assert_int_equal(answer.rank[1].pid, 1524345);
	assert_int_equal(answer.rank[1].device, 1);
	assert_false(answer.rank[1].missing);
	assert_int_equal(answer.rank[1].host.family, 4);
	assert_memory_equal(answer.rank[1].host.address, "\xac\x10\x40\xf5", 4);
	assert_true(answer.comm[1].hash == 0x10);
	assert_int_equal(answer.rank[2].comm, 1);
	assert_int_equal(answer.rank[2].rank, 1);
	assert_int_equal(answer.rank[3].pid, 8);
	assert_true(answer.rank[3].missing);
}

/* Wherever it breaks off: what came before is there, and it is not taken for all. */
static void test_json_cut(void **state)
{
	size_t size, full = strlen(json);
	unsigned ranks = 0;

	(void)state;
	for (size = 0; size < full - 1; size++) {
		int err = parse(lien_ras_parse_json, json, size);

		assert_int_equal(err, size ? 0 : -EBADMSG);
		assert_false(answer.whole);
		assert_true(answer.ranks >= ranks);
		ranks = answer.ranks;
		if (answer.ranks)
			assert_first();
	}
	assert_int_equal(ranks, 4);
	assert_int_equal(parse(lien_ras_parse_json, json, full - 1), 0);
	assert_true(answer.whole);
}

/* A communicator that is being made while RAS is asked (see agent/join/ras_ask.h). */
static void test_json_of_nothing(void **state)
{
	(void)state;
	assert_int_equal(JSON("{\"communicators\": [{\"hash\": \"0x0\", \"size\": 0, \"ranks\": "
			      "[\n]}]}"),
		0);
	assert_true(answer.whole);
	assert_int_equal(answer.named, 0);
	assert_int_equal(JSON("{\"communicators\": []}"), 0);
	assert_int_equal(answer.comms, 0);
}

static void test_json_hostile(void **state)
{
	static const char *const nonsense[] = {"", " ", "]", "}", "12", "\"a\"", "[", "[{}]",
		"HTTP/1.1 400", "\xff\xfe{", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[["};
	static const char *const odd[] = {"{", "{}}", "{\"communicators\": 5}",
		"{\"communicators\": {\"ranks\": [{}]}}", "{\"communicators\": [[[{}]]]}",
		"{\"ranks\": [{\"rank\": 1}]}", "{\"a\": \"\\", "{\"a\\\"b\": {}",
		"{\"communicators\": [{\"size\": -1, \"ranks\": [{\"rank\": 99999999999999999999, "
		"\"pid\": -5, \"host\": \"::1::\"}]}]}",
		"{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{"};
	unsigned i, j;

	(void)state;
	for (i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++)
		assert_int_equal(JSON(nonsense[i]), -EBADMSG);
	for (i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		assert_int_equal(JSON(odd[i]), 0);
		assert_int_equal(answer.named, 0);
		for (j = 0; j < answer.ranks; j++) {
			assert_int_equal(answer.rank[j].rank, -1);
			assert_int_equal(answer.rank[j].pid, -1);
			assert_int_equal(answer.rank[j].host.family, 0);
		}
	}
	assert_int_equal(JSON("{\"nccl_version\": \"\x1b[2J\xc3\xa4 and much more than there is "
			      "room for in it\"}"),
		0);
	assert_string_equal(answer.version, "?[2J???and?much?more?th");
}

/* What it repeats without end takes no more memory than the limits say. */
static void test_json_limits(void **state)
{
	static const char comm[] =
		"{\"hash\": \"0x7\", \"size\": 3, \"ranks\": [{},{},{},{},{},{}]},";
	const size_t times = 2 * LIEN_RAS_COMMS_MAX, length = strlen(comm);
	char *text = malloc(32 + times * length), *at;
	size_t i;

	(void)state;
	at = text + sprintf(text, "{\"communicators\": [");
	for (i = 0; i < times; i++, at += length)
		memcpy(at, comm, length);
	strcpy(at, "]}");
	assert_int_equal(parse(lien_ras_parse_json, text, at + 2 - text), 0);
	assert_false(answer.whole);
	assert_int_equal(answer.comms, LIEN_RAS_COMMS_MAX);
	assert_int_equal(answer.ranks, LIEN_RAS_RANKS_MAX);
	free(text);
}

/* --- in memory -------------------------------------------------------------------------------- */

#define MAGIC 0x0280028002800280ull
#define HASH  0xae94423cfbb2ef4aull

static uint64_t memory[64];

static void structure(unsigned end)
{
	memset(memory, 0x11, sizeof(memory));
	memory[0] = memory[end] = MAGIC;
}

static void put(unsigned at, uint64_t hash, int32_t rank, int32_t nranks)
{
	memory[at] = hash;
	memory[at + 1] = (uint32_t)rank | (uint64_t)nranks << 32;
}

static int match(const struct lien_ras_row *row, unsigned count, int32_t *rank)
{
	size_t size = lien_ras_structure(memory, sizeof(memory));

	return size ? lien_ras_match(memory, size, row, count, rank) : -1;
}

static void test_structure(void **state)
{
	(void)state;
	structure(9);
	assert_int_equal(lien_ras_structure(memory, sizeof(memory)), 80);
	assert_int_equal(lien_ras_structure(memory, 80), 80);
	assert_int_equal(lien_ras_structure(memory, 79), 0);
	assert_int_equal(lien_ras_structure(memory, 8), 0);
	assert_int_equal(lien_ras_structure(memory, 0), 0);
	memory[0] = memory[9] = 0;
	assert_int_equal(lien_ras_structure(memory, sizeof(memory)), 0);
}

static void test_match(void **state)
{
	struct lien_ras_row rows[] = {
		{.hash = 5, .rank = 1, .nranks = 4, .sure = true},
		{.hash = HASH, .rank = 2, .nranks = 4, .sure = true},
	};
	int32_t rank;

	(void)state;
	structure(60);
	assert_int_equal(match(rows, 2, &rank), -1);
	put(30, HASH, 2, 4);
	assert_int_equal(match(rows, 2, &rank), 1);
	assert_int_equal(rank, 2);
	/* Wherever it is, and twice; the last word, too. */
	structure(60);
	memory[59] = HASH;
	assert_int_equal(match(rows, 2, &rank), 1);
	put(1, HASH, 2, 4);
	assert_int_equal(match(rows, 2, &rank), 1);
	/* Not behind the end: another structure may follow. */
	structure(20);
	put(30, HASH, 2, 4);
	assert_int_equal(match(rows, 2, &rank), -1);
	/* Another version may have something else behind it; then the hash alone decides. */
	structure(60);
	put(30, HASH, 3, 9);
	assert_int_equal(match(rows, 2, &rank), 1);
	assert_int_equal(rank, 2);
	memory[40] = 5;
	assert_int_equal(match(rows, 2, &rank), -1);
	put(30, HASH, 2, 4);
	assert_int_equal(match(rows, 2, &rank), 1);
	put(40, 5, 1, 4);
	assert_int_equal(match(rows, 2, &rank), -1);
}

static void test_match_ranks_of_one_process(void **state)
{
	struct lien_ras_row rows[] = {
		{.hash = HASH, .rank = 0, .nranks = 2, .sure = true},
		{.hash = HASH, .rank = 1, .nranks = 2, .sure = true},
	};
	int32_t rank;

	(void)state;
	structure(60);
	put(7, HASH, 1, 2);
	assert_int_equal(match(rows, 2, &rank), 1);
	put(7, HASH, 1, 3);
	assert_int_equal(match(rows, 2, &rank), -1);
	/* Two communicators with one hash. */
	rows[1].rank = 0;
	rows[1].host_hash = 1;
	put(7, HASH, 0, 2);
	assert_int_equal(match(rows, 2, &rank), -1);
}

/* Of another process, perhaps: only rank and size tell. */
static void test_match_unsure(void **state)
{
	struct lien_ras_row row = {.hash = HASH, .rank = 1, .nranks = 2};
	int32_t rank;

	(void)state;
	structure(60);
	put(7, HASH, 0, 2);
	assert_int_equal(match(&row, 1, &rank), -1);
	put(7, HASH, 1, 2);
	assert_int_equal(match(&row, 1, &rank), 0);
	row.rank = -1;
	put(7, HASH, 0, 2);
	assert_int_equal(match(&row, 1, &rank), 0);
	assert_int_equal(rank, 0);
	put(7, HASH, 2, 2);
	assert_int_equal(match(&row, 1, &rank), -1);
	put(7, HASH, -1, 2);
	assert_int_equal(match(&row, 1, &rank), -1);
	row = (struct lien_ras_row){.hash = 0, .rank = -1, .nranks = 2, .sure = true};
	memory[8] = 0;
	assert_int_equal(match(&row, 1, &rank), -1);
}

static void test_match_once(void **state)
{
	int from[] = {3, -1, 2, 3, -1, 3, 0};
	static const int expected[] = {-1, -1, 2, -1, -1, -1, 0};

	(void)state;
	lien_ras_match_once(from, 7);
	assert_memory_equal(from, expected, sizeof(from));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_json, teardown),
		cmocka_unit_test_teardown(test_json_cut, teardown),
		cmocka_unit_test_teardown(test_json_of_nothing, teardown),
		cmocka_unit_test_teardown(test_json_hostile, teardown),
		cmocka_unit_test_teardown(test_json_limits, teardown),
		cmocka_unit_test(test_structure),
		cmocka_unit_test(test_match),
		cmocka_unit_test(test_match_ranks_of_one_process),
		cmocka_unit_test(test_match_unsure),
		cmocka_unit_test(test_match_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
