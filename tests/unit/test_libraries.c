/* SPDX-License-Identifier: BSD-2-Clause */
#include "loader/discover/libraries.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

/* The process holds up whoever looks at it. */
static bool too_slow;

int __real_lien_untrusted_stat(const char *path, struct stat *st);
int __wrap_lien_untrusted_stat(const char *path, struct stat *st);
int __wrap_lien_untrusted_stat(const char *path, struct stat *st)
{
	return too_slow ? -ETIMEDOUT : __real_lien_untrusted_stat(path, st);
}

static void knows_names(void **state)
{
	static const struct {
		const char *path;
		int library;
	} cases[] = {
		{"libcuda.so", LIEN_LIB_CUDA},
		{"/usr/lib/x86_64-linux-gnu/libcuda.so.1", LIEN_LIB_CUDA},
		{"/a b/libcuda.so.580.159.03", LIEN_LIB_CUDA},
		{"/x/libcuda.so.1 (deleted)", LIEN_LIB_CUDA},
		{"libcudart.so.13", LIEN_LIB_CUDART},
		{"/torch/lib/libcudart-a5af0d8f.so.12", LIEN_LIB_CUDART},
		{"/x/libnccl.so.2.28.9", LIEN_LIB_NCCL},
		{"/x/liblien-control.so", LIEN_LIB_CONTROL},
		{"/x/libcudadebugger.so.1", 0},
		{"/x/libcuda-foo.so.1", 0},
		{"/x/libcuda-foo", 0},
		{"/x/libcuda", 0},
		{"/x/libcuda.so.1/other", 0},
		{"/x/libcuda.so.", 0},
		{"/x/libcuda.so.1.bak", 0},
		{"/x/libcuda.so..1", 0},
		{"/x/libcuda.sox", 0},
		{"/x/libnccl-net.so", 0},
		{"/x/libnccl_static.a", 0},
		{"/x/libcudart-a5af0d8.so.12", 0},
		{"/x/liblien-control.so.1", 0},
		{"/x/mylibcuda.so.1", 0},
		{"", 0},
		{"/", 0},
		{"[vdso]", 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (lien_library_of(cases[i].path) != (enum lien_library)cases[i].library)
			fail_msg("%s: %d", cases[i].path, lien_library_of(cases[i].path));
	}
	assert_string_equal(lien_library_name(LIEN_LIB_CUDA), "cuda");
	assert_string_equal(lien_library_name(0), "unknown");
}

struct found {
	unsigned mappings, executable;
	bool self;
};

static int count_mapping(const struct lien_maps_entry *mapping, void *arg)
{
	struct found *found = arg;
	uint64_t here = (uintptr_t)count_mapping;

	found->mappings++;
	found->executable += mapping->executable;
	if (here >= mapping->start && here < mapping->end)
		found->self = mapping->executable;
	return 0;
}

struct wanted {
	void *start;
	struct lien_maps_entry entry;
	char path[128];
};

static int take_wanted(const struct lien_maps_entry *mapping, void *arg)
{
	struct wanted *wanted = arg;

	if (mapping->start != (uintptr_t)wanted->start)
		return 0;
	wanted->entry = *mapping;
	snprintf(wanted->path, sizeof(wanted->path), "%s", mapping->path);
	return 1;
}

static void says_what_is_mapped(void **state)
{
	char path[] = "/tmp/with blank XXXXXX";
	int fd = mkstemp(path);
	struct wanted file, none;
	struct stat st;

	(void)state;
	assert_int_equal(ftruncate(fd, 8192), 0);
	assert_int_equal(fstat(fd, &st), 0);
	file.start = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 4096);
	none.start = mmap(NULL, 12288, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unlink(path);
	/* Otherwise the kernel may join it with a neighbour. */
	none.start = (char *)none.start + 4096;
	assert_int_equal(mprotect(none.start, 4096, PROT_WRITE), 0);
	assert_int_equal(lien_maps_read(getpid(), take_wanted, &file), 1);
	assert_int_equal(file.entry.end - file.entry.start, 4096);
	assert_int_equal(file.entry.offset, 4096);
	assert_int_equal(file.entry.inode, st.st_ino);
	assert_true(file.entry.readable && !file.entry.writable);
	assert_true(file.entry.executable && file.entry.shared);
	assert_memory_equal(file.path, "/tmp/with blank ", strlen("/tmp/with blank "));
	assert_non_null(strstr(file.path, " (deleted)"));
	assert_int_equal(lien_maps_read(getpid(), take_wanted, &none), 1);
	assert_false(none.entry.readable || none.entry.executable || none.entry.shared);
	assert_true(none.entry.writable);
	assert_int_equal(none.entry.inode, 0);
	assert_string_equal(none.path, "");
	munmap(file.start, 4096);
	munmap((char *)none.start - 4096, 12288);
	close(fd);
}

static int stop_at_once(const struct lien_maps_entry *mapping, void *arg)
{
	(void)mapping;
	(void)arg;
	return 42;
}

static void reads_own_maps(void **state)
{
	struct found found = {0};

	(void)state;
	assert_int_equal(lien_maps_read(0, count_mapping, &found), 0);
	assert_true(found.mappings > 5 && found.executable > 1 && found.self);
	memset(&found, 0, sizeof(found));
	assert_int_equal(lien_maps_read(getpid(), count_mapping, &found), 0);
	assert_true(found.self);
	assert_int_equal(lien_maps_read(0, stop_at_once, NULL), 42);
}

/* One that has ended and is not waited for has a maps file that is empty. */
static void copes_with_ended_processes(void **state)
{
	struct found found = {0};
	siginfo_t info;
	pid_t pid = fork();
	int err;

	(void)state;
	if (!pid)
		_exit(0);
	waitid(P_PID, pid, &info, WEXITED | WNOWAIT);
	err = lien_maps_read(pid, count_mapping, &found);
	assert_true(err == 0 || err == -ESRCH);
	assert_int_equal(found.mappings, 0);
	waitpid(pid, NULL, 0);
	assert_int_equal(lien_maps_read(pid, count_mapping, &found), -ESRCH);
	assert_int_equal(lien_maps_read_code(pid, count_mapping, &found), -ESRCH);
}

/* Each entry in a line, as in the file. */
struct lines {
	char text[1 << 16];
	size_t length;
	bool code; /* only executable mappings of files */
};

static int write_mapping(const struct lien_maps_entry *mapping, void *arg)
{
	struct lines *lines = arg;

	if (lines->code && !(mapping->executable && mapping->inode))
		return 0;
	lines->length += snprintf(lines->text + lines->length, sizeof(lines->text) - lines->length,
		"%llx %llx %llx %x:%x %llu %d%d%d%d %s\n", (unsigned long long)mapping->start,
		(unsigned long long)mapping->end, (unsigned long long)mapping->offset,
		mapping->dev_major, mapping->dev_minor, (unsigned long long)mapping->inode,
		mapping->readable, mapping->writable, mapping->executable, mapping->shared,
		mapping->path);
	assert_true(lines->length < sizeof(lines->text));
	return 0;
}

/* What the kernel is asked for is what it writes into the file. */
static void reads_code_alone(void **state)
{
	static struct lines all = {.code = true}, code;
	char path[] = "/tmp/lien\nodd XXXXXX";
	int fd = mkstemp(path);
	pid_t pid;

	(void)state;
	assert_int_equal(ftruncate(fd, 8192), 0);
	/* Deleted, with a name that has to be escaped, shared, and not of its beginning. */
	assert_ptr_not_equal(
		mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 4096), MAP_FAILED);
	unlink(path);
	pid = fork(); /* whose mappings do not change */
	if (!pid)
		_exit(pause());
	assert_int_equal(lien_maps_read(pid, write_mapping, &all), 0);
	assert_int_equal(lien_maps_read_code(pid, write_mapping, &code), 0);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_string_equal(code.text, all.text);
	assert_non_null(strstr(code.text, "/tmp/lien\\012odd "));
	assert_non_null(strstr(code.text, " (deleted)\n"));
	close(fd);
	assert_int_equal(lien_maps_read_code(getpid(), stop_at_once, NULL), 42);
}

