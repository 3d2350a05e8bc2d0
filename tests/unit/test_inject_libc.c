// SPDX-License-Identifier: BSD-2-Clause
/* Which libc a process has. Its file can be anything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "loader/inject/inject_internal.h"

#define PAGE 4096

/* The text is the end of the file, and nothing lies behind. */
static uint32_t minor_at_end(const char *text)
{
	size_t size = strlen(text);
	uint32_t minor;
	char *pages =
		mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(pages, MAP_FAILED);
	assert_int_equal(mprotect(pages + PAGE, PAGE, PROT_NONE), 0);
	memcpy(pages + PAGE - size, text, size);
	minor = lien_inject_libc_minor(pages + PAGE - size, size);
	munmap(pages, 2 * PAGE);
	return minor;
}

static void test_versions(void **state)
{
	(void)state;
	assert_int_equal(
		minor_at_end("GNU C Library (Debian) stable release version 2.36.\nmore"), 36);
	assert_int_equal(minor_at_end("GNU C Library, stable release version 2.31"), 31);
	assert_int_equal(minor_at_end("GNU C Library, stable release version 3.1"), 0);
	assert_int_equal(minor_at_end("musl libc (x86_64) Version 1.2.5"), 0);
}

static void test_files_that_end_in_the_number(void **state)
{
	(void)state;
	assert_int_equal(minor_at_end("GNU C Library version 2."), 0);
	assert_int_equal(minor_at_end("GNU C Library version 2.     "), 0);
	assert_int_equal(minor_at_end("GNU C Library version 2.00000"), 0);
	assert_int_equal(minor_at_end("GNU C Library version 2.00036"), 36);
	assert_in_range(minor_at_end("GNU C Library version 2.99999999999"), 1000, 10000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_files_that_end_in_the_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
