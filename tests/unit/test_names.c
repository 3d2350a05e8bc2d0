/* SPDX-License-Identifier: BSD-2-Clause */
/* control/driver/names.c, with a driver that gives values out again as it likes: what the
 * application passes must reach the memory that it means, and nothing else. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <control/driver/names.h>

static int setup(void **state)
{
	(void)state;
	lien_names_clear();
	return 0;
}

/* An allocation that the application knows by one handle goes away. */
static int park(uint64_t real, uint64_t token, uint32_t references)
{
	const struct lien_wire_handle handle = {.value = real, .references = references};

	return lien_names_park(&handle, 1, token);
}

/* An offload and a restore: the memory with one handle comes back with another. */
static void moved(uint64_t was, uint64_t becomes, uint64_t token, uint32_t references)
{
	assert_int_equal(park(was, token, references), 0);
	lien_names_revive(token, becomes);
}

static void test_nothing_is_renamed(void **state)
{
	(void)state;
	assert_int_equal(lien_names_made(7), 7);
	assert_int_equal(lien_names_real(7, 0), 7);
	assert_int_equal(lien_names_retained(7), 7);
	lien_names_released(7);
	assert_int_equal(lien_names_real(7, 1), 7);
	assert_int_equal(lien_names_renamed(), 0);
}

static void test_away_and_back(void **state)
{
	(void)state;
	assert_int_equal(park(0x77, 99, 1), 0);
	assert_int_equal(lien_names_real(0x77, 0), 0);
	assert_int_equal(lien_names_real(0x77, 1), 0);
	assert_int_equal(lien_names_renamed(), 1);
	lien_names_revive(99, 0x99);
	assert_int_equal(lien_names_real(0x77, 0), 0x99);
	assert_int_equal(lien_names_renamed(), 1);
	assert_int_equal(lien_names_retained(0x99), 0x77);
	lien_names_released(0x77);
	assert_int_equal(lien_names_real(0x77, 0), 0x99);
	lien_names_released(0x77);
	assert_int_equal(lien_names_renamed(), 0);
}

/* A name that means what it looks like needs no translation. */
static void test_back_with_the_same_value(void **state)
{
	(void)state;
	moved(0x77, 0x77, 99, 1);
	assert_int_equal(lien_names_renamed(), 0);
	assert_int_equal(lien_names_made(0x78), 0x78);
	assert_int_equal(lien_names_real(0x77, 0), 0x77);
	assert_int_equal(lien_names_renamed(), 0);
}

/* Two that come back have changed places. */
static void exchange(uint32_t references)
{
	assert_int_equal(park(1, 101, references), 0);
	assert_int_equal(park(2, 102, references), 0);
	lien_names_revive(101, 2);
	lien_names_revive(102, 1);
}

static void test_exchanged(void **state)
{
	(void)state;
	exchange(1);
	assert_int_equal(lien_names_real(1, 0), 2);
	assert_int_equal(lien_names_real(2, 0), 1);
	assert_int_equal(lien_names_retained(2), 1);
	assert_int_equal(lien_names_retained(1), 2);
	exchange(
		2); /* and back: by their real handles, so each is parked under the other's token */
	assert_int_equal(lien_names_real(1, 0), 1);
	assert_int_equal(lien_names_real(2, 0), 2);
	assert_int_equal(lien_names_renamed(), 0);
}

/* As without us the driver refuses it, for the memory is mapped: it must not hit the other one. */
static void test_released_too_often(void **state)
{
	(void)state;
	exchange(1);
	lien_names_released(1);
	assert_int_equal(lien_names_real(1, 1), 2);
	assert_int_equal(lien_names_real(2, 1), 1);
	assert_int_equal(lien_names_renamed(), 1);
	/* Whoever had released it before the offload is no better. */
	lien_names_clear();
	exchange(0);
	assert_int_equal(lien_names_real(1, 1), 2);
	assert_int_equal(lien_names_real(2, 1), 1);
	assert_int_equal(lien_names_renamed(), 0);
	assert_int_equal(lien_names_retained(2), 1); /* as the driver would, asked by address */
	assert_int_equal(lien_names_renamed(), 1);
}

/* Nothing but a release looks at a name that is spent: the value may be another's. */
static void test_spent(void **state)
{
	(void)state;
	moved(1, 2, 101, 1);
	lien_names_released(1);
	assert_int_equal(lien_names_real(1, 0), 1);
	assert_int_equal(lien_names_made(1), 1); /* the driver has given it out again */
	assert_int_equal(lien_names_real(1, 1), 1);
	assert_int_equal(lien_names_renamed(), 0);
	/* One whose memory goes away once more. */
	lien_names_clear();
	moved(1, 2, 101, 0);
	assert_int_equal(park(2, 102, 0), 0);
	assert_int_equal(lien_names_real(1, 1), 0);
	lien_names_revive(102, 3);
	assert_int_equal(lien_names_real(1, 1), 3);
	/* Its memory has gone: the driver gives its handle out again. */
	assert_int_equal(lien_names_made(3), 3);
	assert_int_equal(lien_names_real(1, 1), 1);
}

/* There is room for so many of them. */
static void test_many_are_spent(void **state)
{
	(void)state;
	for (uint64_t i = 1; i <= 40000; i++)
		moved(i, 100000 + i, i, 0);
	assert_int_equal(lien_names_real(40000, 1), 140000);
	assert_int_equal(lien_names_real(1, 1), 1);
	assert_int_equal(lien_names_renamed(), 0);
}

