// SPDX-License-Identifier: BSD-2-Clause
/* loader/discover/timeout.c: work that does not come to an end is left behind. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "loader/discover/timeout.h"

/* No process has such pids; those that no user can be found of are one user's. */
#define PID(n)	    (100000000u + (n))
#define PROCESS_MAX 2 /* loader/discover/timeout.c */
#define USER_MAX    12

struct sum {
	struct lien_timeout_work work;
	int a, b, sum;
	bool *dropped;
};

static void add(struct lien_timeout_work *work)
{
	struct sum *sum = (struct sum *)work;

	sum->sum = sum->a + sum->b;
}

/* Until somebody writes to it. */
static void wait_for_byte(struct lien_timeout_work *work)
{
	char byte;

	while (read(work->fds[0], &byte, 1) < 0)
		;
}

static void drop(struct lien_timeout_work *work)
{
	struct sum *sum = (struct sum *)work;

	if (sum->dropped)
		__atomic_store_n(sum->dropped, true, __ATOMIC_RELEASE);
	free(sum);
}

static struct sum *sum_new(void (*run)(struct lien_timeout_work *work))
{
	struct sum *sum = calloc(1, sizeof(*sum));

	assert_non_null(sum);
	sum->work.run = run;
	sum->work.drop = drop;
	sum->a = 20;
	sum->b = 22;
	return sum;
}

/* Waits so long if the process is left alone. */
static bool adds_within(uint32_t pid, unsigned ms)
{
	struct sum *sum = sum_new(add);
	bool done;

	sum->work.await_ms = ms;
	done = lien_timeout_run(&sum->work, pid);
	if (!done)
		return false;
	assert_int_equal(sum->sum, 42);
	free(sum);
	return true;
}

static bool adds(uint32_t pid)
{
	return adds_within(pid, 0);
}

/* Work that waits until release_fd is written to. */
static void get_stuck(uint32_t pid, int *release_fd, bool *dropped)
{
	struct sum *sum = sum_new(wait_for_byte);
	int ends[2];

	*dropped = false;
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	sum->dropped = dropped;
	sum->work.fds[0] = ends[0];
	sum->work.fds_count = 1;
	assert_false(lien_timeout_run(&sum->work, pid));
	close(ends[0]);
	*release_fd = ends[1];
}

static void release(int *fd, bool *dropped)
{
	assert_int_equal(write(*fd, "x", 1), 1);
	close(*fd);
	while (!__atomic_load_n(dropped, __ATOMIC_ACQUIRE))
		usleep(1000);
}

static void test_work_is_done(void **state)
{
	(void)state;
	lien_timeout_limit(10000, UINT32_MAX);
	for (unsigned i = 0; i < 100; i++)
		assert_true(adds(PID(i)));
	assert_true(adds(0)); /* by the caller */
}

static void open_own(struct lien_timeout_work *work)
{
	/* What it was given is its to close. */
	if (work->fds_count)
		close(work->fds[0]);
	work->fds[0] = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	work->fds_count = 1;
}

static void test_files_are_passed(void **state)
{
	const uint32_t pids[] = {0, PID(1)};
	unsigned i;

	(void)state;
	lien_timeout_limit(10000, UINT32_MAX);
	for (i = 0; i < 200; i++) {
		struct sum *sum = sum_new(open_own);
		char magic[4];
		int ends[2];

		assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
		sum->work.fds[0] = ends[1];
		sum->work.fds_count = 1;
		assert_true(lien_timeout_run(&sum->work, pids[i % 2]));
		assert_int_equal(sum->work.fds_count, 1);
		assert_int_equal(read(sum->work.fds[0], magic, 4), 4);
		assert_memory_equal(magic, "\177ELF", 4);
		assert_int_equal(fcntl(sum->work.fds[0], F_GETFD), FD_CLOEXEC);
		close(sum->work.fds[0]);
		free(sum);
		close(ends[1]);
		assert_int_equal(read(ends[0], magic, 1), 0); /* no copy is left */
		close(ends[0]);
	}
}

