// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent/plan/host.h"

#define MIB	(1ull << 20)
#define NO_SUCH "/nowhere"

static char folder[64], proc[80], v2[80], v1[80];
static struct lien_host_files files;
static char error[400];

__attribute__((format(printf, 2, 3))) static void put(const char *text, const char *path, ...)
{
	char name[300];
	va_list args;
	FILE *file;

	va_start(args, path);
	vsnprintf(name, sizeof(name), path, args);
	va_end(args);
	for (char *slash = strchr(name + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(name, 0755);
		*slash = '/';
	}
	file = fopen(name, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static unsigned reads; /* of files below the cgroups' mounts */

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
	reads += !strncmp(path, v2, strlen(v2)) && mode[0] == 'r';
	return __real_fopen(path, mode);
}

static int setup(void **state)
{
	(void)state;
	strcpy(folder, "/tmp/test-host-XXXXXX");
	assert_non_null(mkdtemp(folder));
	snprintf(proc, sizeof(proc), "%s/proc", folder);
	snprintf(v2, sizeof(v2), "%s/v2", folder);
	snprintf(v1, sizeof(v1), "%s/v1", folder);
	files = (struct lien_host_files){.proc = proc, .cgroup2 = v2, .cgroup1 = v1};
	put("MemTotal: 9999999 kB\nMemFree: 1 kB\nMemAvailable:    1048576 kB\n", "%s/meminfo",
		proc);
	return 0;
}

static int teardown(void **state)
{
	char command[100];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

static int ask(uint64_t first, uint64_t second)
{
	const struct lien_host_need needs[] = {{7, first}, {8, second}};

	memset(error, 0, sizeof(error));
	return lien_host_check(&files, needs, 2, error, sizeof(error));
}

static void expect_refusal(uint64_t first, uint64_t second, const char *words)
{
	assert_int_equal(ask(first, second), -ENOMEM);
	if (!strstr(error, words))
		fail_msg("\"%s\" is not in \"%s\"", words, error);
	assert_null(strchr(error, '\n'));
}

static void test_machine(void **state)
{
	(void)state;
	assert_int_equal(ask(0, 0), 0);
	assert_int_equal(ask(480 * MIB, 480 * MIB), 0); /* 64 MiB are left to others */
	expect_refusal(480 * MIB, 481 * MIB, "961.0 MiB more is needed, the machine has 960.0 MiB");
	put("MemAvailable: 10 kB\n", "%s/meminfo", proc);
	expect_refusal(1, 0, "1 B more is needed, the machine has 0 left");
	assert_int_equal(ask(0, 0), 0); /* it holds already what it needs */
	put("nonsense\n", "%s/meminfo", proc);
	assert_int_equal(ask(480 * MIB, 481 * MIB), 0);
	files.proc = NO_SUCH;
	assert_int_equal(ask(1ull << 50, 0), 0);
	files.proc = NULL;
	assert_int_equal(ask(1ull << 50, 0), 0);
}

static void group2(const char *name, const char *max, const char *current)
{
	put(max, "%s%s/memory.max", v2, name);
	put(current, "%s%s/memory.current", v2, name);
}

static void test_cgroup2(void **state)
{
	(void)state;
	put("0::/job/a\n", "%s/7/cgroup", proc);
	put("0::/job/ab\n", "%s/8/cgroup", proc);
	group2("/job/a", "max\n", "99999999\n");
	group2("/job/ab", "max\n", "1\n");
	assert_int_equal(ask(100 * MIB, 100 * MIB), 0);
	group2("/job/a", "209715200\n", "104857600\n");
	assert_int_equal(ask(100 * MIB, 500 * MIB), 0);
	expect_refusal(
		101 * MIB, 0, "101.0 MiB more is needed, the memory cgroup /job/a has 100.0 M");
	/* What it has cached is let go of. */
	put("anon 5\nfile 99\ninactive_file 10485760\nactive_file 10485760\n",
		"%s/job/a/memory.stat", v2);
	assert_int_equal(ask(120 * MIB, 0), 0);
	expect_refusal(121 * MIB, 0, "/job/a has 120.0 MiB");
	/* Its parent is for both together. */
	group2("/job", "524288000\n", "314572800\n");
	assert_int_equal(ask(100 * MIB, 100 * MIB), 0);
	expect_refusal(
		100 * MIB, 101 * MIB, "201.0 MiB more is needed, the memory cgroup /job has");
	assert_int_equal(ask(0, 200 * MIB), 0);
	expect_refusal(0, 201 * MIB, "cgroup /job has 200.0 MiB left");
	/* It has more than it may. */
	group2("/job", "1048576\n", "314572800\n");
	expect_refusal(0, 1, "cgroup /job has 0 left");
	assert_int_equal(ask(0, 0), 0);
	/* In a container, the mount is its own cgroup. */
	put("0::/\n", "%s/8/cgroup", proc);
	assert_int_equal(ask(0, 300 * MIB), 0);
	group2("", "209715200\n", "0\n");
	expect_refusal(0, 300 * MIB, "the memory cgroup / has 200.0 MiB left");
	put("0::/../other\n", "%s/8/cgroup", proc);
	assert_int_equal(ask(0, 300 * MIB), 0);
	group2("/job", "max\n", "1\n");
	assert_int_equal(ask(1, 300 * MIB), 0); /* nor is it added to others */
	group2("", "52428800\n", "0\n");
	expect_refusal(60 * MIB, 0, "the memory cgroup / has 50.0 MiB left");
}

/* Limits that are none do not count, and those of cgroups above do. */
#define MANY 64

/* The agent's loop waits for this: a cgroup is read once, however many processes are in it. */
static void test_many_processes(void **state)
{
	struct lien_host_need needs[MANY];
	unsigned i, once;

	(void)state;
	group2("/job", "209715200\n", "0\n");
	group2("/job/a", "209715200\n", "0\n");
	for (i = 0; i < MANY; i++) {
		put("0::/job/a\n", "%s/%u/cgroup", proc, 7 + i);
		needs[i] = (struct lien_host_need){7 + i, i ? MIB : 0};
	}
	reads = 0;
	assert_int_equal(lien_host_check(&files, needs, 2, error, sizeof(error)), 0);
	once = reads;
	assert_true(once > 0);
	assert_int_equal(lien_host_check(&files, needs, MANY, error, sizeof(error)), 0);
	assert_int_equal(reads, 2 * once);
	for (i = 0; i < MANY; i++) /* in cgroups of their own, below one that is too small */
		put("0::/job/b\n", "%s/%u/cgroup", proc, 7 + i);
	put("0::/job/a\n", "%s/%u/cgroup", proc, 8);
	group2("/job/b", "1048576\n", "0\n");
	assert_int_equal(lien_host_check(&files, needs, MANY, error, sizeof(error)), -ENOMEM);
	assert_non_null(strstr(error, "/job/b"));
}

static void test_limited(void **state)
{
	(void)state;
	put("0::/job/a\n", "%s/7/cgroup", proc);
	group2("/job/a", "max\n", "1\n");
	group2("/job", "max\n", "1\n");
	assert_false(lien_host_limited(&files, 7));
	assert_false(lien_host_limited(&files, 8)); /* it has none */
	group2("/job", "209715200\n", "1\n");
	assert_true(lien_host_limited(&files, 7));
	group2("/job", "99999999999999\n", "1\n"); /* more than the machine has */
	assert_false(lien_host_limited(&files, 7));
	put("4:memory:/x\n", "%s/7/cgroup", proc);
	put("9223372036854771712\n", "%s/x/memory.limit_in_bytes", v1);
	assert_false(lien_host_limited(&files, 7));
	put("104857600\n", "%s/x/memory.limit_in_bytes", v1);
	assert_true(lien_host_limited(&files, 7));
	files.proc = NO_SUCH;
	assert_false(lien_host_limited(&files, 7));
}

static void test_cgroup1(void **state)
{
	(void)state;
	put("5:devices:/x\n4:cpu,memory:/job\n0::/y\n", "%s/7/cgroup", proc);
	put("4:cpu,memory:/\n", "%s/8/cgroup", proc);
	put("9223372036854771712\n", "%s/job/memory.limit_in_bytes", v1);
	put("77\n", "%s/job/memory.usage_in_bytes", v1);
	assert_int_equal(ask(500 * MIB, 0), 0);
	put("104857600\n", "%s/job/memory.limit_in_bytes", v1);
	put("52428800\n", "%s/job/memory.usage_in_bytes", v1);
	put("inactive_file 1\ntotal_inactive_file 1048576\n", "%s/job/memory.stat", v1);
	assert_int_equal(ask(51 * MIB, 0), 0);
	expect_refusal(52 * MIB, 0, "52.0 MiB more is needed, the memory cgroup /job has 51.0 MiB");
	assert_int_equal(ask(0, 52 * MIB), 0);
	put("4:memory\nx\n", "%s/7/cgroup", proc); /* not as the kernel writes it */
	assert_int_equal(ask(52 * MIB, 0), 0);
	files.cgroup1 = NULL;
	put("4:memory:/job\n", "%s/7/cgroup", proc);
	assert_int_equal(ask(52 * MIB, 0), 0);
}

static void test_room(void **state)
{
	(void)state;
	put("0::/job/a\n", "%s/7/cgroup", proc);
	put("4:memory:/old\n0::/job/a\n", "%s/8/cgroup", proc);
	assert_int_equal(lien_host_room(&files, 7), 960 * MIB);
	group2("/job/a", "max\n", "99999999\n");
	group2("/job", "524288000\n", "314572800\n");
	assert_int_equal(lien_host_room(&files, 7), 200 * MIB);
	put("104857600\n", "%s/old/memory.limit_in_bytes", v1);
	put("52428800\n", "%s/old/memory.usage_in_bytes", v1);
	assert_int_equal(lien_host_room(&files, 8), 50 * MIB);
	assert_int_equal(lien_host_room(&files, 7), 200 * MIB);
	assert_int_equal(lien_host_room(&files, 9), 960 * MIB); /* it has ended */
	files.proc = NULL;
	assert_true(lien_host_room(&files, 9) == UINT64_MAX);
}

static void test_share(void **state)
{
	(void)state;
	assert_int_equal(lien_host_share(1000 * MIB, 0, 25), 250 * MIB);
	assert_int_equal(lien_host_share(900 * MIB, 100 * MIB, 25), 150 * MIB);
	assert_int_equal(lien_host_share(700 * MIB, 300 * MIB, 25), 0);
	assert_int_equal(lien_host_share(0, 100 * MIB, 25), 0);
	assert_int_equal(lien_host_share(1000 * MIB, 0, 0), 0);
	assert_true(lien_host_share(UINT64_MAX, 100 * MIB, 25) > 1ull << 60);
}

static void test_missing(void **state)
{
	struct lien_process process = {.arena_bytes = 0};

	(void)state;
	assert_int_equal(lien_host_missing(&process, 0), 0);
	assert_int_equal(lien_host_missing(&process, 1), LIEN_WIRE_ARENA_STEP);
	assert_int_equal(lien_host_missing(&process, 16 * MIB), LIEN_WIRE_ARENA_STEP);
	assert_int_equal(lien_host_missing(&process, 17 * MIB), 2 * LIEN_WIRE_ARENA_STEP);
	process.arena_bytes = 64 * MIB;
	process.arena_used = 10 * MIB;
	assert_int_equal(lien_host_missing(&process, 54 * MIB), 0);
	assert_int_equal(lien_host_missing(&process, 55 * MIB), LIEN_WIRE_ARENA_STEP);
}

static void test_this_machine(void **state)
{
	const struct lien_host_need need = {getpid(), 1ull << 50};
	struct lien_host_files here;

	(void)state;
	lien_host_files_find(&here);
	assert_string_equal(here.proc, "/proc");
	assert_int_equal(lien_host_check(&here, &need, 1, error, sizeof(error)), -ENOMEM);
	lien_host_files_free(&here);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_machine, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cgroup2, setup, teardown),
		cmocka_unit_test_setup_teardown(test_many_processes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_limited, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cgroup1, setup, teardown),
		cmocka_unit_test_setup_teardown(test_room, setup, teardown),
		cmocka_unit_test(test_share),
		cmocka_unit_test(test_missing),
		cmocka_unit_test(test_this_machine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
