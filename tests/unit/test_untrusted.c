// SPDX-License-Identifier: BSD-2-Clause
/* loader/discover/untrusted.c: nothing but regular files is opened, and none outside of the job's
 * root. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "loader/discover/untrusted.h"

static char folder[PATH_MAX];

static char *path_of(const char *prefix, const char *name)
{
	static char path[3][2 * PATH_MAX];
	static int at;

	at = (at + 1) % 3;
	snprintf(path[at], sizeof(path[at]), "%s%s/%s", prefix, folder, name);
	return path[at];
}

/* As the agent sees this process's files. */
static const char *root(void)
{
	static char text[32];

	snprintf(text, sizeof(text), "/proc/%d/root", getpid());
	return text;
}

static void write_file(const char *name, const char *text)
{
	FILE *file = fopen(path_of("", name), "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static int setup(void **state)
{
	(void)state;
	snprintf(folder, sizeof(folder), "%s/lien-untrusted-XXXXXX", getenv("TMPDIR") ?: "/tmp");
	return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[PATH_MAX + 16];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	return system(command);
}

static void test_regular_file(void **state)
{
	char text[16];
	struct stat st;
	int fd;

	(void)state;
	write_file("file", "0123456789");
	fd = lien_untrusted_open(path_of(root(), "file"), &st);
	assert_true(fd >= 0);
	assert_int_equal(st.st_size, 10);
	assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	close(fd);
	assert_int_equal(lien_untrusted_read(path_of("", "file"), text, sizeof(text)), 10);
	assert_string_equal(text, "0123456789");
	assert_int_equal(lien_untrusted_read(path_of(root(), "file"), text, 5), 4);
	assert_string_equal(text, "0123");
	assert_int_equal(lien_untrusted_stat(path_of(root(), "file"), &st), 0);
	assert_int_equal(lien_untrusted_open(path_of(root(), "none"), &st), -ENOENT);
}

static void test_what_is_no_file(void **state)
{
	char byte, text[16];
	struct stat st;
	int fd;

	(void)state;
	assert_int_equal(mkfifo(path_of("", "fifo"), 0600), 0);
	fd = open(path_of("", "fifo"), O_RDWR | O_NONBLOCK);
	assert_int_equal(write(fd, "x", 1), 1);
	assert_int_equal(lien_untrusted_open(path_of(root(), "fifo"), &st), -ESPIPE);
	assert_int_equal(lien_untrusted_read(path_of("", "fifo"), text, sizeof(text)), -ESPIPE);
	assert_int_equal(read(fd, &byte, 1), 1);
	close(fd);
	assert_int_equal(lien_untrusted_open("/dev/null", &st), -ESPIPE);
	assert_int_equal(lien_untrusted_open("/dev/tty", &st), -ESPIPE);
	assert_int_equal(lien_untrusted_open(path_of(root(), ""), &st), -ESPIPE);
	/* A watchdog that is opened, and then closed, reboots the machine. */
	if (!mknod(path_of("", "device"), S_IFCHR | 0600, makedev(10, 130)))
		assert_int_equal(lien_untrusted_open(path_of(root(), "device"), &st), -ESPIPE);
}

static void test_links(void **state)
{
	char target[PATH_MAX];
	struct stat st;

	(void)state;
	write_file("file", "1");
	assert_int_equal(symlink("file", path_of("", "link")), 0);
	assert_int_equal(symlink(".", path_of("", "folder")), 0);
	snprintf(target, sizeof(target), "/proc/%d/fd/0", getpid());
	assert_int_equal(symlink(target, path_of("", "magic")), 0);
	assert_int_equal(lien_untrusted_open(path_of(root(), "link"), &st), -ELOOP);
	assert_int_equal(lien_untrusted_open(path_of(root(), "folder/file"), &st), -ELOOP);
	assert_int_equal(lien_untrusted_open(path_of(root(), "magic"), &st), -ELOOP);
	assert_int_equal(lien_untrusted_stat(path_of(root(), "link"), &st), -ELOOP);
	snprintf(target, sizeof(target), "%s/proc/self/exe", root());
	assert_int_equal(lien_untrusted_open(target, &st), -ELOOP);
	/* The administrator's own paths may have some. */
	assert_int_equal(lien_untrusted_stat(path_of("", "link"), &st), 0);
	assert_true(S_ISREG(st.st_mode));
}

/* ".." at the root stays there. */
static void test_outside_of_the_root(void **state)
{
	char path[PATH_MAX], text[16];
	struct stat st;
	pid_t pid;
	int ends[2];

	(void)state;
	write_file("inside", "inside");
	assert_int_equal(pipe(ends), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		if (chroot(folder))
			_exit(write(ends[1], "-", 1) == 1);
		_exit(write(ends[1], "+", 1) == 1 && pause());
	}
	assert_int_equal(read(ends[0], text, 1), 1);
	if (text[0] == '-')
		skip();
	snprintf(path, sizeof(path), "/proc/%d/root/../../inside", pid);
	assert_int_equal(lien_untrusted_read(path, text, sizeof(text)), 6);
	snprintf(path, sizeof(path), "/proc/%d/root/../etc/passwd", pid);
	assert_int_equal(lien_untrusted_open(path, &st), -ENOENT);
	kill(pid, SIGKILL);
}

static void test_list(void **state)
{
	char **names;

	(void)state;
	assert_int_equal(mkdir(path_of("", "list"), 0700), 0);
	write_file("list/b", "");
	write_file("list/a", "");
	write_file("list/.hidden", "");
	assert_int_equal(lien_untrusted_list(path_of(root(), "list"), &names, 2), 2);
	assert_string_equal(names[0], "a");
	assert_string_equal(names[1], "b");
	free(names);
	assert_int_equal(lien_untrusted_list(path_of(root(), "list"), &names, 1), -E2BIG);
	assert_int_equal(lien_untrusted_list(path_of(root(), "list/a"), &names, 1), -ENOTDIR);
	assert_int_equal(lien_untrusted_list(path_of(root(), "none"), &names, 1), -ENOENT);
}

static void test_environ(void **state)
{
	static const char text[] = "ONE=1\0ONE_MORE=2\0EMPTY=\0NONE\0LAST=end";
	size_t size;
	char *own;

	(void)state;
	assert_string_equal(lien_environ_variable(text, sizeof(text) - 1, "ONE"), "1");
	assert_string_equal(lien_environ_variable(text, sizeof(text) - 1, "EMPTY"), "");
	assert_string_equal(lien_environ_variable(text, sizeof(text) - 1, "LAST"), "end");
	assert_null(lien_environ_variable(text, sizeof(text) - 1, "NONE"));
	assert_null(lien_environ_variable(text, sizeof(text) - 1, "end"));
	assert_null(lien_environ_variable(NULL, 0, "ONE"));
	own = lien_environ_read(getpid(), &size);
	assert_non_null(own);
	assert_true(size <= 1 << 20);
	free(own);
	assert_null(lien_environ_read(0, &size));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_regular_file, setup, teardown),
		cmocka_unit_test_setup_teardown(test_what_is_no_file, setup, teardown),
		cmocka_unit_test_setup_teardown(test_links, setup, teardown),
		cmocka_unit_test_setup_teardown(test_outside_of_the_root, setup, teardown),
		cmocka_unit_test_setup_teardown(test_list, setup, teardown),
		cmocka_unit_test(test_environ),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
