// SPDX-License-Identifier: BSD-2-Clause
/* loader/probes/uprobe.c: on which kernels before 6.0 single probes miss no call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "loader/probes/uprobe.c"

static void test_preemption(void **state)
{
	const char *dynamic = "#1 SMP PREEMPT_DYNAMIC Tue Nov 14 13:30:08 UTC 2023";

	(void)state;
	assert_false(kernel_preempts("#101-Ubuntu SMP Tue Nov 14 13:30:08 UTC 2023", ""));
	assert_true(kernel_preempts("#101-Ubuntu SMP PREEMPT Tue Nov 14 13:30:08 UTC 2023", ""));
	assert_true(kernel_preempts("#1 SMP PREEMPT_RT Debian 5.15.0-1", ""));
	assert_true(kernel_preempts(dynamic, "")); /* not known */
	assert_true(kernel_preempts(dynamic, "none voluntary (full)\n"));
	assert_false(kernel_preempts(dynamic, "none (voluntary) full\n"));
	assert_false(kernel_preempts(dynamic, "(none) voluntary full\n"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_preemption)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
