// SPDX-License-Identifier: BSD-2-Clause
/*
 * Which of a library's functions get probes of the gate, and as which calls. The library is this
 * program, whose functions have the names of NCCL's; as there, each has a second one.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

#include <lien/probe.h>
#include "loader/probes/calls.h"

/* Not one function with several names, unless it is said to be. */
#define FUNCTION(name)                                                                             \
	__attribute__((noinline)) int name(void);                                                  \
	int name(void)                                                                             \
	{                                                                                          \
		static volatile int calls;                                                         \
		return calls += __LINE__;                                                          \
	}
#define ALIAS(name, of) __attribute__((alias(#of))) int name(void);

FUNCTION(ncclGroupStart)
FUNCTION(ncclAllReduce)
FUNCTION(ncclReduceScatterConfig)
FUNCTION(pncclSend)
FUNCTION(pncclRecv)
FUNCTION(ncclCommCount)
FUNCTION(ncclAllShuffle)
FUNCTION(pncclGroupEnd)
ALIAS(pncclGroupStart, ncclGroupStart)
ALIAS(pncclAllReduce, ncclAllReduce)
ALIAS(ncclSend, pncclSend)
ALIAS(ncclRecv, pncclRecv)
ALIAS(ncclGroupEnd, pncclGroupEnd)

static struct lien_probe_set set;

static int setup(void **state)
{
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(lien_calls_gated(&set, fd, LIEN_LIB_NCCL, false), 0);
	close(fd);
	return 0;
}

static unsigned call(unsigned i)
{
	return LIEN_COOKIE_CALL(set.cookies[i]);
}

static unsigned times(unsigned number)
{
	unsigned i, n = 0;

	for (i = 0; i < set.count; i++)
		n += call(i) == number;
	return n;
}

/* Whichever of its names comes first in the table of symbols. */
static void functions_with_two_names(void **state)
{
	(void)state;
	assert_int_equal(set.count, 7);
	assert_int_equal(times(LIEN_CALL_NCCL_ALL_REDUCE), 1);
	assert_int_equal(times(LIEN_CALL_NCCL_SEND), 1);
	assert_int_equal(times(LIEN_CALL_NCCL_RECV), 1);
}

/* Traced and held as the call that it is but for a last argument. */
static void functions_that_are_the_same_call(void **state)
{
	static struct lien_call_places places;
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	unsigned i, found = 0;

	(void)state;
	assert_int_equal(times(LIEN_CALL_NCCL_REDUCE_SCATTER), 1);
	assert_int_equal(lien_calls_look_up(&places, fd, LIEN_LIB_NCCL), 0);
	for (i = 0; i < places.count; i++)
		found += places.places[i].offset != UINT64_MAX &&
			 places.places[i].call->number == LIEN_CALL_NCCL_REDUCE_SCATTER;
	assert_int_equal(found, 1);
	assert_string_equal(lien_calls_name(LIEN_CALL_NCCL_REDUCE_SCATTER), "ncclReduceScatter");
	close(fd);
}

/* A thread that is seen to begin a group while probes are put in is seen to end it. */
static void groups_are_seen_ending(void **state)
{
	(void)state;
	assert_int_equal(call(0), LIEN_CALL_NCCL_GROUP_END);
	assert_int_equal(call(set.count - 1), LIEN_CALL_NCCL_GROUP_START);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(functions_with_two_names),
		cmocka_unit_test(functions_that_are_the_same_call),
		cmocka_unit_test(groups_are_seen_ending),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