/* The application still means the restored memory by the value that a new handle has. */
static void test_new_handle_has_an_old_name(void **state)
{
	uint64_t told;

	(void)state;
	moved(1, 2, 101, 1);
	told = lien_names_made(1);
	assert_true(told != 1 && told != 2);
	assert_int_equal(lien_names_real(told, 0), 1);
	assert_int_equal(lien_names_real(1, 0), 2);
	assert_int_equal(lien_names_retained(1), told);
	lien_names_released(told);
	lien_names_released(told);
	lien_names_released(1);
	assert_int_equal(lien_names_renamed(), 0);
	assert_int_equal(lien_names_real(told, 0), told);
}

/* The memory behind a name was given back by somebody whom we do not see. */
static void test_given_back_unseen(void **state)
{
	(void)state;
	moved(1, 2, 101, 1);
	assert_int_equal(lien_names_made(2), 2);
	assert_int_equal(lien_names_real(2, 0), 2);
	assert_int_equal(lien_names_real(1, 0), 1);
	assert_int_equal(lien_names_renamed(), 0);
}

/* The driver told the application a value behind our back that is a name: what it means is not
 * known. */
static void test_told_unseen(void **state)
{
	(void)state;
	moved(1, 2, 101, 1);
	assert_int_equal(park(1, 103, 1), -EEXIST);
	assert_int_equal(lien_names_real(1, 0), 2);
	assert_int_equal(park(1, 103, 0), 0); /* the application has no name for it */
	lien_names_revive(103, 9);
	assert_int_equal(lien_names_real(1, 0), 2);
}

/* The application knows one handle by a name, and by the driver's own value, which it has from the
 * driver itself: both mean the memory when that has moved. */
static void test_known_two_ways(void **state)
{
	uint64_t name;

	(void)state;
	moved(1, 2, 101, 1);
	name = lien_names_made(1);
	assert_true(name != 1);
	lien_names_released(1); /* so that 1 means nothing else; then somebody asks the driver */
	moved(1, 5, 103, 2);
	assert_int_equal(lien_names_real(name, 0), 5);
	assert_int_equal(lien_names_real(1, 0), 5);
	lien_names_released(name);
	moved(5, 1, 104, 1);
	assert_int_equal(lien_names_real(1, 0), 1);
	/* One reference more of the same kind. */
	lien_names_clear();
	moved(1, 2, 101, 1);
	name = lien_names_made(1);
	lien_names_released(1);
	moved(1, 1, 103, 2);
	moved(1, 5, 104, 3);
	lien_names_released(1);
	assert_int_equal(lien_names_real(1, 0), 5);
	lien_names_released(1);
	assert_int_equal(lien_names_real(1, 0), 1);
	assert_int_equal(lien_names_real(name, 0), 5);
	/* Where the value means other memory, the offload fails and changes nothing. */
	lien_names_clear();
	moved(1, 2, 101, 1);
	name = lien_names_made(1);
	assert_int_equal(park(1, 103, 2), -EEXIST);
	assert_int_equal(lien_names_real(name, 0), 1);
	assert_int_equal(lien_names_real(1, 0), 2);
	assert_int_equal(park(1, 103, 1), 0);
	assert_int_equal(lien_names_real(name, 0), 0);
	assert_int_equal(lien_names_real(1, 0), 2);
}

/* A process has imported its own memory: two handles, of which one comes back. */
static void test_two_handles(void **state)
{
	const struct lien_wire_handle two[] = {{1, 2, 0}, {2, 1, 0}}, other = {1, 1, 0};

	(void)state;
	assert_int_equal(lien_names_park(two, 2, 101), 0);
	assert_int_equal(lien_names_real(1, 0), 0);
	assert_int_equal(lien_names_real(2, 0), 0);
	lien_names_revive(101, 0); /* it did not go */
	assert_int_equal(lien_names_real(1, 0), 1);
	assert_int_equal(lien_names_real(2, 0), 2);
	assert_int_equal(lien_names_renamed(), 0);
	assert_int_equal(lien_names_park(two, 2, 101), 0);
	lien_names_revive(101, 2); /* the driver gives a value out again */
	assert_int_equal(lien_names_real(1, 0), 2);
	assert_int_equal(lien_names_real(2, 0), 2);
	lien_names_released(2);
	assert_int_equal(lien_names_real(2, 1), 2);
	assert_int_equal(lien_names_real(1, 0), 2);
	assert_int_equal(lien_names_made(1) != 1, 1); /* other memory must not get that value */
	lien_names_released(1);
	lien_names_released(1);
	assert_int_equal(lien_names_real(1, 0), 1);
	/* One of them means other memory: nothing is changed. */
	lien_names_clear();
	moved(1, 9, 102, 1);
	assert_int_equal(
		lien_names_park((struct lien_wire_handle[]){{7, 1, 0}, other}, 2, 103), -EEXIST);
	assert_int_equal(lien_names_real(7, 0), 7);
	assert_int_equal(lien_names_real(1, 0), 9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_nothing_is_renamed, setup),
		cmocka_unit_test_setup(test_away_and_back, setup),
		cmocka_unit_test_setup(test_back_with_the_same_value, setup),
		cmocka_unit_test_setup(test_exchanged, setup),
		cmocka_unit_test_setup(test_released_too_often, setup),
		cmocka_unit_test_setup(test_spent, setup),
		cmocka_unit_test_setup(test_many_are_spent, setup),
		cmocka_unit_test_setup(test_new_handle_has_an_old_name, setup),
		cmocka_unit_test_setup(test_given_back_unseen, setup),
		cmocka_unit_test_setup(test_told_unseen, setup),
		cmocka_unit_test_setup(test_known_two_ways, setup),
		cmocka_unit_test_setup(test_two_handles, setup),
	};

	return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
