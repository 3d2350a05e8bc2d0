// SPDX-License-Identifier: BSD-2-Clause
/* control/driver/thread.h: the signal by which threads are held, which is glibc's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#include "control/driver/thread.h"

struct action {
	uintptr_t handler;
	unsigned long flags;
	uintptr_t restorer;
	uint64_t mask;
};

static _Atomic unsigned calls;
static uint64_t handler;
static _Atomic bool ready, stop;

static void woken(void)
{
	calls++;
}

static struct action installed(void)
{
	struct action action = {0};

	assert_int_equal(
		syscall(SYS_rt_sigaction, LIEN_CONTROL_SIGNAL, NULL, &action, sizeof(uint64_t)), 0);
	return action;
}

/* As BPF sends it: a process may send itself a signal as if it were the kernel's. */
static void send_as_kernel(void)
{
	siginfo_t info = {.si_signo = LIEN_CONTROL_SIGNAL, .si_code = SI_KERNEL};

	assert_int_equal(
		syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), LIEN_CONTROL_SIGNAL, &info), 0);
}

static void *wait_for_stop(void *arg)
{
	ready = true;
	while (!stop)
		sched_yield();
	return arg;
}

static void test_taken(void **state)
{
	struct action action;

	(void)state;
	assert_int_equal(lien_signal_take(woken, false, &handler), 0);
	action = installed();
	assert_int_equal(action.handler, handler);
	assert_true(action.flags & SA_NODEFER);
	assert_false(action.flags & SA_ONSTACK);
	send_as_kernel();
	assert_int_equal(calls, 1);
}

static void test_no_program_gets_in_its_way(void **state)
{
	const struct sigaction ignore = {.sa_handler = SIG_IGN};
	sigset_t all, before;

	(void)state;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (int number = 1; number <= SIGRTMAX; number++)
		sigaction(number, &ignore, NULL);
	send_as_kernel();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	assert_int_equal(calls, 2);
}

/* setuid() returns when all threads have done it. */
static void test_glibc_gets_its_own(void **state)
{
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, wait_for_stop, NULL), 0);
	while (!ready)
		sched_yield();
	assert_int_equal(setuid(getuid()), 0);
	stop = true;
	pthread_join(thread, NULL);
	assert_int_equal(calls, 2);
	assert_int_equal(installed().handler, handler);
}

static void test_given_back(void **state)
{
	struct action action, again;

	(void)state;
	lien_signal_give_back();
	action = installed();
	assert_int_not_equal(action.handler, handler);
	assert_int_not_equal(action.handler, (uintptr_t)SIG_DFL);
	send_as_kernel(); /* late: without effect */
	assert_int_equal(calls, 2);
	/* In a program that runs, with the flags that it has given it. */
	assert_int_equal(lien_signal_take(woken, true, &handler), 0);
	again = installed();
	assert_int_equal(again.flags, action.flags | SA_NODEFER);
	lien_signal_give_back();
	again = installed();
	assert_memory_equal(&again, &action, sizeof(again));
}

static void test_not_glibc(void **state)
{
	const struct action none = {0};
	struct action before = installed();

	(void)state;
	syscall(SYS_rt_sigaction, LIEN_CONTROL_SIGNAL, &none, NULL, sizeof(uint64_t));
	assert_int_equal(lien_signal_take(woken, true, &handler), -ENOTSUP);
	assert_int_equal(installed().handler, 0);
	syscall(SYS_rt_sigaction, LIEN_CONTROL_SIGNAL, &before, NULL, sizeof(uint64_t));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_taken),
		cmocka_unit_test(test_no_program_gets_in_its_way),
		cmocka_unit_test(test_glibc_gets_its_own),
		cmocka_unit_test(test_given_back),
		cmocka_unit_test(test_not_glibc),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
