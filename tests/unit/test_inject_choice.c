// SPDX-License-Identifier: BSD-2-Clause
/* Which waits a thread may be borrowed from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <linux/futex.h>
#include <sys/syscall.h>

#include <cmocka.h>

#include "loader/inject/inject.c"

static void test_waits(void **state)
{
	(void)state;
	assert_int_equal(choose(SYS_poll, 1, 100, 0), 1);
	assert_int_equal(choose(SYS_read, 0, 0, 0), 1);
	assert_int_equal(choose(SYS_restart_syscall, 0, 0, 0), 1);
	assert_int_equal(choose(SYS_wait4, 0, 0, 0), 3);
}

/* What malloc(), the loader and vfork() may be in. */
static void test_never(void **state)
{
	static const long calls[] = {SYS_mmap, SYS_munmap, SYS_mprotect, SYS_madvise, SYS_brk,
		SYS_mremap, SYS_clone, SYS_clone3, SYS_vfork, SYS_fork, SYS_execve, SYS_exit,
		SYS_exit_group, SYS_rt_sigreturn, SYS_sched_yield, SYS_openat, SYS_ioctl, -1};

	(void)state;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		assert_int_equal(choose(calls[i], 0, 0, -1), 0);
}

/* A condition, a semaphore, a thread's end, but no lock: of those others may wait in turn. */
static void test_futex(void **state)
{
	const unsigned long clock = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME | FUTEX_PRIVATE_FLAG;

	(void)state;
	assert_int_equal(choose(SYS_futex, clock, 0, 0), 2);
	assert_int_equal(choose(SYS_futex, clock, 2, 0), 2);
	assert_int_equal(choose(SYS_futex, FUTEX_WAIT, 4711, 0), 2);
	assert_int_equal(choose(SYS_futex, FUTEX_WAIT, 2, 0), 0);
	assert_int_equal(choose(SYS_futex, FUTEX_WAIT_PRIVATE, 2, 0), 0);
	assert_int_equal(choose(SYS_futex, FUTEX_LOCK_PI_PRIVATE, 0, 0), 0);
	assert_int_equal(choose(SYS_futex, FUTEX_WAKE_PRIVATE, 1, 0), 0);
}

/* The kernel says EINTR, and the time that is left is not known. */
static void test_epoll(void **state)
{
	(void)state;
	assert_int_equal(choose(SYS_epoll_wait, 0, 1, 0xffffffff), 3);
	assert_int_equal(choose(SYS_epoll_pwait, 0, 1, -1), 3);
	assert_int_equal(choose(SYS_epoll_wait, 0, 1, 1000), 0);
	assert_int_equal(choose(SYS_epoll_wait, 0, 1, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_waits),
		cmocka_unit_test(test_never),
		cmocka_unit_test(test_futex),
		cmocka_unit_test(test_epoll),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
