// SPDX-License-Identifier: BSD-2-Clause
/* agent/plan/plan_free.c: which allocations make so many bytes free. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agent/plan/plan_internal.h"

#define ITEMS 14

static struct lien_free_item items[ITEMS];
static struct lien_freed gpus[2];
static unsigned count;

static int setup(void **state)
{
	(void)state;
	memset(gpus, 0, sizeof(gpus));
	count = 0;
	return 0;
}

static void add_together(uint64_t whole, unsigned gpu, uint64_t bytes, uint64_t cost, uint32_t pid)
{
	items[count++] = (struct lien_free_item){.whole = whole,
		.gpu = gpu,
		.bytes = bytes,
		.cost = cost,
		.pid = pid,
		.chosen = true};
}

static void add(uint64_t bytes, uint64_t cost)
{
	add_together(100 + count, 0, bytes, cost, 1);
}

/* The bytes of what is chosen, by number in ascending order. */
static void expect(uint64_t wanted, const char *chosen)
{
	char found[100] = "", one[24];

	assert_int_equal(lien_free_choose(items, count, wanted, gpus, 1), 0);
	for (unsigned i = 0; i < count; i++)
		if (items[i].chosen) {
			snprintf(one, sizeof(one), "%s%u", found[0] ? " " : "",
				(unsigned)items[i].bytes);
			strcat(found, one);
		}
	assert_string_equal(found, chosen);
}

static void test_large_ones_first(void **state)
{
	(void)state;
	add(2, 10 + 2);
	add(20, 10 + 20);
	add(100, 10 + 100);
	add(20, 10 + 20);
	expect(0, "");
	expect(90, "100");
	expect(100, "100");
	expect(102, "2 100");
	expect(103, "20 100");
	expect(121, "2 20 100");
	expect(142, "2 20 100 20");
	assert_int_equal(gpus[0].movable, 142);
	assert_int_equal(gpus[0].bytes, 142);
}

/* A large one is not moved for a little. */
static void test_not_more_than_needed(void **state)
{
	(void)state;
	add(1000, 10 + 1000);
	add(4, 10 + 4);
	add(3, 10 + 3);
	expect(3, "3");
	expect(4, "4");
	expect(6, "4 3");
	expect(8, "1000");
	expect(1001, "1000 3");
}

static void test_shared_ones_cost_more(void **state)
{
	(void)state;
	add(10, 20);
	add(10, 40);
	add(10, 20);
	expect(15, "10 10");
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(items[i].chosen, items[i].cost == 20);
}

/* Of equal ones, those of one process. */
static void test_few_processes(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 6; i++)
		add_together(1 + i, 0, 10, 20, 1 + i % 2);
	assert_int_equal(lien_free_choose(items, count, 30, gpus, 1), 0);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(items[i].chosen, items[i].pid == 1);
}

static void test_what_moves_together(void **state)
{
	(void)state;
	add_together(7, 0, 10, 10, 1);
	add_together(9, 0, 10, 100, 1);
	add_together(7, 1, 10, 10, 2);
	add_together(8, 1, 10, 1, 2);
	assert_int_equal(lien_free_choose(items, count, 10, gpus, 2), 0);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(items[i].chosen, items[i].whole == 7);
	assert_int_equal(gpus[1].bytes, 10); /* had what it needs from the first one's */
	assert_int_equal(gpus[1].allocations, 1);
}

/* Others keep one of them where it is. */
static void test_what_is_held(void **state)
{
	(void)state;
	add_together(7, 0, 10, 1, 1);
	add_together(7, 0, 10, 1, 1);
	add_together(8, 0, 10, 100, 1);
	items[1].held = true;
	assert_int_equal(lien_free_choose(items, count, 10, gpus, 1), 0);
	assert_int_equal(gpus[0].movable, 10);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(items[i].chosen, items[i].whole == 8);
}

static void test_too_little(void **state)
{
	(void)state;
	add(10, 1);
	add_together(1, 1, 5, 1, 1);
	assert_int_equal(lien_free_choose(items, count, 6, gpus, 2), -ENOSPC);
	assert_int_equal(gpus[0].movable, 10);
	assert_int_equal(gpus[1].movable, 5);
	for (unsigned i = 0; i < count; i++)
		assert_false(items[i].chosen);
	assert_int_equal(lien_free_choose(NULL, 0, 6, gpus, 1), -ENOSPC);
}

static uint64_t random_below(uint64_t *seed, uint64_t below)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return (*seed >> 33) % below;
}

/* The least cost of all subsets. */
static uint64_t least(uint64_t wanted)
{
	uint64_t best = UINT64_MAX;

	for (unsigned set = 0; set < 1u << count; set++) {
		uint64_t bytes = 0, cost = 0;

		for (unsigned i = 0; i < count; i++)
			if (set >> i & 1) {
				bytes += items[i].bytes;
				cost += items[i].cost;
			}
		if (bytes >= wanted && cost < best)
			best = cost;
	}
	return best;
}

static void test_random(void **state)
{
	uint64_t seed = 20261125, all, cost, chosen, wanted;

	(void)state;
	for (unsigned round = 0; round < 300; round++) {
		count = 0;
		all = 0;
		while (count < 1 + round % ITEMS) {
			uint64_t bytes = 1 + random_below(&seed, round % 3 ? 1000 : 5);

			add(bytes, bytes + random_below(&seed, 50));
			all += bytes;
		}
		wanted = 1 + random_below(&seed, all);
		assert_int_equal(lien_free_choose(items, count, wanted, gpus, 1), 0);
		cost = chosen = 0;
		for (unsigned i = 0; i < count; i++)
			if (items[i].chosen) {
				chosen += items[i].bytes;
				cost += items[i].cost;
			}
		assert_int_equal(gpus[0].bytes, chosen);
		assert_true(chosen >= wanted);
		assert_true(cost <= 2 * least(wanted));
		for (unsigned i = 0; i < count; i++) /* none of them is not needed */
			assert_true(!items[i].chosen || chosen - items[i].bytes < wanted);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_large_ones_first, setup),
		cmocka_unit_test_setup(test_not_more_than_needed, setup),
		cmocka_unit_test_setup(test_shared_ones_cost_more, setup),
		cmocka_unit_test_setup(test_few_processes, setup),
		cmocka_unit_test_setup(test_what_moves_together, setup),
		cmocka_unit_test_setup(test_what_is_held, setup),
		cmocka_unit_test_setup(test_too_little, setup),
		cmocka_unit_test_setup(test_random, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