struct expected {
	const char *path;
	struct stat st;
	pid_t pid;
	unsigned seen, duplicates;
	char open_path[256];
};

static int look_for(const struct lien_library_file *file, void *arg)
{
	struct expected *expected = arg;

	if (file->device != expected->st.st_dev || file->inode != expected->st.st_ino)
		return 0;
	expected->duplicates += expected->seen++ > 0;
	expected->pid = file->pid;
	assert_int_equal(file->library, LIEN_LIB_NCCL);
	snprintf(expected->open_path, sizeof(expected->open_path), "%s", file->open_path);
	return 0;
}

static int stop_with_7(const struct lien_library_file *file, void *arg)
{
	(void)file;
	(void)arg;
	return 7;
}

static void make_library(const char *directory, char *path, size_t size)
{
	int fd;

	snprintf(path, size, "%s/libnccl.so.2", directory);
	fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0755);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 8192), 0);
	close(fd);
}

static void finds_in_directories(void **state)
{
	char directory[] = "/tmp/lien-test-XXXXXX", path[64], link[64], list[128];
	struct expected expected = {0};

	(void)state;
	assert_non_null(mkdtemp(directory));
	make_library(directory, path, sizeof(path));
	snprintf(link, sizeof(link), "%s/libnccl.so", directory);
	assert_int_equal(symlink("libnccl.so.2", link), 0);
	assert_int_equal(stat(path, &expected.st), 0);
	snprintf(list, sizeof(list), "/nowhere::%s:%s", directory, directory);
	setenv("LD_LIBRARY_PATH", list, 1);
	assert_int_equal(lien_libraries_each(look_for, &expected), 0);
	assert_int_equal(expected.seen, 1);
	assert_int_equal(expected.pid, 0);
	assert_int_equal(lien_libraries_each(stop_with_7, NULL), 7);
	unsetenv("LD_LIBRARY_PATH");
	unlink(link);
	unlink(path);
	rmdir(directory);
}

