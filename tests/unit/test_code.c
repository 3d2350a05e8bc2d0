// SPDX-License-Identifier: BSD-2-Clause
/* loader/probes/code.c: a process's code is compared with the file's. This process is asked about.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "loader/probes/code.h"

#define PAGE 4096u

static int fd;
static uint8_t *code;
static const uint64_t places[] = {PAGE + 3000, PAGE + 16, 3 * PAGE - 5, 100000};

/* Four pages of code, of which the second and the third are mapped. */
static int setup(void **state)
{
	char path[] = "/tmp/lien-test-code-XXXXXX";
	uint8_t bytes[4 * PAGE];

	(void)state;
	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = i % 251;
	memcpy(bytes + PAGE + 16, (uint8_t[]){0x0f, 0x1f, 0x44, 0x00, 0x00}, 5);
	fd = mkstemp(path);
	unlink(path);
	if (fd < 0 || write(fd, bytes, sizeof(bytes)) != sizeof(bytes))
		return -1;
	code = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE, fd, PAGE);
	return code == MAP_FAILED ? -1 : 0;
}

static int teardown(void **state)
{
	(void)state;
	munmap(code, 2 * PAGE);
	close(fd);
	return 0;
}

static int check(void)
{
	return lien_code_check(fd, places, sizeof(places) / sizeof(places[0]), getpid());
}

static void test_same(void **state)
{
	(void)state;
	assert_int_equal(check(), 0);
	code[200] ^= 1; /* nowhere near */
	assert_int_equal(check(), 0);
	assert_int_equal(lien_code_check(fd, NULL, 0, getpid()), 0);
}

static void test_rewritten(void **state)
{
	static const unsigned at[] = {3000, 3001, 3004, 3012, 2 * PAGE - 1, 16, 22};

	(void)state;
	for (unsigned i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		code[at[i]] ^= 1;
		assert_int_equal(check(), -ETXTBSY);
		code[at[i]] ^= 1;
	}
	assert_int_equal(check(), 0);
}

/* Our probes put them on the first byte, and other people's may be on the bytes after it. */
static void test_breakpoints(void **state)
{
	(void)state;
	code[3000] = code[3009] = 0xcc;
	assert_int_equal(check(), 0);
}

/* The kernel makes a call of a probe's nop. */
static void test_call_in_place_of_nop(void **state)
{
	(void)state;
	memcpy(code + 16, (uint8_t[]){0xe8, 1, 2, 3, 4}, 5);
	assert_int_equal(check(), 0);
	code[3000] = 0xe8; /* but not of anything else */
	assert_int_equal(check(), -ETXTBSY);
}

static void test_cannot_be_read(void **state)
{
	(void)state;
	mprotect(code + PAGE, PAGE, PROT_EXEC);
	munmap(code, PAGE);
	assert_int_equal(ftruncate(fd, PAGE), 0);
	assert_int_equal(check(), -EAGAIN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_same, setup, teardown),
		cmocka_unit_test_setup_teardown(test_rewritten, setup, teardown),
		cmocka_unit_test_setup_teardown(test_breakpoints, setup, teardown),
		cmocka_unit_test_setup_teardown(test_call_in_place_of_nop, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cannot_be_read, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
