// SPDX-License-Identifier: BSD-2-Clause
/*
 * Whether a library may be taken away: no thread of a process is in its code, or will return to it.
 * The library is a function of a child of ours, in a section of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <lien/clock.h>
#include "loader/inject/inject_internal.h"

#define LIBRARY __attribute__((section("library"), noinline, used))

extern const char __start_library[], __stop_library[];

static _Atomic int leave;
static int ready[2];

static void say_ready(void)
{
	(void)!write(ready[1], "", 1);
}

LIBRARY static void spins(void)
{
	while (!leave)
		;
}

LIBRARY static void calls(void (*function)(void))
{
	function();
	__asm__ volatile("" ::: "memory"); /* no tail call */
}

static void waits(void)
{
	say_ready();
	pause();
}

static void spins_elsewhere(void)
{
	say_ready();
	while (!leave)
		;
}

/* A signal's handler that came in the midst of it. */
static void handler(int signal)
{
	(void)signal;
	say_ready();
	pause();
}

static void is_interrupted(void)
{
	signal(SIGALRM, handler);
	ualarm(1000, 0);
	spins();
}

static void says_and_spins(void)
{
	say_ready();
	spins();
}

static void calls_one_that_waits(void)
{
	calls(waits);
}

static void calls_one_that_spins(void)
{
	calls(spins_elsewhere);
}

static void *run(void *function)
{
	((void (*)(void))(uintptr_t)function)();
	return NULL;
}

/* A child whose second thread does that. */
static pid_t child(void (*function)(void))
{
	pthread_t thread;
	pid_t pid;
	char byte;

	assert_int_equal(pipe(ready), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pthread_create(&thread, NULL, run, (void *)(uintptr_t)function);
		for (;;)
			pause();
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

static char why[300];

static void *clear(void *arg)
{
	return (void *)(intptr_t)lien_inject_clear(arg);
}

/* In a thread that ends, with what it has traced. */
static int clear_of(pid_t pid, uint32_t thread)
{
	const struct lien_inject_library library = {.text = (uintptr_t)__start_library,
		.text_end = (uintptr_t)__stop_library,
		.thread = thread};
	struct lien_inject_result result = {0};
	struct lien_inject inject = {.pid = pid,
		.library = &library,
		.result = &result,
		.why = why,
		.why_size = sizeof(why)};
	pthread_t worker;
	char path[64];
	void *err;

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	inject.mem = open(path, O_RDWR | O_CLOEXEC);
	inject.pidfd = syscall(SYS_pidfd_open, pid, 0);
	inject.deadline_ns = lien_clock_ns() + 1500000000;
	assert_true(inject.mem >= 0 && inject.pidfd >= 0);
	assert_int_equal(pthread_create(&worker, NULL, clear, &inject), 0);
	pthread_join(worker, &err);
	close(inject.mem);
	close(inject.pidfd);
	return (intptr_t)err;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void expect(void (*function)(void), int result)
{
	pid_t pid = child(function);
	int found = clear_of(pid, 0);

	if (found == -EPERM) { /* tracing is not allowed here */
		end(pid);
		skip();
	}
	assert_int_equal(found, result);
	assert_int_equal(kill(pid, 0), 0);
	end(pid);
}

static void test_elsewhere(void **state)
{
	(void)state;
	expect(waits, 0);
	expect(spins_elsewhere, 0);
}

static void test_inside(void **state)
{
	(void)state;
	expect(says_and_spins, -EBUSY);
	assert_non_null(strstr(why, "may be in the control library"));
}

static void test_will_return(void **state)
{
	(void)state;
	expect(calls_one_that_waits, -EBUSY);
	expect(calls_one_that_spins, -EBUSY);
	expect(is_interrupted, -EBUSY);
}

/* The thread that was the library's last is still there: its number there is not in doubt. */
static void test_last_thread(void **state)
{
	pid_t pid = child(waits);

	(void)state;
	assert_int_equal(clear_of(pid, pid), -ETIMEDOUT);
	assert_int_equal(clear_of(pid, 0x3fffff), 0);
	end(pid);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_elsewhere),
		cmocka_unit_test(test_inside),
		cmocka_unit_test(test_will_return),
		cmocka_unit_test(test_last_thread),
	};

	return cmocka_run_group_tests_name("inject_clear", tests, NULL, NULL);
}
