// SPDX-License-Identifier: BSD-2-Clause
/* agent/graph/named.c: the groups and devices that a request may name. */
#include "events.h"

#include "agent/graph/named.h"

static void test_groups(void **state)
{
	const struct lien_viewer alice = {.one_user = true, .uid = 1000};
	uint64_t *groups;
	unsigned count;

	(void)state;
	assert_int_equal(lien_groups_seen(graph, NULL, &groups, &count), 0);
	assert_int_equal(count, 0);
	assert_false(lien_u64_find(groups, count, 0));
	free(groups);
	for (unsigned pid = 1; pid <= 3; pid++) {
		started(pid);
		for (unsigned i = 0; i < 20; i++)
			comm_init(pid, 0x100 * (i + 1), 0xf0 - 3 * i + pid / 3, pid - 1, 2);
		process(pid)->uid = pid == 3 ? 1001 : 1000;
	}
	assert_int_equal(lien_groups_seen(graph, NULL, &groups, &count), 0);
	assert_int_equal(count, 40);
	for (unsigned i = 0; i < 20; i++) {
		assert_true(lien_u64_find(groups, count, 0xf0 - 3 * i));
		assert_true(lien_u64_find(groups, count, 0xf1 - 3 * i));
		assert_false(lien_u64_find(groups, count, 0xf2 - 3 * i));
	}
	free(groups);
	assert_int_equal(lien_groups_seen(graph, &alice, &groups, &count), 0);
	assert_int_equal(count, 20);
	assert_true(lien_u64_find(groups, count, 0xf0));
	assert_false(lien_u64_find(groups, count, 0xf1));
	free(groups);
}

static void test_gpus(void **state)
{
	static const struct lien_ordinals ordinals[] = {
		{.count = 2, .uuid = {{.bytes = {0x5f, 0x0a}}, {.bytes = {0x5f, 0x99}}}},
		{.count = 3,
			.uuid = {{.bytes = {0x5f, 0x0a}}, {.bytes = {0x10}},
				{.bytes = {0x5f, 0x0a}, .mig = true}}},
	};
	static const struct {
		const char *text;
		unsigned count, first;
	} cases[] = {{"GPU-", 3, 0}, {"GPU-1", 1, 0}, {"GPU-5f", 2, 1}, {"GPU-5f9", 1, 2},
		{"MIG", 1, 3}, {"GPU-5f0a0000-0000-0000-0000-000000000000", 1, 1}, {"GPU-6", 0, 3},
		{"GPU-5f0a0000-0000-0000-0000-0000000000000", 0, 2}, {"", 0, 0}, {"Z", 0, 4}};
	struct lien_named_gpu *gpus;
	unsigned count, first;

	(void)state;
	for (unsigned pid = 1; pid <= 4; pid++) {
		started(pid);
		process(pid)->ordinals = pid < 4 ? &ordinals[pid / 3] : NULL;
	}
	assert_int_equal(lien_gpus_seen(graph, NULL, &gpus, &count), 0);
	assert_int_equal(count, 4);
	for (unsigned i = 0; i < COUNT(cases); i++) {
		assert_int_equal(
			lien_gpus_find(gpus, count, cases[i].text, &first), cases[i].count);
		assert_int_equal(first, cases[i].first);
	}
	assert_int_equal(gpus[0].uuid.bytes[0], 0x10);
	free(gpus);
}

int main(void)
{
	const struct CMUnitTest tests[] = {TEST(test_groups), TEST(test_gpus)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
