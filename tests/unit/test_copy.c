// SPDX-License-Identifier: BSD-2-Clause
/* agent/copy.c: copies that are made, and those for which the kernel takes too long. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <agent/daemon/copy.h>
#include "loader/probes/close_later.h"

/* Shared with the copies. */
static struct {
	int ran, value;
	pid_t parent;
} * seen;

static int value;
static unsigned held;
static bool slow;
static sem_t may_fork;

void lien_close_later_hold(void)
{
	__atomic_add_fetch(&held, 1, __ATOMIC_SEQ_CST);
}

void lien_close_later_go_on(void)
{
	__atomic_sub_fetch(&held, 1, __ATOMIC_SEQ_CST);
}

/* The kernel, which lets nobody fork(). */
static void before_fork(void)
{
	if (slow)
		sem_wait(&may_fork);
}

static void child(void *arg)
{
	seen->ran++;
	seen->value = *(int *)arg;
	seen->parent = getppid();
	_exit(7);
}

static int ended(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void test_made(void **state)
{
	pid_t pid;

	(void)state;
	for (value = 1; value < 20; value++) {
		pid = lien_copy(child, &value);
		assert_true(pid > 0);
		assert_int_equal(held, 1);
		lien_close_later_go_on();
		assert_int_equal(ended(pid), 7);
		assert_int_equal(seen->ran, value);
		assert_int_equal(seen->value, value);
		assert_int_equal(seen->parent, getpid());
		assert_false(lien_copy_busy());
	}
}

static void test_too_slow(void **state)
{
	pid_t pid;

	(void)state;
	seen->ran = 0;
	slow = true;
	for (unsigned round = 0; round < 3; round++) {
		assert_int_equal(lien_copy(child, &value), -EAGAIN);
		assert_true(lien_copy_busy());
		assert_int_equal(lien_copy(child, &value), -EBUSY);
		assert_int_equal(held, 1); /* as long as it may be made */
		value++;
		sem_post(&may_fork);
		while (lien_copy_busy())
			usleep(1000);
		assert_int_equal(held, 0);
		assert_int_equal(waitpid(-1, NULL, 0), -1); /* nobody is left */
		assert_int_equal(errno, ECHILD);
	}
	assert_int_equal(seen->ran, 0);
	slow = false;
	pid = lien_copy(child, &value);
	assert_true(pid > 0);
	lien_close_later_go_on();
	assert_int_equal(ended(pid), 7);
	assert_int_equal(seen->ran, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_made),
		cmocka_unit_test(test_too_slow),
	};

	seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	sem_init(&may_fork, 0, 0);
	pthread_atfork(before_fork, NULL, NULL);
	return cmocka_run_group_tests_name("copy", tests, NULL, NULL);
}
