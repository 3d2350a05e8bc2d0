// SPDX-License-Identifier: BSD-2-Clause
/* loader/probes/make_link.c: links that are made while their user does something else. */
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "loader/probes/make_link.h"
#include "loader/probes/uprobe.h"

#define FIRST_LINK 1000
#define NEVER_MS   3600000 /* a test that waits so long hangs */

/* The kernel: makes a link for each post of may_make, and fails from the fail_from-th on. */
static sem_t may_make;
static unsigned made, closed, fail_from;
static bool rewritten; /* a process has other code at the last place */
static uint64_t seen_offset[2], seen_cookie[2];

int lien_uprobe_multi_attach(int program_fd, const char *path, const uint64_t *offsets,
	const uint64_t *cookies, unsigned count, bool at_return, uint32_t pid)
{
	unsigned number;

	(void)path;
	sem_wait(&may_make);
	number = __atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST);
	if (number < 2) {
		seen_offset[number] = offsets[count - 1];
		seen_cookie[number] = cookies[count - 1];
	}
	assert_int_equal(at_return, program_fd == 1);
	assert_int_equal(pid, 0);
	return number >= fail_from ? -EMFILE : (int)(FIRST_LINK + number);
}

int lien_uprobe_single_attach(
	int program_fd, const char *path, uint64_t offset, uint64_t cookie, bool at_return)
{
	return lien_uprobe_multi_attach(program_fd, path, &offset, &cookie, 1, at_return, 0);
}

int lien_code_check(int fd, const uint64_t *offsets, unsigned count, uint32_t pid)
{
	assert_true(fd >= 0);
	assert_int_equal(pid, 0);
	return rewritten && count && offsets[count - 1] == 3 ? -ETXTBSY : 0;
}

void lien_uprobe_close(int fd)
{
	assert_true(fd >= FIRST_LINK);
	__atomic_add_fetch(&closed, 1, __ATOMIC_SEQ_CST);
}

static int setup(void **state)
{
	(void)state;
	made = closed = rewritten = 0;
	fail_from = 100;
	return sem_init(&may_make, 0, 0);
}

static struct lien_making *begun(void)
{
	uint64_t offsets[] = {1, 2, 3}, cookies[] = {4, 5, 6};
	struct lien_link_request wishes[] = {
		{1, offsets, cookies, 2, .at_return = true},
		{2, offsets, cookies, 3, .each = false},
	};
	struct lien_making *making;
	int fd = open("/dev/null", O_RDONLY);

	assert_int_equal(lien_making_begin(&making, fd, wishes, 2), 0);
	assert_non_null(making);
	close(fd);
	memset(offsets, 0xee, sizeof(offsets));
	memset(cookies, 0xee, sizeof(cookies));
	return making;
}