/* Mapped by a process, and by now deleted: only /proc/PID/map_files still opens it. */
static void finds_in_processes(void **state)
{
	char directory[] = "/tmp/lien-test-XXXXXX", path[64];
	struct expected expected = {0};
	struct stat st;
	void *at;
	int fd;

	(void)state;
	assert_non_null(mkdtemp(directory));
	make_library(directory, path, sizeof(path));
	assert_int_equal(stat(path, &expected.st), 0);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	at = mmap(NULL, 8192, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	assert_true(at != MAP_FAILED);
	close(fd);
	assert_int_equal(lien_libraries_each(look_for, &expected), 0);
	assert_int_equal(expected.seen, 1);
	assert_int_equal(expected.pid, getpid());
	unlink(path);
	rmdir(directory);
	if (!geteuid()) {
		expected.seen = 0;
		assert_int_equal(lien_libraries_each(look_for, &expected), 0);
		assert_int_equal(expected.seen, 1);
		assert_int_equal(stat(expected.open_path, &st), 0);
		assert_int_equal(st.st_ino, expected.st.st_ino);
	}
	munmap(at, 8192);
}

static int opens_first_file(const struct lien_maps_entry *mapping, void *arg)
{
	char path[512];

	if (!mapping->executable || mapping->path[0] != '/')
		return 0;
	*(int *)arg = lien_maps_open_path(getpid(), mapping, path, sizeof(path));
	return 1;
}

/* It is not taken for one that is not there. */
static void tells_what_is_too_slow(void **state)
{
	int err = 1;

	(void)state;
	assert_int_equal(lien_maps_read(0, opens_first_file, &err), 1);
	assert_int_equal(err, 0);
	too_slow = true;
	assert_int_equal(lien_maps_read(0, opens_first_file, &err), 1);
	too_slow = false;
	assert_int_equal(err, -ETIMEDOUT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(knows_names),
		cmocka_unit_test(reads_own_maps),
		cmocka_unit_test(says_what_is_mapped),
		cmocka_unit_test(reads_code_alone),
		cmocka_unit_test(copes_with_ended_processes),
		cmocka_unit_test(finds_in_directories),
		cmocka_unit_test(finds_in_processes),
		cmocka_unit_test(tells_what_is_too_slow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