/* Its thread has no room for the files, and ends. */
static void test_work_that_does_not_arrive_is_not_done(void **state)
{
	struct rlimit usual, none;
	struct sum *sum;
	bool done, dropped = false;

	(void)state;
	lien_timeout_limit(10000, UINT32_MAX);
	assert_true(adds(PID(1))); /* there is an idle thread now */
	sum = sum_new(open_own);
	sum->dropped = &dropped;
	sum->work.fds[0] = sum->work.fds[1] = STDIN_FILENO;
	sum->work.fds_count = 2;
	getrlimit(RLIMIT_NOFILE, &usual);
	none = usual;
	none.rlim_cur = 1; /* poll() needs that */
	setrlimit(RLIMIT_NOFILE, &none);
	done = lien_timeout_run(&sum->work, PID(1));
	setrlimit(RLIMIT_NOFILE, &usual);
	assert_false(done);
	assert_true(dropped);
	assert_true(adds(PID(1)));
}

/* Whoever uses it up: others are not to blame, and are looked at as soon as there is more. */
static void test_all_waits_together_are_limited(void **state)
{
	int release_fd;
	bool dropped;

	(void)state;
	lien_timeout_limit(10000, UINT32_MAX);
	for (unsigned i = 0; i <= PROCESS_MAX + 1; i++) {
		lien_timeout_limit(10000, 30);
		get_stuck(PID(3), &release_fd, &dropped);
		assert_false(adds(PID(4)));
		release(&release_fd, &dropped);
	}
	lien_timeout_limit(10000, 10000);
	assert_true(adds(PID(4)));
	assert_true(adds(PID(3)));
	lien_timeout_limit(10000, UINT32_MAX);
}

static void test_who_is_stuck_is_left_behind(void **state)
{
	int release_fd, ends[2];
	bool dropped;
	char byte;

	(void)state;
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	lien_timeout_dismiss(); /* the next thread begins with a copy of what is open now */
	lien_timeout_limit(50, UINT32_MAX);
	get_stuck(PID(1), &release_fd, &dropped);
	/* It has nothing else of ours open. */
	close(ends[1]);
	assert_int_equal(read(ends[0], &byte, 1), 0);
	close(ends[0]);
	lien_timeout_limit(10000, UINT32_MAX);
	assert_false(adds(PID(1)));
	assert_true(adds(PID(2)));
	assert_true(adds(getpid()));
	assert_false(dropped);
	release(&release_fd, &dropped);
	assert_true(adds(PID(1))); /* that may happen to anybody, */
	for (unsigned i = 1; i <= PROCESS_MAX; i++) {
		assert_true(adds(PID(1)));
		lien_timeout_limit(50, UINT32_MAX);
		get_stuck(PID(1), &release_fd, &dropped);
		release(&release_fd, &dropped);
		lien_timeout_limit(10000, UINT32_MAX);
	}
	assert_false(adds(PID(1))); /* but not again and again; */
	assert_false(adds_within(PID(1), 1));
	assert_true(adds_within(PID(1), 60000)); /* later it is tried once more */
}

static void test_a_user_is_waited_for_some_times_only(void **state)
{
	int release_fd[USER_MAX];
	bool dropped[USER_MAX];
	unsigned i;

	(void)state;
	lien_timeout_limit(50, UINT32_MAX);
	/* The last test's were the others. */
	for (i = PROCESS_MAX + 1; i < USER_MAX; i++)
		get_stuck(PID(10 + i), &release_fd[i], &dropped[i]);
	lien_timeout_limit(10000, UINT32_MAX);
	assert_false(adds(PID(20)));
	assert_true(adds(getpid())); /* another user's */
	for (i = PROCESS_MAX + 1; i < USER_MAX; i++)
		release(&release_fd[i], &dropped[i]);
}

static void test_idle_threads_are_dismissed(void **state)
{
	(void)state;
	lien_timeout_limit(10000, UINT32_MAX);
	assert_true(adds(getpid()));
	lien_timeout_dismiss();
	assert_true(adds(getpid()));
	lien_timeout_dismiss();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_work_is_done),
		cmocka_unit_test(test_files_are_passed),
		cmocka_unit_test(test_work_that_does_not_arrive_is_not_done),
		cmocka_unit_test(test_all_waits_together_are_limited),
		cmocka_unit_test(test_who_is_stuck_is_left_behind),
		cmocka_unit_test(test_a_user_is_waited_for_some_times_only),
		cmocka_unit_test(test_idle_threads_are_dismissed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