static void wait_until_idle(void)
{
	while (lien_making_busy())
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void test_made(void **state)
{
	struct lien_making *making = begun();
	int links[2] = {0, 0};

	(void)state;
	lien_making_allow(0);
	assert_int_equal(lien_making_wait(&making, links), -EINPROGRESS);
	assert_true(lien_making_busy());
	sem_post(&may_make);
	lien_making_allow(1);
	assert_int_equal(lien_making_wait(&making, links), -EINPROGRESS);
	sem_post(&may_make);
	wait_until_idle();
	assert_int_equal(lien_making_wait(&making, links), 0);
	assert_null(making);
	assert_int_equal(links[0], FIRST_LINK);
	assert_int_equal(links[1], FIRST_LINK + 1);
	assert_int_equal(seen_offset[0], 2);
	assert_int_equal(seen_offset[1], 3);
	assert_int_equal(seen_cookie[0], 5);
	assert_int_equal(seen_cookie[1], 6);
	assert_int_equal(closed, 0);
	assert_false(lien_making_busy());
}

static void test_rewritten(void **state)
{
	struct lien_making *making;
	int links[2];

	(void)state;
	rewritten = true;
	making = begun();
	wait_until_idle();
	assert_int_equal(lien_making_wait(&making, links), -ETXTBSY);
	assert_null(making);
	assert_int_equal(made, 0);
}

/* One that is stuck takes its user's time once, and is looked at after that. */
static void test_waited_for_once(void **state)
{
	struct lien_making *stuck = begun(), *next;
	int links[2];

	(void)state;
	lien_making_allow(0);
	assert_int_equal(lien_making_wait(&stuck, links), -EINPROGRESS);
	lien_making_allow(1); /* this is when it is waited for */
	assert_int_equal(lien_making_wait(&stuck, links), -EINPROGRESS);
	lien_making_allow(NEVER_MS);
	assert_int_equal(lien_making_wait(&stuck, links), -EINPROGRESS);
	sem_post(&may_make);
	sem_post(&may_make);
	wait_until_idle();
	assert_int_equal(lien_making_wait(&stuck, links), 0);
	next = begun();
	sem_post(&may_make);
	sem_post(&may_make);
	assert_int_equal(lien_making_wait(&next, links), 0);
}

static void test_half_made(void **state)
{
	struct lien_making *making = begun();
	int links[2] = {-1, -1};

	(void)state;
	fail_from = 1;
	sem_post(&may_make);
	sem_post(&may_make);
	lien_making_allow(60000);
	assert_int_equal(lien_making_wait(&making, links), -EMFILE);
	assert_null(making);
	assert_int_equal(links[0], -1);
	assert_int_equal(closed, 1);
}

static void test_nothing_to_make(void **state)
{
	const struct lien_link_request wish = {.count = 0};
	struct lien_making *making;
	int link = 7;

	(void)state;
	assert_int_equal(lien_making_begin(&making, 0, &wish, 1), 0);
	lien_making_allow(60000);
	assert_int_equal(lien_making_wait(&making, &link), 0);
	assert_int_equal(link, -1);
}

/* A link for each place, and if one cannot be made, none. */
static void test_one_by_one(void **state)
{
	uint64_t offsets[] = {1, 2, 3}, cookies[] = {4, 5, 6};
	struct lien_link_request requests[] = {
		{1, offsets, cookies, 3, .each = true, .at_return = true},
		{2, offsets + 1, cookies + 1, 2, .each = true},
	};
	struct lien_making *making;
	int links[5], i;

	(void)state;
	for (i = 0; i < 9; i++)
		sem_post(&may_make);
	lien_making_allow(60000);
	assert_int_equal(lien_making_begin(&making, 0, requests, 2), 0);
	assert_int_equal(lien_making_wait(&making, links), 0);
	for (i = 0; i < 5; i++)
		assert_int_equal(links[i], FIRST_LINK + i);
	assert_int_equal(seen_offset[1], 2);
	assert_int_equal(seen_cookie[1], 5);
	assert_int_equal(closed, 0);
	fail_from = 8;
	links[0] = -1;
	assert_int_equal(lien_making_begin(&making, 0, requests, 2), 0);
	assert_int_equal(lien_making_wait(&making, links), -EMFILE);
	assert_int_equal(links[0], -1);
	assert_int_equal(closed, 3);
}

/* Before the links are there, and after: they do not stay. */
static void test_abandoned(void **state)
{
	struct lien_making *making = begun();

	(void)state;
	lien_making_abandon(&making);
	assert_null(making);
	sem_post(&may_make);
	sem_post(&may_make);
	while (__atomic_load_n(&closed, __ATOMIC_SEQ_CST) < 2)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	making = begun();
	sem_post(&may_make);
	sem_post(&may_make);
	wait_until_idle();
	lien_making_abandon(&making);
	assert_int_equal(closed, 4);
	lien_making_abandon(&making); /* there is none */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_made, setup),
		cmocka_unit_test_setup(test_rewritten, setup),
		cmocka_unit_test_setup(test_waited_for_once, setup),
		cmocka_unit_test_setup(test_half_made, setup),
		cmocka_unit_test_setup(test_nothing_to_make, setup),
		cmocka_unit_test_setup(test_one_by_one, setup),
		cmocka_unit_test_setup(test_abandoned, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
